package intercept

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds of the connections and requests of an Upstream.
const (
	maxIdlePerHost  = 16
	maxIdle         = 128
	maxConnsPerHost = 1024
	maxRequests     = 2048 // under way; a guest's connections of HTTP/2 have up to maxStreams each
	upstreamIdle    = 60 * time.Second
	handshakeTime   = 10 * time.Second // for TLS, on either side
	continueTime    = time.Second      // to wait for a server that was told to expect a body
	pingAfter       = 30 * time.Second // of silence on an HTTP/2 connection with requests
)

// Flow control windows of HTTP/2, in bytes: to servers the sizes that package http uses,
// to guests a size that is enough where a response takes 1 ms.
const (
	serverWindow       = 4<<20 - 1
	serverStreamWindow = 2 << 20
	guestWindow        = 1 << 20
	guestStreamWindow  = 512 << 10
	frameSize          = 256 << 10
)

// maxHeader bounds the headers of requests and responses, in bytes.
const maxHeader = 64 << 10

// Upstream holds the connections to servers that one sandbox's requests have opened, and
// keeps the reusable ones. Each sandbox has an Upstream of its own: connection state by
// which servers recognize a client never crosses from one sandbox to another. The owner
// closes it with the sandbox.
type Upstream struct {
	roots  *tls.Config
	memory Memory

	mu     sync.Mutex  // guards what follows, and the fields of generations
	now    *generation // for new requests
	all    map[*generation]struct{}
	active map[*exchange]struct{} // requests under way
	closed bool
}

// generation has the connections opened between two changes of policy.
type generation struct {
	owner *Upstream
	any   *http.Transport
	h1    *http.Transport // for requests that offer to upgrade, which HTTP/2 cannot

	conns  map[*serverConn]struct{} // nil when it has ended
	active int                      // requests
}

// NewUpstream returns an Upstream without connections, whose windows are counted by
// memory.
func (p *Proxy) NewUpstream(memory Memory) *Upstream {
	u := &Upstream{
		memory: memory,
		roots:  &tls.Config{RootCAs: p.cfg.Roots, MinVersion: tls.VersionTLS12, DynamicRecordSizingDisabled: true},
		all:    map[*generation]struct{}{}, active: map[*exchange]struct{}{},
	}
	u.now = u.newGeneration()
	return u
}

// newGeneration must be called with mu held, or before the Upstream is shared.
func (u *Upstream) newGeneration() *generation {
	g := &generation{owner: u, conns: map[*serverConn]struct{}{}}
	g.any, g.h1 = g.transport(true), g.transport(false)
	u.all[g] = struct{}{}
	return g
}

func (g *generation) transport(h2 bool) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(h2)
	config := g.owner.roots.Clone()
	config.ClientSessionCache = tls.NewLRUClientSessionCache(maxIdle)
	t := &http.Transport{
		DialContext:            g.dial,
		TLSClientConfig:        config,
		TLSHandshakeTimeout:    handshakeTime,
		ExpectContinueTimeout:  continueTime,
		DisableCompression:     true, // the guest gets the encoding that it asked for
		MaxIdleConns:           maxIdle,
		MaxIdleConnsPerHost:    maxIdlePerHost,
		MaxConnsPerHost:        maxConnsPerHost,
		IdleConnTimeout:        upstreamIdle,
		MaxResponseHeaderBytes: maxHeader,
		Protocols:              protocols,
		HTTP2: &http.HTTP2Config{
			MaxReceiveBufferPerConnection: serverWindow,
			MaxReceiveBufferPerStream:     serverStreamWindow,
			MaxReadFrameSize:              frameSize,
			SendPingTimeout:               pingAfter,
		},
	}
	if h2 {
		t.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			return g.dialTLS(ctx, network, address, config)
		}
	}
	return t
}

// Reset makes all later requests open new connections, so that Session.Dial decides about
// them. Call it when the policy has changed. Reset ends requests under way that the
// policy denies; other requests keep their connections until they end.
func (u *Upstream) Reset() {
	u.mu.Lock()
	if u.closed {
		u.mu.Unlock()
		return
	}
	old := u.now
	u.now = u.newGeneration()
	var conns map[*serverConn]struct{}
	if old.active == 0 {
		conns = old.endLocked()
	}
	active := slices.Collect(maps.Keys(u.active))
	u.mu.Unlock()
	old.shut(conns)
	for _, x := range active {
		x.rejudge()
	}
}

// Close closes all connections; requests under way fail, and so do new ones.
func (u *Upstream) Close() {
	u.mu.Lock()
	u.closed = true
	ended := map[*generation]map[*serverConn]struct{}{}
	for g := range u.all {
		ended[g] = g.endLocked()
	}
	u.mu.Unlock()
	for g, conns := range ended {
		g.shut(conns)
	}
}

// endLocked makes connections that open later close at once, and returns the open
// connections, for shut.
func (g *generation) endLocked() map[*serverConn]struct{} {
	conns := g.conns
	g.conns = nil
	delete(g.owner.all, g)
	return conns
}

// shut is called without the lock, which serverConn.Close takes.
func (g *generation) shut(conns map[*serverConn]struct{}) {
	for c := range conns {
		_ = c.Conn.Close() // its transport notices the close
	}
	g.any.CloseIdleConnections()
	g.h1.CloseIdleConnections()
}

// acquire gives a request its transports, until release. It returns false if there are
// too many requests.
func (u *Upstream) acquire(x *exchange) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.active) >= maxRequests {
		return false
	}
	u.active[x] = struct{}{}
	u.now.active++
	x.gen = u.now
	return true
}

func (u *Upstream) release(x *exchange) {
	u.mu.Lock()
	g := x.gen
	delete(u.active, x)
	g.active--
	last := g.active == 0 && g != u.now && g.conns != nil
	var conns map[*serverConn]struct{}
	if last {
		conns = g.endLocked()
	}
	u.mu.Unlock()
	if last {
		g.shut(conns)
	}
}

var errUpstreamClosed = errors.New("the sandbox's connections are closed")

// dial connects for a transport. The context is that of the request that needs a
// connection, and determines the Session.Dial to use; another request may get the
// connection.
func (g *generation) dial(ctx context.Context, _, address string) (net.Conn, error) {
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
	c := &serverConn{Conn: conn, of: g}
	g.owner.mu.Lock()
	defer g.owner.mu.Unlock()
	if g.conns == nil {
		return nil, errors.Join(errUpstreamClosed, conn.Close())
	}
	g.conns[c] = struct{}{}
	return c, nil
}

// dialTLS connects for a transport that uses HTTP/2, if server and memory allow.
func (g *generation) dialTLS(ctx context.Context, network, address string, config *tls.Config) (net.Conn, error) {
	name, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	raw, err := g.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c, memory := raw.(*serverConn), g.owner.memory
	config = config.Clone()
	config.ServerName, config.NextProtos = name, []string{"http/1.1"}
	room := take(memory, serverWindow)
	if room {
		config.NextProtos = []string{"h2", "http/1.1"}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, handshakeTime, errHandshakeTime)
	defer cancel()
	conn := tls.Client(c, config)
	err = conn.HandshakeContext(ctx)
	if err == nil && conn.ConnectionState().NegotiatedProtocol == "h2" {
		c.window.Store(true)
		return conn, nil
	}
	if room {
		give(memory, serverWindow)
	}
	if err == nil {
		return conn, nil
	}
	if context.Cause(ctx) == errHandshakeTime {
		err = errHandshakeTime
	}
	_ = c.Close() // the connection is useless, whether Close fails or not
	return nil, err
}

var errHandshakeTime = errors.New("the TLS handshake took too long")

// serverConn is a connection that is listed in its generation until it is closed.
type serverConn struct {
	net.Conn
	of     *generation
	window atomic.Bool // the connection speaks HTTP/2, and its window is counted
}

func (c *serverConn) Close() error {
	if c.window.CompareAndSwap(true, false) {
		give(c.of.owner.memory, serverWindow)
	}
	c.of.owner.mu.Lock()
	delete(c.of.conns, c)
	c.of.owner.mu.Unlock()
	return c.Conn.Close()
}

// CloseWrite closes the sending side, for upgraded connections.
func (c *serverConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return fmt.Errorf("close one direction of a %T: %w", c.Conn, errors.ErrUnsupported)
}
