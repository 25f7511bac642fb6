package workflowd_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/db/pgtest"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/workflow"
)

// A run's code gets ErrMaxEvents before the log is full, and has room for the clean-up.
func TestMaxEvents(t *testing.T) {
	t.Parallel()
	b := open(t, filepath.Join(t.TempDir(), "w.db"), workflowd.Config{}).For("")
	h := attach(t, b, worker(workflow.DefinitionInfo{Name: "w", MaxEvents: 10}))
	a := h.take(create(t, b, workflow.NewRun{Workflow: "w"}).ID)
	n := 2 // created, started
	do := func() error {
		n++
		return h.try(a, step(fmt.Sprintf("step_a.%d", n)))
	}
	for n < 9 {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
	if err := do(); err != nil {
		t.Fatal(err)
	}
	told := h.next("what it is told", func(n news) bool { return len(n.events) == 2 && n.assigned == nil })
	if told.events[0].Type != history.LimitReached || told.events[1].Type != history.StepCompleted {
		t.Errorf("it heard of %+v", told.events)
	}
	for n++; n < 20; { // limit_reached is an event, too
		if err := do(); err != nil {
			t.Fatalf("after %d events: %v", n, err)
		}
	}
	if err := do(); !errors.Is(err, &cay.Error{Code: cay.Conflict}) {
		t.Errorf("event 21: %v", err)
	}
	h.hears(a.run, history.RunFailed)
	if run := get(t, b, a.run); run.ErrorCode != history.CodeMaxEvents {
		t.Errorf("it is %+v", run)
	}
}

// Calls of hooks, and changes of attributes, are refused before they could make a run
// fail.
func TestCrowded(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, open func() ended) {
		b := open()
		h := attach(t, b, worker(workflow.DefinitionInfo{Name: "w", MaxEvents: 40}))
		a := h.take(create(t, b, workflow.NewRun{Workflow: "w"}).ID)
		h.append(a, workflow.Event{Type: history.HookCreated, ID: "hook_h.1", Token: "t", Webhook: true})
		calls := []func() error{
			func() error {
				_, err := b.ResumeHook(t.Context(), workflow.ResumeParams{Token: "t", Payload: []byte("json1")})
				return err
			},
			func() error {
				_, err := b.ResumeHook(t.Context(), workflow.ResumeParams{Token: "t", Payload: []byte("json1"), Webhook: true})
				return err
			},
			func() error {
				_, err := b.SetAttributes(t.Context(), a.run, map[string]string{"a": "b"})
				return err
			},
		}
		var taken []int
		for i, call := range calls {
			taken = append(taken, 0)
			for range 100 {
				switch err := call(); {
				case err == nil:
					taken[i]++
				case cay.CodeOf(err) != cay.QuotaExceeded:
					t.Fatalf("call %d: %v", i, err)
				}
			}
		}
		// A quarter of the events are values, of hooks and webhooks together, and a fifth
		// stays free.
		if want := []int{10, 0, 32 - 3 - 10}; !slices.Equal(taken, want) {
			t.Errorf("a run that may have 40 events took %d from outside, want %d", taken, want)
		}
		for i := range 4 {
			h.append(a, step(fmt.Sprintf("step_a.%d", i+1)))
		}
		if run := get(t, b, a.run); run.Status != workflow.StatusRunning || run.Events != 36 {
			t.Errorf("it is %+v", run)
		}
		h.append(a, completed)
	})
}

// A process that does not own the run gets the same refusals as the owner. No accepted
// value is dropped.
func TestCrowded_Elsewhere(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	here, there := openShared(t, dsn, workflowd.Config{}).For(""), openShared(t, dsn, workflowd.Config{}).For("")
	h := attach(t, here, worker(workflow.DefinitionInfo{Name: "w", MaxEvents: 40}))
	a := h.take(create(t, here, workflow.NewRun{Workflow: "w"}).ID)
	h.append(a, workflow.Event{Type: history.HookCreated, ID: "hook_h.1", Token: "t"})
	taken := 0
	resume := func() error {
		_, err := there.ResumeHook(t.Context(), workflow.ResumeParams{Token: "t", Payload: []byte("json1")})
		return err
	}
	for range 15 {
		switch err := resume(); {
		case err == nil:
			taken++
		case cay.CodeOf(err) != cay.QuotaExceeded:
			t.Fatal(err)
		}
	}
	if taken != 10 {
		t.Errorf("%d of 15 values were accepted, want 10", taken)
	}
	events, err := here.Events(t.Context(), a.run, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if e.Type == history.HookReceived {
			taken--
		}
	}
	if taken != 0 {
		t.Errorf("%d values more were accepted than the log has", taken)
	}
	h.append(a, completed)
	if err := resume(); cay.CodeOf(err) != cay.NotFound {
		t.Errorf("after the end: %v", err)
	}
}

// The engine refuses the end of a run whose log has values that the code was not shown,
// and has the code replayed.
func TestUnshown(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, open func() ended) {
		b := open()
		h := attach(t, b, of("w"))
		for _, end := range []workflow.Event{
			{Type: history.RunCompleted}, {Type: history.RunFailed, Code: history.CodeUser}, {Type: history.RunCancelled},
		} {
			token := end.Type.String()
			a := h.take(create(t, b, workflow.NewRun{Workflow: "w"}).ID)
			h.append(a, workflow.Event{Type: history.HookCreated, ID: "hook_h.1", Token: token})
			if _, err := b.ResumeHook(t.Context(), workflow.ResumeParams{Token: token, Payload: []byte("json1")}); err != nil {
				t.Fatal(err)
			}
			end.Attempt = 3
			if err := h.try(a, end); cay.CodeOf(err) != cay.Conflict {
				t.Fatalf("%s that has seen 3 of 4 events: %v", token, err)
			}
			again := h.take(a.run)
			if len(again.events) != 4 || again.lease == a.lease {
				t.Errorf("it was assigned with %+v", again.events)
			}
			end.Attempt = 4
			h.append(again, end)
		}
	})
}

// A token that the code has chosen belongs to the chain until its last run ends.
func TestCarried(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, open func() ended) {
		b := open()
		h := attach(t, b, of("w"))
		a := h.take(create(t, b, workflow.NewRun{Workflow: "w"}).ID)
		h.append(a, workflow.Event{Type: history.HookCreated, ID: "hook_h.1", Token: "t", Payload: []byte("json0")})
		next := func(a news, id string, values ...workflow.HookValue) news {
			t.Helper()
			done := make(chan error, 1)
			h.session.StartRun(a.run, a.lease, workflow.NewRun{
				ID: id, Workflow: "w", Previous: a.run, Hooks: []workflow.NewHookState{{Token: "t", Metadata: []byte("json0"), Values: values}},
			}, workflow.Event{Type: history.RunCompleted, Token: id}, func(err error) { done <- err })
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			return h.take(id)
		}
		resume := func(value string) {
			t.Helper()
			hook, err := b.ResumeHook(t.Context(), workflow.ResumeParams{Token: "t", Payload: []byte(value)})
			if err != nil || string(hook.Metadata) != "json0" {
				t.Fatalf("%+v, %v", hook, err)
			}
		}
		second := next(a, "wrun_2", workflow.HookValue{Payload: []byte("json1"), Key: "k"})
		resume("json2")
		h.append(second, workflow.Event{Type: history.HookCreated, ID: "hook_h.1", Token: "t", Payload: []byte("json0")})
		resume("json3")
		events, err := b.Events(t.Context(), second.run, 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		var types []string
		for _, e := range events {
			types = append(types, fmt.Sprint(e.Type, e.ID, string(e.Payload)))
		}
		want := "[run_created hook_createdcarried.1json0 hook_receivedcarried.1json1 run_started hook_receivedcarried.1json2 " +
			"hook_disposedcarried.1 hook_createdhook_h.1json0 hook_receivedhook_h.1json3]"
		if got := fmt.Sprint(types); got != want {
			t.Errorf("the log of the second run is\n%s, want\n%s", got, want)
		}
		third := next(second, "wrun_3")
		other := h.take(create(t, b, workflow.NewRun{Workflow: "w"}).ID)
		h.append(other, workflow.Event{Type: history.HookCreated, ID: "hook_h.1", Token: "t"})
		if e := h.hears(other.run, history.HookConflict); e.Reason != third.run {
			t.Errorf("another run that wants the token heard %+v", e)
		}
		page, err := b.ListHooks(t.Context(), "", "", 10)
		if err != nil || len(page.Items) != 1 || page.Items[0].Run != third.run {
			t.Errorf("hooks are %+v, %v", page, err)
		}
		h.append(third, completed)
		if _, err := b.GetHook(t.Context(), "t"); cay.CodeOf(err) != cay.NotFound {
			t.Errorf("after the last run of the line: %v", err)
		}
		h.append(other, completed)
	})
}

// A value that was sent with an idempotency key is received once, even if it is sent
// again to a run that continues the one which received it.
func TestCarried_Keys(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, open func() ended) {
		b := open()
		h := attach(t, b, of("w"))
		a := h.take(create(t, b, workflow.NewRun{Workflow: "w"}).ID)
		h.append(a, workflow.Event{Type: history.HookCreated, ID: "hook_h.1", Token: "t"})
		send := func(key, value string) error {
			_, err := b.ResumeHook(t.Context(), workflow.ResumeParams{Token: "t", Key: key, Payload: []byte(value)})
			return err
		}
		if err := errors.Join(send("received", "json1"), send("waiting", "json2")); err != nil {
			t.Fatal(err)
		}
		var kept []workflow.HookValue
		kept = append(kept, workflow.HookValue{Payload: []byte("json2"), Key: "waiting"})
		for i := range 3 {
			id := fmt.Sprint("wrun_", i)
			done := make(chan error, 1)
			h.session.StartRun(a.run, a.lease, workflow.NewRun{ID: id, Workflow: "w", Previous: a.run, Hooks: []workflow.NewHookState{{Token: "t", Values: kept}}},
				workflow.Event{Type: history.RunCompleted, Token: id}, func(err error) { done <- err })
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			a = h.take(id)
			if i == 1 { // its code makes a hook of the token
				h.append(a, workflow.Event{Type: history.HookCreated, ID: "hook_h.1", Token: "t"})
			}
			for range 2 { // the second time from the store
				for key, value := range map[string]string{"received": "json1", "waiting": "json2"} {
					if err := send(key, value); err != nil {
						t.Errorf("run %d, %s once more: %v", i, key, err)
					}
					checktest.Code(t, send(key, "json3"), cay.Conflict, key+" with another value")
				}
				b.end()
				b = open()
				h = attach(t, b, of("w"))
				a = h.take(id)
			}
			events, err := b.Events(t.Context(), id, 1, 0)
			if err != nil {
				t.Fatal(err)
			}
			values := 0
			for _, e := range events {
				if e.Type == history.HookReceived {
					values++
				}
			}
			if values != len(kept) {
				t.Errorf("run %d has %d values: %+v", i, values, events)
			}
			kept = nil // the code has received the value
		}
	})
}

// A run begins with no hooks but those of the run it continues.
func TestCarried_Forged(t *testing.T) {
	t.Parallel()
	b := open(t, filepath.Join(t.TempDir(), "w.db"), workflowd.Config{}).For("")
	h := attach(t, b, of("w"))
	a := h.take(create(t, b, workflow.NewRun{Workflow: "w"}).ID)
	done := make(chan error, 1)
	h.session.StartRun(a.run, a.lease, workflow.NewRun{
		ID: "wrun_2", Workflow: "w", Hooks: []workflow.NewHookState{{Token: "another's"}},
	}, workflow.Event{Type: history.RunCompleted, Token: "wrun_2"}, func(err error) { done <- err })
	if err := <-done; cay.CodeOf(err) != cay.Conflict {
		t.Errorf("%v", err)
	}
}
