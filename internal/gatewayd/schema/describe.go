package schema

import (
	"encoding/json"

	"github.com/tidwall/gjson"
)

// Describe adds a description to a schema that has none, for providers that have no other
// place for the description of an answer.
func Describe(raw json.RawMessage, description string) json.RawMessage {
	root := gjson.ParseBytes(raw)
	if description == "" || !root.IsObject() || root.Get("description").Exists() {
		return raw
	}
	var out object
	for _, k := range membersOf(root) {
		out.add(k.name, json.RawMessage(k.value.Raw))
	}
	out.add("description", text(description))
	return out.end()
}
