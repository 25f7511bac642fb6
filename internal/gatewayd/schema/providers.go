package schema

import (
	"regexp"
	"slices"

	"github.com/tidwall/gjson"
)

func set(names ...string) map[string]bool {
	all := make(map[string]bool, len(names))
	for _, name := range names {
		all[name] = true
	}
	return all
}

// Anthropic holds the rules for output_config.format and strict tools on Anthropic's own
// API, on Bedrock and on Vertex AI. Sources: Anthropic's guide "Structured outputs",
// section "JSON Schema limitations", and the transformation in its SDKs for TypeScript
// and Python.
var Anthropic = &Rules{
	keywords: set("type", "title", "description", "enum", "const", "properties", "required", "additionalProperties", "items", "minItems", "format",
		"anyOf", "$ref", "$defs", "definitions"),
	renamed: map[string]string{"oneOf": "anyOf"},
	takes: func(keyword string, v gjson.Result, types []string) bool {
		switch keyword {
		case "minItems":
			return v.Num == 0 || v.Num == 1
		case "format":
			return slices.Contains(types, "string") && stringFormats[v.Str]
		case "enum":
			return len(v.Array()) > 0 && !slices.ContainsFunc(v.Array(), composite)
		case "const":
			return !composite(v)
		case "items":
			return v.IsObject()
		}
		return true
	},
	closed: true, typed: true, acyclic: true, bareRefs: true,
	limits: Limits{Optional: 24, Unions: 16},
}

// AnthropicTool holds the rules for the input_schema of tools without strict: all of JSON
// Schema, but the root must be an object and no union.
var AnthropicTool = &Rules{every: true, object: true}

// OpenAI holds the rules for strict schemas on OpenAI and Azure. Source: OpenAI's guide
// "Structured model outputs", section "Supported schemas".
var OpenAI = &Rules{
	keywords: set("type", "title", "description", "enum", "const", "properties", "required", "additionalProperties", "items", "minItems", "maxItems",
		"format", "pattern", "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "anyOf", "$ref", "$defs", "definitions"),
	renamed: map[string]string{"oneOf": "anyOf"},
	takes: func(keyword string, v gjson.Result, types []string) bool {
		switch keyword {
		case "format":
			return slices.Contains(types, "string") && stringFormats[v.Str] && v.Str != "uri"
		case "pattern":
			return regular(v.Str)
		case "exclusiveMinimum", "exclusiveMaximum":
			return v.Type == gjson.Number // draft 4 has a boolean here
		}
		return true
	},
	closed: true, allRequired: true, typed: true, itemized: true, bareRefs: true, object: true,
	limits: Limits{Properties: 5000, Enums: 1000, Depth: 10},
}

// OpenAITool holds the rules for the parameters of functions without strict: all of JSON
// Schema except patterns with lookaround, but the root must be an object and no union.
var OpenAITool = &Rules{
	every: true, object: true,
	takes: func(keyword string, v gjson.Result, _ []string) bool {
		return keyword != "pattern" || v.Type != gjson.String || regular(v.Str)
	},
}

// Gemini holds the rules for responseJsonSchema and parametersJsonSchema, from the
// reference of GenerationConfig.responseJsonSchema. Google ignores other keywords.
var Gemini = &Rules{
	keywords: set("type", "title", "description", "enum", "properties", "required", "additionalProperties", "items", "prefixItems", "minItems", "maxItems",
		"minimum", "maximum", "format", "anyOf", "propertyOrdering", "$ref", "$defs", "$anchor"),
	renamed: map[string]string{"oneOf": "anyOf", "definitions": "$defs"},
	takes: func(keyword string, v gjson.Result, types []string) bool {
		switch keyword {
		case "format":
			return GeminiFormat(v.Str, types)
		case "enum":
			return len(v.Array()) > 0 && !slices.ContainsFunc(v.Array(), func(e gjson.Result) bool {
				return e.Type != gjson.String && e.Type != gjson.Number && e.Type != gjson.Null
			})
		}
		return true
	},
	bareRefs: true,
}

// GeminiFormat reports whether Gemini supports a format for values of these types, given
// in lower case.
func GeminiFormat(format string, types []string) bool {
	for _, t := range types {
		if slices.Contains(geminiFormats[t], format) {
			return true
		}
	}
	return false
}

var geminiFormats = map[string][]string{
	"string":  {"date-time", "enum"},
	"number":  {"float", "double"},
	"integer": {"int32", "int64"},
}

// stringFormats are the formats that Anthropic supports; OpenAI supports all of them
// except uri.
var stringFormats = set("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid")

// composite reports whether a value is an object or a list.
func composite(v gjson.Result) bool { return v.IsObject() || v.IsArray() }

// Regular reports whether a decoded value is a pattern without lookaround and
// backreferences.
func Regular(pattern any) bool {
	s, ok := pattern.(string)
	return ok && regular(s)
}

// regular reports whether a pattern has neither lookaround nor backreferences. OpenAI
// refuses other patterns.
func regular(pattern string) bool {
	_, err := regexp.Compile(pattern)
	return err == nil
}

// Spend subtracts the counts of a strict schema from the limits, and reports whether they
// sufficed. Anthropic's limits apply to all schemas of a request together.
func (l *Limits) Spend(counts Limits) bool {
	if counts.Optional > l.Optional || counts.Unions > l.Unions {
		return false
	}
	l.Optional -= counts.Optional
	l.Unions -= counts.Unions
	return true
}
