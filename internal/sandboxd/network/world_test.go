package network

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/cayhq/cay/internal/sandboxd/network/intercept"
	"github.com/cayhq/cay/internal/sandboxd/network/networktest"
	"github.com/cayhq/cay/sandbox"
)

// patience is how long a test waits for events that should come at once.
const patience = time.Minute

// world is a guest on a link to an internet of its own.
type world struct {
	guestStack
	*flowLog
	net    *networktest.Internet
	egress *Egress
	link   *Link
	ca     *x509.CertPool // that intercepted names have their certificates from
}

// openWorld makes a world with a policy; change may edit the configuration of the Egress.
func openWorld(t *testing.T, n sandbox.Network, change ...func(*world, *EgressConfig)) *world {
	t.Helper()
	w := &world{net: networktest.Start(t), ca: x509.NewCertPool(), flowLog: newFlowLog()}
	ca, err := intercept.OpenCA(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w.ca.AppendCertsFromPEM(ca.PEM())
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	proxy := intercept.New(intercept.Config{CA: ca, Roots: networktest.Roots(), Logger: log})
	t.Cleanup(proxy.Close)
	cfg := EgressConfig{Logger: log, Nameservers: w.net.Nameservers(), DialContext: w.net.DialContext, Proxy: proxy}
	for _, f := range change {
		f(w, &cfg)
	}
	w.egress = openEgress(t, cfg)
	w.egress.sniffTimeout = patience // the machine may be busy
	w.link, w.guestStack = join(t, w.egress, n)
	w.link.OnFlow(w.add)
	return w
}

// flowLog collects records.
type flowLog struct {
	mu    sync.Mutex
	flows []sandbox.Flow
	more  chan struct{} // closed and replaced at each record
}

func newFlowLog() *flowLog { return &flowLog{more: make(chan struct{})} }

func (l *flowLog) add(f sandbox.Flow) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flows = append(l.flows, f)
	close(l.more)
	l.more = make(chan struct{})
}

// await returns the first record that is right.
func (l *flowLog) await(t testing.TB, what string, right func(sandbox.Flow) bool) sandbox.Flow {
	t.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for {
		l.mu.Lock()
		i := slices.IndexFunc(l.flows, right)
		flows, more := l.flows, l.more
		l.mu.Unlock()
		if i >= 0 {
			return flows[i]
		}
		select {
		case <-more:
		case <-timeout.C:
			t.Fatalf("no record of %s in %d:\n%s", what, len(flows), describe(flows))
		}
	}
}

func describe(flows []sandbox.Flow) string {
	var b strings.Builder
	for _, f := range flows {
		fmt.Fprintf(&b, "%d %s %s %q %s rule %q: %s (open %t, in %d, out %d)\n", f.Seq, f.Verdict, f.Protocol, f.Name, f.Address, f.Rule, f.Reason, f.Open, f.IngressBytes, f.EgressBytes)
	}
	return b.String()
}

// awaitDenied returns the denial whose rule begins with rule.
func (l *flowLog) awaitDenied(t testing.TB, rule string) sandbox.Flow {
	t.Helper()
	f := l.await(t, "a denial by "+rule, func(f sandbox.Flow) bool {
		return f.Verdict == sandbox.Denied && strings.HasPrefix(f.Rule, rule)
	})
	if f.Reason == "" || f.Seq == 0 || f.Time.IsZero() {
		t.Errorf("a denial that explains nothing: %+v", f)
	}
	return f
}

// tls connects to addr and asks for the name sni.
func (w *world) tls(t testing.TB, addr, sni string, alpn ...string) (*tls.Conn, error) {
	t.Helper()
	conn, err := w.dial(t, addr)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { conn.Close() })
	c := tls.Client(conn, &tls.Config{ServerName: sni, InsecureSkipVerify: true, NextProtos: alpn})
	conn.SetDeadline(time.Now().Add(patience))
	if err := c.HandshakeContext(t.Context()); err != nil {
		return nil, err
	}
	return c, nil
}

// get asks for path on an open connection, and returns the status and the body.
func get(conn net.Conn, host, path string) (int, string, error) {
	conn.SetDeadline(time.Now().Add(patience))
	req, err := http.NewRequest("GET", "http://"+host+path, nil)
	if err != nil {
		return 0, "", err
	}
	req.Close = true
	if err := req.Write(conn); err != nil {
		return 0, "", err
	}
	return response(conn)
}

func response(conn io.Reader) (int, string, error) {
	all, err := io.ReadAll(conn)
	head, body, ok := bytes.Cut(all, []byte("\r\n\r\n"))
	if !ok {
		return 0, "", fmt.Errorf("no response in %q: %w", all, err)
	}
	var status int
	if _, err := fmt.Sscanf(string(head), "HTTP/1.1 %d", &status); err != nil {
		return 0, "", err
	}
	return status, string(body), nil
}

// https gets path from the name sni at addr, and returns the name of the server that
// answered.
func (w *world) https(t testing.TB, addr, sni string) (server string, err error) {
	t.Helper()
	c, err := w.tls(t, addr, sni)
	if err != nil {
		return "", err
	}
	defer c.Close()
	status, body, err := get(c, sni, "/")
	if err != nil {
		return "", err
	}
	return fmt.Sprint(status, " ", field(body, "server")), nil
}

// field returns a text field of a JSON body.
func field(body, name string) string {
	_, rest, _ := strings.Cut(body, `"`+name+`":"`)
	value, _, _ := strings.Cut(rest, `"`)
	return value
}

// isAlert reports whether err is the TLS alert we refuse with.
func isAlert(err error) bool {
	var alert tls.AlertError
	return errors.As(err, &alert) && alert == 49 || err != nil && strings.Contains(err.Error(), "access denied")
}

// dialled returns the addresses that were dialled, sorted.
func (w *world) dialled() []string {
	var all []string
	for _, d := range w.net.Dials(networktest.Mark{}) {
		all = append(all, d.String())
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// ask sends a query and returns the answer.
func ask(t testing.TB, conn net.Conn, name string, qtype uint16, change ...func(*dns.Msg)) *dns.Msg {
	t.Helper()
	conn.SetDeadline(time.Now().Add(patience))
	q := new(dns.Msg).SetQuestion(dns.Fqdn(name), qtype)
	for _, f := range change {
		f(q)
	}
	a, _, err := new(dns.Client).ExchangeWithConn(q, &dns.Conn{Conn: conn})
	if err != nil {
		t.Fatalf("%s %s: %v", name, dns.Type(qtype), err)
	}
	return a
}

func addrsOf(a *dns.Msg) (all []string) {
	for _, rr := range a.Answer {
		if rec, ok := rr.(*dns.A); ok {
			all = append(all, rec.A.String())
		}
	}
	return all
}

// custom is a policy that allows names.
func custom(names ...string) sandbox.Network {
	n := sandbox.Network{Mode: sandbox.Custom}
	for _, name := range names {
		n.Allow = append(n.Allow, sandbox.Domain{Name: name})
	}
	return n
}

func at(ip netip.Addr, port uint16) string { return netip.AddrPortFrom(ip, port).String() }
