package schema_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/gatewayd/schema"
)

func TestFit(t *testing.T) {
	t.Parallel()
	object := func(members string) string {
		return `{"type":"object","properties":{"a":` + members + `},"required":["a"],"additionalProperties":false}`
	}
	for _, tt := range []struct {
		name      string
		rules     *schema.Rules
		in, want  string
		described string
	}{
		{"int().min(1)", schema.Anthropic, object(`{"type":"integer","minimum":1,"maximum":9,"description":"d"}`),
			object(`{"type":"integer","description":"d\n\n{minimum: 1, maximum: 9}"}`), "a.minimum a.maximum"},
		{"int().min(1)", schema.OpenAI, object(`{"type":"integer","minimum":1}`), object(`{"type":"integer","minimum":1}`), ""},
		{"int().positive()", schema.Gemini, object(`{"type":"integer","exclusiveMinimum":0,"maximum":9}`),
			object(`{"type":"integer","maximum":9,"description":"{exclusiveMinimum: 0}"}`), "a.exclusiveMinimum"},
		{"email()", schema.Anthropic, object(`{"type":"string","format":"email","pattern":"^(?!\\.)x$"}`),
			object(`{"type":"string","format":"email","description":"{pattern: \"^(?!\\\\.)x$\"}"}`), "a.pattern"},
		{"email()", schema.OpenAI, object(`{"type":"string","format":"email","pattern":"^(?!\\.)x$"}`),
			object(`{"type":"string","format":"email","description":"{pattern: \"^(?!\\\\.)x$\"}"}`), "a.pattern"},
		{"email() of a loose tool", schema.OpenAITool, `{"type":"object","properties":{"a":{"type":"string","pattern":"^(?!\\.)x$","minLength":1}}}`,
			`{"type":"object","properties":{"a":{"type":"string","minLength":1,"description":"{pattern: \"^(?!\\\\.)x$\"}"}}}`, "a.pattern"},
		{"url()", schema.OpenAI, object(`{"type":"string","format":"uri"}`), object(`{"type":"string","description":"{format: \"uri\"}"}`), "a.format"},
		{"arrays", schema.Anthropic, object(`{"type":"array","items":{"type":"string","maxLength":3},"minItems":2,"maxItems":4,"uniqueItems":true}`),
			object(`{"type":"array","items":{"type":"string","description":"{maxLength: 3}"},"description":"{minItems: 2, maxItems: 4, uniqueItems: true}"}`), "a.maxLength a.minItems a.maxItems a.uniqueItems"},
		{"minItems 1", schema.Anthropic, object(`{"type":"array","items":{"type":"string"},"minItems":1}`), object(`{"type":"array","items":{"type":"string"},"minItems":1}`), ""},
		{"oneOf", schema.Anthropic, object(`{"oneOf":[{"type":"string"},{"type":"null"}]}`), object(`{"anyOf":[{"type":"string"},{"type":"null"}]}`), ""},
		{"a union of objects", schema.OpenAI, object(`{"type":"object","anyOf":[{"type":"object","properties":{"k":{"const":"x"}},"required":["k"]}]}`),
			object(`{"anyOf":[{"type":"object","properties":{"k":{"const":"x"}},"required":["k"],"additionalProperties":false}]}`), ""},
		{"what is required, in a union", schema.Anthropic, `{"type":"object","properties":{"a":{"type":"string"}},"anyOf":[{"required":["a"]}],"additionalProperties":false}`,
			`{"type":"object","properties":{"a":{"type":"string"}},"additionalProperties":false,"description":"{anyOf: [{\"required\":[\"a\"]}]}"}`, "anyOf"},
		{"allOf", schema.OpenAI, `{"allOf":[{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]},{"$ref":"#/$defs/b"}],"$defs":{"b":{"type":"object","properties":{"b":{"type":"string"}},"required":["b"]}}}`,
			`{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"string"}},"required":["a","b"],"additionalProperties":false,"$defs":{"b":{"type":"object","properties":{"b":{"type":"string"}},"required":["b"],"additionalProperties":false}}}`, ""},
		{"a reference with a description", schema.OpenAI, `{"type":"object","properties":{"a":{"$ref":"#/$defs/x","description":"d"}},"required":["a"],"additionalProperties":false,"$defs":{"x":{"type":"string"}}}`,
			`{"type":"object","properties":{"a":{"anyOf":[{"$ref":"#/$defs/x"}],"description":"d"}},"required":["a"],"additionalProperties":false,"$defs":{"x":{"type":"string"}}}`, ""},
		{"a reference into properties", schema.Anthropic, `{"type":"object","properties":{"a":{"type":"string"},"b":{"$ref":"#/properties/a"}},"required":["a","b"],"additionalProperties":false}`,
			`{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"string"}},"required":["a","b"],"additionalProperties":false}`, ""},
		{"a root that is a reference", schema.OpenAI, `{"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}}}}}`,
			`{"type":"object","properties":{"next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}},"required":["next"],"additionalProperties":false,"$defs":{"n":{"type":"object","properties":{"next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}},"required":["next"],"additionalProperties":false}}}`, ""},
		{"definitions", schema.Gemini, `{"type":"object","properties":{"a":{"$ref":"#/definitions/x"}},"definitions":{"x":{"const":"v"}}}`,
			`{"type":"object","properties":{"a":{"$ref":"#/$defs/x"}},"$defs":{"x":{"enum":["v"]}}}`, ""},
		{"a boolean const", schema.Gemini, `{"type":"object","properties":{"a":{"const":true}}}`, `{"type":"object","properties":{"a":{"type":"boolean","description":"{const: true}"}}}`, "a.const"},
		{"properties with names of keywords", schema.Anthropic, `{"type":"object","properties":{"minimum":{"type":"string"},"pattern":{"type":"string"}},"required":["minimum","pattern"]}`,
			`{"type":"object","properties":{"minimum":{"type":"string"},"pattern":{"type":"string"}},"required":["minimum","pattern"],"additionalProperties":false}`, ""},
		{"default and examples", schema.OpenAI, object(`{"type":"string","default":"x","examples":["y"],"title":"T"}`), object(`{"type":"string","title":"T","description":"{default: \"x\", examples: [\"y\"]}"}`), "a.default a.examples"},
		{"a union as the root of a tool", schema.AnthropicTool, `{"oneOf":[{"type":"object","properties":{"a":{"type":"string"}}},{"type":"object","properties":{"b":{"type":"string"}}}]}`,
			`{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"string"}},"description":"{oneOf: [{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"}}},{\"type\":\"object\",\"properties\":{\"b\":{\"type\":\"string\"}}}]}"}`, "oneOf"},
		{"a tool", schema.AnthropicTool, `{"type" : "object", "minProperties":1}`, `{"type" : "object", "minProperties":1}`, ""},
	} {
		got := tt.rules.Fit(json.RawMessage(tt.in))
		if got.Loose != "" {
			t.Errorf("%s is loose: %s", tt.name, got.Loose)
		}
		if !equal(t, got.Schema, tt.want) || strings.Join(got.Described, " ") != tt.described {
			t.Errorf("%s:\n got %s, %v\nwant %s, %s", tt.name, got.Schema, got.Described, tt.want, tt.described)
		}
	}
}

// equal compares JSON, ignoring the order of members.
func equal(t *testing.T, got json.RawMessage, want string) bool {
	t.Helper()
	var a, b any
	if err := json.Unmarshal(got, &a); err != nil {
		t.Errorf("%s: %v", got, err)
	}
	if err := json.Unmarshal([]byte(want), &b); err != nil {
		t.Fatalf("%s: %v", want, err)
	}
	return fmt.Sprint(a) == fmt.Sprint(b)
}

// Models generate properties in the order of the schema.
func TestFit_order(t *testing.T) {
	t.Parallel()
	in := `{"type":"object","properties":{"z":{"type":"integer","minimum":1},"a":{"type":"integer"},"m":{"type":"integer"}},"required":["z","a","m"]}`
	for name, rules := range map[string]*schema.Rules{"Anthropic": schema.Anthropic, "OpenAI": schema.OpenAI, "Gemini": schema.Gemini} {
		got := string(rules.Fit(json.RawMessage(in)).Schema)
		z, a, m := strings.Index(got, `"z":`), strings.Index(got, `"a":`), strings.Index(got, `"m":`)
		if z < 0 || z > a || a > m {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func TestFit_loose(t *testing.T) {
	t.Parallel()
	optional := make([]string, 25)
	for i := range optional {
		optional[i] = fmt.Sprintf(`"p%d":{"type":"string"}`, i)
	}
	var defs []string
	for i := range 30 { // each level twice of the one below
		defs = append(defs, fmt.Sprintf(`"d%d":{"type":"object","properties":{"a":{"$ref":"#/x/d%d"},"b":{"$ref":"#/x/d%d"}}}`, i, i+1, i+1))
	}
	for _, tt := range []struct {
		rules      *schema.Rules
		in, reason string
	}{
		{schema.Anthropic, `[]`, "not a JSON object"},
		{schema.Anthropic, `{"type":"object"}`, "any properties"},
		{schema.Anthropic, `{"type":"object","additionalProperties":{"type":"string"}}`, "any properties"},
		{schema.OpenAI, `{"type":"object","properties":{"m":{"type":"object","patternProperties":{"^x":{"type":"string"}}}},"required":["m"]}`, "at m, an object has any properties"},
		{schema.Anthropic, `{"type":"object","properties":{"a":{}}}`, "at a, no type"},
		{schema.OpenAI, `{"type":"object","properties":{"a":true},"required":["a"]}`, "at a, anything"},
		{schema.OpenAI, `{"type":"object","properties":{"a":{"type":"string"}}}`, "at a, a property is optional"},
		{schema.OpenAI, `{"type":"object","properties":{"a":{"type":"array"}},"required":["a"]}`, "items"},
		{schema.OpenAI, `{"anyOf":[{"type":"object","properties":{}}]}`, "union"},
		{schema.Anthropic, `{"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"n":{"$ref":"#/$defs/n"}}}}}`, "itself"},
		{schema.Anthropic, `{"type":"object","properties":{"a":{"$ref":"#"}}}`, "itself"},
		{schema.Anthropic, `{"type":"object","properties":{"a":{"$ref":"#/properties/a"}}}`, "itself"},
		{schema.Anthropic, `{"type":"object","properties":{"a":{"$ref":"https://example.com/x"}}}`, "nothing in it"},
		{schema.Anthropic, `{"type":"object","properties":{` + strings.Join(optional, ",") + `}}`, "25 optional properties, and the provider takes 24"},
		{schema.OpenAI, strings.Repeat(`{"type":"object","required":["a"],"properties":{"a":`, 11) + `{"type":"string"}` + strings.Repeat(`}}`, 11), "11 levels, and the provider takes 10"},
		{schema.Anthropic, `{"type":"object","properties":{"a":{"$ref":"#/x/d0"}},"x":{` + strings.Join(defs, ",") + `,"d30":{"type":"string"}}}`, "too large"},
		{schema.Anthropic, strings.Repeat(`{"type":"array","items":`, 1000) + `{}` + strings.Repeat(`}`, 1000), "too large"},
	} {
		if got := tt.rules.Fit(json.RawMessage(tt.in)); !strings.Contains(got.Loose, tt.reason) || got.Loose == "" {
			t.Errorf("%.200s: %q, want %q", tt.in, got.Loose, tt.reason)
		}
	}
}

// FuzzFit checks that Fit returns JSON for any JSON, and that Fit does not change a
// fitted schema.
func FuzzFit(f *testing.F) {
	f.Add(`{"type":"object","properties":{"a":{"$ref":"#/$defs/x","description":"d"}},"$defs":{"x":{"allOf":[{"const":1},{"enum":[1,null]}]}}}`)
	f.Add(`{"oneOf":[{"type":["object","null"]},{"items":[true,false]}],"if":{},"$ref":"#/oneOf/0"}`)
	f.Fuzz(func(t *testing.T, in string) {
		for name, rules := range map[string]*schema.Rules{"Anthropic": schema.Anthropic, "OpenAI": schema.OpenAI, "Gemini": schema.Gemini, "OpenAITool": schema.OpenAITool} {
			got := rules.Fit(json.RawMessage(in))
			if json.Valid([]byte(in)) && !json.Valid(got.Schema) {
				t.Fatalf("%s makes %q of %q", name, got.Schema, in)
			}
			if got.Loose != "" || name == "OpenAITool" {
				continue
			}
			if again := rules.Fit(got.Schema); again.Loose != "" || len(again.Described) > 0 {
				t.Fatalf("%s: %s of %s is %q, %v", name, got.Schema, in, again.Loose, again.Described)
			}
		}
	})
}
