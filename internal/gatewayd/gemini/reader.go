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
	return &reader{events: sse.NewReader(body, maxEvent), decoder: decoder{target: t}}
}

type reader struct {
	events  *sse.Reader
	decoder decoder
	kept    int // bytes
}

// Usage returns the tokens counted so far.
func (r *reader) Usage() *hub.Usage { return r.decoder.counted() }

// Next returns the next events; see hub.Reader.
func (r *reader) Next() ([]hub.Event, error) {
	d := &r.decoder
	if d.done {
		return nil, io.EOF
	}
	d.out = d.out[:0]
	for !d.done && (len(d.out) == 0 || r.events.More()) {
		e, err := r.events.Next()
		switch {
		case err == nil:
			r.read(e.Data)
		case errors.Is(err, sse.ErrTooLarge):
			d.fail(broken(d.target, "an event of the stream is too large", err))
		case err == io.EOF, errors.Is(err, sse.ErrCut), d.complete():
			d.end(err)
		default:
			return nil, err
		}
	}
	return d.out, nil
}

func (r *reader) read(data []byte) {
	d := &r.decoder
	if string(data) == "[DONE]" {
		return
	}
	if r.kept += len(data); r.kept > maxWhole {
		d.fail(broken(d.target, "the answer is too large", nil))
		return
	}
	var g generated
	if err := json.Unmarshal(data, &g); err != nil {
		d.fail(broken(d.target, "an event of the stream makes no sense", err))
		return
	}
	at := len(d.out)
	d.add(&g)
	if c := d.target.Call; c != nil && c.IncludeRaw && d.started {
		raw := hub.Event{Kind: hub.Raw, Raw: bytes.Clone(data)}
		if len(d.out) > at && d.out[at].Kind == hub.Start {
			at++
		}
		d.out = append(d.out[:at], append([]hub.Event{raw}, d.out[at:]...)...)
	}
}
