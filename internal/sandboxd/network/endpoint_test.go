package network

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

func packet(change func(header.IPv4)) header.IPv4 {
	ip := header.IPv4(make([]byte, 60))
	ip.Encode(&header.IPv4Fields{
		TotalLength: 60, TTL: 64, Protocol: uint8(header.TCPProtocolNumber),
		SrcAddr: guestAddress, DstAddr: tcpip.AddrFrom4([4]byte{8, 8, 8, 8}),
	})
	if change != nil {
		change(ip)
	}
	return ip
}

func TestWelcome(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(header.IPv4)
		want   bool
	}{
		{"TCP", nil, true},
		{"UDP", func(p header.IPv4) { p[9] = 17 }, true},
		{"ICMP", func(p header.IPv4) { p[9] = 1 }, false},
		{"GRE", func(p header.IPv4) { p[9] = 47 }, false},
		{"IPv6 in IPv4", func(p header.IPv4) { p[9] = 41 }, false},
		{"IPv6", func(p header.IPv4) { p[0] = 0x60 }, false},
		{"options", func(p header.IPv4) { p[0] = 0x46 }, false},
		{"first fragment", func(p header.IPv4) { p.SetFlagsFragmentOffset(header.IPv4FlagMoreFragments, 0) }, false},
		{"later fragment", func(p header.IPv4) { p.SetFlagsFragmentOffset(0, 8) }, false},
		{"forged source", func(p header.IPv4) { p.SetSourceAddress(tcpip.AddrFrom4([4]byte{100, 64, 0, 6})) }, false},
		{"gateway's source", func(p header.IPv4) { p.SetSourceAddress(tcpip.AddrFrom4(GatewayAddr.As4())) }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := welcome(packet(tt.change)); got != tt.want {
				t.Errorf("welcome = %t, want %t", got, tt.want)
			}
		})
	}
}

func TestPublic(t *testing.T) {
	for addr, want := range map[string]bool{
		"8.8.8.8": true, "1.1.1.1": true, "172.32.0.1": true, "100.128.0.1": true, "2606:4700:4700::1111": true,
		"0.0.0.0": false, "10.1.2.3": false, "100.64.0.1": false, "100.100.100.200": false, "127.0.0.1": false,
		"127.255.255.254": false, "169.254.169.254": false, "172.16.0.1": false, "172.31.255.255": false,
		"192.0.0.170": false, "192.0.2.1": false, "192.168.1.1": false, "198.19.0.1": false, "203.0.113.9": false,
		"224.0.0.251": false, "239.255.255.250": false, "240.0.0.1": false, "255.255.255.255": false, "168.63.129.16": false,
		"::": false, "::1": false, "::ffff:127.0.0.1": false, "::ffff:8.8.8.8": true, "64:ff9b::7f00:1": false,
		"fd00:ec2::254": false, "fc00::1": false, "fe80::1": false, "fe80::1%eth0": false, "ff02::1": false,
		"2001::1": false, "2001:db8::1": false, "2002:7f00:1::": false, "3fff::1": false,
	} {
		if got := Public(netip.MustParseAddr(addr)); got != want {
			t.Errorf("Public(%s) = %t, want %t", addr, got, want)
		}
	}
	if Public(netip.Addr{}) {
		t.Error("Public(zero address) = true")
	}
}

// A guest that does not read delays a packet for a moment, not for ever, and gets packets
// again when it reads.
func TestEndpoint_FullPeer(t *testing.T) {
	ours, guests, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(guests)
	e, err := newEndpoint(ours)
	if err != nil {
		t.Fatal(err)
	}
	defer e.release()
	send := func() {
		t.Helper()
		pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(make([]byte, MTU))})
		defer pkt.DecRef()
		var list stack.PacketBufferList
		list.PushBack(pkt)
		if n, err := e.WritePackets(list); n != 1 || err != nil {
			t.Fatalf("WritePackets = %d, %v", n, err)
		}
	}
	for range 2 * socketBuffer / MTU { // twice the size of the buffer
		send()
	}
	received := 0
	buf := make([]byte, MTU)
	drain := func() {
		for {
			if _, _, err := unix.Recvfrom(guests, buf, unix.MSG_DONTWAIT); err != nil {
				return
			}
			received++
		}
	}
	drain()
	if received == 0 || received >= 2*socketBuffer/MTU {
		t.Fatalf("%d packets arrived of %d", received, 2*socketBuffer/MTU)
	}
	before := received
	send()
	if drain(); received != before+1 {
		t.Error("a packet sent when there was room again did not arrive")
	}
}

// Concurrent calls wait for room as long as a single call would, so that a guest that
// does not read blocks no call for ever.
func TestEndpoint_FullPeer_together(t *testing.T) {
	ours, guests, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(guests)
	e, err := newEndpoint(ours)
	if err != nil {
		t.Fatal(err)
	}
	const callers, packets = 64, 40
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(make([]byte, MTU))})
			defer pkt.DecRef()
			var list stack.PacketBufferList
			list.PushBack(pkt)
			for range packets {
				if n, err := e.WritePackets(list); n != 1 || err != nil {
					t.Errorf("WritePackets = %d, %v", n, err)
				}
			}
		})
	}
	ended := make(chan struct{})
	go func() {
		wg.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("calls wait for ever")
		_ = unix.Shutdown(guests, unix.SHUT_RDWR) // ends them
		<-ended
		return
	}
	if err := e.release(); err != nil {
		t.Error(err)
	}
}
