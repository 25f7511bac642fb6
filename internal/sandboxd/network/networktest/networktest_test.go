package networktest_test

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"testing"

	"github.com/miekg/dns"

	"github.com/cayhq/cay/internal/leaktest"
	"github.com/cayhq/cay/internal/sandboxd/network/networktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func ask(t *testing.T, n *networktest.Internet, network, name string, qtype uint16) []string {
	t.Helper()
	q := new(dns.Msg).SetQuestion(dns.Fqdn(name), qtype)
	a, _, err := (&dns.Client{Net: network}).Exchange(q, n.Nameservers()[0])
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, rr := range a.Answer {
		switch rr := rr.(type) {
		case *dns.A:
			got = append(got, rr.A.String())
		case *dns.CNAME:
			got = append(got, rr.Target)
		case *dns.AAAA:
			got = append(got, rr.AAAA.String())
		}
	}
	return got
}

func TestInternet_Names(t *testing.T) {
	t.Parallel()
	n := networktest.Start(t)
	n.Rebind("rebind.example.com", "93.184.0.10", "127.0.0.1")
	for _, c := range []struct {
		network, name string
		qtype         uint16
		want          []string
	}{
		{"udp", "API.example.com", dns.TypeA, []string{"93.184.0.10"}},
		{"tcp", "api.example.com", dns.TypeA, []string{"93.184.0.10"}},
		{"udp", "api.example.com", dns.TypeAAAA, nil},
		{"udp", "six.example.com", dns.TypeAAAA, []string{"2606:2800::10"}},
		{"udp", "cname.example.com", dns.TypeA, []string{"internal.example.com.", "10.77.0.5"}},
		{"udp", "a.b.exfil.example.net", dns.TypeA, []string{"93.185.0.40"}},
		{"udp", "rebind.example.com", dns.TypeA, []string{"93.184.0.10"}},
		{"udp", "rebind.example.com", dns.TypeA, []string{"127.0.0.1"}},
		{"udp", "rebind.example.com", dns.TypeA, []string{"127.0.0.1"}},
		{"udp", "unknown.example.com", dns.TypeA, nil},
	} {
		if got := ask(t, n, c.network, c.name, c.qtype); !slices.Equal(got, c.want) {
			t.Errorf("%s %s %s: %v, want %v", c.network, c.name, dns.TypeToString[c.qtype], got, c.want)
		}
	}
	if q := n.Queries(networktest.Mark{}); len(q) != 10 || q[0] != (networktest.Query{Name: "api.example.com", Type: "A"}) {
		t.Errorf("recorded: %v", q)
	}
}

func TestInternet_Web(t *testing.T) {
	t.Parallel()
	n := networktest.Start(t)
	tr := &http.Transport{
		DialContext: n.DialContext, TLSClientConfig: &tls.Config{RootCAs: networktest.Roots(), ServerName: "evil.example.net"}, ForceAttemptHTTP2: true,
	}
	defer tr.CloseIdleConnections()
	client := &http.Client{Transport: tr}
	m := n.Mark()
	resp, err := client.Get("https://" + networktest.CDN.String() + "/echo?x=1")
	if err != nil {
		t.Fatal(err)
	}
	var seen networktest.Request
	if err := json.NewDecoder(resp.Body).Decode(&seen); err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if seen.Server != "cdn" || seen.Proto != "HTTP/2.0" || seen.SNI != "evil.example.net" || seen.URI != "/echo?x=1" {
		t.Errorf("the server saw %+v", seen)
	}
	if d := n.Dials(m); len(d) != 1 || d[0].String() != "tcp 93.184.0.20:443" {
		t.Errorf("dialled %v", d)
	}
	if r := n.Requests(m); len(r) != 1 || r[0].SNI != seen.SNI {
		t.Errorf("requested %v", r)
	}

	const size = 1 << 20
	resp, err = client.Get("http://" + networktest.API.String() + "/bytes/1048576")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	sum := sha256.New()
	if k, err := io.Copy(sum, resp.Body); k != size || err != nil || hex.EncodeToString(sum.Sum(nil)) != networktest.Sum(size) {
		t.Errorf("%d bytes of another content, %v", k, err)
	}
}

func TestInternet_Violations(t *testing.T) {
	t.Parallel()
	n := networktest.Start(t)
	for _, address := range []string{"127.0.0.1:80", "10.77.0.5:80", "169.254.169.254:80", "100.100.100.200:80", "[::1]:80", "api.example.com:80", "93.184.0.10:81"} {
		if c, err := n.DialContext(t.Context(), "tcp", address); err == nil {
			c.Close()
		}
	}
	if v := n.Violations(); len(v) != 6 {
		t.Errorf("%d violations: %v", len(v), v)
	}
	n.Permit(netip.MustParsePrefix("10.77.0.0/16"))
	c, err := n.DialContext(t.Context(), "tcp4", net.JoinHostPort(networktest.Private.String(), "80"))
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if v := n.Violations(); len(v) != 0 {
		t.Errorf("permitted, but %v", v)
	}
}
