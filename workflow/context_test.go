package workflow

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/history"
)

func TestContext_OfThisRun(t *testing.T) {
	type seen struct {
		Now, Started time.Time
		ID, Other    string
		N            int
		Info         Info
	}
	w := Define("context", func(ctx Context, _ int) (seen, error) {
		before := ctx.Now()
		if err := Sleep(ctx, time.Hour); err != nil {
			return seen{}, err
		}
		if d := ctx.Now().Sub(before); d < time.Hour {
			t.Errorf("an hour is %v long", d)
		}
		return seen{Now: ctx.Now(), ID: ctx.NewID(), Other: ctx.NewID(), N: ctx.Rand().Int(), Info: ctx.Info()}, nil
	})
	e := newEngine(t, w, 0)
	var first seen
	e.result(&first)
	if first.ID == first.Other || len(first.ID) != 26 || first.ID[:10] != first.Other[:10] {
		t.Errorf("ids are %s and %s", first.ID, first.Other)
	}
	if first.Info.RunID != e.run.ID || first.Info.Workflow != "context" || first.Info.Events != 4 || first.Info.StartedAt.IsZero() {
		t.Errorf("info is %+v", first.Info)
	}
}

func TestContext_BranchesHaveTheirOwnRandomness(t *testing.T) {
	w := Define("random", func(ctx Context, _ int) ([]int, error) {
		one := func(ctx Context) (int, error) { return ctx.Rand().Int(), nil }
		ns, err := All(ctx, Go(ctx, one), Go(ctx, one))
		return append(ns, ctx.Rand().Int()), err
	})
	var got []int
	newEngine(t, w, 0).result(&got)
	slices.Sort(got)
	if len(slices.Compact(got)) != 3 {
		t.Errorf("random numbers are %v", got)
	}
}

func TestContext_LogsOnce(t *testing.T) {
	var log bytes.Buffer
	w := Define("logs", func(ctx Context, _ int) (int, error) {
		ctx.Logger().Info("one")
		if _, err := addOne.Run(ctx, 1); err != nil {
			return 0, err
		}
		ctx.Logger().With("k", "v").WithGroup("g").Info("two")
		if _, err := addOne.Run(ctx, 1); err != nil {
			return 0, err
		}
		ctx.Logger().Info("three")
		return 0, nil
	})
	e := newEngine(t, w, 0)
	e.logger = slog.New(slog.NewTextHandler(&log, nil))
	e.restart()
	e.turn(2)
	e.execute(0)
	e.turn(1) // logs "two"
	e.restart()
	e.finish()
	for _, want := range []string{"one", "two", "three"} {
		n := strings.Count(log.String(), "msg="+want)
		if want == "two" && n == 2 {
			n = 1 // the line is repeated, because the process may have lost it
		}
		if n != 1 {
			t.Errorf("%q was logged %d times:\n%s", want, n, &log)
		}
	}
	if !strings.Contains(log.String(), "run="+e.run.ID) {
		t.Errorf("log does not say which run:\n%s", &log)
	}
}

func TestContext_NotElsewhere(t *testing.T) {
	var kept Context
	w := Define("leaks", func(ctx Context, _ int) (int, error) {
		kept = ctx
		return Do(ctx, "step", func(context.Context) (int, error) {
			return 1, Sleep(ctx, time.Second)
		})
	})
	e := newEngine(t, w, 0)
	e.turn(2)
	for name, use := range map[string]func(){
		"in a step":    func() { _, _ = e.steps[0].invoke(t.Context(), nil) },
		"after return": func() { kept.Now() },
	} {
		func() {
			defer func() {
				if p := recover(); p == nil || !strings.Contains(fmt.Sprint(p), "outside of the function") {
					t.Errorf("%s: panic is %v", name, p)
				}
			}()
			use()
		}()
	}
}

func TestExecution_Panic(t *testing.T) {
	w := Define("panics", func(ctx Context, _ int) (int, error) {
		_, err := Go(ctx, func(Context) (int, error) { panic("in a branch") }).Get(ctx)
		var p *PanicError
		if !errors.As(err, &p) || p.Value != "in a branch" || !strings.Contains(p.Stack, "context_test.go") {
			t.Errorf("the branch ended with %#v", err)
		}
		var none []int
		return none[ctx.Rand().IntN(3)], nil
	})
	err := newEngine(t, w, 0).failure()
	if err == nil || !strings.Contains(err.Error(), "out of range") {
		t.Errorf("error is %v", err)
	}
}

func TestExecution_Goexit(t *testing.T) {
	ended := false
	w := Define("exits", func(ctx Context, _ int) (int, error) {
		defer func() { ended = true }()
		runtime.Goexit()
		return 0, nil
	})
	e := newEngine(t, w, 0)
	if err := e.failure(); err == nil || !strings.Contains(err.Error(), "Goexit") {
		t.Errorf("error is %v", err)
	}
	if !ended {
		t.Error("deferred function has not run")
	}
}

// A dropped run unwinds: deferred functions run, but their calls have no effect.
func TestExecution_Close(t *testing.T) {
	var log []string
	w := Define("closed", func(ctx Context, _ int) (_ int, err error) {
		saga := NewSaga(ctx)
		defer saga.Guard(&err)
		saga.Add("undo", func(Context) error { log = append(log, "undone"); return nil })
		defer func() { log = append(log, fmt.Sprint("recovered ", recover())) }()
		h, err := NewHook[int](ctx, "")
		if err != nil {
			return 0, err
		}
		defer h.Dispose(ctx)
		for range 100 {
			Go(ctx, func(ctx Context) (int, error) {
				defer func() { log = append(log, "branch") }()
				return h.Receive(ctx)
			})
		}
		defer func() {
			log = append(log, "last step")
			_, _ = addOne.Run(ctx, 1)
			log = append(log, "went on")
		}()
		return 0, Sleep(ctx, time.Hour)
	})
	e := newEngine(t, w, 0)
	e.settle()
	begun := begunHere()
	if len(begun) != 101 {
		t.Errorf("%d goroutines have begun", len(begun))
	}
	n := len(e.log)
	e.x.close()
	e.x.close()
	want := []string{"last step", "recovered <nil>"}
	for range 100 {
		want = append(want, "branch")
	}
	if !slices.Equal(log, want) {
		t.Errorf("it ended with %q", log)
	}
	if eff := e.x.feed([]Event{{Type: history.WaitCompleted, ID: "wait_sleep.1"}}); len(eff.appends) > 0 || eff.done != nil || len(e.log) != n {
		t.Errorf("a closed execution wants %+v", eff)
	}
	left := func() (n int) {
		for id := range goroutines() {
			if begun[id] {
				n++
			}
		}
		return n
	}
	// A goroutine ends a little after it has signalled its end.
	for late := time.Now().Add(time.Minute); left() > 0 && time.Now().Before(late); {
		runtime.Gosched()
	}
	if n := left(); n > 0 {
		t.Errorf("%d goroutines are left", n)
	}
}

// begunHere returns the goroutines that the caller's goroutine has started, directly or
// indirectly. It includes no goroutines of other tests.
func begunHere() map[string]bool {
	here := make([]byte, 64)
	id := strings.Fields(string(here[:runtime.Stack(here, false)]))[1]
	creators, begun := goroutines(), map[string]bool{}
	for again := true; again; {
		again = false
		for g, by := range creators {
			if !begun[g] && (by == id || begun[by]) {
				begun[g], again = true, true
			}
		}
	}
	return begun
}

// goroutines returns the creator of each goroutine.
func goroutines() map[string]string {
	all := make([]byte, 4<<20)
	creators := map[string]string{}
	for stack := range strings.SplitSeq(string(all[:runtime.Stack(all, true)]), "\n\n") {
		_, by, _ := strings.Cut(stack, " in goroutine ")
		by, _, _ = strings.Cut(by, "\n")
		creators[strings.Fields(stack)[1]] = by
	}
	return creators
}

// A panic of a deferred function in a dropped run must not crash the worker.
func TestExecution_PanicWhenClosed(t *testing.T) {
	var log bytes.Buffer
	w := Define("closed", func(ctx Context, _ int) (int, error) {
		defer func() { panic("too late") }()
		defer ctx.Logger().Info("said in vain")
		return 0, Sleep(ctx, time.Hour)
	})
	e := newEngine(t, w, 0)
	e.logger = slog.New(slog.NewTextHandler(&log, nil))
	e.restart()
	e.settle()
	e.x.close()
	if s := log.String(); !strings.Contains(s, "too late") || strings.Contains(s, "in vain") {
		t.Errorf("log is %s", s)
	}
}
