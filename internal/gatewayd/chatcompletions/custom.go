package chatcompletions

import (
	"encoding/json"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Custom tools are tools whose input is text. In this format the grammar is a nested
// object; in the Responses API and the hub its members are part of the format.

func (r *callReader) customTool(at string, v gjson.Result) {
	name := r.text(at+".name", v.Get("name"))
	if name == "" {
		r.fail(at+".name", "is empty")
	}
	format := json.RawMessage(v.Get("format").Raw)
	if grammar := v.Get("format.grammar"); grammar.IsObject() {
		format = hub.MustEncode(struct {
			Type       string `json:"type"`
			Syntax     string `json:"syntax"`
			Definition string `json:"definition"`
		}{"grammar", grammar.Get("syntax").Str, grammar.Get("definition").Str})
	}
	r.call.Tools = append(r.call.Tools, hub.CustomTool(name, v.Get("description").String(), format))
}

// customTool writes a custom tool for OpenAI.
func (w *callWriter) customTool(t *hub.Tool) {
	description, raw := t.Custom()
	b := &w.b
	b.next()
	b.add(`{"type":"custom","custom":{`)
	b.text("name", t.Name)
	if description != "" {
		b.text("description", description)
	}
	switch format := gjson.ParseBytes(raw); format.Get("type").Str {
	case "grammar":
		b.add(`,"format":{"type":"grammar","grammar":{`)
		b.text("syntax", format.Get("syntax").Str)
		b.text("definition", format.Get("definition").Str)
		b.add("}}")
	case "text":
	default:
		b.raw("format", raw)
	}
	b.add("}}")
}

// customs returns the names of a call's custom tools.
func customs(c *hub.Call) map[string]bool {
	if c == nil {
		return nil
	}
	var names map[string]bool
	for i := range c.Tools {
		if t := &c.Tools[i]; t.IsCustom() {
			if names == nil {
				names = make(map[string]bool)
			}
			names[t.Name] = true
		}
	}
	return names
}

// isCustom reports whether a tool call is a call of a custom tool.
func isCustom(p *hub.Part, names map[string]bool) bool {
	var custom bool
	return names[p.Call.Name] || p.Options.Get("openai", hub.OptionCustom, &custom) && custom
}

// withoutCustom returns options without the custom tool mark, which the type of the call
// already expresses.
func withoutCustom(o hub.Options) hub.Options {
	if o["openai"][hub.OptionCustom] == nil {
		return o
	}
	var others hub.Options
	for provider, members := range o {
		for name, raw := range members {
			if provider != "openai" || name != hub.OptionCustom {
				others.SetRaw(provider, name, raw)
			}
		}
	}
	return others
}

// customCall adds the members of a custom tool call other than its id.
func (b *buffer) customCall(name, input string) {
	b.add(`,"type":"custom","custom":{`)
	b.text("name", name)
	b.text("input", hub.CustomInput(input))
	b.close('}')
}
