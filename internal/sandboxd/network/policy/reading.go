package policy

import (
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxIrregular bounds the length, in bytes, of paths with several readings: each rule
// looks at each reading.
const maxIrregular = 2 << 10

// paths are the ways in which servers may read a path. A path in normal form has one
// reading.
type paths struct {
	readings   []string
	unreadable string // if not empty: why servers may read the path in unknown ways
}

// readPath lists the readings of an escaped path. Escapes of characters that must be
// escaped in a path, such as %20, remain, in capitals. Servers differ in other respects:
// they decode the other escapes not at all, or only the unreserved characters of RFC
// 3986, or once, or repeatedly; they take a backslash as itself or as a slash; they keep
// or drop the part of a segment after a semicolon; and they keep or resolve double
// slashes and dot segments.
func readPath(path string) *paths {
	if path == "" { // of http://host
		path = "/"
	}
	path = decode(path, nothing)
	whole := decode(path, inPathOrPercent)
	regular := whole == path && !strings.ContainsAny(path, `\;`) && !strings.Contains(path, "//") &&
		!slices.ContainsFunc(strings.Split(path, "/"), isDots)
	if !regular && len(path) > maxIrregular {
		return &paths{unreadable: "its path is not in normal form, and long"}
	}
	for last := path; whole != last; {
		last, whole = whole, decode(whole, inPathOrPercent)
	}
	switch plain := decode(whole, everything); {
	case strings.ContainsFunc(plain, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return &paths{unreadable: "its path has a control character in it"}
	case !utf8.ValidString(plain):
		return &paths{unreadable: "its path is not UTF-8"}
	case regular:
		return &paths{readings: []string{path}}
	}
	var all []string
	add := func(s string) {
		if !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	add(path)
	add(decode(path, unreserved))
	add(decode(path, inPath))
	add(whole)
	for _, change := range []func(string) string{slashes, withoutParams} {
		for _, s := range slices.Clone(all) {
			add(change(s))
		}
	}
	for _, s := range slices.Clone(all) {
		add(mergeSlashes(s))
		add(withoutDots(s))
		add(withoutDots(mergeSlashes(s)))
	}
	return &paths{readings: all}
}

func isDots(segment string) bool { return segment == "." || segment == ".." }

func nothing(byte) bool { return false }

func everything(byte) bool { return true }

func unreserved(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~", c) >= 0
}

// inPath reports whether a byte can be in a path unescaped, or is a slash to some
// servers.
func inPath(c byte) bool { return unreserved(c) || strings.IndexByte(`/\!$&'()*+,;=:@`, c) >= 0 }

func inPathOrPercent(c byte) bool { return inPath(c) || c == '%' }

// decode decodes, once, the escapes of bytes for which which returns true, and writes
// other escapes in capitals. A % that begins no escape stays.
func decode(s string, which func(byte) bool) string {
	if strings.IndexByte(s, '%') < 0 {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '%' || i+2 >= len(s) {
			b.WriteByte(s[i])
			continue
		}
		hi, lo := unhex(s[i+1]), unhex(s[i+2])
		if hi < 0 || lo < 0 {
			b.WriteByte('%')
			continue
		}
		if c := byte(hi<<4 | lo); which(c) {
			b.WriteByte(c)
		} else {
			b.WriteString(strings.ToUpper(s[i : i+3]))
		}
		i += 2
	}
	return b.String()
}

func unhex(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c - 'a' + 10)
	case 'A' <= c && c <= 'F':
		return int(c - 'A' + 10)
	}
	return -1
}

func slashes(path string) string {
	return strings.NewReplacer(`\`, "/", "%5C", "/").Replace(path)
}

// withoutParams drops the part of each segment from a semicolon on.
func withoutParams(path string) string {
	if strings.IndexByte(path, ';') < 0 {
		return path
	}
	segments := strings.Split(path, "/")
	for i, s := range segments {
		segments[i], _, _ = strings.Cut(s, ";")
	}
	return strings.Join(segments, "/")
}

func mergeSlashes(path string) string {
	for strings.Contains(path, "//") {
		path = strings.ReplaceAll(path, "//", "/")
	}
	return path
}

// withoutDots removes dot segments as RFC 3986 says.
func withoutDots(path string) string {
	segments := strings.Split(path, "/")
	var out []string
	for i, s := range segments {
		switch {
		case !isDots(s):
			out = append(out, s)
			continue
		case s == ".." && len(out) > 1: // the first element is the part before the first slash
			out = out[:len(out)-1]
		}
		if i == len(segments)-1 {
			out = append(out, "")
		}
	}
	return strings.Join(out, "/")
}

type param struct{ key, value string }

// queries are the ways in which servers may read a query.
type queries struct {
	readings  [][]param
	malformed bool // some parameter has an invalid escape; readings do not include it
}

// readQuery lists the readings of a query: parameters end at & only, or at semicolons,
// too; a + is a space or itself.
func readQuery(query string) *queries {
	q := &queries{}
	for _, semicolons := range []bool{false, true} {
		for _, plus := range []bool{false, true} {
			if semicolons && !strings.Contains(query, ";") || plus && !strings.Contains(query, "+") {
				continue
			}
			q.readings = append(q.readings, q.read(query, semicolons, plus))
		}
	}
	return q
}

func (q *queries) read(query string, semicolons, plus bool) []param {
	unescape := url.QueryUnescape
	if plus {
		unescape = url.PathUnescape
	}
	var params []param
	for pair := range strings.FieldsFuncSeq(query, func(r rune) bool { return r == '&' || semicolons && r == ';' }) {
		k, v, _ := strings.Cut(pair, "=")
		key, err := unescape(k)
		value, err2 := unescape(v)
		if err != nil || err2 != nil {
			q.malformed = true
			continue
		}
		params = append(params, param{key, value})
	}
	return params
}
