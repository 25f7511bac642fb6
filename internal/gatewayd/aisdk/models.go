package aisdk

import (
	"slices"
	"strings"

	"github.com/cayhq/cay/gateway"
)

// kinds are the kinds of models that clients know; each version drops the others, or
// should.
var kinds = []string{"embedding", "image", "language", "reranking"}

// Models returns the answer to GET {base}/config for a version: the models that clients
// of the version may call. A client checks every entry against its version and rejects
// the whole list if one entry is invalid.
//
// The price of a model is the lowest input price among its configured endpoints; it is
// omitted if unknown.
func Models(version string, models []gateway.Model) []byte {
	dst := []byte(`{"models":[`)
	for i := range models {
		m := &models[i]
		if !slices.Contains(kinds, m.Kind) || version == "2" && m.Kind == "reranking" {
			continue
		}
		name := m.Name
		if name == "" {
			name = m.ID
		}
		dst = text(append(item(dst), '{'), "id", m.ID)
		dst = text(dst, "name", name)
		dst = optional(dst, "description", m.Description)
		if p := price(m); p != nil {
			dst = append(key(dst, "pricing"), '{')
			dst = text(dst, "input", p.Input.String())
			dst = text(dst, "output", p.Output.String())
			if p.CacheRead != nil {
				dst = text(dst, "input_cache_read", p.CacheRead.String())
			}
			if p.CacheWrite != nil {
				dst = text(dst, "input_cache_write", p.CacheWrite.String())
			}
			dst = append(dst, '}')
		}
		creator, _, _ := strings.Cut(m.ID, "/")
		dst = text(append(key(dst, "specification"), '{'), "specificationVersion", "v"+version)
		dst = text(text(dst, "provider", creator), "modelId", m.ID)
		dst = append(text(append(dst, '}'), "modelType", m.Kind), '}')
	}
	return append(dst, ']', '}')
}

// price returns the price to show for a model, which must be a token price.
func price(m *gateway.Model) (best *gateway.Price) {
	for _, configured := range []bool{true, false} {
		for i := range m.Endpoints {
			e := &m.Endpoints[i]
			if e.Price == nil || e.Configured != configured {
				continue
			}
			if best == nil || e.Price.Input < best.Input {
				best = e.Price
			}
		}
		if best != nil {
			break
		}
	}
	if best != nil && best.Input == 0 && best.Output == 0 && best.Image+best.Request > 0 {
		return nil // not priced by tokens
	}
	return best
}
