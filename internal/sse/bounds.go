package sse

import "bytes"

// The blank lines that end an event, for bytes that are passed unchanged.
var blanks = [...][]byte{[]byte("\n\n"), []byte("\n\r\n"), []byte("\r\r")}

// FirstEnd returns the end of the first event in b, len(b) if no event ends in b.
func FirstEnd(b []byte) int {
	end := len(b)
	for _, blank := range blanks {
		if i := bytes.Index(b[:end], blank); i >= 0 {
			end = min(end, i+len(blank))
		}
	}
	return end
}

// LastEnd returns the end of the last complete event in b, 0 if there is none.
func LastEnd(b []byte) int {
	if bytes.HasSuffix(b, blanks[0]) || bytes.HasSuffix(b, blanks[1]) {
		return len(b)
	}
	end := 0
	for _, blank := range blanks {
		if i := bytes.LastIndex(b, blank); i >= 0 {
			end = max(end, i+len(blank))
		}
	}
	return end
}

// DataOf returns the data of an event with one data line. nil means an event without
// data; if the data has several lines, DataOf returns the first line.
func DataOf(event []byte) []byte {
	for line := range bytes.Lines(event) {
		if data, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			return bytes.TrimSpace(data)
		}
	}
	return nil
}

// NameOf returns the name of an event, nil if it has none.
func NameOf(event []byte) []byte {
	for line := range bytes.Lines(event) {
		if name, ok := bytes.CutPrefix(line, []byte("event:")); ok {
			return bytes.TrimSpace(name)
		}
	}
	return nil
}
