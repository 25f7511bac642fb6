package scripted

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// makeUp returns a reply to a call for which the script has no content.
func makeUp(c *hub.Call) (r reply) {
	last := c.Prompt[max(0, len(c.Prompt)-1):]
	answered := len(last) == 1 && last[0].Role == hub.ToolRole
	if thinks(c) {
		r.Reasoning = "I am a script: I think of nothing, and repeat what I was told."
	}
	if t := due(c); t != nil && !answered {
		r.ToolCalls = []toolCall{{Name: t.Name, input: example(t.InputSchema)}}
		return r
	}
	switch {
	case c.Format != nil:
		r.Text = example(c.Format.Schema)
		return r
	case answered:
		r.Text = "The tool returned: {result}"
	case question(c) != "":
		r.Text = "You said: {question}"
	default:
		r.Text = "You said nothing that is text."
	}
	if n := files(c); n > 0 && !answered {
		r.Text += fmt.Sprintf("\n\nThere are files in what you sent: %d.", n)
	}
	r.Text += "\n\nThis is cay/scripted, which needs no network and no key: it answers from a script, or, as now, repeats what it is told. " +
		"Configure a provider to talk to a model, or write a script for this one."
	return r
}

// thinks reports whether the call asks for reasoning.
func thinks(c *hub.Call) bool {
	return c.Effort != hub.EffortDefault && c.Effort != hub.EffortNone || c.ThinkingBudget != nil && *c.ThinkingBudget > 0
}

// due returns the tool that must be called; nil if there is none.
func due(c *hub.Call) *hub.Tool {
	for i := range c.Tools {
		t := &c.Tools[i]
		switch {
		case t.ProviderID != "":
		case c.ToolChoice.Mode == hub.ToolRequired, c.ToolChoice.Mode == hub.ToolNamed && c.ToolChoice.Tool == t.Name:
			return t
		}
	}
	return nil
}

// files counts the files in the last user message.
func files(c *hub.Call) (n int) {
	for i := len(c.Prompt) - 1; i >= 0; i-- {
		if c.Prompt[i].Role != hub.User {
			continue
		}
		for j := range c.Prompt[i].Parts {
			if c.Prompt[i].Parts[j].Kind == hub.FilePart {
				n++
			}
		}
		return n
	}
	return 0
}

// Limits of generated examples.
const (
	maxExampleDepth = 16
	maxExampleItems = 16
	maxExampleSize  = 64 << 10
)

// example returns a JSON value for a schema, which supports types, properties, items,
// enum, const, default, references and the first of alternatives. Without a schema the
// value is an object.
func example(schema json.RawMessage) string {
	var root any
	if len(schema) == 0 || json.Unmarshal(schema, &root) != nil {
		return `{"answer":"scripted"}`
	}
	e := exampler{root: root, left: maxExampleSize}
	b, err := json.Marshal(e.value(root, 0))
	if err != nil {
		return "{}"
	}
	return string(b)
}

type exampler struct {
	root any
	left int // number of values that may still be generated
}

func (e *exampler) value(schema any, depth int) any {
	s, ok := schema.(map[string]any)
	if e.left--; !ok || e.left < 0 || depth > maxExampleDepth {
		return nil
	}
	if ref, ok := s["$ref"].(string); ok {
		return e.value(e.resolve(ref), depth+1)
	}
	for _, name := range []string{"const", "default"} {
		if v, ok := s[name]; ok {
			return v
		}
	}
	for _, name := range []string{"enum", "examples"} {
		if list, ok := s[name].([]any); ok && len(list) > 0 {
			return list[0]
		}
	}
	for _, name := range []string{"anyOf", "oneOf", "allOf"} {
		if list, ok := s[name].([]any); ok && len(list) > 0 {
			return e.value(list[0], depth+1)
		}
	}
	switch kind(s) {
	case "object":
		return e.object(s, depth)
	case "array":
		return e.array(s, depth)
	case "string":
		return text(s)
	case "number", "integer":
		return number(s)
	case "boolean":
		return true
	}
	return nil
}

// kind returns the type of a schema, which may be a list of them.
func kind(s map[string]any) string {
	switch t := s["type"].(type) {
	case string:
		return t
	case []any:
		for _, one := range t {
			if name, ok := one.(string); ok && name != "null" {
				return name
			}
		}
		return ""
	}
	if _, ok := s["properties"]; ok {
		return "object"
	}
	return ""
}

func (e *exampler) object(s map[string]any, depth int) any {
	made := make(map[string]any)
	properties, _ := s["properties"].(map[string]any)
	for name, schema := range properties {
		made[name] = e.value(schema, depth+1)
	}
	return made
}

func (e *exampler) array(s map[string]any, depth int) any {
	n := 1
	if least, ok := s["minItems"].(float64); ok && least > 1 {
		n = int(min(least, maxExampleItems))
	}
	list := make([]any, n)
	for i := range list {
		list[i] = e.value(s["items"], depth+1)
	}
	return list
}

// formats maps JSON Schema formats to example strings.
var formats = map[string]string{
	"date-time": "2026-01-01T00:00:00Z", "date": "2026-01-01", "time": "00:00:00Z", "email": "scripted@example.com",
	"uri": "https://example.com", "uuid": "00000000-0000-4000-8000-000000000000", "ipv4": "192.0.2.1", "hostname": "example.com",
}

func text(s map[string]any) string {
	if f, ok := s["format"].(string); ok && formats[f] != "" {
		return formats[f]
	}
	made := "scripted"
	if least, ok := s["minLength"].(float64); ok && least > float64(len(made)) {
		made += strings.Repeat(".", int(min(least, 4096))-len(made))
	}
	if most, ok := s["maxLength"].(float64); ok && most >= 0 && most < float64(len(made)) {
		made = made[:int(most)]
	}
	return made
}

func number(s map[string]any) float64 {
	for _, name := range []string{"minimum", "maximum"} {
		if n, ok := s[name].(float64); ok {
			return n
		}
	}
	if n, ok := s["exclusiveMinimum"].(float64); ok {
		return n + 1
	}
	return 1
}

// resolve returns the target of #/$defs/x; nil if it does not exist.
func (e *exampler) resolve(ref string) any {
	rest, ok := strings.CutPrefix(ref, "#")
	if !ok {
		return nil
	}
	at := e.root
	for _, name := range strings.Split(strings.TrimPrefix(rest, "/"), "/") {
		if name == "" {
			continue
		}
		m, ok := at.(map[string]any)
		if !ok {
			return nil
		}
		at = m[strings.NewReplacer("~1", "/", "~0", "~").Replace(name)]
	}
	return at
}
