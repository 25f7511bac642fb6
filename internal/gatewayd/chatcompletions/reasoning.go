package chatcompletions

import (
	"encoding/json"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// The formats of reasoning_details, which say whose signature an item has. OpenRouter
// defined them, and the hosted gateway adopted them.
const (
	formatAnthropic = "anthropic-claude-v1"
	formatOpenAI    = "openai-responses-v1"
	formatXAI       = "xai-responses-v1" // as OpenAI's
	formatGoogle    = "google-gemini-v1"
	formatUnknown   = "unknown"
	formatOurs      = "cay-v1" // the signature is of hub.Wrap
)

// The types of reasoning_details.
const (
	detailText      = "reasoning.text"
	detailSummary   = "reasoning.summary"
	detailEncrypted = "reasoning.encrypted"
)

// detail is an item of reasoning_details to be written.
type detail struct {
	kind, format      string
	text              string // text or summary, by the kind
	signature, data   string
	id                string
	hasText, hasIndex bool
	index             int
}

func (b *buffer) detail(d *detail) {
	b.next()
	b.add(`{"type":"` + d.kind + `"`)
	switch {
	case d.hasText && d.kind == detailSummary:
		b.text("summary", d.text)
	case d.hasText:
		b.text("text", d.text)
	}
	if d.signature != "" {
		b.text("signature", d.signature)
	}
	if d.data != "" {
		b.text("data", d.data)
	}
	if d.id != "" {
		b.text("id", d.id)
	}
	b.text("format", d.format)
	if d.hasIndex {
		b.int("index", int64(d.index))
	}
	b.close('}')
}

// style returns the type and format for the text of a part with Options o.
func style(o hub.Options) (kind, format string) {
	switch p, members := single(o); {
	case p == "anthropic" && only(members, "signature", "redactedData"):
		return detailText, formatAnthropic
	case p == "openai" && only(members, "itemId", "reasoningEncryptedContent"):
		return detailSummary, formatOpenAI
	case p == "google" && only(members, "thoughtSignature"):
		return detailText, formatGoogle
	case p != "":
		return detailText, formatOurs
	}
	return detailText, formatUnknown
}

// single returns the provider that o is for; if there are several, the first provider's
// options and the name "other".
func single(o hub.Options) (string, map[string]json.RawMessage) {
	name := ""
	for p, members := range o {
		if len(members) == 0 {
			continue
		}
		if name != "" {
			return "other", nil
		}
		name = p
	}
	return name, o[name]
}

// only reports whether all members are strings with these names.
func only(members map[string]json.RawMessage, names ...string) bool {
	for name, raw := range members {
		known := false
		for _, n := range names {
			known = known || n == name
		}
		if !known || len(raw) == 0 || raw[0] != '"' {
			return false
		}
	}
	return true
}

// seal returns the items that carry the options o of a part, which the provider must get
// back; withText puts text into the first item.
func seal(o hub.Options, text string, withText bool, index int) []detail {
	kind, format := style(o)
	d := detail{kind: kind, format: format, text: text, hasText: withText, hasIndex: true, index: index}
	switch format {
	case formatAnthropic:
		d.signature = o.String("anthropic", "signature")
		if data := o.String("anthropic", "redactedData"); data != "" {
			e := d
			e.kind, e.data, e.signature, e.hasText = detailEncrypted, data, "", false
			if d.signature == "" && (text == "" || !withText) {
				return []detail{e}
			}
			return []detail{d, e}
		}
	case formatOpenAI:
		d.id = o.String("openai", "itemId")
		if data := o.String("openai", "reasoningEncryptedContent"); data != "" {
			e := d
			e.kind, e.data, e.hasText = detailEncrypted, data, false
			if text == "" || !withText {
				return []detail{e}
			}
			return []detail{d, e}
		}
		if !withText {
			return []detail{d} // the id alone
		}
	case formatGoogle:
		d.signature = o.String("google", "thoughtSignature")
	case formatOurs:
		d.signature = hub.Wrap(wrapName(o), o)
	}
	if withText && text == "" && d.signature != "" {
		d.kind, d.data, d.signature, d.hasText = detailEncrypted, d.signature, "", false
	}
	if !d.hasText && d.signature == "" && d.data == "" {
		return nil
	}
	return []detail{d}
}

// memento is a streamed block of reasoning in the form to be restored. Each streamed
// signature contains all blocks so far. The reason is that OpenAI's own clients, when
// they join the chunks of an answer, do not know reasoning_details: for an unknown member
// they keep only the last value, which would be a signature without the signed text.
type memento struct {
	Text    string      `json:"text,omitempty"`
	Options hub.Options `json:"options,omitempty"`
}

// blocksMember is the key of the mementos, under a provider name that no provider has.
const blocksMember = "blocks"

// remember puts blocks into the signatures of items. If the blocks are too large, the
// signatures stay unchanged.
func remember(items []detail, blocks []memento) {
	var o hub.Options
	o.Set("", blocksMember, blocks)
	all := hub.Wrap("all", o)
	for i := range items {
		switch d := &items[i]; {
		case all == "":
		case d.signature != "":
			d.signature = all
		case d.data != "":
			d.data = all
		}
	}
}

// remembered returns the blocks in an item's Options.
func remembered(o hub.Options) (blocks []memento, ok bool) {
	return blocks, o.Get("", blocksMember, &blocks) && len(blocks) > 0
}

// wrapName returns a name for hub.Wrap, which is informational only.
func wrapName(o hub.Options) string {
	name, _ := single(o)
	return strings.Map(func(r rune) rune {
		if r == '.' {
			return '-'
		}
		return r
	}, name)
}

// optionsOf returns the options in an item that the provider must get back.
func optionsOf(item gjson.Result) (o hub.Options) {
	format := item.Get("format").Str
	signature, data, id := item.Get("signature").Str, item.Get("data").Str, item.Get("id").Str
	for _, s := range []string{signature, data} {
		if wrapped, ok := hub.Unwrap(s); ok {
			return wrapped
		}
	}
	switch {
	case format == formatOpenAI || format == formatXAI ||
		format != formatAnthropic && format != formatGoogle && (id != "" && data != "" || item.Get("type").Str == detailSummary):
		if id != "" {
			o.Set("openai", "itemId", id)
		}
		if data != "" {
			o.Set("openai", "reasoningEncryptedContent", data)
		}
	case format == formatGoogle:
		if signature == "" {
			signature = data
		}
		if signature != "" {
			o.Set("google", "thoughtSignature", signature)
		}
	default: // Anthropic's format predates the member format
		if signature != "" {
			o.Set("anthropic", "signature", signature)
		}
		if data != "" {
			o.Set("anthropic", "redactedData", data)
		}
	}
	return o
}

// detailsText returns the text of an item.
func detailsText(item gjson.Result) string {
	if text := item.Get("text"); text.Type == gjson.String {
		return text.Str
	}
	return item.Get("summary").Str
}

// thoughts collects reasoning parts, and joins items with equal indexes, because a client
// sends back one item per streamed chunk.
type thoughts struct {
	parts []hub.Part
	index int64 // index of the last part; -1 for none
}

func (t *thoughts) add(item gjson.Result) {
	index := int64(-1)
	if i := item.Get("index"); i.Type == gjson.Number {
		index = i.Int()
	}
	text, o := detailsText(item), optionsOf(item)
	if blocks, ok := remembered(o); ok { // all blocks so far
		t.parts, t.index = t.parts[:0], index
		for _, b := range blocks {
			t.parts = append(t.parts, hub.Part{Kind: hub.ReasoningPart, Text: b.Text, Options: b.Options})
		}
		return
	}
	if n := len(t.parts); n > 0 && index >= 0 && index == t.index && !apart(&t.parts[n-1], o) {
		t.parts[n-1].Text += text
		t.parts[n-1].Options.Merge(o)
		return
	}
	if text == "" && len(o) == 0 && item.Get("type").Str != detailText {
		return // carries no information
	}
	t.parts = append(t.parts, hub.Part{Kind: hub.ReasoningPart, Text: text, Options: o})
	t.index = index
}

// apart reports whether an item begins a new part although its index equals the previous
// part's, which is always so for redacted thinking.
func apart(before *hub.Part, o hub.Options) bool {
	redacted := o.String("anthropic", "redactedData") != ""
	return redacted && before.Text != "" || before.Options.String("anthropic", "redactedData") != ""
}

// reasoningOf returns the reasoning parts of an assistant message.
func reasoningOf(message gjson.Result) []hub.Part {
	t := thoughts{index: -1}
	message.Get("reasoning_details").ForEach(func(_, item gjson.Result) bool {
		if item.IsObject() {
			t.add(item)
		}
		return true
	})
	if len(t.parts) > 0 {
		return t.parts
	}
	if text := plainReasoning(message); text != "" {
		return []hub.Part{{Kind: hub.ReasoningPart, Text: text}}
	}
	return nil
}

// plainReasoning returns reasoning without signatures: reasoning_content is DeepSeek's
// name, adopted by most servers; reasoning is the name in OpenRouter, Groq, Ollama and
// newer vLLM. Some servers send both.
func plainReasoning(message gjson.Result) string {
	if r := message.Get("reasoning_content"); r.Type == gjson.String && r.Str != "" {
		return r.Str
	}
	return message.Get("reasoning").Str
}
