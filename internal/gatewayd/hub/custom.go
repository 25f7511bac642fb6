package hub

import (
	"encoding/json"
	"strings"
)

// Custom tools are OpenAI's tools whose input is text instead of JSON. In the hub they
// are tools with the option openai.custom, which is the format of the text in the
// Responses API's form; their schema is an object with the text as the member input, for
// providers that support only functions.

// OptionCustom is the option of a custom tool, and of its calls.
const OptionCustom = "custom"

// customSchema is the schema of a custom tool.
const customSchema = `{"type":"object","properties":{"input":{"type":"string"}},"required":["input"],"additionalProperties":false}`

// CustomTool returns a custom tool. A null format means any text. A grammar is added to
// the description, for models that are not constrained by it.
func CustomTool(name, description string, format json.RawMessage) Tool {
	t := Tool{Name: name, Description: description, InputSchema: json.RawMessage(customSchema)}
	if IsNull(format) {
		t.Options.SetRaw("openai", OptionCustom, json.RawMessage(`{"type":"text"}`))
		return t
	}
	t.Options.SetRaw("openai", OptionCustom, format)
	t.Options.Set("openai", "description", description)
	var f struct{ Syntax, Definition string }
	if json.Unmarshal(format, &f) == nil && f.Definition != "" {
		t.Description = strings.TrimSpace(description + "\n\nThe input must match this " + f.Syntax + " grammar:\n" + f.Definition)
	}
	return t
}

// IsCustom reports whether a tool is a custom tool.
func (t *Tool) IsCustom() bool { return t.ProviderID == "" && t.Options["openai"][OptionCustom] != nil }

// Custom returns the original description and format of a custom tool.
func (t *Tool) Custom() (description string, format json.RawMessage) {
	description = t.Description
	t.Options.Get("openai", "description", &description)
	return description, t.Options["openai"][OptionCustom]
}

// CustomInput returns the text of a custom tool call, whose input is a JSON string, or an
// object of the tool's schema.
func CustomInput(input string) string {
	var s string
	if json.Unmarshal([]byte(input), &s) == nil {
		return s
	}
	var members map[string]json.RawMessage
	if json.Unmarshal([]byte(input), &members) == nil && len(members) == 1 && json.Unmarshal(members["input"], &s) == nil {
		return s
	}
	return input
}

// CustomObject returns a custom tool's input as an object of its schema.
func CustomObject(text string) string {
	return string(MustEncode(map[string]string{"input": text}))
}
