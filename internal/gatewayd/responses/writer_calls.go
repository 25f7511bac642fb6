package responses

import (
	"encoding/json"
	"strings"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Calls of the client's tools.

func (w *writer) callStart(id, name string, o hub.Options) *outItem {
	it := &outItem{kind: "function_call", id: o.String(optProvider, optItemID), options: o}
	it.name, it.namespace = w.namespaces.callOf(name, o)
	it.callID = hub.PackID(id, foreign(o))
	var custom bool
	if o.Get(optProvider, optCustom, &custom); custom || w.custom[name] {
		it.kind, it.custom, it.quietInput = "custom_tool_call", true, true
	}
	if it.id == "" {
		it.id = newID("fc_")
	}
	members := it.call0("")
	members["status"] = "in_progress"
	w.open(it, members)
	w.blocks[id] = it
	return it
}

// call0 returns the item of a call.
func (it *outItem) call0(input string) object {
	o := object{"id": it.id, "type": it.kind, "call_id": it.callID, "name": it.name, "status": "completed"}
	if it.custom {
		o["input"] = input
	} else {
		o["arguments"] = input
	}
	if it.namespace != nil {
		o[optNamespace] = it.namespace
	}
	if v := it.options[optProvider][optCaller]; v != nil {
		o[optCaller] = v
	}
	return o
}

func (w *writer) inputDelta(it *outItem, s string) {
	if s == "" {
		return
	}
	it.input.WriteString(s)
	if !it.quietInput {
		w.emit("response.function_call_arguments.delta", "item_id", it.id, "output_index", it.at, "delta", s)
	}
}

func (w *writer) callDone(p *hub.Part) {
	it := w.blocks[p.Call.ID]
	late := p.Options // options that were unknown when the item began
	if it == nil {
		if raw := p.Options[optProvider][optItem]; raw != nil {
			w.rawItem(raw)
			return
		}
		it = w.callStart(p.Call.ID, p.Call.Name, p.Options)
		late = nil
	} else if it.callID != p.Call.ID {
		late = nil // already in the id
	}
	delete(w.blocks, p.Call.ID)
	input := p.Call.Input
	if it.custom {
		input = hub.CustomInput(input)
		w.emit("response.custom_tool_call_input.delta", "item_id", it.id, "output_index", it.at, "delta", input)
		w.emit("response.custom_tool_call_input.done", "item_id", it.id, "output_index", it.at, "input", input)
	} else {
		if rest, ok := strings.CutPrefix(input, it.input.String()); ok && rest != "" {
			w.inputDelta(it, rest)
		}
		w.emit("response.function_call_arguments.done", "item_id", it.id, "output_index", it.at, "arguments", input)
	}
	it.options.Merge(p.Options)
	it.name, it.namespace = w.namespaces.callOf(p.Call.Name, it.options)
	w.done(it, it.call0(input))
	w.afterthought(hub.ToolCallPart, late)
}

// hostedCall begins an item that the tool's result completes.
func (w *writer) hostedCall(p *hub.Part) {
	if raw := p.Options[optProvider][optItem]; raw != nil {
		var it item
		if json.Unmarshal(raw, &it) == nil && it.Type == "image_generation_call" {
			w.calls[p.Call.ID] = &outItem{at: -1, kind: it.Type, call: p}
			return
		}
		w.rawItem(raw)
		return
	}
	it := &outItem{kind: "mcp_call", id: "mcp_" + hub.PackID(p.Call.ID, foreign(p.Options)), call: p}
	w.open(it, it.mcpItem(nil))
	w.emit("response.mcp_call.in_progress", "item_id", it.id, "output_index", it.at)
	w.emit("response.mcp_call_arguments.done", "item_id", it.id, "output_index", it.at, "arguments", p.Call.Input)
	w.calls[p.Call.ID] = it
	w.order = append(w.order, it)
}

// mcpItem returns the item for a tool that another provider ran: a call to an MCP server
// with the gateway's label.
func (it *outItem) mcpItem(result *hub.ToolResult) object {
	o := object{"id": it.id, "type": "mcp_call", "server_label": ourLabel, "name": it.call.Call.Name, "arguments": it.call.Call.Input,
		"approval_request_id": nil, "output": nil, "error": nil, "status": "in_progress"}
	if result == nil {
		return o
	}
	o["status"] = "completed"
	if result.Output.Failed() {
		o["error"] = string(null(result.Output.JSON))
	} else {
		o["output"] = string(null(result.Output.JSON))
	}
	return o
}

func (w *writer) hostedResult(p *hub.Part) {
	if raw := p.Options[optProvider][optItem]; raw != nil {
		w.rawItem(raw)
		return
	}
	it := w.calls[p.Result.CallID]
	if it == nil || p.Result.Preliminary {
		return // already in the call's item
	}
	delete(w.calls, p.Result.CallID)
	if it.kind == "image_generation_call" {
		var out struct{ Result *string }
		_ = json.Unmarshal(p.Result.Output.JSON, &out) // null without a result
		w.rawItem(with(it.call.Options[optProvider][optItem], "result", out.Result))
		return
	}
	w.settle()
	if p.Result.Output.Failed() {
		w.emit("response.mcp_call.failed", "item_id", it.id, "output_index", it.at)
	} else {
		w.emit("response.mcp_call.completed", "item_id", it.id, "output_index", it.at)
	}
	w.done(it, it.mcpItem(p.Result))
	w.afterthought(hub.ToolResultPart, p.Options)
}
