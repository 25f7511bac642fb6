package guest

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Kind is the type of a frame.
type Kind uint8

// The kinds of frames. Cursor is zero where not mentioned.
const (
	KindCommand   Kind = 1 // a sandbox.Command as JSON; first of an Exec
	KindStdout    Kind = 2 // bytes at Cursor
	KindStderr    Kind = 3 // bytes at Cursor
	KindTruncated Kind = 4 // empty; output before Cursor is no longer kept
	KindExit      Kind = 5 // a sandbox.Exit as JSON; the last
	KindEnd       Kind = 6 // empty; the stream ends here as it should
	KindError     Kind = 7 // an ErrorBody as JSON; the last
	KindFileEvent Kind = 8 // a FileEvent as JSON
	KindTime      Kind = 9 // empty; Cursor is when the output that follows was read, in nanoseconds since 1970
)

const (
	// MaxPayload bounds a frame's payload, in bytes.
	MaxPayload = 64 << 10
	// HeaderSize is the length of a frame's header: kind, three zero bytes,
	// payload length (4 bytes), cursor (8 bytes), big endian.
	HeaderSize = 16
)

// Frame is an element of a stream.
type Frame struct {
	Kind    Kind
	Cursor  int64
	Payload []byte
}

// AppendHeader appends the header of a frame with n bytes of payload to b.
func AppendHeader(b []byte, kind Kind, cursor int64, n int) []byte {
	b = append(b, byte(kind), 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, uint32(n))
	return binary.BigEndian.AppendUint64(b, uint64(cursor))
}

// ReadFrame reads a frame; its payload belongs to the caller. It returns io.EOF only
// between frames, and never allocates more than MaxPayload.
func ReadFrame(r io.Reader) (Frame, error) {
	var h [HeaderSize]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return Frame{}, err
	}
	f := Frame{Kind: Kind(h[0]), Cursor: int64(binary.BigEndian.Uint64(h[8:]))}
	n := binary.BigEndian.Uint32(h[4:])
	switch {
	case f.Kind < KindCommand || f.Kind > KindTime || h[1]|h[2]|h[3] != 0:
		return Frame{}, badFrame("kind %#x", h[:4])
	case n > MaxPayload:
		return Frame{}, badFrame("payload of %d bytes", n)
	case f.Cursor < 0:
		return Frame{}, badFrame("cursor %d", f.Cursor)
	case n == 0:
		return f, nil
	}
	f.Payload = make([]byte, n)
	if _, err := io.ReadFull(r, f.Payload); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return Frame{}, err
	}
	return f, nil
}

// protocolError is a violation of the protocol by the guest. A retry on another
// connection does not help.
type protocolError struct{ what string }

func (e *protocolError) Error() string { return "the guest broke the protocol: " + e.what }

func badFrame(format string, args ...any) error {
	return &protocolError{"frame with " + fmt.Sprintf(format, args...)}
}
