package hub

import (
	"bytes"
	"encoding/json"
)

// IsNull reports whether a member of JSON is missing or null.
func IsNull(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// Encode is json.Marshal that leaves <, > and & as they are: nobody shows it in a page.
func Encode(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// MustEncode is Encode of what cannot fail: values of our own types, with JSON of
// others in them only if it was found to be valid.
func MustEncode(v any) json.RawMessage {
	raw, err := Encode(v)
	if err != nil {
		panic("encode: " + err.Error())
	}
	return raw
}

// Compact returns a copy of JSON without white space, and of what is none as it is.
func Compact(b []byte) json.RawMessage {
	var out bytes.Buffer
	out.Grow(len(b))
	if json.Compact(&out, b) != nil {
		return bytes.Clone(b)
	}
	return out.Bytes()
}

// MaxDepth is how many levels of JSON may nest in an answer.
const MaxDepth = 512

// Closed reports whether the brackets and strings of JSON are closed, and nest at most
// MaxDepth deep. Nothing else is looked at: it is for what is to be known of each event of a
// stream that passes.
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

// ClosedObject reports whether b, without white space around it, is an object as far as
// Closed tells.
func ClosedObject(b []byte) bool {
	b = bytes.TrimSpace(b)
	return len(b) > 1 && b[0] == '{' && b[len(b)-1] == '}' && Closed(b)
}
