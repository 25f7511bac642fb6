package otlp

import (
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	common "go.opentelemetry.io/proto/slim/otlp/common/v1"
	resource "go.opentelemetry.io/proto/slim/otlp/resource/v1"
	trace "go.opentelemetry.io/proto/slim/otlp/trace/v1"
)

// encode groups spans by the tracer that made them. All have the same resource.
func encode(spans []sdktrace.ReadOnlySpan) []*trace.ResourceSpans {
	if len(spans) == 0 {
		return nil
	}
	all := &trace.ResourceSpans{
		Resource:  &resource.Resource{Attributes: attributes(spans[0].Resource().Attributes())},
		SchemaUrl: spans[0].Resource().SchemaURL(),
	}
	scopes := make(map[string]*trace.ScopeSpans)
	for _, s := range spans {
		by := s.InstrumentationScope()
		scope := scopes[by.Name]
		if scope == nil {
			scope = &trace.ScopeSpans{Scope: &common.InstrumentationScope{Name: by.Name, Version: by.Version}, SchemaUrl: by.SchemaURL}
			scopes[by.Name] = scope
			all.ScopeSpans = append(all.ScopeSpans, scope)
		}
		scope.Spans = append(scope.Spans, span(s))
	}
	return []*trace.ResourceSpans{all}
}

func span(s sdktrace.ReadOnlySpan) *trace.Span {
	ctx, parent := s.SpanContext(), s.Parent()
	id, of := ctx.SpanID(), ctx.TraceID()
	out := &trace.Span{
		TraceId: of[:], SpanId: id[:], TraceState: ctx.TraceState().String(), Flags: uint32(ctx.TraceFlags()),
		Name: s.Name(), Kind: trace.Span_SpanKind(s.SpanKind()), // the numbers are the same
		StartTimeUnixNano: uint64(s.StartTime().UnixNano()), EndTimeUnixNano: uint64(s.EndTime().UnixNano()),
		Attributes: attributes(s.Attributes()), DroppedAttributesCount: uint32(s.DroppedAttributes()),
	}
	if parent.HasSpanID() {
		p := parent.SpanID()
		out.ParentSpanId = p[:]
	}
	for _, e := range s.Events() {
		out.Events = append(out.Events, &trace.Span_Event{Name: e.Name, TimeUnixNano: uint64(e.Time.UnixNano()), Attributes: attributes(e.Attributes)})
	}
	switch st := s.Status(); st.Code {
	case codes.Error:
		out.Status = &trace.Status{Code: trace.Status_STATUS_CODE_ERROR, Message: st.Description}
	case codes.Ok:
		out.Status = &trace.Status{Code: trace.Status_STATUS_CODE_OK}
	}
	return out
}

func attributes(all []attribute.KeyValue) []*common.KeyValue {
	out := make([]*common.KeyValue, 0, len(all))
	for _, kv := range all {
		out = append(out, &common.KeyValue{Key: string(kv.Key), Value: value(kv.Value)})
	}
	return out
}

func value(v attribute.Value) *common.AnyValue {
	switch v.Type() {
	case attribute.BOOL:
		return &common.AnyValue{Value: &common.AnyValue_BoolValue{BoolValue: v.AsBool()}}
	case attribute.INT64:
		return &common.AnyValue{Value: &common.AnyValue_IntValue{IntValue: v.AsInt64()}}
	case attribute.FLOAT64:
		return &common.AnyValue{Value: &common.AnyValue_DoubleValue{DoubleValue: v.AsFloat64()}}
	case attribute.STRINGSLICE:
		list := new(common.ArrayValue)
		for _, s := range v.AsStringSlice() {
			list.Values = append(list.Values, &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: s}})
		}
		return &common.AnyValue{Value: &common.AnyValue_ArrayValue{ArrayValue: list}}
	}
	return &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: v.String()}} // other lists as JSON
}
