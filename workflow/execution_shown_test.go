package workflow

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cayhq/cay/internal/history"
)

// takeAll receives one value, and then all others that have arrived; it handles each but
// the first in a step.
var takeAll = Define("take_all", func(ctx Context, _ int) (string, error) {
	h, err := NewHook[int](ctx, "t")
	if err != nil {
		return "", err
	}
	v, err := h.Receive(ctx)
	said := fmt.Sprint(v)
	for err == nil {
		if v, err = h.Receive(ctx, 0); err == nil {
			v, err = addOne.Run(ctx, v)
			said += fmt.Sprintf(" %d", v)
		}
	}
	if errors.Is(err, ErrTimeout) {
		err = nil
	}
	return said, err
})

// A value that arrives after the code has returned is shown to the code, in each replay
// at the same place, however long the log is by then.
func TestReplay_ShowsValues(t *testing.T) {
	e := newEngine(t, takeAll, 0)
	e.turn(2)
	e.turn(1)
	const hook = "hook_hook.1"
	e.resume(hook, 1)
	e.resume(hook, 10)
	e.turn(1) // the code has seen the first value, and returns
	if e.last.done == nil || e.last.done.Attempt != 4 || e.state.Run.Status.Terminal() {
		t.Fatalf("after the first value it wants %+v\n%s", e.last, e.dump())
	}
	e.resume(hook, 20)
	e.turn(1)
	if e.last.done != nil || len(e.steps) != 1 {
		t.Fatalf("shown the second value it wants %+v", e.last)
	}
	e.resume(hook, 30)
	for range 3 {
		e.execute(0)
		e.restart() // another worker goes on
		e.turn(1)
	}
	end := e.log[len(e.log)-1]
	if got := string(end.Payload); end.Type != history.RunCompleted || got != `json"1 11 21 31"` {
		t.Fatalf("it ended with %s %s\n%s", end.Type, got, e.dump())
	}
	h := &History{Run: e.run, Events: e.log}
	if err := Replay(h, ClientOptions{}, takeAll); err != nil {
		t.Error(err)
	}
}

// Many values arrive after the code has returned. Code that does not look at its hook runs
// three times at most, however many values there are, and the end says that it was shown
// all. Code that looks at the hook gets each value at the same place as without showAll.
func TestReplay_ManyValues(t *testing.T) {
	const values = 3000
	ran := 0
	blind := Define("blind", func(ctx Context, _ int) (string, error) {
		ran++
		_, err := NewHook[int](ctx, "t")
		return "done", err
	})
	e := newEngine(t, blind, 0)
	e.turn(2)
	for i := range values {
		e.resume("hook_hook.1", i)
	}
	ran = 0
	x, eff := replay(e.config(), e.log)
	x.close()
	if ran > 3 || eff.done == nil || int(eff.done.Attempt) != len(e.log) {
		t.Errorf("the code ran %d times, and the run ends with %+v after %d events", ran, eff.done, len(e.log))
	}

	e = newEngine(t, takeAll, 0)
	e.turn(2)
	e.turn(1)
	for i := range 5 {
		e.resume("hook_hook.1", i)
	}
	x, eff = replay(e.config(), e.log)
	defer x.close()
	if eff.done != nil || len(eff.appends) != 0 || len(eff.steps) != 1 || len(x.early) != 1 {
		t.Errorf("code that takes all values was shown %v early, and wants %+v", x.early, eff)
	}
}

// Logs of releases that let a run end without showing all values replay with the same
// result.
func TestReplay_OldEnd(t *testing.T) {
	e := newEngine(t, takeAll, 0)
	e.turn(2)
	e.turn(1)
	e.resume("hook_hook.1", 1)
	e.resume("hook_hook.1", 10)
	e.append(Event{Type: history.RunCompleted, Payload: []byte(`json"1"`)})
	h := &History{Run: e.run, Events: e.log}
	if err := Replay(h, ClientOptions{}, takeAll); err != nil {
		t.Errorf("an old log: %v", err)
	}
	e.log[len(e.log)-1].Attempt = 5
	if err := Replay(h, ClientOptions{}, takeAll); err == nil {
		t.Error("a log that says that the second value was shown replays without it")
	}
}

// Values that a hook has not received move to the run that continues this one, whether
// that run makes the hook at once, later, or leaves it to the next run.
func TestContinueAsNew_Hooks(t *testing.T) {
	var d *Definition[int, string]
	d = Define("carries", func(ctx Context, n int) (string, error) {
		if n == 1 { // the hook is left to the next run
			return "", d.ContinueAsNew(ctx, n+1)
		}
		h, err := NewHook[int](ctx, "t", Metadata("m"))
		if err != nil {
			return "", err
		}
		own, err := NewHook[int](ctx, "")
		if err != nil {
			return "", err
		}
		v, err := h.Receive(ctx)
		if err != nil || n > 1 {
			return fmt.Sprint(v), err
		}
		_, err = own.Receive(ctx, 0)
		if !errors.Is(err, ErrTimeout) {
			return "", err
		}
		return "", d.ContinueAsNew(ctx, n+1)
	})
	e := newEngine(t, d, 0)
	for e.fed < len(e.log) {
		e.turn(1)
	}
	for i := range 3 {
		e.resume("hook_hook.1", i)
	}
	next := func() *engine {
		t.Helper()
		for e.next == nil {
			e.turn(1)
		}
		if len(e.next.Hooks) != 1 {
			t.Fatalf("hooks %+v go to the next run", e.next.Hooks)
		}
		h := e.next.Hooks[0]
		if h.Token != "t" || string(h.Metadata) != `json"m"` || len(h.Values) != 2 || string(h.Values[0].Payload) != "json1" {
			t.Fatalf("the hook %+v goes to the next run", h)
		}
		var n int
		if err := e.enc.decode(e.next.Input, &n); err != nil {
			t.Fatal(err)
		}
		following := newEngine(t, d, n)
		start := following.log[1]
		following.log, following.state = following.log[:0], history.NewLog(following.run)
		following.append(Event{Type: history.RunCreated, Name: d.Name(), Payload: e.next.Input},
			Event{Type: history.HookCreated, ID: history.CarriedPrefix + "1", Token: h.Token, Payload: h.Metadata})
		for _, v := range h.Values {
			following.append(Event{Type: history.HookReceived, ID: history.CarriedPrefix + "1", Payload: v.Payload})
		}
		following.append(Event{Type: start.Type})
		clear(following.hooks) // the engine gives the token to the code's hook
		following.restart()
		return following
	}
	e = next()
	e = next()
	if end := e.finish(); string(end.Payload) != `json"1"` {
		t.Errorf("it ended with %s %s\n%s", end.Type, end.Payload, e.dump())
	}
}
