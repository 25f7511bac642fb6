// Package trace reports the work of agents as OpenTelemetry spans, by the conventions
// for generative AI, in addition to the spans of workflow/trace for runs and steps:
//
//	provider := sdktrace.NewTracerProvider(sdktrace.WithIDGenerator(trace.IDs()), ...)
//	worker := workflow.NewWorker(client, workflow.WorkerConfig{
//		Definitions: workflow.Definitions(assistant.Workflow()),
//		Observer:    trace.New(provider),
//	})
//
// A Call of an agent is a span "invoke_agent NAME" in the span of the run, or in the
// span of the agent that calls it as a tool. Its children are a span "chat MODEL" for
// each attempt to ask the model, and a span "execute_tool NAME" for each attempt of a
// tool; they are linked to the spans of the steps that make them. A Call may outlive
// processes, so its span is reported when the Call ends. The span's id is derived
// from the run's, so a span that is reported twice after a crash is still one span.
//
// Spans have names, ids, tokens, costs and the codes of errors, and nothing of the
// conversation: neither prompts, nor answers, nor inputs and outputs of tools, nor
// the texts of errors. (The spans of steps, of workflow/trace, have the texts of
// errors.)
package trace

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/cayhq/cay/agent"
	"github.com/cayhq/cay/workflow"
	"github.com/cayhq/cay/workflow/trace"
)

// Observer reports spans of runs and of agents. Make an Observer with New.
type Observer struct{ *trace.Observer }

var (
	_ workflow.Observer = (*Observer)(nil)
	_ agent.Tracer      = (*Observer)(nil)
)

// New returns an Observer for a provider whose ids are made by IDs.
func New(p oteltrace.TracerProvider) *Observer { return &Observer{trace.New(p)} }

// IDs returns the generator of workflow/trace.
func IDs() trace.Generator { return trace.IDs() }

// The keys of the spans of runs.
func agentKey(id string) string        { return "agent " + id }
func toolKey(span, call string) string { return "tool " + span + " " + call }

// StepStarted implements workflow.Observer.
func (o *Observer) StepStarted(ctx context.Context, run *workflow.RunInfo, step workflow.StepMetadata) context.Context {
	return agent.WithTracer(o.Observer.StepStarted(ctx, run, step), o)
}

// RunEmitted implements workflow.Observer.
func (o *Observer) RunEmitted(run *workflow.RunInfo, value any) {
	switch s := value.(type) {
	case *agent.Span:
		p := trace.Span{
			Key: agentKey(s.ID), Name: "invoke_agent " + s.Agent, StartedAt: s.StartedAt, EndedAt: s.EndedAt, ErrorType: s.ErrorCode,
			Attributes: append(usage(s.Usage),
				attribute.String("gen_ai.operation.name", "invoke_agent"), attribute.String("gen_ai.agent.name", s.Agent),
				attribute.String("gen_ai.request.model", s.Model), attribute.String("gen_ai.conversation.id", run.ID),
				attribute.Int64("cay.model.calls", s.Usage.Calls)),
		}
		if s.ParentID != "" {
			p.ParentKey = toolKey(s.ParentID, s.ParentCall)
		}
		if s.FinishReason != "" {
			p.Attributes = append(p.Attributes, reasons(s.FinishReason))
		}
		o.ReportSpan(run, p)
	case *agent.ToolSpan:
		o.ReportSpan(run, trace.Span{
			Key: toolKey(s.ParentID, s.CallID), ParentKey: agentKey(s.ParentID), Name: "execute_tool " + s.Tool, StartedAt: s.StartedAt, EndedAt: s.EndedAt, ErrorType: s.ErrorCode,
			Attributes: tool(s.Tool, s.CallID),
		})
	}
}

// StartModelCall implements agent.Tracer.
func (o *Observer) StartModelCall(ctx context.Context, span string, c *agent.ModelCall) (context.Context, func(agent.ModelOutcome)) {
	ctx, child := o.StartSpan(ctx, agentKey(span), "chat "+c.Model, oteltrace.WithSpanKind(oteltrace.SpanKindClient), oteltrace.WithAttributes(
		attribute.String("gen_ai.operation.name", "chat"), attribute.String("gen_ai.request.model", c.Model),
		attribute.String("gen_ai.agent.name", c.App), attribute.String("gen_ai.conversation.id", c.Session)))
	return ctx, func(out agent.ModelOutcome) {
		if out.Usage.Calls > 0 {
			child.SetAttributes(append(usage(out.Usage), reasons(out.FinishReason))...)
		}
		if out.GenerationID != "" {
			child.SetAttributes(attribute.String("cay.generation.id", out.GenerationID))
		}
		end(child, out.ErrorCode)
	}
}

// StartToolCall implements agent.Tracer.
func (o *Observer) StartToolCall(ctx context.Context, span string, c agent.ToolCall) (context.Context, func(errorCode string)) {
	ctx, child := o.StartSpan(ctx, agentKey(span), "execute_tool "+c.Name, oteltrace.WithAttributes(tool(c.Name, c.ID)...))
	return ctx, func(errorCode string) { end(child, errorCode) }
}

func end(span oteltrace.Span, failed string) {
	if failed != "" {
		span.SetStatus(codes.Error, failed)
		span.SetAttributes(attribute.String("error.type", failed))
	}
	span.End()
}

func tool(name, call string) []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.String("gen_ai.operation.name", "execute_tool"), attribute.String("gen_ai.tool.name", name),
		attribute.String("gen_ai.tool.call.id", call), attribute.String("gen_ai.tool.type", "function"),
	}
}

func reasons(r agent.FinishReason) attribute.KeyValue {
	return attribute.StringSlice("gen_ai.response.finish_reasons", []string{string(r)})
}

func usage(u agent.Usage) []attribute.KeyValue {
	all := []attribute.KeyValue{
		attribute.Int64("gen_ai.usage.input_tokens", u.Input), attribute.Int64("gen_ai.usage.output_tokens", u.Output),
	}
	if u.CacheRead > 0 {
		all = append(all, attribute.Int64("gen_ai.usage.cache_read.input_tokens", u.CacheRead))
	}
	if u.CacheWrite > 0 {
		all = append(all, attribute.Int64("gen_ai.usage.cache_creation.input_tokens", u.CacheWrite))
	}
	if u.CostKnown {
		all = append(all, attribute.Float64("cay.cost", u.Cost.Dollars()))
	}
	return all
}
