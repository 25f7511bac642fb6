package chatcompletions

import (
	"encoding/json"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// The formats of reasoning_details: whose the signature is. They are those of
// OpenRouter, which the hosted gateway has taken over.
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

// detail is one item of reasoning_details, as it goes out.
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

// style is in which type and format text of a part with such Options is written.
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

// single returns the one provider that o is for; the first and "other" if there
// are several.
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

// only reports whether all members are texts of these names.
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

// seal returns the items that carry what a part with the Options o must come back
// with; withText puts text into the first.
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

// memento is a block of reasoning of a stream, as it must come back. The signatures
// that are streamed have all blocks so far in them. For OpenAI's own clients, which
// put the chunks of an answer together, know nothing of reasoning_details: of a
// member they do not know they keep what came last, and that would be a signature
// without what it signs.
type memento struct {
	Text    string      `json:"text,omitempty"`
	Options hub.Options `json:"options,omitempty"`
}

// blocksMember is where the mementos are, under the name of a provider that no
// provider has.
const blocksMember = "blocks"

// remember puts blocks into the signatures of items. If they are too large, the
// signatures stay what they are.
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

// remembered returns the blocks in Options of an item.
func remembered(o hub.Options) (blocks []memento, ok bool) {
	return blocks, o.Get("", blocksMember, &blocks) && len(blocks) > 0
}

// wrapName is a name for hub.Wrap, which says nothing to us.
func wrapName(o hub.Options) string {
	name, _ := single(o)
	return strings.Map(func(r rune) rune {
		if r == '.' {
			return '-'
		}
		return r
	}, name)
}

// optionsOf returns what the provider must get back with the item.
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
	default: // Anthropic's were there before formats were
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

// thoughts collects reasoning parts of items that belong together if they have the
// same index: what was streamed comes back in as many items as there were chunks.
type thoughts struct {
	parts []hub.Part
	index int64 // of the last part; -1 for none
}

func (t *thoughts) add(item gjson.Result) {
	index := int64(-1)
	if i := item.Get("index"); i.Type == gjson.Number {
		index = i.Int()
	}
	text, o := detailsText(item), optionsOf(item)
	if blocks, ok := remembered(o); ok { // all there was up to here
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
		return // of no use
	}
	t.parts = append(t.parts, hub.Part{Kind: hub.ReasoningPart, Text: text, Options: o})
	t.index = index
}

// apart reports whether an item is a part of its own though its index is that of
// the part before: redacted thinking always is.
func apart(before *hub.Part, o hub.Options) bool {
	redacted := o.String("anthropic", "redactedData") != ""
	return redacted && before.Text != "" || before.Options.String("anthropic", "redactedData") != ""
}

// reasoningOf returns the reasoning parts of a message of an assistant.
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

// plainReasoning returns reasoning without signatures: reasoning_content is
// DeepSeek's name, which most servers took over, reasoning that of OpenRouter,
// Groq, Ollama and newer vLLM. Some send both.
func plainReasoning(message gjson.Result) string {
	if r := message.Get("reasoning_content"); r.Type == gjson.String && r.Str != "" {
		return r.Str
	}
	return message.Get("reasoning").Str
}
