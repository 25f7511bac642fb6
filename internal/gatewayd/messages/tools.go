package messages

import (
	"encoding/json"
	"regexp"
	"strings"
	"sync"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/claude"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// toolName matches the tool names that Anthropic accepts.
var toolName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[a-zA-Z0-9_-]{1,128}$`)
})

// emptySchema is the schema of a tool without parameters.
var emptySchema = json.RawMessage(`{"type":"object","properties":{}}`)

func (w *callWriter) tools() error {
	for i := range w.call.Tools {
		t := &w.call.Tools[i]
		var out *tool
		var err error
		if t.ProviderID != "" {
			out, err = w.providerTool(t)
		} else {
			out, err = w.tool(t)
		}
		if err != nil {
			return err
		}
		w.mark(&out.CacheControl, t.Options)
		w.out.Tools = append(w.out.Tools, out)
	}
	return nil
}

func (w *callWriter) tool(t *hub.Tool) (*tool, error) {
	if !toolName().MatchString(t.Name) {
		return nil, bad("tools", "the name of the tool %.200q is none for this provider: it takes up to 128 letters, digits, _ and -", t.Name)
	}
	out := &tool{Name: t.Name, Description: t.Description, InputSchema: t.InputSchema, Examples: t.Examples}
	if len(out.InputSchema) == 0 || string(out.InputSchema) == "null" {
		out.InputSchema = emptySchema
	}
	if given := gjson.ParseBytes(out.InputSchema); !given.IsObject() {
		return nil, bad("tools", "the schema of the tool %s is not a JSON object", t.Name)
	} else if !given.Get("type").Exists() {
		out.InputSchema = join([]byte(`{"type":"object"}`), out.InputSchema)
	}
	if len(t.Examples) > 0 {
		w.beta("advanced-tool-use-2025-11-20")
	}
	if t.Strict != nil && *t.Strict {
		if !w.model.Formats {
			w.unsupported("tools."+t.Name+".strict", "the model does not know it")
		} else {
			fitted, warnings := w.strict.Tool(t.Name, out.InputSchema)
			w.warnings = append(w.warnings, warnings...)
			if fitted != nil {
				out.Strict, out.InputSchema = true, fitted
			}
		}
	}
	if !out.Strict {
		out.InputSchema = w.inputSchema(out.InputSchema, "tools."+t.Name+".inputSchema")
	}
	for _, name := range []string{"deferLoading", "allowedCallers", "eagerInputStreaming"} {
		raw, ok := t.Options[self][name]
		if !ok {
			continue
		}
		more, err := hub.Encode(map[string]json.RawMessage{snake(name): raw})
		if err != nil {
			return nil, bad("tools", "the option %s of the tool %s is not JSON", name, t.Name)
		}
		out.more = moreMembers(out.more, more)
		if name != "eagerInputStreaming" {
			w.beta("advanced-tool-use-2025-11-20")
		}
	}
	return out, nil
}

// inputSchema returns a schema adapted for a tool without strict.
func (w *callWriter) inputSchema(raw json.RawMessage, feature string) json.RawMessage {
	fitted, warnings := claude.InputSchema(raw, feature)
	w.warnings = append(w.warnings, warnings...)
	return fitted
}

// moreMembers joins two objects, each of which may be nil.
func moreMembers(a, b json.RawMessage) json.RawMessage {
	if a == nil {
		return b
	}
	return join(a, b)
}

// providerTool encodes a tool that Anthropic defines, anthropic.<type>.
func (w *callWriter) providerTool(t *hub.Tool) (*tool, error) {
	kind, ok := strings.CutPrefix(t.ProviderID, self+".")
	if !ok {
		return nil, bad("tools", "the tool %s (%s) is of another provider; %s cannot run it", t.Name, t.ProviderID, w.target.Provider)
	}
	kind = typeOfID(kind)
	out := &tool{Type: kind, Name: nameOfType(kind)}
	switch {
	case kind == "mcp_toolset": // is not called by a name
	case out.Name == "":
		out.Name = t.Name
	case out.Name != t.Name:
		w.otherwise("tools."+t.Name, "the provider calls it %s", out.Name)
	}
	if len(t.Args) > 0 && string(t.Args) != "null" {
		if out.more = snakes(t.Args); out.more[0] != '{' {
			return nil, bad("tools", "the args of the tool %s are not an object", t.Name)
		}
	}
	w.beta(betasOfTool[kind]...)
	return out, nil
}

// typeOfID returns Anthropic's type of the tool anthropic.<id>: for example, the AI SDK's
// tool_search_bm25_20251119 is tool_search_tool_bm25_20251119.
func typeOfID(id string) string {
	if rest, ok := strings.CutPrefix(id, "tool_search_"); ok && !strings.HasPrefix(rest, "tool_") {
		return "tool_search_tool_" + rest
	}
	return id
}

// nameOfType returns the required name of a tool type, empty if any name is allowed.
func nameOfType(kind string) string {
	switch kind {
	case "text_editor_20241022", "text_editor_20250124":
		return "str_replace_editor"
	}
	for prefix, name := range map[string]string{
		"bash_2": "bash", "text_editor_2": "str_replace_based_edit_tool", "computer_2": "computer", "memory_2": "memory",
		"web_search_2": "web_search", "web_fetch_2": "web_fetch", "code_execution_2": "code_execution", "advisor_2": "advisor",
		"tool_search_tool_regex_2": "tool_search_tool_regex", "tool_search_tool_bm25_2": "tool_search_tool_bm25",
	} {
		if strings.HasPrefix(kind, prefix) {
			return name
		}
	}
	return ""
}

// nameOf returns the provider's name of a caller's tool.
func (w *callWriter) nameOf(name string) string {
	for i := range w.call.Tools {
		t := &w.call.Tools[i]
		if kind, ok := strings.CutPrefix(t.ProviderID, self+"."); ok && t.Name == name {
			if own := nameOfType(typeOfID(kind)); own != "" {
				return own
			}
		}
	}
	return name
}

// betasOfTool lists the beta features that a tool requires, from Anthropic's
// documentation.
var betasOfTool = map[string][]string{
	"code_execution_20250522":         {"code-execution-2025-05-22"},
	"code_execution_20250825":         {"code-execution-2025-08-25"},
	"computer_20241022":               {"computer-use-2024-10-22"},
	"text_editor_20241022":            {"computer-use-2024-10-22"},
	"bash_20241022":                   {"computer-use-2024-10-22"},
	"computer_20250124":               {"computer-use-2025-01-24"},
	"text_editor_20250124":            {"computer-use-2025-01-24"},
	"text_editor_20250429":            {"computer-use-2025-01-24"},
	"bash_20250124":                   {"computer-use-2025-01-24"},
	"computer_20251124":               {"computer-use-2025-11-24"},
	"memory_20250818":                 {"context-management-2025-06-27"},
	"web_fetch_20250910":              {"web-fetch-2025-09-10"},
	"tool_search_tool_regex_20251119": {"advanced-tool-use-2025-11-20"},
	"tool_search_tool_bm25_20251119":  {"advanced-tool-use-2025-11-20"},
	"advisor_20260301":                {"advisor-tool-2026-03-01"},
	"mcp_toolset":                     {"mcp-client-2025-11-20"},
}

// toolChoice must run after thinking and format, which both restrict it.
func (w *callWriter) toolChoice() {
	c := w.call
	if len(w.out.Tools) == 0 {
		if c.ToolChoice.Mode == hub.ToolRequired || c.ToolChoice.Mode == hub.ToolNamed {
			w.unsupported("toolChoice", "there are no tools")
		}
		return
	}
	parallel := c.ParallelTools == nil || *c.ParallelTools
	var off bool
	if c.Options.Get(self, "disableParallelToolUse", &off) && off {
		parallel = false
	}
	choice := &toolChoice{}
	switch c.ToolChoice.Mode {
	case hub.ToolNone:
		choice.Type = "none"
	case hub.ToolRequired:
		choice.Type = "any"
	case hub.ToolNamed:
		choice.Type, choice.Name = "tool", w.nameOf(c.ToolChoice.Tool)
	case hub.ToolAuto:
		choice.Type = "auto"
	}
	if w.answersByTool() {
		parallel = false
		if len(w.out.Tools) == 1 || choice.Type == "none" {
			choice = &toolChoice{Type: "tool", Name: hub.AnswerTool}
		} else if choice.Type != "tool" {
			choice.Type = "any"
		}
	}
	if w.thinks() && (choice.Type == "any" || choice.Type == "tool") {
		w.otherwise("toolChoice", "the model cannot be made to call a tool while it thinks: it may choose")
		choice.Type, choice.Name = "auto", ""
	}
	if !parallel && choice.Type != "none" {
		choice.DisableParallel = true
		if choice.Type == "" {
			choice.Type = "auto"
		}
	}
	if choice.Type != "" {
		w.out.ToolChoice = choice
	}
}
