package hub

import (
	"bytes"
	"encoding/json"
)

// IsNull reports whether a member of JSON is missing or null.
func IsNull(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// Encode is json.Marshal without the escaping of <, > and &, because the result is not
// embedded in HTML.
func Encode(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// MustEncode is Encode for values that cannot fail: values of this project's types, in
// which json.RawMessage members have been validated.
func MustEncode(v any) json.RawMessage {
	raw, err := Encode(v)
	if err != nil {
		panic("encode: " + err.Error())
	}
	return raw
}

// Compact returns a copy of JSON without white space; invalid JSON is copied unchanged.
func Compact(b []byte) json.RawMessage {
	var out bytes.Buffer
	out.Grow(len(b))
	if json.Compact(&out, b) != nil {
		return bytes.Clone(b)
	}
	return out.Bytes()
}

// MaxDepth is the maximum nesting of JSON in an answer.
const MaxDepth = 512

// Closed reports whether the brackets and strings of JSON are closed, and nested at most
// MaxDepth deep. It checks nothing else, because it runs for each event of a passed
// stream.
func Closed(b []byte) bool {
	depth, begun := 0, false
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '{', '[':
			begun = true
			if depth++; depth > MaxDepth {
				return false
			}
		case '}', ']':
			if depth--; depth < 0 {
				return false
			}
		case '"':
			for i++; ; i++ {
				n := bytes.IndexByte(b[i:], '"')
				if n < 0 {
					return false
				}
				slashes := 0
				for slashes < n && b[i+n-1-slashes] == '\\' {
					slashes++
				}
				i += n
				if slashes%2 == 0 {
					break
				}
			}
		}
	}
	return depth == 0 && begun
}

// ClosedObject reports whether b, without surrounding white space, is an object according
// to Closed.
func ClosedObject(b []byte) bool {
	b = bytes.TrimSpace(b)
	return len(b) > 1 && b[0] == '{' && b[len(b)-1] == '}' && Closed(b)
}
