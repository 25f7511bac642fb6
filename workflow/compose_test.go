package workflow_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/workflow"
	"github.com/cayhq/cay/workflow/workflowtest"
)

// soonOf returns a context that bounds a test's waits.
func soonOf(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// started returns the id of the child that a run has started.
func started(k *workflowtest.Kit, run string) string {
	return k.WaitFor(run, "a child", func(e *workflow.Event) bool { return e.Type == history.ChildStarted }).Token
}

var (
	// leaf acts on its input.
	leaf = workflow.Define("leaf", func(ctx workflow.Context, what string) (string, error) {
		switch what {
		case "fail":
			return "", cay.Errorf(cay.NotFound, "leaf fails")
		case "sleep":
			if err := workflow.Sleep(ctx, time.Hour); err != nil {
				return "", err
			}
		case "on":
			return "", ctxContinue(ctx)
		}
		return "leaf " + what, nil
	})
	parent = workflow.Define("parent", func(ctx workflow.Context, what string) (string, error) {
		c, err := leaf.StartChild(ctx, what)
		if err != nil {
			return "", err
		}
		return c.Result(ctx)
	})
	detached = workflow.Define("detached", func(ctx workflow.Context, what string) (string, error) {
		c, err := leaf.StartChild(ctx, what, workflow.Detached())
		if err != nil {
			return "", err
		}
		return c.ID, workflow.Sleep(ctx, time.Hour)
	})
	last = workflow.Define("last", func(ctx workflow.Context, what string) (string, error) { return "last " + what, nil })
)

func ctxContinue(ctx workflow.Context) error { return last.ContinueAsNew(ctx, "of all") }

func TestChild_OnEngine(t *testing.T) {
	k := workflowtest.New(t, workflowtest.Options{}, leaf, parent, detached, last)

	t.Run("completes", func(t *testing.T) {
		run, out, err := result(t, k, parent, "a")
		if out != "leaf a" || err != nil {
			t.Errorf("result is %q, %v", out, err)
		}
		child, err := k.Client.Get(t.Context(), started(k, run.ID))
		if err != nil || child.Parent != run.ID || child.Root != run.ID || child.Workflow != "leaf" || child.Status != workflow.StatusCompleted {
			t.Errorf("child is %+v, %v", child, err)
		}
	})
	t.Run("fails", func(t *testing.T) {
		_, _, err := result(t, k, parent, "fail")
		var f *workflow.RunFailedError
		if !errors.As(err, &f) || !errors.Is(err, &cay.Error{Code: cay.NotFound}) || !strings.Contains(err.Error(), "leaf fails") {
			t.Errorf("error is %v", err)
		}
	})
	t.Run("is continued", func(t *testing.T) {
		if _, out, err := result(t, k, parent, "on"); out != "last of all" || err != nil {
			t.Errorf("result is %q, %v", out, err)
		}
	})
	t.Run("is cancelled", func(t *testing.T) {
		run, err := parent.Start(t.Context(), k.Client, "sleep")
		if err != nil {
			t.Fatal(err)
		}
		child := started(k, run.ID)
		if _, err := k.Client.Cancel(t.Context(), child, workflow.CancelParams{Reason: "test"}); err != nil {
			t.Fatal(err)
		}
		_, err = run.Result(soonOf(t))
		var f *workflow.RunFailedError
		if !errors.As(err, &f) || !strings.Contains(err.Error(), "leaf was cancelled") {
			t.Errorf("error is %v", err)
		}
	})
	t.Run("is cancelled with its parent", func(t *testing.T) {
		run, err := parent.Start(t.Context(), k.Client, "sleep")
		if err != nil {
			t.Fatal(err)
		}
		child := workflow.GetRun[string](k.Client, started(k, run.ID))
		if _, err := k.Client.Cancel(t.Context(), run.ID, workflow.CancelParams{}); err != nil {
			t.Fatal(err)
		}
		for _, r := range []*workflow.Run[string]{run, child} {
			if _, err := r.Result(soonOf(t)); !errors.Is(err, workflow.ErrCancelled) {
				t.Errorf("result of %s is %v", r.ID, err)
			}
		}
	})
	t.Run("is detached", func(t *testing.T) {
		run, err := detached.Start(t.Context(), k.Client, "sleep")
		if err != nil {
			t.Fatal(err)
		}
		child := started(k, run.ID)
		k.WaitForSleep(child)
		k.WaitForSleep(run.ID)
		if _, err := k.Client.Cancel(t.Context(), run.ID, workflow.CancelParams{}); err != nil {
			t.Fatal(err)
		}
		if _, err := run.Result(soonOf(t)); !errors.Is(err, workflow.ErrCancelled) {
			t.Errorf("result is %v", err)
		}
		k.Wake(child)
		if out, err := workflow.GetRun[string](k.Client, child).Result(soonOf(t)); out != "leaf sleep" || err != nil {
			t.Errorf("result of the child is %q, %v", out, err)
		}
	})
}

func TestHook_ConflictOnEngine(t *testing.T) {
	only := workflow.Define("one-per-order", func(ctx workflow.Context, order string) (string, error) {
		h, err := workflow.NewHook[string](ctx, "order:"+order, workflow.Metadata(order))
		if err != nil {
			return "", err
		}
		return h.Receive(ctx)
	})
	k := workflowtest.New(t, workflowtest.Options{}, only)
	first, err := only.Start(t.Context(), k.Client, "1")
	if err != nil {
		t.Fatal(err)
	}
	hook := k.WaitForHook(first.ID)
	var about string
	if err := k.Client.Value(hook.Metadata, &about); about != "1" || err != nil {
		t.Errorf("metadata is %q, %v", about, err)
	}
	_, _, err = result(t, k, only, "1")
	var conflict *workflow.HookConflictError
	if !errors.As(err, &conflict) || conflict.Run != first.ID || conflict.Token != "order:1" {
		t.Errorf("second run: %v", err)
	}
	if err := workflow.ResumeHook(t.Context(), k.Client, "order:1", "yes"); err != nil {
		t.Fatal(err)
	}
	if out, err := first.Result(soonOf(t)); out != "yes" || err != nil {
		t.Errorf("first run: %q, %v", out, err)
	}
	if err := workflow.ResumeHook(t.Context(), k.Client, "order:1", "again"); cay.CodeOf(err) != cay.NotFound {
		t.Errorf("a hook of a run that has ended: %v", err)
	}
}

func TestAttributes_OnEngine(t *testing.T) {
	step := workflow.Step("mark", func(ctx context.Context, v string) (string, error) {
		return v, workflow.SetStepAttributes(ctx, map[string]string{"step": v})
	})
	marks := workflow.Define("marks", func(ctx workflow.Context, v string) (map[string]string, error) {
		if err := workflow.SetAttributes(ctx, map[string]string{"flow": v, "start": ""}); err != nil {
			return nil, err
		}
		if _, err := step.Run(ctx, v); err != nil {
			return nil, err
		}
		return ctx.Info().Attributes, nil
	})
	k := workflowtest.New(t, workflowtest.Options{}, marks)
	run, seen, err := result(t, k, marks, "x", workflow.WithAttributes(map[string]string{"start": "1", "kept": "2"}))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"kept": "2", "flow": "x", "step": "x"}
	info, err := run.Info(t.Context())
	if err != nil || !maps.Equal(seen, want) || !maps.Equal(info.Attributes, want) {
		t.Errorf("the code saw %v, the run has %v, %v", seen, info.Attributes, err)
	}
	page, err := k.Client.List(t.Context(), workflow.Query{Attributes: map[string]string{"step": "x", "kept": "2"}})
	if err != nil || len(page.Items) != 1 || page.Items[0].ID != run.ID {
		t.Errorf("found are %+v, %v", page, err)
	}
}

func TestSaga_CancelledOnEngine(t *testing.T) {
	var undone []string
	undo := workflow.Step("undo", func(_ context.Context, what string) (int, error) {
		undone = append(undone, what)
		return 0, nil
	})
	trip := workflow.Define("trip", func(ctx workflow.Context, _ int) (_ int, err error) {
		saga := workflow.NewSaga(ctx)
		defer saga.Guard(&err)
		for _, what := range []string{"flight", "hotel"} {
			if _, err := workflow.Do(ctx, "book", func(context.Context) (string, error) { return what, nil }); err != nil {
				return 0, err
			}
			saga.Add(what, func(ctx workflow.Context) error { _, err := undo.Run(ctx, what); return err })
		}
		return 1, workflow.Sleep(ctx, time.Hour)
	})
	k := workflowtest.New(t, workflowtest.Options{}, trip)
	run, err := trip.Start(t.Context(), k.Client, 0)
	if err != nil {
		t.Fatal(err)
	}
	k.WaitForSleep(run.ID)
	if _, err := k.Client.Cancel(t.Context(), run.ID, workflow.CancelParams{Reason: "ill"}); err != nil {
		t.Fatal(err)
	}
	_, err = run.Result(soonOf(t))
	var c *workflow.RunCancelledError
	if !errors.As(err, &c) || c.Reason != "ill" || fmt.Sprint(undone) != "[hotel flight]" {
		t.Errorf("result is %v, undone are %v", err, undone)
	}
}

// A program is changed while runs of the old version are live.
func TestVersion_OnEngine(t *testing.T) {
	say := func(ctx workflow.Context, what string) (string, error) {
		return workflow.Do(ctx, what, func(context.Context) (string, error) { return what + " ", nil })
	}
	wait := func(ctx workflow.Context, said string, err error) (string, error) {
		if err != nil {
			return "", err
		}
		return said, workflow.Sleep(ctx, time.Hour)
	}
	before := workflow.Define("letter", func(ctx workflow.Context, early bool) (string, error) {
		out := ""
		if early { // sleeps before the changed code
			said, err := wait(ctx, "", nil)
			if err != nil {
				return "", err
			}
			out += said
		}
		said, err := say(ctx, "hello")
		said, err = wait(ctx, said, err)
		return out + said + "old", err
	})
	after := workflow.Define("letter", func(ctx workflow.Context, early bool) (string, error) {
		if early {
			if _, err := wait(ctx, "", nil); err != nil {
				return "", err
			}
		}
		if workflow.Version(ctx, "politeness", 1) == 0 {
			said, err := say(ctx, "hello")
			said, err = wait(ctx, said, err)
			return said + "new", err
		}
		dear, err := say(ctx, "dear")
		if err != nil {
			return "", err
		}
		said, err := say(ctx, "friend")
		said, err = wait(ctx, said, err)
		return dear + said + "new", err
	})
	o := workflowtest.Options{Path: filepath.Join(t.TempDir(), "letters.db")}
	k := workflowtest.New(t, o, before)
	runs := map[bool]string{}
	for _, early := range []bool{false, true} {
		run, err := before.Start(t.Context(), k.Client, early)
		if err != nil {
			t.Fatal(err)
		}
		k.WaitForSleep(run.ID)
		runs[early] = run.ID
	}
	k.Close()
	k = workflowtest.New(t, o, after)
	k.Wake(runs[true])
	k.WaitFor(runs[true], "its version", func(e *workflow.Event) bool { return e.Type == history.VersionMarked })
	k.WaitFor(runs[true], "its second sleep", func(e *workflow.Event) bool { return e.Type == history.WaitCreated && e.ID == "wait_sleep.2" })
	for early, want := range map[bool]string{false: "hello new", true: "dear friend new"} {
		k.Wake(runs[early])
		if out, err := workflow.GetRun[string](k.Client, runs[early]).Result(soonOf(t)); out != want || err != nil {
			t.Errorf("letter is %q, %v; want %q", out, err, want)
		}
	}
}
