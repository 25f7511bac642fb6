package workflow

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
)

var double = Define("double", func(ctx Context, n int) (int, error) {
	if n < 0 {
		return 0, errPlanned
	}
	a, err := addOne.Run(ctx, n)
	return a + n - 1, err
}, Priority(3))

func TestChild_Inline(t *testing.T) {
	w := Define("parent", func(ctx Context, n int) (int, error) {
		f := double.Go(ctx, n)
		a, err := double.Run(ctx, n)
		if err != nil {
			return 0, err
		}
		b, err := f.Get(ctx)
		if _, err := double.Run(ctx, -1); !errors.Is(err, errPlanned) {
			t.Errorf("error is %v", err)
		}
		return a + b, err
	})
	e := newEngine(t, w, 5)
	var got int
	if e.result(&got); got != 20 {
		t.Errorf("got %d", got)
	}
	want := "[run_created run_started step_completed step_double.2/add.1 step_completed step_double.1/add.1 run_completed]"
	if got := fmt.Sprint(e.types()); got != want {
		t.Errorf("log is %s", got)
	}
}

func TestChild_Started(t *testing.T) {
	for _, test := range []struct {
		ended Event
		check func(n int, err error) bool
	}{
		{Event{Code: "completed", Payload: []byte("json14")}, func(n int, err error) bool { return n == 14 && err == nil }},
		{Event{Code: "completed", Payload: []byte(`json"no"`)}, func(n int, err error) bool { return cay.CodeOf(err) == cay.Invalid }},
		{Event{Code: "cancelled", Reason: "why"}, func(_ int, err error) bool {
			var c *RunCancelledError
			return errors.As(err, &c) && c.Workflow == "double" && c.Reason == "why" && strings.HasPrefix(c.Run, "wrun_")
		}},
		{Event{Code: "failed", Payload: new(envelopes).encodeError("", cay.Errorf(cay.NotFound, "gone"))}, func(_ int, err error) bool {
			var f *RunFailedError
			return errors.As(err, &f) && f.Workflow == "double" && errors.Is(err, &cay.Error{Code: cay.NotFound})
		}},
	} {
		w := Define("parent", func(ctx Context, n int) (bool, error) {
			c, err := double.StartChild(ctx, n, ChildGroup("g"), ChildAttributes(map[string]string{"a": "b"}))
			if err != nil {
				return false, err
			}
			if err := Sleep(ctx, time.Second); err != nil {
				return false, err
			}
			v, err := c.Result(ctx)
			return test.check(v, err), nil
		})
		e := newEngine(t, w, 7)
		eff := e.x.feed(e.log)
		e.fed = len(e.log)
		if len(eff.children) != 1 || eff.idle {
			t.Fatalf("effects are %+v", eff)
		}
		call := eff.children[0]
		r := call.run
		if r.Workflow != "double" || string(r.Input) != "json7" || r.Parent != e.run.ID || r.Root != e.run.ID || r.ParentCall != "child_double.1" ||
			r.Group != "g" || r.Priority != 3 || r.Attributes["a"] != "b" || call.started.Token != r.ID || call.id != "child_double.1" {
			t.Errorf("child is %+v, %+v", r, call.started)
		}
		e.take(eff)
		e.turn(9)
		again := newExecution(e.config())
		if c := again.feed(e.log[:2]).children; c[0].run.ID != r.ID {
			t.Errorf("after a crash the child would be %s, was %s", c[0].run.ID, r.ID)
		}
		again.close()
		test.ended.Type, test.ended.ID = history.ChildEnded, call.id
		e.append(test.ended)
		var ok bool
		if e.result(&ok); !ok {
			t.Errorf("%+v is not what the parent saw", test.ended)
		}
	}
}

func TestChild_Detached(t *testing.T) {
	w := Define("parent", func(ctx Context, n int) (int, error) {
		c, err := double.StartChild(ctx, n, Detached(), ChildPriority(9))
		if err != nil {
			return 0, err
		}
		if _, err = c.Result(ctx); cay.CodeOf(err) != cay.NotSupported {
			t.Errorf("error is %v", err)
		}
		return 0, nil
	})
	e := newEngine(t, w, 7)
	e.turn(2)
	if c := e.children["child_double.1"]; c.run.ParentCall != "" || c.run.Priority != 9 {
		t.Errorf("child is %+v", c.run)
	}
	var n int
	e.result(&n)
}

// A child that can never be started gives the reason.
func TestChild_Refused(t *testing.T) {
	w := Define("parent", func(ctx Context, n int) (int, error) {
		c, err := double.StartChild(ctx, n)
		if err != nil {
			return 0, err
		}
		return c.Result(ctx)
	})
	e := newEngine(t, w, 7)
	eff := e.x.feed(e.log)
	e.fed = len(e.log)
	call := eff.children[0]
	e.append(call.started, Event{Type: history.ChildEnded, ID: call.id, Code: "failed", Payload: e.enc.encodeError(cay.Errorf(cay.QuotaExceeded, "too many"))})
	if err := e.failure(); !errors.Is(err, &cay.Error{Code: cay.QuotaExceeded}) {
		t.Errorf("error is %v", err)
	}
}

// newCounter returns a workflow that counts to three, one run for each number.
func newCounter() *Definition[int, int] {
	var counter *Definition[int, int]
	counter = Define("counter", func(ctx Context, n int) (_ int, err error) {
		saga := NewSaga(ctx)
		defer saga.Guard(&err)
		saga.Add("undo", func(Context) error { panic("undone") })
		if n, err = addOne.Run(ctx, n); err != nil || n >= 3 {
			return n, err
		}
		if err := SetAttributes(ctx, map[string]string{"n": fmt.Sprint(n)}); err != nil {
			return 0, err
		}
		return 0, fmt.Errorf("go on: %w", counter.ContinueAsNew(ctx, n))
	})
	return counter
}

func TestContinueAsNew(t *testing.T) {
	counter := newCounter()
	e := newEngine(t, counter, 0)
	e.run.Group, e.run.Parent, e.run.Root = "g", "p", "r"
	e.log[0].Attributes = map[string]string{"x": "y"}
	e.restart()
	end := e.finish()
	n := e.next
	if end.Type != history.RunCompleted || n == nil || end.Token != n.ID || end.Payload != nil {
		t.Fatalf("it ended with %+v, next %+v", end, n)
	}
	if n.Workflow != "counter" || string(n.Input) != "json1" || n.Group != "g" || n.Previous != e.run.ID || n.Parent != "p" || n.Root != "r" || n.Attributes["x"] != "y" {
		t.Errorf("next is %+v", n)
	}
	e.replay()

	loop := Define("loop", func(ctx Context, n int) (int, error) { return 0, counter.ContinueAsNew(ctx, n) })
	w := Define("inline", func(ctx Context, _ int) (int, error) { return loop.Run(ctx, 0) })
	if err := newEngine(t, w, 0).failure(); cay.CodeOf(err) != cay.NotSupported {
		t.Errorf("inside another workflow: %v", err)
	}
}

func TestSaga(t *testing.T) {
	for name, test := range map[string]struct {
		fail  func(ctx Context) error
		want  string
		wrong bool
	}{
		"succeeds":   {func(Context) error { return nil }, "", false},
		"fails":      {func(Context) error { return errPlanned }, "b a ", false},
		"panics":     {func(Context) error { panic("planned") }, "b a ", false},
		"cancelled":  {func(ctx Context) error { return Sleep(ctx, time.Hour) }, "b a ", false},
		"undo fails": {func(Context) error { return errPlanned }, "b a ", true},
	} {
		t.Run(name, func(t *testing.T) {
			undone := ""
			w := Define("saga", func(ctx Context, _ int) (_ int, err error) {
				undone = ""
				saga := NewSaga(ctx)
				defer saga.Guard(&err)
				for _, name := range []string{"a", "b"} {
					saga.Add(name, func(ctx Context) error {
						if _, err := addOne.Run(ctx, 1); err != nil {
							return err
						}
						undone += name + " "
						if test.wrong {
							return errors.New("stuck")
						}
						return nil
					})
				}
				return 0, test.fail(ctx)
			})
			e := newEngine(t, w, 0)
			e.settle()
			if name == "cancelled" {
				e.append(Event{Type: history.CancelRequested})
			}
			end := e.finish()
			e.replay()
			if undone != test.want {
				t.Errorf("undone were %q", undone)
			}
			want := history.RunFailed
			switch name {
			case "succeeds":
				want = history.RunCompleted
			case "cancelled":
				want = history.RunCancelled
			}
			if end.Type != want {
				t.Errorf("it ended with %s", end.Type)
			}
			if test.wrong {
				err := e.enc.decodeError(end.Payload)
				if err == nil || err.Error() != "planned\nundo b: stuck\nundo a: stuck" {
					t.Errorf("error is %q", err)
				}
			}
			if test.want != "" && !strings.Contains(e.dump(), "step_b.1/add.1") {
				t.Errorf("log is\n%s", e.dump())
			}
		})
	}
}
