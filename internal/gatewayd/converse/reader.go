package converse

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"

	"github.com/aws/aws-sdk-go-v2/aws/protocol/eventstream"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// NewReader returns the decoder of a stream of frames.
func (*Format) NewReader(t *hub.Target, body io.Reader) hub.Reader {
	return &reader{frames: frameReader{r: body, decode: eventstream.NewDecoder()}, decoder: newDecoder(t)}
}

type reader struct {
	frames  frameReader
	decoder *decoder
}

// Usage returns the tokens counted so far.
func (r *reader) Usage() *hub.Usage { return r.decoder.usage }

func (r *reader) Next() ([]hub.Event, error) {
	d := r.decoder
	clear(d.events)
	d.events = d.events[:0]
	for len(d.events) == 0 {
		if d.ended {
			return nil, io.EOF
		}
		m, err := r.frames.next()
		switch {
		case err == nil:
			d.frame(&m)
		case errors.Is(err, io.EOF) && d.stopped:
			d.end() // the model sends no usage
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			d.fail(errorf(d.target, "%s broke off its answer", d.target.Provider))
		case errors.Is(err, errFrame):
			d.fail(errorf(d.target, "%s sent what is no event stream", d.target.Provider))
		default:
			return nil, err
		}
	}
	return d.events, nil
}

// frame processes one frame.
func (d *decoder) frame(m *eventstream.Message) {
	switch header(m, ":message-type") {
	case "event":
		d.event(header(m, ":event-type"), m.Payload)
	case "exception":
		d.fail(exception(d.target, header(m, ":exception-type"), m.Payload))
	case "error":
		e := exception(d.target, header(m, ":error-code"), nil)
		if said := hub.Redact(header(m, ":error-message")); said != "" {
			e.Message = said
		}
		d.fail(e)
	}
}

// header returns a header, empty if there is none.
func header(m *eventstream.Message, name string) string {
	if v := m.Headers.Get(name); v != nil {
		return v.String()
	}
	return ""
}

// errFrame is the error for bytes that are no frame.
var errFrame = errors.New("the stream has bytes that are no frame")

// frameReader reads frames. It checks a frame's length first, because the SDK's decoder
// accepts any length up to 4 GiB.
type frameReader struct {
	r      io.Reader
	decode *eventstream.Decoder
	frame  []byte
	buf    []byte
}

// Every frame has: its length, the length of its headers, a checksum of the lengths, and
// a checksum of the frame.
const (
	preludeBytes = 12
	frameBytes   = preludeBytes + 4
	maxHeaders   = 128 << 10
)

// next returns the next frame, which is valid until the next call. It returns io.EOF at
// the end, io.ErrUnexpectedEOF within a frame, and errFrame.
func (f *frameReader) next() (eventstream.Message, error) {
	var prelude [preludeBytes]byte
	if _, err := io.ReadFull(f.r, prelude[:]); err != nil {
		return eventstream.Message{}, err
	}
	total, headers := int64(binary.BigEndian.Uint32(prelude[:])), int64(binary.BigEndian.Uint32(prelude[4:]))
	if total < frameBytes || total > maxFrame || headers > maxHeaders || headers > total-frameBytes {
		return eventstream.Message{}, errFrame
	}
	// The buffer grows with the received data, not to the announced length.
	f.frame = append(f.frame[:0], prelude[:]...)
	w := bytes.NewBuffer(f.frame)
	if _, err := io.CopyN(w, f.r, total-preludeBytes); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return eventstream.Message{}, err
	}
	f.frame = w.Bytes()
	m, err := f.decode.Decode(bytes.NewReader(f.frame), f.buf)
	if err != nil {
		return eventstream.Message{}, errFrame
	}
	f.buf = m.Payload
	return m, nil
}
