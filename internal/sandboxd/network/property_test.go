package network

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"pgregory.net/rapid"

	"github.com/cayhq/cay/internal/seedtest"
	"github.com/cayhq/cay/sandbox"
)

// A universe of few names, addresses and ports, so that random policies and
// random flows meet.
var (
	uniNames = map[string][]string{
		"a.test": {"93.1.0.1"}, "b.a.test": {"93.1.0.2"}, "c.b.a.test": {"93.2.0.1"}, "d.test": {"93.2.0.2", "10.0.0.1"},
		"meta.a.test": {"169.254.169.254"}, "loop.test": {"127.0.0.1"}, "mail.a.test": {"93.1.0.1"}, "odd.d.test": {"192.168.7.7", "93.1.0.2"},
	}
	uniPatterns  = []string{"*", "*.test", "*.a.test", "a.test", "b.a.test", "*.*.a.test", "d.test", "*.d.test", "loop.test", "meta.a.test"}
	uniAddresses = []string{"93.1.0.1", "93.1.0.2", "93.2.0.1", "93.2.0.2", "10.0.0.1", "169.254.169.254", "100.64.0.1", "100.64.0.6", "192.168.7.7", "198.18.53.80"}
	uniCIDRs     = []string{"93.1.0.0/24", "93.0.0.0/8", "93.2.0.2", "10.0.0.0/8", "0.0.0.0/0", "169.254.169.254/32"}
	uniPorts     = []uint16{80, 443, 22, 25, 465, 8443} // that policies list
	uniOperator  = []netip.Prefix{netip.MustParsePrefix("192.168.7.0/24")}
)

// attempt is a flow that a guest tries.
type attempt struct {
	speaks string // tls, http, raw, udp
	dst    netip.AddrPort
	name   string // that it claims
}

func attempts() *rapid.Generator[attempt] {
	names := []string{"", "169.254.169.254", "nothing.test", "A.TEST", "a.test."}
	for n := range uniNames {
		names = append(names, n)
	}
	slices.Sort(names)
	return rapid.Custom(func(t *rapid.T) attempt {
		ip := netip.MustParseAddr(rapid.SampledFrom(uniAddresses).Draw(t, "address"))
		return attempt{
			rapid.SampledFrom([]string{"tls", "tls", "http", "raw", "udp"}).Draw(t, "speaks"),
			netip.AddrPortFrom(ip, rapid.SampledFrom(append(uniPorts, 853)).Draw(t, "port")),
			rapid.SampledFrom(names).Draw(t, "name"),
		}
	})
}

func policies() *rapid.Generator[sandbox.Network] {
	return rapid.Custom(func(t *rapid.T) sandbox.Network {
		n := sandbox.Network{Mode: rapid.SampledFrom([]sandbox.NetworkMode{sandbox.AllowAll, sandbox.DenyAll, sandbox.Custom, sandbox.Custom, sandbox.Custom, sandbox.Custom}).Draw(t, "mode")}
		if n.Mode != sandbox.Custom {
			return n
		}
		cidrs := rapid.SliceOfNDistinct(rapid.SampledFrom(uniCIDRs), 0, 2, rapid.ID)
		n.AllowCIDRs, n.DenyCIDRs = cidrs.Draw(t, "allowed"), cidrs.Draw(t, "denied")
		n.Strict = rapid.IntRange(0, 3).Draw(t, "strict") == 0
		for _, p := range rapid.SliceOfNDistinct(rapid.SampledFrom(uniPatterns), 0, 4, rapid.ID).Draw(t, "patterns") {
			d := sandbox.Domain{Name: p, Ports: rapid.SliceOfNDistinct(rapid.SampledFrom(uniPorts), 0, 2, rapid.ID).Draw(t, "ports")}
			if rapid.IntRange(0, 3).Draw(t, "rules") == 0 {
				d.Rules = []sandbox.Rule{{Deny: rapid.Bool().Draw(t, "deny")}}
			}
			n.Allow = append(n.Allow, d)
		}
		return n
	})
}

// oracle returns the addresses that an attempt may make the daemon dial: an independent
// and short implementation, which allows too much rather than too little where two
// entries of a policy match.
func oracle(n sandbox.Network, a attempt) (allowed []string) {
	in := func(cidrs []string, ip netip.Addr) bool {
		return slices.ContainsFunc(cidrs, func(c string) bool {
			if !strings.Contains(c, "/") {
				c += "/32"
			}
			return netip.MustParsePrefix(c).Contains(ip)
		})
	}
	reachable := func(ip netip.Addr) bool {
		text := ip.String()
		return !in(n.DenyCIDRs, ip) && (strings.HasPrefix(text, "93.") || strings.HasPrefix(text, "192.168.7."))
	}
	port := a.dst.Port()
	mail := port == 25 || port == 465
	add := func(ip netip.Addr) { allowed = append(allowed, netip.AddrPortFrom(ip, port).String()) }
	public := strings.HasPrefix(a.dst.Addr().String(), "93.")
	direct := reachable(a.dst.Addr()) && !(mail && public)
	nameOnly := a.dst.Addr() == Placeholder && a.speaks != "udp"
	entries := n.Allow
	switch {
	case n.Mode == sandbox.DenyAll, port == 853:
		return nil
	case n.Mode == sandbox.AllowAll:
		if direct {
			add(a.dst.Addr())
		}
		if !nameOnly {
			return allowed
		}
		entries = []sandbox.Domain{{Name: "*"}}
	case a.speaks == "udp" || in(n.DenyCIDRs, a.dst.Addr()):
		return nil
	}
	if direct && in(n.AllowCIDRs, a.dst.Addr()) {
		add(a.dst.Addr())
	}
	if a.speaks == "raw" || !reachable(a.dst.Addr()) && !nameOnly {
		return allowed
	}
	name := strings.ToLower(strings.TrimSuffix(a.name, "."))
	for _, d := range entries {
		matches := d.Name == "*" || d.Name == name
		if rest, ok := strings.CutPrefix(d.Name, "*."); ok && !strings.Contains(rest, "*") {
			matches = matches || strings.HasSuffix(name, "."+rest)
		}
		if d.Name == "*.*.a.test" {
			matches = strings.HasSuffix(name, ".a.test") && strings.Count(name, ".") >= 3
		}
		listed := slices.Contains(d.Ports, port)
		if !matches || len(d.Ports) > 0 && !listed {
			continue
		}
		for _, text := range uniNames[name] {
			if ip := netip.MustParseAddr(text); reachable(ip) && (!mail || listed || strings.HasPrefix(text, "192.")) {
				add(ip)
			}
		}
	}
	return allowed
}

// For any policy and any attempt of a guest, the daemon dials only addresses that oracle
// returns.
func TestProperty_dials(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var dials []string
	w := openWorld(t, denyAll(), func(w *world, cfg *EgressConfig) {
		for name, addrs := range uniNames {
			w.net.SetName(name, addrs...)
		}
		cfg.Logger = nil
		cfg.AllowRanges = uniOperator
		cfg.DialContext = func(_ context.Context, network, address string) (net.Conn, error) {
			mu.Lock()
			defer mu.Unlock()
			dials = append(dials, address)
			ours, theirs := net.Pipe()
			theirs.Close()
			return ours, nil
		}
	})
	tried, left := 0, 0
	seedtest.Check(t, func(rt *rapid.T) {
		n := policies().Draw(rt, "policy")
		if err := w.link.SetPolicy(n); err != nil {
			rt.Fatal(err)
		}
		for _, a := range rapid.SliceOfN(attempts(), 1, 6).Draw(rt, "attempts") {
			mu.Lock()
			dials = nil
			mu.Unlock()
			w.try(rt.Context(), a)
			for _, f := range w.link.open() {
				<-f.ctx.Done()
			}
			mu.Lock()
			got := slices.Clone(dials)
			mu.Unlock()
			tried++
			left += min(len(got), 1)
			allowed := oracle(n, a)
			for _, d := range got {
				if !slices.Contains(allowed, d) {
					rt.Fatalf("%+v dialled %s, only %v is allowed under %+v", a, d, allowed, n)
				}
			}
		}
	})
	t.Logf("%d of %d attempts left", left, tried)
	if left < tried/20 {
		t.Errorf("only %d of %d attempts left: this tests little", left, tried)
	}
}

// try makes an attempt as a guest would, and returns at its end.
func (w *world) try(ctx context.Context, a attempt) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if a.speaks == "udp" {
		to := full(a.dst.String())
		conn, err := gonet.DialUDP(w.Stack, nil, &to, ipv4.ProtocolNumber)
		if err != nil {
			return
		}
		defer conn.Close()
		conn.Write([]byte("x"))
		// A TCP connection dialled after the datagram is judged after it.
		a = attempt{"raw", netip.AddrPortFrom(GatewayAddr, ReadyPort), ""}
	}
	conn, err := gonet.DialContextTCP(ctx, w.Stack, full(a.dst.String()), ipv4.ProtocolNumber)
	if err != nil {
		return
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	request := fmt.Sprintf("GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", a.name)
	switch a.speaks {
	case "tls":
		c := tls.Client(conn, &tls.Config{ServerName: a.name, InsecureSkipVerify: true})
		if c.HandshakeContext(ctx) == nil {
			io.WriteString(c, request)
		}
	case "http":
		io.WriteString(conn, request)
	case "raw":
		io.WriteString(conn, "SSH-2.0-x\r\n")
	}
	io.Copy(io.Discard, conn)
}
