package hub

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// The maximum size in characters of options packed into an id, and of options wrapped as
// a signature. Providers' signatures have a few kilobytes, encrypted reasoning tens of
// kilobytes.
const (
	maxPacked  = 256 << 10
	maxWrapped = 4 << 20
)

const (
	packMark = "__cay_"
	wrapMark = "cay1."
	// idMember keeps an id that cannot be part of a packed id, under a provider name that
	// no provider has.
	idMember = "id"
)

// PackID returns an id for a tool call that contains o, so that a client whose format has
// no place for a signature on a tool call sends the signature back all the same: id,
// __cay_ and base64url of the JSON of o. The id contains only letters, digits, _ and -,
// as the strictest formats require; an id with other characters is encoded as well.
//
// It returns id unchanged if o is empty, or too large to be packed (256 KiB).
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

// UnpackID is the inverse of PackID. An id that is not from PackID is returned unchanged,
// with no Options.
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

// Packed reports whether a request may contain ids of PackID or signatures of Wrap, which
// providers do not know.
func Packed(body []byte) bool {
	// A signature is a JSON string of its own, and searching for a quote is faster,
	// because quotes are rarer than the signature's first letter.
	return bytes.Contains(body, []byte(packMark)) || bytes.Contains(body, []byte(`"`+wrapMark))
}

// Wrap returns o encoded as a signature, for a client whose format has one signature
// where provider needs other options: cay1., the provider, a dot and base64url of the
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

// Unwrap returns the wrapped Options, and whether s is from Wrap.
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

// empty reports whether o has no members.
func (o Options) empty() bool {
	for _, members := range o {
		if len(members) > 0 {
			return false
		}
	}
	return true
}

// pack returns "" if the result would exceed limit, or o is not valid JSON.
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
