package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/cayhq/cay/internal/sandboxd/network/policy"
	"github.com/cayhq/cay/sandbox"
)

func endpointAddr(id stack.TransportEndpointID) netip.AddrPort {
	addr, _ := netip.AddrFromSlice(id.LocalAddress.AsSlice()) // the guest's packet said "local" for the destination
	return netip.AddrPortFrom(addr, id.LocalPort)
}

// handleTCP decides a connection attempt of the guest and returns at the end of the
// connection. It runs in a goroutine of its own.
func (l *Link) handleTCP(r *tcp.ForwarderRequest) {
	dst := endpointAddr(r.ID())
	if dst == netip.AddrPortFrom(GatewayAddr, ReadyPort) {
		l.readyOnce.Do(func() { close(l.ready) })
		r.Complete(true)
		return
	}
	protocol, dns := "tcp", dst.Port() == dnsPort // the daemon resolves names, whichever name server the guest asks
	if dns {
		protocol = "dns"
	}
	d := inFavour
	if !dns {
		d = l.byAddress(l.policy.Load(), dst)
	}
	offered := !dns && l.handles(dst)
	if d.Verdict == policy.Deny && !offered && (l.silent() || !explains(dst)) {
		l.deny(protocol, dst, "", d)
		r.Complete(true)
		return
	}
	l.share.makeRoom(connectionFloor)
	f := l.admit(protocol, dst)
	if f == nil {
		r.Complete(true)
		return
	}
	defer f.leave()
	if d.Verdict == policy.Allow && !dns && !offered && !l.byName(dst) {
		f.direct(r)
		return
	}
	conn := f.accept(r)
	switch {
	case conn == nil:
	case dns:
		f.serveDNSStream(conn)
	case offered:
		f.offer(conn, d)
	case d.Verdict == policy.Deny:
		f.explain(conn, d)
	default:
		f.inspect(conn)
	}
}

// explains reports whether a denied connection is accepted all the same, to tell the
// client why: the protocols of the web's ports can carry the reason.
func explains(dst netip.AddrPort) bool { return dst.Port() == 80 || dst.Port() == 443 }

// silent reports whether the policy denies everything. Then a denied connection is only
// refused, also for web clients: a program that gets any answer, even a refusal, assumes
// that it is online.
func (l *Link) silent() bool { return l.policy.Load().Mode() == sandbox.DenyAll }

// byName reports whether flows to dst are read for their name although their address is
// allowed: the host's proxy may need the name, and resolve more names than the daemon.
func (l *Link) byName(dst netip.AddrPort) bool {
	return l.egress.upstream != nil && l.policy.Load().Mode() == sandbox.AllowAll && (dst.Port() == 80 || dst.Port() == 443)
}

// accept completes the handshake with the guest. It returns nil if the guest does not
// complete it, or the flow has ended.
func (f *flow) accept(r *tcp.ForwarderRequest) *guestConn {
	var wq waiter.Queue
	ep, err := r.CreateEndpoint(&wq)
	if err != nil {
		f.link.log.Debug("guest does not complete a connection", "destination", f.dst, "error", err)
		r.Complete(true)
		return nil
	}
	r.Complete(false)
	ep.SocketOptions().SetDelayOption(false)
	conn := newGuestConn(&wq, ep)
	conn.bind(f.link.share)
	f.guest = conn
	if !f.own(conn) {
		return nil
	}
	return conn
}

// direct dials the guest's destination, and accepts the guest's connection when dialling
// has succeeded, so that the guest sees the same result as without the daemon.
func (f *flow) direct(r *tcp.ForwarderRequest) {
	out, rule := f.dialDirect()
	if out == nil {
		r.Complete(true)
		return
	}
	conn := f.accept(r)
	if conn == nil {
		return
	}
	f.opens(rule)
	f.splice(conn, out, nil)
}

// dialDirect returns nil, and has recorded the reason, if dialling failed.
func (f *flow) dialDirect() (net.Conn, string) {
	d := f.learn(func(k *facts) { k.stage, k.dialled = addressed, f.dst })
	if d.Verdict != policy.Allow {
		f.denied(d)
		return nil, ""
	}
	out, err := f.link.dialDirect(f.ctx, f.dst)
	if err != nil {
		f.fails(d.Rule, dialReason(f.dst.String(), err))
		return nil, ""
	}
	if !f.own(out) {
		return nil, ""
	}
	return out, d.Rule
}

// dialReason says for people why a destination was not connected to.
func dialReason(what string, err error) string {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Sprintf("%s did not answer in %s", what, dialTimeout)
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil && op.Op == "dial" {
		err = op.Err
	}
	return fmt.Sprintf("no connection to %s: %v", what, err)
}

// byAddressAlone dials by address a connection in which inspect found no name, if the
// policy allows the address; otherwise it denies the flow with why. It returns false,
// with the reason recorded, if nothing was relayed.
func (f *flow) byAddressAlone(conn *guestConn, first []byte, why policy.Decision) bool {
	l := f.link
	if f.dst.Addr() == Placeholder || l.byAddress(l.policy.Load(), f.dst).Verdict != policy.Allow {
		f.denied(why)
		return false
	}
	out, rule := f.dialDirect()
	if out == nil {
		return false
	}
	f.opens(rule)
	f.splice(conn, out, first)
	return true
}

// passOn dials the name and relays the bytes, unread except for first. For PostgreSQL it
// first asks the server for TLS, as the guest has asked us.
func (f *flow) passOn(conn *guestConn, first []byte, name string, postgres bool) {
	d := f.learn(func(k *facts) { k.stage, k.name = named, name })
	if d.Verdict != policy.Allow {
		f.refuse(conn, first, d)
		return
	}
	out, err := f.link.dialName(f.ctx, target{
		name: name, port: f.dst.Port(), prefer: f.dst.Addr(),
		judge: func(addr netip.AddrPort) policy.Decision {
			return f.learn(func(k *facts) { k.dialled = addr })
		},
	})
	var denied *errDenied
	switch {
	case errors.As(err, &denied):
		f.refuse(conn, first, denied.Decision)
		return
	case err != nil:
		f.fails(d.Rule, dialReason(name, err))
		reset(conn)
		return
	case !f.own(out):
		return
	}
	if postgres {
		if err := askPostgres(out); err != nil {
			f.fails(d.Rule, err.Error())
			reset(conn)
			return
		}
	}
	f.opens(d.Rule)
	f.splice(conn, out, first)
}

// refuse records the reason, and tells a guest that has begun TLS or HTTP, unless the
// policy has become one that denies everything.
func (f *flow) refuse(conn *guestConn, first []byte, d policy.Decision) {
	if f.link.silent() {
		f.denied(d)
		reset(conn)
		return
	}
	if f.protocol() == "http" {
		f.serve(conn, first, "", &d) // each request is recorded with the refusal
		return
	}
	f.denied(d)
	farewell(conn, alertAccessDenied)
}

// alertAccessDenied is a fatal TLS alert, the same in all versions of TLS.
var alertAccessDenied = []byte{21, 3, 3, 0, 2, 2, 49}

const (
	farewellTime  = 2 * time.Second
	farewellBytes = 64 << 10
)

// farewell sends the last bytes of a connection and waits for the guest to take them. It
// reads what the guest still sends, because unread bytes would reset the connection and
// lose the last bytes.
func farewell(conn *guestConn, words []byte) {
	if conn.SetDeadline(time.Now().Add(farewellTime)) != nil {
		return
	}
	if _, err := conn.Write(words); err != nil {
		return
	}
	if conn.CloseWrite() != nil {
		return
	}
	// However it ends, the connection is closed.
	_, _ = io.CopyN(io.Discard, conn, farewellBytes)
}
