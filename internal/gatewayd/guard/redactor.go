package guard

import (
	"bytes"
	"regexp"
	"strconv"

	"github.com/tidwall/gjson"
)

// Redactor replaces the matches of its patterns, and refuses nothing. It is used for
// stored bodies, not for requests and answers in transit. It is safe for concurrent use.
type Redactor struct{ rules []*rule }

// NewRedactor returns a Redactor that replaces matches of patterns by [name], whatever
// the patterns' Redact says. Errors: invalid.
func NewRedactor(patterns []Pattern) (*Redactor, error) {
	all := make([]Pattern, len(patterns))
	for i, p := range patterns {
		p.Redact = true
		all[i] = p
	}
	rules, err := rules("redact", all)
	return &Redactor{rules}, err
}

// Empty reports whether the Redactor has no patterns.
func (r *Redactor) Empty() bool { return r == nil || len(r.rules) == 0 }

// JSON returns a JSON value with its texts redacted. Invalid JSON, such as a truncated
// body, is redacted as plain text.
func (r *Redactor) JSON(body []byte) []byte {
	if r.Empty() {
		return body
	}
	if gjson.ValidBytes(body) {
		if out, err := apply(r.rules, body, ""); err == nil { // apply fails if the JSON is nested too deeply
			return out
		}
	}
	return r.Text(body)
}

// Text returns text with matches replaced. JSON escapes of printable ASCII characters are
// decoded first.
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

// escapes matches JSON escapes of printable ASCII characters.
var escapes = regexp.MustCompile(`\\u00[2-7][0-9a-fA-F]`)

// deltas are the members that hold parts of one text, in the events of all formats.
var deltas = []string{"content", "text", "delta", "thinking", "partial_json", "arguments", "reasoning", "reasoning_content", "refusal"}

// Events returns a stream of server-sent events with the texts in its data redacted. A
// match may span the texts of several events; in that case Events returns the joined
// texts, redacted, and true.
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
