package policy

import (
	"encoding/binary"
	"net/netip"

	"github.com/cayhq/cay"
)

// ranges is a set of address ranges. IPv4 ranges are stored as numbers: scanning all of
// them is then faster than a lookup for each prefix length.
type ranges struct {
	v4 []range4
	v6 []range6
}

type range4 struct {
	network, mask uint32
	text          string
}

type range6 struct {
	prefix netip.Prefix
	text   string
}

func newRanges(texts []string) (ranges, error) {
	var s ranges
	for _, text := range texts {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			ip, err := netip.ParseAddr(text)
			if err != nil {
				return ranges{}, cay.Errorf(cay.Invalid, "%q is not an address range: %w", text, err)
			}
			prefix = netip.PrefixFrom(ip, ip.BitLen())
		}
		if !prefix.Addr().Is4() {
			s.v6 = append(s.v6, range6{prefix: prefix, text: text})
			continue
		}
		mask := ^uint32(0) << (32 - prefix.Bits()) // of 32 bits, nothing is left
		s.v4 = append(s.v4, range4{network: number(prefix.Addr()) & mask, mask: mask, text: text})
	}
	return s, nil
}

func (s *ranges) empty() bool { return len(s.v4) == 0 && len(s.v6) == 0 }

// find returns the first range that contains ip, as the user wrote it, or "".
func (s *ranges) find(ip netip.Addr) string {
	if ip.Is4() {
		n := number(ip)
		for i := range s.v4 {
			if n&s.v4[i].mask == s.v4[i].network {
				return s.v4[i].text
			}
		}
		return ""
	}
	for i := range s.v6 {
		if s.v6[i].prefix.Contains(ip) {
			return s.v6[i].text
		}
	}
	return ""
}

func number(ip netip.Addr) uint32 {
	b := ip.As4()
	return binary.BigEndian.Uint32(b[:])
}
