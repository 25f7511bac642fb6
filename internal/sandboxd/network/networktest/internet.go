package networktest

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Internet is a simulated internet, with a record of the traffic in it. Its methods may
// be called concurrently.
type Internet struct {
	t          testing.TB
	nameserver string // host:port, for UDP and TCP

	wg sync.WaitGroup // of all servers

	mu         sync.Mutex // guards what follows
	closed     bool
	conns      map[net.Conn]struct{} // of the plain servers, to end them
	routes     map[route]string      // to the listeners on loopback
	names      map[string]answer
	permitted  []netip.Prefix
	dials      []Dial
	queries    []Query
	requests   []Request
	requested  chan struct{} // closed at the next request
	violations []string
}

type route struct {
	network string // tcp or udp
	addr    netip.AddrPort
}

// Dial is an attempt to connect.
type Dial struct {
	Network string // tcp or udp
	Address netip.AddrPort
}

func (d Dial) String() string { return d.Network + " " + d.Address.String() }

// Start starts an Internet that ends with the test. The test fails then if a non-public
// address was dialled.
func Start(t testing.TB) *Internet {
	t.Helper()
	n := &Internet{
		t: t, conns: map[net.Conn]struct{}{}, routes: map[route]string{}, names: map[string]answer{},
		requested: make(chan struct{}),
	}
	for name, to := range names {
		n.SetName(name, to...)
	}
	t.Cleanup(n.close)
	n.serveDNS()
	n.serveWorld()
	return n
}

func (n *Internet) close() {
	n.mu.Lock()
	n.closed = true
	for c := range n.conns {
		c.Close()
	}
	bad := n.violations
	n.mu.Unlock()
	n.wg.Wait()
	for _, v := range bad {
		n.t.Errorf("the internet was asked for what is none of it: %s", v)
	}
}

// Nameservers are the "host:port" of the DNS server.
func (n *Internet) Nameservers() []string { return []string{n.nameserver} }

// Permit allows dialling addresses in prefix, although they are not public.
func (n *Internet) Permit(prefix netip.Prefix) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.permitted = append(n.permitted, prefix)
}

// public is a short form of network.Public, which is the careful one.
func public(ip netip.Addr) bool {
	return ip.Is4() && !ip.IsPrivate() && ip.IsGlobalUnicast() && !ip.IsLinkLocalUnicast() && !ip.IsLoopback() &&
		!netip.MustParsePrefix("100.64.0.0/10").Contains(ip) && !netip.MustParsePrefix("168.63.129.16/32").Contains(ip)
}

// DialContext connects to the server that stands for address. An address without a server
// refuses. An address that is not public is a violation, and so is a name, because the
// code under test must resolve names before it decides about connections.
func (n *Internet) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	network = network[:min(3, len(network))] // tcp4, udp6
	dst, err := netip.ParseAddrPort(address)
	if err != nil {
		n.violate(fmt.Sprintf("dial %s %q, which is not an address", network, address))
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	n.mu.Lock()
	n.dials = append(n.dials, Dial{network, dst})
	ok := public(dst.Addr()) || slices.ContainsFunc(n.permitted, func(p netip.Prefix) bool { return p.Contains(dst.Addr()) })
	real, known := n.routes[route{network, dst}]
	n.mu.Unlock()
	if !ok {
		n.violate("dial " + network + " " + address)
	}
	if dst.Addr() == BlackHole {
		<-ctx.Done()
		return nil, &net.OpError{Op: "dial", Net: network, Addr: net.TCPAddrFromAddrPort(dst), Err: context.Cause(ctx)}
	}
	if !known {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: net.TCPAddrFromAddrPort(dst), Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	return new(net.Dialer).DialContext(ctx, network, real)
}

// violate records a violation that fails the test at its end. It does not fail the test
// at once, because the test's goroutine may be waiting for the code under test, and other
// goroutines must not fail the test after its end.
func (n *Internet) violate(what string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.violations = append(n.violations, what)
}

// A Mark is a point in the record.
type Mark struct{ dials, queries, requests int }

// Mark returns the present end of the record.
func (n *Internet) Mark() Mark {
	n.mu.Lock()
	defer n.mu.Unlock()
	return Mark{len(n.dials), len(n.queries), len(n.requests)}
}

// Dials returns the attempts to connect since m; the zero Mark is the start.
func (n *Internet) Dials(m Mark) []Dial {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.dials[m.dials:])
}

// Queries returns the queries to the DNS server since m.
func (n *Internet) Queries(m Mark) []Query {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.queries[m.queries:])
}

// Requests returns the requests to the HTTP servers since m.
func (n *Internet) Requests(m Mark) []Request {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.requests[m.requests:])
}

// AwaitRequest waits for count more requests for a host.
func (n *Internet) AwaitRequest(t testing.TB, host string, count int) {
	t.Helper()
	begin := n.Mark()
	timeout := time.NewTimer(requestPatience)
	defer timeout.Stop()
	for {
		seen := 0
		n.mu.Lock()
		for _, r := range n.requests[begin.requests:] {
			if r.Host == host {
				seen++
			}
		}
		changed := n.requested
		n.mu.Unlock()
		if seen >= count {
			return
		}
		select {
		case <-changed:
		case <-timeout.C:
			t.Fatalf("%d requests for %s in %v, want %d", seen, host, requestPatience, count)
		}
	}
}

// requestPatience is how long AwaitRequest waits: long enough for the start of a guest
// and a daemon on a busy machine.
const requestPatience = time.Minute

// Violations returns the forbidden addresses that were dialled, and clears them. A test
// that provokes a violation calls it, so that the test does not fail.
func (n *Internet) Violations() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	v := n.violations
	n.violations = nil
	return v
}
