package gemini

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/sse"
)

// NewReader returns the decoder of a streamed answer. The stream is complete if it ends
// after a finish reason; the format has no last event.
func (*Format) NewReader(t *hub.Target, body io.Reader) hub.Reader {
	return &reader{events: sse.NewReader(body, maxEvent), a: assembler{target: t}}
}

type reader struct {
	events *sse.Reader
	a      assembler
	kept   int // bytes
}

// Usage returns the tokens counted so far.
func (r *reader) Usage() *hub.Usage { return r.a.counted() }

// Next returns the next events; see hub.Reader.
func (r *reader) Next() ([]hub.Event, error) {
	a := &r.a
	if a.done {
		return nil, io.EOF
	}
	a.out = a.out[:0]
	for !a.done && (len(a.out) == 0 || r.events.More()) {
		e, err := r.events.Next()
		switch {
		case err == nil:
			r.read(e.Data)
		case errors.Is(err, sse.ErrTooLarge):
			a.fail(broken(a.target, "an event of the stream is too large", err))
		case err == io.EOF, errors.Is(err, sse.ErrCut), a.complete():
			a.end(err)
		default:
			return nil, err
		}
	}
	return a.out, nil
}

func (r *reader) read(data []byte) {
	a := &r.a
	if string(data) == "[DONE]" {
		return
	}
	if r.kept += len(data); r.kept > maxWhole {
		a.fail(broken(a.target, "the answer is too large", nil))
		return
	}
	var g generated
	if err := json.Unmarshal(data, &g); err != nil {
		a.fail(broken(a.target, "an event of the stream makes no sense", err))
		return
	}
	at := len(a.out)
	a.add(&g)
	if c := a.target.Call; c != nil && c.IncludeRaw && a.started {
		raw := hub.Event{Kind: hub.Raw, Raw: bytes.Clone(data)}
		if len(a.out) > at && a.out[at].Kind == hub.Start {
			at++
		}
		a.out = append(a.out[:at], append([]hub.Event{raw}, a.out[at:]...)...)
	}
}
