package network

import (
	"bufio"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/net/http/httpproxy"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd/network/networktest"
	"github.com/cayhq/cay/sandbox"
)

// forwardProxy is an HTTP proxy that knows names which no name server knows.
type forwardProxy struct {
	server *httptest.Server
	net    *networktest.Internet
	names  map[string]netip.Addr

	mu    sync.Mutex
	asked []string // "target authorization"
}

// openProxy starts one; with secure it speaks TLS itself.
func openProxy(t *testing.T, n *networktest.Internet, secure bool) *forwardProxy {
	t.Helper()
	p := &forwardProxy{net: n, names: map[string]netip.Addr{
		"api.example.com": networktest.API, "only.proxied.test": networktest.Other, "intranet": networktest.Other, "db.internal": networktest.Other,
	}}
	p.server = httptest.NewUnstartedServer(http.HandlerFunc(p.serve))
	if secure {
		p.server.StartTLS()
	} else {
		p.server.Start()
	}
	t.Cleanup(p.server.Close)
	return p
}

func (p *forwardProxy) serve(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.asked = append(p.asked, r.Host+" "+r.Header.Get("Proxy-Authorization"))
	p.mu.Unlock()
	host, port, err := net.SplitHostPort(r.Host)
	if r.Method != http.MethodConnect || err != nil {
		http.Error(w, "CONNECT only", http.StatusMethodNotAllowed)
		return
	}
	if ip, ok := p.names[host]; ok {
		host = ip.String()
	}
	if _, err := netip.ParseAddr(host); err != nil {
		http.Error(w, "no such name", http.StatusBadGateway)
		return
	}
	out, err := p.net.DialContext(r.Context(), "tcp", net.JoinHostPort(host, port))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer out.Close()
	in, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer in.Close()
	io.WriteString(in, "HTTP/1.1 200 Connection established\r\n\r\n")
	done := make(chan struct{})
	go func() {
		defer close(done)
		io.Copy(out, rw)
		out.(*net.TCPConn).CloseWrite()
	}()
	io.Copy(in, out)
	in.Close()
	<-done
}

func (p *forwardProxy) connects() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := slices.Clone(p.asked)
	slices.Sort(all)
	return slices.Compact(all)
}

func (p *forwardProxy) config(t testing.TB, user string) *httpproxy.Config {
	u := checktest.Must(url.Parse(p.server.URL))(t)
	if user != "" {
		u.User = url.UserPassword(user, "p:w")
	}
	return &httpproxy.Config{HTTPProxy: u.String(), HTTPSProxy: u.String(), NoProxy: "files.example.com,93.184.0.11"}
}

// behind makes a world whose host has a proxy.
func behind(t *testing.T, n sandbox.Network, secure bool) (*world, *forwardProxy) {
	t.Helper()
	var p *forwardProxy
	w := openWorld(t, n, func(w *world, cfg *EgressConfig) {
		p = openProxy(t, w.net, secure)
		user := ""
		if secure {
			user = "me"
			roots := p.server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
			cfg.Roots = roots
		}
		cfg.UpstreamProxy = p.config(t, user)
	})
	return w, p
}

func TestUpstream_TLS(t *testing.T) {
	t.Parallel()
	place := netip.AddrPortFrom(Placeholder, 443).String()
	for _, tt := range []struct {
		name     string
		policy   sandbox.Network
		addr     string
		sni      string
		want     string
		connects []string
		rule     string
	}{
		{"allow-all", allowAll(), at(networktest.API, 443), "api.example.com", "200 api", []string{"api.example.com:443"}, ""},
		{"by name", custom("api.example.com"), at(networktest.API, 443), "api.example.com", "200 api", []string{"api.example.com:443"}, ""},
		{"a name only the proxy knows", custom("*"), place, "only.proxied.test", "200 other", []string{"only.proxied.test:443"}, ""},
		{"the same under allow-all", allowAll(), place, "only.proxied.test", "200 other", []string{"only.proxied.test:443"}, ""},
		{"no name", allowAll(), at(networktest.Other, 443), "", "200 other", []string{"93.185.0.40:443"}, ""},
		{"no name at the placeholder", allowAll(), place, "", "alert", nil, "no name"},
		{"not through the proxy", allowAll(), at(networktest.Files, 443), "files.example.com", "200 files", nil, ""},
		{"another name", custom("api.example.com"), place, "only.proxied.test", "alert", nil, "not in allow"},
		{"a local name", allowAll(), place, "db.internal", "reset", nil, ""},
		{"a single label", allowAll(), place, "intranet", "reset", nil, ""},
		{"a name of a private address", allowAll(), place, "internal.example.com", "alert", nil, "blocked range 10.0.0.0/8"},
		{"a name of two, one private", allowAll(), place, "mixed.example.com", "alert", nil, "blocked range 10.0.0.0/8"},
		{"deny-all", denyAll(), place, "only.proxied.test", "reset", nil, "mode deny-all"},
		{"neither knows it", custom("*"), place, "unknown.proxied.test", "reset", []string{"unknown.proxied.test:443"}, ""},
	} {
		for _, secure := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, proxy with TLS %t", tt.name, secure), func(t *testing.T) {
				t.Parallel()
				w, p := behind(t, tt.policy, secure)
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
				var want []string
				for _, c := range tt.connects {
					auth := ""
					if secure {
						auth = "Basic " + base64.StdEncoding.EncodeToString([]byte("me:p:w"))
					}
					want = append(want, c+" "+auth)
				}
				if c := p.connects(); !slices.Equal(c, want) {
					t.Errorf("the proxy was asked for %q, want %q", c, want)
				}
				if tt.rule != "" {
					w.awaitDenied(t, tt.rule)
				} else if tt.want == "reset" {
					w.await(t, "a failure", func(f sandbox.Flow) bool { return f.Verdict == sandbox.Broken && !strings.Contains(f.Reason, "p:w") })
				}
			})
		}
	}
}

func TestUpstream_HTTP(t *testing.T) {
	t.Parallel()
	place := netip.AddrPortFrom(Placeholder, 80).String()
	for _, tt := range []struct {
		policy   sandbox.Network
		addr     string
		host     string
		status   int
		connects []string
	}{
		{custom("*"), place, "only.proxied.test", 200, []string{"only.proxied.test:80 "}},
		{allowAll(), place, "only.proxied.test", 200, []string{"only.proxied.test:80 "}},
		{allowAll(), at(networktest.Other, 80), "93.185.0.40", 200, []string{"93.185.0.40:80 "}},
		{allowAll(), place, "internal.example.com", 403, nil},
		{custom("api.example.com"), place, "only.proxied.test", 403, nil},
	} {
		t.Run(string(tt.policy.Mode)+" "+tt.host, func(t *testing.T) {
			t.Parallel()
			w, p := behind(t, tt.policy, false)
			conn, err := w.dial(t, tt.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if status, body, err := get(conn, tt.host, "/"); status != tt.status {
				t.Errorf("status %d, body %q, %v", status, body, err)
			}
			if c := p.connects(); !slices.Equal(c, tt.connects) {
				t.Errorf("the proxy was asked for %q, want %q", c, tt.connects)
			}
		})
	}
}

// Names that only the proxy can resolve have an address for guests, and guests cannot
// reach the proxy itself.
func TestUpstream_guestsView(t *testing.T) {
	t.Parallel()
	w, p := behind(t, allowAll(), false)
	for name, want := range map[string][]string{
		"only.proxied.test": {Placeholder.String()}, "api.example.com": {networktest.API.String()},
		"db.internal": nil, "intranet": nil, "internal.example.com": nil,
	} {
		if a := addrsOf(ask(t, w.udp(t, "100.64.0.1:53"), name, dns.TypeA)); !slices.Equal(a, want) {
			t.Errorf("%s is at %v, want %v", name, a, want)
		}
	}
	addr := netip.MustParseAddrPort(p.server.Listener.Addr().String())
	if d := w.egress.blockedAddr(addr); d.Verdict == 1 || !strings.HasPrefix(d.Rule, "blocked") {
		t.Errorf("the proxy at %s: %+v", addr, d)
	}
	open := openEgress(t, EgressConfig{UpstreamProxy: p.config(t, ""), AllowRanges: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	if d := open.blockedAddr(addr); d.Rule != "blocked address of the host's proxy" {
		t.Errorf("the proxy in a range that is allowed: %+v", d)
	}
	if c, err := w.dial(t, netip.AddrPortFrom(Placeholder, 22).String()); err == nil {
		c.SetDeadline(time.Now().Add(patience))
		io.WriteString(c, "SSH-2.0-x\r\n")
		if err := isCut(c); err != nil {
			t.Errorf("the placeholder at another port: %v", err)
		}
		c.Close()
	}
}

func TestUpstream_config(t *testing.T) {
	t.Parallel()
	for text, ok := range map[string]bool{
		"http://proxy.test:3128": true, "https://proxy.test": true, "proxy.test:3128": true, "": true,
		"socks5://proxy.test:1080": false, "ftp://proxy.test": false,
	} {
		e, err := NewEgress(EgressConfig{UpstreamProxy: &httpproxy.Config{HTTPSProxy: text}, Nameservers: noServer})
		if err == nil {
			e.Close()
		}
		if (err == nil) != ok || err != nil && cay.CodeOf(err) != cay.Invalid {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// Requests that are read also go through the proxy.
func TestUpstream_rules(t *testing.T) {
	t.Parallel()
	n := sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{{Name: "api.example.com", Rules: []sandbox.Rule{{SetHeaders: map[string]string{"X-Key": "value-of-key"}}}}}}
	w, p := behind(t, n, false)
	conn, err := w.dial(t, at(networktest.API, 443))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	c := tls.Client(conn, &tls.Config{ServerName: "api.example.com", RootCAs: w.ca})
	fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: api.example.com\r\nConnection: close\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(resp.Body); !strings.Contains(string(b), "value-of-key") {
		t.Errorf("%s %q, %v", resp.Status, b, err)
	}
	if c := p.connects(); !slices.Equal(c, []string{"api.example.com:443 "}) {
		t.Errorf("the proxy was asked for %q", c)
	}
}
