package api

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"reflect"
	"strings"
	"time"

	jsonexp "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire"
)

const (
	maxBody     = 1 << 20          // bytes of a JSON body
	maxDepth    = 64               // nesting of a JSON body
	bodyTimeout = 30 * time.Second // for a whole JSON body to arrive
)

// ReadJSON decodes the request's body, one JSON object, into v. Decoding is
// strict, so that no misspelt option is ignored: unknown and repeated members
// are refused, names are case-sensitive. Errors: invalid, with the member's
// name; too_large beyond 1 MiB or 64 levels; deadline_exceeded.
func ReadJSON(w http.ResponseWriter, r *http.Request, v any) error {
	if err := checkJSONType(r); err != nil {
		return err
	}
	b, err := readBody(w, r)
	if err != nil {
		return err
	}
	return decodeJSON(b, v, jsonexp.RejectUnknownMembers(true))
}

// ReadLargeJSON is ReadJSON for a body of up to limit bytes, which may take any
// time to arrive as long as it moves. The caller must bound the memory that v
// takes.
func ReadLargeJSON(w http.ResponseWriter, r *http.Request, v any, limit int64) error {
	if err := checkJSONType(r); err != nil {
		return err
	}
	b, err := io.ReadAll(http.MaxBytesReader(w, io.NopCloser(Body(w, r)), limit))
	if err != nil {
		return err
	}
	return decodeJSON(b, v, jsonexp.RejectUnknownMembers(true))
}

// ReadOpenJSON is ReadJSON for other protocols, whose clients may send members
// that we do not know: they are ignored. A missing body sets nothing, and the
// content type may be any.
func ReadOpenJSON(w http.ResponseWriter, r *http.Request, v any) error {
	b, err := readBody(w, r)
	if err != nil || len(bytes.TrimSpace(b)) == 0 {
		return err
	}
	return decodeJSON(b, v)
}

func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	body := watchBody(w, r)
	body.setDeadline(time.Now().Add(bodyTimeout))
	b, err := io.ReadAll(http.MaxBytesReader(w, body, maxBody))
	if err != nil {
		return nil, bodyError(err)
	}
	return b, nil
}

func checkJSONType(r *http.Request) error {
	ct := r.Header.Get("Content-Type")
	media, _, err := mime.ParseMediaType(ct)
	if err != nil || media != wire.TypeJSON {
		return cay.Errorf(cay.Invalid, "the content type is %q", ct).WithHint("send the body as %s", wire.TypeJSON)
	}
	return nil
}

// bodyError explains why a body could not be read.
func bodyError(err error) error {
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return err // Public words it
	}
	var timeout interface{ Timeout() bool }
	if errors.As(err, &timeout) && timeout.Timeout() {
		return cay.Errorf(cay.DeadlineExceeded, "the request body did not arrive in time")
	}
	return cay.Errorf(cay.Canceled, "the request body broke off: %w", err)
}

func decodeJSON(b []byte, v any, opts ...jsonexp.Options) error {
	if len(bytes.TrimSpace(b)) == 0 {
		return cay.Errorf(cay.Invalid, "the request body is empty").WithHint("send a JSON object; {} sets nothing")
	}
	if err := checkJSON(b); err != nil {
		return err
	}
	if kind := jsontext.Value(b).Kind(); kind != '{' {
		return cay.Errorf(cay.Invalid, "the request body is %s, not an object", kindName(kind))
	}
	err := jsonexp.Unmarshal(b, v, opts...)
	if err == nil {
		return nil
	}
	var semantic *jsonexp.SemanticError
	if !errors.As(err, &semantic) {
		return cay.Errorf(cay.Invalid, "the request body is not what is expected here: %w", err)
	}
	field := fieldName(semantic.JSONPointer)
	switch {
	case errors.Is(err, jsonexp.ErrUnknownName):
		return cay.Errorf(cay.Invalid, "unknown field %q", field)
	case semantic.Err != nil && field != "":
		return cay.Errorf(cay.Invalid, "field %q: %v", field, semantic.Err)
	case semantic.Err != nil:
		return cay.Errorf(cay.Invalid, "%v", semantic.Err)
	}
	return cay.Errorf(cay.Invalid, "field %q: %s does not fit", field, describeValue(b, semantic))
}

// describeValue returns the value that an error is about if it is short and
// should be a number, otherwise only its type: other values may be secrets in
// the wrong place, and errors are logged.
func describeValue(b []byte, e *jsonexp.SemanticError) string {
	if e.GoType == nil || e.GoType.Kind() < reflect.Int || e.GoType.Kind() > reflect.Float64 {
		return kindName(e.JSONKind)
	}
	d := jsontext.NewDecoder(bytes.NewReader(b))
	for {
		tok, err := d.ReadToken()
		if err != nil {
			return kindName(e.JSONKind)
		}
		if d.StackPointer() != e.JSONPointer {
			continue
		}
		val := tok.String()
		if in, n := d.StackIndex(d.StackDepth()); in == '{' && n%2 == 1 { // tok is the member's name
			v, err := d.ReadValue()
			if err != nil {
				return kindName(e.JSONKind)
			}
			val = string(v)
		}
		if len(val) > 64 {
			return kindName(e.JSONKind)
		}
		return val
	}
}

// checkJSON reads b once without building a value. The decoder refuses repeated
// names and invalid UTF-8.
func checkJSON(b []byte) error {
	d := jsontext.NewDecoder(bytes.NewReader(b))
	for {
		_, err := d.ReadToken()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			var syntax *jsontext.SyntacticError
			if errors.As(err, &syntax) {
				if errors.Is(err, jsontext.ErrDuplicateName) {
					return cay.Errorf(cay.Invalid, "field %q is there twice", fieldName(syntax.JSONPointer))
				}
				return cay.Errorf(cay.Invalid, "the request body is not JSON at byte %d: %v", syntax.ByteOffset, syntax.Err)
			}
			return cay.Errorf(cay.Invalid, "the request body is not JSON: %v", err)
		}
		if d.StackDepth() > maxDepth {
			return cay.Errorf(cay.TooLarge, "the request body is nested more than %d deep", maxDepth)
		}
		if d.StackDepth() == 0 { // one value is complete
			if rest := bytes.TrimSpace(b[d.InputOffset():]); len(rest) > 0 {
				return cay.Errorf(cay.Invalid, "the request body goes on after the JSON value, at byte %d", d.InputOffset())
			}
			return nil
		}
	}
}

// fieldName returns a JSON pointer in the form that people use: "network.mode".
func fieldName(p jsontext.Pointer) string {
	var parts []string
	for tok := range p.Tokens() {
		parts = append(parts, tok)
	}
	name := strings.Join(parts, ".")
	if len(name) > 200 {
		name = strings.ToValidUTF8(name[:200], "") + "..."
	}
	return name
}

func kindName(k jsontext.Kind) string {
	switch k {
	case 'n':
		return "null"
	case 't', 'f':
		return "a boolean"
	case '"':
		return "a string"
	case '0':
		return "a number"
	case '{':
		return "an object"
	case '[':
		return "an array"
	}
	return "not a value"
}
