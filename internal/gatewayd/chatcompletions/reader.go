package chatcompletions

import (
	"bytes"
	"errors"
	"io"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/sse"
)

// NewReader returns the decoder of a streamed answer. The reader also accepts a whole
// answer, because some servers send one even if a stream was requested.
func (*Format) NewReader(t *hub.Target, body io.Reader) hub.Reader {
	return &reader{d: newDecoder(t), body: body}
}

type reader struct {
	d      *decoder
	body   io.Reader
	events *sse.Reader // nil before the first read
	err    error       // for the call after
}

// Usage returns the tokens counted so far.
func (r *reader) Usage() *hub.Usage { return r.d.usage }

// Next returns the next events.
func (r *reader) Next() ([]hub.Event, error) {
	if r.err != nil {
		return nil, r.err
	}
	if r.d.done {
		return nil, io.EOF
	}
	r.d.events = r.d.events[:0]
	if r.events == nil {
		if err := r.begin(); err != nil {
			return nil, err
		}
	}
	for !r.d.done && (len(r.d.events) == 0 || r.events.More()) {
		e, err := r.events.Next()
		switch {
		case err == nil:
			r.event(e)
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, sse.ErrCut):
			// Some servers do not send [DONE]. Without it, only a finish_reason ends the
			// stream.
			if r.d.finished {
				r.d.end()
			} else {
				r.d.broken("its answer broke off")
			}
		case errors.Is(err, sse.ErrTooLarge):
			r.d.broken("a part of its answer is too large")
		case len(r.d.events) > 0:
			r.err = err
			return r.d.events, nil
		default:
			return nil, err
		}
	}
	return r.d.events, nil
}

// begin determines the kind of the answer from its first bytes.
func (r *reader) begin() error {
	head := make([]byte, 4<<10)
	n, err := 0, error(nil)
	for n < len(head) && err == nil && len(bytes.TrimSpace(head[:n])) == 0 {
		var more int
		more, err = r.body.Read(head[n:])
		n += more
	}
	body := &peeked{head[:n], r.body, err}
	if !isJSON(head[:n]) {
		r.events = sse.NewReader(body, maxEvent)
		return nil
	}
	all, err := io.ReadAll(io.LimitReader(body, maxAnswer+1))
	switch {
	case err != nil && !errors.Is(err, io.ErrUnexpectedEOF):
		return err
	case len(all) > maxAnswer:
		r.d.broken("its answer is too large")
	case !valid(all):
		r.d.broken("its answer broke off, or is no JSON")
	default:
		r.d.whole(gjson.ParseBytes(all))
	}
	return nil
}

// isJSON reports whether an answer that begins with head is JSON rather than an event
// stream.
func isJSON(head []byte) bool {
	head = bytes.TrimLeft(head, " \t\r\n")
	return len(head) > 0 && (head[0] == '{' || head[0] == '[')
}

// peeked is a reader whose first bytes have already been read.
type peeked struct {
	head []byte
	r    io.Reader
	err  error
}

func (p *peeked) Read(b []byte) (int, error) {
	if len(p.head) > 0 {
		n := copy(b, p.head)
		p.head = p.head[n:]
		return n, nil
	}
	if p.err != nil {
		return 0, p.err
	}
	return p.r.Read(b)
}

var doneMark = []byte("[DONE]")

func (r *reader) event(e sse.Event) {
	data := bytes.TrimSpace(e.Data)
	switch {
	case len(data) == 0:
	case bytes.Equal(data, doneMark):
		r.d.doneMark()
	case !valid(data):
		r.d.broken("a part of its answer is no JSON")
	case string(e.Name) == "error":
		r.d.fail(errorIn(r.d.t, gjson.ParseBytes(data), 0))
	default:
		r.d.chunk(gjson.ParseBytes(data))
	}
}
