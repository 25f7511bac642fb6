package network

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/cayhq/cay/internal/sandboxd/network/intercept"
	"github.com/cayhq/cay/internal/sandboxd/network/policy"
)

// servers has the connections to servers that package intercept opens for the requests of
// a link. A connection serves the sandbox as long as today's policy would open it again.
type servers struct {
	link *Link
	pool *intercept.Upstream // nil if nothing is intercepted

	mu     sync.Mutex // guards what follows
	conns  map[*serverConn]struct{}
	closed bool
}

// serverConn is one of them.
type serverConn struct {
	net.Conn
	servers *servers
	name    string // clean, or an address
	port    uint16
	dialled netip.AddrPort // zero if the host's proxy dials
	// forward says that a rule chose the name, not the guest.
	forward bool
	freed   sync.Once
}

func newServers(l *Link) *servers {
	s := &servers{link: l, conns: map[*serverConn]struct{}{}}
	if p := l.egress.cfg.Proxy; p != nil {
		s.pool = p.NewUpstream(memory{l.share})
	}
	return s
}

// memory is a share as package intercept counts in it.
type memory struct{ *share }

func (m memory) Take(n int64) bool { return m.takeSpare(n) }

func (m memory) Give(n int64) { m.give(n) }

// dial is intercept's Session.Dial.
func (s *servers) dial(ctx context.Context, name string, port uint16) (net.Conn, error) {
	conn, err := s.dialJudged(ctx, name, port)
	var denied *errDenied
	if errors.As(err, &denied) {
		return nil, &intercept.Refused{Rule: denied.Rule, Reason: denied.Reason}
	}
	return conn, err
}

func (s *servers) dialJudged(ctx context.Context, name string, port uint16) (net.Conn, error) {
	l := s.link
	if l.meter.exhausted() {
		return nil, &errDenied{l.totalDenied()}
	}
	c := &serverConn{servers: s, name: name, port: port, forward: intercept.Forwarded(ctx)}
	if clean, err := policy.CleanName(name); err == nil {
		c.name = clean
	} else if ip, ierr := netip.ParseAddr(name); ierr == nil && c.forward {
		c.name = ip.String()
	} else {
		return nil, &errDenied{policy.Decision{Rule: "bad name", Reason: err.Error()}}
	}
	l.share.makeRoom(connectionFloor)
	if !l.share.take(connectionFloor) {
		return nil, &errDenied{l.memoryDenied()}
	}
	conn, err := l.dialName(ctx, target{name: c.name, port: port, judge: func(dst netip.AddrPort) policy.Decision {
		c.dialled = dst
		return c.judge()
	}})
	if err != nil {
		l.share.give(connectionFloor)
		return nil, err
	}
	c.Conn = conn
	if !s.add(c) {
		c.Close()
		return nil, errClosed
	}
	// The policy may have changed before SetPolicy could see this connection.
	if d := c.judge(); d.Verdict != policy.Allow {
		c.Close()
		return nil, &errDenied{d}
	}
	return c, nil
}

func (s *servers) add(c *serverConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.conns[c] = struct{}{}
	return true
}

// judge decides by today's policy. The policy's owner chose the target of a forward, so
// only its address is judged.
func (c *serverConn) judge() policy.Decision {
	l := c.servers.link
	p := l.policy.Load()
	listed := false
	if !c.forward {
		d, _ := p.Name(c.name, c.port)
		if d.Verdict != policy.Allow {
			return d
		}
		listed = d.PortListed
	}
	if !c.dialled.IsValid() {
		return inFavour
	}
	return l.byResolved(p, c.dialled, listed)
}

// rejudge ends the connections that a new policy would not open, with the requests on
// them, and connections that rules of the old policy opened. Later requests open new
// connections.
func (s *servers) rejudge() {
	if s.pool != nil {
		s.pool.Reset()
	}
	for _, c := range s.all() {
		if c.forward || c.judge().Verdict != policy.Allow {
			c.Close()
		}
	}
}

// end ends all connections.
func (s *servers) end() {
	for _, c := range s.all() {
		c.Close()
	}
}

func (s *servers) all() []*serverConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.conns))
}

func (s *servers) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.end()
	if s.pool != nil {
		s.pool.Close()
	}
}

// Close implements net.Conn.
func (c *serverConn) Close() error {
	c.servers.mu.Lock()
	delete(c.servers.conns, c)
	c.servers.mu.Unlock()
	err := c.Conn.Close()
	c.freed.Do(c.free)
	return err
}

// free gives back the bytes that were counted for the connection, when it has gone.
func (c *serverConn) free() {
	l := c.servers.link
	h := hostConnOf(c.Conn)
	if h == nil {
		l.share.give(connectionFloor)
		return
	}
	// A closed link has given back all bytes already.
	l.start(func() {
		<-h.gone
		l.share.give(connectionFloor)
	})
}

// CloseWrite half-closes the connection, if it can.
func (c *serverConn) CloseWrite() error { return closeWrite(c.Conn) }
