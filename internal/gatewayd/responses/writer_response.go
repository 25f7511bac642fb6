package responses

import (
	"encoding/json"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

func (w *writer) finished(e *hub.Event) {
	w.close()
	status, incomplete := "completed", ""
	switch e.Finish.Reason {
	case hub.Length:
		status, incomplete = "incomplete", "max_output_tokens"
	case hub.ContentFilter:
		if !w.refusal() {
			status, incomplete = "incomplete", "content_filter"
		}
	case hub.Failed:
		w.failed(&hub.Error{Kind: hub.UpstreamFailed, Message: "the model could not complete the answer: " + hub.Redact(e.Finish.Raw)})
		return
	}
	members := object{"usage": writeUsage(e.Usage)}
	if incomplete != "" {
		members["incomplete_details"] = object{"reason": incomplete}
	}
	if e.Usage != nil && e.Usage.Tier != "" {
		members["service_tier"] = e.Usage.Tier
	}
	w.final = w.object(status, members, e.Options)
	w.emit("response."+status, "response", json.RawMessage(w.final))
}

func (w *writer) refusal() bool {
	for _, raw := range w.output {
		var it item
		if json.Unmarshal(raw, &it) == nil && it.Type == "message" {
			for _, c := range it.contents() {
				if c.Type == "refusal" {
					return true
				}
			}
		}
	}
	return false
}

func (w *writer) failed(e *hub.Error) {
	w.emit("error", "code", errorCode(e), "message", e.Message, "param", nullable(e.Param), "error", clientError(e))
	w.final = w.object("failed", object{"error": object{"code": errorCode(e), "message": e.Message}}, nil)
	w.emit("response.failed", "response", json.RawMessage(w.final))
}

func nullable(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func writeUsage(u *hub.Usage) any {
	if u == nil {
		return nil
	}
	in := object{"cached_tokens": hub.Count(u.CacheRead)}
	if u.CacheWrite != nil {
		in["cache_write_tokens"] = *u.CacheWrite
	}
	return object{
		"input_tokens": hub.Count(u.Input), "input_tokens_details": in,
		"output_tokens": hub.Count(u.Output), "output_tokens_details": object{"reasoning_tokens": hub.Count(u.Reasoning)},
		"total_tokens": hub.Count(u.Input) + hub.Count(u.Output),
	}
}

// object returns the Response object, including the request's parameters.
func (w *writer) object(status string, members object, options hub.Options) json.RawMessage {
	created := w.response.Created
	if created.IsZero() {
		created = w.now
	}
	o := object{
		"id": w.answer.ID, "object": "response", "created_at": created.Unix(), "status": status, "model": w.answer.Model,
		"output": w.items(), "error": nil, "incomplete_details": nil, "instructions": nil, "max_output_tokens": nil,
		"parallel_tool_calls": true, "previous_response_id": nil, "store": false, "temperature": nil, "top_p": nil,
		"text": object{"format": object{"type": "text"}}, "tool_choice": "auto", "tools": none, "truncation": "disabled",
		"reasoning": object{"effort": nil, "summary": nil}, "usage": nil, "user": nil, "metadata": object{}, "background": false,
	}
	if w.answer.Call != nil {
		echo(o, w.answer.Call)
	}
	for name, v := range members {
		o[name] = v
	}
	if status != "in_progress" {
		provider := object{}
		for name, v := range options {
			provider[name] = v
		}
		if w.answer.Metadata != nil {
			if raw := w.answer.Metadata(); raw != nil {
				provider["gateway"] = json.RawMessage(raw)
			}
		}
		if len(provider) > 0 {
			o["providerMetadata"] = provider
		}
		if len(w.warnings) > 0 {
			o["warnings"] = warned(w.warnings)
		}
	}
	return hub.MustEncode(o)
}

func warned(all []hub.Warning) []object {
	out := make([]object, len(all))
	for i, warning := range all {
		out[i] = object{"type": warning.Kind, "message": warning.Message}
		if warning.Feature != "" {
			out[i]["feature"] = warning.Feature
		}
	}
	return out
}

// items returns the finished items.
func (w *writer) items() []json.RawMessage {
	all := []json.RawMessage{}
	for _, raw := range w.output {
		if raw != nil {
			all = append(all, raw)
		}
	}
	return all
}

// echo sets the response members that repeat the request.
func echo(o object, c *hub.Call) {
	set := func(name string, present bool, v any) {
		if present {
			o[name] = v
		}
	}
	set("max_output_tokens", c.MaxOutputTokens != nil, c.MaxOutputTokens)
	set("temperature", c.Temperature != nil, c.Temperature)
	set("top_p", c.TopP != nil, c.TopP)
	set("parallel_tool_calls", c.ParallelTools != nil, c.ParallelTools)
	set("user", c.User != "", c.User)
	own := c.Options[optProvider]
	set("metadata", own["metadata"] != nil, own["metadata"])
	reasoning := object{"effort": nil, "summary": nil}
	if c.Effort != "" {
		reasoning["effort"] = c.Effort
	}
	if v := own["reasoningSummary"]; v != nil {
		reasoning["summary"] = v
	}
	o["reasoning"] = reasoning
	// The request's parameters in OpenAI's form.
	w := &callWriter{call: c, target: &hub.Target{Provider: optProvider}, custom: make(map[string]bool), echo: true}
	w.settings()
	if w.tools() == nil && len(w.body.Tools) > 0 {
		o["tools"] = w.body.Tools
		if w.body.ToolChoice != nil {
			o["tool_choice"] = w.body.ToolChoice
		}
	}
	if w.body.Text != nil {
		o["text"] = w.body.Text
	}
	if len(c.Prompt) > 0 {
		var yes bool
		if m := c.Prompt[0]; m.Options.Get(optProvider, optInstructions, &yes) && yes && len(m.Parts) == 1 {
			o["instructions"] = m.Parts[0].Text
		}
	}
}
