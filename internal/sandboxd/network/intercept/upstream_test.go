package intercept

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cayhq/cay/sandbox"
)

// A server must prove that it is the requested host.
func TestUpstream_Certificates(t *testing.T) {
	t.Parallel()
	w := newWorld(t, allow(host, inject(false)))
	other := newAuthority(t)
	named := func(c *x509.Certificate) { c.DNSNames = []string{host} }
	expired := w.roots.issue(t, func(c *x509.Certificate) {
		named(c)
		c.NotBefore, c.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
	})
	for _, test := range []struct {
		name string
		cert *tls.Certificate
		want string
	}{
		{"wrong name", w.roots.issue(t, func(c *x509.Certificate) { c.DNSNames = []string{"other.example.com"} }), "not " + host},
		{"expired", expired, "expired"},
		{"unknown authority", other.issue(t, named), "unknown authority"},
		{"self-signed", &tls.Certificate{Certificate: [][]byte{other.cert.Raw}, PrivateKey: other.key}, "not "},
		{"of our own authority", mustLeaf(t, w.ca), "unknown authority"},
	} {
		got := make(chan struct{}, 1)
		w.serveAs(host, 443, true, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { got <- struct{}{} }), test.cert)
		res, body := get(t, w.guest(true), "https://"+host+"/")
		f := w.flow()
		if res.StatusCode != http.StatusBadGateway || !strings.Contains(body, "not trusted") || !strings.Contains(body, test.want) ||
			f.Verdict != sandbox.Broken || !strings.Contains(f.Reason, test.want) || len(got) > 0 {
			t.Errorf("%s: %d %s, recorded %+v, server was asked %d times", test.name, res.StatusCode, body, f, len(got))
		}
	}
}

func mustLeaf(t *testing.T, ca *CA) *tls.Certificate {
	t.Helper()
	c, err := ca.leaf(host)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// remoteAddr is a server that answers with the address of the request's connection.
var remoteAddr = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { io.WriteString(rw, r.RemoteAddr) })

// Connections are reused within a sandbox, but not across sandboxes, and not after a
// change of policy.
func TestUpstream_Pool(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, guestH2, serverH2 bool) {
		w := newWorld(t, allow(host))
		w.serve(host, 443, serverH2, remoteAddr)
		ask := func() string {
			c := w.guest(guestH2)
			_, addr := get(t, c, "https://"+host+"/")
			c.CloseIdleConnections()
			if f := w.flow(); f.Address == "" {
				t.Errorf("recorded %+v", f)
			}
			return addr
		}
		first := ask()
		if second := ask(); second != first {
			t.Errorf("another session of the sandbox had another connection: %s, then %s", first, second)
		}
		mine := w.upstream
		w.upstream = w.proxy.NewUpstream(nil)
		if other := ask(); other == first {
			t.Errorf("another sandbox had the same connection: %s", other)
		}
		w.upstream.Close()
		w.upstream = mine
		if again := ask(); again != first {
			t.Errorf("the sandbox lost its connection %s to another: %s", first, again)
		}
		w.upstream.Reset()
		if after := ask(); after == first {
			t.Errorf("after a change of policy, the connection was used again: %s", after)
		}
		w.upstream.Close()
		if res, body := get(t, w.guest(guestH2), "https://"+host+"/"); res.StatusCode != http.StatusBadGateway {
			t.Errorf("a closed Upstream: %d %s", res.StatusCode, body)
		}
	})
}

// room is a Memory with a number of bytes left.
type room struct {
	left  atomic.Int64
	given chan struct{}
}

func (r *room) Take(n int64) bool {
	if r.left.Add(-n) >= 0 {
		return true
	}
	r.left.Add(n)
	return false
}

func (r *room) Give(n int64) {
	r.left.Add(n)
	r.given <- struct{}{}
}

// If memory has no room for another connection's windows, HTTP/1.1 is used.
func TestUpstream_Memory(t *testing.T) {
	t.Parallel()
	const other, size = "other.example.com", guestWindow + serverWindow
	w := newWorld(t, allow(host), allow(other))
	memory := &room{given: make(chan struct{}, 10)}
	memory.left.Store(size)
	w.memory, w.upstream = memory, w.proxy.NewUpstream(memory)
	for _, name := range []string{host, other} {
		w.serve(name, 443, true, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { io.WriteString(rw, r.Proto) }))
	}
	ask := func(name string) (*http.Client, string) {
		c := w.guest(true)
		c.Transport.(*http.Transport).Protocols.SetHTTP1(true)
		res, body := get(t, c, "https://"+name+"/")
		return c, res.Proto + " " + body
	}
	first, got := ask(host)
	if got != "HTTP/2.0 HTTP/2.0" || memory.left.Load() != 0 {
		t.Errorf("the first is %s, and %d bytes are left", got, memory.left.Load())
	}
	second, got := ask(other)
	if got != "HTTP/1.1 HTTP/1.1" || memory.left.Load() != 0 {
		t.Errorf("without room it is %s, and %d bytes are left", got, memory.left.Load())
	}
	first.CloseIdleConnections()
	second.CloseIdleConnections()
	w.upstream.Close()
	receive(t, memory.given, "the guest's window")
	receive(t, memory.given, "the server's window")
	if left := memory.left.Load(); left != size {
		t.Errorf("%d of %d bytes are left when all have gone", left, int64(size))
	}
}

// A request under way outlives Reset, and its connection is closed after it;
// Close ends it.
func TestUpstream_ResetAndClose(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, guestH2, serverH2 bool) {
		w := newWorld(t, allow(host))
		next := make(chan struct{})
		w.serve(host, 443, serverH2, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			io.WriteString(rw, "begun ")
			_ = http.NewResponseController(rw).Flush()
			select {
			case <-next:
				io.WriteString(rw, "done")
			case <-r.Context().Done():
				next <- struct{}{}
			}
		}))
		start := func() *http.Response {
			res, err := w.guest(guestH2).Get("https://" + host + "/")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { res.Body.Close() })
			return res
		}
		res := start()
		w.upstream.Reset()
		next <- struct{}{}
		if body, err := io.ReadAll(res.Body); err != nil || string(body) != "begun done" {
			t.Errorf("after Reset: %q, %v", body, err)
		}
		receive(t, w.closed, "the end of the old connection")
		res = start()
		w.upstream.Close()
		receive(t, next, "the end at the server")
		if body, err := io.ReadAll(res.Body); err == nil {
			t.Errorf("after Close: %q", body)
		}
	})
}

// A dial that ends after the Upstream is closed leaves nothing.
func TestUpstream_CloseWhileDialling(t *testing.T) {
	t.Parallel()
	w := newWorld(t, allow(host))
	dialling, goOn := make(chan struct{}), make(chan struct{})
	near, far := net.Pipe()
	s := w.session("", 80)
	s.Dial = func(context.Context, string, uint16) (net.Conn, error) {
		close(dialling)
		<-goOn
		return near, nil
	}
	guest, end := net.Pipe()
	w.sessions.Go(func() { w.proxy.ServeHTTP1(t.Context(), end, s) })
	go io.WriteString(guest, "GET / HTTP/1.1\r\nHost: "+host+"\r\n\r\n")
	receive(t, dialling, "the dial")
	w.upstream.Close()
	close(goOn)
	if _, err := far.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the connection that came late: %v", err)
	}
	guest.Close()
}
