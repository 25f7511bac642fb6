package responses

import (
	"bytes"
	"encoding/json"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/sse"
)

// Tap watches a passed answer.
func (*Format) Tap(t *hub.Target, stream bool) hub.Tap {
	if stream {
		p := &streamTap{target: t, split: sse.NewSplitter(maxEvent)}
		p.event = p.take
		return p
	}
	return &wholeTap{target: t}
}

// wholeTap collects the body, and reads it at its end.
type wholeTap struct {
	target *hub.Target
	body   []byte
	over   bool
}

func (p *wholeTap) Write(b []byte) {
	if p.over = p.over || len(p.body)+len(b) > maxWhole; !p.over {
		p.body = append(p.body, b...)
	}
}

func (p *wholeTap) Begun() bool { return len(p.body) > 0 }

func (p *wholeTap) End() hub.Seen {
	seen := hub.Seen{OutputBytes: int64(len(p.body))}
	if p.over || !gjson.ValidBytes(p.body) {
		return seen
	}
	if r := gjson.ParseBytes(p.body); isResponse(r) { // a copy of the body, so only once
		seen.Complete = true
		last(p.target, r, &seen, new(ran))
	}
	return seen
}

// isResponse reports whether r has members of a Response object.
func isResponse(r gjson.Result) bool {
	return r.Get("output").IsArray() || r.Get("status").Type == gjson.String || r.Get("error").IsObject()
}

// last reads the final Response object.
func last(t *hub.Target, r gjson.Result, seen *hub.Seen, before *ran) {
	resp, ok := headOf(r)
	if !ok {
		return
	}
	outcome, counted, d := hub.Stop, new(ran), newDecoder(t)
	r.Get("output").ForEach(func(_, it gjson.Result) bool {
		counted.json(it)
		switch it.Get("type").Str {
		case "function_call", "custom_tool_call":
			if it.Get("type").Str == "function_call" || !d.hostedCustom(it.Get("name").Str) {
				outcome = hub.ToolCalls
			} else {
				counted.custom(it.Get("name").Str)
			}
		case "local_shell_call", "apply_patch_call", "computer_call":
			outcome = hub.ToolCalls
		case "shell_call", "tool_search_call":
			if it.Get("environment.type").Str == "" && it.Get("execution").Str != "server" {
				outcome = hub.ToolCalls
			}
		case "message":
			if outcome == hub.Stop && it.Get(`content.#(type=="refusal")`).Exists() {
				outcome = hub.ContentFilter
			}
		}
		return true
	})
	counted.atLeast(before)
	seen.Kept = keptIn(r)
	seen.Response, seen.Usage = resp.metadata(), resp.usage(counted)
	finish, err := resp.finish(t, outcome)
	if err != nil {
		if resp.Status == "in_progress" || resp.Status == "queued" { // a requested background response, not a failure
			seen.Finish = hub.Finish{Reason: hub.OtherReason, Raw: resp.Status}
			return
		}
		e, ok := err.(*hub.Error)
		if ok {
			seen.Err = e
		}
		seen.Finish = hub.Finish{Reason: hub.Failed, Raw: resp.Status}
		return
	}
	seen.Finish = finish
}

// headOf reads a Response object without its items, which may be large; only their types
// matter here.
func headOf(r gjson.Result) (response, bool) {
	var resp response
	ok := true
	r.ForEach(func(name, v gjson.Result) bool {
		var into any
		switch name.Str {
		case "id":
			resp.ID = v.Str
		case "model":
			resp.Model = v.Str
		case "status":
			resp.Status = v.Str
		case "service_tier":
			resp.ServiceTier = v.Str
		case "created_at":
			resp.CreatedAt = json.Number(v.Raw)
		case "error":
			into = &resp.Error
		case "incomplete_details":
			into = &resp.IncompleteDetails
		case "usage":
			into = &resp.Usage
		case "tool_usage":
			into = &resp.ToolUsage
		}
		if into != nil && v.Type != gjson.Null {
			ok = json.Unmarshal([]byte(v.Raw), into) == nil
		}
		return ok
	})
	return resp, ok
}

// streamTap decodes the first and the last event, and counts the bytes of the others.
type streamTap struct {
	target *hub.Target
	split  *sse.Splitter
	event  func(sse.Event)
	seen   hub.Seen
	begun  bool
	ran    ran
	// nonsense: an event was not a JSON object.
	nonsense bool
}

func (p *streamTap) Write(b []byte) { p.split.Write(b, p.event) }
func (p *streamTap) Begun() bool    { return p.begun }
func (p *streamTap) End() hub.Seen  { return p.seen }

// Nonsense reports whether an event was not a JSON object.
func (p *streamTap) Nonsense() bool { return p.nonsense }

// counted records the usage of an unfinished response, if it has one.
func (p *streamTap) counted(r gjson.Result) {
	if r.Get("usage").IsObject() {
		if resp, ok := headOf(r); ok {
			p.seen.Usage = resp.usage(&p.ran)
		}
	}
}

func (p *streamTap) take(e sse.Event) {
	data := bytes.TrimSpace(e.Data)
	if p.seen.Complete || p.nonsense || len(data) == 0 || string(data) == "[DONE]" { // some servers send [DONE]
		return
	}
	if p.nonsense = !hub.ClosedObject(data); p.nonsense {
		return
	}
	kind := string(e.Name)
	if kind == "" {
		kind = gjson.GetBytes(e.Data, "type").Str
	}
	switch kind {
	case "response.created":
		r := gjson.GetBytes(e.Data, "response")
		p.seen.Response.ID, p.seen.Response.Model = r.Get("id").Str, r.Get("model").Str
		p.counted(r)
	case "response.in_progress", "response.queued":
		p.counted(gjson.GetBytes(e.Data, "response"))
	case "response.completed", "response.incomplete", "response.failed", "response.cancelled":
		if !gjson.ValidBytes(e.Data) {
			return
		}
		// The final response may lack the items, so the outcome from their events is
		// kept.
		outcome, id := p.seen.Finish.Reason, p.seen.Response.ID
		last(p.target, gjson.GetBytes(e.Data, "response"), &p.seen, &p.ran)
		if p.seen.Finish.Reason == hub.Stop && outcome != "" {
			p.seen.Finish.Reason = outcome
		}
		if id != "" { // some servers give it another id in every event
			p.seen.Response.ID = id
		}
		p.seen.Complete, p.begun = true, true
	case "error":
		var wire event
		if json.Unmarshal(e.Data, &wire) != nil {
			return
		}
		from := wire.Error
		if from == nil {
			from = &errorBody{Message: wire.Message, Code: wire.Code, Param: wire.Param}
		}
		p.seen.Err = fromEvent(p.target, from)
		p.seen.Finish = hub.Finish{Reason: hub.Failed}
	case "response.output_item.done":
		p.begun = true
		item := gjson.GetBytes(e.Data, "item")
		p.ran.json(item)
		switch item.Get("type").Str {
		case "function_call":
			p.seen.Finish.Reason = hub.ToolCalls
		case "custom_tool_call":
			if d, name := newDecoder(p.target), item.Get("name").Str; !d.hostedCustom(name) {
				p.seen.Finish.Reason = hub.ToolCalls
			} else {
				p.ran.custom(name)
			}
		}
	case "response.output_item.added", "response.content_part.added", "response.content_part.done", "response.output_text.done",
		"response.function_call_arguments.done", "response.reasoning_summary_part.added":
		p.begun = true
	default:
		p.begun = true
		if d := gjson.GetBytes(e.Data, "delta"); d.Type == gjson.String {
			p.seen.OutputBytes += int64(len(d.Str))
		}
	}
}
