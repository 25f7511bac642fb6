package workflowd_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/workflow"
)

// patience is how long tests wait for an expected event.
const patience = time.Minute

// hand is a worker driven by hand: tests see its assigned runs and delivered events, and
// append events of their choice.
type hand struct {
	t       testing.TB
	session workflow.Session
	news    chan news

	mu   sync.Mutex
	seen []news // read from news, but not asked for yet
}

// news is one call of a Runner.
type news struct {
	run      string
	lease    uint64
	assigned *workflow.Assignment
	events   []workflow.Event // delivered, or assigned
	revoked  bool
}

func (h *hand) Assign(a workflow.Assignment) {
	h.news <- news{run: a.Run.ID, lease: a.Lease, assigned: &a, events: a.Events}
}

func (h *hand) Deliver(run string, lease uint64, events []workflow.Event) {
	h.news <- news{run: run, lease: lease, events: events}
}

func (h *hand) Revoke(run string, lease uint64) {
	h.news <- news{run: run, lease: lease, revoked: true}
}

// attach connects a worker. Its session ends with the test.
func attach(t testing.TB, b workflow.Backend, info workflow.WorkerInfo) *hand {
	t.Helper()
	h := &hand{t: t, news: make(chan news, 200_000)}
	s, err := b.Attach(t.Context(), info, h)
	if err != nil {
		t.Fatal(err)
	}
	h.session = s
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// of returns the info for named workflows.
func of(names ...string) workflow.WorkerInfo {
	var info workflow.WorkerInfo
	for _, n := range names {
		info.Definitions = append(info.Definitions, workflow.DefinitionInfo{Name: n})
	}
	return info
}

// next returns the next matching news, and keeps the others for later.
func (h *hand) next(what string, want func(news) bool) news {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, n := range h.seen {
		if want(n) {
			h.seen = append(h.seen[:i:i], h.seen[i+1:]...)
			return n
		}
	}
	timeout := time.After(patience)
	for {
		select {
		case n := <-h.news:
			if want(n) {
				return n
			}
			h.seen = append(h.seen, n)
		case <-timeout:
			h.t.Fatalf("the worker did not hear of %s; it heard %+v", what, h.seen)
		}
	}
}

// take waits for the assignment of a run, or of any run for "".
func (h *hand) take(run string) news {
	h.t.Helper()
	return h.next("an assignment of "+run, func(n news) bool { return n.assigned != nil && (run == "" || n.run == run) })
}

// hears waits for an event of a run.
func (h *hand) hears(run string, of history.Type) workflow.Event {
	h.t.Helper()
	n := h.next(fmt.Sprintf("%v of %s", of, run), func(n news) bool {
		return n.run == run && n.assigned == nil && len(n.events) > 0 && n.events[len(n.events)-1].Type == of
	})
	return n.events[len(n.events)-1]
}

// try appends events to an assigned run, and returns the error.
func (h *hand) try(a news, events ...workflow.Event) error {
	h.t.Helper()
	done := make(chan error, 1)
	h.session.Append(a.run, a.lease, events, func(err error) { done <- err })
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		h.t.Fatal("an append was not decided")
		return nil
	}
}

func (h *hand) append(a news, events ...workflow.Event) {
	h.t.Helper()
	if err := h.try(a, events...); err != nil {
		h.t.Fatalf("append to %s: %v", a.run, err)
	}
}

// idle fails if the worker has been assigned a run.
func (h *hand) idle(what string) {
	h.t.Helper()
	for {
		select {
		case n := <-h.news:
			if n.assigned != nil {
				h.t.Fatalf("%s: run %s was assigned", what, n.run)
			}
			continue
		default:
		}
		return
	}
}

func create(t testing.TB, b workflow.Backend, p workflow.NewRun) *workflow.RunInfo {
	t.Helper()
	run, created, err := b.CreateRun(t.Context(), p)
	if err != nil || !created {
		t.Fatalf("create a run of %s: created %v, %v", p.Workflow, created, err)
	}
	return run
}

func step(id string) workflow.Event {
	return workflow.Event{Type: history.StepCompleted, ID: id, Name: "s", Payload: []byte(`json1`), Attempt: 1}
}

var completed = workflow.Event{Type: history.RunCompleted, Payload: []byte(`json2`)}

func get(t testing.TB, b workflow.Backend, id string) *workflow.RunInfo {
	t.Helper()
	run, err := b.GetRun(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return run
}

// eventually waits until a condition holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	timeout, look := time.After(patience), time.NewTicker(2*time.Millisecond)
	defer look.Stop()
	for !holds() {
		select {
		case <-look.C:
		case <-timeout:
			t.Fatalf("it never came to be: %s", what)
		}
	}
}
