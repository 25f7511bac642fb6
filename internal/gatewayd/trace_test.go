package gatewayd_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/cayhq/cay/internal/gatewayd"
	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
)

const parentTrace, parentSpan = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"

// traced sends a chat completions request within a trace.
func (w *world) traced(model string) int {
	w.t.Helper()
	r := w.request(w.t.Context(), dialects[0], model, false)
	r.Header.Set("Traceparent", "00-"+parentTrace+"-"+parentSpan+"-01")
	status, _, _ := w.do(r)
	return status
}

// A call is a span in the client's trace, with a child span per attempt, whose context
// the provider gets; no span contains content.
func TestTrace(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	w := newWorld(t, func(_ *world, c *gatewayd.Config) { c.Tracer = provider.Tracer("test") })
	w.model("lab/m", gatewaytest.Chat)
	if status := w.traced("lab/m"); status != http.StatusOK {
		t.Fatal(status)
	}
	if status := w.traced("lab/none"); status != http.StatusNotFound {
		t.Fatal(status)
	}
	w.record(2)
	w.client.CloseIdleConnections()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w.engine.Close(ctx) // all calls have ended
	ended := spans.Ended()
	if len(ended) != 3 {
		t.Fatalf("there are %d spans", len(ended))
	}
	attempt, call, refused := ended[0], ended[1], ended[2]
	for _, s := range ended {
		if s.SpanContext().TraceID().String() != parentTrace {
			t.Errorf("%s is of another trace", s.Name())
		}
		if all := fmt.Sprint(s.Attributes(), s.Status(), s.Events()); strings.Contains(all, "sesame") || strings.Contains(all, "hello") || strings.Contains(all, secret) {
			t.Errorf("%s has content: %s", s.Name(), all)
		}
	}
	if call.Parent().SpanID().String() != parentSpan || attempt.Parent().SpanID() != call.SpanContext().SpanID() {
		t.Error("spans are not in each other")
	}
	if call.Name() != "chat lab/m" || attempt.Name() != "chat text" || refused.Name() != "chat lab/none" {
		t.Errorf("they are called %q, %q, %q", call.Name(), attempt.Name(), refused.Name())
	}
	r := w.record(1)
	for key, want := range map[attribute.Key]any{
		"gen_ai.operation.name": "chat", "gen_ai.provider.name": gatewaytest.Chat, "gen_ai.request.model": "lab/m", "gen_ai.response.model": "lab/m",
		"gen_ai.usage.input_tokens": r.Tokens.Input, "gen_ai.usage.output_tokens": r.Tokens.Output, "gen_ai.response.finish_reasons": []string{"stop"},
		"http.response.status_code": int64(200), "cay.generation.id": r.ID,
	} {
		if got := of(call, key); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s is %v, want %v", key, got, want)
		}
	}
	if of(refused, "error.type") != "model_not_found" || of(call, "error.type") != nil {
		t.Errorf("error.type is %v and %v", of(refused, "error.type"), of(call, "error.type"))
	}
	up := w.up.Requests()[0].Head.Get("Traceparent")
	if want := "00-" + parentTrace + "-" + attempt.SpanContext().SpanID().String() + "-01"; up != want {
		t.Errorf("the provider is told %q, want %q", up, want)
	}
}

// of returns an attribute of a span, nil if it has not got it.
func of(s sdktrace.ReadOnlySpan, key attribute.Key) any {
	for _, kv := range s.Attributes() {
		if kv.Key == key {
			return kv.Value.AsInterface()
		}
	}
	return nil
}

// Without a tracer the client's traceparent is passed to the provider unchanged.
func TestTrace_Off(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.model("lab/m", gatewaytest.Chat)
	w.traced("lab/m")
	if up := w.up.Requests()[0].Head.Get("Traceparent"); up != "00-"+parentTrace+"-"+parentSpan+"-01" {
		t.Errorf("the provider is told %q", up)
	}
}
