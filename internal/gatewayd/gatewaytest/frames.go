package gatewaytest

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"slices"
)

// Frames returns events encoded as a stream of a format: Server-Sent Events with names
// (messages, responses) or without (chatcompletions, which ends with [DONE], and gemini,
// whose lines end with CR LF), and the frames of Amazon's event stream (converse).
func Frames(format string, chunks [][]byte) []byte {
	var b []byte
	for _, c := range chunks {
		b = append(b, Frame(format, c)...)
	}
	return append(b, End(format)...)
}

// End returns the bytes after the last event of a stream.
func End(format string) []byte {
	if format == Chat {
		return []byte("data: [DONE]\n\n")
	}
	return nil
}

// Frame returns one event encoded for a stream of a format.
func Frame(format string, chunk []byte) []byte {
	switch format {
	case Messages, Responses:
		var e struct{ Type string }
		if err := json.Unmarshal(chunk, &e); err != nil || e.Type == "" {
			panic(fmt.Sprintf("gatewaytest: an event of %s without a type: %.80s", format, chunk))
		}
		return fmt.Appendf(nil, "event: %s\ndata: %s\n\n", e.Type, chunk)
	case Gemini:
		return fmt.Appendf(nil, "data: %s\r\n\r\n", chunk)
	case Converse:
		var e map[string]json.RawMessage
		if err := json.Unmarshal(chunk, &e); err != nil || len(e) != 1 {
			panic(fmt.Sprintf("gatewaytest: an event of %s has one member, its type: %.80s", format, chunk))
		}
		for kind, payload := range e {
			return EventStream(payload, ":message-type", "event", ":event-type", kind, ":content-type", "application/json")
		}
	}
	return fmt.Appendf(nil, "data: %s\n\n", chunk)
}

// EventStream returns a frame of Amazon's event stream; headers are pairs of name and
// text.
//
// The form follows the public description of application/vnd.amazon.eventstream: total
// length in big endian, length of the headers, CRC-32 of these eight bytes, headers,
// payload, CRC-32 of everything before. Header values of type 7 are strings.
func EventStream(payload []byte, headers ...string) []byte {
	var head []byte
	for pair := range slices.Chunk(headers, 2) {
		head = append(head, byte(len(pair[0])))
		head = append(head, pair[0]...)
		head = append(head, 7)
		head = binary.BigEndian.AppendUint16(head, uint16(len(pair[1])))
		head = append(head, pair[1]...)
	}
	b := binary.BigEndian.AppendUint32(nil, uint32(16+len(head)+len(payload)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(head)))
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	b = append(append(b, head...), payload...)
	return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
}

// ContentType returns the content type of a format's answer.
func ContentType(format string, stream bool) string {
	switch {
	case !stream:
		return "application/json"
	case format == Converse:
		return "application/vnd.amazon.eventstream"
	}
	return "text/event-stream; charset=utf-8"
}
