package workflow

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
)

// after returns a branch that has a value, or an error, after a time.
func after(ctx Context, ms int, err error) *Future[int] {
	return Go(ctx, func(ctx Context) (int, error) {
		if err := Sleep(ctx, time.Duration(ms)*time.Millisecond); err != nil {
			return 0, err
		}
		return ms, err
	})
}

func TestFuture_Combinators(t *testing.T) {
	errA, errB := errors.New("a"), errors.New("b")
	for name, test := range map[string]struct {
		run  func(ctx Context) (any, error)
		want string
		took int64
	}{
		"all":               {func(ctx Context) (any, error) { return All(ctx, after(ctx, 100, nil), after(ctx, 50, nil)) }, "[100 50] <nil>", 100},
		"all of none":       {func(ctx Context) (any, error) { return All[int](ctx) }, "[] <nil>", 0},
		"all with an error": {func(ctx Context) (any, error) { return All(ctx, after(ctx, 900, nil), after(ctx, 50, errA)) }, "[] a", 50},
		"all settled":       {func(ctx Context) (any, error) { return AllSettled(ctx, after(ctx, 100, errA), after(ctx, 50, nil)) }, "[{0 a} {50 <nil>}] <nil>", 100},
		"race": {func(ctx Context) (any, error) {
			v, i, err := Race(ctx, after(ctx, 900, nil), after(ctx, 50, nil))
			return []int{v, i}, err
		}, "[50 1] <nil>", 50},
		"race with an error": {func(ctx Context) (any, error) {
			v, i, err := Race(ctx, after(ctx, 50, errA), after(ctx, 100, nil))
			return []int{v, i}, err
		}, "[0 0] a", 50},
		"race of none": {func(ctx Context) (any, error) { v, i, err := Race[int](ctx); return []int{v, i}, err }, "[0 -1] there is nothing to wait for", 0},
		"any": {func(ctx Context) (any, error) {
			v, i, err := Any(ctx, after(ctx, 50, errA), after(ctx, 100, nil), after(ctx, 900, nil))
			return []int{v, i}, err
		}, "[100 1] <nil>", 100},
		"any with errors": {func(ctx Context) (any, error) {
			v, i, err := Any(ctx, after(ctx, 50, errA), after(ctx, 100, errB))
			return []int{v, i}, err
		}, "[0 -1] a\nb", 100},
		"timer": {func(ctx Context) (any, error) {
			at, err := After(ctx, 70*time.Millisecond).Get(ctx)
			return ctx.Now().Sub(at) < time.Second, err
		}, "true <nil>", 70},
		"no timer":       {func(ctx Context) (any, error) { at, err := After(ctx, -1).Get(ctx); return at.Equal(ctx.Now()), err }, "true <nil>", 0},
		"until the past": {func(ctx Context) (any, error) { return 0, SleepUntil(ctx, ctx.Now().Add(-time.Hour)) }, "0 <nil>", 0},
		"get twice": {func(ctx Context) (any, error) {
			f := addOne.Go(ctx, 1)
			a, err := f.Get(ctx)
			b, err2 := f.Get(ctx)
			return []any{a, b, f.Done()}, errors.Join(err, err2)
		}, "[2 2 true] <nil>", 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := Define("combine", func(ctx Context, _ int) (int64, error) {
				begun := ctx.Now()
				v, err := test.run(ctx)
				if got := fmt.Sprint(v, " ", err); got != test.want {
					t.Errorf("got %s, want %s", got, test.want)
				}
				return ctx.Now().Sub(begun).Milliseconds(), nil
			})
			var took int64
			newEngine(t, w, 0).result(&took)
			if took < test.took || took > test.took+45 {
				t.Errorf("it took %d ms, want %d", took, test.took)
			}
		})
	}
}

// Branches take turns, so they can share variables.
func TestFuture_BranchesInterleave(t *testing.T) {
	w := Define("interleave", func(ctx Context, _ int) ([]string, error) {
		var log []string
		var fs []*Future[int]
		for i := range 3 {
			fs = append(fs, Go(ctx, func(ctx Context) (int, error) {
				for j := range 2 {
					log = append(log, fmt.Sprintf("%d%d", i, j))
					if _, err := addOne.Run(ctx, 0); err != nil {
						return 0, err
					}
				}
				return 0, nil
			}))
		}
		_, err := All(ctx, fs...)
		return log, err
	})
	e := newEngine(t, w, 0)
	var log []string
	e.result(&log)
	if want := []string{"00", "10", "20", "01", "11", "21"}; !reflect.DeepEqual(log, want) {
		t.Errorf("they ran as %v", log)
	}
	want := "[run_created run_started step_completed step_go.1/add.1 step_completed step_go.2/add.1 step_completed step_go.3/add.1 step_completed step_go.1/add.2 step_completed step_go.2/add.2 step_completed step_go.3/add.2 run_completed]"
	if got := fmt.Sprint(e.types()); got != want {
		t.Errorf("log is %s", got)
	}
}

// Waits of branches that are open when the function returns are dropped.
func TestFuture_LeftBehind(t *testing.T) {
	w := Define("left", func(ctx Context, _ int) (int, error) {
		Go(ctx, func(ctx Context) (int, error) { return addOne.Run(ctx, 1) })
		f := addOne.Go(ctx, 1)
		_ = f
		return 7, SetAttributes(ctx, map[string]string{"a": "b"})
	})
	e := newEngine(t, w, 0)
	e.turn(2)
	if len(e.last.steps) != 0 || e.last.done == nil || len(e.last.appends) != 1 {
		t.Errorf("effects are %+v", e.last)
	}
}

func TestSelector(t *testing.T) {
	w := Define("select", func(ctx Context, _ int) ([]string, error) {
		var log []string
		h, err := NewHook[string](ctx, "door")
		if err != nil {
			return nil, err
		}
		s := NewSelector(ctx)
		Add(s, h, func(v string, err error) { log = append(log, fmt.Sprint("hook ", v, " ", err)) })
		Add(s, After(ctx, time.Hour), func(time.Time, error) {
			log = append(log, "timer")
			h.Dispose(ctx)
		})
		Add(s, DoAsync(ctx, "s", func(context.Context) (int, error) { return 3, nil }), func(v int, err error) {
			log = append(log, fmt.Sprint("step ", v, err))
		})
		for s.Len() > 0 {
			if err := s.Select(ctx); err != nil {
				return nil, err
			}
		}
		err = s.Select(ctx)
		return append(log, string(cay.CodeOf(err))), nil
	})
	e := newEngine(t, w, 0)
	e.settle()
	e.resume("hook_hook.1", "a")
	e.resume("hook_hook.1", "b")
	var log []string
	e.result(&log)
	if want := []string{"step 3 <nil>", "hook a <nil>", "hook b <nil>", "timer", "invalid"}; !reflect.DeepEqual(log, want) {
		t.Errorf("it selected %q", log)
	}
}

// A long-lived future that is raced again and again does not accumulate waiters.
func TestFuture_RacedInALoop(t *testing.T) {
	w := Define("loop", func(ctx Context, _ int) (int, error) {
		stop := After(ctx, time.Hour)
		for range 50 {
			if _, i, err := Race(ctx, stop, After(ctx, time.Second)); err != nil || i != 1 {
				return i, err
			}
		}
		return len(stop.waiters.all), nil
	})
	var n int
	if newEngine(t, w, 0).result(&n); n != 0 {
		t.Errorf("%d waiters are left", n)
	}
}

func TestExecution_AsksWithoutEnd(t *testing.T) {
	w := Define("endless", func(ctx Context, _ int) (int, error) {
		for {
			After(ctx, time.Hour)
		}
	})
	e := newEngine(t, w, 0)
	if err := e.failure(); err == nil || !strings.Contains(err.Error(), "more than 100000 things") {
		t.Errorf("error is %v", err)
	}
}

// Neither does a future that a loop selects from, however many other branches wait for
// it.
func TestFuture_Waiters(t *testing.T) {
	const branches, rounds = 5000, 6000
	w := Define("crowd", func(ctx Context, _ int) (int, error) {
		open := After(ctx, 1000*time.Hour)
		var all []*Future[time.Time]
		for range branches {
			all = append(all, Go(ctx, func(ctx Context) (time.Time, error) { return open.Get(ctx) }))
		}
		most := 0
		s := NewSelector(ctx)
		Add(s, open, func(time.Time, error) {})
		for range rounds {
			Add(s, After(ctx, time.Second), func(time.Time, error) { most = max(most, len(open.waiters.all)) })
			if err := s.Select(ctx); err != nil {
				return 0, err
			}
		}
		_, err := All(ctx, all...)
		return most, err
	})
	e := newEngine(t, w, 0)
	var most int
	if e.result(&most); most > 2*branches+200 {
		t.Errorf("%d wait for one thing", most)
	}
}
