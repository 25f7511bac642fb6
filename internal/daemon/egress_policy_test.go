package daemon_test

import (
	"testing"

	"github.com/cayhq/cay/internal/sandboxd/network"
	"github.com/cayhq/cay/internal/sandboxd/network/networktest"
	"github.com/cayhq/cay/sandbox"
)

// The issuers of the certificates that the guest sees.
const (
	itsOwn = "Test Internet Root" // the issuer of the real servers' certificates
	ours   = "cay"                // of those we make

	// The errors of denied requests, in the words of curl, Python and Node.
	noName   = `(?i)could not resolve|gaierror|ENOTFOUND|EREFUSED|REFUSED|EAI_AGAIN`
	tlsAlert = `(?i)access.denied|alert number 49`
	refused  = `(?i)refused|reset|ended|unreachable|could not connect|couldn't connect|closed|failed to connect`
)

var (
	api   = networktest.API.String()
	cdn   = networktest.CDN.String()
	misc  = networktest.Misc.String()
	other = networktest.Other.String()
	dnsIP = networktest.DNS.String()
)

// blockedAddress are rows N1 and N2: addresses that no policy opens. If the
// protocol allows, the guest gets the reason.
func blockedAddress() []probe {
	var all []probe
	for ip, rule := range map[string]string{
		"169.254.169.254": "blocked range 169.254.0.0/16",
		"100.100.100.200": "blocked range 100.64.0.0/10",
		"168.63.129.16":   "blocked range 168.63.129.16/32",
		"10.77.0.5":       "blocked range 10.0.0.0/8",
		"172.31.255.254":  "blocked range 172.16.0.0/12",
		"192.168.0.1":     "blocked range 192.168.0.0/16",
		"100.64.7.7":      "blocked range 100.64.0.0/10",
		"198.18.0.1":      "blocked range 198.18.0.0/15",
		"192.0.0.192":     "blocked range 192.0.0.0/24",
		"192.0.2.1":       "blocked range 192.0.2.0/24",
		"203.0.113.1":     "blocked range 203.0.113.0/24",
		"192.88.99.1":     "blocked range 192.88.99.0/24",
		"240.0.0.1":       "blocked range 240.0.0.0/4",
	} {
		all = append(all, probe{URL: "http://" + ip + "/latest/meta-data/", status: 403, sees: rule, flow: "denied " + rule})
	}
	return append(all,
		probe{URL: "https://169.254.169.254/", sees: tlsAlert + "|" + refused, flow: "denied blocked range 169.254.0.0/16"},
		// The guest's own kernel knows the loopback, multicast and broadcast
		// addresses: packets to them may not reach the daemon.
		probe{URL: "http://0.0.0.0/", sees: ""},
		probe{URL: "http://127.0.0.1/", sees: refused},
		probe{URL: "http://[::1]/", sees: refused + "|EADDRNOTAVAIL|assign"},
		probe{URL: "http://[fd00:ec2::254]/", sees: ""},
		probe{URL: "http://[64:ff9b::a9fe:a9fe]/", sees: ""},
		probe{URL: "http://[2606:2800::10]/", sees: ""}, // IPv6 is off
		probe{URL: "tcp://10.77.0.5:6379", Body: "x", sees: refused, flow: "denied blocked range 10.0.0.0/8"},
		// Row N3: the gateway has a resolver and nothing else.
		probe{URL: "tcp://" + network.GatewayAddr.String() + ":22", Body: "x", sees: refused},
		probe{URL: "http://" + network.GatewayAddr.String() + "/", status: 403, flow: "denied blocked range 100.64.0.0/30"},
		probe{URL: "http://" + network.GatewayAddr.String() + ":7070/", sees: refused},
	)
}

// scenes are rows of the network table, for every kind of client.
var scenes = []scene{
	{
		name:   "allow-all",
		policy: sandbox.Network{Mode: sandbox.AllowAll},
		probes: append(blockedAddress(),
			probe{URL: "https://api.example.com/", Plain: true, status: 200, by: "api", issuer: itsOwn},
			probe{URL: "http://api.example.com/", status: 200, by: "api"},
			probe{URL: "https://both.example.com/", status: 200, by: "api"},
			probe{URL: "https://dead-first.example.com/", only: "curl python", status: 200, by: "api"},
			probe{URL: "http://metadata.example.com/", sees: noName, flow: "denied blocked range 169.254.0.0/16"},
			probe{URL: "http://cname.example.com/", sees: noName, flow: "denied blocked range 10.0.0.0/8"},
			probe{URL: "tcp://misc.example.com:7", Body: "echo", sees: "^echo$"},
			probe{URL: "tcp://misc.example.com:2222", Read: 3, sees: "^SSH"},
			probe{URL: "udp://misc.example.com:7", Body: "echo", sees: "^echo$"},
			probe{URL: "tls://misc.example.com:8443", Body: "echo", sees: "^echo$"},
			// Row N25.
			probe{URL: "tcp://" + misc + ":25", Read: 3, sees: refused, flow: "denied blocked port 25"},
			// Row N6: every resolver is the daemon's, which does not support DNS
			// over TLS.
			probe{URL: "dns://" + dnsIP + "/api.example.com", sees: api},
			probe{URL: "dns+tcp://" + dnsIP + "/api.example.com", sees: api},
			probe{URL: "tcp://" + dnsIP + ":853", Body: "x", sees: refused, flow: "denied"},
			probe{URL: "dns://" + dnsIP + "/api.example.com?AAAA", only: "python", sees: "NOERROR 0 answers"},
		),
		dials: []string{
			"tcp 93.184.0.10:443", "tcp 93.184.0.10:80", "tcp 93.184.0.98:443",
			"tcp 93.184.0.30:7", "tcp 93.184.0.30:2222", "udp 93.184.0.30:7", "tcp 93.184.0.30:8443",
		},
	},
	{
		name:   "deny-all",
		policy: sandbox.Network{Mode: sandbox.DenyAll},
		probes: []probe{
			{URL: "https://api.example.com/", sees: noName, flow: "denied mode deny-all"},
			{URL: "https://api.example.com/", At: api, sees: refused, flow: "denied mode deny-all"},
			{URL: "http://" + api + "/", sees: refused, flow: "denied mode deny-all"},
			{URL: "http://169.254.169.254/", sees: refused, flow: "denied mode deny-all"},
			{URL: "tcp://" + misc + ":7", Body: "echo", sees: refused, flow: "denied mode deny-all"},
			{URL: "udp://" + misc + ":7", Body: "echo", sees: "", flow: "denied mode deny-all"},
			{URL: "dns://" + dnsIP + "/api.example.com", sees: "NXDOMAIN|ENOTFOUND"},
		},
		asks: []string{},
	},
	{
		name: "allow-list",
		policy: sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{
			{Name: "api.example.com"}, {Name: "*.example.org"}, {Name: "www.*.com"}, {Name: "cdn.example.com"}, {Name: "alias.example.com"},
			{Name: "files.example.com", Ports: []uint16{443}}, {Name: "misc.example.com"},
			{Name: "dead-first.example.com"}, {Name: "expired.example.com"}, {Name: "mixed.example.com"}, {Name: "mixed-first.example.com"},
		}},
		probes: append(blockedAddress(),
			probe{URL: "https://api.example.com/", Plain: true, status: 200, by: "api", issuer: itsOwn, flow: `allowed allow "api.example.com"`},
			probe{URL: "https://api.example.com/", Proto: "h2", status: 200, by: "api", issuer: itsOwn},
			probe{URL: "http://api.example.com/echo", Body: "hello", status: 200, by: "api", sees: `"body":"hello"`, flow: `allowed allow "api.example.com"`},
			probe{URL: "https://API.Example.COM/", status: 200, by: "api"},
			probe{URL: "https://alias.example.com/", status: 200, by: "api"},
			probe{URL: "https://dead-first.example.com/", only: "curl python", status: 200, by: "api"},
			probe{URL: "wss://api.example.com/ws", Body: "over and over", status: 101, sees: "^over and over$"},
			probe{URL: "ws://api.example.com/ws", Body: "over and over", status: 101, sees: "^over and over$"},
			// Names by label.
			probe{URL: "https://other.example.org/", status: 200, by: "other", flow: `allowed allow "*.example.org"`},
			probe{URL: "https://example.org/", sees: noName, flow: "denied not in allow"},
			probe{URL: "https://www.xn--exmple-cua.com/", status: 200, by: "other", flow: `allowed allow "www.*.com"`},
			// Ports.
			probe{URL: "https://files.example.com/", status: 200, by: "files"},
			probe{URL: "http://files.example.com/", status: 403, sees: "files.example.com", flow: "denied"},
			probe{URL: "tcp://" + misc + ":25", Read: 3, sees: refused, flow: "denied blocked port 25"},
			// Everything that the policy does not allow, in every way.
			probe{URL: "https://evil.example.net/", sees: noName, flow: "denied not in allow"},
			probe{URL: "https://evil.example.net/", At: cdn, sees: tlsAlert, flow: "denied not in allow"},
			probe{URL: "http://evil.example.net/", At: cdn, status: 403, sees: `(?s)evil\.example\.net.*not in allow|not in allow.*evil\.example\.net`, flow: "denied not in allow"},
			probe{URL: "http://api.example.com/", At: cdn, Headers: map[string]string{"host": "evil.example.net"}, status: 403, sees: "evil"},
			probe{URL: "https://" + api + "/", sees: tlsAlert + "|" + refused, flow: "denied not in allow"},
			probe{URL: "http://" + api + "/", status: 403, sees: "not in allow", flow: "denied not in allow"},
			probe{URL: "tcp://" + misc + ":7", Body: "\x00\x01echo", sees: refused, flow: "denied"},
			probe{URL: "udp://" + misc + ":7", Body: "echo", only: "python node", sees: refused, flow: "denied"},
			// Row N15: QUIC clients fall back at once.
			probe{URL: "udp://" + misc + ":443", Body: "echo", sees: refused, flow: "denied"},
			// TLS need not be HTTP.
			probe{URL: "tls://misc.example.com:8443", Body: "echo", sees: "^echo$", flow: `allowed allow "misc.example.com"`},
			probe{URL: "pg://misc.example.com:5432", Body: "echo", sees: "^echo$", flow: `allowed allow "misc.example.com"`},
			// Row N5: the name itself is the message, and does not leave.
			probe{URL: "dns://" + dnsIP + "/mzxw6ytboi.exfil.example.net", sees: "NXDOMAIN|ENOTFOUND", flow: "denied not in allow"},
			probe{URL: "dns://" + network.GatewayAddr.String() + "/mzxw6ytboi.exfil.example.net?TXT", only: "python", sees: "NXDOMAIN|ENOTFOUND"},
			probe{URL: "http://mzxw6ytboi.exfil.example.net/", sees: noName},
			// Row N6.
			probe{URL: "dns://" + dnsIP + "/api.example.com", sees: api},
			probe{URL: "dns+tcp://" + dnsIP + "/api.example.com", sees: api},
			probe{URL: "dns://" + dnsIP + "/api.example.com?HTTPS", only: "python", sees: "NOERROR 0 answers"},
			probe{URL: "tcp://" + dnsIP + ":853", Body: "x", sees: refused, flow: "denied"},
			probe{URL: "https://dns.example.net/dns-query?dns=AAAB", At: dnsIP, sees: tlsAlert, flow: "denied not in allow"},
			// Row N8: the daemon decides where a connection goes.
			probe{URL: "https://api.example.com/", At: other, status: 200, by: "api"},
			probe{URL: "http://api.example.com/", At: other, status: 200, by: "api"},
			// Row N10: if requests are not read, only the connection's name is
			// checked. Strict is for that.
			probe{URL: "https://cdn.example.com/", Headers: map[string]string{"host": "evil.example.net"}, status: 200, by: "cdn"},
			// A name is reached at its allowed addresses only.
			probe{URL: "https://mixed.example.com/", At: other, status: 200, by: "api"},
			probe{URL: "http://mixed-first.example.com/", At: other, status: 200, by: "api"},
			// The daemon does not verify for the guest what the guest can verify
			// itself.
			probe{URL: "https://expired.example.com/", sees: "(?i)expired"},
		),
		dials: []string{
			"tcp 93.184.0.10:443", "tcp 93.184.0.10:80", "tcp 93.184.0.98:443", "tcp 93.184.0.11:443", "tcp 93.185.0.40:443",
			"tcp 93.184.0.20:443", "tcp 93.184.0.30:8443", "tcp 93.184.0.30:5432", "tcp 93.184.0.62:443",
		},
		asks: []string{
			"api.example.com", "alias.example.com", "dead-first.example.com", "other.example.org", "www.xn--exmple-cua.com",
			"files.example.com", "misc.example.com", "cdn.example.com", "expired.example.com",
			"mixed.example.com", "mixed-first.example.com",
		},
	},
	{
		name: "names of the inside", // rows N1, N2 and N8 once more, by allowed names
		policy: only("loopback.example.com", "metadata.example.com", "metadata.google.internal", "cname.example.com", "internal.example.com",
			"unspecified.example.com", "mapped.example.com", "six.example.com", "rebind.example.com"),
		probes: []probe{
			{URL: "http://metadata.example.com/", At: api, status: 403, sees: `169\.254`, flow: "denied blocked range 169.254.0.0/16"},
			{URL: "https://metadata.example.com/", At: api, sees: tlsAlert, flow: "denied blocked range 169.254.0.0/16"},
			{URL: "http://metadata.google.internal/", At: api, status: 403, sees: `169\.254`, flow: "denied blocked range 169.254.0.0/16"},
			{URL: "http://metadata.google.internal/computeMetadata/v1/", sees: noName, flow: "denied blocked range 169.254.0.0/16"},
			{URL: "http://loopback.example.com/", At: api, status: 403, sees: `127\.0\.0`, flow: "denied blocked range 127.0.0.0/8"},
			{URL: "https://loopback.example.com/", At: api, sees: tlsAlert, flow: "denied blocked range 127.0.0.0/8"},
			{URL: "http://unspecified.example.com/", At: api, status: 403, sees: `0\.0\.0\.0`, flow: "denied blocked range 0.0.0.0/8"},
			{URL: "http://cname.example.com/", At: api, status: 403, sees: `10\.`, flow: "denied blocked range 10.0.0.0/8"},
			{URL: "https://internal.example.com/", At: api, sees: tlsAlert, flow: "denied blocked range 10.0.0.0/8"},
			{URL: "https://mapped.example.com/", At: api, sees: ""},
			{URL: "https://six.example.com/", At: api, sees: ""},
			// The next answer for the name is not public. We dial the address that
			// we have checked.
			{URL: "http://rebind.example.com/", status: 200, by: "api"},
			{URL: "https://rebind.example.com/", At: other, status: 200, by: "api"},
		},
		dials: []string{"tcp 93.184.0.10:80", "tcp 93.184.0.10:443"},
	},
	{
		name: "ranges",
		policy: sandbox.Network{
			Mode: sandbox.Custom, Allow: []sandbox.Domain{{Name: "other.example.org"}, {Name: "cdn.example.com"}},
			AllowCIDRs: []string{"93.184.0.0/16", "10.0.0.0/8", "169.254.169.254"}, DenyCIDRs: []string{cdn + "/32", "93.184.0.53"},
		},
		probes: append(blockedAddress(),
			probe{URL: "tcp://" + misc + ":7", Body: "echo", sees: "^echo$", flow: "allowed allow_cidrs 93.184.0.0/16"},
			probe{URL: "tcp://" + misc + ":2222", Read: 3, sees: "^SSH", flow: "allowed allow_cidrs 93.184.0.0/16"},
			probe{URL: "http://" + api + "/", status: 200, by: "api"},
			probe{URL: "https://api.example.com/", Plain: true, status: 200, by: "api", issuer: itsOwn},
			probe{URL: "https://other.example.org/", status: 200, by: "other", flow: `allowed allow "other.example.org"`},
			probe{URL: "http://" + other + "/", status: 403, sees: "not in allow", flow: "denied not in allow"},
			probe{URL: "https://evil.example.net/", sees: tlsAlert, flow: "denied deny_cidrs 93.184.0.20/32"},
			probe{URL: "http://" + cdn + "/", status: 403, sees: "deny_cidrs", flow: "denied deny_cidrs 93.184.0.20/32"},
			probe{URL: "https://cdn.example.com/", At: other, sees: tlsAlert, flow: "denied deny_cidrs 93.184.0.20/32"},
			probe{URL: "tcp://" + misc + ":25", Read: 3, sees: refused, flow: "denied blocked port 25"},
			probe{URL: "udp://" + misc + ":7", Body: "echo", sees: ""},
		),
		dials: []string{
			"tcp 93.184.0.30:7", "tcp 93.184.0.30:2222", "tcp 93.184.0.10:80", "tcp 93.184.0.10:443", "tcp 93.185.0.40:443",
		},
	},
	{
		name: "mail by name", // row N25's option
		policy: sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{
			{Name: "misc.example.com", Ports: []uint16{465}}, {Name: "*.example.com"},
		}},
		probes: []probe{
			{URL: "tls://misc.example.com:465", Body: "echo", sees: "^echo$", flow: `allowed allow "misc.example.com"`},
			{URL: "https://api.example.com:465/", At: misc, sees: tlsAlert + "|" + refused, flow: "denied blocked port 465"},
		},
		dials: []string{"tcp 93.184.0.30:465"},
	},
	{
		name:   "every name",
		policy: sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{{Name: "*"}}, DenyCIDRs: []string{"93.185.0.0/16"}},
		probes: []probe{
			{URL: "https://api.example.com/", status: 200, by: "api", flow: `allowed allow "*"`},
			{URL: "https://other.example.org/", sees: tlsAlert, flow: "denied deny_cidrs 93.185.0.0/16"},
			{URL: "http://metadata.example.com/", sees: noName},
			{URL: "tcp://" + misc + ":7", Body: "\x00\x01echo", sees: refused},
		},
		dials: []string{"tcp 93.184.0.10:443"},
	},
	{
		name:   "strict", // row N10
		policy: sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{{Name: "cdn.example.com"}, {Name: "expired.example.com"}}, Strict: true},
		probes: []probe{
			{URL: "https://cdn.example.com/", Plain: true, status: 200, by: "cdn", issuer: ours, flow: `allowed allow "cdn.example.com"`},
			{URL: "https://cdn.example.com/", status: 200, by: "cdn"},
			{URL: "https://cdn.example.com/", Headers: map[string]string{"host": "evil.example.net"}, status: 421, sees: "evil", flow: "denied"},
			{URL: "https://cdn.example.com/", Headers: map[string]string{"host": "evil.example.net"}, Proto: "h2", status: 421, sees: "evil"},
			{URL: "https://expired.example.com/", status: 502, sees: "(?i)expired", flow: "failed"},
		},
		dials: []string{"tcp 93.184.0.20:443", "tcp 93.184.0.62:443"},
	},
}

// Rows N1 to N15 and N25.
func TestEgress_Policy(t *testing.T) {
	t.Parallel()
	for _, client := range []string{"curl", "python", "node"} {
		t.Run(client, func(t *testing.T) {
			t.Parallel()
			s := openSite(t)
			s.net.SetName("metadata.google.internal", networktest.Metadata.String())
			st := openStation(t, s, client, sandbox.Network{})
			for _, scene := range scenes {
				t.Run(scene.name, func(t *testing.T) {
					s.net.Rebind("rebind.example.com", api, "127.0.0.1")
					st.play(t, scene)
				})
			}
		})
	}
}
