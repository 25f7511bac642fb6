package network

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/network/networktest"
	"github.com/cayhq/cay/sandbox"
)

// handled is n with names for the egress handler.
func handled(n sandbox.Network, names ...string) sandbox.Network {
	n.Handled = names
	return n
}

// answering sets a handler of the link that answers as, and serves the connections that
// it takes: HTTP that repeats the offer, or for tcp one line.
func (w *world) answering(t *testing.T, as sandbox.Handling) (offered chan sandbox.Outbound) {
	offered = make(chan sandbox.Outbound, 16)
	w.link.OnOutbound(func(_ context.Context, o sandbox.Outbound) (machine.OutboundAnswer, error) {
		offered <- o
		return machine.OutboundAnswer{As: as, Take: func(conn net.Conn) {
			if conn == nil {
				return
			}
			go func() {
				defer conn.Close()
				if o.Protocol == "tcp" {
					line, err := bufio.NewReader(conn).ReadString('\n')
					if err == nil || err == io.EOF {
						fmt.Fprintf(conn, "handled %s", line)
					}
					return
				}
				r, err := http.ReadRequest(bufio.NewReader(conn))
				if err != nil {
					t.Errorf("what the handler got is no request: %v", err)
					return
				}
				body := fmt.Sprintf(`"server":"handler of %s %s"`, o.Protocol, r.Host)
				fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			}()
		}}, nil
	})
	return offered
}

func (w *world) http(t *testing.T, addr, host string) (string, error) {
	t.Helper()
	conn, err := w.dial(t, addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	status, body, err := get(conn, host, "/")
	if err != nil {
		return "", err
	}
	return fmt.Sprint(status, " ", field(body, "server")), nil
}

// The handler gets every connection to a handled name, whatever the policy decides.
func TestOutbound_Taken(t *testing.T) {
	t.Parallel()
	place := at(Placeholder, 443)
	for _, tt := range []struct {
		name    string
		network sandbox.Network
		addr    string
		allowed bool
	}{
		{"offline", handled(denyAll(), "api.example.com"), place, false},
		{"allowed", handled(allowAll(), "*.example.com"), at(networktest.API, 443), true},
		{"custom", handled(custom("other.example.org"), "*"), at(networktest.API, 443), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := openWorld(t, tt.network)
			offered := w.answering(t, sandbox.HandlePlain)
			conn, err := w.dial(t, tt.addr)
			if err != nil {
				t.Fatal(err)
			}
			c := tls.Client(conn, &tls.Config{ServerName: "api.example.com", RootCAs: w.ca})
			defer c.Close()
			status, body, err := get(c, "api.example.com", "/")
			if got := fmt.Sprint(status, " ", field(body, "server")); err != nil || got != "200 handler of tls api.example.com" {
				t.Errorf("got %q, %v", got, err)
			}
			o := <-offered
			if o.Name != "api.example.com" || o.Protocol != "tls" || o.Address != tt.addr || o.Allowed != tt.allowed {
				t.Errorf("offered %+v", o)
			}
			f := w.await(t, "the connection", func(f sandbox.Flow) bool { return f.Rule == ruleHandled && !f.Open })
			if f.Verdict != sandbox.Allowed || f.Name != "api.example.com" || f.IngressBytes == 0 || f.EgressBytes == 0 {
				t.Errorf("recorded %+v", f)
			}
			if got := w.dialled(); len(got) > 0 {
				t.Errorf("the daemon has dialled %v", got)
			}
		})
	}
}

// The handler gets plain HTTP and other protocols unchanged.
func TestOutbound_Raw(t *testing.T) {
	t.Parallel()
	w := openWorld(t, handled(denyAll(), "*"))
	offered := w.answering(t, sandbox.HandleRaw)
	if got, err := w.http(t, at(Placeholder, 8080), "virtual.test:8080"); err != nil || got != "200 handler of http virtual.test:8080" {
		t.Errorf("HTTP: %q, %v", got, err)
	}
	if o := <-offered; o.Name != "virtual.test" || o.Protocol != "http" || o.Allowed {
		t.Errorf("offered %+v", o)
	}
	// A blocked address.
	conn, err := w.dial(t, at(networktest.Private, 7777))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	fmt.Fprintln(conn, "ping")
	if got, err := io.ReadAll(conn); string(got) != "handled ping\n" {
		t.Errorf("TCP: %q, %v", got, err)
	}
	if o := <-offered; o.Name != "" || o.Protocol != "tcp" || o.Address != at(networktest.Private, 7777) {
		t.Errorf("offered %+v", o)
	}
	if got := w.dialled(); len(got) > 0 {
		t.Errorf("the daemon has dialled %v", got)
	}
}

// The policy decides connections that the handler passes, with the server's own
// certificate, and connections to names that are not handled.
func TestOutbound_Passed(t *testing.T) {
	t.Parallel()
	w := openWorld(t, handled(allowAll(), "*"))
	offered := w.answering(t, sandbox.HandlePass)
	conn, err := w.dial(t, at(networktest.API, 443))
	if err != nil {
		t.Fatal(err)
	}
	c := tls.Client(conn, &tls.Config{ServerName: "api.example.com", RootCAs: networktest.Roots()})
	if status, _, err := get(c, "api.example.com", "/"); status != 200 || err != nil {
		t.Errorf("HTTPS: %d, %v", status, err)
	}
	c.Close()
	if got, err := w.http(t, at(networktest.API, 80), "api.example.com"); err != nil || !strings.HasPrefix(got, "200 api") {
		t.Errorf("HTTP: %q, %v", got, err)
	}
	speaksFirst, err := w.dial(t, at(networktest.Misc, 2222))
	if err != nil {
		t.Fatal(err)
	}
	defer speaksFirst.Close()
	speaksFirst.SetDeadline(time.Now().Add(patience))
	if n, err := speaksFirst.Read(make([]byte, 64)); n == 0 {
		t.Errorf("a server that speaks first: %v", err)
	}
	for i, want := range []string{"tls", "http", "tcp"} {
		if o := <-offered; o.Protocol != want || !o.Allowed {
			t.Errorf("offer %d is %+v", i, o)
		}
	}
	// Decided by name: the placeholder is not an address of the server.
	if err := w.link.SetPolicy(handled(custom("api.example.com"), "nothing.test")); err != nil {
		t.Fatal(err)
	}
	if got, err := w.https(t, at(Placeholder, 443), "api.example.com"); err != nil || !strings.HasPrefix(got, "200 api") {
		t.Errorf("a name that is not handled: %q, %v", got, err)
	}
	if _, err := w.https(t, at(Placeholder, 443), "other.example.org"); !isAlert(err) {
		t.Errorf("a name that is neither handled nor allowed: %v", err)
	}
	select {
	case o := <-offered:
		t.Errorf("offered %+v", o)
	default:
	}
}

// Connections to handled names are refused without a handler, by a handler that fails,
// and by a handler that refuses, also where the policy allows everything.
func TestOutbound_Refused(t *testing.T) {
	t.Parallel()
	w := openWorld(t, handled(allowAll(), "api.example.com"))
	for _, tt := range []struct {
		name    string
		handler machine.OutboundHandler
		rule    string
	}{
		{"none", nil, ruleHandled},
		{"failing", func(context.Context, sandbox.Outbound) (machine.OutboundAnswer, error) {
			return machine.OutboundAnswer{}, errors.New("it is away")
		}, ruleHandled},
		{"refusing", func(context.Context, sandbox.Outbound) (machine.OutboundAnswer, error) {
			return machine.OutboundAnswer{As: sandbox.HandleRefuse}, nil
		}, ruleRefused},
	} {
		w.link.OnOutbound(tt.handler)
		if got, err := w.https(t, at(networktest.API, 443), "api.example.com"); err == nil {
			t.Errorf("%s: got %q", tt.name, got)
		}
		w.awaitDenied(t, tt.rule)
	}
	if got, err := w.https(t, at(networktest.Files, 443), "files.example.com"); err != nil || !strings.HasPrefix(got, "200 files") {
		t.Errorf("a name that is not handled: %q, %v", got, err)
	}
	if got := w.dialled(); !slices.Equal(got, []string{"tcp " + at(networktest.Files, 443)}) {
		t.Errorf("the daemon has dialled %v", got)
	}
}

// A connection that the handler serves ends when the policy no longer covers its name,
// and with the link.
func TestOutbound_Cut(t *testing.T) {
	t.Parallel()
	w := openWorld(t, handled(denyAll(), "*"))
	taken := make(chan net.Conn, 1)
	w.link.OnOutbound(func(context.Context, sandbox.Outbound) (machine.OutboundAnswer, error) {
		return machine.OutboundAnswer{As: sandbox.HandleRaw, Take: func(conn net.Conn) { taken <- conn }}, nil
	})
	open := func() net.Conn {
		conn, err := w.dial(t, at(networktest.Misc, 7))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if _, err := io.WriteString(conn, "hello"); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	conn := open()
	held := <-taken
	if err := w.link.SetPolicy(denyAll()); err != nil {
		t.Fatal(err)
	}
	if err := isCut(conn); err != nil {
		t.Errorf("the policy changed: %v", err)
	}
	if _, err := io.Copy(io.Discard, held); err == nil {
		t.Error("the handler's end of a cut connection came to a clean end")
	}
	held.Close()
	if err := w.link.SetPolicy(handled(denyAll(), "*")); err != nil {
		t.Fatal(err)
	}
	open()
	<-taken // which the handler never closes
	if err := w.link.Close(); err != nil {
		t.Error(err)
	}
}

// Handled names resolve to their own addresses if the policy allows them, else to a
// placeholder, without a query to any name server.
func TestOutbound_DNS(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		network sandbox.Network
		name    string
		want    string // empty: it does not exist
	}{
		{handled(allowAll(), "*"), "api.example.com", networktest.API.String()},
		{handled(allowAll(), "*"), "missing.example.com", Placeholder.String()},
		{handled(allowAll(), "*"), "internal.example.com", Placeholder.String()},
		{handled(allowAll(), "api.example.com"), "missing.example.com", ""},
		{handled(denyAll(), "api.*.com"), "api.example.com", Placeholder.String()},
		{handled(denyAll(), "api.*.com"), "files.example.com", ""},
	} {
		w := openWorld(t, tt.network)
		q := w.udp(t, at(GatewayAddr, 53))
		a := ask(t, q, tt.name, dns.TypeA)
		if got := strings.Join(addrsOf(a), " "); got != tt.want || (a.Rcode == dns.RcodeNameError) != (tt.want == "") {
			t.Errorf("%v: %s is %q (%s), want %q", tt.network, tt.name, got, dns.RcodeToString[a.Rcode], tt.want)
		}
		q.Close()
	}
}
