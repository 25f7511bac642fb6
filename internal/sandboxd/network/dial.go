package network

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/miekg/dns"

	"github.com/cayhq/cay/internal/sandboxd/network/policy"
)

const (
	dialTimeout = 10 * time.Second // to a destination, all its addresses together
	dialAtLeast = 2 * time.Second  // for an address, if there are more
	maxAttempts = 4                // addresses of a name
)

// errDenied says that a destination is not to be reached.
type errDenied struct{ policy.Decision }

func (e *errDenied) Error() string { return e.Reason }

// target is a destination by name.
type target struct {
	name   string // clean, or an address
	port   uint16
	prefer netip.Addr // is tried first if the name has it
	// judge decides about each address of the name before it is dialled, and about the
	// zero AddrPort before the host's proxy is dialled.
	judge func(netip.AddrPort) policy.Decision
}

func (t *target) String() string { return net.JoinHostPort(t.name, strconv.Itoa(int(t.port))) }

// dialName connects to one of the name's addresses, which the daemon looks up itself; the
// guest's own lookup does not matter. Errors: *errDenied if all addresses are blocked.
func (l *Link) dialName(ctx context.Context, t target) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	proxy, err := l.egress.upstream.proxyFor(t.name, t.port)
	if err != nil {
		return nil, err
	}
	addrs, err := l.resolve(ctx, t.name)
	if err != nil && (proxy == nil || ctx.Err() != nil || !mayNameUnresolved(t.name)) {
		return nil, err
	}
	allowed, denied := l.screen(t, addrs)
	switch {
	case len(addrs) > 0 && (len(allowed) == 0 || proxy != nil && denied != nil):
		return nil, denied // the proxy would choose among the addresses, so all must be allowed
	case proxy != nil:
		if d := t.judge(netip.AddrPort{}); d.Verdict != policy.Allow {
			return nil, &errDenied{d}
		}
		return l.egress.upstream.connect(ctx, l.bind, proxy, t.String())
	}
	return l.dialEach(ctx, t, allowed)
}

// screen returns the addresses that may be dialled, and why the first of the other
// addresses may not.
func (l *Link) screen(t target, addrs []netip.Addr) (allowed []netip.Addr, denied *errDenied) {
	p := l.policy.Load()
	listed := true
	if _, err := netip.ParseAddr(t.name); err != nil {
		d, _ := p.Name(t.name, t.port)
		listed = d.PortListed
	}
	for _, ip := range addrs {
		d := l.byResolved(p, netip.AddrPortFrom(ip, t.port), listed)
		if d.Verdict == policy.Allow {
			allowed = append(allowed, ip)
		} else if denied == nil {
			if t.name != ip.String() {
				d.Reason = fmt.Sprintf("%q resolves to a blocked address: %s", t.name, d.Reason)
			}
			denied = &errDenied{d}
		}
	}
	if i := slices.Index(allowed, t.prefer); i > 0 {
		allowed[0], allowed[i] = allowed[i], allowed[0]
	}
	return allowed, denied
}

func (l *Link) dialEach(ctx context.Context, t target, addrs []netip.Addr) (conn net.Conn, err error) {
	addrs = addrs[:min(len(addrs), maxAttempts)]
	for i, ip := range addrs {
		dst := netip.AddrPortFrom(ip, t.port)
		if d := t.judge(dst); d.Verdict != policy.Allow {
			return nil, &errDenied{d}
		}
		if conn, err = l.dialAddr(ctx, dst, len(addrs)-i); err == nil {
			return conn, nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, err
}

// dialAddr connects to one address. If left addresses are still to be tried, it uses only
// its part of the remaining time.
func (l *Link) dialAddr(ctx context.Context, dst netip.AddrPort, left int) (net.Conn, error) {
	if deadline, ok := ctx.Deadline(); ok && left > 1 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, max(time.Until(deadline)/time.Duration(left), dialAtLeast))
		defer cancel()
	}
	return l.dial(ctx, dst.String())
}

// dialDirect connects a flow to the address the guest dialled.
func (l *Link) dialDirect(ctx context.Context, dst netip.AddrPort) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	// Proxies are used for the ports of the web only.
	if dst.Port() == 80 || dst.Port() == 443 {
		proxy, err := l.egress.upstream.proxyFor(dst.Addr().String(), dst.Port())
		if err != nil {
			return nil, err
		}
		if proxy != nil {
			return l.egress.upstream.connect(ctx, l.bind, proxy, dst.String())
		}
	}
	return l.dialAddr(ctx, dst, 1)
}

// resolve returns the addresses of a name, which may itself be an address. It returns at
// least one address, or an error.
func (l *Link) resolve(ctx context.Context, name string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(name); err == nil {
		return []netip.Addr{ip.Unmap()}, nil
	}
	a, err := l.lookup(ctx, name)
	switch {
	case err != nil:
		return nil, err
	case a.rcode == dns.RcodeNameError:
		return nil, fmt.Errorf("the name %q does not exist", name)
	case len(a.addrs) == 0:
		return nil, fmt.Errorf("the name %q has no IPv4 address", name)
	}
	return a.addrs, nil
}
