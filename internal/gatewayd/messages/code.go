package messages

import (
	"encoding/json"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// A caller gives Anthropic one tool to run code, code_execution, and the model calls one
// of three tools: code_execution, bash_code_execution or text_editor_code_execution. As
// in the AI SDK, the hub uses the name that the caller gave; the member type of the input
// says which of the three was called.

const codeExecution = "code_execution"

// isCode reports whether a tool is one of the two that the hub calls code_execution.
func isCode(name string) bool {
	return name == "bash_code_execution" || name == "text_editor_code_execution"
}

// typed inserts the type into a streamed input.
type typed struct {
	name string // empty: no type to insert
	held string // input held back until the place of the type is known
}

// add processes a piece and returns the bytes to pass on.
func (t *typed) add(piece string) string {
	if t.name == "" {
		return piece
	}
	t.held += piece
	object := strings.TrimLeft(t.held, " \t\r\n")
	if object == "" {
		return ""
	}
	members := strings.TrimLeft(object[1:], " \t\r\n")
	if object[0] == '{' && members == "" {
		return ""
	}
	out := t.held
	if object[0] == '{' {
		out = `{"type":"` + t.name + `"`
		if members[0] != '}' {
			out += ","
		}
		out += members
	}
	t.name, t.held = "", ""
	return out
}

// codeName returns Anthropic's name and input of a code tool call, the inverse of the
// mapping above. name is Anthropic's name of the caller's tool.
func codeName(name string, input json.RawMessage) (string, json.RawMessage) {
	kind := gjson.GetBytes(input, "type").Str
	if name != codeExecution || !isCode(kind) && kind != "programmatic-tool-call" {
		return name, input
	}
	rest := without(gjson.ParseBytes(input), "type")
	if rest == nil {
		rest = json.RawMessage("{}")
	}
	if isCode(kind) {
		name = kind
	}
	return name, rest
}

// codeResult returns the block type for a result of code_execution, which depends on the
// content.
func codeResult(o *hub.ToolOutput) string {
	kind := gjson.GetBytes(outputJSON(o), "type").Str
	for _, name := range []string{"bash_code_execution", "text_editor_code_execution"} {
		if strings.HasPrefix(kind, name) {
			return name + "_tool_result"
		}
	}
	return codeExecution + "_tool_result"
}
