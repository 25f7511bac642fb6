package network

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// hostAddrs knows the addresses of this machine's interfaces: services of the host that
// listen on a public address do not belong to the public internet.
type hostAddrs struct {
	list func() ([]net.Addr, error)

	mu    sync.Mutex // guards what follows
	read  time.Time
	addrs []netip.Addr
}

// hostRefresh is how old a list of addresses may be.
const hostRefresh = 5 * time.Second

var host = &hostAddrs{list: net.InterfaceAddrs}

// has reports whether ip is an address of this machine. On an error, the caller must
// assume that it is.
func (h *hostAddrs) has(ip netip.Addr) (bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.read.IsZero() || time.Since(h.read) > hostRefresh {
		all, err := h.list()
		if err != nil {
			return true, fmt.Errorf("list the host's addresses: %w", err)
		}
		h.addrs = h.addrs[:0]
		for _, a := range all {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				h.addrs = append(h.addrs, p.Addr().Unmap())
			}
		}
		h.read = time.Now()
	}
	return slices.Contains(h.addrs, ip.Unmap()), nil
}

// outside reports whether an address may be reached at all; see why.
func (h *hostAddrs) outside(ip netip.Addr, allow []netip.Prefix) bool { return h.why(ip, allow) == "" }

// why returns the rule that blocks an address for all guests, as "blocked range
// 10.0.0.0/8". It is empty if the address is public and not this machine's own, or in one
// of the ranges that the operator allows.
func (h *hostAddrs) why(ip netip.Addr, allow []netip.Prefix) string {
	ip = ip.Unmap()
	if slices.ContainsFunc(allow, func(p netip.Prefix) bool { return p.Contains(ip) }) {
		return ""
	}
	if r := blockedAs(ip); r != "" {
		return "blocked range " + r
	}
	if own, err := h.has(ip); err != nil || own {
		return "blocked address of the host"
	}
	return ""
}
