package gemini

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/schema"
)

// jsonSchema returns a schema for parametersJsonSchema and responseJsonSchema.
// Constraints that Google ignores are moved into descriptions.
func (w *callWriter) jsonSchema(raw json.RawMessage, param string) (json.RawMessage, error) {
	if hub.IsNull(raw) {
		return json.RawMessage(`{"type":"object","properties":{}}`), nil
	}
	if _, err := parseSchema(raw, param); err != nil {
		return nil, err
	}
	fitted := schema.Gemini.Fit(raw)
	if fitted.Loose != "" {
		w.warn(hub.WarnCompatibility, param, "Google knows the schema in part: "+fitted.Loose)
	}
	if len(fitted.Described) > 0 {
		w.warn(hub.WarnCompatibility, param, fitted.Warning())
	}
	return fitted.Schema, nil
}

func parseSchema(raw json.RawMessage, param string) (object, error) {
	if hub.IsNull(raw) {
		return object{"type": "object", "properties": object{}}, nil
	}
	var v object
	if err := json.Unmarshal(raw, &v); err != nil {
		return nil, invalid(param, "%s is not a JSON Schema, which is an object", param)
	}
	if depth(v, 0) > maxDepth {
		return nil, invalid(param, "%s has more than %d levels", param, maxDepth)
	}
	return v, nil
}

func depth(v any, n int) int {
	deepest := n
	if n > maxDepth {
		return n
	}
	switch v := v.(type) {
	case object:
		for _, inside := range v {
			deepest = max(deepest, depth(inside, n+1))
		}
	case []any:
		for _, inside := range v {
			deepest = max(deepest, depth(inside, n+1))
		}
	}
	return deepest
}

// openAPISchema returns a schema for parameters and responseSchema, which accept a subset
// of the Schema object of OpenAPI 3.0: no references, no additional properties, no const,
// no lists of types. Unsupported constraints are moved into descriptions. A recursive
// schema fails with an *hub.Error.
func (w *callWriter) openAPISchema(raw json.RawMessage, param string) (json.RawMessage, error) {
	v, err := parseSchema(raw, param)
	if err != nil {
		return nil, err
	}
	c := &converter{root: v, param: param}
	out := c.schema(v, 0)
	if c.err != nil {
		return nil, c.err
	}
	if len(c.described) > 0 {
		fitted := schema.Fitted{Described: slices.Compact(slices.Sorted(maps.Keys(c.described)))}
		w.warn(hub.WarnCompatibility, param, fitted.Warning())
	}
	return hub.MustEncode(out), nil
}

// kept are the members that are copied unchanged.
var kept = []string{"title", "description", "format", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems",
	"minProperties", "maxProperties", "required", "propertyOrdering", "nullable", "example", "default"}

// maxSchemas is the maximum number of objects of a schema after references have been
// expanded.
const maxSchemas = 20000

// maxMerges is the maximum depth of allOf, and of references in it.
const maxMerges = 16

type converter struct {
	root  object
	param string
	using []string // references being expanded
	count int
	err   *hub.Error
	// described is the set of keywords moved into descriptions.
	described map[string]bool
}

// translated are keywords that the converter expresses in another way; silent are
// keywords that constrain nothing. additionalProperties is not in the subset, and Google
// treats every object as closed.
var (
	translated = []string{"type", "enum", "const", "properties", "items", "prefixItems", "anyOf", "oneOf", "allOf", "$ref", "$defs", "definitions"}
	silent     = []string{"$schema", "$id", "$comment", "$anchor"}
)

// describe moves the unsupported constraints of v into the description.
func (c *converter) describe(v, out object) {
	var notes []string
	for _, name := range slices.Sorted(maps.Keys(v)) {
		value := v[name]
		switch {
		case name == "format":
			text, _ := value.(string)
			if schema.GeminiFormat(text, typesOf(v)) {
				continue
			}
			delete(out, name)
		case name == "pattern" && !schema.Regular(value):
			delete(out, name)
		case slices.Contains(kept, name), slices.Contains(translated, name), slices.Contains(silent, name), value == false:
			continue
		}
		notes = append(notes, name+": "+string(hub.MustEncode(value)))
		if c.described == nil {
			c.described = make(map[string]bool)
		}
		c.described[name] = true
	}
	if len(notes) == 0 {
		return
	}
	said, _ := out["description"].(string)
	if said != "" {
		said += "\n\n"
	}
	out["description"] = said + "{" + strings.Join(notes, ", ") + "}"
}

// typesOf returns the types of a schema, in lower case.
func typesOf(v object) []string {
	switch kind := v["type"].(type) {
	case string:
		return []string{strings.ToLower(kind)}
	case []any:
		var all []string
		for _, k := range kind {
			if s, ok := k.(string); ok {
				all = append(all, strings.ToLower(s))
			}
		}
		return all
	}
	return nil
}

func (c *converter) schema(v object, level int) object {
	if c.count++; c.count > maxSchemas || level > maxDepth {
		c.fail("is too large for this model once its references are replaced")
	}
	if c.err != nil {
		return object{}
	}
	if ref, ok := v["$ref"].(string); ok {
		return c.reference(ref, v, level)
	}
	for range maxMerges { // the joined schema may have an allOf of its own
		all, ok := v["allOf"].([]any)
		if !ok {
			break
		}
		v = c.merged(v, all)
	}
	if v["allOf"] != nil {
		c.fail("has an allOf within allOf that is too deep, or refers to itself")
		return object{}
	}
	out := make(object)
	for _, name := range kept {
		if value, ok := v[name]; ok {
			out[name] = value
		}
	}
	c.describe(v, out)
	c.kind(v, out)
	if value, ok := v["const"]; ok {
		c.enum(out, []any{value})
	} else if values, ok := v["enum"].([]any); ok {
		c.enum(out, values)
	}
	if properties, ok := v["properties"].(object); ok {
		inside := make(object, len(properties))
		for name, p := range properties {
			if o, ok := p.(object); ok {
				inside[name] = c.schema(o, level+1)
			} else if p == true {
				inside[name] = object{}
			}
		}
		out["properties"] = inside
	}
	switch items := v["items"].(type) {
	case object:
		out["items"] = c.schema(items, level+1)
	case []any:
		c.union(out, items, "items", level)
	}
	if prefix, ok := v["prefixItems"].([]any); ok && out["items"] == nil {
		c.union(out, prefix, "items", level)
	}
	for _, name := range []string{"anyOf", "oneOf"} {
		if list, ok := v[name].([]any); ok {
			c.anyOf(out, list, level)
		}
	}
	if out["type"] == nil && out["properties"] != nil {
		out["type"] = "OBJECT"
	}
	return out
}

// kind writes the type of a schema. A list of types becomes a union; null in the list
// becomes nullable.
func (c *converter) kind(v, out object) {
	switch kind := v["type"].(type) {
	case string:
		if kind != "null" {
			out["type"] = strings.ToUpper(kind)
		} else {
			out["nullable"] = true
		}
	case []any:
		var others []any
		for _, k := range kind {
			if k == "null" {
				out["nullable"] = true
			} else if s, ok := k.(string); ok {
				others = append(others, object{"type": strings.ToUpper(s)})
			}
		}
		if len(others) == 1 {
			out["type"] = others[0].(object)["type"]
		} else if len(others) > 1 {
			out["anyOf"] = others
		}
	}
}

// enum writes string enums; other values are listed in the description.
func (c *converter) enum(out object, values []any) {
	var texts []any
	for _, v := range values {
		switch v := v.(type) {
		case string:
			texts = append(texts, v)
		case nil:
			out["nullable"] = true
		default:
			said, _ := out["description"].(string)
			out["description"] = strings.TrimSpace(said + " One of: " + string(hub.MustEncode(values)))
			return
		}
	}
	if len(texts) > 0 {
		out["enum"] = texts
		if out["type"] == nil {
			out["type"] = "STRING"
		}
	}
}

// anyOf writes a union. A union with null becomes nullable, and a union of a single
// schema becomes that schema.
func (c *converter) anyOf(out object, list []any, level int) {
	var others []any
	for _, s := range list {
		o, ok := s.(object)
		if !ok {
			continue
		}
		if o["type"] == "null" {
			out["nullable"] = true
			continue
		}
		others = append(others, c.schema(o, level+1))
	}
	switch len(others) {
	case 0:
	case 1:
		for name, v := range others[0].(object) {
			if _, ok := out[name]; !ok {
				out[name] = v
			}
		}
	default:
		delete(out, "type") // unions have none
		out["anyOf"] = others
	}
}

// union writes a list of schemas as a union member.
func (c *converter) union(out object, list []any, member string, level int) {
	inside := object{}
	c.anyOf(inside, list, level)
	if len(inside) > 0 {
		out[member] = inside
	}
}

// merged joins the schemas of allOf.
func (c *converter) merged(v object, all []any) object {
	out := maps.Clone(v)
	delete(out, "allOf")
	for _, s := range all {
		o, ok := s.(object)
		if !ok {
			continue
		}
		for range maxMerges { // references to references
			ref, ok := o["$ref"].(string)
			if !ok {
				break
			}
			o = c.find(ref)
		}
		for name, value := range o {
			switch have := out[name].(type) {
			case nil:
				out[name] = value
			case object:
				if more, ok := value.(object); ok && name == "properties" {
					joined := maps.Clone(have)
					maps.Copy(joined, more)
					out[name] = joined
				}
			case []any:
				if more, ok := value.([]any); ok && (name == "required" || name == "allOf") {
					out[name] = slices.Concat(have, more)
				}
			default: // one schema cannot express both
				if have != value && name != "description" && name != "title" {
					and, _ := out["and"].([]any)
					out["and"] = append(slices.Clone(and), object{name: value})
				}
			}
		}
	}
	return out
}

// reference expands $ref.
func (c *converter) reference(ref string, v object, level int) object {
	if slices.Contains(c.using, ref) {
		c.fail("refers to itself at " + ref + ", which this model does not know")
		return object{}
	}
	found := c.find(ref)
	if c.err != nil {
		return object{}
	}
	c.using = append(c.using, ref)
	out := c.schema(found, level+1)
	c.using = c.using[:len(c.using)-1]
	if said, ok := v["description"]; ok {
		out["description"] = said
	}
	return out
}

// find returns the schema that a local reference points to.
func (c *converter) find(ref string) object {
	rest, ok := strings.CutPrefix(ref, "#")
	at := c.root
	for name := range strings.SplitSeq(strings.TrimPrefix(rest, "/"), "/") {
		if rest == "" || !ok {
			break
		}
		name = strings.NewReplacer("~1", "/", "~0", "~").Replace(name)
		at, ok = at[name].(object)
	}
	if !ok {
		c.fail("has the reference " + ref + ", which is to nothing in it")
		return object{}
	}
	return at
}

func (c *converter) fail(message string) {
	if c.err == nil {
		c.err = invalid(c.param, "%s %s", c.param, message)
	}
}
