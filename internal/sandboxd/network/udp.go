package network

import (
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/cayhq/cay/internal/sandboxd/network/policy"
	"github.com/cayhq/cay/sandbox"
)

// handleUDP gets each datagram of the guest that belongs to no flow yet. The link's
// reader calls it, so it must not block. If it returns false, the guest gets "port
// unreachable" at once, and QUIC clients go on by TCP.
func (l *Link) handleUDP(id stack.TransportEndpointID, pkt *stack.PacketBuffer) (taken bool) {
	dst := endpointAddr(id)
	if dst.Port() == dnsPort {
		return l.handleQuery(id, pkt)
	}
	if d := l.byDatagram(l.policy.Load(), dst); d.Verdict != policy.Allow {
		if !l.records.repeated("udp " + dst.String()) {
			l.deny("udp", dst, "", d)
		}
		return false
	}
	f := l.admit("udp", dst)
	if f == nil {
		return false
	}
	var wq waiter.Queue
	clone := pkt.Clone()
	defer clone.DecRef()
	ep, err := udp.NewForwarderRequest(l.stack, id, clone).CreateEndpoint(&wq)
	if err != nil {
		f.leave()
		return false
	}
	in := gonet.NewUDPConn(&wq, ep)
	if !f.own(in) {
		f.leave()
		return false
	}
	go func() {
		defer f.leave()
		f.datagrams(in)
	}()
	return true
}

// byDatagram decides about a UDP flow, which never has a name.
func (l *Link) byDatagram(p *policy.Policy, dst netip.AddrPort) policy.Decision {
	d := l.byAddress(p, dst)
	if d.Verdict == policy.Deny {
		return d
	}
	if p.Mode() != sandbox.AllowAll || d.Verdict != policy.Allow {
		return policy.Decision{Rule: "udp", Reason: "UDP has no names to decide by, so that only DNS goes by it; programs that can use TCP will"}
	}
	return d
}

// datagrams relays both ways until no datagram has come for udpIdle.
func (f *flow) datagrams(guest *gonet.UDPConn) {
	d := f.learn(func(k *facts) { k.stage, k.dialled = addressed, f.dst })
	if d.Verdict != policy.Allow {
		f.denied(d)
		return
	}
	out, err := f.link.egress.cfg.DialContext(f.ctx, "udp", f.dst.String())
	if err != nil {
		f.fails(d.Rule, dialReason(f.dst.String(), err))
		return
	}
	if !f.own(out) {
		return
	}
	in, err := f.link.bindPackets(out)
	if err != nil {
		f.fails(d.Rule, dialReason(f.dst.String(), err))
		return
	}
	defer in.close()
	f.opens(d.Rule)
	pump := func(dst, src deadlineConn, w *window, d *direction, count func(int64) int64) {
		buf := datagrams.Get().(*[datagramBuffer]byte)
		defer datagrams.Put(buf)
		for {
			deadline := time.Now().Add(udpIdle)
			if src.SetReadDeadline(deadline) != nil || dst.SetReadDeadline(deadline) != nil {
				break
			}
			n, err := src.Read(buf[:])
			w.use(n)
			if err != nil || f.link.pass(f.ctx, d, n) != nil {
				break
			}
			count(int64(n))
			if _, err := dst.Write(buf[:n]); err != nil {
				break
			}
		}
		src.Close()
		dst.Close()
	}
	var wg sync.WaitGroup
	wg.Go(func() { pump(out, guest, nil, &f.link.meter.egress, f.egress.Add) })
	wg.Go(func() { pump(guest, out, in, &f.link.meter.ingress, f.ingress.Add) })
	wg.Wait()
}

const datagramBuffer = 64 << 10 // bytes; no datagram is larger

var datagrams = sync.Pool{New: func() any { return new([datagramBuffer]byte) }}

// bindPackets bounds the kernel's receive buffer of a UDP socket.
func (l *Link) bindPackets(conn net.Conn) (*window, error) {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return nil, nil
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	w := &window{
		share: l.share, least: leastPackets, most: mostPackets, parts: 1,
		resize: func(size int64) error {
			return control(raw, func(fd int) error {
				return setBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, int(size)/2)
			})
		},
		held: func() int64 { n, _ := heldBy(raw); return n },
	}
	return w, w.open()
}

// deadlineConn has the methods of a connection that relaying datagrams needs.
type deadlineConn interface {
	Read([]byte) (int, error)
	Write([]byte) (int, error)
	SetReadDeadline(time.Time) error
	Close() error
}

// handleQuery answers a DNS query that came as a datagram, from the address that the
// query was sent to. It keeps no flow: guests use a new port for each query.
func (l *Link) handleQuery(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
	if pkt.Data().Size() > maxQuery {
		return true
	}
	query := pkt.Data().AsRange().ToSlice()
	select {
	case l.queries <- struct{}{}:
	default:
		return true // as if lost; the guest asks again
	}
	l.mu.Lock()
	closed := l.closed
	if !closed {
		l.work.Add(1)
	}
	l.mu.Unlock()
	if closed {
		<-l.queries
		return true
	}
	go func() {
		defer l.work.Done()
		defer func() { <-l.queries }()
		if a := l.answer(l.ctx, endpointAddr(id), query, true); a != nil {
			l.reply(id, a)
		}
	}()
	return true
}

// reply sends a datagram in the other direction of id.
func (l *Link) reply(id stack.TransportEndpointID, payload []byte) {
	route, err := l.stack.FindRoute(nicID, id.LocalAddress, id.RemoteAddress, ipv4.ProtocolNumber, false)
	if err != nil {
		l.log.Debug("DNS answer has no way to the guest", "error", err)
		return
	}
	defer route.Release()
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{
		ReserveHeaderBytes: int(route.MaxHeaderLength()) + header.UDPMinimumSize,
		Payload:            buffer.MakeWithData(payload),
	})
	defer pkt.DecRef()
	// No checksum: see endpoint.Capabilities.
	header.UDP(pkt.TransportHeader().Push(header.UDPMinimumSize)).Encode(&header.UDPFields{
		SrcPort: id.LocalPort, DstPort: id.RemotePort, Length: uint16(header.UDPMinimumSize + len(payload)),
	})
	pkt.TransportProtocolNumber = udp.ProtocolNumber
	params := stack.NetworkHeaderParams{Protocol: udp.ProtocolNumber, TTL: route.DefaultTTL()}
	if err := route.WritePacket(params, pkt); err != nil {
		l.log.Debug("DNS answer is lost", "error", err)
	}
}
