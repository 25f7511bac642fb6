package chatcompletions

import (
	"encoding/base64"
	"time"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// ReadResult decodes a whole answer: it treats the answer as a stream of one chunk, so
// that whole and streamed answers share a decoder.
func (*Format) ReadResult(t *hub.Target, body []byte) (*hub.Result, error) {
	d := newDecoder(t)
	switch {
	case len(body) > maxAnswer:
		d.broken("its answer is too large")
	case !valid(body):
		d.broken("its answer is no JSON")
	default:
		d.whole(gjson.ParseBytes(body))
	}
	var c hub.Collector
	for i := range d.events {
		c.Add(&d.events[i])
	}
	r, err := c.Result()
	if err != nil {
		return nil, err
	}
	return r, nil
}

// WriteResult encodes a whole answer.
func (*Format) WriteResult(a hub.Answer, r *hub.Result) ([]byte, error) {
	var b buffer
	b.add("{")
	b.text("id", a.ID)
	b.add(`,"object":"chat.completion"`)
	b.int("created", created(r.Response.Created))
	b.text("model", a.Model)
	b.add(`,"choices":[{"index":0,"message":`)
	logprobs := b.message(&a, r)
	b.key("logprobs")
	if logprobs != nil {
		b.add(`{"content":` + string(logprobs) + `,"refusal":null}`)
	} else {
		b.add("null")
	}
	b.text("finish_reason", finishReason(r.Finish))
	b.add("}]")
	metadata := metadataOf(&a)
	if r.Usage != nil {
		b.usage(r.Usage, gjson.GetBytes(metadata, "cost").String())
		if r.Usage.Tier != "" {
			b.text("service_tier", r.Usage.Tier)
		}
	}
	if a.ID != "" {
		b.text("generationId", a.ID)
	}
	b.close('}')
	return b, nil
}

func created(t time.Time) int64 {
	if t.IsZero() {
		t = time.Now()
	}
	return t.Unix()
}

// metadataOf returns the gateway's part of provider_metadata, nil for none.
func metadataOf(a *hub.Answer) []byte {
	if a.Metadata == nil {
		return nil
	}
	return a.Metadata()
}

// hides reports whether the client does not want reasoning.
func hides(a *hub.Answer) bool { return a.Call != nil && a.Call.HideReasoning }

// message adds the message of an answer and returns its logprobs.
func (b *buffer) message(a *hub.Answer, r *hub.Result) (logprobs []byte) {
	var text, refusal, reasoning []byte
	var details, calls, images, notes buffer
	hasText, index, custom := false, 0, customs(a.Call)
	for i := range r.Content {
		p := &r.Content[i]
		switch p.Kind {
		case hub.TextPart:
			if p.Options["openai"]["refusal"] != nil {
				refusal = append(refusal, p.Text...)
				break
			}
			hasText = true
			text = append(text, p.Text...)
			if l := p.Options["openai"]["logprobs"]; l != nil {
				logprobs = l
			}
		case hub.ReasoningPart:
			if hides(a) {
				break
			}
			reasoning = append(reasoning, p.Text...)
			for _, d := range seal(p.Options, p.Text, true, index) {
				details.detail(&d)
			}
			index++
		case hub.ToolCallPart:
			if !p.Call.ProviderExecuted { // others are not for the client to run
				calls.toolCall(p, isCustom(p, custom))
			}
		case hub.FilePart:
			images.image(p.File)
		case hub.SourcePart:
			notes.annotation(p.Source)
		}
	}
	b.add(`{"role":"assistant"`)
	if hasText || len(calls) == 0 && len(refusal) == 0 {
		b.text("content", string(text))
	} else {
		b.add(`,"content":null`)
	}
	if len(refusal) > 0 {
		b.text("refusal", string(refusal))
	} else {
		b.add(`,"refusal":null`)
	}
	if len(reasoning) > 0 {
		b.text("reasoning", string(reasoning))
	}
	b.list("reasoning_details", details)
	b.list("tool_calls", calls)
	b.list("images", images)
	b.list("annotations", notes)
	b.providerMetadata(metadataOf(a), r.Options, r.Warnings)
	b.close('}')
	return logprobs
}

// list adds a list of elements, unless it is empty.
func (b *buffer) list(name string, elements buffer) {
	if len(elements) > 0 {
		b.open(name, '[')
		*b = append(*b, elements...)
		b.close(']')
	}
}

// providerMetadata adds the metadata of the gateway and the provider, and the warnings,
// for which the format has no other place.
func (b *buffer) providerMetadata(metadata []byte, o hub.Options, warnings []hub.Warning) {
	if metadata == nil && len(warnings) == 0 {
		return
	}
	b.open("provider_metadata", '{')
	if len(warnings) > 0 {
		b.warnings(warnings)
	}
	if metadata == nil {
		b.close('}')
		return
	}
	b.raw("gateway", metadata)
	for provider, members := range o {
		if provider == "gateway" || provider == own {
			continue
		}
		b.next()
		*b = append(appendText(*b, provider), ':', '{')
		for name, raw := range members {
			b.next()
			*b = append(appendText(*b, name), ':')
			*b = append(*b, raw...)
		}
		b.close('}')
	}
	b.close('}')
}

func (b *buffer) warnings(all []hub.Warning) {
	b.open("warnings", '[')
	for _, w := range all {
		b.next()
		b.add("{")
		b.text("type", string(w.Kind))
		if w.Feature != "" {
			b.text("feature", w.Feature)
		}
		b.text("message", w.Message)
		b.close('}')
	}
	b.close(']')
}

// toolCall adds a tool call. The call's id carries the options that the provider must get
// back.
func (b *buffer) toolCall(p *hub.Part, custom bool) {
	b.next()
	b.add("{")
	b.text("id", hub.PackID(p.Call.ID, withoutCustom(p.Options)))
	if custom {
		b.customCall(p.Call.Name, p.Call.Input)
		b.close('}')
		return
	}
	b.add(`,"type":"function","function":{`)
	b.text("name", p.Call.Name)
	b.text("arguments", p.Call.Input)
	b.add("}}")
}

// image adds a file that the model generated, in OpenRouter's form.
func (b *buffer) image(f *hub.File) {
	b.next()
	b.add(`{"type":"image_url","image_url":{`)
	if f.URL != "" {
		b.text("url", f.URL)
	} else {
		b.text("url", "data:"+f.MediaType+";base64,"+base64.StdEncoding.EncodeToString(f.Data))
	}
	b.add("}}")
}

// annotation adds a source. The hub does not know which part of the text the source
// belongs to.
func (b *buffer) annotation(s *hub.Source) {
	if s.URL == "" {
		b.next()
		b.add(`{"type":"file_citation","file_citation":{`)
		b.text("filename", s.Filename)
		b.text("title", s.Title)
		b.add("}}")
		return
	}
	b.next()
	b.add(`{"type":"url_citation","url_citation":{`)
	b.text("url", s.URL)
	b.text("title", s.Title)
	b.add(`,"start_index":0,"end_index":0}}`)
}
