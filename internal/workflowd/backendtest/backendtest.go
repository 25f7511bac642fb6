// Package backendtest is the suite every workflow.Backend passes: the engine in
// process, and the engine behind the daemon's HTTP API.
//
// It knows only the contract in package workflow. The tests drive its worker by hand: a
// test sees the assigned runs and delivered events, and appends events of its choice.
package backendtest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/workflow"
)

// Backend is the backend under test.
type Backend struct {
	workflow.Backend
	// Remote means that sessions run over a connection: there are no transactions.
	Remote bool
}

// Run runs the suite. open returns a new, empty backend, which is closed at the end of
// the test.
func Run(t *testing.T, open func(t *testing.T) Backend) {
	for _, tt := range []struct {
		name string
		test func(t *testing.T, b Backend)
	}{
		{"Create", testCreate},
		{"List", testList},
		{"Steps", testSteps},
		{"Fencing", testFencing},
		{"AllOrNone", testAllOrNone},
		{"Waits", testWaits},
		{"Hooks", testHooks},
		{"HookConflict", testHookConflict},
		{"Cancel", testCancel},
		{"CancelMany", testCancelMany},
		{"Attributes", testAttributes},
		{"RerunDelete", testRerunDelete},
		{"Children", testChildren},
		{"Release", testRelease},
		{"TakeOver", testTakeOver},
		{"Follow", testFollow},
		{"Streams", testStreams},
		{"StreamFencing", testStreamFencing},
		{"Schedules", testSchedules},
		{"UpdateSchedule", testUpdateSchedule},
		{"Watch", testWatch},
		{"WatchPace", testWatchPace},
		{"Counts", testCounts},
		{"LargePayloads", testLargePayloads},
		{"LongLog", testLongLog},
		{"Transact", testTransact},
		{"Contexts", testContexts},
		{"Refused", testRefused},
		{"Builds", testBuilds},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.test(t, open(t))
		})
	}
}

// patience is how long the suite waits for an expected event.
const patience = time.Minute

// news is one call of a worker's Runner.
type news struct {
	assigned  *workflow.Assignment
	delivered []workflow.Event
	revoked   bool
	run       string
	lease     uint64
}

// worker is a session driven by hand.
type worker struct {
	t       *testing.T
	session workflow.Session
	news    chan news
	later   []news // news of runs that next was not asked for
}

func (w *worker) Assign(a workflow.Assignment) {
	w.news <- news{assigned: &a, run: a.Run.ID, lease: a.Lease}
}

func (w *worker) Deliver(run string, lease uint64, events []workflow.Event) {
	w.news <- news{delivered: events, run: run, lease: lease}
}

func (w *worker) Revoke(run string, lease uint64) {
	w.news <- news{revoked: true, run: run, lease: lease}
}

// attach connects a worker that has the named workflows.
func attach(t *testing.T, b Backend, names ...string) *worker {
	t.Helper()
	w := &worker{t: t, news: make(chan news, 1000)}
	info := workflow.WorkerInfo{Name: "suite"}
	for _, n := range names {
		info.Definitions = append(info.Definitions, workflow.DefinitionInfo{Name: n})
	}
	return attachAs(t, b, w, info)
}

// attachAs connects a worker with the given info.
func attachAs(t *testing.T, b Backend, w *worker, info workflow.WorkerInfo) *worker {
	t.Helper()
	s, err := b.Attach(t.Context(), info, w)
	if err != nil {
		t.Fatalf("attach: %v", err)
	}
	w.session = s
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close the session: %v", err)
		}
	})
	return w
}

// next returns the next news of a run, or of any run for "".
func (w *worker) next(run string) news {
	w.t.Helper()
	for i, n := range w.later {
		if run == "" || n.run == run {
			w.later = append(w.later[:i:i], w.later[i+1:]...)
			return n
		}
	}
	timeout := time.After(patience)
	for {
		select {
		case n := <-w.news:
			if run == "" || n.run == run {
				return n
			}
			w.later = append(w.later, n)
		case <-timeout:
			w.t.Fatalf("the worker heard nothing of run %q", run)
		}
	}
}

// quiet fails if the worker gets news of a run.
func (w *worker) quiet(run string) {
	w.t.Helper()
	for {
		select {
		case n := <-w.news:
			w.later = append(w.later, n)
			continue
		default:
		}
		break
	}
	for _, n := range w.later {
		if n.run == run {
			w.t.Errorf("the worker heard %+v of run %s", n, run)
		}
	}
}

// job is a run assigned to a worker.
type job struct {
	*worker
	run   string
	lease uint64
	slot  int64
	first workflow.Assignment
}

// take waits until a run is assigned, any run for "".
func (w *worker) take(run string) *job {
	w.t.Helper()
	n := w.next(run)
	if n.assigned == nil {
		w.t.Fatalf("run %s: got %+v, want an assignment", run, n)
	}
	j := &job{worker: w, run: n.run, lease: n.lease, first: *n.assigned}
	j.check(n.assigned.Events)
	return j
}

// check checks that events directly follow the earlier ones.
func (j *job) check(events []workflow.Event) {
	j.t.Helper()
	for _, e := range events {
		if j.slot++; e.Slot != j.slot {
			j.t.Fatalf("run %s: event %v has slot %d, want %d", j.run, e.Type, e.Slot, j.slot)
		}
		if e.At == 0 {
			j.t.Errorf("run %s: event %v has no time", j.run, e.Type)
		}
	}
}

// wait waits until events of these types were delivered, in this order.
func (j *job) wait(types ...history.Type) []workflow.Event {
	j.t.Helper()
	var got []workflow.Event
	for len(got) < len(types) {
		n := j.next(j.run)
		if n.delivered == nil || n.lease != j.lease {
			j.t.Fatalf("run %s: got %+v, want events %v", j.run, n, types)
		}
		j.check(n.delivered)
		got = append(got, n.delivered...)
	}
	for i, e := range got {
		if i >= len(types) || e.Type != types[i] {
			j.t.Fatalf("run %s: event %d is %v of %d, want %v", j.run, i, e.Type, len(got), types)
		}
	}
	return got
}

// try appends events and returns the backend's error.
func (j *job) try(events ...workflow.Event) error {
	j.t.Helper()
	done := make(chan error, 1)
	j.session.Append(j.run, j.lease, events, func(err error) { done <- err })
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		j.t.Fatalf("run %s: an append was not decided", j.run)
		return nil
	}
}

// append appends events, and waits until they were delivered.
func (j *job) append(events ...workflow.Event) []workflow.Event {
	j.t.Helper()
	if err := j.try(events...); err != nil {
		j.t.Fatalf("run %s: append %v: %v", j.run, events[0].Type, err)
	}
	types := make([]history.Type, len(events))
	for i, e := range events {
		types[i] = e.Type
	}
	return j.wait(types...)
}

func start(t *testing.T, b Backend, p workflow.NewRun) *workflow.RunInfo {
	t.Helper()
	run, created, err := b.CreateRun(t.Context(), p)
	if err != nil || !created {
		t.Fatalf("create a run of %s: created %v, %v", p.Workflow, created, err)
	}
	return run
}

func ended(t *testing.T, b Backend, id string, want workflow.Status) *workflow.RunInfo {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	run, err := b.WaitRun(ctx, id)
	if err != nil {
		t.Fatalf("wait for run %s: %v", id, err)
	}
	if run.Status != want {
		t.Errorf("run %s is %s, want %s", id, run.Status, want)
	}
	return run
}

// value is an envelope of a JSON string.
func value(s string) []byte { return fmt.Appendf(nil, "json%q", s) }

func step(id, result string) workflow.Event {
	return workflow.Event{
		Type: history.StepCompleted, ID: id, Name: "step", Input: value("in"), Payload: value(result),
		Attempt: 1, StartedAt: time.Now().UnixMilli(),
	}
}

func completed(result string) workflow.Event {
	return workflow.Event{Type: history.RunCompleted, Payload: value(result)}
}
