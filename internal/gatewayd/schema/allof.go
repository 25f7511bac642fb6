package schema

import (
	"encoding/json"
	"slices"

	"github.com/tidwall/gjson"
)

// joinAll merges the schemas of allOf into the enclosing schema, if one schema can
// express all of them. Otherwise allOf stays.
func (f *fitter) joinAll(m members, path string) members {
	if f.rules.every {
		return m
	}
	for range maxJoins {
		all, ok := m.get("allOf")
		if !ok {
			break
		}
		joined, ok := f.joined(m.without("allOf"), all.Array())
		if !ok {
			if slices.Contains(m.types(), "object") || m.has("properties") || len(m.types()) == 0 {
				f.fail(path, "allOf has schemas that are not to be joined")
			}
			break
		}
		m = joined
	}
	return m
}

func (f *fitter) joined(m members, all []gjson.Result) (members, bool) {
	for _, s := range all {
		part, ok := f.resolved(s)
		if !ok {
			return nil, false
		}
		for _, k := range part {
			have, there := m.get(k.name)
			switch {
			case !there:
				m = m.set(k.name, k.value)
			case compact(have.Raw) == compact(k.value.Raw), slices.Contains(annotations, k.name):
			case k.name == "properties":
				both, ok := union(have, k.value)
				if !ok {
					return nil, false
				}
				m = m.set(k.name, both)
			case k.name == "required" || k.name == "allOf":
				m = m.set(k.name, concat(have, k.value))
			default:
				return nil, false
			}
		}
	}
	return m, true
}

// resolved returns a schema with a reference at its top replaced by the target.
func (f *fitter) resolved(s gjson.Result) (members, bool) {
	m := membersOf(s)
	for range maxJoins {
		ref, ok := m.get("$ref")
		if !ok {
			return m, s.IsObject()
		}
		target, ok := f.find(ref.Str)
		if !ok || slices.ContainsFunc(m, func(k member) bool { return k.name != "$ref" && !slices.Contains(annotations, k.name) }) {
			return nil, false
		}
		rest := m.without("$ref")
		m = membersOf(target)
		for _, k := range rest {
			m = m.set(k.name, k.value)
		}
	}
	return nil, false
}

// union merges the properties of two objects, unless a property has two different
// schemas.
func union(a, b gjson.Result) (gjson.Result, bool) {
	all := membersOf(a)
	for _, k := range membersOf(b) {
		if have, there := all.get(k.name); there && compact(have.Raw) != compact(k.value.Raw) {
			return gjson.Result{}, false
		}
		all = all.set(k.name, k.value)
	}
	var out object
	for _, k := range all {
		out.add(k.name, json.RawMessage(k.value.Raw))
	}
	return gjson.ParseBytes(out.end()), true
}

func concat(a, b gjson.Result) gjson.Result {
	var all []json.RawMessage
	for _, v := range append(a.Array(), b.Array()...) {
		all = append(all, json.RawMessage(v.Raw))
	}
	return gjson.ParseBytes(list(all))
}
