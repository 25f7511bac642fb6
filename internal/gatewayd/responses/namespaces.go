package responses

import (
	"encoding/json"
	"strings"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// A namespace is a tool that contains tools: functions with a common name and
// description, as Codex sends them. A call of such a function is a function_call with the
// function's name and a member namespace. Providers that support only functions get them
// as namespace__function.

// namespaceSeparator separates the two names.
const namespaceSeparator = "__"

// namespace is the namespace of a tool in the hub, kept as the option openai.namespace.
type namespace struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
}

// joined returns the hub's name of a function in a namespace.
func joined(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + namespaceSeparator + name
}

// namespaceOf returns the namespace of a tool; its name is empty if the tool has none.
func namespaceOf(t *hub.Tool) (n namespace) {
	if t.ProviderID == "" {
		t.Options.Get(optProvider, optNamespace, &n)
	}
	return n
}

// bare returns the name of a tool within its namespace.
func (n namespace) bare(name string) string {
	if n.Name == "" {
		return name
	}
	return strings.TrimPrefix(name, n.Name+namespaceSeparator)
}

// inNamespace sets the namespace of a tool.
func inNamespace(t *hub.Tool, n namespace) {
	t.Name = joined(n.Name, t.Name)
	t.Options.Set(optProvider, optNamespace, n)
}

// namespaceTool returns the tool for namespace n, and appends it to all if it is new.
func namespaceTool(all []any, n namespace) ([]any, object) {
	for _, t := range all {
		if o, ok := t.(object); ok && o["type"] == optNamespace && o["name"] == n.Name {
			return all, o
		}
	}
	o := object{"type": optNamespace, "name": n.Name, "tools": []any{}}
	if n.Description != "" {
		o["description"] = n.Description
	}
	return append(all, o), o
}

// namespaced maps hub names of tools to namespaces, to restore the namespaces of a
// provider's calls.
type namespaced map[string]namespace

func newNamespaced(tools []hub.Tool) namespaced {
	var all namespaced
	for i := range tools {
		if n := namespaceOf(&tools[i]); n.Name != "" {
			if all == nil {
				all = make(namespaced)
			}
			all[tools[i].Name] = n
		}
	}
	return all
}

// callOf returns the name of a call, and its namespace as JSON, nil if there is none.
func (all namespaced) callOf(name string, o hub.Options) (string, json.RawMessage) {
	if raw := o[optProvider][optNamespace]; raw != nil { // the provider has namespaces, too
		var of string
		if json.Unmarshal(raw, &of) != nil {
			return name, nil
		}
		return namespace{Name: of}.bare(name), raw
	}
	if n, ok := all[name]; ok {
		return n.bare(name), hub.MustEncode(n.Name)
	}
	return name, nil
}
