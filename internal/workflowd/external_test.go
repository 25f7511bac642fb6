package workflowd_test

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/db/pgtest"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/workflow"
)

// eachExternal runs a test on both databases. reopen closes the engine and opens another
// one on the same database.
func eachExternal(t *testing.T, test func(t *testing.T, reopen func() *workflowd.External)) {
	run := func(open func(t *testing.T) *workflowd.Engine) func(*testing.T) {
		return func(t *testing.T) {
			t.Parallel()
			var e *workflowd.Engine
			test(t, func() *workflowd.External {
				if e != nil {
					if err := e.Close(); err != nil {
						t.Fatal(err)
					}
				}
				e = open(t)
				return e.External("p", history.JavaScript)
			})
		}
	}
	t.Run("SQLite", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "w.db")
		run(func(t *testing.T) *workflowd.Engine { return open(t, path, workflowd.Config{}) })(t)
	})
	t.Run("Postgres", func(t *testing.T) {
		dsn := pgtest.DSN(t)
		run(func(t *testing.T) *workflowd.Engine { return openShared(t, dsn, workflowd.Config{}) })(t)
	})
}

const externalRun = "wrun_01M8BS00000000000000000000"

func createExternal(t *testing.T, x *workflowd.External, id string) {
	t.Helper()
	createOf(t, x, id, limitedWorkflow)
}

// createOf creates a run of a workflow.
func createOf(t *testing.T, x *workflowd.External, id, name string) {
	t.Helper()
	_, err := x.Create(t.Context(), workflowd.ExternalRun{
		NewRun: workflow.NewRun{ID: id, Workflow: name, Build: "dpl_1", Input: []byte("devl[]")},
		Extra:  []byte("run"), EventExtra: []byte("event"),
	})
	if err != nil {
		t.Fatal(err)
	}
}

// record appends each event as an entry, and returns the error of each.
func record(t *testing.T, x *workflowd.External, events ...history.Event) []error {
	t.Helper()
	entries := make([]workflowd.Entry, len(events))
	for i := range events {
		entries[i] = workflowd.Entry{events[i]}
	}
	rec, err := x.Record(t.Context(), externalRun, entries...)
	if err != nil {
		t.Fatal(err)
	}
	errs := make([]error, len(events))
	for i, r := range rec.Results {
		errs[i] = r.Err
	}
	return errs
}

// A run's log continues in another process, and keeps the data that its runtime stored.
func TestExternal(t *testing.T) {
	t.Parallel()
	eachExternal(t, func(t *testing.T, reopen func() *workflowd.External) {
		x := reopen()
		createExternal(t, x, externalRun)
		if _, err := x.Create(t.Context(), workflowd.ExternalRun{NewRun: workflow.NewRun{ID: externalRun, Workflow: "other"}}); cay.CodeOf(err) != cay.Conflict {
			t.Errorf("the same id again: %v", err)
		}
		input := bytes.Repeat([]byte("devl"), 100_000) // too large for the log
		until := time.Now().Add(time.Hour).UnixMilli()
		for _, err := range record(t, x,
			history.Event{Type: history.RunStarted},
			history.Event{Type: history.StepCreated, ID: "step_1", Name: "step//./w//s", Input: input, Extra: []byte("x")},
			history.Event{Type: history.StepStarted, ID: "step_1"},
			history.Event{Type: history.WaitCreated, ID: "wait_1", Until: until},
			history.Event{Type: history.HookCreated, ID: "hook_1", Token: "t"},
		) {
			if err != nil {
				t.Error(err)
			}
		}
		x = reopen()
		rec, err := x.Record(t.Context(), externalRun, workflowd.Entry{{Type: history.StepCompleted, ID: "step_1", Payload: []byte("devl1")}})
		if err != nil || rec.Results[0].Err != nil {
			t.Fatal(err, rec)
		}
		if len(rec.Log) != 7 || !bytes.Equal(rec.Log[2].Input, input) || string(rec.Log[2].Extra) != "x" || string(rec.Log[0].Extra) != "event" {
			t.Errorf("the log has %d events, the third %.60v", len(rec.Log), rec.Log[2])
		}
		if string(rec.Run.Extra) != "run" || rec.Run.Kind != history.JavaScript || rec.Run.Build != "dpl_1" {
			t.Errorf("the run is %+v", rec.Run)
		}
		if got := rec.Results[0].Events; len(got) != 1 || got[0].Slot != 7 {
			t.Errorf("it appended %+v", got)
		}
		run, err := x.GetRun(t.Context(), externalRun)
		if err != nil || string(run.Extra) != "run" || run.Status != history.Running {
			t.Errorf("it is stored as %+v: %v", run, err)
		}
	})
}

// Requests that a runtime must not make are refused, with the errors that its protocol
// distinguishes.
func TestExternal_refused(t *testing.T) {
	t.Parallel()
	eachExternal(t, func(t *testing.T, reopen func() *workflowd.External) {
		x := reopen()
		if _, err := x.Record(t.Context(), externalRun, workflowd.Entry{{Type: history.RunStarted}}); cay.CodeOf(err) != cay.NotFound {
			t.Errorf("a run that is not there: %v", err)
		}
		createExternal(t, x, externalRun)
		later := time.Now().Add(time.Hour).UnixMilli()
		errs := record(t, x,
			history.Event{Type: history.RunStarted},
			history.Event{Type: history.RunStarted}, // it has started already
			history.Event{Type: history.StepStarted, ID: "step_0"},
			history.Event{Type: history.StepCreated, ID: "step_1", Name: "s", Input: []byte("devl1")},
			history.Event{Type: history.StepCreated, ID: "step_1", Name: "s", Input: []byte("devl1")},
			history.Event{Type: history.StepStarted, ID: "step_1"},
			history.Event{Type: history.StepRetrying, ID: "step_1", Payload: []byte("devl1"), Until: later},
			history.Event{Type: history.StepStarted, ID: "step_1"},
			history.Event{Type: history.ChildStarted, ID: "child_1", Token: "r"},
			history.Event{Type: history.HookReceived, ID: "hook_1"},
		)
		for i, want := range []cay.Code{"", "", cay.NotFound, "", cay.Conflict, "", "", cay.Conflict, cay.Invalid, cay.NotFound} {
			if got := errs[i]; got == nil && want != "" || got != nil && cay.CodeOf(got) != want {
				t.Errorf("event %d: %v; want %q", i, got, want)
			}
		}
		var early *workflowd.EarlyError
		if !errors.As(errs[7], &early) || !errors.Is(errs[7], workflowd.ErrTooEarly) || early.Until.UnixMilli() != later {
			t.Errorf("a step before its time: %v", errs[7])
		}
		// An entry is appended as a whole or not at all, and later entries are not
		// affected.
		rec, err := x.Record(t.Context(), externalRun,
			workflowd.Entry{{Type: history.StepCreated, ID: "step_1", Name: "s", Input: []byte("devl1")}, {Type: history.StepStarted, ID: "step_1"}},
			workflowd.Entry{{Type: history.StepCreated, ID: "step_2", Name: "s", Input: []byte("devl1")}, {Type: history.StepStarted, ID: "step_2"}})
		if err != nil || rec.Results[0].Err == nil || rec.Results[1].Err != nil || len(rec.Results[1].Events) != 2 {
			t.Fatalf("%v, %+v", err, rec)
		}
		if errs := record(t, x, history.Event{Type: history.RunCancelled}, history.Event{Type: history.RunCancelled},
			history.Event{Type: history.StepCompleted, ID: "step_2", Payload: []byte("devl1")}, history.Event{Type: history.StepStarted, ID: "step_1"}); errs[0] != nil || errs[1] != nil ||
			errs[2] != nil || !errors.Is(errs[3], workflowd.ErrRunEnded) {
			t.Errorf("around the end: %v", errs)
		}
	})
}

// A token that another hook has becomes hook_conflict, which names the run.
func TestExternal_conflict(t *testing.T) {
	t.Parallel()
	eachExternal(t, func(t *testing.T, reopen func() *workflowd.External) {
		x := reopen()
		const other = "wrun_01M8BS00000000000000000001"
		createExternal(t, x, other)
		createExternal(t, x, externalRun)
		if _, err := x.Record(t.Context(), other, workflowd.Entry{{Type: history.HookCreated, ID: "hook_1", Token: "t"}}); err != nil {
			t.Fatal(err)
		}
		rec, err := x.Record(t.Context(), externalRun, workflowd.Entry{{Type: history.HookCreated, ID: "hook_1", Token: "t"}})
		if err != nil {
			t.Fatal(err)
		}
		if got := rec.Results[0].Events; len(got) != 1 || got[0].Type != history.HookConflict || got[0].Reason != other {
			t.Errorf("it appended %+v", got)
		}
	})
}

// Each of many concurrent calls sees the log with its own events, in slots of their own.
func TestExternal_concurrently(t *testing.T) {
	t.Parallel()
	eachExternal(t, func(t *testing.T, reopen func() *workflowd.External) {
		x := reopen()
		createExternal(t, x, externalRun)
		var all sync.WaitGroup
		for i := range 50 {
			all.Go(func() {
				id := fmt.Sprintf("step_%d", i%25) // each is created twice
				rec, err := x.Record(t.Context(), externalRun, workflowd.Entry{{Type: history.StepCreated, ID: id, Name: "s", Input: []byte(id)}})
				if err != nil {
					t.Error(err)
					return
				}
				for j := range rec.Log {
					if rec.Log[j].Slot != int64(j)+1 {
						t.Errorf("event %d has slot %d", j, rec.Log[j].Slot)
					}
				}
				if got := rec.Results[0]; got.Err == nil && (len(got.Events) != 1 || got.Events[0].ID != id) || got.Err != nil && cay.CodeOf(got.Err) != cay.Conflict {
					t.Errorf("%s: %+v", id, got)
				}
			})
		}
		all.Wait()
		if run, err := x.GetRun(t.Context(), externalRun); err != nil || run.Events != 26 {
			t.Errorf("it has %d events: %v", run.Events, err)
		}
	})
}

// An external run keeps its own timers, asks for no worker, and is cancelled at once.
func TestExternal_alone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "w.db")
	e := open(t, path, workflowd.Config{})
	x := e.External("p", history.JavaScript)
	createExternal(t, x, externalRun)
	past := time.Now().Add(-time.Second).UnixMilli()
	for _, err := range record(t, x, history.Event{Type: history.RunStarted}, history.Event{Type: history.WaitCreated, ID: "wait_1", Until: past}) {
		if err != nil {
			t.Fatal(err)
		}
	}
	h := attach(t, e.For("p"), worker(workflow.DefinitionInfo{Name: "workflow//./w//f"}))
	h.idle("it is of another runtime")
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = open(t, path, workflowd.Config{})
	h = attach(t, e.For("p"), worker(workflow.DefinitionInfo{Name: "workflow//./w//f"}))
	h.idle("it is of another runtime, after a restart too")
	run, err := e.For("p").CancelRun(t.Context(), externalRun, workflow.CancelParams{Reason: "enough"})
	if err != nil || run.Status != history.Cancelled || run.Events != 4 {
		t.Errorf("cancelled, it is %+v: %v", run, err)
	}
}

// A read of a stream by name alone waits until the stream is written to.
func TestExternal_streamRun(t *testing.T) {
	t.Parallel()
	eachExternal(t, func(t *testing.T, reopen func() *workflowd.External) {
		x := reopen()
		found := make(chan string, 1)
		go func() {
			run, err := x.StreamRun(t.Context(), "strm_1")
			if err != nil {
				t.Error(err)
			}
			found <- run
		}()
		createExternal(t, x, externalRun)
		if err := x.AwaitRun(t.Context(), externalRun); err != nil {
			t.Fatal(err)
		}
		if err := x.WriteStream(t.Context(), externalRun, "strm_1", [][]byte{[]byte("a")}, false); err != nil {
			t.Fatal(err)
		}
		if got := <-found; got != externalRun {
			t.Errorf("it is a stream of %q", got)
		}
	})
}

// An ended run without a retention of its own is kept for the engine's retention.
func TestExternal_retention(t *testing.T) {
	t.Parallel()
	e := open(t, filepath.Join(t.TempDir(), "w.db"), workflowd.Config{Retention: time.Hour})
	x := e.External("p", history.JavaScript)
	createExternal(t, x, externalRun)
	if err := record(t, x, history.Event{Type: history.RunCompleted, Payload: []byte("devl1")})[0]; err != nil {
		t.Fatal(err)
	}
	run, err := x.GetRun(t.Context(), externalRun)
	if err != nil || run.ExpiresAt != run.CompletedAt+time.Hour.Milliseconds() {
		t.Errorf("it is kept until %d, and ended at %d: %v", run.ExpiresAt, run.CompletedAt, err)
	}
}

// Two processes on one database work on one run by turns and at once: each takes it from the
// other, and nothing is lost or stored twice.
func TestExternal_shared(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	engines := []*workflowd.Engine{openShared(t, dsn, workflowd.Config{}), openShared(t, dsn, workflowd.Config{})}
	var xs []*workflowd.External
	for _, e := range engines {
		xs = append(xs, e.External("p", history.JavaScript))
	}
	createExternal(t, xs[0], externalRun)
	if _, err := xs[1].Record(t.Context(), externalRun, workflowd.Entry{{Type: history.RunStarted}}); err != nil {
		t.Fatal(err)
	}
	const steps = 12
	var all sync.WaitGroup
	for i := range 2 * steps {
		all.Go(func() {
			id := fmt.Sprint("step_", i)
			rec, err := xs[i%2].Record(t.Context(), externalRun, workflowd.Entry{{Type: history.StepCreated, ID: id, Name: "s", Input: []byte(id)}})
			if err != nil || rec.Results[0].Err != nil {
				t.Error(id, err, rec)
				return
			}
			sameAsSeen(t, xs[i%2], rec)
		})
		all.Go(func() {
			if _, err := xs[i%2].Append(t.Context(), externalRun, "strm_1", [][]byte{fmt.Append(nil, i)}, false, -1); err != nil {
				t.Error("chunk", i, err)
			}
		})
	}
	all.Wait()
	for _, x := range xs {
		sameAsStored(t, x, externalRun)
		part, err := x.ReadLog(t.Context(), externalRun, 1, 1000)
		if err != nil || len(part.Events) != 2+2*steps {
			t.Errorf("the log has %d events: %v", len(part.Events), err)
		}
		chunks, _, err := x.Chunks(t.Context(), externalRun, "strm_1", 0, 1000)
		seen := make(map[string]bool)
		for i := range chunks {
			seen[string(chunks[i].Data)] = true
		}
		if err != nil || len(chunks) != 2*steps || len(seen) != 2*steps {
			t.Errorf("the stream has %d chunks, %d of them different: %v", len(chunks), len(seen), err)
		}
	}
	for i := range 4 {
		if _, err := engines[i%2].For("p").SetAttributes(t.Context(), externalRun, map[string]string{"a": fmt.Sprint(i)}); err != nil {
			t.Error(err)
		}
	}
	for i, e := range engines {
		if run, err := e.For("p").CancelRun(t.Context(), externalRun, workflow.CancelParams{}); err != nil || run.Status != history.Cancelled || run.Attributes["a"] != "3" {
			t.Errorf("cancelled by process %d it is %+v: %v", i, run, err)
		}
		sameAsStored(t, xs[i], externalRun)
	}
	if errs := record(t, xs[1], history.Event{Type: history.RunStarted}); !errors.Is(errs[0], workflowd.ErrRunEnded) {
		t.Errorf("after its end: %v", errs[0])
	}
}

// sameAsSeen checks that the log of a call is dense, and that a read afterwards has it.
func sameAsSeen(t *testing.T, x *workflowd.External, rec *workflowd.Recorded) {
	t.Helper()
	part, err := x.ReadLog(t.Context(), rec.Run.ID, 1, 1000)
	if err != nil {
		t.Error(err)
		return
	}
	for i := range rec.Log {
		if rec.Log[i].Slot != int64(i)+1 || len(part.Events) <= i || part.Events[i].ID != rec.Log[i].ID {
			t.Errorf("event %d of %d is missing in a read of %d", i, len(rec.Log), len(part.Events))
			return
		}
	}
}
