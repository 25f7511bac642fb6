package network

import (
	"net/netip"
	"testing"

	"github.com/miekg/dns"

	"github.com/cayhq/cay/internal/sandboxd/network/networktest"
	"github.com/cayhq/cay/sandbox"
)

// DNS over TLS is blocked under every policy, also to servers whose name is allowed, and
// by way of the placeholder address.
func TestDot(t *testing.T) {
	t.Parallel()
	named := sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{{Name: "api.example.com"}}}
	both := sandbox.Network{Mode: sandbox.Custom, Allow: named.Allow, AllowCIDRs: []string{"0.0.0.0/0"}}
	for what, n := range map[string]sandbox.Network{"allow-all": allowAll(), "named": named, "both": both} {
		for _, ip := range []netip.Addr{Placeholder, networktest.API} {
			t.Run(what+" "+ip.String(), func(t *testing.T) {
				t.Parallel()
				w := openWorld(t, n)
				if c, err := w.tls(t, at(ip, 853), "api.example.com"); err == nil {
					c.Close()
					t.Error("a connection to port 853 was opened")
				}
				w.awaitDenied(t, "blocked port 853")
				if d := w.dialled(); len(d) > 0 {
					t.Errorf("dialled %v", d)
				}
			})
		}
	}
}

// The names of machines in the operator's network are hidden from guests, for every kind
// of address.
func TestDNS_reverse(t *testing.T) {
	t.Parallel()
	w := openWorld(t, allowAll())
	conn := w.udp(t, at(networktest.DNS, 53))
	for _, ip := range []string{"10.0.0.1", "127.0.0.1", "fd00::53", "::1", "fe80::1", "::ffff:10.0.0.1"} {
		name, err := dns.ReverseAddr(netip.MustParseAddr(ip).StringExpanded())
		if err != nil {
			t.Fatal(err)
		}
		if a := ask(t, conn, name, dns.TypePTR); a.Rcode != dns.RcodeRefused {
			t.Errorf("%s, that is %s: %s", name, ip, dns.RcodeToString[a.Rcode])
		}
	}
	for _, q := range w.net.Queries(networktest.Mark{}) {
		t.Errorf("the name server was asked for %s", q.Name)
	}
}
