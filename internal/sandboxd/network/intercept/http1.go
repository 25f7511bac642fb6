package intercept

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/cayhq/cay/internal/sandboxd/network/sniff"
	"github.com/cayhq/cay/sandbox"
)

// ruleMalformed is the rule of requests that the filter refuses.
const ruleMalformed = "malformed request"

// How long, and for how many bytes, the proxy reads from a guest after a refusal: if the
// connection were closed with data unread, the guest might lose the answer.
const (
	lingerTime = 500 * time.Millisecond
	lingerSize = 256 << 10
)

// http1Conn is a guest's connection from which the server reads HTTP/1: only unambiguous
// requests. When the filter refuses a request, net/http's server would close the
// connection silently or with an unspecific answer, and would cut the response to the
// request before. So http1Conn waits until that response is complete and answers itself.
type http1Conn struct {
	*sniff.Conn
	guest *guest

	mu      sync.Mutex // guards what follows
	busy    bool       // the server has a request, and has not finished the response
	told    bool       // the server knows that the request's body is bad
	stopped bool       // the deadline of reads is in the past
	stop    chan struct{}
}

func newHTTP1Conn(g *guest, conn net.Conn) *http1Conn {
	return &http1Conn{Conn: sniff.FilterRequests(conn), guest: g, stop: make(chan struct{})}
}

func (c *http1Conn) setState(state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy = state == http.StateActive
}

// Read implements net.Conn.
func (c *http1Conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err == nil {
		return n, nil
	}
	refused, ok := errors.AsType[*sniff.RequestError](err)
	if !ok {
		return n, err
	}
	c.mu.Lock()
	busy, told, stop := c.busy, c.told, c.stop
	c.told = told || busy && len(p) > 1
	c.mu.Unlock()
	switch {
	case told:
		return 0, err
	case !busy:
		c.refuse(refused)
		return 0, io.EOF
	case len(p) > 1: // the body of the request under way
		return 0, err
	}
	// net/http's server checks whether the guest is still there, by reading one byte.
	select {
	case <-stop:
		return 0, os.ErrDeadlineExceeded
	case <-c.guest.closed:
		return 0, net.ErrClosed
	}
}

// Write implements net.Conn.
func (c *http1Conn) Write(p []byte) (int, error) {
	if !c.guest.secure || len(p) <= recordSize {
		return c.Conn.Write(p)
	}
	return c.guest.batch.together(func() (int, error) { return c.Conn.Write(p) })
}

// SetReadDeadline implements net.Conn.
func (c *http1Conn) SetReadDeadline(t time.Time) error {
	past := !t.IsZero() && !t.After(time.Now())
	c.mu.Lock()
	switch {
	case past && !c.stopped:
		close(c.stop)
	case !past && c.stopped:
		c.stop = make(chan struct{})
	}
	c.stopped = past
	c.mu.Unlock()
	return c.Conn.SetReadDeadline(t)
}

// refuse answers a request that the server never sees.
func (c *http1Conn) refuse(e *sniff.RequestError) {
	f := c.guest.flow()
	f.Status, f.Verdict, f.Rule, f.Reason = http.StatusBadRequest, sandbox.Denied, ruleMalformed, e.Error()
	body := explain(f)
	n, err := fmt.Fprintf(c.Conn, "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\n%s: %s\r\nConnection: close\r\n\r\n%s",
		len(body), deniedHeader, f.Rule, body)
	f.IngressBytes = int64(n)
	c.guest.record(f)
	if err != nil {
		return // the guest has left
	}
	if c.CloseWrite() != nil || c.Conn.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, c.guest, lingerSize)
}
