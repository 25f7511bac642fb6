package network

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/network/networktest"
	"github.com/cayhq/cay/sandbox"
)

// isCut reports whether a connection has ended without its peer's close.
func isCut(conn net.Conn) error {
	conn.SetReadDeadline(time.Now().Add(patience))
	_, err := io.Copy(io.Discard, conn)
	switch {
	case err == nil:
		return errors.New("it came to a clean end")
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errors.New("it goes on")
	}
	return nil
}

// Connections that a new policy would not open are cut before SetPolicy
// returns, and only those (N17).
func TestSetPolicy(t *testing.T) {
	t.Parallel()
	withRules := sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{{Name: "misc.example.com", Rules: []sandbox.Rule{{Deny: true}}}}}
	strict := custom("*.example.com")
	strict.Strict = true
	ranges := func(cidrs ...string) sandbox.Network { return sandbox.Network{Mode: sandbox.Custom, AllowCIDRs: cidrs} }
	denied := func(cidr string) sandbox.Network {
		return sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{{Name: "*"}}, DenyCIDRs: []string{cidr}}
	}
	named, echoed := at(networktest.Misc, 8443), at(networktest.Misc, 7)
	for _, tt := range []struct {
		name     string
		from, to sandbox.Network
		addr     string
		tls      bool
		rule     string // of the cut; empty: it goes on
	}{
		{"deny-all", allowAll(), denyAll(), echoed, false, "mode deny-all"},
		{"the same", custom("*.example.com"), custom("*.example.com"), named, true, ""},
		{"still allowed by name", custom("*.example.com"), custom("misc.example.com"), named, true, ""},
		{"everything", custom("*.example.com"), allowAll(), named, true, ""},
		{"another name", custom("*.example.com"), custom("api.example.com"), named, true, "not in allow"},
		{"another port", custom("*.example.com"), sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{{Name: "*", Ports: []uint16{443, 5432}}}}, named, true, "not in allow"},
		{"its TLS would be opened", custom("*.example.com"), withRules, named, true, `allow "misc.example.com"`},
		{"strict", custom("*.example.com"), strict, named, true, `allow "*.example.com"`},
		{"its range is denied", custom("*"), denied("93.184.0.30"), named, true, "deny_cidrs 93.184.0.30"},
		{"another range is denied", custom("*"), denied("93.184.0.31"), named, true, ""},
		{"still allowed by range", ranges("93.184.0.0/24"), ranges("93.184.0.0/16"), echoed, false, ""},
		{"by range after everything", allowAll(), ranges("93.184.0.0/16"), echoed, false, ""},
		{"not in range", allowAll(), ranges("93.185.0.0/16"), echoed, false, "not in allow"},
		{"names only, and it has none", allowAll(), custom("*"), echoed, false, "allow"},
		{"a range lets it pass unread", ranges("93.184.0.30"), custom("misc.example.com"), named, true, "allow"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := openWorld(t, tt.from)
			raw, err := w.dial(t, tt.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer raw.Close()
			conn := raw
			if tt.tls {
				conn = tls.Client(raw, &tls.Config{ServerName: "misc.example.com", RootCAs: networktest.Roots()})
			}
			echo(t, conn, "before")
			setPolicy(t, w.link, tt.to)
			if tt.rule == "" {
				echo(t, conn, "after")
				return
			}
			if n := w.link.live(); n != 0 {
				t.Errorf("%d flows are live when SetPolicy has returned", n)
			}
			if err := isCut(raw); err != nil {
				t.Error(err)
			}
			if f := w.awaitDenied(t, tt.rule); !strings.Contains(f.Reason, "cut by a change") || f.EgressBytes == 0 || f.Open {
				t.Errorf("record %+v", f)
			}
		})
	}
}

// live counts the flows that have not ended.
func (l *Link) live() (n int) {
	for _, f := range l.open() {
		f.mu.Lock()
		if !f.done {
			n++
		}
		f.mu.Unlock()
	}
	return n
}

// Each request that is read is decided by today's policy, and requests under way that the
// policy denies are cut, as the server's end shows.
func TestSetPolicy_requests(t *testing.T) {
	t.Parallel()
	rules := []sandbox.Rule{{SetHeaders: map[string]string{"Authorization": "Bearer s3cret-value"}}}
	api := sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{{Name: "api.example.com", Ports: []uint16{80, 443}, Rules: rules}, {Name: "files.example.com"}}}
	for _, secure := range []bool{true, false} {
		t.Run(fmt.Sprintf("TLS %t", secure), func(t *testing.T) {
			t.Parallel()
			w := openWorld(t, api)
			port := uint16(80)
			if secure {
				port = 443
			}
			begin := func(path string) (net.Conn, *http.Response) {
				t.Helper()
				raw, err := w.dial(t, at(networktest.API, port))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { raw.Close() })
				conn := raw
				if secure {
					conn = tls.Client(raw, &tls.Config{ServerName: "api.example.com", RootCAs: w.ca})
				}
				conn.SetDeadline(time.Now().Add(patience))
				fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: api.example.com\r\n\r\n", path)
				resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil {
					t.Fatal(err)
				}
				return conn, resp
			}
			_, drip := begin("/drip")
			if _, err := drip.Body.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			idle, resp := begin("/")
			if b, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(b), "s3cret-value") {
				t.Errorf("body %q, %v", b, err)
			}
			setPolicy(t, w.link, custom("files.example.com"))
			if _, err := io.Copy(io.Discard, drip.Body); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the response under way: %v, want it cut", err)
			}
			// An idle connection is cut too, or refuses the next request.
			fmt.Fprintf(idle, "GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
			if resp, err := http.ReadResponse(bufio.NewReader(idle), nil); err == nil && resp.StatusCode != 403 {
				t.Errorf("the next request: %s", resp.Status)
			}
			w.await(t, "the request", func(f sandbox.Flow) bool { return f.Method == "GET" && f.Status == 200 && f.Path == "/" })
		})
	}
}

// A policy that is not valid, or asks for too much, leaves the old one in place.
func TestSetPolicy_invalid(t *testing.T) {
	t.Parallel()
	w := openWorld(t, allowAll(), func(_ *world, cfg *EgressConfig) {
		cfg.Limits = sandbox.NetworkLimits{Connections: 10, BytesPerSecond: 1000}
	})
	for name, n := range map[string]sandbox.Network{
		"mode":        {Mode: "some"},
		"name":        custom("a b"),
		"connections": {Mode: sandbox.DenyAll, Limits: sandbox.NetworkLimits{Connections: 11}},
		"bytes":       {Mode: sandbox.DenyAll, Limits: sandbox.NetworkLimits{BytesPerSecond: 1001}},
		"rate":        {Mode: sandbox.DenyAll, Limits: sandbox.NetworkLimits{ConnectionsPerSecond: DefaultConnectionsPerSecond + 1}},
	} {
		if err := w.link.SetPolicy(n); cay.CodeOf(err) != cay.Invalid {
			t.Errorf("%s: %v, want invalid", name, err)
		}
	}
	ours, guests, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(guests)
	if l, err := w.egress.NewLink(ours, "ses_test", custom("a b"), nil); cay.CodeOf(err) != cay.Invalid {
		t.Errorf("a new link: %v, %v, want invalid", l, err)
	}
	if _, err := unix.Write(guests, []byte("x")); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("the link that was refused is open: %v", err)
	}
	c, err := w.dial(t, at(networktest.Misc, 7))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	echo(t, c, "still open")
	if err := w.link.SetPolicy(sandbox.Network{Mode: sandbox.AllowAll, Limits: sandbox.NetworkLimits{Connections: 10, TotalBytes: 1 << 40}}); err != nil {
		t.Error(err)
	}
}

// Without a daemon there is no way out: packets that the guest of a closed link sends are
// dropped (N19), and a link begins with its policy.
func TestClose_failsClosed(t *testing.T) {
	t.Parallel()
	w := openWorld(t, allowAll())
	c, err := w.dial(t, at(networktest.Misc, 7))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	echo(t, c, "open")
	if err := w.link.Close(); err != nil {
		t.Fatal(err)
	}
	before := w.dialled()
	io.WriteString(c, "into the void")
	w.udp(t, at(networktest.Misc, 7)).Write([]byte("x"))
	if now := w.dialled(); !slices.Equal(before, now) {
		t.Errorf("dialled %v after the end, %v before", now, before)
	}
}
