package network

import (
	"math/rand/v2"
	"net/netip"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/cayhq/cay/internal/sandboxd/machine"
)

// Reset ends those of the guest's connections that our stack does not know, because it
// replaced another. A connection on which the guest sends is reset anyway, by its next
// packet. For one on which the guest only waits, Reset makes the guest send a packet: it
// sends a SYN in the peer's name, which a guest answers on an open connection with an
// acknowledgment, whatever the SYN's number (RFC 5961, section 4). The acknowledgment has
// the number that a reset must have. If our stack knows the connection, it ignores the
// acknowledgment.
func (l *Link) Reset(connections []machine.Connection) {
	var pkts stack.PacketBufferList
	defer pkts.Reset()
	for _, c := range connections {
		if c.Local.Addr() == GuestAddr && c.Remote.Addr().Is4() {
			pkts.PushBack(synFrom(c.Remote, c.Local))
		}
	}
	// A packet that is lost leaves a connection that hangs, as all did before.
	_, _ = l.endpoint.WritePackets(pkts)
}

// synFrom returns a packet that asks to begin a connection.
func synFrom(src, dst netip.AddrPort) *stack.PacketBuffer {
	const size = header.IPv4MinimumSize + header.TCPMinimumSize
	from, to := tcpip.AddrFrom4(src.Addr().As4()), tcpip.AddrFrom4(dst.Addr().As4())
	b := make([]byte, size)
	ip := header.IPv4(b)
	ip.Encode(&header.IPv4Fields{TotalLength: size, TTL: 64, Protocol: uint8(header.TCPProtocolNumber), SrcAddr: from, DstAddr: to})
	ip.SetChecksum(^ip.CalculateChecksum())
	tcp := header.TCP(b[header.IPv4MinimumSize:])
	tcp.Encode(&header.TCPFields{
		SrcPort: src.Port(), DstPort: dst.Port(), SeqNum: rand.Uint32(), DataOffset: header.TCPMinimumSize, Flags: header.TCPFlagSyn, WindowSize: 1,
	})
	sum := header.PseudoHeaderChecksum(header.TCPProtocolNumber, from, to, header.TCPMinimumSize)
	tcp.SetChecksum(^checksum.Checksum(tcp, sum))
	return stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(b)})
}
