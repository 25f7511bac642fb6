package schema

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
)

// annotations are keywords that describe a value and constrain nothing.
var annotations = []string{"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment"}

// defined reports whether a reference points to a definition, or to the root.
func defined(ref string) bool {
	return ref == "#" || strings.HasPrefix(ref, "#/$defs/") || strings.HasPrefix(ref, "#/definitions/")
}

// reference writes a schema with $ref. If references must stand alone, a reference with
// annotations becomes a union of one schema; a reference to a part other than a
// definition is replaced by the part.
func (f *fitter) reference(ref string, m members, path string, level int) json.RawMessage {
	others := m.without("$ref", "$defs", "definitions", "$schema", "$id", "$comment", "$anchor")
	if f.rules.every {
		return f.plain(m)
	}
	if !defined(ref) {
		return f.replaced(ref, others, path, level)
	}
	bare := text(f.renamedRef(ref))
	if len(others) == 0 || !f.rules.bareRefs {
		var out object
		out.add("$ref", bare)
		for _, k := range others {
			out.add(k.name, json.RawMessage(compact(k.value.Raw)))
		}
		return out.end()
	}
	if slices.ContainsFunc(others, func(k member) bool { return !slices.Contains(annotations, k.name) }) {
		f.fail(path, "a reference has other keywords beside it")
	}
	union := gjson.Parse(`[{"$ref":` + string(text(ref)) + `}]`)
	unions := f.counts.Unions
	raw := f.write(append(members{{"anyOf", union}}, others...), path, level)
	f.counts.Unions = unions // a union of one schema does not count
	return raw
}

// plain returns members unchanged.
func (f *fitter) plain(m members) json.RawMessage {
	var out object
	for _, k := range m {
		out.add(k.name, json.RawMessage(compact(k.value.Raw)))
	}
	return out.end()
}

// renamedRef returns a reference adapted to the place of definitions in the output.
func (f *fitter) renamedRef(ref string) string {
	for from, to := range f.rules.renamed {
		if rest, ok := strings.CutPrefix(ref, "#/"+from+"/"); ok {
			return "#/" + to + "/" + rest
		}
	}
	return ref
}

// replaced writes the target of a reference in its place.
func (f *fitter) replaced(ref string, others members, path string, level int) json.RawMessage {
	target, ok := f.find(ref)
	switch {
	case !ok:
		f.fail(path, "the reference "+ref+" is to nothing in it")
		return json.RawMessage("{}")
	case slices.Contains(f.using, ref):
		f.fail(path, "the reference "+ref+" refers to itself")
		return json.RawMessage("{}")
	}
	f.using = append(f.using, ref)
	m := membersOf(target)
	for _, k := range others {
		m = m.set(k.name, k.value)
	}
	raw := f.write(m, path, level+1)
	f.using = f.using[:len(f.using)-1]
	return raw
}

// find returns the target of a reference.
func (f *fitter) find(ref string) (gjson.Result, bool) { return find(f.root, ref) }

func find(root gjson.Result, ref string) (gjson.Result, bool) {
	at := root
	rest, ok := strings.CutPrefix(ref, "#")
	if !ok {
		return gjson.Result{}, false
	}
	for name := range strings.SplitSeq(strings.TrimPrefix(rest, "/"), "/") {
		if rest == "" {
			break
		}
		name = strings.NewReplacer("~1", "/", "~0", "~").Replace(name)
		if at = child(at, name); !at.Exists() {
			return gjson.Result{}, false
		}
	}
	return at, at.IsObject()
}

// child returns a member of an object or an element of a list.
func child(v gjson.Result, name string) gjson.Result {
	var found gjson.Result
	i := 0
	v.ForEach(func(key, value gjson.Result) bool {
		if v.IsArray() {
			if name == strconv.Itoa(i) {
				found = value
			}
		} else if key.Str == name {
			found = value
		}
		i++
		return true
	})
	return found
}

// maxJoins is the maximum number of references and levels of allOf followed in a row.
const maxJoins = 16

// inlineRoot replaces a root that is only a reference, which pydantic writes for
// recursive models.
func (f *fitter) inlineRoot(m members) members {
	for range maxJoins {
		ref, ok := m.get("$ref")
		if !ok || ref.Str == "#" {
			break
		}
		target, ok := f.find(ref.Str)
		if !ok {
			break
		}
		rest := m.without("$ref")
		m = membersOf(target)
		for _, k := range rest {
			m = m.set(k.name, k.value)
		}
	}
	return m
}

// nullable reports whether a schema allows null.
func (f *fitter) nullable(v gjson.Result, level int) bool {
	if level > maxJoins {
		return false
	}
	m := membersOf(v)
	if ref, ok := m.get("$ref"); ok {
		target, ok := f.find(ref.Str)
		return ok && f.nullable(target, level+1)
	}
	isNull := func(v gjson.Result) bool { return v.Type == gjson.Null }
	values, enum := m.get("enum")
	if slices.Contains(m.types(), "null") {
		return !enum || slices.ContainsFunc(values.Array(), isNull)
	}
	if value, ok := m.get("const"); ok {
		return isNull(value)
	}
	for _, name := range []string{"anyOf", "oneOf"} {
		all, _ := m.get(name)
		if slices.ContainsFunc(all.Array(), func(s gjson.Result) bool { return f.nullable(s, level+1) }) {
			return true
		}
	}
	return false
}

// cyclic reports whether a schema is recursive.
func cyclic(root gjson.Result) bool {
	c := &cycles{root: root, state: make(map[string]bool)}
	return c.in(root, 0)
}

// cycles searches for references that lead back to themselves.
type cycles struct {
	root  gjson.Result
	state map[string]bool // by reference: true while it is followed, then false
}

func (c *cycles) in(v gjson.Result, level int) bool {
	if level > maxDepth {
		return true
	}
	found := false
	v.ForEach(func(key, value gjson.Result) bool {
		switch {
		case v.IsObject() && slices.Contains([]string{"$defs", "definitions", "enum", "const", "default", "examples"}, key.Str):
		case v.IsObject() && key.Str == "$ref" && value.Type == gjson.String:
			found = c.follow(value.Str, level)
		case value.IsObject() || value.IsArray():
			found = c.in(value, level+1)
		}
		return !found
	})
	return found
}

func (c *cycles) follow(ref string, level int) bool {
	following, seen := c.state[ref]
	if seen || ref == "#" {
		return following || ref == "#"
	}
	target, ok := find(c.root, ref)
	if !ok {
		return false
	}
	c.state[ref] = true
	found := c.in(target, level+1)
	c.state[ref] = false
	return found
}
