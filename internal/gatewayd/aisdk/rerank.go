package aisdk

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// ReadRerank decodes the request of a reranking model; versions 3 and 4 have such models.
// Errors: see ReadCall.
func (*Format) ReadRerank(head http.Header, body []byte) (*hub.RerankCall, error) {
	if _, err := Version(head); err != nil {
		return nil, err
	}
	c, r := new(hub.RerankCall), new(walker)
	query := false
	r.members(r.open(body), "", func(name, path string, v gjson.Result) {
		switch name {
		case "query":
			query = true
			c.Query = r.name(v, path)
		case "documents":
			readDocuments(r, c, v, path)
		case "topN":
			if n := r.integer(v, path, 1); n != nil {
				c.TopN = *n
			}
		case "providerOptions":
			c.Options = r.options(v, path)
		case "headers":
		default:
			r.unknown(path)
		}
	})
	if !query {
		r.missing("", "query")
	}
	if len(c.Documents) == 0 {
		r.want("documents.values", "an array of at least one document")
	}
	if r.err != nil {
		return nil, r.err
	}
	c.Warnings = r.warnings
	return c, nil
}

// readDocuments decodes {type: text | object, values: [...]}.
func readDocuments(r *walker, c *hub.RerankCall, v gjson.Result, path string) {
	if !v.IsObject() {
		r.want(path, "an object")
		return
	}
	switch v.Get("type").Str {
	case "text":
	case "object":
		c.Objects = true
	default:
		r.want(join(path, "type"), `"text" or "object"`)
	}
	r.members(v, path, func(name, path string, v gjson.Result) {
		switch name {
		case "type":
		case "values":
			r.items(v, path, func(path string, v gjson.Result) {
				switch {
				case c.Objects && !v.IsObject():
					r.want(path, "an object")
				case !c.Objects && v.Type != gjson.String:
					r.want(path, "a string")
				}
				c.Documents = append(c.Documents, json.RawMessage(v.Raw))
			})
		default:
			r.unknown(path)
		}
	})
}

// WriteRerank encodes the answer of a reranking model. r's warnings must include those of
// the call.
func (*Format) WriteRerank(a hub.Answer, r *hub.RerankResult) ([]byte, error) {
	w := newAnswer(a)
	w.Call = nil
	dst := []byte(`{"ranking":[`)
	for _, ranked := range r.Ranking {
		if math.IsNaN(ranked.Score) || math.IsInf(ranked.Score, 0) {
			return nil, &hub.Error{Kind: hub.UpstreamFailed, Message: "the provider's ranking has a score that is no number"}
		}
		dst = append(item(dst), `{"index":`...)
		dst = strconv.AppendInt(dst, int64(ranked.Index), 10)
		dst = append(appendFloat(key(dst, "relevanceScore"), ranked.Score), '}')
	}
	dst = w.warnings(append(dst, ']'), r.Warnings)
	return append(metadata(dst, r.Options, w.ours()), '}'), nil
}
