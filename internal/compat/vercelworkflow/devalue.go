package vercelworkflow

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/fxamacker/cbor/v2"
	"github.com/klauspost/compress/zstd"
)

// The SDK writes values with the devalue library, behind the four characters devl: a JSON
// array whose element 0 is the value, in which the numbers in containers are indexes of
// other elements, negative ones stand for constants, and ["Tag", ...] is a value of a type
// that JSON has not. See the package's published source, devalue 5.

// Bounds of what is read for people.
const (
	maxReadable = 4 << 20 // bytes, unpacked and as JSON
	maxDepth    = 100
)

var errUnreadable = errors.New("the value is not readable, or too large to be shown")

// Readable returns the envelope of JSON of a payload that the SDK has written, as people
// may read it: a Map is a list of pairs, an error an object, a class instance its data.
// Readable returns every other payload unchanged.
func Readable(p []byte) []byte {
	if len(p) < 4 {
		return p
	}
	if string(p[:4]) == "devl" || string(p[:4]) == "zstd" || string(p[:4]) == "gzip" {
		body, err := unpacked(p)
		if err != nil {
			return p
		}
		if out, err := readDevalue(body); err == nil {
			return append([]byte("json"), out...)
		}
		return p
	}
	if inner := unframed(p); inner != nil {
		if out := Readable(inner); len(out) > 0 && string(out[:4]) == "json" {
			return out
		}
		return p
	}
	if p[0]>>5 == 5 { // a CBOR map, which is how the 4.x line reports errors
		var e map[string]any
		if cbor.Unmarshal(p, &e) == nil && e["message"] != nil {
			if out, err := json.Marshal(e); err == nil {
				return append([]byte("json"), out...)
			}
		}
	}
	return p
}

// unframed is the value in a chunk of a stream, which is behind its length; nil if it is none.
func unframed(p []byte) []byte {
	if len(p) > 8 && uint64(binary.BigEndian.Uint32(p)) == uint64(len(p)-4) && serialized(p[4:]) {
		return p[4:]
	}
	return nil
}

// unpacked is what is behind devl in an envelope, which may be compressed.
func unpacked(p []byte) ([]byte, error) {
	for range 3 {
		if len(p) < 4 {
			break
		}
		kind, body := string(p[:4]), p[4:]
		var r io.Reader
		switch kind {
		case "devl":
			return body, nil
		case "gzip":
			z, err := gzip.NewReader(bytes.NewReader(body))
			if err != nil {
				return nil, err
			}
			r = z
		case "zstd":
			z, err := zstd.NewReader(bytes.NewReader(body), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(2*maxReadable), zstd.WithDecoderMaxWindow(maxReadable))
			if err != nil {
				return nil, err
			}
			defer z.Close()
			r = z
		default:
			return nil, errUnreadable
		}
		var err error
		if p, err = io.ReadAll(io.LimitReader(r, maxReadable+1)); err != nil {
			return nil, err
		}
		if len(p) > maxReadable {
			return nil, errUnreadable
		}
	}
	return nil, errUnreadable
}

// readDevalue returns a value as JSON.
func readDevalue(b []byte) ([]byte, error) {
	if len(b) > maxReadable {
		return nil, errUnreadable
	}
	var root json.RawMessage
	if err := json.Unmarshal(b, &root); err != nil {
		return nil, err
	}
	r := &reader{}
	if n, err := strconv.Atoi(string(root)); err == nil {
		if err := r.constant(n); err != nil {
			return nil, err
		}
		return r.out, nil
	}
	if err := json.Unmarshal(b, &r.values); err != nil {
		return nil, err
	}
	if len(r.values) == 0 {
		return nil, errUnreadable
	}
	r.open = make([]bool, len(r.values))
	if err := r.value(0, 0); err != nil {
		return nil, err
	}
	return r.out, nil
}

// reader writes a flattened value as JSON. A value that is referred to twice is written
// twice, so that what it may write is bounded.
type reader struct {
	values []json.RawMessage
	open   []bool // values that are being written: one in itself is a cycle
	out    []byte
}

func (r *reader) text(s string) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return r.raw(string(b))
}

func (r *reader) raw(s string) error {
	if len(r.out)+len(s) > maxReadable {
		return errUnreadable
	}
	r.out = append(r.out, s...)
	return nil
}

// constant writes a negative index.
func (r *reader) constant(n int) error {
	switch n {
	case -1, -2: // undefined, a hole
		return r.raw("null")
	case -3:
		return r.raw(`"NaN"`)
	case -4:
		return r.raw(`"Infinity"`)
	case -5:
		return r.raw(`"-Infinity"`)
	case -6:
		return r.raw("0")
	}
	return errUnreadable
}

// value writes the value of an index.
func (r *reader) value(i, depth int) error {
	if i < 0 {
		return r.constant(i)
	}
	if i >= len(r.values) || depth > maxDepth {
		return errUnreadable
	}
	if r.open[i] {
		return r.raw(`"[circular]"`)
	}
	v := r.values[i]
	switch v[0] {
	case '[':
		r.open[i] = true
		defer func() { r.open[i] = false }()
		var list []json.RawMessage
		if err := json.Unmarshal(v, &list); err != nil {
			return err
		}
		var tag string
		if len(list) > 0 && json.Unmarshal(list[0], &tag) == nil && list[0][0] == '"' {
			return r.tagged(tag, list[1:], depth)
		}
		indexes, err := indexesOf(list)
		if err != nil {
			return err
		}
		return r.list(indexes, depth)
	case '{':
		r.open[i] = true
		defer func() { r.open[i] = false }()
		return r.object(v, depth)
	}
	return r.raw(string(v))
}

func indexesOf(list []json.RawMessage) ([]int, error) {
	indexes := make([]int, len(list))
	for i := range list {
		if err := json.Unmarshal(list[i], &indexes[i]); err != nil {
			return nil, err
		}
	}
	// A sparse array is -7, its length, and pairs of a place and an index.
	if len(indexes) > 1 && indexes[0] == -7 {
		n := indexes[1]
		if n < 0 || n > 10_000 {
			return nil, errUnreadable
		}
		sparse := slices.Repeat([]int{-2}, n)
		for i := 2; i+1 < len(indexes); i += 2 {
			if at := indexes[i]; at >= 0 && at < n {
				sparse[at] = indexes[i+1]
			}
		}
		return sparse, nil
	}
	return indexes, nil
}

func (r *reader) list(indexes []int, depth int) error {
	if err := r.raw("["); err != nil {
		return err
	}
	for i, at := range indexes {
		if i > 0 {
			if err := r.raw(","); err != nil {
				return err
			}
		}
		if err := r.value(at, depth+1); err != nil {
			return err
		}
	}
	return r.raw("]")
}

// object writes an object of indexes, in the order in which its fields were written.
func (r *reader) object(v json.RawMessage, depth int) error {
	d := json.NewDecoder(bytes.NewReader(v))
	if _, err := d.Token(); err != nil {
		return err
	}
	if err := r.raw("{"); err != nil {
		return err
	}
	for first := true; d.More(); first = false {
		key, err := d.Token()
		if err != nil {
			return err
		}
		var at int
		if err := d.Decode(&at); err != nil {
			return err
		}
		if !first {
			if err := r.raw(","); err != nil {
				return err
			}
		}
		if err := r.field(key.(string), at, depth); err != nil {
			return err
		}
	}
	return r.raw("}")
}

func (r *reader) field(name string, at, depth int) error {
	if err := r.text(name); err != nil {
		return err
	}
	if err := r.raw(":"); err != nil {
		return err
	}
	return r.value(at, depth+1)
}

// tagged writes a value of a type that JSON has not.
func (r *reader) tagged(tag string, rest []json.RawMessage, depth int) error {
	switch tag {
	case "Date", "BigInt", "URL", "URLSearchParams":
		var s string
		if len(rest) != 1 || json.Unmarshal(rest[0], &s) != nil {
			return r.inner(tag, rest, depth)
		}
		if tag == "BigInt" {
			if _, err := strconv.ParseFloat(s, 64); err == nil && !strings.ContainsAny(s, "xXnNiI_.eE+") {
				return r.raw(s)
			}
		}
		return r.text(s)
	case "RegExp":
		var source, flags string
		if len(rest) > 0 {
			_ = json.Unmarshal(rest[0], &source)
		}
		if len(rest) > 1 {
			_ = json.Unmarshal(rest[1], &flags)
		}
		return r.text("/" + source + "/" + flags)
	case "Set", "Map":
		// The SDK's own form has a list of values, or of pairs.
		var at int
		if len(rest) == 1 && json.Unmarshal(rest[0], &at) == nil && at >= 0 && at < len(r.values) && isList(r.values[at]) {
			return r.value(at, depth+1)
		}
		if tag == "Map" {
			return r.pairs(rest, depth)
		}
		indexes, err := indexesOf(rest)
		if err != nil {
			return err
		}
		return r.list(indexes, depth)
	case "null":
		return r.nullObject(rest, depth)
	}
	return r.inner(tag, rest, depth)
}

// isList reports whether a value is an array, and none of a type that JSON has not.
func isList(v json.RawMessage) bool {
	return v[0] == '[' && !bytes.HasPrefix(bytes.TrimLeft(v[1:], " "), []byte(`"`))
}

// pairs writes a Map whose keys and values come in turn.
func (r *reader) pairs(rest []json.RawMessage, depth int) error {
	indexes, err := indexesOf(rest)
	if err != nil {
		return err
	}
	if err := r.raw("["); err != nil {
		return err
	}
	for i := 0; i+1 < len(indexes); i += 2 {
		if i > 0 {
			if err := r.raw(","); err != nil {
				return err
			}
		}
		if err := r.list(indexes[i:i+2], depth); err != nil {
			return err
		}
	}
	return r.raw("]")
}

// nullObject writes an object without a prototype: keys and indexes in turn.
func (r *reader) nullObject(rest []json.RawMessage, depth int) error {
	if err := r.raw("{"); err != nil {
		return err
	}
	for i := 0; i+1 < len(rest); i += 2 {
		var key string
		var at int
		if err := errors.Join(json.Unmarshal(rest[i], &key), json.Unmarshal(rest[i+1], &at)); err != nil {
			return err
		}
		if i > 0 {
			if err := r.raw(","); err != nil {
				return err
			}
		}
		if err := r.field(key, at, depth); err != nil {
			return err
		}
	}
	return r.raw("}")
}

// inner writes a value of the SDK's own tags, which hold one value. Bytes are said to be
// so; the fields of an error are its own, beside its type.
func (r *reader) inner(tag string, rest []json.RawMessage, depth int) error {
	if len(rest) == 0 {
		return r.text(tag)
	}
	var at int
	if err := json.Unmarshal(rest[0], &at); err != nil {
		var s string
		if json.Unmarshal(rest[0], &s) != nil {
			return errUnreadable
		}
		if strings.HasSuffix(tag, "Array") || tag == "ArrayBuffer" {
			return r.bytes(tag, s)
		}
		return r.text(s)
	}
	if at < 0 || at >= len(r.values) {
		return r.value(at, depth)
	}
	var s string
	if json.Unmarshal(r.values[at], &s) == nil && r.values[at][0] == '"' {
		if strings.HasSuffix(tag, "Array") || tag == "ArrayBuffer" {
			return r.bytes(tag, s)
		}
		if tag == "BigInt" || tag == "Date" || tag == "URL" || tag == "URLSearchParams" {
			return r.tagged(tag, []json.RawMessage{r.values[at]}, depth)
		}
	}
	if r.values[at][0] != '{' || r.open[at] {
		return r.value(at, depth+1)
	}
	if tag == "Instance" {
		var o struct{ Data *int }
		if json.Unmarshal(r.values[at], &o) == nil && o.Data != nil {
			return r.value(*o.Data, depth+1)
		}
	}
	r.open[at] = true
	defer func() { r.open[at] = false }()
	before := len(r.out)
	if err := r.object(r.values[at], depth); err != nil {
		return err
	}
	// {...} becomes {"type": tag, ...}, unless it says that itself.
	name, err := json.Marshal(tag)
	if err != nil || len(r.out) > maxReadable {
		return errUnreadable
	}
	if bytes.Contains(r.out[before:], []byte(`"type":`)) {
		return nil
	}
	start := `{"type":` + string(name)
	if len(r.out) > before+2 {
		start += ","
	}
	r.out = slices.Replace(r.out, before, before+1, []byte(start)...)
	return nil
}

// bytes writes binary data: as it is if it is short.
func (r *reader) bytes(tag, encoded string) error {
	n := base64.StdEncoding.DecodedLen(len(strings.TrimRight(encoded, "=.")))
	if n > 1024 {
		return r.text(fmt.Sprintf("%s of %d bytes", tag, n))
	}
	return r.text(tag + " " + strings.TrimRight(encoded, "."))
}

// fromJSON returns the SDK's envelope of a value that is given as JSON.
func fromJSON(value []byte) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(value))
	d.UseNumber()
	f := &flattener{d: d}
	if _, err := f.value(0); err != nil {
		return nil, err
	}
	b, err := json.Marshal(f.values)
	return append([]byte("devl"), b...), err
}

// flattener gives each value an index.
type flattener struct {
	d      *json.Decoder
	values []json.RawMessage
}

func (f *flattener) value(depth int) (index int, err error) {
	if depth > 10*maxDepth {
		return 0, errUnreadable
	}
	index = len(f.values)
	f.values = append(f.values, nil)
	t, err := f.d.Token()
	if err != nil {
		return 0, err
	}
	switch t {
	case json.Delim('['):
		list := []int{}
		for f.d.More() {
			at, err := f.value(depth + 1)
			if err != nil {
				return 0, err
			}
			list = append(list, at)
		}
		if _, err = f.d.Token(); err == nil {
			f.values[index], err = json.Marshal(list)
		}
		return index, err
	case json.Delim('{'):
		o := []byte("{")
		for f.d.More() {
			key, err := f.d.Token()
			if err != nil {
				return 0, err
			}
			at, err := f.value(depth + 1)
			if err != nil {
				return 0, err
			}
			name, err := json.Marshal(key)
			if err != nil {
				return 0, err
			}
			if len(o) > 1 {
				o = append(o, ',')
			}
			o = fmt.Appendf(o, "%s:%d", name, at)
		}
		_, err = f.d.Token()
		f.values[index] = append(o, '}')
		return index, err
	}
	f.values[index], err = json.Marshal(t)
	return index, err
}
