package docker

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/sandbox"
)

// worker is the side of workerd that connections of containers come to. It has mappings
// for the HTTP of mapped.example at port 80, for its TLS at port 443, for HTTP at port
// 80 of any address if all is set, and for TCP to 11.0.0.1:7777.
type worker struct {
	*httptest.Server
	all bool

	mu    sync.Mutex // guards what follows
	dials []string   // addresses that it would have dialled by itself
	asked []string   // all addresses
}

func startWorker(t *testing.T) *worker {
	w := &worker{}
	w.Server = httptest.NewServer(http.HandlerFunc(w.serve))
	t.Cleanup(w.Close)
	return w
}

func (w *worker) serve(rw http.ResponseWriter, r *http.Request) {
	sni, host := r.Header.Get("X-Tls-Sni"), r.Header.Get("X-Hostname")
	_, port, err := net.SplitHostPort(r.Host)
	if err != nil || r.Method != http.MethodConnect {
		http.Error(rw, "not a connection", http.StatusBadRequest)
		return
	}
	status := http.StatusAccepted
	switch {
	case sni == "mapped.example" && port == "443", host == "mapped.example" && port == "80", sni == "" && w.all && port == "80":
		status = http.StatusOK
	}
	w.mu.Lock()
	w.asked = append(w.asked, r.Host)
	mapped := status == http.StatusOK || sni+host == "" && r.Host == "11.0.0.1:7777"
	if !mapped {
		w.dials = append(w.dials, r.Host)
	}
	w.mu.Unlock()
	conn, buf, err := http.NewResponseController(rw).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	fmt.Fprintf(conn, "HTTP/1.1 %d x\r\n\r\n", status)
	if !mapped {
		return
	}
	line, err := buf.ReadString('\n')
	if err == nil {
		fmt.Fprintf(conn, "%d got %s", status, line)
	}
}

// seen returns what was asked for since the last call, and what would have been dialled.
func (w *worker) seen() (asked, dials []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	asked, dials = w.asked, w.dials
	w.asked, w.dials = nil, nil
	return asked, dials
}

// Connections of a container are workerd's if it has a mapping for them, and all others
// are left to the daemon: workerd is told no address that the policy does not allow.
func TestEgress(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	workerd := startWorker(t)
	_, port, err := net.SplitHostPort(workerd.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	addr := b.sidecar(port)
	put := func(body string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), "PUT", "http://"+addr+"/egress", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if text, _ := io.ReadAll(resp.Body); resp.StatusCode != 204 {
			t.Fatalf("PUT /egress: %d %s", resp.StatusCode, text)
		}
	}
	put(`{"port":` + port + `,"dns":{"allowHostnames":["mapped.example"]},"internet":{"enabled":true}}`)
	id := b.create(long, "sleep 60", m{"Labels": m{sessionLabel: "s"}, "HostConfig": m{"NetworkMode": "container:" + long + "-proxy"}})
	b.start(id)
	c, err := b.server.find(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	network := func() string {
		t.Helper()
		now, err := b.server.find(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(now.box.Network.Mode, now.box.Network.Handled)
	}
	// offer returns what becomes of a connection, and what workerd answers.
	offer := func(o sandbox.Outbound) (sandbox.Handling, string) {
		t.Helper()
		a, err := b.fake.Outbound(t.Context(), c.box.SessionID, o)
		if err != nil {
			t.Fatalf("%+v: %v", o, err)
		}
		return a.As, b.talk(a)
	}
	for _, tt := range []struct {
		name    string
		egress  string // "": as it was
		all     bool   // workerd maps every address
		network string
		o       sandbox.Outbound
		as      sandbox.Handling
		text    string
		asked   []string
	}{
		{"TLS of a mapped name", "", false, "allow-all[mapped.example]",
			sandbox.Outbound{Protocol: "tls", Name: "mapped.example", Address: "203.0.113.7:443", Allowed: true}, "plain", "200 got ping", []string{"255.255.255.255:443"}},
		{"HTTP of a mapped name", "", false, "",
			sandbox.Outbound{Protocol: "http", Name: "mapped.example", Address: "203.0.113.7:80", Allowed: true}, "raw", "200 got ping", []string{"255.255.255.255:80"}},
		{"another port of a mapped name", "", false, "",
			sandbox.Outbound{Protocol: "http", Name: "mapped.example", Address: "203.0.113.7:8080", Allowed: true}, "pass", "", []string{"255.255.255.255:8080"}},
		{"a name of another mapping", `{"dns":{"allowHostnames":["*"]}}`, false, "allow-all[*]",
			sandbox.Outbound{Protocol: "tls", Name: "other.example", Address: "203.0.113.7:443", Allowed: true}, "pass", "", []string{"255.255.255.255:443", "203.0.113.7:443"}},
		{"an address on the host's network", "", false, "",
			sandbox.Outbound{Protocol: "tls", Name: "metadata", Address: "169.254.169.254:443"}, "pass", "", []string{"255.255.255.255:443"}},
		{"TCP to the host's network", "", false, "",
			sandbox.Outbound{Protocol: "tcp", Address: "10.0.0.1:22"}, "pass", "", nil},
		{"HTTP to any address", "", true, "",
			sandbox.Outbound{Protocol: "http", Address: "10.0.0.1:80"}, "raw", "200 got ping", []string{"255.255.255.255:80"}},
		{"TCP of a mapping", "", false, "",
			sandbox.Outbound{Protocol: "tcp", Address: "11.0.0.1:7777", Allowed: true}, "raw", "202 got ping", []string{"11.0.0.1:7777"}},
		{"TCP offline", `{"internet":{"enabled":false}}`, false, "deny-all[*]",
			sandbox.Outbound{Protocol: "tcp", Address: "11.0.0.1:7777"}, "raw", "202 got ping", []string{"11.0.0.1:7777"}},
		{"TLS offline", "", false, "",
			sandbox.Outbound{Protocol: "tls", Name: "mapped.example", Address: "198.18.53.80:443"}, "plain", "200 got ping", []string{"198.18.53.80:443"}},
	} {
		if tt.egress != "" {
			put(tt.egress)
		}
		if got := network(); tt.network != "" && got != tt.network {
			t.Errorf("%s: the network is %s, want %s", tt.name, got, tt.network)
		}
		workerd.all = tt.all
		as, text := offer(tt.o)
		asked, dials := workerd.seen()
		if as != tt.as || text != tt.text || !slices.Equal(asked, tt.asked) {
			t.Errorf("%s: %s %q after %q, want %s %q after %q", tt.name, as, text, asked, tt.as, tt.text, tt.asked)
		}
		for _, d := range dials {
			if offline := strings.HasPrefix(network(), "deny-all"); !strings.HasPrefix(d, unroutableOf) && !offline && !tt.o.Allowed {
				t.Errorf("%s: workerd would have dialled %s, which the policy does not allow", tt.name, d)
			}
		}
	}

	// A server that takes the place of this one goes on.
	b.serve("tok_default")
	b.do("GET", "/_ping", nil).want(200)
	side := b.server.sides.find(long + "-proxy")
	if side == nil {
		t.Fatal("the sidecar is not served again")
	}
	if err := b.server.handleEgress(side.side).await(t.Context()); err != nil {
		t.Fatal(err)
	}
	if as, text := offer(sandbox.Outbound{Protocol: "http", Name: "mapped.example", Address: "198.18.53.80:80"}); as != "raw" || text != "200 got ping" {
		t.Errorf("after the server has been replaced: %s %q", as, text)
	}
	workerd.Close()
	if as, _ := offer(sandbox.Outbound{Protocol: "http", Name: "mapped.example", Address: "198.18.53.80:80"}); as != sandbox.HandleRefuse {
		t.Errorf("without workerd: %s", as)
	}
	b.do("DELETE", "/containers/"+long+"?force=true", nil).want(204)
	b.do("DELETE", "/containers/"+long+"-proxy?force=true", nil).want(204)
}

const unroutableOf = "255.255.255.255"

// sidecar starts a sidecar whose workerd listens on a port, and returns its address.
func (b *bed) sidecar(port string) string {
	b.t.Helper()
	b.do("POST", "/containers/create?name="+long+"-proxy", m{
		"Image": "cloudflare/proxy-everything:3cb1195", "Cmd": []string{"--http-egress-port", port}, "ExposedPorts": m{ingressPort: m{}},
		"Labels": m{sessionLabel: "s"}, "HostConfig": m{"PublishAllPorts": true},
	}).want(201)
	b.start(long + "-proxy")
	a := b.do("GET", "/containers/"+long+"-proxy/json", nil).want(200)
	return "127.0.0.1:" + a.at("NetworkSettings.Ports."+ingressPort+".0.HostPort")
}

// talk gives a connection to who takes it, and returns what is answered to a line.
func (b *bed) talk(a machine.OutboundAnswer) string {
	b.t.Helper()
	if a.Take == nil {
		return ""
	}
	program, ours := pair(b.t)
	defer program.Close()
	a.Take(ours)
	if _, err := io.WriteString(program, "ping\n"); err != nil {
		b.t.Fatal(err)
	}
	line, err := bufio.NewReader(program).ReadString('\n')
	if err != nil {
		b.t.Fatalf("%q, %v", line, err)
	}
	return strings.TrimSpace(line)
}

// pair returns both ends of a TCP connection.
func pair(t *testing.T) (a, b net.Conn) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if b, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return a, b
}
