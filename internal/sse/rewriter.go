package sse

import "io"

// Edit returns the replacement of event, which includes the blank line at its end: event
// itself, other events, or nothing. If last is true, the stream ends there. The result is
// valid until the next call.
type Edit func(event []byte) (out []byte, last bool)

// Rewriter passes a stream through an Edit, one whole event at a time. Unchanged events
// are copied only if a read ended within them.
type Rewriter struct {
	body  io.ReadCloser
	edit  Edit
	limit int

	tail []byte // an event that is not complete yet
	out  []byte // events that are to be read before anything else; a part of buf
	buf  []byte
	raw  bool  // an event was over the limit: the rest passes without the Edit
	err  error // error of body
}

// NewRewriter returns a Rewriter of body. From the first event over limit bytes on, the
// stream passes unchanged: the reader behind the Rewriter has a limit as well, and
// reports the event.
func NewRewriter(body io.ReadCloser, limit int, edit Edit) *Rewriter {
	return &Rewriter{body: body, edit: edit, limit: limit}
}

// Close closes the stream.
func (r *Rewriter) Close() error { return r.body.Close() }

// Read reads edited events, and at the end of the stream the remaining incomplete event.
// A read that completes no event returns 0 bytes and no error.
func (r *Rewriter) Read(b []byte) (n int, err error) {
	if len(r.out) == 0 && r.err == nil {
		n, r.err = r.body.Read(b)
		if !r.raw {
			n = r.take(b[:n])
		}
	}
	if n == 0 {
		n = copy(b, r.out)
		r.out = r.out[n:]
	}
	if len(r.out) > 0 {
		return n, nil
	}
	return n, r.err
}

// take edits the events that b completes. Read returns the first n bytes of b unchanged,
// followed by out.
func (r *Rewriter) take(b []byte) (n int) {
	r.buf = r.buf[:0]
	defer func() { r.out = r.buf }()
	all, inPlace, looked := b, len(r.tail) == 0, 0
	if !inPlace {
		looked = max(0, len(r.tail)-2) // a blank line may have begun there
		r.tail = append(r.tail, b...)
		all = r.tail
	}
	end := LastEnd(all[looked:])
	if end > 0 {
		end += looked
	}
	for rest := all[:end]; len(rest) > 0; {
		event := rest[:FirstEnd(rest)]
		rest = rest[len(event):]
		out, last := r.edit(event)
		if inPlace = inPlace && len(out) == len(event) && &out[0] == &event[0]; inPlace {
			n += len(event)
		} else {
			r.buf = append(r.buf, out...)
		}
		if last {
			r.tail, r.err = nil, io.EOF
			return n
		}
	}
	if all = all[end:]; len(all) > r.limit || r.err != nil {
		r.raw = true
		r.buf, r.tail = append(r.buf, all...), nil
		return n
	}
	if end > 0 || len(r.tail) == 0 { // otherwise the tail has all of it: a long event is copied once
		r.tail = append(r.tail[:0], all...)
	}
	return n
}
