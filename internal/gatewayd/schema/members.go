package schema

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/tidwall/gjson"
)

// member is a keyword of a schema and its value.
type member struct {
	name  string
	value gjson.Result
}

// members are the keywords of a schema in order.
type members []member

func membersOf(v gjson.Result) members {
	var all members
	v.ForEach(func(name, value gjson.Result) bool {
		all = all.set(name.Str, value) // the last of two of a name counts, as in Go and JavaScript
		return true
	})
	return all
}

func (m members) index(name string) int {
	return slices.IndexFunc(m, func(k member) bool { return k.name == name })
}

func (m members) has(name string) bool { return m.index(name) >= 0 }

func (m members) get(name string) (gjson.Result, bool) {
	if i := m.index(name); i >= 0 {
		return m[i].value, true
	}
	return gjson.Result{}, false
}

// set returns m with a member replaced, or appended. It changes m.
func (m members) set(name string, value gjson.Result) members {
	if i := m.index(name); i >= 0 {
		m[i].value = value
		return m
	}
	return append(m, member{name, value})
}

// without returns a copy of m without some members.
func (m members) without(names ...string) members {
	return slices.DeleteFunc(slices.Clone(m), func(k member) bool { return slices.Contains(names, k.name) })
}

// types returns the values of the keyword type, nil if it is missing.
func (m members) types() []string {
	v, _ := m.get("type")
	var all []string
	for _, t := range v.Array() {
		all = append(all, t.Str)
	}
	return all
}

// required returns the names of the properties that the schema requires.
func (m members) required() map[string]bool {
	v, _ := m.get("required")
	all := make(map[string]bool)
	for _, name := range v.Array() {
		all[name.Str] = true
	}
	return all
}

// open reports whether an object schema describes a map, with properties of any name. An
// object without additionalProperties does not count as a map, because authors of schemas
// do not intend one.
func (m members) open() bool {
	additional, there := m.get("additionalProperties")
	if there && additional.Type != gjson.False {
		return true
	}
	if patterns, ok := m.get("patternProperties"); ok && len(patterns.Map()) > 0 {
		return true
	}
	return !m.has("properties") && !there
}

// plainObject reports whether a root schema has the type object, and is neither a union
// nor a reference.
func (m members) plainObject() bool {
	return m.has("type") && !m.has("$ref") && !slices.ContainsFunc(unions, m.has)
}

// object builds a JSON object with its members in order.
type object struct{ raw []byte }

func (o *object) add(name string, value json.RawMessage) {
	if len(o.raw) == 0 {
		o.raw = append(o.raw, '{')
	} else {
		o.raw = append(o.raw, ',')
	}
	o.raw = append(o.raw, text(name)...)
	o.raw = append(append(o.raw, ':'), value...)
}

func (o *object) end() json.RawMessage {
	if len(o.raw) == 0 {
		return json.RawMessage("{}")
	}
	return append(o.raw, '}')
}

// text returns s as a JSON string.
func text(s string) json.RawMessage {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil { // a string can be encoded
		panic("schema: " + err.Error())
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// list returns a JSON array.
func list(elements []json.RawMessage) json.RawMessage {
	return slices.Concat([]byte{'['}, bytes.Join(asBytes(elements), []byte{','}), []byte{']'})
}

func asBytes(all []json.RawMessage) [][]byte {
	out := make([][]byte, len(all))
	for i := range all {
		out[i] = all[i]
	}
	return out
}

// compact returns JSON without white space.
func compact(raw string) string {
	var b bytes.Buffer
	if json.Compact(&b, []byte(raw)) != nil {
		return raw
	}
	return b.String()
}
