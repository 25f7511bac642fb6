// Package schema adapts JSON Schemas to providers, each of which supports a part of JSON
// Schema and refuses the rest.
//
// A Rules value is the table of one provider: the keywords and values that the provider
// supports. Fit rewrites a schema according to the table: a supported keyword stays, a
// keyword with an equivalent in the table is replaced by it (oneOf by anyOf), and every
// other constraint moves into the description of its schema, where the model reads it.
// Schemas that cannot be rewritten (a map where objects must be closed, a recursion where
// none is allowed) are returned with the reason in Fitted.Loose; the caller must then use
// a kind of request that accepts any schema.
//
// The order of members is preserved, because models generate the properties of an object
// in the schema's order.
package schema

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Rules describe the part of JSON Schema that a provider supports.
type Rules struct {
	// keywords are the supported keywords.
	keywords map[string]bool
	// every says that all keywords are supported; keywords is ignored then.
	every bool
	// takes reports whether a keyword's value is supported, in a schema of these types.
	// Nil means that all values are.
	takes func(keyword string, value gjson.Result, types []string) bool
	// renamed maps keywords to the provider's names for them.
	renamed map[string]string

	closed      bool // every object has additionalProperties false
	allRequired bool // every property of an object is required
	typed       bool // every schema says its type, by type, enum, const, anyOf or $ref
	itemized    bool // every array has items
	acyclic     bool // no schema refers to itself
	bareRefs    bool // a schema with $ref has no other keyword
	object      bool // the root is an object, and no union

	limits Limits
}

// Limits are maximum numbers for schemas; 0 is no limit.
type Limits struct {
	Optional   int // properties that are not required
	Unions     int // anyOf, and types that are lists
	Properties int
	Enums      int // values of enum
	Depth      int // objects and arrays in each other
}

// Limits returns the provider's limits.
func (r *Rules) Limits() Limits { return r.limits }

// Fitted is a schema adapted to a provider.
type Fitted struct {
	Schema json.RawMessage
	// Described lists the constraints that moved into descriptions: the path of the
	// schema and the keyword, as in "age.minimum".
	Described []string
	// Loose says why the provider would refuse or misinterpret the schema as a strict
	// one; empty if it would not. If Loose is set, Schema must not be sent as a
	// constraint of the answer.
	Loose string
	// Counts are the schema's numbers for Limits.
	Counts Limits
}

// maxDepth is the maximum depth of a schema, and maxSchemas the maximum number of schemas
// after references have been expanded.
const (
	maxDepth   = hub.MaxDepth
	maxSchemas = 20000
)

// Fit returns a schema rewritten by the rules. It never fails: invalid input is returned
// unchanged, with the reason in Loose.
func (r *Rules) Fit(raw json.RawMessage) Fitted {
	root := gjson.ParseBytes(raw)
	if !gjson.ValidBytes(raw) || !root.IsObject() {
		return Fitted{Schema: raw, Loose: "it is not a JSON object"}
	}
	members := membersOf(root)
	if r.every && members.plainObject() && (r.takes == nil || !bytes.Contains(raw, []byte(`"pattern"`))) {
		return Fitted{Schema: raw} // the usual schema of a tool
	}
	f := &fitter{rules: r, root: root}
	members = f.inlineRoot(members)
	if r.object {
		members = f.rootObject(members)
	}
	out := f.write(members, "", 0)
	if r.acyclic && f.loose == "" && cyclic(root) {
		f.fail("", "it refers to itself")
	}
	f.limit()
	if f.count > maxSchemas || same(raw, out) {
		out = raw
	}
	return Fitted{Schema: out, Described: f.described, Loose: f.loose, Counts: f.counts}
}

// Warning returns one sentence about the constraints that moved into descriptions.
func (f *Fitted) Warning() string {
	const most = 8
	names, rest := f.Described, ""
	if len(names) > most {
		names, rest = names[:most], fmt.Sprintf(" and %d more", len(names)-most)
	}
	return "the provider's schemas have no " + strings.Join(names, ", ") + rest + ": the model is told by the description"
}

// fitter rewrites one schema.
type fitter struct {
	rules     *Rules
	root      gjson.Result
	described []string
	loose     string
	counts    Limits
	count     int      // schemas until now
	depth     int      // objects and arrays around this one
	using     []string // references being expanded
}

func (f *fitter) fail(path, reason string) {
	if f.loose == "" {
		if f.loose = reason; path != "" {
			f.loose = "at " + path + ", " + reason
		}
	}
}

// limit sets Loose if a limit is exceeded.
func (f *fitter) limit() {
	l := f.rules.limits
	for _, n := range []struct {
		have, most int
		what       string
	}{
		{f.counts.Optional, l.Optional, "optional properties"}, {f.counts.Unions, l.Unions, "unions"},
		{f.counts.Properties, l.Properties, "properties"}, {f.counts.Enums, l.Enums, "values of enum"}, {f.counts.Depth, l.Depth, "levels"},
	} {
		if n.most > 0 && n.have > n.most {
			f.fail("", fmt.Sprintf("it has %d %s, and the provider takes %d", n.have, n.what, n.most))
		}
	}
}

// schema rewrites the schema at a path.
func (f *fitter) schema(v gjson.Result, path string, level int) json.RawMessage {
	switch {
	case v.IsObject():
		return f.write(membersOf(v), path, level)
	case v.Type == gjson.True && !f.rules.typed:
		return json.RawMessage("{}")
	case v.Type == gjson.True:
		f.fail(path, "anything is allowed")
		return json.RawMessage("{}")
	}
	f.fail(path, "there is no schema")
	return json.RawMessage(v.Raw)
}

// write writes the schema with these members.
func (f *fitter) write(m members, path string, level int) json.RawMessage {
	if f.count++; f.count > maxSchemas || level > maxDepth {
		f.fail("", "it is too large once its references are replaced")
		return json.RawMessage("{}")
	}
	if ref, ok := m.get("$ref"); ok {
		return f.reference(ref.Str, m, path, level)
	}
	m = f.alternatives(f.infer(f.joinAll(m, path)), path)
	types := m.types()
	f.shape(m, types, path)
	nested := slices.Contains(types, "object") || slices.Contains(types, "array")
	if nested {
		f.depth++
		f.counts.Depth = max(f.counts.Depth, f.depth)
		defer func() { f.depth-- }()
	}
	w := &writer{fitter: f, path: path, level: level, types: types}
	for _, k := range m {
		w.keyword(m, k)
	}
	return w.end(m)
}

// infer adds a missing type that follows from the keywords.
func (f *fitter) infer(m members) members {
	if f.rules.every || m.has("type") {
		return m
	}
	if value, ok := m.get("const"); ok && !f.rules.keywords["const"] && (value.Type == gjson.True || value.Type == gjson.False) {
		return m.set("type", gjson.Parse(`"boolean"`))
	}
	if !f.rules.typed || m.has("enum") || m.has("const") || m.has("anyOf") || m.has("oneOf") {
		return m
	}
	for _, k := range []struct{ keyword, kind string }{{"properties", "object"}, {"items", "array"}, {"prefixItems", "array"}} {
		if m.has(k.keyword) {
			return m.set("type", gjson.Parse(`"`+k.kind+`"`))
		}
	}
	return m
}

// alternatives rewrites a union of objects so that its objects can be closed: an object
// without properties of its own is replaced by its alternatives, and alternatives that
// only list required properties move into the description.
func (f *fitter) alternatives(m members, path string) members {
	if !f.rules.closed || !slices.Contains(m.types(), "object") {
		return m
	}
	for _, name := range []string{"anyOf", "oneOf"} {
		all, ok := m.get(name)
		switch {
		case !ok || !slices.ContainsFunc(all.Array(), shapes):
		case m.has("properties") || m.has("additionalProperties"):
			f.fail(path, "an object has properties of its own beside those of alternatives")
		default:
			m = m.without("type")
		}
	}
	return m
}

// shapes reports whether a schema describes a value, rather than only listing required
// properties.
func shapes(v gjson.Result) bool {
	return slices.ContainsFunc(membersOf(v), func(k member) bool {
		return k.name != "required" && k.name != "not" && !slices.Contains(annotations, k.name)
	})
}

// shape counts limited features, and sets Loose for unsupported ones.
func (f *fitter) shape(m members, types []string, path string) {
	r := f.rules
	if len(types) > 1 || m.has("anyOf") || m.has("oneOf") {
		f.counts.Unions++
	}
	if values, ok := m.get("enum"); ok {
		f.counts.Enums += len(values.Array())
	}
	if slices.Contains(types, "array") && r.itemized {
		if items, _ := m.get("items"); !items.IsObject() {
			f.fail(path, "the items of an array have no schema")
		}
	}
	if slices.Contains(types, "object") && r.closed && m.open() {
		f.fail(path, "an object has any properties")
	}
	properties, _ := m.get("properties")
	required := m.required()
	properties.ForEach(func(name, v gjson.Result) bool {
		f.counts.Properties++
		switch {
		case required[name.Str]:
		case r.allRequired && !f.nullable(v, 0):
			f.fail(join(path, name.Str), "a property is optional")
		default:
			f.counts.Optional++
		}
		return true
	})
}

// same reports whether two schemas are equal apart from the order of members.
func same(a, b json.RawMessage) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

// join appends a name to a path.
func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
