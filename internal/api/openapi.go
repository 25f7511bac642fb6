package api

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
)

// openAPI is the part of an OpenAPI document that slices can contribute.
type openAPI struct {
	OpenAPI    string                                `json:"openapi"`
	Info       map[string]string                     `json:"info"`
	Servers    []map[string]string                   `json:"servers"`
	Security   []map[string][]string                 `json:"security"`
	Tags       []json.RawMessage                     `json:"tags,omitempty"`
	Paths      map[string]map[string]json.RawMessage `json:"paths"`
	Components map[string]map[string]json.RawMessage `json:"components"`
}

// kitFragment describes the answers of this package itself.
const kitFragment = `{
  "paths": {
    "/v1/openapi.json": {"get": {"operationId": "getOpenAPI", "summary": "This document", "tags": ["daemon"], "security": [],
      "responses": {"200": {"description": "An OpenAPI 3.1 document.", "content": {"application/json": {"schema": {"type": "object"}}}}}}}
  },
  "components": {
    "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "A token made by POST /v1/tokens, or the admin token in the daemon's data directory."}},
    "schemas": {
      "Error": {"type": "object", "required": ["code", "message"], "additionalProperties": false, "properties": {
        "code": {"type": "string", "description": "What kind of failure it is; clients decide by this.", "enum": ["invalid", "unauthenticated", "permission_denied", "not_found", "file_not_found", "already_exists", "conflict", "sandbox_stopped", "executable_not_found", "too_large", "quota_exceeded", "no_space", "not_supported", "source_unavailable", "unavailable", "deadline_exceeded", "canceled", "internal"]},
        "message": {"type": "string", "description": "A sentence for people."},
        "hint": {"type": "string", "description": "What to do about it."},
        "retry_after_ms": {"type": "integer", "minimum": 0, "description": "How long to wait before trying again."}}},
      "ErrorBody": {"type": "object", "required": ["error"], "additionalProperties": false, "properties": {
        "type": {"const": "error", "description": "Only in streams whose lines have a type."}, "error": {"$ref": "#/components/schemas/Error"}}}
    },
    "responses": {
      "Error": {"description": "A failure: 400 invalid, 401 unauthenticated, 403 permission_denied, 404 not_found and file_not_found, 409 already_exists and conflict, 410 sandbox_stopped, 413 too_large, 422 executable_not_found, 429 quota_exceeded, 499 canceled, 500 internal, 501 not_supported, 502 source_unavailable, 503 unavailable, 504 deadline_exceeded, 507 no_space. 429 and 503 carry Retry-After.",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}}}
    }
  }
}`

// MergeOpenAPI makes one document of the kit's own fragment and the given ones.
// Two fragments that describe the same operation or component are an error.
func MergeOpenAPI(version string, fragments []json.RawMessage) ([]byte, error) {
	doc := openAPI{
		OpenAPI: "3.1.0",
		Info: map[string]string{
			"title":       "cay",
			"version":     version,
			"description": "The native API of a cay daemon. Times are RFC 3339; fields ending in _ms are whole milliseconds. Objects of other teams do not exist as far as a token can tell. Unknown fields and query parameters are refused.",
		},
		Servers:    []map[string]string{{"url": "/"}},
		Security:   []map[string][]string{{"token": {}}},
		Paths:      map[string]map[string]json.RawMessage{},
		Components: map[string]map[string]json.RawMessage{},
	}
	for i, raw := range append([]json.RawMessage{json.RawMessage(kitFragment)}, fragments...) {
		var f openAPI
		if err := json.Unmarshal(raw, &f); err != nil {
			return nil, fmt.Errorf("fragment %d: %w", i, err)
		}
		doc.Tags = append(doc.Tags, f.Tags...)
		if err := mergeInto(doc.Paths, f.Paths); err != nil {
			return nil, err
		}
		if err := mergeInto(doc.Components, f.Components); err != nil {
			return nil, err
		}
	}
	return json.Marshal(doc)
}

func mergeInto(dst, src map[string]map[string]json.RawMessage) error {
	for group, members := range src {
		if dst[group] == nil {
			dst[group] = maps.Clone(members)
			continue
		}
		for name, v := range members {
			if _, ok := dst[group][name]; ok {
				return fmt.Errorf("%s %s is described twice", group, name)
			}
			dst[group][name] = v
		}
	}
	return nil
}

// compareRoutes orders "METHOD /path" patterns by path, then method.
func compareRoutes(a, b string) int {
	am, ap, _ := strings.Cut(a, " ")
	bm, bp, _ := strings.Cut(b, " ")
	if c := strings.Compare(ap, bp); c != 0 {
		return c
	}
	return strings.Compare(am, bm)
}
