package network

import (
	"net/netip"
	"syscall"

	"github.com/cayhq/cay"
)

// Guard returns a net.Dialer.Control for connections the daemon makes to
// addresses that callers name: it refuses what a guest could not reach either,
// except in the ranges the operator allows. It judges addresses, after names
// were resolved and for each connection, so redirects and changing answers meet
// it too.
func Guard(allow []netip.Prefix) func(network, address string, _ syscall.RawConn) error {
	return func(_, address string, _ syscall.RawConn) error {
		dst, err := netip.ParseAddrPort(address)
		if err != nil {
			return cay.Errorf(cay.PermissionDenied, "address %q is not one of the internet", address)
		}
		ip := dst.Addr().Unmap()
		if host.outside(ip, allow) {
			return nil
		}
		return cay.Errorf(cay.PermissionDenied, "address %s is not on the public internet", ip).
			WithHint("the operator can allow its range with allow_ranges")
	}
}
