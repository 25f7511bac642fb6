package protocol

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"slices"
)

// Payload is the JSON form of an envelope: {"json": <value>} if it holds JSON, compressed
// or not, so that people and programs without our SDK can read and write it, else
// {"base64": "<the whole envelope>"}. Both forms are read everywhere.
type Payload []byte

// Exact is a Payload that is always written in base64. Payloads of the SDK are compared
// and stored byte by byte, whichever JSON decoders they pass through.
type Exact []byte

// The tags of envelopes of JSON, uncompressed and compressed.
var plain, compressed = []byte("json"), []byte("gzip")

// maxUnpacked bounds what is decompressed to be shown as JSON, in bytes. A larger payload
// is sent in base64.
const maxUnpacked = 4 << 20

// JSON returns the JSON in an envelope, false if the envelope holds other data.
func (p Payload) JSON() (json.RawMessage, bool) {
	if packed, ok := bytes.CutPrefix(p, compressed); ok {
		z, err := gzip.NewReader(bytes.NewReader(packed))
		if err != nil {
			return nil, false
		}
		if p, err = io.ReadAll(io.LimitReader(z, maxUnpacked+1)); err != nil || len(p) > maxUnpacked {
			return nil, false
		}
	}
	v, ok := bytes.CutPrefix(p, plain)
	return json.RawMessage(v), ok && json.Valid(v)
}

// Value returns the JSON in an envelope; for other data it returns an object with the
// envelope in base64, as MarshalJSON writes it.
func (p Payload) Value() json.RawMessage {
	if v, ok := p.JSON(); ok {
		return v
	}
	b, err := Exact(p).MarshalJSON()
	if err != nil {
		panic(err) // bytes can always be encoded
	}
	return b
}

type payloadJSON struct {
	JSON   json.RawMessage `json:"json,omitempty"`
	Base64 []byte          `json:"base64,omitempty"`
}

// MarshalJSON implements json.Marshaler.
func (p Payload) MarshalJSON() ([]byte, error) {
	if len(p) == 0 {
		return []byte("null"), nil
	}
	if value, ok := p.JSON(); ok {
		// The object is built by hand because Marshal would escape <, > and &.
		return slices.Concat([]byte(`{"json":`), value, []byte("}")), nil
	}
	return Exact(p).MarshalJSON()
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *Payload) UnmarshalJSON(b []byte) error { return (*Exact)(p).UnmarshalJSON(b) }

// MarshalJSON implements json.Marshaler.
func (p Exact) MarshalJSON() ([]byte, error) {
	if len(p) == 0 {
		return []byte("null"), nil
	}
	return json.Marshal(payloadJSON{Base64: p})
}

var errPayload = errors.New(`a payload must be {"json": <value>} or {"base64": "<envelope>"}`)

// UnmarshalJSON implements json.Unmarshaler.
func (p *Exact) UnmarshalJSON(b []byte) error {
	*p = nil
	if string(b) == "null" {
		return nil
	}
	var v payloadJSON
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil || (v.JSON == nil) == (v.Base64 == nil) {
		return errPayload
	}
	if v.JSON == nil {
		*p = v.Base64
		return nil
	}
	*p = append(bytes.Clone(plain), v.JSON...)
	return nil
}
