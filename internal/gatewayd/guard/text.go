package guard

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// opaque are members whose texts must not be changed: clients send these texts back to
// the provider, which verifies them.
var opaque = map[string]bool{
	"signature": true, "thought_signature": true, "thoughtSignature": true, "encrypted_content": true, "reasoningEncryptedContent": true,
	"redactedData": true, "redactedContent": true, "tool_call_id": true, "toolCallId": true, "tool_use_id": true, "toolUseId": true, "call_id": true,
	"model": true, "role": true, "type": true,
}

// maxDepth is the maximum nesting of objects and arrays.
const maxDepth = 512

// rewrite returns body with each text replaced by f's result, or body itself if nothing
// changes. Everything else is copied unchanged. A text that itself contains JSON, such as
// the arguments of a tool, is passed to f as a text.
func rewrite(body []byte, f func(text string) (string, error)) ([]byte, error) {
	w := rewriter{f: f, src: body}
	if !gjson.ValidBytes(body) { // the input of a tool need not be JSON
		text, err := f(string(body))
		if err != nil || text == string(body) {
			return body, err
		}
		return []byte(text), nil
	}
	if err := w.value(gjson.ParseBytes(body), "", 0); err != nil {
		return nil, err
	}
	if w.out == nil {
		return body, nil
	}
	return append(w.out, body[w.copied:]...), nil
}

type rewriter struct {
	f      func(string) (string, error)
	src    []byte
	out    []byte
	copied int // how much of src is in out
}

func (w *rewriter) value(v gjson.Result, member string, depth int) error {
	if depth > maxDepth {
		return refuse(hub.BadRequest, "depth", "the JSON is nested deeper than "+strconv.Itoa(maxDepth)+" levels")
	}
	switch {
	case v.Type == gjson.String:
		if opaque[member] || isFile(v.Str) {
			return nil
		}
		text, err := w.f(v.Str)
		if err != nil || text == v.Str {
			return err
		}
		at := v.Index
		w.out = append(append(w.out, w.src[w.copied:at]...), quote(text)...)
		w.copied = at + len(v.Raw)
	case v.IsObject(), v.IsArray():
		var err error
		isObject := v.IsObject()
		v.ForEach(func(key, item gjson.Result) bool {
			name := member // texts of a list are of the list's member
			if isObject {
				name = key.Str
			}
			err = w.value(item, name, depth+1)
			return err == nil
		})
		return err
	}
	return nil
}

// quote returns text as a JSON string, without HTML escapes.
func quote(text string) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.Encode(text) // a string in a Buffer cannot fail
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// isFile reports whether a text is a file: a data URL, or long Base64.
func isFile(s string) bool {
	if strings.HasPrefix(s, "data:") && strings.Contains(s[:min(len(s), 200)], ";base64,") {
		return true
	}
	if len(s) < 512 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '+' && c != '/' && c != '-' && c != '_' && c != '=' && c != '\n' && c != '\r' {
			return false
		}
	}
	return true
}
