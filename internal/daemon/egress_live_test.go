package daemon_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"path"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/daemon"
	"github.com/cayhq/cay/internal/sandboxd/network"
	"github.com/cayhq/cay/internal/sandboxd/network/networktest"
	"github.com/cayhq/cay/sandbox"
)

// begin starts a program and waits for its first output. ended gets the time of
// its end.
func (st *station) begin(t *testing.T, argv ...string) (ended <-chan time.Time) {
	t.Helper()
	out, err := st.site.Exec(t.Context(), st.Ref(), sandbox.CommandParams{Argv: argv})
	if err != nil {
		t.Fatal(err)
	}
	first, end := make(chan struct{}), make(chan time.Time, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer out.Close()
		for seen := false; ; {
			e, err := out.Next()
			if err != nil || e.Exit != nil {
				end <- time.Now()
				return
			}
			if len(e.Data) > 0 && e.Stream == sandbox.Stdout && !seen {
				seen = true
				close(first)
			}
		}
	}()
	t.Cleanup(func() {
		out.Close()
		<-done
	})
	select {
	case <-first:
	case <-end:
		t.Fatalf("%q ended at once", argv)
	case <-time.After(time.Minute):
		t.Fatalf("%q prints nothing", argv)
	}
	return end
}

// exchange keeps a connection to an echo server busy.
const exchange = `
import socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 30)
while True:
    s.sendall(b"x" * 100)
    if not s.recv(4096):
        break
    print(".", flush=True)
`

// datagrams is exchange by UDP: a missing answer ends it.
const datagrams = `
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(3)
s.connect((sys.argv[1], int(sys.argv[2])))
while True:
    s.send(b"x")
    s.recv(100)
    print(".", flush=True)
`

// frames is exchange by a WebSocket over TLS.
const frames = `
import socket, ssl
s = ssl.create_default_context().wrap_socket(socket.create_connection(("api.example.com", 443), 30), server_hostname="api.example.com")
s.sendall(b"GET /ws HTTP/1.1\r\nHost: api.example.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
assert s.recv(4096).startswith(b"HTTP/1.1 101 ")
while True:
    s.sendall(b"\x81\x81\0\0\0\0x")
    if not s.recv(100):
        break
    print(".", flush=True)
`

// Row N17: a connection does not survive the policy that allowed it.
func TestEgress_Update(t *testing.T) {
	t.Parallel()
	s := openSite(t)
	ruled := func(value string) sandbox.Domain {
		return sandbox.Domain{Name: "api.example.com", Rules: []sandbox.Rule{{SetHeaders: map[string]string{"X-Key": value}}}}
	}
	drip := func(url string) []string { return []string{"curl", "-sSN", url} }
	for name, c := range map[string]struct {
		first, then sandbox.Network
		argv        []string
		survives    bool
	}{
		"TLS":        {first: only("api.example.com"), then: only("files.example.com"), argv: drip("https://api.example.com/drip")},
		"HTTP":       {first: only("api.example.com"), then: only("files.example.com"), argv: drip("http://api.example.com/drip")},
		"all to no":  {first: sandbox.Network{Mode: sandbox.AllowAll}, then: sandbox.Network{Mode: sandbox.DenyAll}, argv: drip("https://api.example.com/drip")},
		"all to one": {first: sandbox.Network{Mode: sandbox.AllowAll}, then: only("files.example.com"), argv: drip("http://api.example.com/drip")},
		"opened": {
			first: sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{ruled("1")}}, then: only("files.example.com"),
			argv: drip("https://api.example.com/drip"),
		},
		"opened HTTP/2": {
			first: sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{ruled("1")}}, then: only("files.example.com"),
			argv: []string{"curl", "-sSN", "--http2", "https://api.example.com/drip"},
		},
		"opened WebSocket": {
			first: sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{ruled("1")}}, then: only("files.example.com"),
			argv: []string{"python3", "-c", frames},
		},
		"UDP": {
			first: sandbox.Network{Mode: sandbox.AllowAll}, then: only("misc.example.com"),
			argv: []string{"python3", "-c", datagrams, misc, "7"},
		},
		"unread to opened": {
			first: only("api.example.com"), then: sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{ruled("1")}},
			argv: drip("https://api.example.com/drip"),
		},
		"range": {
			first: sandbox.Network{Mode: sandbox.Custom, AllowCIDRs: []string{"93.184.0.0/16"}},
			then:  sandbox.Network{Mode: sandbox.Custom, AllowCIDRs: []string{"93.184.0.0/16"}, DenyCIDRs: []string{misc + "/32"}},
			argv:  []string{"python3", "-c", exchange, misc, "7"},
		},
		"denied range": {
			first: only("api.example.com"), argv: drip("https://api.example.com/drip"),
			then: sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{{Name: "api.example.com"}}, DenyCIDRs: []string{api}},
		},
		"port": {
			first: only("api.example.com"), argv: drip("http://api.example.com/drip"),
			then: sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{{Name: "api.example.com", Ports: []uint16{443}}}},
		},
		"still allowed": {first: only("api.example.com"), then: only("api.example.com", "files.example.com"), argv: drip("https://api.example.com/drip"), survives: true},
		"still allowed HTTP": {
			first: only("*.example.com"), then: only("api.example.com"), argv: drip("http://api.example.com/drip"), survives: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := openStation(t, s, "curl", c.first)
			ended := st.begin(t, c.argv...)
			st.setNetwork(t, c.then)
			changed := time.Now()
			if c.survives {
				// The connection survives for as long as three commands take.
				for range 3 {
					st.run(t, sandbox.CommandParams{Argv: []string{"true"}})
				}
				select {
				case at := <-ended:
					t.Errorf("it was cut %v after the change", at.Sub(changed))
				default:
				}
				return
			}
			select {
			case at := <-ended:
				t.Logf("it ended %v after the change", at.Sub(changed))
			case <-time.After(time.Minute): // at once, unless the machine is busy
				t.Error("it still runs after the change")
			}
		})
	}
}

// There is no gap between two policies: a connection that neither allows never
// gets out.
func TestEgress_UpdateIsAtomic(t *testing.T) {
	t.Parallel()
	s := openSite(t)
	ruled := sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{
		{Name: "api.example.com", Rules: []sandbox.Rule{{Match: prefix("/evil"), Deny: true}}},
	}}
	plain := sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{
		{Name: "api.example.com", Ports: []uint16{443}, Rules: []sandbox.Rule{{Match: prefix("/evil"), Deny: true}}}, {Name: "files.example.com"},
	}}
	st := openStation(t, s, "curl", ruled)
	const hammer = `
import http.client, ssl, sys, threading
no_check = ssl.create_default_context()
no_check.check_hostname, no_check.verify_mode = False, ssl.CERT_NONE
print("go", flush=True)
def loop(at, host, path, tls):
    while True:
        try:
            c = http.client.HTTPSConnection(host, timeout=2, context=no_check) if tls else http.client.HTTPConnection(host, timeout=2)
            c._create_connection = lambda _, *a, **k: __import__("socket").create_connection((at, 443 if tls else 80), *a[:1])
            c.request("GET", path)
            c.getresponse().read()
        except OSError:
            pass
        except http.client.HTTPException:
            pass
threads = [threading.Thread(target=loop, args=(sys.argv[1], h, p, tls)) for h, p in
    (("evil.example.net", "/"), ("api.example.com", "/evil"), ("api.example.com", "/fine")) for tls in (True, False)]
for t in threads: t.start()
for t in threads: t.join()
`
	begin := s.net.Mark()
	st.begin(t, "python3", "-c", hammer, api)
	for i := range 40 {
		st.setNetwork(t, []sandbox.Network{plain, ruled}[i%2])
	}
	s.net.AwaitRequest(t, "api.example.com", 5)
	for _, r := range s.net.Requests(begin) {
		if r.Host != "api.example.com" || strings.HasPrefix(r.URI, "/evil") {
			t.Fatalf("a request for %s%s got out", r.Host, r.URI)
		}
	}
}

// A changed rule applies to the next request, also on open connections.
func TestEgress_Rotate(t *testing.T) {
	t.Parallel()
	s := openSite(t)
	policy := func(value string) sandbox.Network {
		return sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{
			{Name: "api.example.com", Rules: []sandbox.Rule{{SetHeaders: map[string]string{"X-Key": value}}}},
		}}
	}
	st := openStation(t, s, "python", policy("first"))
	const script = `
import http.client, sys
c = http.client.HTTPSConnection("api.example.com", timeout=60)
for line in sys.stdin:
    c.request("GET", "/" + line.strip())
    r = c.getresponse()
    r.read()
    print(r.status, c.sock.getsockname(), flush=True)
`
	cmd, err := st.site.Start(t.Context(), st.Ref(), sandbox.CommandParams{Argv: []string{"python3", "-c", script}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	out, err := st.site.Output(t.Context(), st.Ref(), cmd.ID, sandbox.OutputParams{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	ask := func(path string) string {
		t.Helper()
		if err := st.site.WriteStdin(t.Context(), st.Ref(), cmd.ID, strings.NewReader(path+"\n"), false); err != nil {
			t.Fatal(err)
		}
		e, err := out.Next()
		if err != nil || e.Exit != nil || e.Stream != sandbox.Stdout {
			t.Fatalf("%+v %s, %v", e, e.Data, err)
		}
		return strings.TrimSpace(string(e.Data))
	}
	begin := s.net.Mark()
	first := ask("one")
	st.setNetwork(t, policy("second"))
	if second := ask("two"); second != first {
		t.Errorf("another connection, or another end: %s, then %s", first, second)
	}
	st.setNetwork(t, sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{
		{Name: "api.example.com", Rules: []sandbox.Rule{{Match: prefix("/three"), Deny: true}}},
	}})
	if got := ask("three"); !strings.HasPrefix(got, "403 ") {
		t.Errorf("a request that is denied now: %s", got)
	}
	var keys []string
	for _, r := range s.net.Requests(begin) {
		keys = append(keys, r.Header.Get("X-Key"))
	}
	if strings.Join(keys, " ") != "first second" {
		t.Errorf("the server sees the keys %q", keys)
	}
}

// internetEnv gives a daemon in another process the simulated Internet of this
// one.
const internetEnv = "CAY_TEST_INTERNET"

// outpost returns Options for a daemon in another process; "" means none.
func outpost(routes string) (daemon.Options, error) {
	if routes == "" {
		return daemon.Options{}, nil
	}
	dial, nameservers, err := networktest.Remote(routes)
	return daemon.Options{Nameservers: nameservers, DialContext: dial}, err
}

// Row N19: without a daemon there is no egress, and the next daemon applies the
// policy of that time. The guest may notice nothing: its link outlives the daemon, and the
// next daemon can answer the packets that wait there before the guest's timeouts.
func TestEgress_DaemonKilled(t *testing.T) {
	t.Parallel()
	n := networktest.Start(t)
	dir := data(t)
	first := spawn(t, daemonEnv, dir, internetEnv+"="+n.Routes())
	c := client(t, first.first, dir)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	sb, err := c.Create(ctx, sandbox.CreateParams{Runtime: "python3.13", Network: only("api.example.com", "cdn.example.com")})
	if err != nil {
		t.Fatal(err)
	}
	// The script never gives up, and its requests show which kind they are: by
	// name, by address, or over the existing connection.
	const script = `
import http.client, itertools, sys
from concurrent.futures import ThreadPoolExecutor
def ask(host, at, n):
    try:
        c = http.client.HTTPConnection(at, 80, timeout=1)
        c.request("GET", f"/{host}/{n}", headers={"Host": host})
        return host, c.getresponse().status
    except OSError as e:
        return host, type(e).__name__
targets = [(h, at) for h in ("api.example.com", "cdn.example.com") for at in (sys.argv[1], h)]
with ThreadPoolExecutor(len(targets)) as pool, open("/tmp/log", "w", buffering=1) as log:
    for n in itertools.count():
        for host, what in pool.map(lambda t: ask(*t, n), targets):
            print(n, host, what, file=log)
`
	if _, err := c.Start(ctx, sb.ID, sandbox.CommandParams{Argv: []string{"python3", "-c", script, api}}); err != nil {
		t.Fatal(err)
	}
	n.AwaitRequest(t, "cdn.example.com", 3)
	policy := only("api.example.com")
	if _, err := c.Update(ctx, sb.ID, sandbox.UpdateParams{Network: &policy}); err != nil {
		t.Fatal(err)
	}
	after := n.Mark()
	// Requests that left before the update may be recorded after it. The next
	// round of the guest follows the round in the log's last line.
	begun := -1
	wrote, err := c.Run(ctx, sb.ID, sandbox.CommandParams{Argv: []string{"tail", "-n", "1", "/tmp/log"}})
	if err != nil {
		t.Fatal(err)
	}
	if len(wrote.Stdout) > 0 {
		if _, err := fmt.Sscan(string(wrote.Stdout), &begun); err != nil {
			t.Fatalf("the guest wrote %q: %v", wrote.Stdout, err)
		}
	}
	begun++
	n.AwaitRequest(t, "api.example.com", 3)
	first.kill()
	dead := n.Mark()
	second := spawn(t, daemonEnv, dir, internetEnv+"="+n.Routes())
	c = client(t, second.first, dir)
	n.AwaitRequest(t, "api.example.com", 3)
	if _, err := c.Get(ctx, sb.ID); err != nil {
		t.Fatal(err)
	}
	for _, r := range n.Requests(after) {
		round, err := strconv.Atoi(path.Base(r.URI))
		if err != nil {
			t.Fatalf("the guest asked for %q", r.URI)
		}
		if r.Host != "api.example.com" && round > begun {
			t.Errorf("a request to %s got out after the update", r.Host)
		}
	}
	if r := n.Requests(dead); len(r) == 0 || !strings.HasPrefix(r[0].URI, "/api.example.com/") {
		t.Errorf("after adoption the guest asked for %v", r)
	}
	if err := c.Delete(ctx, sb.ID); err != nil {
		t.Error(err)
	}
}

// Row N26: bandwidth, bytes, connections and their rate are bounded, and the
// log says so.
func TestEgress_Limits(t *testing.T) {
	t.Parallel()
	s := openSite(t)
	all := func(l sandbox.NetworkLimits) sandbox.Network {
		return sandbox.Network{Mode: sandbox.AllowAll, Limits: l}
	}
	t.Run("bytes", func(t *testing.T) {
		t.Parallel()
		st := openStation(t, s, "curl", all(sandbox.NetworkLimits{TotalBytes: 1 << 20}))
		begin := s.net.Mark()
		r, err := st.Run(t.Context(), sandbox.CommandParams{Argv: []string{"curl", "-sS", "-o", "/tmp/x", "http://api.example.com/bytes/8000000"}})
		if err != nil {
			t.Fatal(err)
		}
		if r.Exit.Code == 0 {
			t.Error("8 MB came through a limit of 1 MiB")
		}
		got := st.run(t, sandbox.CommandParams{Argv: []string{"stat", "-c", "%s", "/tmp/x"}})
		if n, err := strconv.Atoi(strings.TrimSpace(got)); err != nil || n > 1<<20 || n == 0 {
			t.Errorf("%s bytes came through a limit of 1 MiB", got)
		}
		for _, r := range st.ask(t, []probe{{URL: "http://" + api + "/late"}, {URL: "https://api.example.com/late"}}) {
			if r.Status == 200 {
				t.Errorf("after the limit: %v", r)
			}
		}
		for _, r := range s.net.Requests(begin) {
			if r.URI == "/late" {
				t.Error("a request left after the limit")
			}
		}
		if _, err := st.flows.await(t, 0, func(f sandbox.Flow) bool {
			return f.Verdict == sandbox.Denied && strings.HasPrefix(f.Rule, "limit total")
		}); err != nil {
			t.Error(err)
		}
		stats, err := st.site.Stats(t.Context(), st.Ref())
		if err != nil {
			t.Fatal(err)
		}
		if n := stats.Usage.IngressBytes; n < 1<<19 || n > 2<<20 {
			t.Errorf("%d bytes of ingress are reported", n)
		}
	})
	t.Run("bandwidth", func(t *testing.T) {
		t.Parallel()
		const rate, size = 4 << 20, 8 << 20
		st := openStation(t, s, "curl", all(sandbox.NetworkLimits{BytesPerSecond: rate}))
		for _, argv := range [][]string{
			{"curl", "-sS", "-o", "/dev/null", fmt.Sprintf("http://api.example.com/bytes/%d", size)},
			{"bash", "-c", fmt.Sprintf("head -c %d /dev/zero | curl -sS -o /dev/null -T - http://api.example.com/upload", size)},
		} {
			begun := time.Now()
			st.run(t, sandbox.CommandParams{Argv: argv})
			// The first burst is not limited.
			if d := time.Since(begun); d < (size-rate)*time.Second/rate {
				t.Errorf("%q: %d bytes in %v, with a limit of %d a second", argv[0], size, d, rate)
			}
		}
	})
	t.Run("connections", func(t *testing.T) {
		t.Parallel()
		st := openStation(t, s, "python", all(sandbox.NetworkLimits{Connections: 5}))
		const script = `
import socket, sys
held = []
for i in range(8):
    try:
        s = socket.create_connection((sys.argv[1], 7), 60)
        s.sendall(b"x")
        if s.recv(1):
            held.append(s)
    except OSError:
        pass
print(len(held))
held.pop().close()
while True:
    try:
        s = socket.create_connection((sys.argv[1], 7), 60)
        s.sendall(b"x")
        if s.recv(1):
            break
    except OSError:
        pass
print("again")
`
		got := st.run(t, sandbox.CommandParams{Argv: []string{"python3", "-c", script, misc}, Timeout: sandbox.Duration(2 * time.Minute)})
		if got != "5\nagain\n" {
			t.Errorf("with a limit of 5: %q", got)
		}
		if _, err := st.flows.await(t, 0, func(f sandbox.Flow) bool {
			return f.Verdict == sandbox.Denied && f.Rule == "limit connections"
		}); err != nil {
			t.Error(err)
		}
	})
	t.Run("rate", func(t *testing.T) {
		t.Parallel()
		st := openStation(t, s, "python", all(sandbox.NetworkLimits{ConnectionsPerSecond: 10}))
		const script = `
import socket, sys, time
opened, begun = 0, time.monotonic()
for i in range(100):
    try:
        with socket.create_connection((sys.argv[1], 7), 60) as s:
            s.sendall(b"x")
            opened += bool(s.recv(1))
    except OSError:
        pass
print(opened, time.monotonic() - begun)
`
		var opened int
		var took float64
		got := st.run(t, sandbox.CommandParams{Argv: []string{"python3", "-c", script, misc}})
		if _, err := fmt.Sscan(got, &opened, &took); err != nil {
			t.Fatal(err)
		}
		if opened < 10 || float64(opened) > 11+10*took {
			t.Errorf("%d connections in %.1f s, with a limit of 10 a second", opened, took)
		}
		if _, err := st.flows.await(t, 0, func(f sandbox.Flow) bool {
			return f.Verdict == sandbox.Denied && strings.HasPrefix(f.Rule, "limit connections")
		}); err != nil {
			t.Error(err)
		}
	})
}

// Rows N2 and N3: the operator opens a range, and nothing else; even so, a
// sandbox cannot reach another sandbox, or the host's services.
func TestEgress_AllowRanges(t *testing.T) {
	t.Parallel()
	s := openSite(t, func(s *site) { s.cfg.AllowRanges = []string{"10.77.0.0/16", "100.64.0.0/10"} })
	s.net.Permit(netip.MustParsePrefix("10.77.0.0/16"))
	st := openStation(t, s, "curl", sandbox.Network{})
	peer := openStation(t, s, "python", sandbox.Network{})
	peer.begin(t, "python3", "-u", "-c", "import http.server as h; print('up'); h.HTTPServer(('', 8000), h.SimpleHTTPRequestHandler).serve_forever()")
	_, port, _ := strings.Cut(strings.TrimPrefix(s.daemon.URL(), "http://"), ":")
	addr := strings.Fields(peer.run(t, sandbox.CommandParams{Argv: []string{"hostname", "-I"}}))[0]
	probes := []probe{
		{URL: "http://10.77.0.5/", status: 200, by: "internal"},
		{URL: "http://internal.example.com/", status: 200, by: "internal"},
		{URL: "http://10.78.0.5/", status: 403, sees: "10.0.0.0/8"},
		{URL: "http://169.254.169.254/", status: 403, sees: "169.254.0.0/16"},
		{URL: "http://" + network.GatewayAddr.String() + ":" + port + "/v1/sandboxes"},
		{URL: "http://" + addr + ":8000/"},
	}
	for _, ip := range hostAddrs(t) {
		probes = append(probes, probe{URL: "http://" + ip + ":" + port + "/v1/sandboxes"}, probe{URL: "http://" + ip + "/", status: 403})
	}
	st.play(t, scene{policy: sandbox.Network{Mode: sandbox.AllowAll}, probes: probes, dials: []string{"tcp 10.77.0.5:80"}})
	st.play(t, scene{policy: only("internal.example.com"), probes: []probe{
		{URL: "http://internal.example.com/", status: 200, by: "internal"},
		{URL: "http://10.77.0.5/", status: 403, sees: "not in allow"},
	}, dials: []string{"tcp 10.77.0.5:80"}})
}

// hostAddrs returns this machine's IPv4 addresses except loopback addresses.
func hostAddrs(t *testing.T) []string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	var ips []string
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && !p.Addr().IsLoopback() {
			ips = append(ips, p.Addr().String())
		}
	}
	return ips
}
