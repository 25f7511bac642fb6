// Package trace reports the actions of a workflow.Worker as OpenTelemetry spans: a span
// for each run, and in it a span for each attempt of a step, and for each replay.
//
//	provider := sdktrace.NewTracerProvider(sdktrace.WithIDGenerator(trace.IDs()), ...)
//	worker := workflow.NewWorker(client, workflow.WorkerConfig{
//		Definitions: workflow.Definitions(order),
//		Observer:    trace.New(provider),
//	})
//
// A run may outlive processes, so its span is reported at its end, and the ids of its
// trace and span are derived from the run's id: steps in all processes refer to the same
// span. IDs makes such ids. The children of a run are in the run's trace.
//
// A step's context carries its span, so that calls of the step continue the trace. The
// option Start continues the trace of the program that starts a run.
package trace

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/workflow"
)

// Observer reports spans. New makes one.
type Observer struct {
	workflow.NoObserver
	tracer trace.Tracer
}

var _ workflow.Observer = (*Observer)(nil)

// New returns an Observer for a provider whose ids are made by IDs.
func New(p trace.TracerProvider) *Observer {
	return &Observer{tracer: p.Tracer("github.com/cayhq/cay/workflow", trace.WithInstrumentationVersion(cay.Version()))}
}

// parentAttribute is the attribute of a run that was started within a trace.
const parentAttribute = "traceparent"

// Start makes the new run a part of the trace of ctx. It stores the trace in an attribute
// of the run, "traceparent". Without a trace Start does nothing.
func Start(ctx context.Context) workflow.StartOption {
	sc := trace.SpanContextFromContext(ctx)
	if !sc.IsValid() {
		return workflow.WithAttributes(nil)
	}
	return workflow.WithAttributes(map[string]string{
		parentAttribute: "00-" + sc.TraceID().String() + "-" + sc.SpanID().String() + "-" + sc.TraceFlags().String(),
	})
}

// parentOf parses the attribute that Start has set.
func parentOf(run *workflow.RunInfo) (sc trace.SpanContext, ok bool) {
	parts := strings.Split(run.Attributes[parentAttribute], "-")
	if len(parts) != 4 || parts[0] != "00" {
		return sc, false
	}
	traceID, err := trace.TraceIDFromHex(parts[1])
	if err != nil {
		return sc, false
	}
	spanID, err := trace.SpanIDFromHex(parts[2])
	if err != nil {
		return sc, false
	}
	flags, err := hex.DecodeString(parts[3])
	if err != nil || len(flags) != 1 {
		return sc, false
	}
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: traceID, SpanID: spanID, TraceFlags: trace.TraceFlags(flags[0]), Remote: true}), true
}

// Span is a part of a run that the run's code reports; the id of the span is derived from
// the run's id and Key. A Span is reported at its end, but steps can be in it
// before.
type Span struct {
	Key                string // identifies the span within the run
	ParentKey          string // Key of the enclosing Span; empty: the run itself
	Name               string
	StartedAt, EndedAt time.Time
	ErrorType          string // kind of the failure; empty: no failure
	Attributes         []attribute.KeyValue
}

// ReportSpan reports a part of a run as a span.
func (o *Observer) ReportSpan(run *workflow.RunInfo, s Span) {
	id, flags := traceOf(run)
	parent := spanOf(run.ID)
	if s.ParentKey != "" {
		parent = spanIn(run.ID, s.ParentKey)
	}
	ctx := trace.ContextWithRemoteSpanContext(context.WithValue(context.Background(), idsKey{}, ids{id, spanIn(run.ID, s.Key)}),
		trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: parent, TraceFlags: flags, Remote: true}))
	_, span := o.tracer.Start(ctx, s.Name, trace.WithTimestamp(s.StartedAt), attributesOf(run, s.Attributes...))
	if s.ErrorType != "" {
		span.SetStatus(codes.Error, s.ErrorType)
		span.SetAttributes(attribute.String("error.type", s.ErrorType))
	}
	span.End(trace.WithTimestamp(s.EndedAt))
}

// StartSpan starts a span in the Span with a Key; ctx is the context of one of the run's steps.
// The new span is linked to the span of the step.
func (o *Observer) StartSpan(ctx context.Context, key, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	step := trace.SpanContextFromContext(ctx)
	within := trace.ContextWithRemoteSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: step.TraceID(), SpanID: spanIn(workflow.StepInfo(ctx).RunID, key), TraceFlags: step.TraceFlags(), Remote: true,
	}))
	return o.tracer.Start(within, name, append(opts, trace.WithLinks(trace.Link{SpanContext: step}))...)
}

// spanIn returns the id of the Span of a run with a Key.
func spanIn(run, key string) trace.SpanID {
	sum := sha256.Sum256([]byte("span of " + run + " " + key))
	return trace.SpanID(sum[:8])
}

// traceOf returns the trace of a run.
func traceOf(run *workflow.RunInfo) (id trace.TraceID, flags trace.TraceFlags) {
	if parent, ok := parentOf(run); ok {
		return parent.TraceID(), parent.TraceFlags()
	}
	root := run.Root
	if root == "" {
		root = run.ID
	}
	sum := sha256.Sum256([]byte("trace of " + root))
	return trace.TraceID(sum[:16]), trace.FlagsSampled
}

// spanOf returns the span id of a run.
func spanOf(run string) trace.SpanID {
	sum := sha256.Sum256([]byte("span of " + run))
	return trace.SpanID(sum[:8])
}

// within returns ctx with the span of a run as parent.
func within(ctx context.Context, run *workflow.RunInfo) context.Context {
	id, flags := traceOf(run)
	return trace.ContextWithRemoteSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: id, SpanID: spanOf(run.ID), TraceFlags: flags, Remote: true,
	}))
}

func attributesOf(run *workflow.RunInfo, more ...attribute.KeyValue) trace.SpanStartEventOption {
	return trace.WithAttributes(append(more,
		attribute.String("cay.workflow", run.Workflow), attribute.String("cay.run.id", run.ID))...)
}

// StepStarted implements workflow.Observer.
func (o *Observer) StepStarted(ctx context.Context, run *workflow.RunInfo, step workflow.StepMetadata) context.Context {
	ctx, _ = o.tracer.Start(within(ctx, run), step.Name, attributesOf(run,
		attribute.String("cay.step.id", step.StepID), attribute.Int("cay.step.attempt", step.Attempt)))
	return ctx
}

// StepEnded implements workflow.Observer.
func (o *Observer) StepEnded(ctx context.Context, _ *workflow.RunInfo, step workflow.StepOutcome) {
	span := trace.SpanFromContext(ctx)
	if step.Err != nil {
		fail(span, step.Err)
		if !step.RetryAt.IsZero() {
			span.SetAttributes(attribute.String("cay.step.retry_at", step.RetryAt.UTC().Format(time.RFC3339Nano)))
		}
	}
	span.End()
}

func fail(span trace.Span, err error) {
	span.RecordError(err)
	span.SetStatus(codes.Error, err.Error())
}

// RunReplayed implements workflow.Observer.
func (o *Observer) RunReplayed(run *workflow.RunInfo, events int, took time.Duration) {
	now := time.Now()
	_, span := o.tracer.Start(within(context.Background(), run), "replay", trace.WithTimestamp(now.Add(-took)),
		attributesOf(run, attribute.Int("cay.events", events)))
	span.End(trace.WithTimestamp(now))
}

// RunDiverged implements workflow.Observer.
func (o *Observer) RunDiverged(run *workflow.RunInfo, err *workflow.DivergenceError) {
	_, span := o.tracer.Start(within(context.Background(), run), "divergence", attributesOf(run))
	fail(span, err)
	span.End()
}

// RunEnded implements workflow.Observer.
func (o *Observer) RunEnded(run *workflow.RunInfo, err error) {
	id, flags := traceOf(run)
	ctx := context.WithValue(context.Background(), idsKey{}, ids{id, spanOf(run.ID)})
	switch parent, started := parentOf(run); {
	case started:
		ctx = trace.ContextWithRemoteSpanContext(ctx, parent)
	case run.Parent != "":
		ctx = trace.ContextWithRemoteSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{
			TraceID: id, SpanID: spanOf(run.Parent), TraceFlags: flags, Remote: true,
		}))
	}
	begun := run.StartedAt
	if begun == 0 {
		begun = run.CreatedAt
	}
	_, span := o.tracer.Start(ctx, run.Workflow, trace.WithTimestamp(time.UnixMilli(begun)), attributesOf(run,
		attribute.String("cay.run.status", string(run.Status)), attribute.Int64("cay.run.created_at_ms", run.CreatedAt)))
	if err != nil {
		fail(span, err)
	}
	span.End(trace.WithTimestamp(time.UnixMilli(max(run.CompletedAt, begun))))
}

// Generator generates ids of traces and spans. It is an IDGenerator of the OpenTelemetry
// SDK.
type Generator struct{}

// IDs returns a Generator: ids of runs are derived from the run, all other ids are
// random.
func IDs() Generator { return Generator{} }

type idsKey struct{}

type ids struct {
	trace trace.TraceID
	span  trace.SpanID
}

// NewIDs returns the ids of a span that begins a trace.
func (Generator) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	if want, ok := ctx.Value(idsKey{}).(ids); ok {
		return want.trace, want.span
	}
	var id trace.TraceID
	for !id.IsValid() {
		binary.NativeEndian.PutUint64(id[:8], rand.Uint64())
		binary.NativeEndian.PutUint64(id[8:], rand.Uint64())
	}
	return id, randomSpan()
}

// NewSpanID returns the id of a span in a trace.
func (Generator) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	if want, ok := ctx.Value(idsKey{}).(ids); ok {
		return want.span
	}
	return randomSpan()
}

func randomSpan() (id trace.SpanID) {
	for !id.IsValid() {
		binary.NativeEndian.PutUint64(id[:], rand.Uint64())
	}
	return id
}
