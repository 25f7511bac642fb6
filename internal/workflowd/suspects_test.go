package workflowd_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/workflow"
)

// mortal is a worker that can die.
type mortal struct {
	*hand
	die func() // kills the worker and waits until other workers can get its runs
}

func attachMortal(t *testing.T, b workflow.Backend, info workflow.WorkerInfo) mortal {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	h := &hand{t: t, news: make(chan news, 1000)}
	s, err := b.Attach(ctx, info, h)
	if err != nil {
		t.Fatal(err)
	}
	h.session = s
	return mortal{h, func() { cancel(); <-s.Lost() }}
}

// begins appends the start of another attempt of a run's step.
func (h *hand) begins(a news) {
	h.t.Helper()
	h.append(a, workflow.Event{Type: history.StepStarted, ID: "step_a.1", Name: "s"})
}

// Several runs are active when their worker dies, again and again. The step of the run
// that kills the worker fails, and all other runs succeed.
func TestSuspects(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, open func() ended) {
		b := open()
		const innocents = 4
		guilty := create(t, b, workflow.NewRun{Workflow: "w"}).ID
		left := map[string]bool{}
		for range innocents {
			left[create(t, b, workflow.NewRun{Workflow: "w"}).ID] = true
		}
		deaths := 0
		for ; ; deaths++ {
			h := attachMortal(t, b, of("w"))
			if deaths <= history.SuspectAfter {
				for range innocents + 1 {
					h.begins(h.take(""))
				}
				h.die()
				continue
			}
			a := h.take("")
			for a.run != guilty {
				h.idle("beside a suspect")
				h.begins(a)
				h.append(a, step("step_a.1"), completed)
				delete(left, a.run)
				a = h.take("")
			}
			if last := a.events[len(a.events)-1]; last.Type == history.StepFailed {
				if last.Code != history.CodePoisoned || last.ID != "step_a.1" || !strings.Contains(string(last.Payload), "ended its process") {
					t.Errorf("the step failed with %+v", last)
				}
				h.append(a, completed)
				h.die()
				break
			}
			h.begins(a)
			h.die()
		}
		if len(left) > 0 {
			t.Errorf("%d innocent runs did not end", len(left))
		}
		if deaths != 13 {
			t.Errorf("the step was given up after %d deaths, want 13", deaths)
		}
		if run := get(t, b, guilty); run.Status != workflow.StatusCompleted {
			t.Errorf("the run whose step failed is %+v", run)
		}
	})
}

// A run whose code kills its process, outside of steps, fails.
func TestSuspects_Code(t *testing.T) {
	t.Parallel()
	b := open(t, filepath.Join(t.TempDir(), "w.db"), workflowd.Config{MaxRecoveries: 4}).For("")
	run := create(t, b, workflow.NewRun{Workflow: "w"})
	for i := range 5 {
		h := attachMortal(t, b, of("w"))
		if a := h.take(run.ID); a.assigned.Run.Recoveries != i {
			t.Errorf("it was recovered %d times, want %d", a.assigned.Run.Recoveries, i)
		}
		h.die()
	}
	h := attach(t, b, of("w"))
	end, err := b.WaitRun(t.Context(), run.ID)
	if err != nil || end.Status != workflow.StatusFailed || end.ErrorCode != history.CodePoisoned {
		t.Errorf("%+v, %v", end, err)
	}
	h.idle("it has failed")
}

// A run whose step is running at each death makes no progress, even if its hooks receive
// values and its other steps end.
func TestSuspects_NoProgress(t *testing.T) {
	t.Parallel()
	b := open(t, filepath.Join(t.TempDir(), "w.db"), workflowd.Config{MaxRecoveries: 4}).For("")
	run := create(t, b, workflow.NewRun{Workflow: "w"})
	h := attachMortal(t, b, of("w"))
	a := h.take(run.ID)
	h.append(a, workflow.Event{Type: history.HookCreated, ID: "hook_h.1", Token: "t"})
	h.begins(a)
	h.die()
	for i := range 4 {
		h := attachMortal(t, b, of("w"))
		a := h.take(run.ID)
		if a.assigned.Run.Recoveries != i+1 {
			t.Errorf("it was recovered %d times, want %d", a.assigned.Run.Recoveries, i+1)
		}
		h.begins(a)
		if _, err := b.ResumeHook(t.Context(), workflow.ResumeParams{Token: "t", Payload: []byte("json1")}); err != nil {
			t.Fatal(err)
		}
		h.append(a, step(fmt.Sprintf("step_beat.%d", i+1)))
		h.die()
	}
	if a := attach(t, b, of("w")).take(run.ID); a.events[len(a.events)-1].Code != history.CodePoisoned {
		t.Errorf("after five deaths it was assigned with %+v", a.events[len(a.events)-1])
	}
}

// A worker that stops in good order leaves the counts of its runs unchanged, however
// often it stops.
func TestSuspects_GoodOrder(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, open func() ended) {
		b := open()
		id := create(t, b, workflow.NewRun{Workflow: "w"}).ID
		for i := range 14 {
			h := attach(t, b, of("w"))
			a := h.take(id)
			if a.assigned.Run.Recoveries > 1 {
				t.Fatalf("after %d stops it counts as recovered %d times", i, a.assigned.Run.Recoveries)
			}
			h.begins(a)
			if i%2 == 0 {
				if err := h.session.Close(); err != nil {
					t.Fatal(err)
				}
				continue
			}
			b.end()
			b = open()
		}
		h := attach(t, b, of("w"))
		a := h.take(id)
		h.append(a, step("step_a.1"), completed)
	})
}

// A suspect does not block other suspects for ever, because it may wait for one of them.
// A death after its turn does not count against it.
func TestSuspects_TurnEnds(t *testing.T) {
	t.Parallel()
	b := open(t, filepath.Join(t.TempDir(), "w.db"), workflowd.Config{Turn: time.Millisecond, MaxRecoveries: history.SuspectAfter + 1}).For("")
	const runs = 3
	for range runs {
		create(t, b, workflow.NewRun{Workflow: "w"})
	}
	for i := range 10 { // the turn doubles each time
		h := attachMortal(t, b, of("w"))
		for range runs {
			a := h.take("")
			if i > 0 && a.events[len(a.events)-1].Type != history.StepStarted {
				t.Fatalf("after %d deaths it was assigned with %+v", i, a.events[len(a.events)-1])
			}
			h.begins(a)
			id := a.run
			eventually(t, "its turn is over", func() bool {
				return i < history.SuspectAfter || get(t, b, id).Recoveries == history.SuspectAfter
			})
		}
		h.die()
	}
}

// A sleeping suspect has no work in progress, so the engine clears its count.
func TestSuspects_Sleep(t *testing.T) {
	t.Parallel()
	b := open(t, filepath.Join(t.TempDir(), "w.db"), workflowd.Config{Turn: time.Hour}).For("")
	first, second := create(t, b, workflow.NewRun{Workflow: "w"}).ID, create(t, b, workflow.NewRun{Workflow: "w"}).ID
	for range history.SuspectAfter + 1 {
		h := attachMortal(t, b, of("w"))
		h.take(first)
		h.take(second)
		h.die()
	}
	h := attach(t, b, of("w"))
	a := h.take("")
	h.idle("beside a suspect")
	h.session.Release(a.run, a.lease, int64(len(a.events)))
	h.take("")
	if run := get(t, b, a.run); run.Recoveries != 0 {
		t.Errorf("a run that sleeps was recovered %d times", run.Recoveries)
	}
}

// A live worker that lost its connection, or its daemon, has killed none of its runs,
// however often that happens.
func TestSuspects_Survived(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, open func() ended) {
		b := open()
		id := create(t, b, workflow.NewRun{Workflow: "w"}).ID
		info := of("w")
		for i := range 14 {
			h := attachMortal(t, b, info)
			a := h.take(id)
			if a.assigned.Run.Recoveries != 0 {
				t.Fatalf("after %d lost connections it counts as recovered %d times", i, a.assigned.Run.Recoveries)
			}
			h.begins(a)
			h.die()
			info.HeldRuns = []string{id, "wrun_of_nobody"}
			if i%2 == 1 {
				b.end()
				b = open()
			}
		}
		info.HeldRuns = nil
		h := attachMortal(t, b, info)
		if a := h.take(id); a.assigned.Run.Recoveries != 1 {
			t.Errorf("after a death it counts as recovered %d times", a.assigned.Run.Recoveries)
		}
		h.die()
	})
}

// A run that another worker got before the disconnected worker reconnected is charged for
// that only until the reconnect.
func TestSuspects_SurvivedElsewhere(t *testing.T) {
	t.Parallel()
	b := open(t, filepath.Join(t.TempDir(), "w.db"), workflowd.Config{}).For("")
	id := create(t, b, workflow.NewRun{Workflow: "w"}).ID
	h := attachMortal(t, b, of("w"))
	h.begins(h.take(id))
	h.die()
	other := attachMortal(t, b, of("w"))
	other.begins(other.take(id))
	if run := get(t, b, id); run.Recoveries != 1 {
		t.Errorf("it was recovered %d times", run.Recoveries)
	}
	info := of("w")
	info.HeldRuns = []string{id}
	attachMortal(t, b, info)
	eventually(t, "its try is taken off the count", func() bool { return get(t, b, id).Recoveries == 0 })
	other.die()
}
