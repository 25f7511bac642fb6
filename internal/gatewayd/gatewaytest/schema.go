package gatewaytest

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// schemas returns the reason why a provider refuses the schemas of a request. The
// supported keywords come from the providers' documentation, written down here
// independently of package schema.
func schemas(format, model string, v value) error {
	switch format {
	case Messages:
		return claudeSchemas(v)
	case Converse:
		return converseSchemas(model, v)
	case Chat:
		return chatSchemas(model, v)
	case Responses:
		return responsesSchemas(v)
	case Gemini:
		return geminiSchemas(v)
	}
	return nil
}

// words is an error in a provider's wording, which begins with a capital letter.
type words string

func (w words) Error() string { return string(w) }

func says(format string, args ...any) error { return words(fmt.Sprintf(format, args...)) }

func claudeSchemas(v value) error {
	seen := &claudeCheck{}
	if s := v.at("output_config").at("format").at("schema"); s.v != nil {
		if err := seen.check("output_config.format.schema", s); err != nil {
			return err
		}
	}
	strict := 0
	for i, t := range v.at("tools").list() {
		if err := seen.tool(fmt.Sprintf("tools.%d.custom", i), t.at("input_schema"), t.at("strict").v == true); err != nil {
			return err
		}
		if t.at("strict").v == true {
			strict++
		}
	}
	if strict > 20 {
		return fmt.Errorf("too many strict tools (%d). Maximum is 20", strict)
	}
	return seen.limits()
}

func converseSchemas(model string, v value) error {
	seen := &claudeCheck{}
	if s := v.at("additionalModelRequestFields").at("output_config").at("format").at("schema"); s.v != nil {
		if regexp.MustCompile(`claude-(opus-4-[78]|(opus|sonnet|fable)-5)`).MatchString(model) {
			return fmt.Errorf("the model returned the following errors: output_config.format: Extra inputs are not permitted")
		}
		if err := seen.check("output_config.format.schema", s); err != nil {
			return err
		}
	}
	for i, t := range v.at("toolConfig").at("tools").list() {
		if err := seen.tool(fmt.Sprintf("tools.%d.custom", i), t.at("toolSpec").at("inputSchema").at("json"), false); err != nil {
			return err
		}
	}
	return seen.limits()
}

// claudeCheck checks the schemas of a request to Anthropic.
type claudeCheck struct{ optional, unions int }

func (c *claudeCheck) limits() error {
	switch {
	case c.optional > 24:
		return fmt.Errorf("schemas contain too many optional parameters (%d), which would make grammar compilation inefficient. Limit: 24", c.optional)
	case c.unions > 16:
		return fmt.Errorf("schemas contain too many parameters with union types (%d). Limit: 16", c.unions)
	}
	return nil
}

func (c *claudeCheck) tool(path string, s value, strict bool) error {
	for _, name := range []string{"oneOf", "allOf", "anyOf"} {
		if s.has(name) && !strict {
			return fmt.Errorf("%s.input_schema: input_schema does not support oneOf, allOf, or anyOf at the top level", path)
		}
	}
	if s.v != nil && s.at("type").text() != "object" {
		return fmt.Errorf("%s.input_schema.type: Input should be 'object'", path)
	}
	if strict {
		return c.check(path+".input_schema", s)
	}
	return nil
}

var formatsOfClaude = strings.Fields("date-time time date duration email hostname uri ipv4 ipv6 uuid")

func (c *claudeCheck) check(path string, s value) error {
	if refs(s, s, nil) {
		return fmt.Errorf("%s: Circular reference detected in schema definitions", path)
	}
	return eachSchema(path, s, func(path string, s value) error {
		m, ok := s.v.(map[string]any)
		if !ok {
			return fmt.Errorf("%s: Input should be an object", path)
		}
		if s.has("$ref") {
			return only(path, m, "$ref", "$defs", "definitions")
		}
		types := typesOfSchema(s)
		if len(types) == 0 && !s.has("enum") && !s.has("const") && !s.has("anyOf") && !s.has("allOf") {
			return fmt.Errorf("%s: Schema must have a 'type'", path)
		}
		if err := only(path, m, strings.Fields("type title description enum const anyOf allOf $defs definitions properties required additionalProperties items minItems format")...); err != nil {
			return err
		}
		if slices.Contains(types, "object") {
			if s.at("additionalProperties").v != false {
				return fmt.Errorf("%s: For 'object' type, 'additionalProperties' must be explicitly set to false", path)
			}
			required := s.at("required").texts()
			for _, name := range slices.Sorted(maps.Keys(s.object("properties"))) {
				if !slices.Contains(required, name) {
					c.optional++
				}
			}
		}
		if s.has("anyOf") || len(types) > 1 {
			c.unions++
			if list := s.at("anyOf").list(); len(list) == 1 { // a union of one schema does not count
				c.unions--
			}
		}
		if n := s.at("minItems"); n.v != nil && n.number() != 0 && n.number() != 1 {
			return fmt.Errorf("%s: For 'array' type, 'minItems' values other than 0 or 1 are not supported", path)
		}
		if f := s.at("format").text(); s.has("format") && (!slices.Contains(types, "string") || !slices.Contains(formatsOfClaude, f)) {
			return fmt.Errorf("%s: String format '%s' is not supported", path, f)
		}
		for _, e := range s.at("enum").list() {
			switch e.v.(type) {
			case map[string]any, []any:
				return fmt.Errorf("%s: Enum values must be primitives", path)
			}
		}
		return nil
	})
}

// only returns an error for the first member whose name is not in names.
func only(path string, m map[string]any, names ...string) error {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if !slices.Contains(names, name) {
			return fmt.Errorf("%s: For '%v' type, property '%s' is not supported", path, m["type"], name)
		}
	}
	return nil
}

func (v value) object(name string) map[string]any {
	m, _ := v.at(name).v.(map[string]any)
	return m
}

func typesOfSchema(s value) []string {
	if t := s.at("type").text(); t != "" {
		return []string{t}
	}
	return s.at("type").texts()
}

// eachSchema calls f for each schema in s, including s.
func eachSchema(path string, s value, f func(string, value) error) error {
	if err := f(path, s); err != nil {
		return err
	}
	for _, name := range []string{"properties", "$defs", "definitions"} {
		m := s.object(name)
		for _, key := range slices.Sorted(maps.Keys(m)) {
			if err := eachSchema(path+"."+name+"."+key, value{m[key]}, f); err != nil {
				return err
			}
		}
	}
	for _, name := range []string{"anyOf", "allOf", "oneOf", "prefixItems"} {
		for i, e := range s.at(name).list() {
			if err := eachSchema(fmt.Sprintf("%s.%s.%d", path, name, i), e, f); err != nil {
				return err
			}
		}
	}
	for _, name := range []string{"items", "additionalProperties"} {
		if _, ok := s.at(name).v.(map[string]any); ok {
			if err := eachSchema(path+"."+name, s.at(name), f); err != nil {
				return err
			}
		}
	}
	return nil
}

// refs reports whether a schema is recursive.
func refs(root, s value, following []string) bool {
	switch v := s.v.(type) {
	case []any:
		return slices.ContainsFunc(v, func(e any) bool { return refs(root, value{e}, following) })
	case map[string]any:
		if ref, ok := v["$ref"].(string); ok {
			at := root
			for part := range strings.SplitSeq(strings.TrimPrefix(ref, "#"), "/") {
				if part != "" {
					at = at.at(strings.ReplaceAll(strings.ReplaceAll(part, "~1", "/"), "~0", "~"))
				}
			}
			return slices.Contains(following, ref) || refs(root, at, append(slices.Clone(following), ref))
		}
		for name, inside := range v {
			if name != "$defs" && name != "definitions" && refs(root, value{inside}, following) {
				return true
			}
		}
	}
	return false
}

// chatSchemas recognizes OpenAI by model names; other servers of the format accept any
// schema.
func chatSchemas(model string, v value) error {
	if !strings.HasPrefix(model, "gpt-") {
		return nil
	}
	if f := v.at("response_format").at("json_schema"); f.v != nil {
		if err := openAISchema("response_format '"+f.at("name").text()+"'", f.at("schema"), f.at("strict").v == true); err != nil {
			return err
		}
	}
	for _, t := range v.at("tools").list() {
		if f := t.at("function"); f.has("parameters") {
			if err := openAISchema("function '"+f.at("name").text()+"'", f.at("parameters"), f.at("strict").v == true); err != nil {
				return err
			}
		}
	}
	return nil
}

func responsesSchemas(v value) error {
	if f := v.at("text").at("format"); f.at("type").text() == "json_schema" {
		if err := openAISchema("response_format '"+f.at("name").text()+"'", f.at("schema"), f.at("strict").v == true); err != nil {
			return err
		}
	}
	for _, t := range v.at("tools").list() {
		for _, f := range append(t.at("tools").list(), t) {
			if f.at("type").text() == "function" && f.has("parameters") {
				if err := openAISchema("function '"+f.at("name").text()+"'", f.at("parameters"), f.at("strict").v == true); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

var lookaround = regexp.MustCompile(`\(\?<?[=!]|\\[1-9]`)

func openAISchema(of string, s value, strict bool) error {
	bad := func(path, format string, args ...any) error {
		return says("Invalid schema for %s: In context=(%s), %s", of, path, fmt.Sprintf(format, args...))
	}
	if s.v == nil || s.at("type").text() != "object" {
		return says("Invalid schema for %s: schema must be a JSON Schema of 'type: \"object\"', got 'type: %q'", of, s.at("type").text())
	}
	for _, name := range []string{"oneOf", "anyOf", "allOf", "enum", "not"} {
		if s.has(name) {
			return says("Invalid schema for %s: schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level", of)
		}
	}
	depth := 0
	err := eachSchema("", s, func(path string, s value) error {
		depth = max(depth, strings.Count(path, ".properties.")+strings.Count(path, ".items"))
		if p := s.at("pattern").text(); lookaround.MatchString(p) {
			return says("Invalid JSON schema: regex lookaround is not supported. Found at $%s.pattern", path)
		}
		if !strict {
			return nil
		}
		m, ok := s.v.(map[string]any)
		if !ok {
			return bad(path, "schema must be an object")
		}
		if s.has("$ref") && len(m) > 1 {
			return bad(path, "$ref cannot have keywords %v", slices.Sorted(maps.Keys(m)))
		}
		types := typesOfSchema(s)
		if len(types) == 0 && !s.has("enum") && !s.has("const") && !s.has("anyOf") && !s.has("$ref") {
			return bad(path, "schema must have a 'type' key")
		}
		known := strings.Fields("type title description enum const anyOf $ref $defs definitions properties required additionalProperties items minItems maxItems " +
			"minimum maximum exclusiveMinimum exclusiveMaximum multipleOf pattern format")
		for _, name := range slices.Sorted(maps.Keys(m)) {
			if !slices.Contains(known, name) {
				return bad(path, "'%s' is not permitted", name)
			}
		}
		if f := s.at("format").text(); s.has("format") && (f == "uri" || !slices.Contains(formatsOfClaude, f)) {
			return bad(path, "'%s' is not a valid format", f)
		}
		if slices.Contains(types, "array") && !s.has("items") {
			return bad(path, "array schema missing items")
		}
		if slices.Contains(types, "object") {
			if s.at("additionalProperties").v != false {
				return bad(path, "'additionalProperties' is required to be supplied and to be false")
			}
			required := s.at("required").texts()
			for name := range s.object("properties") {
				if !slices.Contains(required, name) {
					return bad(path, "'required' is required to be supplied and to be an array including every key in properties. Missing '%s'", name)
				}
			}
		}
		return nil
	})
	if err == nil && strict && depth > 10 {
		return says("Invalid schema for %s: %d levels of nesting exceeds limit of 10", of, depth)
	}
	return err
}

func geminiSchemas(v value) error {
	check := func(path string, of value) error {
		for name, f := range map[string]func(string, value) error{
			"responseSchema": openAPIOfGemini, "parameters": openAPIOfGemini, "responseJsonSchema": jsonOfGemini, "parametersJsonSchema": jsonOfGemini,
		} {
			if of.has(name) {
				if err := eachSchema(path+"."+name, of.at(name), f); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if err := check("generation_config", v.at("generationConfig")); err != nil {
		return err
	}
	for _, t := range v.at("tools").list() {
		for i, f := range t.at("functionDeclarations").list() {
			if err := check(fmt.Sprintf("tools[0].function_declarations[%d]", i), f); err != nil {
				return err
			}
		}
	}
	return nil
}

func openAPIOfGemini(path string, s value) error {
	m, _ := s.v.(map[string]any)
	known := strings.Fields("type format title description nullable enum maxItems minItems properties required minProperties maxProperties minLength maxLength pattern example anyOf propertyOrdering default items minimum maximum")
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if !slices.Contains(known, name) {
			return says("Invalid JSON payload received. Unknown name %q at '%s': Cannot find field", name, path)
		}
	}
	if f := s.at("format").text(); s.at("type").text() == "STRING" && f != "" && f != "enum" && f != "date-time" {
		return says("* GenerateContentRequest.%s.format: only 'enum' and 'date-time' are supported for STRING type", path)
	}
	return nil
}

// jsonOfGemini refuses keywords that Google ignores, so that tests notice them.
func jsonOfGemini(path string, s value) error {
	m, _ := s.v.(map[string]any)
	known := strings.Fields("$id $defs $ref $anchor type format title description enum items prefixItems minItems maxItems minimum maximum anyOf oneOf properties additionalProperties required propertyOrdering")
	for _, name := range slices.Sorted(maps.Keys(m)) {
		switch {
		case !slices.Contains(known, name):
			return fmt.Errorf("%s.%s would be ignored", path, name)
		case s.has("$ref") && name[0] != '$':
			return fmt.Errorf("%s has $ref and %s", path, name)
		}
	}
	return nil
}
