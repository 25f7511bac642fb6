package chatcompletions

import (
	"encoding/base64"
	"encoding/json"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// buffer is JSON under construction. Commas are added automatically: each method looks at
// the last byte.
type buffer []byte

// next begins an element of an array.
func (b *buffer) next() {
	if n := len(*b); n > 0 {
		switch (*b)[n-1] {
		case '{', '[', ':':
		default:
			*b = append(*b, ',')
		}
	}
}

// key begins a member, whose value is added next. The name needs no escapes.
func (b *buffer) key(name string) {
	b.next()
	*b = append(append(append(*b, '"'), name...), '"', ':')
}

func (b *buffer) add(s string) { *b = append(*b, s...) }

// open begins a member that is an object or array.
func (b *buffer) open(name string, bracket byte) {
	b.key(name)
	*b = append(*b, bracket)
}

func (b *buffer) close(bracket byte) { *b = append(*b, bracket) }

func (b *buffer) text(name, s string) {
	b.key(name)
	*b = appendText(*b, s)
}

func (b *buffer) raw(name string, raw []byte) {
	b.key(name)
	*b = append(*b, raw...)
}

func (b *buffer) int(name string, n int64) {
	b.key(name)
	*b = strconv.AppendInt(*b, n, 10)
}

func (b *buffer) bool(name string, v bool) {
	b.key(name)
	*b = strconv.AppendBool(*b, v)
}

func (b *buffer) float(name string, f float64) {
	b.key(name)
	*b = appendFloat(*b, f)
}

func appendFloat(dst []byte, f float64) []byte {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return append(dst, '0')
	}
	format := byte('f')
	if abs := math.Abs(f); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		format = 'e'
	}
	return strconv.AppendFloat(dst, f, format, -1, 64)
}

const hex = "0123456789abcdef"

// appendText appends s as a JSON string. Invalid UTF-8 becomes U+FFFD.
func appendText(dst []byte, s string) []byte {
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && size == 1 {
				dst = append(append(dst, s[from:i]...), `\ufffd`...)
				from = i + 1
			}
			i += size
			continue
		}
		if c >= 0x20 && c != '"' && c != '\\' {
			i++
			continue
		}
		dst = append(dst, s[from:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
		i++
		from = i
	}
	return append(append(dst, s[from:]...), '"')
}

// valid reports whether b is one JSON value nested at most maxDepth deep.
func valid(b []byte) bool { return closed(b) && json.Valid(b) }

// closed reports whether an answer is complete.
func closed(b []byte) bool { return hub.Closed(b) }

// base64 adds data as a string.
func (b *buffer) base64(data []byte) {
	b.add(`"`)
	b.appendBase64(data)
	b.add(`"`)
}

func (b *buffer) appendBase64(data []byte) { *b = base64.StdEncoding.AppendEncode(*b, data) }
