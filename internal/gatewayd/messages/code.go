package messages

import (
	"encoding/json"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// A caller gives Anthropic one tool to run code with, code_execution, and its model
// calls one of three: that, bash_code_execution or text_editor_code_execution. As
// in the AI SDK, the hub knows the one that the caller gave: which of them it was is
// the member type of the input.

const codeExecution = "code_execution"

// isCode reports whether a tool is one of the two that callers know as
// code_execution.
func isCode(name string) bool {
	return name == "bash_code_execution" || name == "text_editor_code_execution"
}

// typed puts the type into an input that comes piece by piece.
type typed struct {
	name string // empty: there is none to be put
	held string // what came before it is known where it goes
}

// add takes a piece and returns what can be passed on.
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

// codeName returns what Anthropic calls a tool that it ran, and the input it was
// given: the reverse of what is said above. name is what Anthropic calls the tool
// that the caller gave.
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

// codeResult returns the type of the block for a result of code_execution, which
// its content tells.
func codeResult(o *hub.ToolOutput) string {
	kind := gjson.GetBytes(outputJSON(o), "type").Str
	for _, name := range []string{"bash_code_execution", "text_editor_code_execution"} {
		if strings.HasPrefix(kind, name) {
			return name + "_tool_result"
		}
	}
	return codeExecution + "_tool_result"
}
