package schema

import (
	"encoding/json"

	"github.com/tidwall/gjson"
)

// Describe returns a schema with a description, if the schema has none: for providers that
// have no other place to say what an answer is.
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
