package upstream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// early is how long the client waits for the answer of a server that does not read the
// whole request.
const early = 50 * time.Millisecond

// conn is a connection. It is used by one call at a time.
type conn struct {
	c     *Client
	host  *host
	net   net.Conn
	since time.Time // start of idleness; guarded by Client.mu

	// State of the call in progress:
	reused  bool
	wrote   bool     // something of the request
	writing *writing // set for a large request, else nil
	read    bool     // something of the answer
	left    int64    // how many bytes may be read until the head has ended
	buffer  *bufio.Reader
	release func() bool // ends the watch of the call's context; false if the context has ended

	// Functions shared by all calls, to avoid allocations:
	abort func()
	raw   syscall.RawConn // nil: whether it is open cannot be checked
	poll  [1]unix.PollFd
	look  func(fd uintptr)
}

// newConn returns a conn for a network connection; raw is the connection below TLS.
func newConn(c *Client, h *host, nc, raw net.Conn) *conn {
	cn := &conn{c: c, host: h, net: nc}
	cn.abort = func() { _ = nc.SetDeadline(time.Unix(1, 0)) } // the reading or writing goroutine closes it
	if sc, ok := raw.(syscall.Conn); ok {
		cn.raw, _ = sc.SyscallConn()
	}
	cn.look = func(fd uintptr) {
		cn.poll[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN | unix.POLLRDHUP}
		if n, err := unix.Poll(cn.poll[:], 0); err != nil || n != 0 {
			cn.poll[0].Fd = -1
		}
	}
	return cn
}

// open reports whether an idle connection is still usable. If a server has sent
// unrequested bytes, it is about to close the connection, or broken.
func (cn *conn) open() bool {
	if cn.raw == nil {
		return true
	}
	return cn.raw.Control(cn.look) == nil && cn.poll[0].Fd >= 0
}

// Read reads for the call's bufio.Reader, and limits the size of the answer's head.
func (cn *conn) Read(p []byte) (int, error) {
	if cn.left <= 0 {
		return 0, fmt.Errorf("the headers of the answer are larger than %d bytes", cn.c.maxHead())
	}
	n, err := cn.net.Read(p[:min(int64(len(p)), cn.left)])
	cn.left -= int64(n)
	cn.read = cn.read || n > 0
	return n, err
}

var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 4<<10) }}

// exchange sends a request (only the head if it is large), and returns the answer; the
// connection becomes free at the end of the answer's body. On an error the connection is
// closed.
func (cn *conn) exchange(r *http.Request, request *[]byte) (*http.Response, error) {
	ctx := r.Context()
	cn.wrote, cn.read, cn.left = false, false, cn.c.maxHead()
	cn.buffer = readers.Get().(*bufio.Reader)
	cn.buffer.Reset(cn)
	cn.release = context.AfterFunc(ctx, cn.abort)
	resp, err := cn.answer(ctx, r, request)
	if err != nil {
		w := cn.writing
		cn.free(false)
		if w != nil {
			cn.wrote = w.sent.Load()
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	cn.left = math.MaxInt64
	if resp.Body == http.NoBody {
		cn.free(!resp.Close)
		return resp, nil
	}
	resp.Body = &body{conn: cn, of: r, src: resp.Body, again: !resp.Close}
	return resp, nil
}

func (cn *conn) answer(ctx context.Context, r *http.Request, request *[]byte) (*http.Response, error) {
	var werr error
	if large(r) {
		cn.writing = cn.begin(r, request)
	} else {
		var n int
		n, werr = cn.net.Write(*request)
		cn.wrote = n > 0
		if werr != nil {
			if n == 0 {
				return nil, werr
			}
			// The server may have sent the reason why it stopped reading.
			_ = cn.net.SetReadDeadline(time.Now().Add(early))
		}
	}
	for {
		resp, err := http.ReadResponse(cn.buffer, r)
		if cn.writing != nil && (err != nil || resp.StatusCode >= 200) {
			werr = cn.writing.answer()
		}
		switch {
		case err != nil && werr != nil:
			return nil, werr
		case err != nil && !cn.read && errors.Is(err, io.ErrUnexpectedEOF):
			return nil, fmt.Errorf("the server closed the connection instead of answering: %w", io.EOF)
		case err != nil:
			return nil, err
		case resp.StatusCode == http.StatusSwitchingProtocols:
			return nil, errors.New("the server changes to another protocol, which it was not asked to")
		case resp.StatusCode >= 100 && resp.StatusCode < 200: // the answer follows
			continue
		case werr != nil:
			resp.Close = true
			_ = cn.net.SetReadDeadline(time.Time{})
			if ctx.Err() != nil { // it may have ended before
				return nil, context.Cause(ctx)
			}
		}
		return resp, nil
	}
}

// again reports whether a call without an answer may be repeated.
func (cn *conn) again(r *http.Request) bool {
	if !cn.reused || r.Context().Err() != nil {
		return false
	}
	return !cn.wrote || !cn.read && (r.Method == http.MethodGet || r.Header["Idempotency-Key"] != nil)
}

// free ends a call's use of the connection, and keeps the connection if it is usable.
func (cn *conn) free(usable bool) {
	w := cn.writing
	if usable && w != nil {
		usable = w.end()
	}
	usable = cn.release() && usable && cn.buffer.Buffered() == 0
	cn.buffer.Reset(nil)
	readers.Put(cn.buffer)
	cn.buffer, cn.release, cn.writing = nil, nil, nil
	if !usable || !cn.c.keep(cn) {
		_ = cn.net.Close()
		if w != nil {
			<-w.done
		}
	}
}

// body is the body of an answer.
type body struct {
	conn  *conn
	of    *http.Request
	again bool        // the connection can be used again after the body
	ended atomic.Bool // the end was reached, or Close was called; the first of them decides

	mu  sync.Mutex // guards the following fields, and the connection's buffer
	src io.Reader
	end error // result of all further Reads
}

func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.end != nil {
		return 0, b.end
	}
	n, err := b.src.Read(p)
	if err == nil {
		return n, nil
	}
	closed := b.ended.Swap(true)
	b.conn.free(err == io.EOF && b.again && !closed)
	if b.end = err; err != io.EOF && b.of.Context().Err() != nil {
		b.end = context.Cause(b.of.Context())
	}
	return n, b.end
}

// Close closes the connection unless the answer has been read to its end, because the
// remaining part may be long.
func (b *body) Close() error {
	if b.ended.Swap(true) {
		return nil
	}
	_ = b.conn.net.Close() // wakes who reads
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.end == nil {
		b.conn.free(false)
		b.end = http.ErrBodyReadAfterClose
	}
	return nil
}
