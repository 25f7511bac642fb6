package api

import (
	"strconv"
	"strings"
)

// Range is a single requested range of bytes.
type Range struct {
	// First is the offset of the first byte. -1 means the last Length bytes.
	First int64
	// Length is the most bytes; 0 means to the end.
	Length int64
}

// ParseRange reads a Range header. Like HTTP servers in general it returns
// false, which means "send everything", for a header that it does not
// understand, for units other than bytes and for several ranges at once.
func ParseRange(header string) (Range, bool) {
	spec, ok := strings.CutPrefix(header, "bytes=")
	if !ok {
		return Range{}, false
	}
	first, last, ok := strings.Cut(strings.TrimSpace(spec), "-")
	if !ok {
		return Range{}, false
	}
	from, fromOK := parseOffset(first)
	to, toOK := parseOffset(last)
	switch {
	case first == "" && toOK && to > 0:
		return Range{First: -1, Length: to}, true
	case fromOK && last == "":
		return Range{First: from}, true
	case fromOK && toOK && to >= from && to-from < 1<<63-1:
		return Range{First: from, Length: to - from + 1}, true
	}
	return Range{}, false
}

// parseOffset reads digits only: no sign, no space.
func parseOffset(s string) (int64, bool) {
	n, err := strconv.ParseUint(s, 10, 63)
	return int64(n), err == nil
}
