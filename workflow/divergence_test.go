package workflow

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/history"
)

func doStep(ctx Context, name string) error {
	_, err := Do(ctx, name, func(context.Context) (string, error) { return name, nil })
	return err
}

func inSteps(names ...string) func(Context, int) (int, error) {
	return func(ctx Context, _ int) (int, error) {
		for _, n := range names {
			if err := doStep(ctx, n); err != nil {
				return 0, err
			}
		}
		return 0, nil
	}
}

// changed runs the beginning of a workflow, and then feeds its log to other code.
func changed(t *testing.T, before, after func(Context, int) (int, error), steps int) effects {
	t.Helper()
	e := newEngine(t, Define("changing", before), 0)
	for range steps {
		for e.fed < len(e.log) {
			e.turn(9)
		}
		e.execute(0)
	}
	for e.fed < len(e.log) {
		e.turn(9)
	}
	x := newExecution(executionConfig{definition: Define("changing", after).definition(), run: e.run, payloads: e.enc})
	defer x.close()
	return x.feed(e.log)
}

func TestDivergence(t *testing.T) {
	branches := func(a, b []string) func(Context, int) (int, error) {
		return func(ctx Context, n int) (int, error) {
			_, err := All(ctx, Go(ctx, func(ctx Context) (int, error) { return inSteps(a...)(ctx, n) }), Go(ctx, func(ctx Context) (int, error) { return inSteps(b...)(ctx, n) }))
			return 0, err
		}
	}
	for name, test := range map[string]struct {
		before, after func(Context, int) (int, error)
		steps         int
		logged        string // ids, "" if the log fits
		asked         string
	}{
		"same":               {inSteps("a", "b", "c"), inSteps("a", "b", "c"), 2, "", ""},
		"added at the end":   {inSteps("a", "b"), inSteps("a", "b", "new"), 1, "", ""},
		"added after":        {inSteps("a", "b", "c"), inSteps("a", "b", "new", "c"), 2, "", ""},
		"added between":      {inSteps("a", "b", "c"), inSteps("a", "new", "b", "c"), 2, "step_b.1", "waits for step_new.1"},
		"removed":            {inSteps("a", "b", "c"), inSteps("a", "c"), 2, "step_b.1", "waits for step_c.1"},
		"renamed":            {inSteps("a", "b", "c"), inSteps("a", "z", "c"), 2, "step_b.1", "waits for step_z.1"},
		"ends early":         {inSteps("a", "b", "c"), inSteps("a"), 2, "step_b.1", "returns"},
		"swapped":            {inSteps("a", "b", "c"), inSteps("b", "a", "c"), 2, "", ""},
		"in another branch":  {branches([]string{"a", "b"}, []string{"c"}), branches([]string{"a", "b"}, []string{"new", "c"}), 1, "", ""},
		"an occurrence less": {inSteps("a", "a", "b"), inSteps("a", "b"), 2, "step_a.2", "waits for step_b.1"},
		"another kind": {inSteps("a", "b"), func(ctx Context, _ int) (int, error) {
			return 0, Sleep(ctx, time.Second)
		}, 1, "step_a.1", "waits for wait_sleep.1"},
		"a hook": {func(ctx Context, _ int) (int, error) {
			h, err := NewHook[int](ctx, "t")
			if err != nil {
				return 0, err
			}
			return h.Receive(ctx)
		}, inSteps("a"), 0, "hook_hook.1", "waits for step_a.1"},
		"attributes are free": {func(ctx Context, _ int) (int, error) {
			if err := SetAttributes(ctx, map[string]string{"a": "b"}); err != nil {
				return 0, err
			}
			return inSteps("a", "b")(ctx, 0)
		}, inSteps("a", "b"), 1, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			eff := changed(t, test.before, test.after, test.steps)
			if test.logged == "" {
				if eff.diverged != nil {
					t.Fatalf("diverged: %v", eff.diverged)
				}
				return
			}
			d := eff.diverged
			if d == nil {
				t.Fatalf("it goes on with %+v", eff)
			}
			if len(eff.steps)+len(eff.appends)+len(eff.children) > 0 || eff.done != nil {
				t.Errorf("it wants %+v", eff)
			}
			if d.Logged[0].ID != test.logged || d.Logged[0].Slot == 0 || len(d.Replayed) != 1 || d.Replayed[0].Detail != test.asked {
				t.Errorf("it is %+v", d)
			}
			if !regexp.MustCompile(`divergence_test\.go:\d+$`).MatchString(d.Replayed[0].Position) {
				t.Errorf("position is %q", d.Replayed[0].Position)
			}
		})
	}
}

func TestDivergence_Words(t *testing.T) {
	d := changed(t, inSteps("a", "b", "c"), func(ctx Context, _ int) (int, error) {
		if err := doStep(ctx, "a"); err != nil {
			return 0, err
		}
		f := addOne.Go(ctx, 1)                        // asked for, not waited for
		if err := Sleep(ctx, time.Hour); err != nil { // here
			return 0, err
		}
		return f.Get(ctx)
	}, 2).diverged
	line := lineOf(t, "if err := Sleep(ctx, time.Hour); err != nil { // here")
	want := fmt.Sprintf(`of "changing" does not fit the code of this worker: the log has step_completed step_b.1 (slot 4); the code waits for wait_sleep.1 at %s, asks for step_add.1`, line)
	if got := d.Error(); !strings.HasSuffix(got, want) {
		t.Errorf("error is\n%s\nand should end with\n%s", got, want)
	}
	var many DivergenceError
	for range 9 {
		many.Logged = append(many.Logged, LoggedCall{Slot: 1, Type: history.StepCompleted, ID: "x"})
		many.Replayed = append(many.Replayed, ReplayedCall{Detail: "waits"})
	}
	if s := many.Error(); strings.Count(s, "and 4 more") != 2 {
		t.Errorf("error is %s", s)
	}
}

// lineOf returns the position of a line in this file, as the compiler names it.
func lineOf(t *testing.T, text string) string {
	t.Helper()
	b, err := os.ReadFile("divergence_test.go")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(b), "\n")
	i := slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, text) })
	_, file, _, _ := runtime.Caller(0) // a path of the module with -trimpath
	return fmt.Sprintf("%s:%d", file, i+1)
}

// A log that has ended only fits code that ends in the same way.
func TestDivergence_End(t *testing.T) {
	fails := func(ctx Context, _ int) (int, error) { return 0, errors.Join(doStep(ctx, "a"), errPlanned) }
	e := newEngine(t, Define("ends", inSteps("a")), 0)
	e.finish()
	for name, code := range map[string]func(Context, int) (int, error){"goes on": inSteps("a", "b"), "fails": fails} {
		x := newExecution(executionConfig{definition: Define("ends", code).definition(), run: e.run, payloads: e.enc})
		eff := x.feed(e.log)
		if eff.diverged == nil || eff.diverged.Logged[0].Type != history.RunCompleted || len(eff.diverged.Replayed) == 0 {
			t.Errorf("%s: %+v", name, eff)
		}
		x.close()
	}
}

func TestVersion(t *testing.T) {
	version := func(max int, seen *[]int) func(Context, int) (int, error) {
		return func(ctx Context, n int) (int, error) {
			*seen = nil
			if err := doStep(ctx, "a"); err != nil {
				return 0, err
			}
			for range 2 {
				v := Version(ctx, "change", max)
				*seen = append(*seen, v)
				if v > 0 {
					if err := doStep(ctx, "new"); err != nil {
						return 0, err
					}
				}
				if err := doStep(ctx, "b"); err != nil {
					return 0, err
				}
			}
			return 0, nil
		}
	}
	before := inSteps("a", "b", "b")
	var seen []int
	for steps, want := range [][]int{{}, {}, {0, 0}, {0, 0}} {
		eff := changed(t, before, version(1, &seen), steps)
		if eff.diverged != nil || !slices.Equal(seen, want) {
			t.Errorf("after %d steps of the old code: versions %v, want %v, diverged %v", steps, seen, want, eff.diverged)
		}
		if want := map[bool]int{true: 1}[steps == 1]; len(eff.appends) != want {
			t.Errorf("after %d steps it appends %+v", steps, eff.appends)
		}
	}
	// A run keeps its version of a change.
	if eff := changed(t, version(1, &seen), version(2, &seen), 3); eff.diverged != nil || !slices.Equal(seen, []int{1, 1}) {
		t.Errorf("versions %v, diverged %v", seen, eff.diverged)
	}
	// Code that does not know the version must not go on.
	eff := changed(t, version(2, &seen), version(1, &seen), 3)
	if eff.diverged == nil || !strings.Contains(eff.diverged.Error(), "version_marked version_change (slot 4); the code knows versions of it up to 1 only, not 2 at ") {
		t.Errorf("diverged is %v", eff.diverged)
	}
	// Code without the call must not go on either.
	if eff := changed(t, version(1, &seen), inSteps("a", "new", "b", "new", "b"), 2); eff.diverged == nil || eff.diverged.Logged[0].ID != "version_change" {
		t.Errorf("diverged is %v", eff.diverged)
	}
	e := newEngine(t, Define("versions", version(3, &seen)), 0)
	var n int
	e.result(&n)
	if s := strings.Count(fmt.Sprint(e.types()), "version_marked"); s != 1 {
		t.Errorf("%d versions are marked", s)
	}
}
