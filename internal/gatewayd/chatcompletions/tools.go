package chatcompletions

import (
	"encoding/json"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/schema"
)

func (w *callWriter) tools() {
	c, b := w.c, &w.b
	if len(c.Tools) == 0 {
		if c.ToolChoice.Mode == hub.ToolRequired || c.ToolChoice.Mode == hub.ToolNamed {
			w.fail("tool_choice", "a tool is to be called, and there are none")
		}
		return
	}
	b.open("tools", '[')
	for i := range c.Tools {
		w.tool(&c.Tools[i])
	}
	b.close(']')
	switch mode := c.ToolChoice.Mode; {
	case mode == hub.ToolNamed && w.t.Is(OpenAI) && w.customs[c.ToolChoice.Tool]:
		b.add(`,"tool_choice":{"type":"custom","custom":{`)
		b.text("name", c.ToolChoice.Tool)
		b.add("}}")
	case mode == hub.ToolNamed:
		b.add(`,"tool_choice":{"type":"function","function":{`)
		b.text("name", c.ToolChoice.Tool)
		b.add("}}")
	case mode == hub.ToolRequired && w.t.Is(ToolChoiceAny):
		b.text("tool_choice", "any")
	case mode != hub.ToolDefault:
		b.text("tool_choice", string(mode))
	}
	if c.ParallelTools != nil {
		if w.t.Is(NoParallelTools) {
			w.unsupported("parallelToolCalls")
		} else {
			b.bool("parallel_tool_calls", *c.ParallelTools)
		}
	}
}

func (w *callWriter) tool(t *hub.Tool) {
	if t.ProviderID != "" {
		w.fail("tools", "the tool %s is one that its provider runs; %s cannot run it in this API", t.ProviderID, w.t.Provider)
		return
	}
	if w.t.Is(OpenAI) && t.IsCustom() {
		w.customTool(t)
		return
	}
	b := &w.b
	b.next()
	b.add(`{"type":"function","function":{`)
	b.text("name", t.Name)
	if t.Description != "" {
		b.text("description", t.Description)
	}
	parameters, strict := t.InputSchema, t.Strict
	if len(parameters) == 0 {
		parameters = json.RawMessage(noParameters)
	}
	if w.t.Is(OpenAI) && valid(parameters) {
		wanted := strict != nil && *strict
		fitted, is, warnings := schema.ForOpenAI(parameters, "tools."+t.Name+".inputSchema", &wanted)
		w.warnings = append(w.warnings, warnings...)
		if parameters = fitted; strict != nil {
			strict = &is
		}
	}
	b.raw("parameters", parameters)
	if strict != nil && !w.t.Is(NoStrict) {
		b.bool("strict", *strict)
	}
	b.close('}')
	if mark := w.mark(t.Options); mark != nil {
		b.raw("cache_control", mark)
	}
	b.close('}')
	if len(t.Examples) > 0 {
		w.warn(hub.WarnUnsupported, "tools."+t.Name+".inputExamples", "the provider's tools have none")
	}
}
