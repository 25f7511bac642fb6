package network

import (
	"errors"
	"net"
	"net/netip"
	"testing"
)

func TestHostAddrs(t *testing.T) {
	_, lan, _ := net.ParseCIDR("192.168.7.0/24")
	h := &hostAddrs{list: func() ([]net.Addr, error) {
		return []net.Addr{&net.IPNet{IP: net.ParseIP("8.8.4.4"), Mask: lan.Mask}, &net.IPNet{IP: net.ParseIP("2606:4700::7"), Mask: net.CIDRMask(64, 128)}}, nil
	}}
	allow := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2606:4700::/64")}
	for addr, want := range map[string]bool{
		"8.8.8.8":        true,
		"8.8.4.4":        false, // ours
		"::ffff:8.8.4.4": false,
		"2606:4700::7":   true, // ours, but in a range the operator allows
		"10.1.1.1":       true,
		"192.168.7.1":    false,
	} {
		if got := h.outside(netip.MustParseAddr(addr), allow); got != want {
			t.Errorf("outside(%s) = %t, want %t", addr, got, want)
		}
	}
	broken := &hostAddrs{list: func() ([]net.Addr, error) { return nil, errors.New("no") }}
	if broken.outside(netip.MustParseAddr("8.8.8.8"), nil) {
		t.Error("without knowing the host's addresses one was let through")
	}
}
