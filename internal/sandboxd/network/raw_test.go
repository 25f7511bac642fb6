package network

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/cayhq/cay/internal/seedtest"
	"github.com/cayhq/cay/sandbox"
)

// Root in a guest writes any bytes to its link, by raw sockets and packet sockets. rawFrame
// returns the frame of a connection attempt or a datagram, for the most part broken in one
// way or another: false sources, fragments, options, other protocols, false lengths, garbage.
func rawFrame(r *rand.Rand) []byte {
	if r.IntN(8) == 0 {
		b := make([]byte, r.IntN(200))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		if len(b) > 0 && r.IntN(2) == 0 {
			b[0] = 0x45
		}
		return b
	}
	pick := func(addrs ...string) tcpip.Address {
		return tcpip.AddrFrom4(netip.MustParseAddr(addrs[r.IntN(len(addrs))]).As4())
	}
	src := guestAddress
	if r.IntN(2) == 0 {
		src = pick("100.64.0.1", "100.64.0.6", "127.0.0.1", "10.0.0.1", "93.1.0.1", "172.17.0.2", "0.0.0.0", "255.255.255.255")
	}
	dst := pick("93.1.0.1", "93.2.0.1", "100.64.0.1", "127.0.0.1", "10.0.0.1", "169.254.169.254", "100.64.0.2", "224.0.0.1", "255.255.255.255")
	ports := []uint16{1, 53, 80, 443, 8443, uint16(r.Uint32())}
	sport, dport := uint16(1024+r.IntN(60000)), ports[r.IntN(len(ports))]
	payload := make([]byte, r.IntN(64))
	var transport []byte
	protocol := header.TCPProtocolNumber
	if r.IntN(2) == 0 {
		protocol = header.UDPProtocolNumber
		transport = make([]byte, header.UDPMinimumSize)
		header.UDP(transport).Encode(&header.UDPFields{SrcPort: sport, DstPort: dport, Length: uint16(header.UDPMinimumSize + len(payload))})
		xsum := header.PseudoHeaderChecksum(protocol, src, dst, uint16(header.UDPMinimumSize+len(payload)))
		header.UDP(transport).SetChecksum(^header.UDP(transport).CalculateChecksum(checksum.Checksum(payload, xsum)))
	} else {
		flags := []header.TCPFlags{header.TCPFlagSyn, header.TCPFlagSyn, header.TCPFlagAck, header.TCPFlagRst, header.TCPFlagSyn | header.TCPFlagFin, header.TCPFlags(r.Uint32())}
		transport = make([]byte, header.TCPMinimumSize)
		header.TCP(transport).Encode(&header.TCPFields{
			SrcPort: sport, DstPort: dport, SeqNum: r.Uint32(), AckNum: r.Uint32(), DataOffset: header.TCPMinimumSize,
			Flags: flags[r.IntN(len(flags))], WindowSize: 65535,
		})
		xsum := header.PseudoHeaderChecksum(protocol, src, dst, uint16(header.TCPMinimumSize+len(payload)))
		header.TCP(transport).SetChecksum(^header.TCP(transport).CalculateChecksum(checksum.Checksum(payload, xsum)))
	}
	ip := make([]byte, header.IPv4MinimumSize)
	frame := slices.Concat(ip, transport, payload)
	h := header.IPv4(frame)
	h.Encode(&header.IPv4Fields{TotalLength: uint16(len(frame)), ID: uint16(r.Uint32()), TTL: 64, Protocol: uint8(protocol), SrcAddr: src, DstAddr: dst})
	switch r.IntN(12) {
	case 0:
		h.SetFlagsFragmentOffset(header.IPv4FlagMoreFragments, uint16(8*r.IntN(4)))
	case 1:
		h.SetFlagsFragmentOffset(0, uint16(8+8*r.IntN(1000)))
	case 2:
		h[9] = byte(r.Uint32()) // another protocol
	case 3:
		h[0] = 0x40 | byte(r.IntN(16)) // options, or too short a header
	case 4:
		h[0] = 0x65 // IPv6
	case 5:
		h.SetTotalLength(uint16(r.Uint32()))
	case 6:
		frame = frame[:r.IntN(len(frame)+1)]
	case 7:
		frame[r.IntN(len(frame))] ^= 1 << r.IntN(8)
	}
	if len(frame) >= header.IPv4MinimumSize && r.IntN(4) > 0 {
		h = header.IPv4(frame)
		h.SetChecksum(0)
		h.SetChecksum(^checksum.Checksum(frame[:min(len(frame), 4*int(frame[0]&15))], 0))
	}
	return frame
}

// passes is an independent statement of what the reader lets through.
func passes(frame []byte) bool {
	return len(frame) >= 20 && frame[0] == 0x45 && // IPv4 without options
		frame[6]&0x3f == 0 && frame[7] == 0 && // no fragment
		(frame[9] == 6 || frame[9] == 17) && // TCP or UDP
		bytes.Equal(frame[12:16], []byte{100, 64, 0, 2}) // from the guest
}

// delivered collects the packets that a reader passes on, until last.
type delivered struct {
	packets [][]byte
	last    []byte
	over    chan struct{} // closed at last
}

func (d *delivered) DeliverNetworkPacket(_ tcpip.NetworkProtocolNumber, pkt *stack.PacketBuffer) {
	d.packets = append(d.packets, slices.Concat(pkt.AsSlices()...))
	if bytes.Equal(d.packets[len(d.packets)-1], d.last) {
		close(d.over)
	}
}

func (d *delivered) DeliverLinkPacket(tcpip.NetworkProtocolNumber, *stack.PacketBuffer) {}

// sendRaw writes a frame to the guest's end of a link, as soon as there is room.
func sendRaw(t *testing.T, guests int, frame []byte) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; runtime.Gosched() {
		err := unix.Send(guests, frame, unix.MSG_DONTWAIT)
		if err == nil {
			return
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EINTR) || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// The reader passes on exactly the packets that a guest has reason to send, unchanged.
func TestEndpoint_RawFrames(t *testing.T) {
	r := seedtest.Rand(t)
	ours, guests, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(guests)
	e, err := newEndpoint(ours)
	if err != nil {
		t.Fatal(err)
	}
	got := delivered{last: packet(nil), over: make(chan struct{})}
	e.Attach(&got)
	var want [][]byte
	for range seedtest.Rounds(t, 20_000) {
		frame := rawFrame(r)
		sendRaw(t, guests, frame)
		if passes(frame) {
			want = append(want, frame)
		}
	}
	sendRaw(t, guests, got.last)
	want = append(want, got.last)
	select {
	case <-got.over:
	case <-time.After(patience):
		t.Error("the reader reads no more")
	}
	e.Attach(nil)
	e.stop()
	if err := e.release(); err != nil {
		t.Error(err)
	}
	if !slices.EqualFunc(got.packets, want, bytes.Equal) {
		t.Errorf("%d packets were passed on, want %d", len(got.packets), len(want))
	}
	if len(want) < 100 {
		t.Errorf("only %d frames were to pass", len(want))
	}
}

// However a guest forges its frames, nothing is dialed that the policy denies.
func TestLink_RawFrames(t *testing.T) {
	allowed := netip.MustParseAddr("93.1.0.1")
	for _, n := range []sandbox.Network{
		{Mode: sandbox.DenyAll},
		{Mode: sandbox.Custom, AllowCIDRs: []string{allowed.String() + "/32"}},
		{Mode: sandbox.AllowAll},
	} {
		t.Run(string(n.Mode), func(t *testing.T) {
			r := seedtest.Rand(t)
			var (
				mu     sync.Mutex
				dialed = map[netip.Addr]int{}
			)
			e := openEgress(t, EgressConfig{DialContext: func(_ context.Context, network, addr string) (net.Conn, error) {
				ap, err := netip.ParseAddrPort(addr)
				if err != nil {
					t.Errorf("dialed %s %s", network, addr)
					return nil, err
				}
				mu.Lock()
				defer mu.Unlock()
				dialed[ap.Addr()]++
				return nil, unix.ECONNREFUSED
			}})
			ours, guests, err := Pair()
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(guests)
			l, err := e.NewLink(ours, "ses_test", n, nil)
			if err != nil {
				t.Fatal(err)
			}
			for range seedtest.Rounds(t, 5_000) {
				sendRaw(t, guests, rawFrame(r))
			}
			// When the signal of a guest arrives, all frames before have been judged.
			sendRaw(t, guests, readySYN())
			select {
			case <-l.Ready():
			case <-time.After(patience):
				t.Error("the link reads no more")
			}
			if err := l.Close(); err != nil { // waits for all flows
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			for addr := range dialed {
				switch {
				case n.Mode == sandbox.DenyAll, n.Mode == sandbox.Custom && addr != allowed, !Public(addr):
					t.Errorf("%s was dialed", addr)
				}
			}
			if n.Mode != sandbox.DenyAll && dialed[allowed] == 0 {
				t.Error("no frame reached even what is allowed")
			}
		})
	}
}

// readySYN is the connection attempt by which a guest says that it is ready.
func readySYN() []byte {
	frame := make([]byte, header.IPv4MinimumSize+header.TCPMinimumSize)
	gateway := tcpip.AddrFrom4(GatewayAddr.As4())
	h := header.IPv4(frame)
	h.Encode(&header.IPv4Fields{TotalLength: uint16(len(frame)), TTL: 64, Protocol: uint8(header.TCPProtocolNumber), SrcAddr: guestAddress, DstAddr: gateway})
	h.SetChecksum(^h.CalculateChecksum())
	tcp := header.TCP(frame[header.IPv4MinimumSize:])
	tcp.Encode(&header.TCPFields{SrcPort: 999, DstPort: ReadyPort, SeqNum: 1, DataOffset: header.TCPMinimumSize, Flags: header.TCPFlagSyn, WindowSize: 65535})
	tcp.SetChecksum(^tcp.CalculateChecksum(header.PseudoHeaderChecksum(header.TCPProtocolNumber, guestAddress, gateway, header.TCPMinimumSize)))
	return frame
}
