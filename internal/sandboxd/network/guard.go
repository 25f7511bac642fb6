package network

import (
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/nested"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// guard stands between the link and our stack and lets through only what a
// guest has reason to send: whole IPv4 packets without options, TCP or UDP,
// from its own address. ICMP, other protocols, fragments, IPv6 and forged
// sources end here, before anything parses them further.
type guard struct {
	nested.Endpoint
}

func newGuard(child stack.LinkEndpoint) *guard {
	g := &guard{}
	g.Endpoint.Init(child, g)
	return g
}

// DeliverNetworkPacket implements stack.NetworkDispatcher.
func (g *guard) DeliverNetworkPacket(_ tcpip.NetworkProtocolNumber, pkt *stack.PacketBuffer) {
	h, ok := pkt.Data().PullUp(header.IPv4MinimumSize)
	if !ok || !welcome(header.IPv4(h)) {
		return
	}
	g.Endpoint.DeliverNetworkPacket(header.IPv4ProtocolNumber, pkt)
}

// welcome judges the first 20 bytes of a packet.
func welcome(ip header.IPv4) bool {
	const versionAndLength = 4<<4 | header.IPv4MinimumSize/4
	if ip[0] != versionAndLength {
		return false
	}
	if ip.More() || ip.FragmentOffset() != 0 {
		return false
	}
	if ip.SourceAddress() != guestAddress {
		return false
	}
	p := ip.TransportProtocol()
	return p == header.TCPProtocolNumber || p == header.UDPProtocolNumber
}

var guestAddress = tcpip.AddrFrom4(GuestAddr.As4())
