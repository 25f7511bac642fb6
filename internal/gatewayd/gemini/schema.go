package gemini

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// jsonSchema returns a schema for parametersJsonSchema and responseJsonSchema,
// which know most of JSON Schema, but not const, oneOf nor $schema.
func jsonSchema(raw json.RawMessage, param string) (json.RawMessage, error) {
	v, err := parseSchema(raw, param)
	if err != nil {
		return nil, err
	}
	return hub.MustEncode(rewrite(v)), nil
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

// rewrite replaces const by enum and oneOf by anyOf, and leaves out $schema.
func rewrite(v object) object {
	out := make(object, len(v))
	for name, value := range v {
		switch name {
		case "$schema":
		case "const":
			out["enum"] = []any{value}
		case "oneOf":
			out["anyOf"] = each(value, rewrite)
		case "anyOf", "allOf", "prefixItems":
			out[name] = each(value, rewrite)
		case "properties", "$defs", "definitions", "patternProperties":
			out[name] = every(value, rewrite)
		case "items", "additionalProperties", "not":
			out[name] = inner(value, rewrite)
		default:
			out[name] = value
		}
	}
	return out
}

func inner(v any, f func(object) object) any {
	if o, ok := v.(object); ok {
		return f(o)
	}
	return v
}

func each(v any, f func(object) object) any {
	list, ok := v.([]any)
	if !ok {
		return v
	}
	out := make([]any, len(list))
	for i := range list {
		out[i] = inner(list[i], f)
	}
	return out
}

func every(v any, f func(object) object) any {
	o, ok := v.(object)
	if !ok {
		return v
	}
	out := make(object, len(o))
	for name, value := range o {
		out[name] = inner(value, f)
	}
	return out
}

// openAPISchema returns a schema for parameters and responseSchema, which know a
// subset of the Schema object of OpenAPI 3.0: no references, no additional
// properties, no const, no lists of types. What they do not know is left out.
// The error of a schema that refers to itself is an *hub.Error.
func openAPISchema(raw json.RawMessage, param string) (json.RawMessage, error) {
	v, err := parseSchema(raw, param)
	if err != nil {
		return nil, err
	}
	c := &converter{root: v, param: param}
	out := c.schema(v, 0)
	if c.err != nil {
		return nil, c.err
	}
	return hub.MustEncode(out), nil
}

// kept are the members that OpenAPI's subset knows as they are.
var kept = []string{"title", "description", "format", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems",
	"minProperties", "maxProperties", "required", "propertyOrdering", "nullable", "example", "default"}

// maxSchemas are the most objects a schema may become when references are
// replaced by what they refer to.
const maxSchemas = 20000

// maxMerges are the most levels of allOf, and of references in it.
const maxMerges = 16

type converter struct {
	root  object
	param string
	using []string // references that are being replaced
	count int
	err   *hub.Error
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
	for range maxMerges { // what is joined may have an allOf of its own
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

// kind writes the type. A list of types becomes a union, null of it nullable.
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

// enum is of texts only here; other values are told in the description.
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

// anyOf writes a union. One with null is nullable instead, and one of a single
// schema is that.
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

// union writes what may be one of several schemas as a member.
func (c *converter) union(out object, list []any, member string, level int) {
	inside := object{}
	c.anyOf(inside, list, level)
	if len(inside) > 0 {
		out[member] = inside
	}
}

// merged joins what allOf says.
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
			}
		}
	}
	return out
}

// reference replaces $ref by what it refers to.
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

// find returns what a reference within the schema refers to.
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
