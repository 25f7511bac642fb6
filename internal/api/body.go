package api

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"time"
)

const (
	// StallTimeout ends a transfer whose other side has not moved a byte, so
	// that a client that stopped reading or sending holds nothing for longer.
	StallTimeout = 30 * time.Second

	// copyBuffer is large enough that system calls cost little beside the
	// copying, and small enough to stay in the processor's cache.
	copyBuffer = 256 << 10
)

var buffers = sync.Pool{New: func() any { b := make([]byte, copyBuffer); return &b }}

// Body returns the request's body for streaming, of any length. Reading fails
// with deadline_exceeded when the client stalls for StallTimeout, and with
// canceled when it leaves.
func Body(w http.ResponseWriter, r *http.Request) io.Reader {
	return &body{r: r.Body, rc: http.NewResponseController(w)}
}

type body struct {
	r     io.Reader
	rc    *http.ResponseController
	until time.Time // the deadline that is set
}

func (b *body) Read(p []byte) (int, error) {
	if now := time.Now(); b.until.Sub(now) < StallTimeout-time.Second {
		b.until = now.Add(StallTimeout)
		if err := b.rc.SetReadDeadline(b.until); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return 0, bodyError(err)
		}
	}
	n, err := b.r.Read(p)
	if err == nil {
		return n, nil
	}
	if err != io.EOF {
		return n, bodyError(err)
	}
	// The connection is watched for the client's leaving from here on.
	if err := b.rc.SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return n, bodyError(err)
	}
	return n, io.EOF
}

// LiveBody returns the request's body for input that people type: it may pause
// for any time. The answer may be sent before the body ends.
func LiveBody(w http.ResponseWriter, r *http.Request) (io.Reader, error) {
	rc := http.NewResponseController(w)
	if err := rc.EnableFullDuplex(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return nil, err
	}
	if err := rc.SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return nil, err
	}
	return &liveBody{r.Body}, nil
}

type liveBody struct{ r io.Reader }

func (b *liveBody) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if err != nil && err != io.EOF {
		err = bodyError(err)
	}
	return n, err
}

// DuplexBody is Body for a Handler that answers while the body still comes.
// The connection is not used again.
func DuplexBody(w http.ResponseWriter, r *http.Request) (io.Reader, error) {
	if err := http.NewResponseController(w).EnableFullDuplex(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return nil, err
	}
	w.Header().Set("Connection", "close") // the rest of the body is not taken for a request
	return Body(w, r), nil
}

// watchedBody knows whether it was read to its end.
type watchedBody struct {
	io.ReadCloser
	ended bool
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.ended = b.ended || err == io.EOF
	return n, err
}

// watchBody gives a body that nobody reads StallTimeout to arrive, because the
// server reads it before it sends the answer, and returns a request whose body
// is watched. It returns nil for a request that has no body, or is watched.
func watchBody(w http.ResponseWriter, r *http.Request) *watchedBody {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	if _, ok := r.Body.(*watchedBody); ok {
		return nil
	}
	// If this fails the connection is broken, which the next use of it tells.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(StallTimeout))
	return &watchedBody{ReadCloser: r.Body}
}

// abandon makes the server not wait for the rest of the body. The connection
// is closed after the answer.
func (b *watchedBody) abandon(w http.ResponseWriter) {
	if b == nil || b.ended {
		return
	}
	w.Header().Set("Connection", "close")
	// If this fails the connection is broken already, which is as good.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now())
}

// Buffer lends a buffer of the size in which content is copied. Give it back
// by calling free.
func Buffer() (buf []byte, free func()) {
	p := buffers.Get().(*[]byte)
	return *p, func() { buffers.Put(p) }
}

// Copy answers with what src has left, after head, which was read from it
// before. What the client has not taken after StallTimeout fails. Data goes out
// as it comes: a short read is not held back to fill a packet.
func Copy(w http.ResponseWriter, head []byte, src io.Reader, buf []byte) error {
	rc := http.NewResponseController(w)
	var until time.Time
	write := func(p []byte, flush bool) error {
		if now := time.Now(); until.Sub(now) < StallTimeout-time.Second {
			until = now.Add(StallTimeout)
			if err := rc.SetWriteDeadline(until); err != nil && !errors.Is(err, http.ErrNotSupported) {
				return err
			}
		}
		if _, err := w.Write(p); err != nil {
			return err
		}
		if flush {
			return rc.Flush()
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
