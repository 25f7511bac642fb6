package protocol

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"slices"
)

// Payload is an envelope as it travels in JSON: {"json": <value>} if it holds
// JSON, compressed or not, so that people and programs without our SDK can read
// and write it, else {"base64": "<the whole envelope>"}. Both forms are read
// everywhere.
type Payload []byte

// Exact is a Payload that is always written in base64. What the SDK sends is
// compared and kept byte by byte, whatever JSON decoders are in between.
type Exact []byte

// What envelopes of JSON begin with, and those of a compressed envelope.
var plain, compressed = []byte("json"), []byte("gzip")

// maxUnpacked bounds what is unpacked to be shown as JSON, in bytes. What is
// larger travels as it is.
const maxUnpacked = 4 << 20

// JSON returns the JSON in an envelope, false if it holds something else.
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

// Value returns the JSON in an envelope; of one that holds something else, an
// object with the envelope in base64, as MarshalJSON writes it.
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
		// By hand: Marshal would write <, > and & as escapes.
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
