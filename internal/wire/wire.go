// Package wire has the formats that the daemon's handlers and the SDK clients
// share: errors, paths, and streams of lines. It also has the HTTP code that
// the SDK clients share.
//
// It is linked into every program that uses an SDK package, so it imports the
// standard library and package cay only. It knows no capability.
package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"time"
	"unicode/utf8"

	"github.com/cayhq/cay"
)

// Header names of the API.
const (
	HeaderTeam        = "Cay-Team"         // the team an admin token speaks for
	HeaderRequestID   = "Cay-Request-Id"   // names the request in the daemon's log
	HeaderFileInfo    = "Cay-File-Info"    // sandbox.FileInfo as ASCII JSON, with a file's content
	HeaderIdempotency = "Idempotency-Key"  // makes a repeated create answer with the first one's result
	TypeJSON          = "application/json" // bodies
	TypeLines         = "application/x-ndjson"
	TypeBytes         = "application/octet-stream"
)

// Error is the JSON form of a cay.Error.
type Error struct {
	Code         cay.Code `json:"code"`
	Message      string   `json:"message"`
	Hint         string   `json:"hint,omitempty"`
	RetryAfterMS int64    `json:"retry_after_ms,omitempty"`
}

// ErrorBody is the body of every answer of failure, and the last line of a
// stream that failed.
type ErrorBody struct {
	Type  string `json:"type,omitempty"` // "error" among events that have a type
	Error *Error `json:"error"`
}

// FromError returns the JSON form of e.
func FromError(e *cay.Error) *Error {
	return &Error{Code: e.Code, Message: e.Message, Hint: e.Hint, RetryAfterMS: e.RetryAfter.Milliseconds()}
}

// Err rebuilds the error. A missing code reads as internal.
func (e *Error) Err() *cay.Error {
	out := &cay.Error{Code: e.Code, Message: e.Message, Hint: e.Hint, RetryAfter: time.Duration(e.RetryAfterMS) * time.Millisecond}
	if out.Code == "" {
		out.Code = cay.Internal
	}
	return out
}

// Path is a file path in JSON. Paths are bytes to Linux: a path in valid UTF-8
// is encoded as a string, any other path as {"base64": "..."}.
type Path string

var errPath = errors.New(`a path must be a string or {"base64": "..."}`)

type base64Path struct {
	Base64 []byte `json:"base64"`
}

// MarshalJSON writes p so that UnmarshalJSON reads the same bytes.
func (p Path) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(p)) {
		return json.Marshal(string(p))
	}
	return json.Marshal(base64Path{[]byte(p)})
}

// UnmarshalJSON reads a string or an object with the member base64.
func (p *Path) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '{' {
		var o base64Path
		d := json.NewDecoder(bytes.NewReader(b))
		d.DisallowUnknownFields()
		if err := d.Decode(&o); err != nil || len(o.Base64) == 0 {
			return errPath
		}
		*p = Path(o.Base64)
		return nil
	}
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return errPath
	}
	*p = Path(s)
	return nil
}
