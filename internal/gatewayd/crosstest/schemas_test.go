package crosstest_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/gatewayd/chatcompletions"
	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// keywords maps JSON Schema keywords that describe values to a property's schema with the
// keyword. It has all of draft 2020-12, and keywords of older drafts and of OpenAPI.
var keywords = map[string]string{
	"minimum":               `{"type":"integer","minimum":1}`,
	"maximum":               `{"type":"number","maximum":9.5}`,
	"exclusiveMinimum":      `{"type":"integer","exclusiveMinimum":0}`,
	"exclusiveMaximum":      `{"type":"integer","exclusiveMaximum":10}`,
	"multipleOf":            `{"type":"integer","multipleOf":5}`,
	"minLength":             `{"type":"string","minLength":1}`,
	"maxLength":             `{"type":"string","maxLength":80}`,
	"pattern":               `{"type":"string","pattern":"^[a-z]+$"}`,
	"pattern, lookaround":   `{"type":"string","pattern":"^(?!\\.)(?!.*\\.\\.)[a-z]+$"}`,
	"format email":          `{"type":"string","format":"email"}`,
	"format uri":            `{"type":"string","format":"uri"}`,
	"format date-time":      `{"type":"string","format":"date-time"}`,
	"format uuid":           `{"type":"string","format":"uuid"}`,
	"format regex":          `{"type":"string","format":"regex"}`,
	"format int32":          `{"type":"integer","format":"int32"}`,
	"minItems 1":            `{"type":"array","items":{"type":"string"},"minItems":1}`,
	"minItems 3":            `{"type":"array","items":{"type":"string"},"minItems":3}`,
	"maxItems":              `{"type":"array","items":{"type":"string"},"maxItems":7}`,
	"uniqueItems":           `{"type":"array","items":{"type":"string"},"uniqueItems":true}`,
	"contains":              `{"type":"array","items":{"type":"string"},"contains":{"const":"x"}}`,
	"minContains":           `{"type":"array","items":{"type":"string"},"minContains":2}`,
	"maxContains":           `{"type":"array","items":{"type":"string"},"maxContains":2}`,
	"prefixItems":           `{"type":"array","prefixItems":[{"type":"string"},{"type":"integer"}]}`,
	"unevaluatedItems":      `{"type":"array","items":{"type":"string"},"unevaluatedItems":{"type":"string"}}`,
	"items, a list":         `{"type":"array","items":[{"type":"string"},{"type":"integer"}]}`,
	"minProperties":         `{"type":"object","properties":{"x":{"type":"string"}},"required":["x"],"minProperties":1}`,
	"maxProperties":         `{"type":"object","properties":{"x":{"type":"string"}},"required":["x"],"maxProperties":1}`,
	"propertyNames":         `{"type":"object","properties":{"x":{"type":"string"}},"required":["x"],"propertyNames":{"maxLength":3}}`,
	"patternProperties":     `{"type":"object","properties":{},"patternProperties":{"^x":{"type":"string"}}}`,
	"additionalProperties":  `{"type":"object","additionalProperties":{"type":"string"}}`,
	"unevaluatedProperties": `{"type":"object","properties":{"x":{"type":"string"}},"required":["x"],"unevaluatedProperties":{"type":"string"}}`,
	"dependentRequired":     `{"type":"object","properties":{"x":{"type":"string"}},"required":["x"],"dependentRequired":{"x":["x"]}}`,
	"dependentSchemas":      `{"type":"object","properties":{"x":{"type":"string"}},"required":["x"],"dependentSchemas":{"x":{"type":"object"}}}`,
	"not":                   `{"type":"string","not":{"const":"x"}}`,
	"if":                    `{"type":"string","if":{"const":"x"},"then":{"maxLength":1},"else":{"minLength":2}}`,
	"enum":                  `{"type":"string","enum":["a","b"]}`,
	"enum, mixed":           `{"enum":["a",1,null]}`,
	"enum of objects":       `{"type":"object","properties":{"x":{"type":"string"}},"required":["x"],"enum":[{"x":"a"}]}`,
	"const":                 `{"type":"string","const":"a"}`,
	"const, boolean":        `{"const":true}`,
	"anyOf":                 `{"anyOf":[{"type":"string","minLength":1},{"type":"null"}]}`,
	"oneOf":                 `{"oneOf":[{"type":"string","minLength":1},{"type":"integer"}]}`,
	"allOf":                 `{"allOf":[{"type":"object","properties":{"x":{"type":"string"}},"required":["x"]},{"type":"object","properties":{"y":{"type":"string"}},"required":["y"]}]}`,
	"allOf of patterns":     `{"type":"string","allOf":[{"pattern":"^a"},{"pattern":"b$"}]}`,
	"types":                 `{"type":["string","null"],"maxLength":3}`,
	"nullable":              `{"type":"string","nullable":true}`,
	"default":               `{"type":"string","default":"x"}`,
	"examples":              `{"type":"string","examples":["x"]}`,
	"deprecated":            `{"type":"string","deprecated":true}`,
	"readOnly":              `{"type":"string","readOnly":true}`,
	"contentEncoding":       `{"type":"string","contentEncoding":"base64"}`,
	"contentMediaType":      `{"type":"string","contentMediaType":"text/plain"}`,
	"contentSchema":         `{"type":"string","contentSchema":{"type":"object"}}`,
	"a vendor's":            `{"type":"string","x-order":3}`,
	"title":                 `{"type":"string","title":"T"}`,
	"$ref":                  `{"$ref":"#/$defs/x"}`,
	"$ref and description":  `{"$ref":"#/$defs/x","description":"d"}`,
	"$ref to a property":    `{"$ref":"#/properties/first"}`,
	"recursion":             `{"$ref":"#/$defs/node"}`,
	"anything":              `{}`,
}

// schemas returns whole schemas: each keyword in a property, required and optional, and
// some schemas in the style of zod and pydantic.
func schemas() map[string]string {
	all := map[string]string{
		"zod":                 `{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","properties":{"age":{"type":"integer","minimum":1,"maximum":9007199254740991},"email":{"type":"string","format":"email","pattern":"^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$"},"tags":{"minItems":1,"maxItems":5,"type":"array","items":{"type":"string","minLength":1,"maxLength":20}},"url":{"type":"string","format":"uri"}},"required":["age","email","tags","url"],"additionalProperties":false}`,
		"pydantic":            `{"$defs":{"Kind":{"enum":["a","b"],"title":"Kind","type":"string"},"Part":{"properties":{"n":{"exclusiveMinimum":0,"title":"N","type":"integer"}},"required":["n"],"title":"Part","type":"object"}},"properties":{"kind":{"$ref":"#/$defs/Kind","default":"a"},"parts":{"items":{"$ref":"#/$defs/Part"},"maxItems":3,"title":"Parts","type":"array"},"note":{"anyOf":[{"maxLength":9,"type":"string"},{"type":"null"}],"default":null,"title":"Note"}},"required":["parts"],"title":"Order","type":"object"}`,
		"pydantic, recursive": `{"$defs":{"Node":{"properties":{"v":{"type":"integer","title":"V"},"next":{"anyOf":[{"$ref":"#/$defs/Node"},{"type":"null"}]}},"required":["v","next"],"title":"Node","type":"object"}},"$ref":"#/$defs/Node"}`,
	}
	for name, s := range keywords {
		end := `,"additionalProperties":false`
		if strings.Contains(s, "/$defs/x") {
			end += `,"$defs":{"x":{"type":"string","minLength":2}}`
		} else if strings.Contains(s, "/$defs/node") {
			end += `,"$defs":{"node":{"type":"object","properties":{"next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},"required":["next"]}}`
		}
		start := `{"type":"object","properties":{"p":` + s + `,"first":{"type":"string"}},"required":`
		all[name] = start + `["p","first"]` + end + "}"
		all[name+", optional"] = start + `["first"]` + end + "}"
	}
	return all
}

// Each schema, for an answer and for tools, is written so that the provider accepts it
// without losing a constraint: each constraint is a keyword or in a description, or the
// whole schema is in a tool that is not strict.
func TestSchemas(t *testing.T) {
	t.Parallel()
	up := gatewaytest.New(t)
	targets := map[string]*hub.Target{
		"messages":        {Provider: "anthropic", Model: "claude-opus-4-6"},
		"converse":        {Provider: "bedrock", Model: "anthropic.claude-opus-4-6-v1"},
		"converse, newer": {Provider: "bedrock", Model: "anthropic.claude-opus-5-v1"},
		"chatcompletions": {Provider: "openai", Model: "gpt-5", Quirks: chatcompletions.Known("openai")},
		"responses":       {Provider: "openai", Model: "gpt-5"},
		"gemini":          {Provider: "google", Model: "gemini-3-pro"},
		"gemini, OpenAPI": {Provider: "google", Model: "gemini-2.0-flash", Quirks: map[string]bool{"openapi-schema": true}},
	}
	for name, target := range targets {
		up.On(target.Model, gatewaytest.Answer{Reply: gatewaytest.Reply{Text: "{}"}})
		format, _, _ := strings.Cut(name, ",")
		u := upstreams()[format]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for of, s := range schemas() {
				for as, c := range schemaCalls(s) {
					out, warnings, err := u.WriteCall(c, target)
					if err != nil {
						if name != "gemini, OpenAPI" || !strings.Contains(of, "recursi") {
							t.Errorf("%s as %s: %v", of, as, err)
						}
						continue
					}
					if said := post(t, up, format, out); said != "" {
						t.Errorf("%s as %s is refused: %s\n%s", of, as, said, out.Body)
					}
					if lost := vanished(s, string(out.Body)); len(lost) > 0 {
						t.Errorf("%s as %s: %v vanished, with the warnings %v\n%s", of, as, lost, warnings, out.Body)
					}
				}
			}
		})
	}
}

func schemaCalls(s string) map[string]*hub.Call {
	yes, no := true, false
	prompt := []hub.Message{{Role: hub.User, Parts: []hub.Part{{Kind: hub.TextPart, Text: "hi"}}}}
	call := func(f *hub.Format, tools ...hub.Tool) *hub.Call {
		return &hub.Call{Prompt: prompt, MaxOutputTokens: hub.N(100), Format: f, Tools: tools}
	}
	raw := json.RawMessage(s)
	return map[string]*hub.Call{
		"a format":        call(&hub.Format{Schema: raw}),
		"a strict format": call(&hub.Format{Schema: raw, Strict: &yes}),
		"a loose format":  call(&hub.Format{Schema: raw, Strict: &no}),
		"a tool":          call(nil, hub.Tool{Name: "f", InputSchema: raw}),
		"a strict tool":   call(nil, hub.Tool{Name: "f", InputSchema: raw, Strict: &yes}),
	}
}

// post sends a request to a provider and returns the reason of a refusal.
func post(t *testing.T, up *gatewaytest.Upstream, format string, out *hub.Outgoing) string {
	t.Helper()
	base := map[string]string{"gemini": "/v1beta", "converse": ""}
	prefix, ok := base[format]
	if !ok {
		prefix = "/v1"
	}
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, prefix+out.Path, bytes.NewReader(out.Body))
	maps.Copy(req.Header, out.Head)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+gatewaytest.Key)
	w := httptest.NewRecorder()
	up.ServeHTTP(w, req)
	if w.Code != http.StatusOK {
		return fmt.Sprint(w.Code, " ", w.Body)
	}
	return ""
}

// equals maps keywords that a provider writes differently to texts of the provider's
// form.
var equals = map[string][]string{
	"oneOf": {"anyOf"}, "anyOf": {`"nullable":true`}, "const": {"enum", "One of"}, "enum": {"One of"}, "allOf": {`"y"`, "and: "},
	"$ref": {"minLength", `"type":"string"`, `"type":"STRING"`, `"type":"object"`, `"type":"OBJECT"`}, "$defs": {"minLength", `"OBJECT"`, `"object"`},
	"prefixItems": {"anyOf"}, "additionalProperties": {"OBJECT"}, "Node": {"next"}, "Kind": {`["a","b"]`}, "Part": {"exclusiveMinimum"}, "node": {"next"}, "x": {"minLength"},
}

// vanished returns the keywords of a schema that do not occur in a request.
func vanished(schema, request string) []string {
	var lost []string
	for _, name := range keywordsOf(json.RawMessage(schema)) {
		inOtherWords := slices.ContainsFunc(equals[name], func(words string) bool { return strings.Contains(request, words) })
		if !strings.Contains(request, name) && !inOtherWords {
			lost = append(lost, name)
		}
	}
	return lost
}

// keywordsOf returns all member names in a schema except $schema.
func keywordsOf(raw json.RawMessage) []string {
	var names []string
	var m map[string]json.RawMessage
	var l []json.RawMessage
	switch {
	case json.Unmarshal(raw, &m) == nil:
		for name, inside := range m {
			if name != "$schema" {
				names = append(append(names, name), keywordsOf(inside)...)
			}
		}
	case json.Unmarshal(raw, &l) == nil:
		for _, e := range l {
			names = append(names, keywordsOf(e)...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
