package aisdk

import (
	"math"
	"net/http"
	"strconv"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// maxDimensions is the maximum length of a vector.
const maxDimensions = 1 << 20

// ReadEmbed decodes the request of an embedding model: values, or in version 2 input,
// which may be a single string. A client sends up to 2048 values; ReadEmbed does not
// split them for a provider. Errors: see ReadCall.
func (*Format) ReadEmbed(head http.Header, body []byte) (*hub.EmbedCall, error) {
	if _, err := Version(head); err != nil {
		return nil, err
	}
	c, r := new(hub.EmbedCall), new(walker)
	r.members(r.open(body), "", func(name, path string, v gjson.Result) {
		switch name {
		case "values", "input":
			if v.Type == gjson.String {
				c.Values = []string{v.Str}
				return
			}
			c.Values = r.texts(v, path)
		case "dimensions":
			if n := r.integer(v, path, 1); n != nil && *n <= maxDimensions {
				c.Dimensions = int(*n)
			} else {
				r.want(path, "a whole number from 1 to "+strconv.Itoa(maxDimensions))
			}
		case "providerOptions":
			c.Options = r.options(v, path)
		case "headers":
		default:
			r.unknown(path)
		}
	})
	if len(c.Values) == 0 {
		r.want("values", "an array of at least one string")
	}
	if r.err != nil {
		return nil, r.err
	}
	c.Warnings = r.warnings
	return c, nil
}

// WriteEmbed encodes the answer of an embedding model. r's warnings must include those of
// the call.
func (*Format) WriteEmbed(a hub.Answer, r *hub.EmbedResult) ([]byte, error) {
	w := newAnswer(a)
	w.Call = nil
	size := 64
	for _, vector := range r.Vectors {
		size += 22 * len(vector)
	}
	dst := append(make([]byte, 0, size), `{"embeddings":[`...)
	for _, vector := range r.Vectors {
		dst = append(item(dst), '[')
		for _, x := range vector {
			if math.IsNaN(x) || math.IsInf(x, 0) {
				return nil, &hub.Error{Kind: hub.UpstreamFailed, Message: "the provider's vector has a value that is no number"}
			}
			dst = appendFloat(item(dst), x)
		}
		dst = append(dst, ']')
	}
	dst = append(dst, ']')
	if r.Usage != nil {
		usage := *r.Usage
		if usage.Fill(); usage.Input != nil {
			dst = append(key(dst, "usage"), '{')
			dst = append(count(dst, "tokens", usage.Input), '}')
		}
	}
	if w.Version != "2" { // version 2 has no warnings
		dst = w.warnings(dst, r.Warnings)
	}
	return append(metadata(dst, r.Options, w.ours()), '}'), nil
}

// appendFloat appends a number with the fewest digits that represent it exactly.
func appendFloat(dst []byte, x float64) []byte {
	format := byte('f')
	if abs := math.Abs(x); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		format = 'e'
	}
	return strconv.AppendFloat(dst, x, format, -1, 64)
}
