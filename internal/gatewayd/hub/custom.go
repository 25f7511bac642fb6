package hub

import (
	"encoding/json"
	"strings"
)

// Custom tools are those of OpenAI's whose input is text and no JSON. In the hub they are
// tools with the option openai.custom, which is the format of the text in the words of the
// Responses API; their schema is one of an object with the text as its member input, for
// providers that have functions only.

// OptionCustom is the option of a custom tool, and of a call of one.
const OptionCustom = "custom"

// customSchema is the schema of a custom tool.
const customSchema = `{"type":"object","properties":{"input":{"type":"string"}},"required":["input"],"additionalProperties":false}`

// CustomTool returns a custom tool. A format that is null is any text. The grammar of one
// goes into the description, for models that are not held to it.
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

// IsCustom reports whether a tool is a custom one.
func (t *Tool) IsCustom() bool { return t.ProviderID == "" && t.Options["openai"][OptionCustom] != nil }

// Custom returns the description and the format that a custom tool was given with.
func (t *Tool) Custom() (description string, format json.RawMessage) {
	description = t.Description
	t.Options.Get("openai", "description", &description)
	return description, t.Options["openai"][OptionCustom]
}

// CustomInput returns the text that a custom tool is called with: its input is a JSON string,
// or an object of the tool's schema.
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

// CustomObject is the input of a custom tool as an object of its schema.
func CustomObject(text string) string {
	return string(MustEncode(map[string]string{"input": text}))
}
