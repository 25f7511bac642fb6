package network

import (
	"net/netip"
	"slices"
)

// blocked are the destinations that no guest reaches under any policy, unless the
// operator allows a range in EgressConfig.AllowRanges: everything that is not the public
// internet. Sources: the IANA special-purpose address registries, and the metadata
// addresses of cloud providers that lie outside of them.
var blocked = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),        // this network
	netip.MustParsePrefix("10.0.0.0/8"),       // private
	netip.MustParsePrefix("100.64.0.0/10"),    // shared (CGNAT), 100.100.100.200 metadata, our own link
	netip.MustParsePrefix("127.0.0.0/8"),      // loopback
	netip.MustParsePrefix("169.254.0.0/16"),   // link-local, 169.254.169.254 metadata
	netip.MustParsePrefix("172.16.0.0/12"),    // private
	netip.MustParsePrefix("192.0.0.0/24"),     // protocol assignments
	netip.MustParsePrefix("192.0.2.0/24"),     // documentation
	netip.MustParsePrefix("192.88.99.0/24"),   // 6to4 relays
	netip.MustParsePrefix("192.168.0.0/16"),   // private
	netip.MustParsePrefix("198.18.0.0/15"),    // benchmarking; see placeholder
	netip.MustParsePrefix("198.51.100.0/24"),  // documentation
	netip.MustParsePrefix("203.0.113.0/24"),   // documentation
	netip.MustParsePrefix("224.0.0.0/4"),      // multicast
	netip.MustParsePrefix("240.0.0.0/4"),      // reserved, broadcast
	netip.MustParsePrefix("168.63.129.16/32"), // Azure's host
}

// globalUnicast6 is the only IPv6 space in public use; blocked6 are the ranges within it
// that embed or serve other networks. All other ranges (::, ::1, mapped, NAT64, ULA,
// link-local, multicast) are outside globalUnicast6.
var (
	globalUnicast6 = netip.MustParsePrefix("2000::/3")
	blocked6       = []netip.Prefix{
		netip.MustParsePrefix("2001::/23"),     // protocol assignments, Teredo
		netip.MustParsePrefix("2001:db8::/32"), // documentation
		netip.MustParsePrefix("2002::/16"),     // 6to4
		netip.MustParsePrefix("3fff::/20"),     // documentation
	}
)

// mailPorts are ports of the public internet that guests do not need: by sending mail
// directly, a stolen sandbox becomes a spam source.
var mailPorts = []uint16{25, 465, 587}

// Public reports whether ip is an address of the public internet, which guests may reach.
// IPv4 addresses mapped into IPv6 are judged as IPv4.
func Public(ip netip.Addr) bool { return blockedAs(ip) == "" }

// blockedAs returns the range that blocks ip for guests, "" if ip is an address of the
// public internet.
func blockedAs(ip netip.Addr) string {
	if !ip.IsValid() || ip.Zone() != "" {
		return "no address"
	}
	ip = ip.Unmap()
	ranges := blocked
	if ip.Is6() {
		if !globalUnicast6.Contains(ip) {
			return "outside " + globalUnicast6.String()
		}
		ranges = blocked6
	}
	if i := slices.IndexFunc(ranges, func(p netip.Prefix) bool { return p.Contains(ip) }); i >= 0 {
		return ranges[i].String()
	}
	return ""
}
