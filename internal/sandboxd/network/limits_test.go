package network

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/network/networktest"
	"github.com/cayhq/cay/sandbox"
)

func withLimits(l sandbox.NetworkLimits) sandbox.Network {
	return sandbox.Network{Mode: sandbox.AllowAll, Limits: l}
}

// A policy that asks for more than the operator's limits is refused, and the policy
// before stays.
func TestLimits_ofTheOperator(t *testing.T) {
	t.Parallel()
	w := openWorld(t, withLimits(sandbox.NetworkLimits{}), func(_ *world, cfg *EgressConfig) {
		cfg.Limits = sandbox.NetworkLimits{Connections: 10, BytesPerSecond: 100}
	})
	for _, tt := range []struct {
		asked sandbox.NetworkLimits
		says  string
	}{
		{sandbox.NetworkLimits{}, ""},
		{sandbox.NetworkLimits{Connections: 10, ConnectionsPerSecond: DefaultConnectionsPerSecond, BytesPerSecond: 100, TotalBytes: 1 << 60}, ""},
		{sandbox.NetworkLimits{Connections: 11}, "network.limits.connections 11 is more than this daemon's maximum of 10"},
		{sandbox.NetworkLimits{ConnectionsPerSecond: 2 * DefaultConnectionsPerSecond}, "connections_per_second 2000"},
		{sandbox.NetworkLimits{BytesPerSecond: 101}, "bytes_per_second 101"},
	} {
		err := w.link.SetPolicy(withLimits(tt.asked))
		if tt.says == "" && err != nil || tt.says != "" && (cay.CodeOf(err) != cay.Invalid || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%+v: %v, want %q", tt.asked, err, tt.says)
		}
	}
}

// The connections of one guest are bounded, including half-open connections and UDP flows
// (R16); the end of a connection makes room.
func TestLimits_connections(t *testing.T) {
	t.Parallel()
	const limit = 20
	w := openWorld(t, withLimits(sandbox.NetworkLimits{Connections: limit}))
	var conns []net.Conn
	for i := range limit {
		var c net.Conn
		if i%2 == 0 {
			c = w.udp(t, at(networktest.Misc, 7))
		} else if tcp, err := w.dial(t, at(networktest.Misc, 7)); err != nil {
			t.Fatal(err)
		} else {
			t.Cleanup(func() { tcp.Close() })
			c = tcp
		}
		echo(t, c, "x")
		conns = append(conns, c)
	}
	if c, err := w.dial(t, at(networktest.Misc, 7)); err == nil {
		c.Close()
		t.Error("connected beyond the limit")
	}
	f := w.awaitDenied(t, "limit connections")
	if !strings.Contains(f.Reason, fmt.Sprint(limit)) {
		t.Errorf("reason %q", f.Reason)
	}
	w.refusedDatagram(t, at(networktest.Misc, 7))
	conns[1].Close()
	w.await(t, "an end", func(f sandbox.Flow) bool { return f.Protocol == "tcp" && !f.Open && f.Verdict == sandbox.Allowed })
	for deadline := time.Now().Add(patience); ; { // the record comes before the place is free
		if c, err := w.dial(t, at(networktest.Misc, 7)); err == nil {
			c.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no room after an end")
		}
	}
	// Names are resolved all the same.
	if a := ask(t, w.udp(t, "100.64.0.1:53"), "api.example.com", 1); len(a.Answer) != 1 {
		t.Errorf("no name: %v", a)
	}
}

func TestLimits_rate(t *testing.T) {
	t.Parallel()
	const limit = 5
	w := openWorld(t, withLimits(sandbox.NetworkLimits{ConnectionsPerSecond: limit}))
	opened, refused := 0, 0
	begun := time.Now()
	// On a busy machine the first connections may come so slowly that all are within the
	// rate.
	for opened+refused < 4*limit || refused == 0 && time.Since(begun) < patience {
		if c, err := w.dial(t, at(networktest.Misc, 7)); err == nil {
			c.Close()
			opened++
		} else {
			refused++
		}
	}
	most := limit + 1 + int(limit*time.Since(begun).Seconds())
	if opened < limit || opened > most {
		t.Errorf("%d connections opened, want %d to %d", opened, limit, most)
	}
	w.awaitDenied(t, "limit connections_per_second")
}

// The pace applies to each direction and to all flows together, including connections to
// ports of the guest (R17).
func TestLimits_bandwidth(t *testing.T) {
	const pace, seconds = 4 << 20, 1.5
	const size = int64(pace * seconds)
	w := openWorld(t, withLimits(sandbox.NetworkLimits{BytesPerSecond: pace}))
	measure := func(name string, transfer func()) {
		t.Helper()
		begun := time.Now()
		transfer()
		if took := time.Since(begun).Seconds(); took < 0.9*seconds {
			t.Errorf("%s: %.2f s, want %.2f", name, took, seconds)
		}
	}
	download := func(size int64) {
		conn, err := w.dial(t, at(networktest.API, 80))
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(patience))
		fmt.Fprintf(conn, "GET /bytes/%d HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", size)
		if n, err := io.Copy(io.Discard, conn); err != nil || n < size {
			t.Errorf("%d bytes of %d, %v", n, size, err)
		}
	}
	measure("down", func() {
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { download(size / 3) })
		}
		wg.Wait()
	})
	ln, err := gonet.ListenTCP(w.Stack, full("100.64.0.2:3000"), ipv4.ProtocolNumber)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	serve(ln, func(c net.Conn) {
		io.CopyN(c, zeros{}, size)
	})
	measure("from a port of the guest", func() {
		c, err := w.link.DialPort(t.Context(), 3000)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if n, err := io.Copy(io.Discard, c); err != nil || n != size {
			t.Errorf("%d bytes, %v", n, err)
		}
	})
	// First with a rate that would take too long, then without a bound.
	setPolicy(t, w.link, withLimits(sandbox.NetworkLimits{BytesPerSecond: size / 300}))
	setPolicy(t, w.link, allowAll())
	download(size)
	in, out := w.link.Traffic()
	if in < 2*size || out < size {
		t.Errorf("traffic %d in and %d out", in, out)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// The total traffic is bounded: not one byte more passes, all connections are cut, and
// new connections are refused (N26). A new link goes on from the total of the old link.
func TestLimits_total(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	w := openWorld(t, withLimits(sandbox.NetworkLimits{TotalBytes: limit}))
	w.link.SetTraffic(limit/4, limit/4)
	idle, err := w.dial(t, at(networktest.Misc, 7))
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	echo(t, idle, "x")
	conn, err := w.dial(t, at(networktest.API, 80))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	fmt.Fprintf(conn, "GET /bytes/%d HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", limit)
	if _, err := io.Copy(io.Discard, conn); err == nil {
		t.Error("the download ended well")
	}
	if err := isCut(idle); err != nil {
		t.Errorf("the idle connection: %v", err)
	}
	w.awaitDenied(t, "limit total_bytes")
	if in, out := w.link.Traffic(); in+out > limit {
		t.Errorf("%d bytes passed, %d may", in+out, limit)
	}
	if c, err := w.dial(t, at(networktest.Misc, 7)); err == nil {
		c.Close()
		t.Error("a connection opened")
	}
	if _, err := w.link.DialPort(t.Context(), 3000); cay.CodeOf(err) != cay.QuotaExceeded {
		t.Errorf("DialPort: %v, want quota_exceeded", err)
	}
	if a := ask(t, w.udp(t, "100.64.0.1:53"), "api.example.com", 1); a.Rcode != 5 {
		t.Errorf("a name was resolved: %v", a)
	}
	// More may flow when the limit is raised.
	setPolicy(t, w.link, withLimits(sandbox.NetworkLimits{TotalBytes: 4 * limit}))
	c, err := w.dial(t, at(networktest.Misc, 7))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	echo(t, c, "x")
	w.link.SetTraffic(2*limit, 2*limit)
	if err := isCut(c); err != nil {
		t.Errorf("after what earlier links used became known: %v", err)
	}
}

// A thousand connections at once open within the defaults.
func TestLimits_thousand(t *testing.T) {
	t.Parallel()
	const n = 1000
	w := openWorld(t, custom("api.example.com"))
	var wg sync.WaitGroup
	errs := make(chan error, n)
	for range n {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			c, err := gonet.DialContextTCP(ctx, w.Stack, full(at(networktest.API, 80)), ipv4.ProtocolNumber)
			if err != nil {
				errs <- err
				return
			}
			defer c.Close()
			if status, _, err := get(c, "api.example.com", "/status/204"); status != 204 {
				errs <- fmt.Errorf("status %d: %w", status, err)
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
}

// A flood of denials is listed in part, with a summary of the rest.
func TestRecords_flood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testFlood)
}

func testFlood(t *testing.T) {
	l := newFlowLog()
	r, err := newRecorder()
	if err != nil {
		t.Fatal(err)
	}
	r.send(l.add)
	const n = 3 * recordsBurst
	for i := range n {
		r.add(sandbox.Flow{Protocol: "tcp", Verdict: sandbox.Denied, Address: fmt.Sprint(i)})
	}
	listed := l.len()
	if listed != recordsBurst {
		t.Errorf("%d of %d are listed", listed, n)
	}
	f := l.await(t, "the summary", func(f sandbox.Flow) bool { return f.Rule == "limit records" })
	if want := fmt.Sprintf("%d more flows are not listed, %[1]d of them denied", n-listed); f.Verdict != sandbox.Denied || !strings.HasPrefix(f.Reason, want) {
		t.Errorf("summary %+v, want %q", f, want)
	}
	for i, f := range l.flows {
		if f.Seq != int64(i+1) {
			t.Fatalf("record %d has number %d", i, f.Seq)
		}
	}
	r.add(sandbox.Flow{})
	r.close()
	before := l.len()
	if r.add(sandbox.Flow{}); l.len() != before {
		t.Error("a record came after the end")
	}
}
