package gatewayd

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"

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
	// maxSaid is the maximum number of bytes of a passed stream that are collected.
	maxSaid = 256 << 10
)

// telling reports whether the call's span contains texts.
func (c *call) telling() bool {
	rules := c.v.Capture
	return c.span != nil && rules != nil && rules.Spans && c.rt.kind == kindLanguage && c.rt.surface != nil
}

// said collects the content of an answer for the span.
type said struct {
	hub.Collector
	raw []byte // a passed stream
	cut bool   // raw was truncated
}

// hear starts collecting for a new attempt, if the span contains texts.
func (c *call) hear() {
	c.said = nil
	if c.telling() {
		c.said = new(said)
	}
}

// result adds a whole answer.
func (s *said) result(r *hub.Result) {
	if s == nil {
		return
	}
	events := r.Events()
	for i := range events {
		s.Add(&events[i])
	}
}

// passing adds a part of a passed stream.
func (s *said) passing(b []byte) {
	if s != nil {
		n := min(len(b), maxSaid-len(s.raw))
		s.raw, s.cut = append(s.raw, b[:n]...), s.cut || n < len(b)
	}
}

// passed decodes the collected bytes of a passed stream.
func (s *said) passed(up hub.Upstream, t *hub.Target) {
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

// contents returns the span's attributes.
func (c *call) contents() []attribute.KeyValue {
	rules := c.v.Capture
	if !c.telling() || !rules.Wants(c.record.KeyID, c.record.Model, c.record.Served) {
		return nil
	}
	w := contents{redact: rules.Redact}
	if c.parsed == nil {
		if parsed, err := c.rt.surface.ReadCall(c.r.Header, c.body); err == nil {
			c.parsed = parsed
		}
	}
	if c.parsed != nil {
		var system []any
		var input []any
		w.left = maxContent
		for i := len(c.parsed.Prompt) - 1; i >= 0; i-- { // the last turns are the most relevant
			m := &c.parsed.Prompt[i]
			if parts := w.parts(m.Parts); m.Role == hub.System {
				system = append(parts, system...)
			} else if len(parts) > 0 {
				input = append([]any{map[string]any{"role": string(m.Role), "parts": parts}}, input...)
			}
		}
		w.add("gen_ai.system_instructions", system)
		w.add("gen_ai.input.messages", input)
	}
	if c.said != nil {
		w.left, w.cut = maxContent, w.cut || c.said.cut
		if r, _ := c.said.Result(); r != nil && len(r.Content) > 0 {
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
