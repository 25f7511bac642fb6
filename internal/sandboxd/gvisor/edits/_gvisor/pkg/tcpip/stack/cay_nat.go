package stack

// handlePacket performs NAT on a packet unless it was performed already: iptables' legacy tables
// and nftables both see each packet, and the first one that performs NAT decides, as on Linux.
func handlePacket(pkt *PacketBuffer, opts *handlePacketOpts) bool {
	if opts != nil && (opts.natType == DNAT && pkt.dnatDone || opts.natType == SNAT && pkt.snatDone) {
		return true
	}
	return performNAT(pkt, opts)
}
