package sse

import "bytes"

// The blank lines that end an event, for bytes that pass as they came.
var blanks = [...][]byte{[]byte("\n\n"), []byte("\n\r\n"), []byte("\r\r")}

// FirstEnd returns where the first event in b ends, len(b) if none does.
func FirstEnd(b []byte) int {
	end := len(b)
	for _, blank := range blanks {
		if i := bytes.Index(b[:end], blank); i >= 0 {
			end = min(end, i+len(blank))
		}
	}
	return end
}

// LastEnd returns where the last event in b ends, 0 if none does.
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

// DataOf returns the data of an event that has it in one line. nil stands for an event
// without data; of data in several lines, DataOf returns the first line.
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
