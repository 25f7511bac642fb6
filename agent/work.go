package agent

import (
	"context"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/workflow"
)

// Work describes a Call that has ended to the observers of the run: see workflow.Tell.
// It has nothing of the conversation.
type Work struct {
	ID string // within the run
	// Above is the ID of the agent that called this agent as a tool, and Call the id of
	// that call; both are empty if no agent did.
	Above, Call  string
	Agent, Model string
	Begun, Ended time.Time
	FinishReason FinishReason // empty if it failed
	Usage        Usage
	Failed       string // the code of the error it ended with; empty: none
}

// ToolWork describes a call of a workflow tool that has ended. Observers get it like
// Work.
type ToolWork struct {
	Work         string // ID of the calling agent's Work
	Call, Tool   string
	Begun, Ended time.Time
	Failed       string
}

// Tracer traces the calls of models and of tools, in the steps that make them. cay
// calls the returned function when the call has ended. agent/trace has a Tracer. A
// Tracer must not change the arguments; they contain the conversation, which does not
// belong in traces.
type Tracer interface {
	// Model is called at a call of a model; work is the ID of the Work of the calling
	// agent.
	Model(ctx context.Context, work string, c *ModelCall) (context.Context, func(ModelOutcome))
	Tool(ctx context.Context, work string, c ToolCall) (context.Context, func(failed string))
}

// ModelOutcome is how a call of a model ended.
type ModelOutcome struct {
	FinishReason FinishReason
	Usage        Usage
	GenerationID string
	Failed       string // the code of the error; empty: none
}

type tracerKey struct{}

// WithTracer returns a context whose steps report their calls to a Tracer.
func WithTracer(ctx context.Context, t Tracer) context.Context {
	return context.WithValue(ctx, tracerKey{}, t)
}

func traceModel(ctx context.Context, work string, c *ModelCall) (context.Context, func(*answer, error)) {
	t, ok := ctx.Value(tracerKey{}).(Tracer)
	if !ok {
		return ctx, func(*answer, error) {}
	}
	ctx, done := t.Model(ctx, work, c)
	return ctx, func(a *answer, err error) {
		o := ModelOutcome{Failed: kindOf(err)}
		if a != nil {
			o.FinishReason, o.Usage, o.GenerationID = a.FinishReason, a.Usage, a.GenerationID
		}
		done(o)
	}
}

func traceTool(ctx context.Context, work string, c ToolCall) (context.Context, func(error)) {
	t, ok := ctx.Value(tracerKey{}).(Tracer)
	if !ok {
		return ctx, func(error) {}
	}
	ctx, done := t.Tool(ctx, work, c)
	return ctx, func(err error) { done(kindOf(err)) }
}

// errPanicked is the error of a tool that panicked.
var errPanicked error = cay.Errorf(cay.Internal, "the tool panicked")

// kindOf returns an error's code for traces; the error's text may contain private data.
func kindOf(err error) string { return string(cay.CodeOf(err)) }

// ended tells the observers of the run how a Call ended.
func (l *loop) ended(ctx workflow.Context, r *Result, err error) {
	w := l.work
	w.Ended, w.Usage, w.Failed = ctx.Now(), l.usage, kindOf(err)
	if r != nil {
		w.FinishReason = r.FinishReason
	}
	workflow.Tell(ctx, &w)
}
