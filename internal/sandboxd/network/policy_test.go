package network

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"

	"github.com/cayhq/cay/internal/sandboxd/network/networktest"
	"github.com/cayhq/cay/internal/sandboxd/network/sniff"
	"github.com/cayhq/cay/sandbox"
)

// The name alone, which the daemon resolves, decides where TLS connections go.
func TestTLS(t *testing.T) {
	t.Parallel()
	evil := at(networktest.Other, 443) // the address that a guest pins to get out
	for _, tt := range []struct {
		name   string
		policy sandbox.Network
		addr   string
		sni    string
		want   string   // the server that answered, "alert" or "reset"
		dials  []string // all that left
		rule   string   // of the denial
	}{
		{"allowed", custom("api.example.com"), at(networktest.API, 443), "api.example.com", "200 api", []string{"tcp 93.184.0.10:443"}, ""},
		{"allowed in capitals", custom("api.example.com"), at(networktest.API, 443), "API.Example.com", "200 api", []string{"tcp 93.184.0.10:443"}, ""},
		{"wildcard", custom("*.example.com"), at(networktest.Files, 443), "files.example.com", "200 files", []string{"tcp 93.184.0.11:443"}, ""},
		{"alias", custom("alias.example.com"), at(networktest.API, 443), "alias.example.com", "200 api", []string{"tcp 93.184.0.10:443"}, ""},
		{"N8 spoofed name", custom("api.example.com"), evil, "api.example.com", "200 api", []string{"tcp 93.184.0.10:443"}, ""},
		{"the address the guest dialled comes first", custom("many.example.com"), at(networktest.Files, 443), "many.example.com", "200 files", []string{"tcp 93.184.0.11:443"}, ""},
		{"the second address", custom("dead-first.example.com"), evil, "dead-first.example.com", "200 api", []string{"tcp 93.184.0.10:443", "tcp 93.184.0.98:443"}, ""},
		{"of two addresses the public one", custom("mixed-first.example.com"), at(networktest.Private, 444), "", "reset", nil, "blocked range 10.0.0.0/8"},
		{"mixed answer", custom("mixed-first.example.com"), evil, "mixed-first.example.com", "200 api", []string{"tcp 93.184.0.10:443"}, ""},
		{"other name", custom("api.example.com"), evil, "other.example.org", "alert", nil, "not in allow"},
		{"parent of a wildcard", custom("*.example.com"), evil, "example.com", "alert", nil, "not in allow"},
		{"suffix trick", custom("api.example.com"), evil, "api.example.com.other.example.org", "alert", nil, "not in allow"},
		{"no name", custom("*"), evil, "", "alert", nil, "no name"},
		{"N2 name of a private address", custom("*"), evil, "internal.example.com", "alert", nil, "blocked range 10.0.0.0/8"},
		{"N1 name of the metadata service", custom("*"), evil, "metadata.example.com", "alert", nil, "blocked range 169.254.0.0/16"},
		{"name of loopback", custom("*"), evil, "loopback.example.com", "alert", nil, "blocked range 127.0.0.0/8"},
		{"name of 0.0.0.0", custom("*"), evil, "unspecified.example.com", "alert", nil, "blocked range 0.0.0.0/8"},
		{"alias of a private name", custom("cname.example.com"), evil, "cname.example.com", "alert", nil, "blocked range 10.0.0.0/8"},
		{"IPv6 alone", custom("*"), evil, "six.example.com", "reset", nil, ""},
		{"mapped address", custom("*"), evil, "mapped.example.com", "reset", nil, ""},
		{"name that is not there", custom("*"), evil, "nothing.example.com", "reset", nil, ""},
		{"denied range behind an allowed name", sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{{Name: "*"}}, DenyCIDRs: []string{"93.184.0.0/24"}}, evil, "api.example.com", "alert", nil, "deny_cidrs 93.184.0.0/24"},
		{"denied range", sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{{Name: "*"}}, DenyCIDRs: []string{"93.185.0.0/16"}}, evil, "api.example.com", "alert", nil, "deny_cidrs 93.185.0.0/16"},
		{"allowed range", sandbox.Network{Mode: sandbox.Custom, AllowCIDRs: []string{"93.185.0.0/16"}}, evil, "other.example.org", "200 other", []string{"tcp 93.185.0.40:443"}, ""},
		{"allowed range needs no name", sandbox.Network{Mode: sandbox.Custom, AllowCIDRs: []string{"93.185.0.0/16"}}, evil, "", "200 other", []string{"tcp 93.185.0.40:443"}, ""},
		{"other port", sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{{Name: "misc.example.com", Ports: []uint16{8443}}}}, at(networktest.Misc, 443), "misc.example.com", "alert", nil, "allow \"misc.example.com\""},
		{"deny-all", denyAll(), evil, "other.example.org", "reset", nil, "mode deny-all"},
		{"N1 metadata under allow-all", allowAll(), at(networktest.Metadata, 443), "x.example", "alert", nil, "blocked range 169.254.0.0/16"},
		{"N3 gateway", allowAll(), "100.64.0.1:443", "x.example", "alert", nil, "blocked range 100.64.0.0/30"},
		{"N6 DNS over HTTPS by its name", custom("api.example.com"), at(networktest.DNS, 443), "dns.example.net", "alert", nil, "not in allow"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := openWorld(t, tt.policy)
			got, err := w.https(t, tt.addr, tt.sni)
			switch {
			case isAlert(err):
				got = "alert"
			case err != nil:
				got = "reset"
			}
			if got != tt.want {
				t.Errorf("got %s (%v), want %s", got, err, tt.want)
			}
			if d := w.dialled(); !slices.Equal(d, tt.dials) {
				t.Errorf("dialled %v, want %v", d, tt.dials)
			}
			switch {
			case tt.rule != "":
				f := w.awaitDenied(t, tt.rule)
				if tt.want == "alert" && tt.sni != "" && f.Name != strings.ToLower(tt.sni) {
					t.Errorf("the denial names %q", f.Name)
				}
			case tt.want == "reset":
				w.await(t, "a failure", func(f sandbox.Flow) bool { return f.Verdict == sandbox.Broken && f.Reason != "" })
			default:
				open := w.await(t, "the connection", func(f sandbox.Flow) bool { return f.Verdict == sandbox.Allowed })
				closed := w.await(t, "its end", func(f sandbox.Flow) bool { return f.Seq == open.Seq && !f.Open })
				if closed.IngressBytes == 0 || closed.EgressBytes == 0 || "tcp "+closed.Address != tt.dials[0] {
					t.Errorf("closing record %s", describe([]sandbox.Flow{closed}))
				}
			}
		})
	}
}

// If the address of a name changes between the guest's lookup and the daemon's, or
// between two lookups of the daemon, the dialled address is judged.
func TestTLS_rebinding(t *testing.T) {
	t.Parallel()
	w := openWorld(t, custom("*"))
	w.net.Rebind("flip.example.com", networktest.API.String(), "127.0.0.1")
	if a := addrsOf(ask(t, w.udp(t, "100.64.0.1:53"), "flip.example.com", 1)); !slices.Equal(a, []string{networktest.API.String()}) {
		t.Fatalf("first answer %v", a)
	}
	// A time to live of 0 counts as 1 s here.
	w.egress.resolver.cache.Purge()
	if _, err := w.https(t, at(networktest.API, 443), "flip.example.com"); !isAlert(err) {
		t.Errorf("got %v, want an alert", err)
	}
	w.awaitDenied(t, "blocked range 127.0.0.0/8")
	if d := w.dialled(); len(d) != 0 {
		t.Errorf("dialled %v", d)
	}
}

// helloBytes returns a ClientHello made by crypto/tls.
func helloBytes(t *testing.T, c *tls.Config) []byte {
	t.Helper()
	ours, theirs := net.Pipe()
	defer ours.Close()
	go func() {
		_ = tls.Client(theirs, c).HandshakeContext(t.Context())
		theirs.Close()
	}()
	_, raw, err := sniff.ReadClientHello(ours)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// A hello may come in any pieces, followed by more bytes.
func TestTLS_segments(t *testing.T) {
	t.Parallel()
	w := openWorld(t, custom("api.example.com"))
	for _, size := range []int{1, 3, 100} {
		conn, err := w.dial(t, at(networktest.Other, 443))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		c := tls.Client(&slowWriter{conn, size}, &tls.Config{ServerName: "api.example.com", RootCAs: networktest.Roots()})
		conn.SetDeadline(time.Now().Add(patience))
		if status, body, err := get(c, "api.example.com", "/"); status != 200 || field(body, "server") != "api" {
			t.Errorf("in pieces of %d: %d %q %v", size, status, body, err)
		}
	}
}

// slowWriter writes a few bytes at a time, each in a segment of its own.
type slowWriter struct {
	net.Conn
	size int
}

func (c *slowWriter) Write(b []byte) (n int, err error) {
	for piece := range slices.Chunk(b, c.size) {
		m, err := c.Conn.Write(piece)
		n += m
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// Connections without a name to decide by are refused, and the record says so.
func TestNameless(t *testing.T) {
	t.Parallel()
	ech := helloBytes(t, &tls.Config{ServerName: "inner.example.org", MinVersion: tls.VersionTLS13, EncryptedClientHelloConfigList: echConfig(t, "api.example.com")})
	for _, tt := range []struct {
		name, sends string
		rule        string
		alert       bool
	}{
		{"garbage", "\x00\x01\x02garbage", "no name", false},
		{"SSH", "SSH-2.0-OpenSSH_9.9\r\n", "no name", false},
		{"SMTP", "EHLO there\r\n", "no name", false},
		{"SOCKS", "\x05\x01\x00", "no name", false},
		{"broken TLS", "\x16\x03\x01\x00\x05\x02\x00\x00\x01\x00", "no name", true},
		{"long hello", "\x16\x03\x01\x40\x00\x01\xff\xff\xff" + strings.Repeat("x", 20000), "no name", true},
		{"encrypted hello", string(ech), `allow "api.example.com"`, true},
		{"PostgreSQL without TLS", "\x00\x00\x00\x08\x00\x03\x00\x00", "no name", false},
		{"name and NUL", "\x16\x03\x01", "no name", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := openWorld(t, custom("api.example.com"))
			conn, err := w.dial(t, at(networktest.Misc, 2222))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(patience))
			io.WriteString(conn, tt.sends)
			conn.(*gonet.TCPConn).CloseWrite()
			answer, err := io.ReadAll(conn)
			if alert := string(answer) == string(alertAccessDenied); alert != tt.alert || alert != (err == nil) {
				t.Errorf("answer %x, %v; want an alert: %t, else a reset", answer, err, tt.alert)
			}
			w.awaitDenied(t, tt.rule)
			if d := w.dialled(); len(d) != 0 {
				t.Errorf("dialled %v", d)
			}
		})
	}
}

// A server that sends first cannot be reached by name: the guest gets no answer.
func TestServerFirst(t *testing.T) {
	t.Parallel()
	byName, byRange := openWorld(t, custom("*")), openWorld(t, sandbox.Network{Mode: sandbox.Custom, AllowCIDRs: []string{"93.184.0.30"}})
	byName.egress.sniffTimeout = time.Second
	conn, err := byName.dial(t, at(networktest.Misc, 2222))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetReadDeadline(time.Now().Add(patience))
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read %v, want a reset", err)
	}
	if f := byName.awaitDenied(t, "no name"); !strings.Contains(f.Reason, "allow_cidrs") {
		t.Errorf("reason %q", f.Reason)
	}
	other, err := byRange.dial(t, at(networktest.Misc, 2222))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	other.SetReadDeadline(time.Now().Add(patience))
	if _, err := other.Read(make([]byte, 1)); err != nil {
		t.Errorf("by range: %v", err)
	}
}

func TestPostgres(t *testing.T) {
	t.Parallel()
	rules := []sandbox.Rule{{Deny: true}}
	for _, tt := range []struct {
		name   string
		policy sandbox.Network
		gss    bool
		rule   string
	}{
		{"allowed", custom("misc.example.com"), false, ""},
		{"after GSSAPI", custom("misc.example.com"), true, ""},
		{"other name", custom("api.example.com"), false, "not in allow"},
		{"with rules", sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{{Name: "misc.example.com", Rules: rules}}}, false, `allow "misc.example.com"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := openWorld(t, tt.policy)
			conn, err := w.dial(t, at(networktest.Other, 5432)) // the name in the hello decides
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(patience))
			ask := func(request, want string) {
				t.Helper()
				io.WriteString(conn, request)
				got := make([]byte, 1)
				if _, err := io.ReadFull(conn, got); err != nil || string(got) != want {
					t.Fatalf("answer %q, %v; want %q", got, err, want)
				}
			}
			if tt.gss {
				ask(sniff.PostgresGSSRequest, "N")
			}
			ask(sniff.PostgresSSLRequest, "S")
			c := tls.Client(conn, &tls.Config{ServerName: "misc.example.com", RootCAs: networktest.Roots()})
			err = c.HandshakeContext(t.Context())
			if tt.rule != "" {
				if !isAlert(err) {
					t.Errorf("got %v, want an alert", err)
				}
				w.awaitDenied(t, tt.rule)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			echo(t, c, "select 1")
			if d := w.dialled(); !slices.Equal(d, []string{"tcp 93.184.0.30:5432"}) {
				t.Errorf("dialled %v", d)
			}
		})
	}
}

// Each plain HTTP request is judged separately, and a refusal gives the reason.
func TestHTTP(t *testing.T) {
	t.Parallel()
	get := func(host string) string { return "GET / HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n" }
	for _, tt := range []struct {
		name   string
		policy sandbox.Network
		addr   string
		sends  string
		status int
		says   string
		dials  []string
	}{
		{"allowed", custom("api.example.com"), at(networktest.API, 80), get("api.example.com"), 200, `"server":"api"`, []string{"tcp 93.184.0.10:80"}},
		{"N8 other address", custom("api.example.com"), at(networktest.Other, 80), get("api.example.com"), 200, `"server":"api"`, []string{"tcp 93.184.0.10:80"}},
		{"trailing dot and capitals", custom("api.example.com"), at(networktest.API, 80), get("API.example.COM."), 200, `"server":"api"`, []string{"tcp 93.184.0.10:80"}},
		{"other host", custom("api.example.com"), at(networktest.API, 80), get("other.example.org"), 403, "not in allow", nil},
		{"private host", custom("*"), at(networktest.API, 80), get("internal.example.com"), 403, "10.77.0.5", nil},
		{"address as host", custom("*"), at(networktest.API, 80), get("169.254.169.254"), 403, "", nil},
		{"N12 two hosts", custom("api.example.com"), at(networktest.API, 80), "GET / HTTP/1.1\r\nHost: api.example.com\r\nHost: evil.example.net\r\n\r\n", 400, "", nil},
		{"N12 absolute form of another host", custom("api.example.com"), at(networktest.API, 80), "GET http://evil.example.net/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n", 400, "", nil},
		{"N12 chunks and a length", custom("api.example.com"), at(networktest.API, 80), "POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "", nil},
		{"N13 CONNECT", custom("api.example.com"), at(networktest.API, 80), "CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\n\r\n", 400, "", nil},
		{"metadata under allow-all", allowAll(), at(networktest.Metadata, 80), get("metadata.google.internal"), 403, "169.254.0.0/16", nil},
		{"allow-all", allowAll(), at(networktest.API, 80), get("api.example.com"), 200, `"server":"api"`, []string{"tcp 93.184.0.10:80"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := openWorld(t, tt.policy)
			conn, err := w.dial(t, tt.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(patience))
			io.WriteString(conn, tt.sends)
			status, body, err := response(conn)
			if (status != tt.status && !(tt.status == 400 && status == 405)) || !strings.Contains(body, tt.says) {
				t.Errorf("status %d, body %q, %v; want %d that says %q", status, body, err, tt.status, tt.says)
			}
			if d := w.dialled(); !slices.Equal(d, tt.dials) {
				t.Errorf("dialled %v, want %v", d, tt.dials)
			}
			if tt.status != 200 {
				w.awaitDenied(t, "")
			}
		})
	}
}

// Addresses that are always blocked are refused by address alone, in every mode: no bytes
// are read, and nothing answers.
func TestBlocked(t *testing.T) {
	t.Parallel()
	everything := sandbox.Network{Mode: sandbox.Custom, AllowCIDRs: []string{"0.0.0.0/0"}, Allow: []sandbox.Domain{{Name: "*"}}}
	for _, addr := range []string{
		"169.254.169.254:8080", "100.100.100.200:8080", "168.63.129.16:8080", "10.0.0.1:22", "172.16.0.1:22", "192.168.1.1:22",
		"100.64.0.1:7070", "100.64.0.6:22", "192.88.99.1:22", "198.18.0.1:22", "240.0.0.1:22",
		"93.184.0.30:25", "93.184.0.30:465", "93.184.0.30:587", "93.184.0.53:853",
	} {
		for name, n := range map[string]sandbox.Network{"allow-all": allowAll(), "everything": everything} {
			t.Run(name+" "+addr, func(t *testing.T) {
				t.Parallel()
				w := openWorld(t, n)
				if c, err := w.dial(t, addr); err == nil {
					c.Close()
					t.Error("connected")
				}
				if f := w.awaitDenied(t, "blocked "); f.Address != addr {
					t.Errorf("the denial is about %s", f.Address)
				}
				if d := w.dialled(); len(d) != 0 {
					t.Errorf("dialled %v", d)
				}
			})
		}
	}
}

// In the mode deny-all nothing answers: a connection to any destination is refused before
// it is accepted, and recorded.
func TestDenyAll(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{
		at(networktest.API, 80), at(networktest.API, 443), at(networktest.API, 8080), at(networktest.Misc, 7),
		at(networktest.Metadata, 80), at(networktest.Private, 443), netip.AddrPortFrom(Placeholder, 80).String(), "100.64.0.1:80",
	} {
		t.Run(addr, func(t *testing.T) {
			t.Parallel()
			w := openWorld(t, denyAll())
			c, err := w.dial(t, addr)
			if err == nil {
				c.Close()
			}
			if err == nil || !strings.Contains(err.Error(), "refused") {
				t.Errorf("got %v, want a refused connection", err)
			}
			if f := w.awaitDenied(t, "mode deny-all"); f.Address != addr {
				t.Errorf("the denial is about %s", f.Address)
			}
			if d := w.dialled(); len(d) != 0 {
				t.Errorf("dialled %v", d)
			}
		})
	}
}

// A connection that was accepted before the mode became deny-all, and names its
// destination only afterwards, gets no answer either.
func TestDenyAll_accepted(t *testing.T) {
	t.Parallel()
	for name, says := range map[string]struct {
		port uint16
		text string
	}{
		"HTTP": {80, "GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n"},
		"TLS":  {443, string(helloBytes(t, &tls.Config{ServerName: "api.example.com"}))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := openWorld(t, custom("api.example.com"))
			conn, err := w.dial(t, at(networktest.API, says.port))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(patience))
			setPolicy(t, w.link, denyAll())
			if _, err := io.WriteString(conn, says.text); err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(conn); len(got) > 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("answered %q, %v; want a reset", got, err)
			}
			w.awaitDenied(t, "mode deny-all")
		})
	}
}

// Ports of mail need a policy that lists them (N25).
func TestMail(t *testing.T) {
	t.Parallel()
	w := openWorld(t, sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{{Name: "misc.example.com", Ports: []uint16{465}}}})
	c, err := w.tls(t, at(networktest.Misc, 465), "misc.example.com")
	if err != nil {
		t.Fatal(err)
	}
	echo(t, c, "EHLO")
	any := openWorld(t, custom("*"))
	if c, err := any.dial(t, at(networktest.Misc, 465)); err == nil {
		c.Close()
		t.Error("a policy that does not list the port allows it")
	}
	any.awaitDenied(t, "blocked port 465")
}

// Ranges the operator allows are reached, the link's own addresses never.
func TestAllowRanges(t *testing.T) {
	t.Parallel()
	w := openWorld(t, allowAll(), func(w *world, cfg *EgressConfig) {
		cfg.AllowRanges = []netip.Prefix{netip.MustParsePrefix("10.77.0.0/16"), netip.MustParsePrefix("100.64.0.0/10")}
		w.net.Permit(netip.MustParsePrefix("10.77.0.0/16"))
	})
	conn, err := w.dial(t, at(networktest.Private, 80))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if status, _, err := get(conn, "internal.example.com", "/"); status != 200 {
		t.Errorf("status %d, %v", status, err)
	}
	if c, err := w.dial(t, "100.64.0.1:22"); err == nil {
		c.Close()
		t.Error("the gateway was reached")
	}
	w.awaitDenied(t, "blocked range 100.64.0.0/30")
}
