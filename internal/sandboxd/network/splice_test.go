package network

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/cayhq/cay/internal/sandboxd/network/networktest"
	"github.com/cayhq/cay/sandbox"
)

// lone is a server that accepts one connection, and gives it to the test.
func lone(t *testing.T, w *world) (addr string, accepted <-chan *net.TCPConn) {
	t.Helper()
	ch := make(chan *net.TCPConn, 1)
	done := make(chan struct{})
	t.Cleanup(func() { close(done) })
	dst := netip.AddrPortFrom(networktest.Misc, 9000)
	w.net.ServeTCP(dst, func(c net.Conn) {
		ch <- c.(*net.TCPConn)
		<-done
	})
	return dst.String(), ch
}

// A reset is passed on as a reset, and a clean end as a clean end, in both directions.
func TestSplice_ends(t *testing.T) {
	t.Parallel()
	setup := func(t *testing.T) (w *world, guest *gonet.TCPConn, ep tcpip.Endpoint, server *net.TCPConn) {
		w = openWorld(t, allowAll())
		addr, accepted := lone(t, w)
		ep, guest = w.endpoint(t, addr)
		server = <-accepted
		for _, c := range []net.Conn{guest, server} {
			c.SetDeadline(time.Now().Add(patience))
		}
		io.WriteString(server, "hello")
		if _, err := io.ReadFull(guest, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
		return w, guest, ep, server
	}
	ended := func(t *testing.T, w *world) {
		t.Helper()
		w.await(t, "the end", func(f sandbox.Flow) bool { return f.Verdict == sandbox.Allowed && !f.Open })
	}
	t.Run("the server resets", func(t *testing.T) {
		t.Parallel()
		w, guest, _, server := setup(t)
		server.SetLinger(0)
		server.Close()
		if _, err := guest.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) || !strings.Contains(err.Error(), "reset") {
			t.Errorf("the guest sees %v, want a reset", err)
		}
		ended(t, w)
	})
	t.Run("the guest resets", func(t *testing.T) {
		t.Parallel()
		w, _, ep, server := setup(t)
		ep.(*tcp.Endpoint).Abort()
		if _, err := server.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the server sees %v, want a reset", err)
		}
		ended(t, w)
	})
	t.Run("the server half-closes", func(t *testing.T) {
		t.Parallel()
		w, guest, _, server := setup(t)
		server.CloseWrite()
		if b, err := io.ReadAll(guest); err != nil || len(b) != 0 {
			t.Errorf("the guest sees %q, %v", b, err)
		}
		io.WriteString(guest, "and yet")
		guest.CloseWrite()
		if b, err := io.ReadAll(server); err != nil || string(b) != "and yet" {
			t.Errorf("the server sees %q, %v", b, err)
		}
		ended(t, w)
	})
	t.Run("the guest half-closes", func(t *testing.T) {
		t.Parallel()
		w, guest, _, server := setup(t)
		guest.CloseWrite()
		if b, err := io.ReadAll(server); err != nil || len(b) != 0 {
			t.Errorf("the server sees %q, %v", b, err)
		}
		io.WriteString(server, "and yet")
		server.Close()
		if b, err := io.ReadAll(guest); err != nil || string(b) != "and yet" {
			t.Errorf("the guest sees %q, %v", b, err)
		}
		ended(t, w)
	})
}

// endpoint connects, and also returns the endpoint of the connection.
func (g guestStack) endpoint(t *testing.T, addr string) (tcpip.Endpoint, *gonet.TCPConn) {
	t.Helper()
	var wq waiter.Queue
	ep, err := g.NewEndpoint(tcp.ProtocolNumber, ipv4.ProtocolNumber, &wq)
	if err != nil {
		t.Fatal(err)
	}
	entry, ready := waiter.NewChannelEntry(waiter.WritableEvents)
	wq.EventRegister(&entry)
	defer wq.EventUnregister(&entry)
	if err := ep.Connect(full(addr)); err != nil {
		if _, ok := err.(*tcpip.ErrConnectStarted); !ok {
			t.Fatal(err)
		}
	}
	select {
	case <-ready:
	case <-time.After(patience):
		t.Fatal("no connection")
	}
	if err := ep.LastError(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ep.Close)
	return ep, gonet.NewTCPConn(&wq, ep)
}

// A failed connection looks to the guest as it would without the daemon, and the flow log
// explains it.
func TestFails(t *testing.T) {
	t.Parallel()
	w := openWorld(t, allowAll())
	if c, err := w.dial(t, at(networktest.Misc, 9999)); err == nil {
		c.Close()
		t.Error("connected to a closed port")
	} else if !strings.Contains(err.Error(), "refused") {
		t.Errorf("the guest sees %v, want a refusal", err)
	}
	f := w.await(t, "a failure", func(f sandbox.Flow) bool { return f.Verdict == sandbox.Broken })
	if !strings.Contains(f.Reason, "connection refused") || f.Rule != "mode allow-all" || f.Address != at(networktest.Misc, 9999) {
		t.Errorf("record %+v", f)
	}
}

// UDP is relayed in the mode allow-all only; otherwise datagrams are refused at once, so
// that QUIC clients go on by TCP (N15).
func TestUDP(t *testing.T) {
	t.Parallel()
	quic := at(networktest.Misc, 443)
	for _, tt := range []struct {
		name   string
		policy sandbox.Network
		addr   string
		rule   string
	}{
		{"allow-all", allowAll(), quic, ""},
		{"by name", custom("*"), quic, "udp"},
		{"by range", sandbox.Network{Mode: sandbox.Custom, AllowCIDRs: []string{"0.0.0.0/0"}}, quic, "udp"},
		{"deny-all", denyAll(), quic, "mode deny-all"},
		{"private", allowAll(), "10.0.0.1:443", "blocked range 10.0.0.0/8"},
		{"gateway", allowAll(), "100.64.0.1:99", "blocked range 100.64.0.0/30"},
		{"DNS over QUIC", allowAll(), at(networktest.DNS, 853), "blocked port 853"},
		{"mail", allowAll(), at(networktest.Misc, 587), "blocked port 587"},
		{"nobody listens", allowAll(), at(networktest.Misc, 444), "-"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := openWorld(t, tt.policy)
			conn := w.udp(t, tt.addr)
			if tt.rule == "" {
				echo(t, conn, "datagram")
				echo(t, conn, "another")
				w.await(t, "the flow", func(f sandbox.Flow) bool { return f.Protocol == "udp" && f.Verdict == sandbox.Allowed })
				return
			}
			if tt.rule == "-" {
				conn.Write([]byte("x"))
				w.await(t, "a failure", func(f sandbox.Flow) bool { return f.Verdict == sandbox.Broken && f.Reason != "" })
				return
			}
			begun := time.Now()
			for range 3 { // told once
				w.refusedDatagram(t, tt.addr)
			}
			if f := w.awaitDenied(t, tt.rule); f.Protocol != "udp" || f.Address != tt.addr {
				t.Errorf("record %+v", f)
			}
			if w.flowLog.len() != 1 && time.Since(begun) < repeatWithin {
				t.Errorf("%d records of one denial", w.flowLog.len())
			}
			if d := w.dialled(); len(d) != 0 {
				t.Errorf("dialled %v", d)
			}
		})
	}
}

// refusedDatagram sends a datagram and fails the test unless it is refused.
func (g guestStack) refusedDatagram(t *testing.T, addr string) {
	t.Helper()
	var wq waiter.Queue
	ep, err := g.NewEndpoint(udp.ProtocolNumber, ipv4.ProtocolNumber, &wq)
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	if err := ep.Connect(full(addr)); err != nil {
		t.Fatal(err)
	}
	entry, failed := waiter.NewChannelEntry(waiter.EventErr)
	wq.EventRegister(&entry)
	defer wq.EventUnregister(&entry)
	if _, err := ep.Write(strings.NewReader("x"), tcpip.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-failed:
	case <-time.After(patience):
		t.Fatal("nobody refuses the datagram")
	}
	if _, ok := ep.LastError().(*tcpip.ErrConnectionRefused); !ok {
		t.Error("the datagram is not refused")
	}
}

func (l *flowLog) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.flows)
}

// Multicast names go nowhere (N6).
func TestUDP_multicast(t *testing.T) {
	t.Parallel()
	w := openWorld(t, allowAll())
	for _, addr := range []string{"224.0.0.251:5353", "224.0.0.252:5355", "239.255.255.250:1900"} {
		w.udp(t, addr).Write([]byte("who is there"))
	}
	echo(t, w.udp(t, at(networktest.Misc, 7)), "x") // comes after them
	if d := w.dialled(); len(d) != 1 {
		t.Errorf("dialled %v", d)
	}
}

// A guest that uses the port of a connection ended by the other side for the next
// connection gets it at once.
func TestSplice_portAgain(t *testing.T) {
	t.Parallel()
	w := openWorld(t, allowAll())
	for i := range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), patience/2) // shorter than it used to linger
		again := func() (net.Conn, error) {
			return gonet.DialTCPWithBind(ctx, w.Stack, full("100.64.0.2:40000"), full(at(networktest.API, 80)), ipv4.ProtocolNumber)
		}
		conn, err := again()
		for err != nil && ctx.Err() == nil {
			conn, err = again() // the end of the last connection may take a moment
		}
		cancel()
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		if status, _, err := get(conn, "api.example.com", "/status/204"); status != 204 {
			t.Fatalf("connection %d: status %d, %v", i, status, err)
		}
		conn.Close()
		w.await(t, "its end", func(f sandbox.Flow) bool { return f.Seq == int64(i+1) && !f.Open })
	}
}
