package guard

import (
	"bytes"
	"regexp"
	"strconv"

	"github.com/tidwall/gjson"
)

// Redactor takes out of texts what its patterns find, and refuses nothing. It is
// for what is kept, not for what is passed on. It is safe for concurrent use.
type Redactor struct{ rules []*rule }

// NewRedactor returns one that replaces what patterns find by [name], whatever
// they say is to become of it. Errors: invalid.
func NewRedactor(patterns []Pattern) (*Redactor, error) {
	all := make([]Pattern, len(patterns))
	for i, p := range patterns {
		p.Redact = true
		all[i] = p
	}
	rules, err := rules("redact", all)
	return &Redactor{rules}, err
}

// Empty reports whether there is nothing to find.
func (r *Redactor) Empty() bool { return r == nil || len(r.rules) == 0 }

// JSON returns a JSON value with its texts redacted. What is no JSON, as what was
// cut off is not, is redacted as a text.
func (r *Redactor) JSON(body []byte) []byte {
	if r.Empty() {
		return body
	}
	if gjson.ValidBytes(body) {
		if out, err := apply(r.rules, body, ""); err == nil { // else it is too deep
			return out
		}
	}
	return r.Text(body)
}

// Text returns a text redacted. Characters that are written as escapes of JSON are
// looked at as what they are.
func (r *Redactor) Text(text []byte) []byte {
	if r.Empty() {
		return text
	}
	plain := escapes.ReplaceAllFunc(text, func(e []byte) []byte {
		n, err := strconv.ParseUint(string(e[2:]), 16, 16)
		if err != nil || n == '"' || n == '\\' || n == 0x7f {
			return e
		}
		return []byte{byte(n)}
	})
	out, err := applyText(r.rules, string(plain), "")
	if err != nil { // no rule of a Redactor blocks
		return nil
	}
	return []byte(out)
}

// escapes are those of printable characters of ASCII.
var escapes = regexp.MustCompile(`\\u00[2-7][0-9a-fA-F]`)

// deltas are members whose texts are pieces of one, in events of all formats.
var deltas = []string{"content", "text", "delta", "thinking", "partial_json", "arguments", "reasoning", "reasoning_content", "refusal"}

// Events returns a stream of server-sent events with the texts in its data
// redacted. If something was found only where the pieces of several events are put
// together, the stream cannot be had without it: then it returns the texts put
// together and redacted, and true.
func (r *Redactor) Events(stream []byte) (out []byte, assembled bool) {
	if r.Empty() {
		return stream, false
	}
	joined := make([]bytes.Buffer, len(deltas))
	for line := range bytes.Lines(stream) {
		data, ok := bytes.CutPrefix(line, []byte("data:"))
		if !ok {
			out = append(out, r.Text(line)...)
			continue
		}
		text := bytes.TrimRight(data, "\r\n")
		changed := r.JSON(bytes.TrimSpace(text))
		collect(changed, joined)
		out = append(append(append(out, "data: "...), changed...), data[len(text):]...)
	}
	var whole []byte
	for i := range joined {
		text := joined[i].Bytes()
		if found := r.Text(text); !bytes.Equal(found, text) {
			assembled = true
			text = found
		}
		if len(text) > 0 {
			whole = append(append(whole, text...), '\n')
		}
	}
	if assembled {
		return whole, true
	}
	return out, false
}
