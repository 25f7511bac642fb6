package api

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire"
)

const (
	// StallTimeout ends a transfer whose other side has not moved a byte, so
	// that a client that stopped reading or sending does not hold resources for
	// longer.
	StallTimeout = 30 * time.Second

	// drainTimeout is how long the server reads the rest of a body that no
	// Handler wants. A client that is still sending would otherwise see a reset
	// connection instead of the answer.
	drainTimeout = time.Second

	// liveDrainTimeout is drainTimeout for typed input, whose client may wait
	// for the end of the answer before it ends its input.
	liveDrainTimeout = 100 * time.Millisecond

	// copyBuffer is large enough that system calls cost little compared with
	// the copying, and small enough to stay in the processor's cache.
	copyBuffer = 256 << 10
)

var buffers = sync.Pool{New: func() any { b := make([]byte, copyBuffer); return &b }}

// Body returns the request's body for streaming, of any length. Reading fails
// with deadline_exceeded when the client stalls for StallTimeout, and with
// canceled when it leaves.
func Body(w http.ResponseWriter, r *http.Request) io.Reader {
	return &body{w: watchBody(w, r)}
}

// body renews the deadline as data comes.
type body struct {
	w     *watchedBody
	until time.Time // the deadline that is set
}

func (b *body) Read(p []byte) (int, error) {
	if now := time.Now(); b.until.Sub(now) < StallTimeout-time.Second {
		b.until = now.Add(StallTimeout)
		b.w.setDeadline(b.until)
	}
	n, err := b.w.Read(p)
	if err != nil && err != io.EOF {
		err = bodyError(err)
	}
	return n, err
}

// LiveBody returns the request's body for typed input: it may pause for any
// time. The answer may be sent before the body ends.
func LiveBody(w http.ResponseWriter, r *http.Request) (io.Reader, error) {
	if err := enableDuplex(w); err != nil {
		return nil, err
	}
	b := watchBody(w, r)
	b.live = true
	b.setDeadline(time.Time{})
	return &liveBody{b}, nil
}

type liveBody struct{ w *watchedBody }

func (b *liveBody) Read(p []byte) (int, error) {
	n, err := b.w.Read(p)
	if err != nil && err != io.EOF {
		err = bodyError(err)
	}
	return n, err
}

// DuplexBody is Body for a Handler that answers while the client still sends
// the body.
func DuplexBody(w http.ResponseWriter, r *http.Request) (io.Reader, error) {
	if err := enableDuplex(w); err != nil {
		return nil, err
	}
	return Body(w, r), nil
}

// enableDuplex lets the answer be sent before the body has been read.
func enableDuplex(w http.ResponseWriter) error {
	track(w).duplex = true
	if err := http.NewResponseController(w).EnableFullDuplex(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// watchedBody is a request's body that records whether it was read to its end.
// Services pass bodies on to others, who may read for a moment after the
// Handler has returned; the connection's deadlines are then no longer theirs.
type watchedBody struct {
	io.ReadCloser
	rc    *http.ResponseController
	http1 bool // the body is followed by the next request
	live  bool // it may pause for any time; see LiveBody
	ended atomic.Bool

	mu      sync.Mutex    // guards what follows, and is held while a deadline is set
	over    bool          // the Handler has returned
	reading bool          // a Read is under way
	idle    chan struct{} // closed when it is not any more; nil before over
}

// watchBody returns the request's body, watched, after putting it into r. A
// body that no handler reads has StallTimeout to arrive, because the server
// reads it before it sends the answer.
func watchBody(w http.ResponseWriter, r *http.Request) *watchedBody {
	if b, ok := r.Body.(*watchedBody); ok {
		return b
	}
	b := &watchedBody{ReadCloser: r.Body, rc: http.NewResponseController(w), http1: r.ProtoMajor < 2}
	if r.Body == nil {
		b.ReadCloser = http.NoBody
	}
	r.Body = b
	if b.ReadCloser == http.NoBody {
		b.ended.Store(true)
	} else {
		b.setDeadline(time.Now().Add(StallTimeout))
	}
	return b
}

// Read reads the body. At the end of the body it lifts the deadline, because
// the server then watches the connection for the client's departure.
func (b *watchedBody) Read(p []byte) (int, error) {
	if !b.begin() {
		return 0, http.ErrBodyReadAfterClose
	}
	defer b.pause()
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF && !b.ended.Swap(true) {
		b.setDeadline(time.Time{})
	}
	return n, err
}

// begin reports whether the body may still be read, and records that a Read is
// in progress.
func (b *watchedBody) begin() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reading = !b.over
	return b.reading
}

func (b *watchedBody) pause() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reading = false
	if b.idle != nil {
		close(b.idle)
		b.idle = nil
	}
}

func (b *watchedBody) setDeadline(t time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.over {
		// If this fails the connection is broken, which the next Read reports.
		_ = b.rc.SetReadDeadline(t)
	}
}

// finish is called when the Handler has returned. If a part of the body is
// unread, the server waits for it only briefly.
func (b *watchedBody) finish(w *tracked) {
	if b.ended.Load() {
		b.stop()
		return
	}
	wait := drainTimeout
	if b.live {
		wait = liveDrainTimeout
	}
	b.setDeadline(time.Now().Add(wait))
	idle := b.stop()
	if idle == nil {
		return
	}
	// The server would abort a Read in progress, could then not read further,
	// and would close the connection while the client sends: the connection is
	// reset, and the answer may be lost. A client that is sending ends the Read
	// by itself.
	if w.duplex && w.status != 0 {
		_ = b.rc.Flush() // fails only when the client left
	}
	late := time.NewTimer(wait)
	defer late.Stop()
	select {
	case <-idle:
	case <-late.C: // the server below has no deadlines
	}
}

// stop ends the reading of the body: no Read begins from now on. It returns a
// channel that is closed when the Read in progress has ended, nil if there is
// none.
func (b *watchedBody) stop() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
	if !b.reading {
		return nil
	}
	b.idle = make(chan struct{})
	return b.idle
}

// Buffer lends a buffer for copying content. Call free to return it.
func Buffer() (buf []byte, free func()) {
	p := buffers.Get().(*[]byte)
	return *p, func() { buffers.Put(p) }
}

// SendFile answers with the bytes of a file whose size is size according to its file system.
// Files of proc and sys have more content than their size says, so the size is used only for
// content that does not fit the buffer. A growing file ends where it ended when it was
// opened. Errors of src come before the answer has begun, or break the connection.
func SendFile(w http.ResponseWriter, src io.Reader, size int64) error {
	buf, free := Buffer()
	defer free()
	n, err := io.ReadFull(src, buf)
	whole := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	if err != nil && !whole {
		return err
	}
	switch {
	case whole:
		w.Header().Set("Content-Length", strconv.Itoa(n))
	case size > int64(n):
		w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
		src = io.LimitReader(src, size-int64(n))
	}
	w.Header().Set("Content-Type", wire.TypeBytes)
	w.WriteHeader(http.StatusOK)
	return Copy(w, buf[:n], src, buf)
}

// Copy writes head, which the caller has read from src, and then the rest of
// src. Copy fails if the client takes no data for StallTimeout. Data is sent as
// it arrives: a short read is not held back to fill a packet.
func Copy(w http.ResponseWriter, head []byte, src io.Reader, buf []byte) error {
	rc := http.NewResponseController(w)
	var until time.Time
	write := func(p []byte, flush bool) error {
		if now := time.Now(); until.Sub(now) < StallTimeout-time.Second {
			until = now.Add(StallTimeout)
			if err := rc.SetWriteDeadline(until); err != nil && !errors.Is(err, http.ErrNotSupported) {
				return answerError(err)
			}
		}
		if _, err := w.Write(p); err != nil {
			return answerError(err)
		}
		if flush {
			return answerError(rc.Flush())
		}
		return nil
	}
	if len(head) > 0 {
		if err := write(head, len(head) < len(buf)); err != nil {
			return err
		}
	}
	for {
		n, err := src.Read(buf)
		if n > 0 {
			if werr := write(buf[:n], n < 4096); werr != nil {
				return werr
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// answerError explains why an answer could not be sent: the client has left or
// does not read. It returns nil for nil.
func answerError(err error) error {
	var timeout interface{ Timeout() bool }
	switch {
	case err == nil:
		return nil
	case errors.As(err, &timeout) && timeout.Timeout():
		return cay.Errorf(cay.DeadlineExceeded, "the client did not take the answer: %w", err)
	}
	return cay.Errorf(cay.Canceled, "the client left: %w", err)
}
