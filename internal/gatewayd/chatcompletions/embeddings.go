package chatcompletions

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"strconv"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// maxValues is the maximum number of texts in a call, OpenAI's limit.
const maxValues = 2048

// ReadEmbedCall decodes an embeddings request. encoding_format is kept for
// WriteEmbedResult. Token lists are refused, because they are specific to one model.
func ReadEmbedCall(body []byte) (*hub.EmbedCall, error) {
	root := gjson.ParseBytes(body)
	if !valid(body) || !root.IsObject() {
		return nil, wrong("", "the body must be a JSON object")
	}
	c := new(hub.EmbedCall)
	r := &callReader{call: new(hub.Call)}
	root.ForEach(func(key, v gjson.Result) bool {
		switch name := key.Str; {
		case v.Type == gjson.Null:
		case name == "model":
		case name == "input":
			c.Values = r.values(v)
		case name == "dimensions":
			n := r.int(name, v)
			if *n < 1 || *n > 1<<20 {
				r.fail(name, "must be above 0")
			}
			c.Dimensions = int(*n)
		case name == "encoding_format":
			if v.Str != "float" && v.Str != "base64" {
				r.fail(name, "must be float or base64")
			}
			c.Options.Set(own, "encodingFormat", v.Str)
		case name == "user":
			c.User = r.text(name, v)
		case name == "providerOptions":
			r.providerOptions(v)
		default:
			r.warn(hub.WarnUnsupported, name, "")
		}
		return r.err == nil
	})
	if r.err == nil && len(c.Values) == 0 {
		r.fail("input", "is missing or empty")
	}
	if r.err != nil {
		return nil, r.err
	}
	c.Options.Merge(r.call.Options)
	c.Warnings = r.call.Warnings
	return c, nil
}

func (r *callReader) values(v gjson.Result) (values []string) {
	if v.Type == gjson.String {
		return []string{v.Str}
	}
	if !v.IsArray() {
		r.fail("input", "must be a string or a list of strings")
	}
	for i, v := range v.Array() {
		if i == maxValues {
			r.fail("input", "has more than %d texts", maxValues)
		}
		if v.Type != gjson.String {
			r.fail(fmt.Sprintf("input[%d]", i), "must be a string; tokens cannot be translated for this model")
		}
		if r.err != nil {
			return nil
		}
		values = append(values, v.Str)
	}
	return values
}

// WriteEmbedResult encodes the answer to c: vectors as lists of numbers, or in
// base64 if c asks for it.
func WriteEmbedResult(a hub.Answer, c *hub.EmbedCall, r *hub.EmbedResult) []byte {
	packed := c.Options.String(own, "encodingFormat") == "base64"
	var b buffer
	b.add(`{"object":"list","data":[`)
	for i, vector := range r.Vectors {
		b.next()
		b.add(`{"object":"embedding"`)
		b.int("index", int64(i))
		b.key("embedding")
		if packed {
			b.base64(packVector(vector))
		} else {
			b.vector(vector)
		}
		b.close('}')
	}
	b.close(']')
	b.text("model", a.Model)
	if r.Usage != nil {
		b.open("usage", '{')
		b.int("prompt_tokens", hub.Count(r.Usage.Input))
		b.int("total_tokens", hub.Count(r.Usage.Input))
		b.close('}')
	}
	if metadata := metadataOf(&a); metadata != nil {
		b.open("providerMetadata", '{')
		b.raw("gateway", metadata)
		b.close('}')
	}
	b.close('}')
	return b
}

func (b *buffer) vector(vector []float64) {
	*b = append(*b, '[')
	for i, f := range vector {
		if i > 0 {
			*b = append(*b, ',')
		}
		*b = appendFloat(*b, f)
	}
	*b = append(*b, ']')
}

// packVector returns little-endian 32-bit floats, the form that OpenAI's clients decode.
func packVector(vector []float64) []byte {
	raw := make([]byte, 0, 4*len(vector))
	for _, f := range vector {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(float32(f)))
	}
	return raw
}

func unpackVector(text string) ([]float64, bool) {
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(raw)%4 != 0 {
		return nil, false
	}
	vector := make([]float64, 0, len(raw)/4)
	for ; len(raw) > 0; raw = raw[4:] {
		f := float64(math.Float32frombits(binary.LittleEndian.Uint32(raw)))
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return nil, false
		}
		// The shortest decimal for the same float32, such as 0.1 instead of
		// 0.10000000149011612.
		short, err := strconv.ParseFloat(strconv.FormatFloat(f, 'g', -1, 32), 64)
		if err != nil {
			return nil, false
		}
		vector = append(vector, short)
	}
	return vector, true
}

// WriteEmbedCall encodes an embeddings call. All values are in one request; the path is
// OpenAI's, /embeddings.
func WriteEmbedCall(c *hub.EmbedCall, t *hub.Target) (*hub.Outgoing, []hub.Warning, error) {
	var b buffer
	b.add("{")
	b.text("model", t.Model)
	b.open("input", '[')
	for _, v := range c.Values {
		b.next()
		b = appendText(b, v)
	}
	b.close(']')
	if c.Dimensions > 0 {
		b.int("dimensions", int64(c.Dimensions))
	}
	if t.Is(OpenAI) {
		b.text("encoding_format", "base64")
	}
	w := &callWriter{c: &hub.Call{}, t: t}
	if c.User != "" {
		if t.Is(NoUser) {
			w.unsupported("user")
		} else {
			b.text("user", c.User)
		}
	}
	w.b = b
	w.extra(c.Options)
	w.b.close('}')
	return &hub.Outgoing{Path: "/embeddings", Body: w.b}, w.warnings, nil
}

// ReadEmbedResult decodes an answer that must have one vector per value.
func ReadEmbedResult(t *hub.Target, body []byte, values int) (*hub.EmbedResult, error) {
	root := gjson.ParseBytes(body)
	if err := checkAnswer(t, body, root); err != nil {
		return nil, err
	}
	r := &hub.EmbedResult{Vectors: make([][]float64, values), Response: hub.Response{Model: root.Get("model").String()}}
	data := root.Get("data").Array()
	if len(data) != values {
		return nil, nonsense(t, fmt.Sprintf("it answered with %d vectors for %d values", len(data), values))
	}
	for i, v := range data {
		at := i
		if index := v.Get("index"); index.Type == gjson.Number {
			at = int(index.Int())
		}
		if at < 0 || at >= values || r.Vectors[at] != nil {
			return nil, nonsense(t, "the indexes of its vectors are wrong")
		}
		vector, ok := readVector(v.Get("embedding"))
		if !ok {
			return nil, nonsense(t, "one of its vectors is none")
		}
		r.Vectors[at] = vector
	}
	if u := root.Get("usage"); u.IsObject() {
		n := count(u.Get("prompt_tokens"))
		if n == nil {
			n = count(u.Get("total_tokens"))
		}
		r.Usage = &hub.Usage{Input: n, Raw: json.RawMessage(u.Raw)}
		if cost := u.Get("cost"); cost.Type == gjson.Number {
			r.Usage.Cost = cost.Raw
		}
		r.Usage.Fill()
	}
	return r, nil
}

func readVector(v gjson.Result) ([]float64, bool) {
	if v.Type == gjson.String {
		return unpackVector(v.Str)
	}
	if !v.IsArray() {
		return nil, false
	}
	vector, ok := []float64{}, true
	v.ForEach(func(_, n gjson.Result) bool {
		ok = n.Type == gjson.Number && !math.IsInf(n.Num, 0)
		vector = append(vector, n.Num)
		return ok
	})
	return vector, ok
}

// checkAnswer returns an error if an answer is not a JSON object, or is an error.
func checkAnswer(t *hub.Target, body []byte, root gjson.Result) error {
	switch {
	case len(body) > maxAnswer:
		return nonsense(t, "its answer is too large")
	case !valid(body) || !root.IsObject():
		return nonsense(t, "its answer is no JSON object")
	case isError(root.Get("error")):
		return errorIn(t, root, 0)
	}
	return nil
}

func nonsense(t *hub.Target, what string) *hub.Error {
	return &hub.Error{Kind: hub.UpstreamFailed, Provider: t.Provider, Message: "the provider " + t.Provider + " failed: " + what}
}
