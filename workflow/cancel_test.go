package workflow

import (
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/history"
)

func TestCancel_Run(t *testing.T) {
	var saw []error
	w := Define("cancel", func(ctx Context, swallow bool) (int, error) {
		h, err := NewHook[int](ctx, "door")
		if err != nil {
			return 0, err
		}
		branch := Go(ctx, func(ctx Context) (int, error) { return h.Receive(ctx) })
		step := addOne.Go(ctx, 1)
		err = Sleep(ctx, time.Hour)
		_, err2 := step.Get(ctx)
		_, err3 := branch.Get(WithoutCancel(ctx))
		_, err4 := addOne.Run(ctx, 1)
		_, err5 := NewHook[int](ctx, "other")
		saw = []error{err, err2, err3, err4, err5, ctx.Err(), Sleep(ctx, 1), SetAttributes(ctx, map[string]string{"a": "b"})}
		// Steps of the clean-up run under WithoutCancel.
		if n, err := addOne.Run(WithoutCancel(ctx), 1); n != 2 || err != nil {
			t.Errorf("clean-up returned %d, %v", n, err)
		}
		if swallow {
			return 5, nil
		}
		return 0, err
	})
	for _, swallow := range []bool{false, true} {
		t.Run(fmt.Sprint(swallow), func(t *testing.T) {
			e := newEngine(t, w, swallow)
			e.turn(9) // asks for the hook
			e.turn(9) // asks for step and timer
			e.append(Event{Type: history.CancelRequested, Reason: "why not"})
			e.turn(9)
			if want := []string{"step_add.1"}; !reflect.DeepEqual(e.last.cancels, want) {
				t.Errorf("steps to be cancelled are %v", e.last.cancels)
			}
			for i, err := range saw {
				if !errors.Is(err, ErrCancelled) {
					t.Errorf("%d: %v", i, err)
				}
			}
			end := e.finish()
			if swallow && end.Type != history.RunCompleted || !swallow && (end.Type != history.RunCancelled || end.Reason != "why not") {
				t.Errorf("it ended with %+v", end)
			}
			e.replay()
		})
	}
}

// The outcome of a step races with a request to cancel: the log decides, and a replay
// decides the same.
func TestCancel_RacesCompletion(t *testing.T) {
	w := Define("race", func(ctx Context, n int) (string, error) {
		n, err := addOne.Run(ctx, n)
		return fmt.Sprint(n, err), nil
	})
	for want, order := range map[string][]int{"2 <nil>": {0, 1}, "0 cancelled": {1, 0}} {
		e := newEngine(t, w, 1)
		e.turn(2)
		for _, o := range order {
			if o == 0 {
				e.execute(0)
			} else {
				e.append(Event{Type: history.CancelRequested})
			}
		}
		var got string
		if e.result(&got); got != want {
			t.Errorf("%v: %s", order, got)
		}
	}
}

func TestCancel_Timeout(t *testing.T) {
	w := Define("timeout", func(ctx Context, _ int) (int64, error) {
		begun := ctx.Now()
		short, cancel := WithTimeout(ctx, time.Minute)
		defer cancel()
		inner, cancelInner := WithTimeout(short, time.Hour)
		if err := Sleep(inner, 24*time.Hour); !errors.Is(err, ErrTimeout) || !errors.Is(inner.Err(), ErrTimeout) || ctx.Err() != nil {
			t.Errorf("errors are %v, %v, %v", err, inner.Err(), ctx.Err())
		}
		cancelInner()
		if _, err := addOne.Run(short, 1); !errors.Is(err, ErrTimeout) {
			t.Errorf("step: %v", err)
		}
		none, cancel := WithTimeout(ctx, 0)
		cancel()
		if !errors.Is(none.Err(), ErrTimeout) {
			t.Errorf("no time: %v", none.Err())
		}
		early, cancel := WithTimeout(ctx, time.Hour)
		cancel()
		cancel()
		if !errors.Is(early.Err(), ErrCancelled) {
			t.Errorf("cancelled: %v", early.Err())
		}
		return ctx.Now().Sub(begun).Milliseconds(), nil
	})
	e := newEngine(t, w, 0)
	var ms int64
	if e.result(&ms); ms < 60_000 || ms > 61_000 {
		t.Errorf("it took %d ms", ms)
	}
	for _, typ := range e.types() {
		if typ == "wait_created wait_timeout.3" {
			t.Error("a timer that was not needed was asked for")
		}
	}
}

// A cancelled step does not begin again after a crash, and its late result is ignored.
func TestCancel_StepIsLeft(t *testing.T) {
	w := Define("left", func(ctx Context, _ int) (string, error) {
		sub, cancel := WithCancel(ctx)
		f := addOne.Go(sub, 1)
		if err := Sleep(ctx, time.Second); err != nil {
			return "", err
		}
		cancel()
		_, err := f.Get(ctx)
		if err2 := Sleep(ctx, time.Second); err2 != nil {
			return "", err2
		}
		_, err3 := f.Get(ctx)
		return fmt.Sprint(err, err3), nil
	})
	e := newEngine(t, w, 0)
	e.turn(9)
	step := e.steps
	e.steps = nil
	e.fire()
	e.turn(9)
	if !reflect.DeepEqual(e.last.cancels, []string{"step_add.1"}) {
		t.Errorf("cancels are %v", e.last.cancels)
	}
	e.restart()
	e.turn(9)
	if len(e.last.steps) != 0 || len(e.last.cancels) != 0 || !e.last.idle {
		t.Errorf("after a crash it wants %+v", e.last)
	}
	e.steps = step
	e.execute(0)
	var got string
	if e.result(&got); got != "cancelled cancelled" {
		t.Errorf("result is %q", got)
	}
}
