// Package otlp exports spans to an OpenTelemetry collector, over HTTP and in
// Protocol Buffers, as the standard environment variables say. The meaning of the
// spans does not matter.
//
// OpenTelemetry's own exporter for HTTP links all of gRPC; package otlp does not. A
// collector beside the daemon can translate to gRPC.
package otlp

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	collector "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/cayhq/cay"
)

// defaultTimeout is the specification's default timeout of an export.
const defaultTimeout = 10 * time.Second

// FromEnv returns a provider of tracers that exports spans to the collector in the
// environment, nil if there is none: OTEL_EXPORTER_OTLP_ENDPOINT or
// OTEL_EXPORTER_OTLP_TRACES_ENDPOINT. It also obeys the variables for headers,
// timeouts, samplers, batches, the service's name and its attributes. Spans wait in
// a bounded queue, and are dropped when the queue is full. The caller must shut the
// provider down. Errors: invalid, with the variable's name.
func FromEnv(env func(string) string, log *slog.Logger) (*sdktrace.TracerProvider, error) {
	if env("OTEL_SDK_DISABLED") == "true" || env("OTEL_TRACES_EXPORTER") == "none" {
		return nil, nil
	}
	get := func(name string) (value, from string) {
		for _, from = range []string{"OTEL_EXPORTER_OTLP_TRACES_" + name, "OTEL_EXPORTER_OTLP_" + name} {
			if value = strings.TrimSpace(env(from)); value != "" {
				return value, from
			}
		}
		return "", from
	}
	at, from := get("ENDPOINT")
	if at == "" {
		return nil, nil
	}
	u, err := url.Parse(at)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, cay.Errorf(cay.Invalid, "%s is no address such as http://127.0.0.1:4318", from)
	}
	if from == "OTEL_EXPORTER_OTLP_ENDPOINT" {
		u = u.JoinPath("v1", "traces")
	}
	if p, from := get("PROTOCOL"); p != "" && p != "http/protobuf" {
		return nil, cay.Errorf(cay.Invalid, "%s is %q; only http/protobuf is spoken", from, p)
	}
	e := &Exporter{url: u.String(), head: http.Header{}, log: log, client: &http.Client{Timeout: defaultTimeout}}
	if v, from := get("TIMEOUT"); v != "" {
		ms, err := strconv.ParseUint(v, 10, 31)
		if err != nil || ms == 0 {
			return nil, cay.Errorf(cay.Invalid, "%s is %q; it must be milliseconds", from, v)
		}
		e.client.Timeout = time.Duration(ms) * time.Millisecond
	}
	list, from := get("HEADERS")
	for pair := range strings.SplitSeq(list, ",") {
		if pair = strings.TrimSpace(pair); pair == "" {
			continue
		}
		name, value, ok := strings.Cut(pair, "=")
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if name = strings.TrimSpace(name); !ok || err != nil || name == "" {
			return nil, cay.Errorf(cay.Invalid, "%s is no list such as name=value,name=value", from) // its values may be secret
		}
		e.head.Set(name, value)
	}
	what, err := resource.New(context.Background(), resource.WithAttributes(attribute.String("service.name", "cay"), attribute.String("service.version", cay.Version())),
		resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	return sdktrace.NewTracerProvider(sdktrace.WithBatcher(e), sdktrace.WithResource(what)), nil
}

// Exporter sends spans to a collector. The beginning and the end of a failure are
// logged; spans that could not be sent are lost.
type Exporter struct {
	url     string
	head    http.Header
	client  *http.Client
	log     *slog.Logger
	failing atomic.Bool
}

var _ sdktrace.SpanExporter = (*Exporter)(nil)

// ExportSpans implements sdktrace.SpanExporter. It never returns an error: the
// caller could do nothing about it.
func (e *Exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.send(ctx, spans)
	switch {
	case err != nil && !e.failing.Swap(true):
		e.log.WarnContext(ctx, "spans cannot be exported", "spans", len(spans), "error", err)
	case err == nil && e.failing.Swap(false):
		e.log.InfoContext(ctx, "spans can be exported again")
	}
	return nil
}

func (e *Exporter) send(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	body, err := proto.Marshal(&collector.ExportTraceServiceRequest{ResourceSpans: encode(spans)})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	for name, values := range e.head {
		req.Header[name] = values
	}
	req.Header.Set("Content-Type", "application/x-protobuf")
	req.Header.Set("User-Agent", "cay/"+cay.Version())
	resp, err := e.client.Do(req)
	if err != nil {
		if u, ok := err.(*url.Error); ok { // its text has the address, which may have a password
			err = u.Err
		}
		return err
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10) // so that the connection is used again
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("the collector answered with the status %d", resp.StatusCode)
	}
	return nil
}

// Shutdown implements sdktrace.SpanExporter.
func (e *Exporter) Shutdown(context.Context) error {
	e.client.CloseIdleConnections()
	return nil
}
