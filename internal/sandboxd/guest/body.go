package guest

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
)

// body hands a caller's reader to net/http as a request's body. It reads in a goroutine
// of its own, because net/http would wait for a source that blocks, even after the
// request was given up or the connection closed. If the source still blocks then, one
// Read stays in progress, and its data is dropped.
type body struct {
	r       io.Reader
	started atomic.Bool
	ctx     context.Context // of the request; also ended by Close
	cancel  context.CancelFunc
	cut     <-chan struct{} // closed when the connection in use is
	chunks  chan chunk
	current []byte // the unread rest of the newest chunk
	buf     *[]byte
	end     error                 // the error at which the source ended
	failed  atomic.Pointer[error] // end, if that is not io.EOF
}

type chunk struct {
	buf *[]byte
	n   int
	err error
}

var bodyBuffers = sync.Pool{New: func() any { b := make([]byte, CopyBuffer); return &b }}

func newBody(ctx context.Context, r io.Reader) *body {
	b := &body{r: r, chunks: make(chan chunk, 1)}
	b.ctx, b.cancel = context.WithCancel(ctx)
	return b
}

// attach makes b the body of a request. If the connection breaks before net/http has
// taken any bytes of b, net/http may try another connection.
func (b *body) attach(req *http.Request) *http.Request {
	req.Body, req.ContentLength = attempt{b}, -1
	req.GetBody = func() (io.ReadCloser, error) {
		if b.started.Load() {
			return nil, errors.New("part of the body was sent")
		}
		return attempt{b}, nil
	}
	return req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			if conn, ok := info.Conn.(*trackedConn); ok {
				b.cut = conn.closed
			}
		},
	}))
}

// attempt is the body of one attempt of the request. net/http closes it after the
// attempt, which must not close the body itself.
type attempt struct{ *body }

func (attempt) Close() error { return nil }

// trackedConn counts the bytes read, and signals its close.
type trackedConn struct {
	net.Conn
	heard  *atomic.Int64
	once   sync.Once
	closed chan struct{}
}

func (c *trackedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.heard.Add(int64(n))
	return n, err
}

func (c *trackedConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

func (b *body) pump() {
	for {
		buf := bodyBuffers.Get().(*[]byte)
		n, err := b.r.Read(*buf)
		select {
		case b.chunks <- chunk{buf, n, err}:
		case <-b.ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// fill gets the next bytes of the source.
func (b *body) fill() error {
	if !b.started.Swap(true) {
		go b.pump()
	}
	for len(b.current) == 0 {
		if b.buf != nil {
			bodyBuffers.Put(b.buf)
			b.buf = nil
		}
		if b.end != nil {
			return b.end
		}
		select {
		case c := <-b.chunks:
			b.buf, b.current, b.end = c.buf, (*c.buf)[:c.n], c.err
			if c.err != nil && c.err != io.EOF {
				b.failed.Store(&c.err)
			}
		case <-b.ctx.Done():
			return http.ErrBodyReadAfterClose
		case <-b.cut:
			return net.ErrClosed
		}
	}
	return nil
}

func (b *body) Read(p []byte) (int, error) {
	if err := b.fill(); err != nil {
		return 0, err
	}
	n := copy(p, b.current)
	b.current = b.current[n:]
	return n, nil
}

// WriteTo saves net/http a copy, and sends pieces of the source's size.
func (b *body) WriteTo(w io.Writer) (n int64, err error) {
	for {
		if err := b.fill(); err == io.EOF {
			return n, nil
		} else if err != nil {
			return n, err
		}
		m, err := w.Write(b.current)
		n += int64(m)
		b.current = b.current[m:]
		if err != nil {
			return n, err
		}
	}
}

// Close ends the reading.
func (b *body) Close() { b.cancel() }

// failure returns the error that the source ended with, nil if it did not fail.
func (b *body) failure() error {
	if err := b.failed.Load(); err != nil {
		return *err
	}
	return nil
}
