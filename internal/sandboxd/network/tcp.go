package network

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/cayhq/cay/sandbox"
)

// flow is one connection of the guest to the outside.
type flow struct {
	dst    netip.AddrPort
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu    sync.Mutex // guards conns and done
	conns []net.Conn
	done  bool
}

func (l *Link) newFlow(dst netip.AddrPort) *flow {
	f := &flow{dst: dst}
	f.ctx, f.cancel = context.WithCancelCause(l.ctx)
	return f
}

// own makes conn end with the flow. It closes conn and returns false if the
// flow has ended already.
func (f *flow) own(conn net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.done {
		conn.Close()
		return false
	}
	f.conns = append(f.conns, conn)
	return true
}

func (f *flow) close(cause error) {
	f.cancel(cause)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.done = true
	for _, c := range f.conns {
		c.Close()
	}
	f.conns = nil
}

// permitted reports whether the guest may reach dst under today's policy.
func (l *Link) permitted(dst netip.AddrPort) bool {
	if l.policy.Load().Mode != sandbox.AllowAll {
		return false
	}
	if slices.Contains(blockedPorts, dst.Port()) && Public(dst.Addr()) {
		return false
	}
	return host.outside(dst.Addr(), l.cfg.AllowRanges)
}

func endpointAddr(id stack.TransportEndpointID) netip.AddrPort {
	addr, _ := netip.AddrFromSlice(id.LocalAddress.AsSlice()) // the guest's packet said "local" for the destination
	return netip.AddrPortFrom(addr, id.LocalPort)
}

// handleTCP decides one connection attempt of the guest. It runs in a goroutine
// of its own, of which the forwarder allows maxPending.
func (l *Link) handleTCP(r *tcp.ForwarderRequest) {
	dst := endpointAddr(r.ID())
	if dst.Addr() == GatewayAddr {
		l.handleGateway(r, dst.Port())
		return
	}
	if !l.permitted(dst) {
		l.log.Debug("connection refused", "destination", dst)
		r.Complete(true)
		return
	}
	f := l.newFlow(dst)
	if !l.track(f) {
		r.Complete(true)
		return
	}
	ctx, cancel := context.WithTimeout(f.ctx, dialTimeout)
	out, err := l.cfg.DialContext(ctx, "tcp", dst.String())
	cancel()
	if err != nil || !f.own(out) {
		l.log.Debug("connection failed", "destination", dst, "error", err)
		r.Complete(true)
		l.untrack(f)
		return
	}
	in, err := accept(r)
	if err != nil || !f.own(in) {
		l.untrack(f)
		return
	}
	// The forwarder's slot is for pending attempts only.
	go func() {
		defer l.untrack(f)
		l.relay(in, out)
	}()
}

// handleGateway serves the few ports of the gateway's own address.
func (l *Link) handleGateway(r *tcp.ForwarderRequest, port uint16) {
	switch port {
	case ReadyPort:
		l.readyOnce.Do(func() { close(l.ready) })
		r.Complete(true)
	case dnsPort:
		f := l.newFlow(netip.AddrPortFrom(GatewayAddr, dnsPort))
		if !l.track(f) {
			r.Complete(true)
			return
		}
		in, err := accept(r)
		if err != nil || !f.own(in) {
			l.untrack(f)
			return
		}
		go func() {
			defer l.untrack(f)
			l.serveDNSStream(f.ctx, in)
		}()
	default:
		r.Complete(true)
	}
}

// accept completes the handshake with the guest.
func accept(r *tcp.ForwarderRequest) (net.Conn, error) {
	var wq waiter.Queue
	ep, err := r.CreateEndpoint(&wq)
	if err != nil {
		r.Complete(true)
		return nil, errors.New(err.String())
	}
	r.Complete(false)
	ep.SocketOptions().SetDelayOption(false)
	return gonet.NewTCPConn(&wq, ep), nil
}

// relay copies both ways until both sides have ended, passing each side's end
// on as it comes.
func (l *Link) relay(guest, outside net.Conn) {
	var wg sync.WaitGroup
	wg.Go(func() { pump(outside, guest, &l.egress) })
	wg.Go(func() { pump(guest, outside, &l.ingress) })
	wg.Wait()
}

var buffers = sync.Pool{New: func() any { b := make([]byte, 128<<10); return &b }}

// pump copies src to dst, counts the bytes, and half-closes dst at the end; on
// a fault it closes both.
func pump(dst, src net.Conn, count *atomic.Int64) {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	for {
		n, err := src.Read(*buf)
		if n > 0 {
			if _, werr := dst.Write((*buf)[:n]); werr != nil {
				src.Close()
				dst.Close()
				return
			}
			count.Add(int64(n))
		}
		if errors.Is(err, io.EOF) {
			if half, ok := dst.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
				return
			}
		}
		if err != nil {
			src.Close()
			dst.Close()
			return
		}
	}
}

// handleUDP decides a new UDP flow, known by its first packet. It must not block.
func (l *Link) handleUDP(r *udp.ForwarderRequest) bool {
	dst := endpointAddr(r.ID())
	dns := dst.Addr() == GatewayAddr && dst.Port() == dnsPort
	if !dns && (dst.Addr() == GatewayAddr || dst.Port() == dnsPort || !l.permitted(dst)) {
		// DNS goes to our resolver only, so that names are seen and judged.
		l.log.Debug("datagram dropped", "destination", dst)
		return true
	}
	f := l.newFlow(dst)
	if !l.track(f) {
		return true
	}
	var wq waiter.Queue
	ep, err := r.CreateEndpoint(&wq)
	if err != nil {
		l.untrack(f)
		return true
	}
	in := gonet.NewUDPConn(&wq, ep)
	if !f.own(in) {
		l.untrack(f)
		return true
	}
	go func() {
		defer l.untrack(f)
		if dns {
			l.serveDNSPackets(f.ctx, in)
			return
		}
		ctx, cancel := context.WithTimeout(f.ctx, dialTimeout)
		out, err := l.cfg.DialContext(ctx, "udp", dst.String())
		cancel()
		if err != nil || !f.own(out) {
			return
		}
		l.relayDatagrams(in, out)
	}()
	return true
}

// relayDatagrams copies datagrams both ways until none has come for udpIdle.
func (l *Link) relayDatagrams(guest, outside net.Conn) {
	copyPackets := func(dst, src net.Conn, count *atomic.Int64) {
		buf := buffers.Get().(*[]byte)
		defer buffers.Put(buf)
		for {
			deadline := time.Now().Add(udpIdle)
			if src.SetReadDeadline(deadline) != nil || dst.SetReadDeadline(deadline) != nil {
				break
			}
			n, err := src.Read(*buf)
			if err != nil {
				break
			}
			if _, err := dst.Write((*buf)[:n]); err != nil {
				break
			}
			count.Add(int64(n))
		}
		src.Close()
		dst.Close()
	}
	var wg sync.WaitGroup
	wg.Go(func() { copyPackets(outside, guest, &l.egress) })
	wg.Go(func() { copyPackets(guest, outside, &l.ingress) })
	wg.Wait()
}
