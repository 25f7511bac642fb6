package hub

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// The most that is packed into an id, and wrapped as a signature, in characters.
// Signatures of providers are a few kilobytes, encrypted reasoning tens of them.
const (
	maxPacked  = 256 << 10
	maxWrapped = 4 << 20
)

const (
	packMark = "__cay_"
	wrapMark = "cay1."
	// idMember keeps an id that cannot be a part of a packed one, under the name of
	// a provider that no provider has.
	idMember = "id"
)

// PackID returns an id for a tool call that carries o with it, so that a client
// whose format has no place for a signature on a tool call gives it back all the
// same: id, __cay_ and base64url of the JSON of o. It has none but letters,
// digits, _ and -, which is what the strictest formats allow in an id; an id that
// has others is packed as well.
//
// It returns id as it is if o is empty, or too large to be packed (256 KiB).
func PackID(id string, o Options) string {
	if o.empty() {
		return id
	}
	prefix := id
	if !plainID(id) {
		prefix = "call"
		all := Options{"": nil}
		all.Merge(o)
		all.Set("", idMember, id)
		o = all
	}
	packed := pack(o, maxPacked-len(prefix)-len(packMark))
	if packed == "" {
		return id
	}
	return prefix + packMark + packed
}

// UnpackID returns what PackID was given. An id that is not from PackID comes back
// as it is, with no Options.
func UnpackID(id string) (string, Options) {
	// Base64 of UTF-8 has no two _ in a row, so the last mark is ours.
	at := strings.LastIndex(id, packMark)
	if at < 0 || len(id) > maxPacked || !plainID(id[:at]) {
		return id, nil
	}
	o, ok := unpack(id[at+len(packMark):])
	if !ok {
		return id, nil
	}
	plain := id[:at]
	if _, ok := o[""]; ok {
		if !o.Get("", idMember, &plain) || len(o[""]) != 1 {
			return id, nil
		}
		delete(o, "")
	}
	if o.empty() {
		return id, nil
	}
	return plain, o
}

// Packed reports whether a request may have ids of PackID or signatures of Wrap in
// it, which providers do not know.
func Packed(body []byte) bool {
	// A signature is a text of its own: quotes are rarer than the letter it begins with.
	return bytes.Contains(body, []byte(packMark)) || bytes.Contains(body, []byte(`"`+wrapMark))
}

// Wrap returns o as a signature, for a client whose format has one signature for
// what provider has others for: cay1., the provider, a dot and base64url of the
// JSON of o. It returns "" if o is empty or too large (4 MiB).
func Wrap(provider string, o Options) string {
	if o.empty() {
		return ""
	}
	head := wrapMark + provider + "."
	packed := pack(o, maxWrapped-len(head))
	if packed == "" {
		return ""
	}
	return head + packed
}

// Unwrap returns what was wrapped, and whether s is from Wrap.
func Unwrap(s string) (Options, bool) {
	at := strings.LastIndexByte(s, '.')
	if !strings.HasPrefix(s, wrapMark) || at < len(wrapMark) || len(s) > maxWrapped {
		return nil, false
	}
	o, ok := unpack(s[at+1:])
	if !ok || o.empty() {
		return nil, false
	}
	return o, true
}

// empty reports whether there is no member at all.
func (o Options) empty() bool {
	for _, members := range o {
		if len(members) > 0 {
			return false
		}
	}
	return true
}

// pack returns "" for what is longer than limit, or no JSON.
func pack(o Options, limit int) string {
	raw, err := Encode(o)
	if err != nil || base64.RawURLEncoding.EncodedLen(len(raw)) > limit {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(raw)
}

func unpack(s string) (Options, bool) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(raw) == 0 || raw[0] != '{' || !utf8.Valid(raw) {
		return nil, false
	}
	var o Options
	return o, json.Unmarshal(raw, &o) == nil
}

func plainID(id string) bool {
	for i := range len(id) {
		c := id[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-') {
			return false
		}
	}
	return id != ""
}
