package gatewayd

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/guard"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Spans of language model calls contain the texts of prompt and answer, if the operator
// enables it, redacted like captured bodies, in the form of OpenTelemetry's conventions
// for generative AI (gen_ai.input.messages and others). Files are represented by their
// media types only.

const (
	// maxContent is the maximum number of text bytes per span attribute; for all the
	// spans that can wait for export, this is 64 MiB.
	maxContent = 16 << 10
	// maxTranscript is the maximum number of bytes of a passed stream that are collected.
	maxTranscript = 256 << 10
)

// transcript collects the content of an answer for the span.
type transcript struct {
	hub.Collector
	raw []byte // a passed stream
	cut bool   // raw was truncated
}

// result adds a whole answer.
func (s *transcript) result(r *hub.Result) {
	if s == nil {
		return
	}
	events := r.Events()
	for i := range events {
		s.Add(&events[i])
	}
}

// chunk adds a part of a passed stream.
func (s *transcript) chunk(b []byte) {
	if s != nil {
		n := min(len(b), maxTranscript-len(s.raw))
		s.raw, s.cut = append(s.raw, b[:n]...), s.cut || n < len(b)
	}
}

// decode decodes the collected bytes of a passed stream.
func (s *transcript) decode(up hub.Upstream, t *hub.Target) {
	if s == nil || len(s.raw) == 0 {
		return
	}
	read := up.NewReader(t, bytes.NewReader(s.raw))
	for {
		events, err := read.Next()
		for i := range events {
			s.Add(&events[i])
		}
		if err != nil || len(events) == 0 {
			return
		}
	}
}

// contents returns the span's attributes with the texts of a call.
func (s *callSpan) contents(cl *client, r *gateway.Request, last *exchange) []attribute.KeyValue {
	if s.texts == nil || !s.texts.Wants(r.KeyID, r.Model, r.Served) {
		return nil
	}
	w := contents{redact: s.texts.Redact}
	if cl.doc.Call == nil {
		if parsed, err := cl.rq.Route.Surface.ReadCall(cl.rq.HTTP.Header, cl.rq.Raw); err == nil {
			cl.doc.Call = parsed
		}
	}
	if cl.doc.Call != nil {
		var system []any
		var input []any
		w.left = maxContent
		for i := len(cl.doc.Call.Prompt) - 1; i >= 0; i-- { // the last turns are the most relevant
			m := &cl.doc.Call.Prompt[i]
			if parts := w.parts(m.Parts); m.Role == hub.System {
				system = append(parts, system...)
			} else if len(parts) > 0 {
				input = append([]any{map[string]any{"role": string(m.Role), "parts": parts}}, input...)
			}
		}
		w.add("gen_ai.system_instructions", system)
		w.add("gen_ai.input.messages", input)
	}
	if last != nil && last.transcript != nil {
		w.left, w.cut = maxContent, w.cut || last.transcript.cut
		if r, _ := last.transcript.Result(); r != nil && len(r.Content) > 0 {
			w.add("gen_ai.output.messages", []any{map[string]any{"role": "assistant", "parts": w.parts(r.Content), "finish_reason": string(r.Finish.Reason)}})
		}
	}
	if w.cut {
		w.all = append(w.all, attribute.Bool("cay.content.cut", true))
	}
	return w.all
}

// contents builds the JSON of the texts.
type contents struct {
	redact *guard.Redactor
	left   int // bytes of text
	cut    bool
	all    []attribute.KeyValue
}

func (w *contents) add(name string, v []any) {
	if len(v) == 0 {
		return
	}
	if text, err := json.Marshal(v); err == nil { // texts always encode
		w.all = append(w.all, attribute.String(name, string(text)))
	}
}

// text returns a text, redacted and then truncated.
func (w *contents) text(s string) string {
	if w.left <= 0 {
		w.cut = w.cut || s != ""
		return ""
	}
	if !w.redact.Empty() {
		s = string(w.redact.Text([]byte(s)))
	}
	if len(s) > w.left {
		n := w.left
		for n > 0 && !utf8.RuneStart(s[n]) {
			n--
		}
		s, w.cut = s[:n], true
	}
	w.left -= len(s)
	return s
}

func (w *contents) parts(all []hub.Part) []any {
	parts := make([]any, 0, len(all))
	for i := range all {
		if w.left <= 0 {
			w.cut = true
			break
		}
		switch p := &all[i]; p.Kind {
		case hub.TextPart:
			parts = append(parts, map[string]any{"type": "text", "content": w.text(p.Text)})
		case hub.ReasoningPart:
			parts = append(parts, map[string]any{"type": "reasoning", "content": w.text(p.Text)})
		case hub.ToolCallPart:
			parts = append(parts, map[string]any{"type": "tool_call", "id": p.Call.ID, "name": p.Call.Name, "arguments": w.text(p.Call.Input)})
		case hub.ToolResultPart:
			parts = append(parts, map[string]any{"type": "tool_call_response", "id": p.Result.CallID, "response": w.output(&p.Result.Output)})
		case hub.FilePart, hub.ReasoningFilePart:
			parts = append(parts, map[string]any{"type": "file", "mime_type": p.File.MediaType})
		default: // sources, approvals and provider-specific parts
			parts = append(parts, map[string]any{"type": string(p.Kind)})
		}
	}
	return parts
}

func (w *contents) output(o *hub.ToolOutput) any {
	switch {
	case o.JSON != nil:
		return w.text(string(o.JSON))
	case o.Content != nil:
		return w.parts(o.Content)
	}
	return w.text(o.Text)
}
