package sse

import "bytes"

// Append appends an event without a name.
func Append(dst, data []byte) []byte {
	for {
		i := bytes.IndexAny(data, "\r\n")
		dst = append(dst, "data: "...)
		if i < 0 {
			return append(append(dst, data...), "\n\n"...)
		}
		dst = append(append(dst, data[:i]...), '\n')
		if data[i] == '\r' && i+1 < len(data) && data[i+1] == '\n' {
			i++
		}
		data = data[i+1:]
	}
}

// AppendNamed appends an event with a name, which must be one line.
func AppendNamed(dst []byte, name string, data []byte) []byte {
	dst = append(append(append(dst, "event: "...), name...), '\n')
	return Append(dst, data)
}

// AppendComment appends a comment, which readers skip. The text must be one line.
func AppendComment(dst []byte, text string) []byte {
	return append(append(append(dst, ": "...), text...), "\n\n"...)
}
