package workflow

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
)

func TestStep_Options(t *testing.T) {
	s := newStepOptions(nil)
	want := stepOptions{maxRetries: 3, retry: RetryPolicy{Initial: time.Second, Multiplier: 2, Max: time.Minute, Jitter: 0.1}}
	if s != want {
		t.Errorf("defaults are %+v", s)
	}
	s = newStepOptions([]StepOption{MaxRetries(-1), RetryPolicy{Initial: 2 * time.Minute, Multiplier: 1, Jitter: -1}, Timeout(time.Second), Heartbeat(-1)})
	want = stepOptions{maxRetries: -1, retry: RetryPolicy{Initial: 2 * time.Minute, Multiplier: 1, Max: 2 * time.Minute}, timeout: time.Second}
	if s != want {
		t.Errorf("options are %+v", s)
	}
}

func TestStep_BadNames(t *testing.T) {
	for _, name := range []string{"", "a/b", "a\nb", strings.Repeat("n", 201), "\xff"} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%q is taken for a step", name)
				}
			}()
			Step(name, func(context.Context, int) (int, error) { return 0, nil })
		}()
		w := Define("names", func(ctx Context, _ int) (bool, error) {
			_, err := Do(ctx, name, func(context.Context) (int, error) { return 0, nil })
			return cay.CodeOf(err) == cay.Invalid, nil
		})
		var invalid bool
		if newEngine(t, w, 0).result(&invalid); !invalid {
			t.Errorf("%q is taken for an inline step", name)
		}
	}
}

// A step's input is a copy of its own: the workflow does not see the step's changes, and
// the input is the same after a crash.
func TestStep_SharesNothing(t *testing.T) {
	type box struct {
		M      map[string]int
		hidden int
	}
	s := Step("change", func(_ context.Context, b *box) (map[string]int, error) {
		b.M["n"]++
		b.M["hidden"] = b.hidden
		return b.M, nil
	})
	w := Define("shares", func(ctx Context, _ int) (bool, error) {
		b := &box{M: map[string]int{"n": 1}, hidden: 5}
		got, err := s.Run(ctx, b)
		return reflect.DeepEqual(b.M, map[string]int{"n": 1}) && reflect.DeepEqual(got, map[string]int{"n": 2, "hidden": 0}), err
	})
	var ok bool
	if newEngine(t, w, 0).result(&ok); !ok {
		t.Error("step and workflow share a value")
	}
}

func TestStep_Fails(t *testing.T) {
	var errBroken = cay.Errorf(cay.NotFound, "no such thing")
	tries := 0
	s := Step("broken", func(context.Context, int) (int, error) { tries++; return 0, fmt.Errorf("look: %w", errBroken) }, MaxRetries(2))
	w := Define("fails", func(ctx Context, _ int) (int, error) {
		_, err := s.Run(ctx, 1)
		var se *StepError
		if !errors.As(err, &se) || se.Attempts != 3 || se.ID != "step_broken.1" || se.Step != "broken" || !errors.Is(err, &cay.Error{Code: cay.NotFound}) {
			t.Errorf("step failed with %#v", err)
		}
		return 0, err
	})
	err := newEngine(t, w, 0).failure()
	if tries != 3 || !errors.Is(err, &cay.Error{Code: cay.NotFound}) || err.Error() != "step broken failed after 3 attempts: look: no such thing" {
		t.Errorf("after %d attempts the run failed with %v", tries, err)
	}
}

func TestStep_Unstorable(t *testing.T) {
	in := Step("in", func(context.Context, float64) (int, error) { return 1, nil })
	out := Step("out", func(context.Context, int) (float64, error) { return math.Inf(1), nil })
	w := Define("unstorable", func(ctx Context, _ int) (int, error) {
		if _, err := in.Run(ctx, math.NaN()); cay.CodeOf(err) != cay.Invalid {
			t.Errorf("input: %v", err)
		}
		_, err := out.Run(ctx, 1)
		return 0, err
	})
	e := newEngine(t, w, 0)
	if err := e.failure(); cay.CodeOf(err) != cay.Invalid || e.calls["step_out.1"] != 1 || e.calls["step_in.1"] != 0 {
		t.Errorf("result: %v after %v", err, e.calls)
	}
}

func TestStep_WrongType(t *testing.T) {
	w := Define("type", func(ctx Context, _ int) (int, error) {
		f := DoAsync(ctx, "value", func(context.Context) (string, error) { return "text", nil })
		if _, err := f.Get(ctx); err != nil {
			return 0, err
		}
		return 1, nil
	})
	e := newEngine(t, w, 0)
	e.turn(2)
	e.append(Event{Type: history.StepCompleted, ID: "step_value.1", Name: "value", Payload: []byte(`json{"no":"text"}`)})
	if err := e.failure(); cay.CodeOf(err) != cay.Invalid {
		t.Errorf("error is %v", err)
	}
}

// Attempts are numbered across crashes, and attempts that died with their process are
// distinguished from failed ones.
func TestStep_AttemptsOverCrashes(t *testing.T) {
	w := Define("poison", func(ctx Context, n int) (int, error) { return addOne.Run(ctx, n) })
	e := newEngine(t, w, 1)
	e.turn(2)
	first := e.steps[0]
	if first.attempt != 1 || first.record || first.created || string(first.input) != "json1" || e.last.idle {
		t.Fatalf("first attempt is %+v", first)
	}
	e.recovered = true
	e.restart()
	e.turn(2)
	if s := e.steps[0]; s.attempt != 1 || !s.record || s.created {
		t.Fatalf("after a crash that left nothing: %+v", s)
	}
	e.append(Event{Type: history.StepStarted, ID: "step_add.1", Name: "add", Input: []byte("json1"), Attempt: 1})
	for want := 2; want < 4; want++ {
		e.restart()
		e.turn(9)
		s := e.steps[0]
		if s.attempt != want || s.failures != 0 || s.lost() != want-1 || !s.record || !s.created || s.input != nil {
			t.Fatalf("attempt %d is %+v", want, s)
		}
		e.append(Event{Type: history.StepStarted, ID: "step_add.1", Attempt: want})
		e.turn(1)
		if len(e.last.steps) > 0 || e.last.idle {
			t.Fatalf("its own step_started made it want %+v", e.last)
		}
	}
	e.append(Event{Type: history.StepRetrying, ID: "step_add.1", Attempt: 3, Payload: e.enc.encodeError(errors.New("x")), Until: e.at + 1000})
	e.turn(1)
	if len(e.last.steps) != 1 || e.last.steps[0].attempt != 4 || e.last.steps[0].failures != 1 || e.last.steps[0].notBefore.UnixMilli() != e.log[len(e.log)-1].Until || !e.last.idle {
		t.Fatalf("after step_retrying it wants %+v", e.last)
	}
}

// Only the first steps after a crash may have caused the crash.
func TestStep_RecordedAtTheFrontierOnly(t *testing.T) {
	w := Define("frontier", func(ctx Context, n int) (int, error) {
		n, err := addOne.Run(ctx, n)
		if err != nil {
			return 0, err
		}
		return addOne.Run(ctx, n)
	})
	e := newEngine(t, w, 1)
	e.recovered = true
	e.restart()
	e.turn(2)
	if !e.steps[0].record {
		t.Error("first step is not recorded")
	}
	e.execute(0)
	e.turn(2)
	if e.steps[0].record {
		t.Error("second step is recorded")
	}
}

func TestStep_Many(t *testing.T) {
	const n = 10_000
	w := Define("many", func(ctx Context, _ int) (int, error) {
		fs := make([]*Future[int], n)
		for i := range fs {
			fs[i] = addOne.Go(ctx, i)
		}
		vs, err := All(ctx, fs...)
		sum := 0
		for _, v := range vs {
			sum += v
		}
		return sum, err
	})
	e := newEngine(t, w, 0)
	begun := time.Now()
	var sum int
	e.result(&sum)
	if sum != n*(n+1)/2 {
		t.Errorf("sum is %d", sum)
	}
	if d := time.Since(begun); d > time.Minute { // it takes a tenth of a second, unless the algorithm is quadratic
		t.Errorf("it took %v", d)
	}
}

func TestStep_Plain(t *testing.T) {
	if v, err := addOne.Call(t.Context(), 1); v != 2 || err != nil {
		t.Errorf("Call returned %d, %v", v, err)
	}
	tx := TxStep("tx", func(context.Context, Tx, int) (int, error) { return 0, nil })
	if _, err := tx.Call(t.Context(), 1); cay.CodeOf(err) != cay.NotSupported {
		t.Errorf("Call of a transaction: %v", err)
	}
	if i := StepInfo(t.Context()); i != (StepMetadata{}) {
		t.Errorf("info is %+v", i)
	}
	RecordHeartbeat(t.Context())
	if err := SetStepAttributes(t.Context(), map[string]string{"a": "b"}); cay.CodeOf(err) != cay.NotSupported {
		t.Errorf("attributes: %v", err)
	}
	w := Define("tx", func(ctx Context, _ int) (int, error) { return tx.Run(ctx, 1) })
	e := newEngine(t, w, 0)
	e.turn(2)
	if !e.steps[0].tx {
		t.Error("it is no transaction")
	}
}

func TestStep_Scalars(t *testing.T) {
	type text string
	for _, v := range []any{true, 1, int64(1), uint8(1), "s"} {
		if !isScalar(reflect.TypeOf(v)) {
			t.Errorf("%T is a scalar", v)
		}
	}
	for _, v := range []any{text("s"), []int{}, map[string]int{}, &struct{}{}, time.Now(), json.RawMessage(nil), 1.5, time.Second} {
		if isScalar(reflect.TypeOf(v)) {
			t.Errorf("%T is no scalar", v)
		}
	}
}

func TestAttributes(t *testing.T) {
	w := Define("attributes", func(ctx Context, _ int) (int, error) {
		for _, bad := range []map[string]string{{"": "x"}, {strings.Repeat("k", 300): ""}, {"k": strings.Repeat("v", 5000)}} {
			if err := SetAttributes(ctx, bad); cay.CodeOf(err) != cay.Invalid {
				t.Errorf("%v: %v", bad, err)
			}
		}
		m := map[string]string{"a": "1", "b": "2"}
		if err := SetAttributes(ctx, m); err != nil {
			return 0, err
		}
		m["a"] = "changed"
		if err := Sleep(ctx, time.Second); err != nil {
			return 0, err
		}
		if got := ctx.Info().Attributes; !reflect.DeepEqual(got, map[string]string{"a": "1", "b": "2"}) {
			t.Errorf("attributes are %v", got)
		}
		return 0, SetAttributes(ctx, map[string]string{"a": "", "c": "3"})
	})
	e := newEngine(t, w, 0)
	var out int
	e.result(&out)
	e.run.Attributes = e.state.Run.Attributes // as in an assignment: the attributes at the end of the log
	e.replay()
	if got := e.state.Run.Attributes; !reflect.DeepEqual(got, map[string]string{"b": "2", "c": "3"}) {
		t.Errorf("the run's attributes are %v", got)
	}
}
