package aisdk

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"maps"
	"slices"
	"strconv"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// These functions append JSON to a byte slice: { or [, then key or item before each
// value, which add a comma if necessary, then } or ].

func key(dst []byte, name string) []byte {
	if dst[len(dst)-1] != '{' {
		dst = append(dst, ',')
	}
	dst = append(dst, '"')
	dst = append(dst, name...)
	return append(dst, '"', ':')
}

func item(dst []byte) []byte {
	if dst[len(dst)-1] != '[' {
		dst = append(dst, ',')
	}
	return dst
}

// text appends a string member.
func text(dst []byte, name, value string) []byte {
	return gjson.AppendJSONString(key(dst, name), value)
}

// optional appends a string member, unless it is empty.
func optional(dst []byte, name, value string) []byte {
	if value == "" {
		return dst
	}
	return text(dst, name, value)
}

// yes appends a member with the value true, if value is true.
func yes(dst []byte, name string, value bool) []byte {
	if !value {
		return dst
	}
	return append(key(dst, name), "true"...)
}

// count appends a number member, if the number is known.
func count(dst []byte, name string, n *int64) []byte {
	if n == nil {
		return dst
	}
	return strconv.AppendInt(key(dst, name), *n, 10)
}

// encoded appends a base64 member.
func encoded(dst []byte, name string, data []byte) []byte { return base64Text(key(dst, name), data) }

func base64Text(dst, data []byte) []byte {
	dst = base64.StdEncoding.AppendEncode(append(dst, '"'), data)
	return append(dst, '"')
}

// raw appends JSON on one line, as stream events require; invalid JSON becomes null.
func raw(dst []byte, v json.RawMessage) []byte {
	b := bytes.NewBuffer(dst)
	if json.Compact(b, v) != nil {
		return append(dst, "null"...)
	}
	return b.Bytes()
}

// metadata appends the member providerMetadata: o, plus the gateway's own metadata if
// there is any.
func metadata(dst []byte, o hub.Options, ours []byte) []byte {
	if len(o) == 0 && len(ours) == 0 {
		return dst
	}
	dst = append(key(dst, "providerMetadata"), '{')
	for _, provider := range slices.Sorted(maps.Keys(o)) {
		if provider == us && len(ours) > 0 {
			continue
		}
		dst = gjson.AppendJSONString(comma(dst), provider)
		dst = append(dst, ':', '{')
		for _, name := range slices.Sorted(maps.Keys(o[provider])) {
			dst = gjson.AppendJSONString(comma(dst), name)
			dst = raw(append(dst, ':'), o[provider][name])
		}
		dst = append(dst, '}')
	}
	if len(ours) > 0 {
		dst = raw(key(dst, us), ours)
	}
	return append(dst, '}')
}

func comma(dst []byte) []byte {
	if dst[len(dst)-1] != '{' {
		dst = append(dst, ',')
	}
	return dst
}

// extend returns an object with the members added that add appends. A value that is no
// object counts as an empty one.
func extend(object []byte, add func(dst []byte) []byte) []byte {
	dst := []byte{'{'}
	if v := gjson.ParseBytes(object); gjson.ValidBytes(object) && v.IsObject() {
		dst = raw(nil, object)
		dst = dst[:len(dst)-1]
	}
	return append(add(dst), '}')
}
