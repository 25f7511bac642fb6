package intercept

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/cayhq/cay/sandbox"
)

// guest is a guest's connection that is being served.
type guest struct {
	net.Conn
	session *Session
	secure  bool
	since   time.Time
	http1   *http1Conn // nil for HTTP/2, and before the handshake
	batch   batch      // before Conn

	// The server closes released when it begins no more requests.
	released chan struct{}
	release  sync.Once
	closed   chan struct{}
	closing  sync.Once
	// exchanges are the requests under way.
	exchanges sync.WaitGroup
}

func newGuest(conn net.Conn, s *Session, secure bool) *guest {
	return &guest{
		Conn: conn, session: s, secure: secure, since: time.Now(), batch: batch{Writer: conn, memory: s.Memory},
		released: make(chan struct{}), closed: make(chan struct{}),
	}
}

type guestKey struct{}

func guestOf(ctx context.Context) *guest { return ctx.Value(guestKey{}).(*guest) }

// guestBehind returns the guest of a connection that the server got.
func guestBehind(c net.Conn) *guest {
	if t, ok := c.(*tls.Conn); ok {
		return t.NetConn().(*guest)
	}
	return c.(*http1Conn).guest
}

func (g *guest) setState(state http.ConnState) {
	if g.http1 != nil {
		g.http1.setState(state)
	}
	if state == http.StateClosed || state == http.StateHijacked {
		g.release.Do(func() { close(g.released) })
	}
}

// Write implements net.Conn.
func (g *guest) Write(p []byte) (int, error) { return g.batch.Write(p) }

func (g *guest) Close() error {
	g.closing.Do(func() { close(g.closed) })
	return g.Conn.Close()
}

// CloseWrite closes the sending side.
func (g *guest) CloseWrite() error {
	if half, ok := g.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return fmt.Errorf("close one direction of a %T: %w", g.Conn, errors.ErrUnsupported)
}

func (g *guest) protocol() string {
	if g.secure {
		return "https"
	}
	return "http"
}

// flow begins a record.
func (g *guest) flow() sandbox.Flow {
	f := sandbox.Flow{Time: time.Now(), Protocol: g.protocol(), Name: g.session.Name, Port: g.session.Port}
	if g.session.Address.IsValid() {
		f.Address = g.session.Address.String()
	}
	return f
}

func (g *guest) record(f sandbox.Flow) {
	if g.session.Record == nil {
		return
	}
	f.Duration = sandbox.Duration(time.Since(f.Time))
	g.session.Record(f)
}

// recordHandshake tells why a guest never came to ask for anything.
func (g *guest) recordHandshake(err error) {
	f := g.flow()
	f.Time = g.since
	f.Verdict, f.Rule = sandbox.Broken, "intercept"
	f.Reason = "the TLS handshake with the guest failed: " + err.Error()
	if e, ok := errors.AsType[*net.OpError](err); ok && e.Op == "remote error" { // an alert
		f.Reason += "; the guest's program may not trust the sandbox's authority"
	}
	g.record(f)
}
