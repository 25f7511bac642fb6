package otlp_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	collector "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	otlptrace "go.opentelemetry.io/proto/slim/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/leaktest"
	"github.com/cayhq/cay/internal/otlp"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func env(all map[string]string) func(string) string {
	return func(name string) string { return all[name] }
}

// A collector gets the spans.
func TestFromEnv(t *testing.T) {
	t.Parallel()
	var got collector.ExportTraceServiceRequest
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || proto.Unmarshal(body, &got) != nil {
			t.Errorf("it is no export: %q, %v", body, err)
		}
		if r.URL.Path != "/base/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" || r.Header.Get("X-Key") != "a b" {
			t.Errorf("%s %v", r.URL, r.Header)
		}
	}))
	t.Cleanup(srv.Close)
	p, err := otlp.FromEnv(env(map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": srv.URL + "/base/", "OTEL_EXPORTER_OTLP_HEADERS": "x-key=a%20b"}), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	tracer := p.Tracer("scope")
	ctx, outer := tracer.Start(context.Background(), "outer", trace.WithSpanKind(trace.SpanKindServer))
	_, inner := tracer.Start(ctx, "inner", trace.WithAttributes(attribute.Int64("n", 5), attribute.StringSlice("s", []string{"a", "b"}), attribute.Bool("b", true), attribute.Float64("f", 0.5), attribute.String("t", "x")))
	inner.SetStatus(codes.Error, "timeout")
	inner.End()
	outer.End()
	if err := p.Shutdown(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	spans := got.GetResourceSpans()[0].GetScopeSpans()[0].GetSpans()
	if len(spans) != 2 {
		t.Fatalf("got %v", &got)
	}
	in, out := spans[0], spans[1]
	sc := inner.SpanContext()
	if in.Name != "inner" || hex.EncodeToString(in.TraceId) != sc.TraceID().String() || hex.EncodeToString(in.SpanId) != sc.SpanID().String() || !bytes.Equal(in.ParentSpanId, out.SpanId) ||
		out.Kind != otlptrace.Span_SPAN_KIND_SERVER || len(out.ParentSpanId) != 0 || in.Status.Code != otlptrace.Status_STATUS_CODE_ERROR || in.Status.Message != "timeout" ||
		in.StartTimeUnixNano == 0 || in.EndTimeUnixNano < in.StartTimeUnixNano {
		t.Errorf("got %v", &got)
	}
	var all []string
	for _, kv := range in.Attributes {
		all = append(all, strings.ReplaceAll(kv.String(), "  ", " "))
	}
	for _, want := range []string{"int_value:5", `string_value:"b"`, "bool_value:true", "double_value:0.5", `string_value:"x"`} {
		if !strings.Contains(strings.Join(all, " "), want) {
			t.Errorf("%s is missing in %s", want, all)
		}
	}
	found := false
	for _, kv := range got.GetResourceSpans()[0].GetResource().GetAttributes() {
		found = found || kv.Key == "service.name" && kv.Value.GetStringValue() == "cay"
	}
	if !found {
		t.Errorf("the resource is %v", got.GetResourceSpans()[0].GetResource())
	}
}

// A failing collector is logged once, without its address, and does not delay
// callers.
func TestExporter_Fails(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	t.Cleanup(srv.Close)
	var log bytes.Buffer
	p, err := otlp.FromEnv(env(map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": strings.Replace(srv.URL, "http://", "http://u:sesame@", 1) + "/x"}), slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		_, span := p.Tracer("x").Start(context.Background(), "x")
		span.End()
		if err := p.ForceFlush(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := p.Shutdown(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
	if l := log.String(); calls.Load() != 3 || strings.Count(l, "cannot be exported") != 1 || strings.Contains(l, "sesame") {
		t.Errorf("%d calls, %s", calls.Load(), l)
	}
}

func TestFromEnv_Off(t *testing.T) {
	t.Parallel()
	for _, all := range []map[string]string{
		{}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_TRACES_EXPORTER": "none"},
	} {
		if p, err := otlp.FromEnv(env(all), nil); p != nil || err != nil {
			t.Errorf("%v: %v, %v", all, p, err)
		}
	}
	for name, all := range map[string]map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT":       {"OTEL_EXPORTER_OTLP_ENDPOINT": "localhost:4318"},
		"OTEL_EXPORTER_OTLP_PROTOCOL":       {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
		"OTEL_EXPORTER_OTLP_TIMEOUT":        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_EXPORTER_OTLP_TIMEOUT": "10s"},
		"OTEL_EXPORTER_OTLP_TRACES_HEADERS": {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "sesame"},
	} {
		_, err := otlp.FromEnv(env(all), nil)
		var e *cay.Error
		if !errors.As(err, &e) || e.Code != cay.Invalid || !strings.HasPrefix(e.Message, name+" ") || strings.Contains(e.Message, "sesame") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
