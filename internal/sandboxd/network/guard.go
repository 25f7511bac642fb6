package network

import (
	"net/netip"
	"syscall"

	"github.com/cayhq/cay"
)

// Guard returns a net.Dialer.Control for connections that the daemon makes to addresses
// named by callers: it refuses the addresses that a guest could not reach either, except
// in the ranges that the operator allows. It judges the address of each connection after
// names are resolved, so it also applies to redirects and changing answers.
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
