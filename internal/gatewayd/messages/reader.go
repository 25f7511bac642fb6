package messages

import (
	"errors"
	"io"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/sse"
)

// NewReader returns the decoder of a stream. A stream ends with message_stop; data after
// it is not read.
func (*Format) NewReader(t *hub.Target, body io.Reader) hub.Reader {
	return &reader{sse: sse.NewReader(body, maxEvent), decoder: newDecoder(t)}
}

type reader struct {
	sse     *sse.Reader
	decoder *decoder
}

// Usage returns the tokens counted so far.
func (r *reader) Usage() *hub.Usage { return r.decoder.counts.usage(r.decoder.code) }

// Next returns the next events.
func (r *reader) Next() ([]hub.Event, error) {
	d := r.decoder
	if d.ended {
		return nil, io.EOF
	}
	clear(d.events)
	d.events = d.events[:0]
	for !d.ended && (len(d.events) == 0 || r.sse.More()) {
		e, err := r.sse.Next()
		switch {
		case err == nil:
			d.event(e.Data)
		case errors.Is(err, io.EOF), errors.Is(err, sse.ErrCut):
			d.fail(errorf(d.target, "%s broke off its answer", d.target.Provider))
		case errors.Is(err, sse.ErrTooLarge):
			d.fail(errorf(d.target, "%s sent an event of more than %d MiB", d.target.Provider, maxEvent>>20))
		default:
			return nil, err
		}
	}
	return d.events, nil
}
