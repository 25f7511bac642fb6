package schema

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/tidwall/gjson"
)

// writer writes one schema.
type writer struct {
	*fitter
	path  string
	level int
	types []string
	out   object
	// notes are the constraints for the description.
	notes       []string
	description string
	typed       bool     // something that says the type is written
	definitions []string // the names under which definitions are written
}

// silent are keywords that neither constrain nor describe a value.
var silent = []string{"$schema", "$id", "$comment"}

// keyword writes a keyword of m.
func (w *writer) keyword(m members, k member) {
	r := w.rules
	name := k.name
	if to, ok := r.renamed[name]; ok && (!m.has(to) || to == "$defs") {
		name = to
	}
	switch {
	case name == "description":
		w.description = k.value.Str
		return
	case name == "$defs" || name == "definitions":
		w.define(m, name)
		return
	case (name == "anyOf" || name == "oneOf") && r.typed && !slices.ContainsFunc(k.value.Array(), shapes):
		w.note(k)
		return
	case !r.every && slices.Contains(silent, name):
		return
	case name == "additionalProperties" && r.closed && slices.Contains(w.types, "object"):
		return // see end
	case name == "required" && r.closed && !slices.Contains(w.types, "object"):
		w.note(k)
		return
	case name == "required" && r.allRequired:
		return
	case name == "const" && name == k.name && !r.every && !r.keywords["const"] && w.takesValue("enum", gjson.Parse("["+k.value.Raw+"]")):
		w.out.add("enum", json.RawMessage("["+compact(k.value.Raw)+"]"))
		w.typed = true
		return
	case !r.every && !r.keywords[name] || !w.takesValue(name, k.value):
		w.note(k)
		return
	}
	w.typed = w.typed || slices.Contains([]string{"type", "enum", "const", "anyOf"}, name)
	switch name {
	case "properties", "patternProperties", "dependentSchemas":
		w.out.add(name, w.named(k.value))
	case "anyOf", "oneOf", "allOf", "prefixItems":
		w.out.add(name, w.each(k.value))
	case "items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else":
		if k.value.IsObject() {
			w.out.add(name, w.schema(k.value, w.path, w.level+1))
		} else {
			w.out.add(name, json.RawMessage(compact(k.value.Raw)))
		}
	default:
		w.out.add(name, json.RawMessage(compact(k.value.Raw)))
	}
}

func (w *writer) takesValue(name string, v gjson.Result) bool {
	return w.rules.takes == nil || w.rules.takes(name, v, w.types)
}

// note moves a constraint into the description. A keyword with the value false constrains
// nothing, except in schemas.
func (w *writer) note(k member) {
	if k.value.Type == gjson.False && k.name != "additionalProperties" && k.name != "default" || k.value.Type == gjson.Null && k.name != "const" {
		return
	}
	w.notes = append(w.notes, k.name+": "+compact(k.value.Raw))
	w.described = append(w.described, join(w.path, k.name))
}

// define writes the definitions of m under a name, including those of keywords that are
// renamed to it.
func (w *writer) define(m members, name string) {
	if slices.Contains(w.definitions, name) {
		return
	}
	w.definitions = append(w.definitions, name)
	var all object
	for _, from := range []string{"$defs", "definitions"} {
		if from != name && w.rules.renamed[from] != name {
			continue
		}
		v, _ := m.get(from)
		v.ForEach(func(key, s gjson.Result) bool {
			all.add(key.Str, w.apart(s, join(from, key.Str)))
			return true
		})
	}
	w.out.add(name, all.end())
}

// apart writes a definition, whose depth is counted from 0.
func (w *writer) apart(v gjson.Result, path string) json.RawMessage {
	depth := w.depth
	w.depth = 0
	raw := w.schema(v, path, w.level+1)
	w.depth = depth
	return raw
}

// named writes an object whose members are schemas.
func (w *writer) named(v gjson.Result) json.RawMessage {
	var out object
	v.ForEach(func(name, s gjson.Result) bool {
		out.add(name.Str, w.schema(s, join(w.path, name.Str), w.level+1))
		return true
	})
	return out.end()
}

// each writes a list of schemas.
func (w *writer) each(v gjson.Result) json.RawMessage {
	var all []json.RawMessage
	for _, s := range v.Array() {
		all = append(all, w.schema(s, w.path, w.level+1))
	}
	return list(all)
}

// end writes the keywords that the rules require in every schema, and the description.
func (w *writer) end(m members) json.RawMessage {
	if w.rules.typed && !w.typed {
		w.fail(w.path, "no type is said")
	}
	properties, _ := m.get("properties")
	if slices.Contains(w.types, "object") && w.rules.closed {
		if !properties.Exists() {
			w.out.add("properties", json.RawMessage("{}"))
		}
		w.out.add("additionalProperties", json.RawMessage("false"))
	}
	if slices.Contains(w.types, "object") && w.rules.allRequired && len(properties.Map()) > 0 {
		var names []json.RawMessage
		properties.ForEach(func(name, _ gjson.Result) bool {
			names = append(names, text(name.Str))
			return true
		})
		w.out.add("required", list(names))
	}
	said := w.description
	if len(w.notes) > 0 {
		if said != "" {
			said += "\n\n"
		}
		said += "{" + strings.Join(w.notes, ", ") + "}"
	}
	if said != "" {
		w.out.add("description", text(said))
	}
	return w.out.end()
}
