package agent

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/cayhq/cay"
)

// schema is a JSON schema, as JSON for models, and compiled for checking values.
type schema struct {
	raw    json.RawMessage
	object bool // values are objects
	// resolved resolves the schema on first use, inside a step: resolving seeds a
	// hash at random, which workflow code must not do.
	resolved func() (*jsonschema.Resolved, error)
}

// anything has the types whose JSON may be any value.
var anything = map[reflect.Type]*jsonschema.Schema{
	reflect.TypeFor[json.RawMessage](): {},
}

// schemaOf returns the schema of a type.
func schemaOf(t reflect.Type) (*schema, error) {
	s, err := jsonschema.ForType(t, &jsonschema.ForOptions{TypeSchemas: anything})
	if err != nil {
		return nil, fmt.Errorf("%s has no JSON schema: %w", t, err)
	}
	// Go encodes a nil slice as null, so null is accepted; but the schema asks
	// models for arrays.
	check := s.CloneSchemas()
	arrays(s)
	if s.Type == "object" && s.Properties == nil {
		s.Properties = map[string]*jsonschema.Schema{} // some providers want it
	}
	raw, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("the JSON schema of %s: %w", t, err)
	}
	return &schema{raw: raw, object: s.Type == "object", resolved: resolving(check)}, nil
}

func resolving(s *jsonschema.Schema) func() (*jsonschema.Resolved, error) {
	return sync.OnceValues(func() (*jsonschema.Resolved, error) { return s.Resolve(nil) })
}

// arrays removes null from the types "null or array".
func arrays(s *jsonschema.Schema) {
	if s == nil {
		return
	}
	if slices.Equal(s.Types, []string{"null", "array"}) {
		s.Type, s.Types = "array", nil
	}
	for _, p := range s.Properties {
		arrays(p)
	}
	arrays(s.Items)
	arrays(s.AdditionalProperties)
}

// readSchema reads a schema. A reference to a part that the schema does not have,
// say, is found by the resolver that validates values.
func readSchema(raw json.RawMessage) (*schema, error) {
	var s jsonschema.Schema
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, cay.Errorf(cay.Invalid, "it is no JSON schema: %w", err)
	}
	return &schema{raw: raw, resolved: resolving(&s)}, nil
}

// fit returns an error if a value does not fit. Call fit in steps only: the error's
// text may differ from one call to the next.
func (s *schema) fit(value json.RawMessage) error {
	var v any
	if err := json.Unmarshal(value, &v); err != nil {
		return fmt.Errorf("it is not JSON: %w", err)
	}
	if s == nil {
		return nil
	}
	check, err := s.resolved()
	if err != nil {
		return fmt.Errorf("values cannot be checked with the schema: %w", err)
	}
	return check.Validate(v)
}
