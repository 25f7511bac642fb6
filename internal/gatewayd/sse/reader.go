package sse

import (
	"errors"
	"io"
)

// Why a stream ended before its time.
var (
	// ErrCut says that the stream ended within an event.
	ErrCut = errors.New("the stream ended within an event")
	// ErrTooLarge says that an event is over the limit.
	ErrTooLarge = errors.New("an event of the stream is too large")
)

// Reader reads the events of a stream.
type Reader struct {
	r     io.Reader
	split Splitter
	buf   []byte
	rest  []byte // what is read and not split
	err   error  // of r
	ahead Event
	has   bool // ahead is the next event
}

const bufferSize = 16 << 10

// NewReader returns a Reader of r, of events whose lines have up to limit bytes
// altogether. It has a small buffer of its own.
func NewReader(r io.Reader, limit int) *Reader {
	return &Reader{r: r, split: Splitter{limit: limit}, buf: make([]byte, bufferSize)}
}

// Next returns the next event, which is good until the next call of any method.
// At the end of the stream the error is io.EOF, or ErrCut if the stream ended
// within an event; of an event over the limit it is ErrTooLarge. Else it is what
// reading failed with. Errors are for good.
func (r *Reader) Next() (Event, error) {
	for empty := 0; ; {
		if r.More() {
			r.has = false
			return r.ahead, nil
		}
		if r.split.Dropped() > 0 {
			return Event{}, ErrTooLarge
		}
		if r.err == io.EOF && r.split.Cut() {
			r.err = ErrCut
		}
		if r.err != nil {
			return Event{}, r.err
		}
		var n int
		n, r.err = r.r.Read(r.buf)
		r.rest = r.buf[:n]
		if n > 0 || r.err != nil {
			empty = 0
		} else if empty++; empty == 100 {
			r.err = io.ErrNoProgress
		}
	}
}

// More reports whether the next event has been read already, so that Next will
// return it at once. What Next returned before is no longer good.
func (r *Reader) More() bool {
	for !r.has && len(r.rest) > 0 && r.split.Dropped() == 0 {
		var n int
		n, r.ahead, r.has = r.split.next(r.rest)
		r.rest = r.rest[n:]
		r.has = r.has && r.split.Dropped() == 0 // else it came after one that was dropped
	}
	return r.has
}
