package schema

import (
	"slices"

	"github.com/tidwall/gjson"
)

// unions are the keywords that the root may not have at providers that require all of its
// properties in one place.
var unions = []string{"anyOf", "oneOf", "allOf", "not", "enum", "const"}

// rootObject returns a root that is an object and no union: it has the properties of the
// alternatives, none of them required, and its description explains the alternatives.
func (f *fitter) rootObject(m members) members {
	if all, ok := m.get("allOf"); ok {
		if joined, ok := f.joined(m.without("allOf"), all.Array()); ok {
			m = joined
		}
	}
	if !m.has("type") {
		m = append(members{{"type", gjson.Parse(`"object"`)}}, m...)
	}
	if !slices.ContainsFunc(unions, m.has) {
		return m
	}
	properties, _ := m.get("properties")
	if !properties.Exists() {
		properties = gjson.Parse("{}")
	}
	notes := &writer{fitter: f, typed: true}
	for _, name := range unions {
		v, ok := m.get(name)
		if !ok {
			continue
		}
		if !f.rules.every {
			f.fail("", "its root is a union")
		}
		notes.note(member{name, v})
		for _, s := range v.Array() {
			part, ok := f.resolved(s)
			inside, there := part.get("properties")
			if !ok || !there {
				continue
			}
			if both, ok := union(properties, inside); ok {
				properties = both
			}
		}
	}
	description, _ := m.get("description")
	notes.description = description.Str
	said := gjson.GetBytes(notes.end(nil), "description")
	return m.without(unions...).set("properties", properties).set("description", said)
}
