package responses

import (
	"encoding/json"
	"strings"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// A namespace is a tool that has tools: functions with a name and a description in
// common, as Codex sends them. A call of one of them is a function_call whose name is
// the function's and whose member namespace is the namespace's. Providers with
// functions only know them as namespace__function.

// namespaceSeparator is between the names.
const namespaceSeparator = "__"

// namespace is what a tool in the hub knows of its own, as the option
// openai.namespace.
type namespace struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
}

// joined is the name of a function in the hub.
func joined(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + namespaceSeparator + name
}

// namespaceOf returns that of a tool; its name is empty if it has none.
func namespaceOf(t *hub.Tool) (n namespace) {
	if t.ProviderID == "" {
		t.Options.Get(optProvider, optNamespace, &n)
	}
	return n
}

// bare is the name of a tool within its namespace.
func (n namespace) bare(name string) string {
	if n.Name == "" {
		return name
	}
	return strings.TrimPrefix(name, n.Name+namespaceSeparator)
}

// inNamespace marks a tool as one of a namespace.
func inNamespace(t *hub.Tool, n namespace) {
	t.Name = joined(n.Name, t.Name)
	t.Options.Set(optProvider, optNamespace, n)
}

// namespaceTool returns the tool that has the tools of n, which is added to all at
// its first one.
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

// namespaced finds the namespaces of calls that a provider has made of tools of
// namespaces by their names in the hub.
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

// callOf returns the name of a call, and its namespace as JSON, nil if it has none.
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
