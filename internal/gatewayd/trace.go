package gatewayd

import (
	"context"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/capture"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/request"
)

// Spans follow OpenTelemetry's conventions for generative AI: each call has a span, which
// continues the trace in the client's traceparent, with a child span per provider call,
// whose traceparent the provider gets. The spans in this file have no content: no prompt,
// no answer, no error message; see contents for content.

// w3c reads and writes trace headers.
var w3c propagation.TraceContext

// callSpan is the span of a call; span is nil without tracing.
type callSpan struct {
	span  trace.Span
	ctx   context.Context // of span
	texts *capture.Rules  // for the texts in the span, nil if it has none
}

// startSpan starts the span of a call, if tracing is on.
func (e *Engine) startSpan(ctx context.Context, rq *request.Request, rules *capture.Rules) (s callSpan) {
	if e.cfg.Tracer == nil || rq.Route.Kind == "" {
		return s
	}
	ctx = w3c.Extract(context.WithoutCancel(ctx), propagation.HeaderCarrier(rq.HTTP.Header))
	s.ctx, s.span = e.cfg.Tracer.Start(ctx, operation(rq.Route.Kind), trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(rq.Begun))
	if rules != nil && rules.Spans && rq.Route.Kind == kindLanguage && rq.Route.Surface != nil {
		s.texts = rules
	}
	return s
}

// end ends the span of a call, after its record r was written. last is the last attempt,
// and served is the one that served the call; either may be nil.
func (s *callSpan) end(cl *client, r *gateway.Request, failure *hub.Error, last, served *exchange) {
	span := s.span
	if span == nil {
		return
	}
	defer span.End()
	if f := failure; f != nil {
		span.SetStatus(codes.Error, string(f.Kind))
		span.SetAttributes(attribute.String("error.type", string(f.Kind)))
	}
	if r.Status == "" || !span.IsRecording() { // no record, because the caller is unknown
		return
	}
	op := operation(r.Kind)
	span.SetName(op + " " + r.Model)
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
	if served != nil && !served.first.IsZero() {
		all = append(all, attribute.Float64("cay.time_to_first_token", served.first.Sub(cl.rq.Begun).Seconds()))
	}
	span.SetAttributes(append(all, s.contents(cl, r, last)...)...)
}

// attemptSpan is the span of an attempt; span is nil without tracing.
type attemptSpan struct {
	span trace.Span
	ctx  context.Context // of span
}

// attempt starts the span of an attempt with a record, below the call's.
func (s *callSpan) attempt(t trace.Tracer, kind string, r *gateway.Attempt) (a attemptSpan) {
	if s.span == nil {
		return a
	}
	op := operation(kind)
	a.ctx, a.span = t.Start(s.ctx, op+" "+r.ProviderModel, trace.WithSpanKind(trace.SpanKindClient), trace.WithTimestamp(r.StartedAt),
		trace.WithAttributes(attribute.String("gen_ai.operation.name", op), attribute.String("gen_ai.provider.name", conventional(r.Provider)),
			attribute.String("gen_ai.request.model", r.ProviderModel), attribute.Bool("cay.byok", r.BYOK)))
	return a
}

// propagate sends the trace to a provider: the client's, or the attempt's span in it.
func (s *attemptSpan) propagate(client, provider http.Header) {
	if s.span != nil {
		w3c.Inject(s.ctx, propagation.HeaderCarrier(provider))
		return
	}
	for _, name := range [...]string{"Traceparent", "Tracestate"} {
		if v := client[name]; v != nil {
			provider[name] = v
		}
	}
}

// end ends the span of an attempt.
func (s *attemptSpan) end(r *gateway.Attempt, err *hub.Error, now time.Time) {
	if s.span == nil {
		return
	}
	if r.Status != 0 {
		s.span.SetAttributes(attribute.Int("http.response.status_code", r.Status))
	}
	if r.ResponseID != "" {
		s.span.SetAttributes(attribute.String("gen_ai.response.id", r.ResponseID))
	}
	if err != nil {
		s.span.SetStatus(codes.Error, string(err.Kind))
		s.span.SetAttributes(attribute.String("error.type", string(err.Kind)))
	}
	s.span.End(trace.WithTimestamp(now))
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
