package intercept

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// Bounds of what an Upstream keeps.
const (
	maxIdlePerHost  = 16
	maxIdle         = 128
	maxConnsPerHost = 1024
	upstreamIdle    = 60 * time.Second
	handshakeTime   = 10 * time.Second // for TLS, on either side
	continueTime    = time.Second      // to wait for a server that was told to expect a body
	pingAfter       = 30 * time.Second // of silence on an HTTP/2 connection with requests
)

// Flow control windows of HTTP/2, on both sides, in bytes: as large as package
// http takes them.
const (
	connWindow   = 4<<20 - 1
	streamWindow = 2 << 20
	frameSize    = 256 << 10
)

// maxHeader bounds the headers of requests and responses, in bytes.
const maxHeader = 64 << 10

// Upstream holds the connections to servers that one sandbox's requests have
// opened, and keeps those that can be used again. A sandbox has one of its own:
// what servers know a connection by never crosses from one sandbox to another.
// Its owner closes it with the sandbox.
type Upstream struct {
	roots *tls.Config

	mu     sync.Mutex // guards what follows
	now    *generation
	conns  map[*serverConn]struct{}
	closed bool
}

// generation is the transports between two changes of policy.
type generation struct {
	// h1 is for requests that offer to upgrade, which HTTP/2 cannot.
	any, h1 *http.Transport
	active  int // requests; guarded by Upstream.mu
}

// NewUpstream returns an Upstream without connections.
func (p *Proxy) NewUpstream() *Upstream {
	u := &Upstream{
		roots: &tls.Config{RootCAs: p.cfg.Roots, MinVersion: tls.VersionTLS12, DynamicRecordSizingDisabled: true},
		conns: map[*serverConn]struct{}{},
	}
	u.now = u.newGeneration()
	return u
}

func (u *Upstream) newGeneration() *generation {
	build := func(h2 bool) *http.Transport {
		protocols := new(http.Protocols)
		protocols.SetHTTP1(true)
		protocols.SetHTTP2(h2)
		config := u.roots.Clone()
		config.ClientSessionCache = tls.NewLRUClientSessionCache(maxIdle)
		return &http.Transport{
			DialContext:            u.dial,
			TLSClientConfig:        config,
			TLSHandshakeTimeout:    handshakeTime,
			ExpectContinueTimeout:  continueTime,
			DisableCompression:     true, // the guest gets what it has asked for
			MaxIdleConns:           maxIdle,
			MaxIdleConnsPerHost:    maxIdlePerHost,
			MaxConnsPerHost:        maxConnsPerHost,
			IdleConnTimeout:        upstreamIdle,
			MaxResponseHeaderBytes: maxHeader,
			WriteBufferSize:        bufferSize,
			Protocols:              protocols,
			HTTP2: &http.HTTP2Config{
				MaxReceiveBufferPerConnection: connWindow,
				MaxReceiveBufferPerStream:     streamWindow,
				MaxReadFrameSize:              frameSize,
				SendPingTimeout:               pingAfter,
			},
		}
	}
	return &generation{any: build(true), h1: build(false)}
}

// Reset makes all requests from now on open new connections, so that these meet
// Session.Dial. To be called when the policy has changed. Requests under way
// keep theirs until they end.
func (u *Upstream) Reset() {
	u.mu.Lock()
	old := u.now
	u.now = u.newGeneration()
	u.mu.Unlock()
	old.closeIdle()
}

// Close closes all connections; requests under way fail, and so do new ones.
func (u *Upstream) Close() {
	u.mu.Lock()
	u.closed = true
	conns := u.conns
	u.conns = nil
	last := u.now
	u.mu.Unlock()
	for c := range conns {
		c.Conn.Close()
	}
	last.closeIdle()
}

func (g *generation) closeIdle() {
	g.any.CloseIdleConnections()
	g.h1.CloseIdleConnections()
}

// acquire returns the transports for one request, to be released after it.
func (u *Upstream) acquire() *generation {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.now.active++
	return u.now
}

func (u *Upstream) release(g *generation) {
	u.mu.Lock()
	g.active--
	last := g.active == 0 && g != u.now
	u.mu.Unlock()
	if last {
		g.closeIdle()
	}
}

var errUpstreamClosed = errors.New("the sandbox's connections are closed")

// dial is how transports connect. The request that needs a connection says by
// its context whose Session.Dial to use, but others may get the connection.
func (u *Upstream) dial(ctx context.Context, _, address string) (net.Conn, error) {
	host, portText, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("port %q: %w", portText, err)
	}
	conn, err := guestOf(ctx).session.Dial(ctx, host, uint16(port))
	if err != nil {
		return nil, err
	}
	c := &serverConn{Conn: conn, owner: u}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		conn.Close()
		return nil, errUpstreamClosed
	}
	u.conns[c] = struct{}{}
	return c, nil
}

// serverConn is a connection that its Upstream knows of until it is closed.
type serverConn struct {
	net.Conn
	owner *Upstream
}

func (c *serverConn) Close() error {
	c.owner.mu.Lock()
	delete(c.owner.conns, c)
	c.owner.mu.Unlock()
	return c.Conn.Close()
}

// CloseWrite ends what is sent to the server, for upgraded connections.
func (c *serverConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return fmt.Errorf("close one direction of a %T: %w", c.Conn, errors.ErrUnsupported)
}
