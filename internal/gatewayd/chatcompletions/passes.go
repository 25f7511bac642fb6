package chatcompletions

import (
	"bytes"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Passes reports whether a target accepts a request of this format's client unchanged. It
// returns false if the request uses features that the target's quirks exclude, or
// contains another provider's signatures: then the request must be decoded and encoded
// for the target. Requests that no server of the kind accepts, such as a temperature for
// an OpenAI reasoning model, pass: the client should see the provider's error.
//
// A target without quirks is an unknown server: it gets the request unchanged, unless the
// request has features of the gateway. body must be valid JSON. For most requests, a
// search for a few words decides.
//
// Re-encoding loses no unknown members: ReadCall keeps them, and WriteCall writes them
// again.
func (*Format) Passes(t *hub.Target, body []byte) bool {
	p := passing{t: t, ok: true}
	words := unusual
	if t.Is(OpenAI) {
		words = suspicious
		if reasons(t.Model) {
			words = renamed
		}
	}
	if t.Is(NoUser) || t.Is(StringContent) || mentions(body, words) {
		p.root(gjson.ParseBytes(body))
	}
	return p.ok
}

// mentions reports whether one of the words occurs directly after a quote.
func mentions(body []byte, words []string) bool {
	for {
		i := bytes.IndexByte(body, '"')
		if i < 0 || i+1 == len(body) {
			return false
		}
		body = body[i+1:]
		switch body[0] {
		case 'c', 'd', 'f', 'i', 'm', 'p', 'r', 's', 't':
			for _, word := range words {
				if word[0] == body[0] && len(body) > len(word) && string(body[:len(word)]) == word {
					return true
				}
			}
		}
	}
}

var packedMark, wrappedMark = []byte("__cay_"), []byte(`"cay1.`)

// A request without these words passes: suspicious is for OpenAI models without
// reasoning, renamed for OpenAI reasoning models, unusual for all other servers. Packed
// ids and signatures occur only together with tools and reasoning.
var (
	suspicious = []string{"reasoning", "cache_control", "thinking", "tool", "provider_metadata", "images"}
	renamed    = append([]string{"max_tokens"}, suspicious...)
	unusual    = append([]string{"developer", "max_completion_tokens", "response_format", "stream_options", "seed", "service_tier", "presence_penalty", "frequency_penalty"}, suspicious...)
)

type passing struct {
	t  *hub.Target
	ok bool
}

// not makes the request not pass if the condition holds.
func (p *passing) not(condition bool) { p.ok = p.ok && !condition }

func (p *passing) root(root gjson.Result) {
	t := p.t
	gateway := t.Is(ReasoningObject) || len(t.Quirks) == 0 // a server without quirks may support anything
	root.ForEach(func(key, v gjson.Result) bool {
		if v.Type == gjson.Null {
			return p.ok
		}
		switch key.Str {
		case "messages":
			p.messages(v)
		case "max_tokens":
			p.not(t.Is(OpenAI) && reasons(t.Model))
		case "max_completion_tokens":
			p.not(t.Is(OldMaxTokens))
		case "reasoning", "include_reasoning":
			p.not(!gateway)
		case "reasoning_effort":
			p.not(t.Is(NoReasoningEffort) || t.Is(ThinkingSwitch) || t.Is(ThreeEfforts) && v.Str != "low" && v.Str != "medium" && v.Str != "high")
		case "thinking":
			p.not(t.Is(OpenAI))
		case "stream_options":
			p.not(t.Is(NoStreamOptions))
		case "seed":
			p.not(t.Is(RandomSeed))
		case "user":
			p.not(t.Is(NoUser))
		case "service_tier":
			p.not(t.Is(NoServiceTier))
		case "parallel_tool_calls":
			p.not(t.Is(NoParallelTools))
		case "presence_penalty", "frequency_penalty":
			p.not(t.Is(NoPenalties))
		case "tool_choice":
			p.not(t.Is(ToolChoiceAny) && v.Str == "required" || v.Get("type").Str == "allowed_tools" && !t.Is(OpenAI))
		case "response_format":
			p.not(v.Get("type").Str == "json_schema" && t.Is(NoJSONSchema))
			p.not(v.Get("json_schema.strict").Exists() && t.Is(NoStrict))
		case "tools":
			for _, tool := range v.Array() {
				p.not(tool.Get("function.strict").Exists() && t.Is(NoStrict))
				p.not(!p.customs() && tool.Get("type").Str == "custom")
				p.not(tool.Get("cache_control").Exists() && !p.marks())
			}
		}
		return p.ok
	})
}

func (p *passing) messages(v gjson.Result) {
	last, i := -1, 0
	v.ForEach(func(_, m gjson.Result) bool {
		if m.Get("role").Str == "user" {
			last = i
		}
		i++
		return true
	})
	i = 0
	v.ForEach(func(_, m gjson.Result) bool {
		p.message(m, i > last)
		i++
		return p.ok
	})
}

func (p *passing) message(m gjson.Result, inLoop bool) {
	t := p.t
	role := ""
	m.ForEach(func(key, v gjson.Result) bool {
		if v.Type == gjson.Null {
			return p.ok
		}
		switch key.Str {
		case "role":
			role = v.Str
			p.not(role == "developer" && !t.Is(OpenAI) && !t.Is(ReasoningObject) && len(t.Quirks) > 0)
		case "content":
			p.content(v)
		case "reasoning", "reasoning_content":
			p.not(t.Is(OpenAI) || t.Is(ThinkingParts) || t.Is(ReasoningInToolLoop) && (!inLoop || key.Str == "reasoning"))
		case "reasoning_details":
			p.not(!t.Is(ReasoningDetails) && len(t.Quirks) > 0 || !t.Is(OurSignatures) && bytes.Contains([]byte(v.Raw), wrappedMark))
		case "provider_metadata", "images":
			p.not(t.Is(OpenAI))
		case "cache_control":
			p.not(!p.marks())
		case "tool_call_id":
			p.id(v.Str)
		case "tool_calls":
			for _, c := range v.Array() {
				p.not(!p.customs() && c.Get("type").Str == "custom")
				p.id(c.Get("id").Str)
			}
		}
		return p.ok
	})
	if role == "tool" && !t.Is(OurSignatures) {
		for _, part := range m.Get("content").Array() {
			p.not(part.IsObject() && part.Get("type").Str != "text")
		}
	}
}

func (p *passing) content(v gjson.Result) {
	if !v.IsArray() {
		return
	}
	texts := true
	v.ForEach(func(_, part gjson.Result) bool {
		texts = texts && part.Get("type").Str == "text"
		p.not(part.Get("cache_control").Exists() && !p.marks())
		return p.ok
	})
	p.not(texts && p.t.Is(StringContent))
}

// marks reports whether the target supports, or may support, cache markers.
func (p *passing) marks() bool { return p.t.Is(CacheControl) || len(p.t.Quirks) == 0 }

// customs reports whether the target supports, or may support, custom tools.
func (p *passing) customs() bool { return p.t.Is(OpenAI) || len(p.t.Quirks) == 0 }

// id checks the id of a tool call.
func (p *passing) id(id string) {
	if p.t.Is(OurSignatures) {
		return
	}
	w := callWriter{t: p.t}
	packed := bytes.Contains([]byte(id), packedMark)
	p.not(packed || len(p.t.Quirks) > 0 && w.toolID(id) != id)
}
