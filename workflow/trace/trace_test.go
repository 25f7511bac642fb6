package trace_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/cayhq/cay/workflow"
	"github.com/cayhq/cay/workflow/trace"
	"github.com/cayhq/cay/workflow/workflowtest"
)

func TestObserver(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans), sdktrace.WithIDGenerator(trace.IDs()))
	var calls atomic.Int32
	flaky := workflow.Step("flaky", func(ctx context.Context, _ int) (int, error) {
		if !oteltrace.SpanContextFromContext(ctx).IsValid() {
			t.Error("the step's context carries no span")
		}
		if calls.Add(1) == 1 {
			return 0, errors.New("oh")
		}
		return 1, nil
	}, workflow.RetryPolicy{Initial: time.Millisecond})
	child := workflow.Define("child", func(ctx workflow.Context, in int) (int, error) { return flaky.Run(ctx, in) })
	parent := workflow.Define("parent", func(ctx workflow.Context, in int) (int, error) {
		c, err := child.StartChild(ctx, in)
		if err != nil {
			return 0, err
		}
		return c.Result(ctx)
	})
	k := workflowtest.New(t, workflowtest.Options{Worker: func(c *workflow.WorkerConfig) { c.Observer = trace.New(provider) }}, parent, child)

	run, err := parent.Start(t.Context(), k.Client, 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := run.Result(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, outer := provider.Tracer("test").Start(t.Context(), "outer")
	second, err := child.Start(ctx, k.Client, 1, trace.Start(ctx))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := second.Result(t.Context()); err != nil {
		t.Fatal(err)
	}
	outer.End()
	k.Close()

	byName := make(map[string][]sdktrace.ReadOnlySpan)
	for _, s := range spans.Ended() {
		byName[s.Name()] = append(byName[s.Name()], s)
	}
	if len(byName["parent"]) != 1 || len(byName["child"]) != 2 || len(byName["flaky"]) != 3 {
		t.Fatalf("spans: %v", byName)
	}
	root, first, last := byName["parent"][0], byName["child"][0], byName["child"][1]
	if has(first, attribute.String("cay.run.id", second.ID)) { // the observer may hear of it sooner
		first, last = last, first
	}
	if root.Parent().IsValid() {
		t.Error("the first run has a parent")
	}
	if first.Parent().SpanID() != root.SpanContext().SpanID() || first.SpanContext().TraceID() != root.SpanContext().TraceID() {
		t.Error("the child is not in its parent")
	}
	for i, s := range byName["flaky"][:2] {
		if s.Parent().SpanID() != first.SpanContext().SpanID() || s.SpanContext().TraceID() != root.SpanContext().TraceID() {
			t.Error("a step is not in its run")
		}
		if failed := s.Status().Code == codes.Error; failed != (i == 0) {
			t.Errorf("attempt %d: %v", i+1, s.Status())
		}
		if !has(s, attribute.Int("cay.step.attempt", i+1)) || !has(s, attribute.String("cay.step.id", "step_flaky.1")) {
			t.Errorf("attempt %d: %v", i+1, s.Attributes())
		}
	}
	if last.Parent().SpanID() != outer.SpanContext().SpanID() || last.SpanContext().TraceID() != outer.SpanContext().TraceID() {
		t.Error("a run is not in the trace of who started it")
	}
	if third := byName["flaky"][2]; third.Parent().SpanID() != last.SpanContext().SpanID() {
		t.Error("its step is not in it")
	}
	for _, s := range spans.Ended() {
		if s.EndTime().Before(s.StartTime()) || time.Since(s.StartTime()) > time.Minute {
			t.Errorf("%s: from %s to %s", s.Name(), s.StartTime(), s.EndTime())
		}
	}
}

func has(s sdktrace.ReadOnlySpan, want attribute.KeyValue) bool {
	for _, a := range s.Attributes() {
		if a == want {
			return true
		}
	}
	return false
}
