package route

import (
	"bytes"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/cmdoutput"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/sandbox"
)

var _ api.Encoder[sandbox.Event] = (*eventEncoder)(nil)

// maxChunk bounds the output in one line of a stream, in bytes.
const maxChunk = 32 << 10

// eventEncoder writes the events of a command. It joins a character that the guest wrote
// in two pieces, if both arrive at about the same time, so that its line is text.
type eventEncoder struct {
	held sandbox.Event // the first bytes of a character; empty Data if there are none
}

func (e *eventEncoder) Held() bool { return len(e.held.Data) > 0 }

func (e *eventEncoder) Release(dst []byte) []byte {
	if !e.Held() {
		return dst
	}
	ev := e.held
	e.held = sandbox.Event{}
	dst, err := api.AppendLine(dst, ev)
	if err != nil {
		panic(err) // a chunk of output can always be encoded
	}
	return dst
}

func (e *eventEncoder) Append(dst []byte, ev sandbox.Event) ([]byte, error) {
	if len(ev.Data) == 0 {
		if ev.Command == nil && ev.Exit == nil && !ev.Truncated {
			return dst, nil
		}
		return api.AppendLine(e.Release(dst), ev)
	}
	if e.Held() {
		if e.held.Stream == ev.Stream && e.held.Cursor+int64(len(e.held.Data)) == ev.Cursor {
			ev.Cursor, ev.Time, ev.Data = e.held.Cursor, e.held.Time, append(e.held.Data, ev.Data...)
			e.held = sandbox.Event{}
		} else {
			dst = e.Release(dst)
		}
	}
	for len(ev.Data) > 0 {
		chunk := ev.Data
		if len(chunk) > maxChunk {
			chunk = chunk[:maxChunk]
			chunk = chunk[:len(chunk)-cmdoutput.Partial(chunk)]
		} else if n := cmdoutput.Partial(chunk); n > 0 {
			e.held = sandbox.Event{Stream: ev.Stream, Cursor: ev.Cursor + int64(len(chunk)-n), Time: ev.Time, Data: bytes.Clone(chunk[len(chunk)-n:])}
			if chunk = chunk[:len(chunk)-n]; len(chunk) == 0 {
				return dst, nil
			}
			ev.Data = chunk
		}
		var err error
		if dst, err = api.AppendLine(dst, sandbox.Event{Stream: ev.Stream, Cursor: ev.Cursor, Time: ev.Time, Data: chunk}); err != nil {
			return dst, err
		}
		ev.Cursor += int64(len(chunk))
		ev.Data = ev.Data[len(chunk):]
	}
	return dst, nil
}

func (e *eventEncoder) AppendError(dst []byte, err *cay.Error) []byte {
	return api.AppendErrorLine(dst, wire.ErrorBody{Type: "error", Error: wire.FromError(err)})
}
