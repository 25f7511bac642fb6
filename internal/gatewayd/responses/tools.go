package responses

import (
	"cmp"
	"encoding/json"
	"strings"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

func (w *callWriter) tools() error {
	types := make(map[string]string) // type of the tools that are no functions, by name
	for i := range w.call.Tools {
		t := &w.call.Tools[i]
		if t.ProviderID == "" {
			tool := w.function(t)
			if tool["type"] == "custom" {
				types[t.Name], w.custom[t.Name] = "custom", true
			}
			if n := namespaceOf(t); n.Name != "" {
				var of object
				w.body.Tools, of = namespaceTool(w.body.Tools, n)
				of["tools"] = append(of["tools"].([]any), tool)
				continue
			}
			w.body.Tools = append(w.body.Tools, tool)
			continue
		}
		tool, kind, err := w.hosted(t)
		if err != nil {
			return err
		}
		types[t.Name] = kind
		w.custom[t.Name] = t.ProviderID == "openai.custom"
		w.body.Tools = append(w.body.Tools, tool)
	}
	switch choice := w.call.ToolChoice; choice.Mode {
	case hub.ToolDefault:
	case hub.ToolNamed:
		kind := types[choice.Tool]
		name, namespace := w.namespaces.callOf(choice.Tool, nil)
		switch kind {
		case "", "custom":
			chosen := object{"type": cmp.Or(kind, "function"), "name": name}
			if namespace != nil {
				chosen[optNamespace] = namespace
			}
			w.body.ToolChoice = chosen
		case "mcp":
			w.body.ToolChoice = object{"type": "mcp", "server_label": strings.TrimPrefix(choice.Tool, "mcp.")}
		default:
			w.body.ToolChoice = object{"type": kind}
		}
	default:
		if len(w.body.Tools) > 0 {
			w.body.ToolChoice = choice.Mode
		}
	}
	return nil
}

// function writes a client's tool. strict is always written, because the format's default
// is true.
func (w *callWriter) function(t *hub.Tool) object {
	name := namespaceOf(t).bare(t.Name)
	if t.IsCustom() {
		description, format := t.Custom()
		tool := object{"type": "custom", "name": name, "format": format}
		if description != "" {
			tool["description"] = description
		}
		return tool
	}
	parameters := t.InputSchema
	if hub.IsNull(parameters) {
		parameters = json.RawMessage(`{"type":"object","properties":{}}`)
	}
	parameters, strict := w.fitted(parameters, t.Strict != nil && *t.Strict, "tools."+t.Name+".inputSchema")
	tool := object{"type": "function", "name": name, "parameters": parameters, "strict": strict}
	if t.Description != "" {
		tool["description"] = t.Description
	}
	for option, member := range map[string]string{"deferLoading": "defer_loading", "allowedCallers": "allowed_callers", "outputSchema": "output_schema"} {
		if v := t.Options[optProvider][option]; v != nil {
			tool[member] = v
		}
	}
	if len(t.Examples) > 0 {
		w.unsupported("tools."+t.Name+".inputExamples", "the Responses API has none")
	}
	return tool
}

// hosted writes a tool of the provider; its settings may be in the AI SDK's camel case or
// in the wire form.
func (w *callWriter) hosted(t *hub.Tool) (object, string, error) {
	provider, kind, _ := strings.Cut(t.ProviderID, ".")
	if kind == "" || provider != optProvider && provider != w.target.Provider && provider != "azure" && provider != "xai" {
		return nil, "", &hub.Error{Kind: hub.BadRequest, Param: "tools", Message: "the tool " + t.ProviderID + " is not one that " + w.target.Provider + " has"}
	}
	tool := object{}
	if !hub.IsNull(t.Args) {
		if err := json.Unmarshal(snake(t.Args), &tool); err != nil {
			return nil, "", &hub.Error{Kind: hub.BadRequest, Param: "tools", Message: "the settings of the tool " + t.Name + " are not an object", Cause: err}
		}
	}
	tool["type"] = kind
	switch kind {
	case "custom":
		if tool["name"] == nil {
			tool["name"] = t.Name
		}
		if t.Description != "" && tool["description"] == nil {
			tool["description"] = t.Description
		}
	case "code_interpreter":
		switch container := tool["container"].(type) {
		case nil:
			tool["container"] = object{"type": "auto"}
		case map[string]any:
			if container["type"] == nil {
				container["type"] = "auto"
			}
		}
	}
	return tool, kind, nil
}
