package gatewayd

import (
	"context"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Spans follow OpenTelemetry's conventions for generative AI: each call has a span, which
// continues the trace in the client's traceparent, with a child span per provider call,
// whose traceparent the provider gets. The spans in this file have no content: no prompt,
// no answer, no error message; see contents for content.

// w3c reads and writes trace headers.
var w3c propagation.TraceContext

// traced starts the span of a call, if tracing is on.
func (c *call) traced() {
	if c.e.cfg.Tracer == nil || c.rt.kind == "" {
		return
	}
	ctx := w3c.Extract(context.WithoutCancel(c.ctx), propagation.HeaderCarrier(c.r.Header))
	c.spanCtx, c.span = c.e.cfg.Tracer.Start(ctx, operation(c.rt.kind), trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(c.begun))
}

// endSpan ends the span of a call, after the record was written.
func (c *call) endSpan() {
	if c.span == nil {
		return
	}
	defer c.span.End()
	if f := c.failure; f != nil {
		c.span.SetStatus(codes.Error, string(f.Kind))
		c.span.SetAttributes(attribute.String("error.type", string(f.Kind)))
	}
	r := &c.record
	if r.Status == "" || !c.span.IsRecording() { // no record, because the caller is unknown
		return
	}
	op := operation(r.Kind)
	c.span.SetName(op + " " + r.Model)
	all := []attribute.KeyValue{
		attribute.String("gen_ai.operation.name", op), attribute.String("gen_ai.request.model", r.Model),
		attribute.Int64("gen_ai.usage.input_tokens", r.Tokens.Input), attribute.Int64("gen_ai.usage.output_tokens", r.Tokens.Output),
		attribute.Int("http.response.status_code", r.HTTPStatus),
		attribute.String("cay.generation.id", r.ID), attribute.String("cay.project.id", r.ProjectID), attribute.String("cay.key.id", r.KeyID),
		attribute.String("cay.status", string(r.Status)),
	}
	for name, v := range map[attribute.Key]string{
		"gen_ai.provider.name": conventional(r.Provider), "gen_ai.response.model": r.Served, "gen_ai.conversation.id": r.Session,
	} {
		if v != "" {
			all = append(all, name.String(v))
		}
	}
	if r.FinishReason != "" {
		all = append(all, attribute.StringSlice("gen_ai.response.finish_reasons", []string{r.FinishReason}))
	}
	if n := r.Tokens.CacheRead; n > 0 {
		all = append(all, attribute.Int64("gen_ai.usage.cache_read.input_tokens", n))
	}
	if n := r.Tokens.CacheWrite; n > 0 {
		all = append(all, attribute.Int64("gen_ai.usage.cache_creation.input_tokens", n))
	}
	if r.Cost != nil {
		all = append(all, attribute.Float64("cay.cost", r.Cost.Dollars()))
	}
	if !c.first.IsZero() {
		all = append(all, attribute.Float64("cay.time_to_first_token", c.first.Sub(c.begun).Seconds()))
	}
	c.span.SetAttributes(append(all, c.contents()...)...)
}

// beginSpan starts the span of an attempt.
func (a *attempt) beginSpan() {
	c := a.c
	if c.span == nil {
		return
	}
	op := operation(c.rt.kind)
	a.spanCtx, a.span = c.e.cfg.Tracer.Start(c.spanCtx, op+" "+a.record.ProviderModel, trace.WithSpanKind(trace.SpanKindClient), trace.WithTimestamp(a.record.StartedAt),
		trace.WithAttributes(attribute.String("gen_ai.operation.name", op), attribute.String("gen_ai.provider.name", conventional(a.record.Provider)),
			attribute.String("gen_ai.request.model", a.record.ProviderModel), attribute.Bool("cay.byok", a.record.BYOK)))
}

// propagate sends the trace to a provider: the client's, or the attempt's span in it.
func (a *attempt) propagate(h http.Header) {
	if a.span != nil {
		w3c.Inject(a.spanCtx, propagation.HeaderCarrier(h))
		return
	}
	for _, name := range [...]string{"Traceparent", "Tracestate"} {
		if v := a.c.r.Header[name]; v != nil {
			h[name] = v
		}
	}
}

// endSpan ends the span of an attempt.
func (a *attempt) endSpan(err *hub.Error, now time.Time) {
	if a.span == nil {
		return
	}
	if a.record.Status != 0 {
		a.span.SetAttributes(attribute.Int("http.response.status_code", a.record.Status))
	}
	if a.record.ResponseID != "" {
		a.span.SetAttributes(attribute.String("gen_ai.response.id", a.record.ResponseID))
	}
	if err != nil {
		a.span.SetStatus(codes.Error, string(err.Kind))
		a.span.SetAttributes(attribute.String("error.type", string(err.Kind)))
	}
	a.span.End(trace.WithTimestamp(now))
}

// operation returns the conventions' name for the operation of a kind of model.
func operation(kind string) string {
	switch kind {
	case kindLanguage:
		return "chat"
	case kindEmbedding:
		return "embeddings"
	case kindImage:
		return "generate_content"
	}
	return kind
}

// conventional returns the conventions' name of a provider, the provider's own name if
// there is none.
func conventional(provider string) string {
	if name, ok := conventionalNames[provider]; ok {
		return name
	}
	return provider
}

var conventionalNames = map[string]string{
	"azure": "azure.ai.openai", "bedrock": "aws.bedrock", "gemini": "gcp.gemini", "google": "gcp.gemini", "vertex": "gcp.vertex_ai", "mistral": "mistral_ai", "xai": "x_ai",
}
