package intercept

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/leaktest"
	"github.com/cayhq/cay/internal/sandboxd/network/policy"
	"github.com/cayhq/cay/sandbox"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// patience bounds waits for events that must come.
const patience = time.Minute

// world is a Proxy between a guest and servers with an authority of their own.
type world struct {
	t        testing.TB
	proxy    *Proxy
	ca       *CA
	upstream *Upstream
	memory   Memory // of sessions that begin
	roots    *authorityOfServers
	log      checktest.Log
	policy   atomic.Pointer[policy.Policy]
	flows    chan sandbox.Flow
	dials    atomic.Int64
	closed   chan struct{} // gets an element for each closed connection to a server
	refusal  *policy.Decision
	// forwardToken is the Session.ForwardToken of new sessions.
	forwardToken func(ctx context.Context, audience string) (string, error)
	sessions     sync.WaitGroup

	mu      sync.Mutex // guards what follows
	servers map[string]string
}

func newWorld(t testing.TB, domains ...sandbox.Domain) *world {
	t.Helper()
	w := &world{t: t, roots: newAuthority(t), flows: make(chan sandbox.Flow, 1000), closed: make(chan struct{}, 10000), servers: map[string]string{}}
	var err error
	if w.ca, err = OpenCA(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	w.setPolicy(domains...)
	w.proxy = New(Config{CA: w.ca, Roots: w.roots.pool, Logger: slog.New(slog.NewTextHandler(&w.log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	w.upstream = w.proxy.NewUpstream(nil)
	t.Cleanup(func() {
		w.proxy.Close()
		w.sessions.Wait()
		w.upstream.Close()
	})
	return w
}

func (w *world) setPolicy(domains ...sandbox.Domain) {
	w.t.Helper()
	p, err := policy.Compile(sandbox.Network{Mode: sandbox.Custom, Allow: domains, Strict: true})
	if err != nil {
		w.t.Fatal(err)
	}
	w.policy.Store(p)
}

func allow(name string, rules ...sandbox.Rule) sandbox.Domain {
	return sandbox.Domain{Name: name, Rules: rules}
}

// serve makes handler the server of name. Ports 443 and 8443 have TLS.
func (w *world) serve(name string, port uint16, h2 bool, handler http.Handler) *httptest.Server {
	return w.serveAs(name, port, h2, handler, nil)
}

func (w *world) serveAs(name string, port uint16, h2 bool, handler http.Handler, cert *tls.Certificate) *httptest.Server {
	s := httptest.NewUnstartedServer(handler)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.EnableHTTP2 = h2
	if isTLS(port) {
		if cert == nil {
			cert = w.roots.issue(w.t, func(c *x509.Certificate) { c.DNSNames = []string{name} })
		}
		s.TLS = &tls.Config{Certificates: []tls.Certificate{*cert}}
		s.StartTLS()
	} else {
		s.Start()
	}
	w.t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	w.route(name, port, s.Listener.Addr().String())
	return s
}

func isTLS(port uint16) bool { return port == 443 || port == 8443 }

func (w *world) route(name string, port uint16, to string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.servers[net.JoinHostPort(name, strconv.Itoa(int(port)))] = to
}

// serveRaw serves each connection to name with handle.
func (w *world) serveRaw(name string, port uint16, handle func(net.Conn)) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				if isTLS(port) {
					cert := w.roots.issue(w.t, func(c *x509.Certificate) { c.DNSNames = []string{name} })
					t := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{*cert}})
					defer t.Close()
					handle(t)
					return
				}
				handle(c)
			})
		}
	})
	w.t.Cleanup(func() {
		ln.Close()
		w.upstream.Close() // ends the requests that handle waits for
		wg.Wait()
	})
	w.route(name, port, ln.Addr().String())
}

// dial is Session.Dial: it connects to the test's servers, and refuses private ones.
func (w *world) dial(ctx context.Context, name string, port uint16) (net.Conn, error) {
	w.dials.Add(1)
	w.mu.Lock()
	to := w.servers[net.JoinHostPort(name, strconv.Itoa(int(port)))]
	w.mu.Unlock()
	switch {
	case strings.HasPrefix(name, "private.") || strings.HasPrefix(name, "10."):
		return nil, cay.Errorf(cay.PermissionDenied, "%s is at 10.0.0.1, which is not on the public internet", name)
	case strings.HasPrefix(name, "denied."):
		return nil, fmt.Errorf("dial: %w", &Refused{Rule: "deny_cidrs 192.0.2.0/24", Reason: name + " is at 192.0.2.1"})
	case to == "":
		return nil, fmt.Errorf("%s does not exist", name)
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", to)
	if err != nil {
		return nil, err
	}
	return &dialled{Conn: conn, world: w}, nil
}

type dialled struct {
	net.Conn
	world *world
	once  sync.Once
}

func (d *dialled) Close() error {
	d.once.Do(func() { d.world.closed <- struct{}{} })
	return d.Conn.Close()
}

func (d *dialled) CloseWrite() error { return d.Conn.(*net.TCPConn).CloseWrite() }

func (w *world) session(name string, port uint16) *Session {
	return &Session{
		Name: name, Port: port, Policy: w.policy.Load, Dial: w.dial, Upstream: w.upstream, Memory: w.memory, Refusal: w.refusal, ForwardToken: w.forwardToken,
		Record: func(f sandbox.Flow) { w.flows <- f },
	}
}

// connect returns the guest's end of a connection that is served. name is for TLS.
func (w *world) connect(ctx context.Context, name string, port uint16) net.Conn {
	w.t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Error(err)
		return nil
	}
	defer ln.Close()
	conn, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		w.t.Error(err)
		return nil
	}
	end, err := ln.Accept()
	if err != nil {
		w.t.Error(err)
		return nil
	}
	w.sessions.Go(func() {
		if isTLS(port) {
			w.proxy.ServeTLS(ctx, end, w.session(name, port))
		} else {
			w.proxy.ServeHTTP1(ctx, end, w.session("", port))
		}
	})
	return conn
}

// guestTrust returns the authorities by which the guest verifies servers.
func (w *world) guestTrust() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(w.ca.PEM())
	return pool
}

// guest returns an HTTP client in the guest.
func (w *world) guest(h2 bool) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!h2)
	protocols.SetHTTP2(h2)
	tr := &http.Transport{
		DialContext: func(_ context.Context, _, address string) (net.Conn, error) {
			name, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			n, err := strconv.ParseUint(port, 10, 16)
			if err != nil {
				return nil, err
			}
			return w.connect(w.t.Context(), name, uint16(n)), nil
		},
		TLSClientConfig:       &tls.Config{RootCAs: w.guestTrust()},
		Protocols:             protocols,
		DisableCompression:    true,
		ExpectContinueTimeout: patience,
	}
	w.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// raw sends text to a plain-HTTP session and returns all bytes of the answer.
func (w *world) raw(text string) string {
	w.t.Helper()
	c := w.connect(w.t.Context(), "", 80)
	defer c.Close()
	return exchangeRaw(w.t, c, text)
}

func exchangeRaw(t testing.TB, c net.Conn, text string) string {
	t.Helper()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(c)
	if err != nil {
		t.Fatalf("after %q: %v", answer, err)
	}
	return string(answer)
}

func (w *world) flow() sandbox.Flow {
	w.t.Helper()
	select {
	case f := <-w.flows:
		return f
	case <-time.After(patience):
		w.t.Fatal("no flow was recorded")
		return sandbox.Flow{}
	}
}

// get returns status, headers and body.
func get(t testing.TB, c *http.Client, url string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return do(t, c, req)
}

func do(t testing.TB, c *http.Client, req *http.Request) (*http.Response, string) {
	t.Helper()
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("after %.200q: %v", body, err)
	}
	return res, string(body)
}

func receive[T any](t testing.TB, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("%s did not come", what)
		panic("unreachable")
	}
}

// authorityOfServers signs certificates of servers.
type authorityOfServers struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pool *x509.CertPool
}

func newAuthority(t testing.TB) *authorityOfServers {
	t.Helper()
	a := &authorityOfServers{pool: x509.NewCertPool()}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "Servers' Root"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.pool.AddCert(a.cert)
	return a
}

func (a *authorityOfServers) issue(t testing.TB, change func(*x509.Certificate)) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	change(template)
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
