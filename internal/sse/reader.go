package sse

import (
	"errors"
	"io"
)

// Errors of streams that end early.
var (
	// ErrCut says that the stream ended within an event.
	ErrCut = errors.New("the stream ended within an event")
	// ErrTooLarge says that an event exceeds the limit.
	ErrTooLarge = errors.New("an event of the stream is too large")
)

// Reader reads the events of a stream.
type Reader struct {
	r     io.Reader
	split Splitter
	buf   []byte
	rest  []byte // bytes read and not yet split
	err   error  // error of r
	ahead Event
	has   bool // ahead is the next event
}

const bufferSize = 16 << 10

// NewReader returns a Reader of r, for events whose lines have up to limit bytes in
// total. The Reader has a small buffer.
func NewReader(r io.Reader, limit int) *Reader {
	return &Reader{r: r, split: Splitter{limit: limit}, buf: make([]byte, bufferSize)}
}

// Next returns the next event, which is valid until the next call of any method. At the
// end of the stream the error is io.EOF, or ErrCut if the stream ended within an event;
// for an event over the limit it is ErrTooLarge. Otherwise it is the read error. After an
// error, Next returns the same error.
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

// More reports whether the next event has already been read, so that Next returns without
// blocking. More invalidates the event that Next returned before.
func (r *Reader) More() bool {
	for !r.has && len(r.rest) > 0 && r.split.Dropped() == 0 {
		var n int
		n, r.ahead, r.has = r.split.next(r.rest)
		r.rest = r.rest[n:]
		r.has = r.has && r.split.Dropped() == 0 // otherwise it came after a dropped event
	}
	return r.has
}
