package aisdk

import (
	"strings"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// warnings appends the member warnings: the call's warnings, which the caller need not
// include in lists, and lists, each warning once.
func (w *answer) warnings(dst []byte, lists ...[]hub.Warning) []byte {
	dst = append(key(dst, "warnings"), '[')
	if w.Call != nil {
		lists = append([][]hub.Warning{w.Call.Warnings}, lists...)
	}
	seen := make(map[hub.Warning]bool)
	for _, list := range lists {
		for _, warning := range list {
			if !seen[warning] {
				seen[warning] = true
				dst = w.warning(item(dst), warning)
			}
		}
	}
	return append(dst, ']')
}

func (w *answer) warning(dst []byte, warning hub.Warning) []byte {
	kind := string(warning.Kind)
	switch {
	case warning.Kind != hub.WarnUnsupported && warning.Kind != hub.WarnCompatibility, warning.Feature == "":
		return other(dst, sentence(warning))
	case w.Version != "2":
		dst = text(append(dst, '{'), "type", kind)
		dst = text(dst, "feature", warning.Feature)
		return append(optional(dst, "details", warning.Message), '}')
	case warning.Kind == hub.WarnCompatibility:
		return other(dst, sentence(warning))
	}
	name, isTool := strings.CutPrefix(warning.Feature, "tools.")
	if !isTool {
		dst = text(append(dst, '{'), "type", "unsupported-setting")
		dst = text(dst, "setting", warning.Feature)
		return append(optional(dst, "details", warning.Message), '}')
	}
	dst = text(append(dst, '{'), "type", "unsupported-tool")
	dst = append(key(dst, "tool"), '{')
	dst = w.tool(dst, name)
	return append(optional(append(dst, '}'), "details", warning.Message), '}')
}

// tool appends the members that identify a tool in a warning. Version 2 writes the tool
// as an object.
func (w *answer) tool(dst []byte, name string) []byte {
	if w.Call != nil {
		for i := range w.Call.Tools {
			t := &w.Call.Tools[i]
			if t.ProviderID != "" && (t.Name == name || t.ProviderID == name || strings.HasSuffix(t.ProviderID, "."+name)) {
				dst = text(text(dst, "type", "provider-defined"), "id", t.ProviderID)
				return append(text(dst, "name", t.Name), `,"args":{}`...)
			}
		}
	}
	return append(text(text(dst, "type", "function"), "name", name), `,"inputSchema":{}`...)
}

func other(dst []byte, message string) []byte {
	dst = text(append(dst, '{'), "type", "other")
	return append(text(dst, "message", message), '}')
}

// sentence returns a warning as one text.
func sentence(w hub.Warning) string {
	switch {
	case w.Feature == "":
		return w.Message
	case w.Message == "":
		return w.Feature + ": " + string(w.Kind)
	}
	return w.Feature + ": " + w.Message
}
