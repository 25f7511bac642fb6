package network

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/network/policy"
	"github.com/cayhq/cay/internal/sandboxd/network/sniff"
	"github.com/cayhq/cay/sandbox"
)

// silentFor is how long a client may be silent until its connection is offered without a
// name, because the client waits for the server to send first. At the ports of the web,
// where clients send first, it is Egress.sniffTimeout.
const silentFor = 300 * time.Millisecond

// Rules of decisions about connections that are offered to an egress handler.
const (
	ruleHandled = "handled"
	ruleRefused = "refused by the egress handler"
)

// OnOutbound offers connections that Network.Handled covers to h, from now on. With a nil
// h they are refused.
func (l *Link) OnOutbound(h machine.OutboundHandler) {
	if h == nil {
		l.handler.Store(nil)
		return
	}
	l.handler.Store(&h)
}

// handles reports whether a TCP connection to dst must be read, because the handler may
// cover its name.
func (l *Link) handles(dst netip.AddrPort) bool {
	return l.policy.Load().Handles() && !linkRange.Contains(dst.Addr())
}

// greeting is the beginning of a client's connection.
type greeting struct {
	protocol sniff.Protocol
	name     string // clean; empty if the client sends no name
	read     []byte // all that was read
	err      error  // of reading
}

// word returns the protocol as the field of an Outbound spells it.
func (g *greeting) word() string {
	switch g.protocol {
	case sniff.TLS:
		return "tls"
	case sniff.HTTP:
		return "http"
	}
	return "tcp"
}

// readFirstBytes reads the first bytes of a client, and the name in them.
func (f *flow) readFirstBytes(conn *guestConn) *greeting {
	g := new(greeting)
	patience := f.link.egress.sniffTimeout
	if !explains(f.dst) {
		patience = min(patience, silentFor)
	}
	g.protocol, g.read, g.err = f.guess(conn, patience)
	switch {
	case g.err != nil:
	case g.protocol == sniff.TLS:
		hello, raw, err := f.hello(conn, g.read)
		if g.read = raw; err != nil {
			break
		}
		if name, err := policy.CleanName(hello.ServerName); err == nil {
			g.name = name
		}
	case g.protocol == sniff.HTTP:
		g.name, g.read = f.host(conn, g.read)
	}
	return g
}

// offer offers an accepted connection to the handler. If the handler passes it, the
// policy's decision d applies.
func (f *flow) offer(conn *guestConn, d policy.Decision) {
	l := f.link
	g := f.readFirstBytes(conn)
	if g.err != nil && !isTimeout(g.err) {
		f.denied(policy.Decision{Rule: ruleHandled, Reason: "the client left before it said whom it wants"})
		return
	}
	f.learn(func(k *facts) { k.name = g.name })
	p := l.policy.Load()
	covered := p.HandlesAll() || g.name != "" && p.HandlesName(g.name)
	if !covered {
		f.unhandled(conn, g, d)
		return
	}
	if conn.SetReadDeadline(time.Time{}) != nil {
		return
	}
	h := l.handler.Load()
	if h == nil {
		f.denied(policy.Decision{Rule: ruleHandled, Reason: "the network policy has an egress handler decide about it, and none is connected"})
		reset(conn)
		return
	}
	o := sandbox.Outbound{Protocol: g.word(), Name: g.name, Address: f.dst.String(), Allowed: f.mayPass(p, g, d)}
	answer, err := (*h)(f.ctx, o)
	switch {
	case err != nil:
		f.denied(policy.Decision{Rule: ruleHandled, Reason: "the egress handler did not decide about it: " + err.Error()})
		reset(conn)
	case answer.As == sandbox.HandlePass:
		f.unhandled(conn, g, d)
	case answer.As == sandbox.HandleRaw || answer.As == sandbox.HandlePlain:
		f.handOver(conn, g, answer)
	default:
		f.denied(policy.Decision{Rule: ruleRefused, Reason: "the egress handler refuses it"})
		reset(conn)
	}
}

// mayPass reports whether the policy would let a connection pass.
func (f *flow) mayPass(p *policy.Policy, g *greeting, d policy.Decision) bool {
	switch {
	case d.Verdict == policy.Deny:
		return false
	case g.name == "":
		return d.Verdict == policy.Allow
	case d.Verdict == policy.Allow:
		return true
	}
	byName, _ := p.Name(g.name, f.dst.Port())
	return byName.Verdict == policy.Allow
}

// unhandled applies the policy to a connection that was partly read.
func (f *flow) unhandled(conn *guestConn, g *greeting, d policy.Decision) {
	switch {
	case d.Verdict == policy.Deny && g.err == nil && explains(f.dst) && !f.link.silent():
		f.refuse(conn, g.read, d)
	case d.Verdict == policy.Deny:
		f.denied(d)
		reset(conn)
	case d.Verdict == policy.Allow && !f.link.byName(f.dst):
		f.nameless(conn, g.read, "%s", "its address is allowed no more")
	case isTimeout(g.err) && len(g.read) == 0:
		f.inspect(conn)
	default:
		f.inspectAs(conn, g.protocol, g.read, g.err)
	}
}

// handOver passes a connection to the handler, and returns when the connection has ended.
func (f *flow) handOver(conn *guestConn, g *greeting, to machine.OutboundAnswer) {
	if d := f.learn(func(k *facts) { k.stage = handed }); d.Verdict != policy.Allow {
		f.denied(d)
		reset(conn)
		to.Take(nil)
		return
	}
	var c net.Conn = &metered{Conn: replay(conn, g.read), flow: f}
	if to.As == sandbox.HandlePlain {
		proxy := f.link.egress.cfg.Proxy
		if proxy == nil || g.protocol != sniff.TLS || g.name == "" {
			f.fails(ruleHandled, "the egress handler asked for TLS to be opened, which cannot be done for this connection")
			reset(conn)
			to.Take(nil)
			return
		}
		opened, err := proxy.Open(f.ctx, c, g.name)
		if err != nil {
			f.fails(ruleHandled, "the TLS handshake with the sandbox failed: "+err.Error())
			reset(conn)
			to.Take(nil)
			return
		}
		c = opened
	}
	f.opens(ruleHandled)
	held := &heldConn{Conn: c, closed: make(chan struct{})}
	defer context.AfterFunc(f.ctx, held.release)()
	to.Take(held)
	<-held.closed
}

// heldConn is a guest's connection that a handler serves.
type heldConn struct {
	net.Conn
	closed chan struct{}
	once   sync.Once
}

// Close implements net.Conn.
func (c *heldConn) Close() error {
	err := c.Conn.Close()
	c.release()
	return err
}

// CloseWrite half-closes the connection, if it can.
func (c *heldConn) CloseWrite() error { return closeWrite(c.Conn) }

func (c *heldConn) release() { c.once.Do(func() { close(c.closed) }) }
