package agent

import (
	"context"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/workflow"
)

// Span describes a Call that has ended to the observers of the run: see workflow.Emit.
// It has nothing of the conversation.
type Span struct {
	ID string // within the run
	// ParentID is the ID of the Span of the agent that called this agent as a tool, and
	// ParentCall the id of that call; both are empty if no agent did.
	ParentID, ParentCall string
	Agent, Model         string
	StartedAt, EndedAt   time.Time
	FinishReason         FinishReason // empty if it failed
	Usage                Usage
	ErrorCode            string // the code of the error that the Call ended with; empty: none
}

// ToolSpan describes a call of a workflow tool that has ended. Observers get it like
// Span.
type ToolSpan struct {
	ParentID           string // ID of the Span of the calling agent
	CallID, Tool       string
	StartedAt, EndedAt time.Time
	ErrorCode          string // as in Span
}

// Tracer traces the calls of models and of tools, in the steps that make them. cay
// calls the returned function when the call has ended. agent/trace has a Tracer. A
// Tracer must not change the arguments; they contain the conversation, which does not
// belong in traces.
type Tracer interface {
	// StartModelCall is called when a call of a model begins; span is the ID of the Span
	// of the calling agent.
	StartModelCall(ctx context.Context, span string, c *ModelCall) (context.Context, func(ModelOutcome))
	StartToolCall(ctx context.Context, span string, c ToolCall) (context.Context, func(errorCode string))
}

// ModelOutcome is how a call of a model ended.
type ModelOutcome struct {
	FinishReason FinishReason
	Usage        Usage
	GenerationID string
	ErrorCode    string // the code of the error; empty: none
}

type tracerKey struct{}

// WithTracer returns a context whose steps report their calls to a Tracer.
func WithTracer(ctx context.Context, t Tracer) context.Context {
	return context.WithValue(ctx, tracerKey{}, t)
}

func traceModel(ctx context.Context, span string, c *ModelCall) (context.Context, func(*answer, error)) {
	t, ok := ctx.Value(tracerKey{}).(Tracer)
	if !ok {
		return ctx, func(*answer, error) {}
	}
	ctx, done := t.StartModelCall(ctx, span, c)
	return ctx, func(a *answer, err error) {
		o := ModelOutcome{ErrorCode: errorCode(err)}
		if a != nil {
			o.FinishReason, o.Usage, o.GenerationID = a.FinishReason, a.Usage, a.GenerationID
		}
		done(o)
	}
}

func traceTool(ctx context.Context, span string, c ToolCall) (context.Context, func(error)) {
	t, ok := ctx.Value(tracerKey{}).(Tracer)
	if !ok {
		return ctx, func(error) {}
	}
	ctx, done := t.StartToolCall(ctx, span, c)
	return ctx, func(err error) { done(errorCode(err)) }
}

// errPanicked is the error of a tool that panicked.
var errPanicked error = cay.Errorf(cay.Internal, "the tool panicked")

// errorCode returns an error's code for traces; the error's text may contain private data.
func errorCode(err error) string { return string(cay.CodeOf(err)) }

// ended tells the observers of the run how a Call ended.
func (l *loop) ended(ctx workflow.Context, r *Result, err error) {
	s := l.span
	s.EndedAt, s.Usage, s.ErrorCode = ctx.Now(), l.usage, errorCode(err)
	if r != nil {
		s.FinishReason = r.FinishReason
	}
	workflow.Emit(ctx, &s)
}
