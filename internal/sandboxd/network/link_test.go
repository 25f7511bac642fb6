package network

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/leaktest"
	"github.com/cayhq/cay/sandbox"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// guestStack is the guest's side of a link, as the sentry sets it up.
type guestStack struct{ *stack.Stack }

// noServer is the address of a name server that does not exist.
var noServer = []string{"127.0.0.1:1"}

// openEgress returns an Egress that ends with the test.
func openEgress(t testing.TB, cfg EgressConfig) *Egress {
	t.Helper()
	if cfg.Nameservers == nil {
		cfg.Nameservers = noServer
	}
	e, err := NewEgress(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// setup starts a link with a policy, and a guest on it.
func setup(t testing.TB, n sandbox.Network, cfg EgressConfig) (*Link, guestStack) {
	t.Helper()
	return join(t, openEgress(t, cfg), n)
}

// join is setup with an existing Egress.
func join(t testing.TB, e *Egress, n sandbox.Network) (*Link, guestStack) {
	t.Helper()
	ours, guests, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	l, err := e.NewLink(ours, "ses_test", n, nil)
	if err != nil {
		t.Fatal(err)
	}
	ep, err := fdbased.New(&fdbased.Options{
		FDs: []int{guests}, MTU: MTU, TXChecksumOffload: true, RXChecksumOffload: true,
		IsPacketSocket: []bool{false}, PreConfigured: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4},
	})
	if err := s.CreateNIC(1, ep); err != nil {
		t.Fatal(err)
	}
	addr := tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: tcpip.AddrFrom4(GuestAddr.As4()).WithPrefix()}
	if err := s.AddProtocolAddress(1, addr, stack.AddressProperties{}); err != nil {
		t.Fatal(err)
	}
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: 1}})
	t.Cleanup(func() {
		ep.Attach(nil) // Destroy waits for its reader with a lock that delivering takes
		s.Destroy()
		unix.Close(guests)
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l, guestStack{s}
}

func full(addr string) tcpip.FullAddress {
	ap := netip.MustParseAddrPort(addr)
	return tcpip.FullAddress{NIC: 1, Addr: tcpip.AddrFrom4(ap.Addr().As4()), Port: ap.Port()}
}

func (g guestStack) dial(t testing.TB, addr string) (net.Conn, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return gonet.DialContextTCP(ctx, g.Stack, full(addr), ipv4.ProtocolNumber)
}

func (g guestStack) udp(t testing.TB, addr string) net.Conn {
	t.Helper()
	to := full(addr)
	conn, err := gonet.DialUDP(g.Stack, nil, &to, ipv4.ProtocolNumber)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// serve calls handle for each connection to ln, until ln is closed.
func serve(ln net.Listener, handle func(net.Conn)) {
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				handle(c)
			}()
		}
	}()
}

// outside is a stand-in for the internet: every destination is one echo server.
func outside(t testing.TB) (dial func(context.Context, string, string) (net.Conn, error), dialled *atomic.Int32) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	serve(ln, func(c net.Conn) {
		io.Copy(c, c)
	})
	packets, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { packets.Close() })
	go func() {
		buf := make([]byte, 64<<10)
		for {
			n, from, err := packets.ReadFrom(buf)
			if err != nil {
				return
			}
			packets.WriteTo(buf[:n], from)
		}
	}()
	dialled = new(atomic.Int32)
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		dialled.Add(1)
		addr := ln.Addr().String()
		if network == "udp" {
			addr = packets.LocalAddr().String()
		}
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}, dialled
}

func denyAll() sandbox.Network { return sandbox.Network{Mode: sandbox.DenyAll} }

func allowAll() sandbox.Network { return sandbox.Network{Mode: sandbox.AllowAll} }

func echo(t testing.TB, conn net.Conn, msg string) {
	t.Helper()
	conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(conn, msg); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, len(msg))
	if _, err := io.ReadFull(conn, buf); err != nil || string(buf) != msg {
		t.Fatalf("echo of %q: got %q, %v", msg, buf, err)
	}
}

func TestLink_TCP(t *testing.T) {
	dial, _ := outside(t)
	l, g := setup(t, allowAll(), EgressConfig{DialContext: dial})
	conn, err := g.dial(t, "8.8.8.8:80")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	echo(t, conn, "hello")
	// The guest's half-close is passed on, and the rest of the answer comes back.
	io.WriteString(conn, "last")
	conn.(*gonet.TCPConn).CloseWrite()
	if rest, err := io.ReadAll(conn); err != nil || string(rest) != "last" {
		t.Fatalf("after half-close: %q, %v", rest, err)
	}
	if in, out := l.Traffic(); in != 9 || out != 9 {
		t.Errorf("Traffic() = %d in, %d out; want 9 and 9", in, out)
	}
}

// Opening a connection takes the guest one packet of answer; the window is announced in
// packets that are sent anyway.
func TestLink_OpeningPackets(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	serve(ln, func(c net.Conn) {
		io.WriteString(c, "hello")
		io.Copy(io.Discard, c)
	})
	var sent uint64
	for range 5 { // on a busy machine some are sent again
		l, g := setup(t, allowAll(), EgressConfig{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, ln.Addr().String())
		}})
		conn, err := g.dial(t, "8.8.8.8:22")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(patience))
		if _, err := io.ReadFull(conn, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
		if sent = l.stack.Stats().TCP.SegmentsSent.Value(); sent == 2 {
			return
		}
	}
	t.Errorf("%d packets were sent to the guest until it was greeted, not 2", sent)
}

func TestLink_UDP(t *testing.T) {
	dial, _ := outside(t)
	_, g := setup(t, allowAll(), EgressConfig{DialContext: dial})
	conn := g.udp(t, "8.8.8.8:4433")
	echo(t, conn, "datagram")
	echo(t, conn, "another")
}

func TestLink_refuses(t *testing.T) {
	ranges := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
	for _, tt := range []struct {
		name   string
		policy sandbox.Network
		addr   string
		want   bool
	}{
		{"public", allowAll(), "8.8.8.8:443", true},
		{"private", allowAll(), "10.0.0.1:444", false},
		{"private but allowed by the operator", allowAll(), "10.1.0.1:443", true},
		{"metadata", allowAll(), "169.254.169.254:8080", false},
		{"metadata of another cloud", allowAll(), "100.100.100.200:8080", false},
		{"metadata of a third cloud", allowAll(), "168.63.129.16:8080", false},
		{"host loopback", allowAll(), "127.0.0.1:22", false},
		{"gateway", allowAll(), "100.64.0.1:7070", false},
		{"another guest", allowAll(), "100.64.0.6:22", false},
		{"broadcast", allowAll(), "255.255.255.255:8080", false},
		{"mail", allowAll(), "8.8.8.8:25", false},
		{"public under deny-all", sandbox.Network{Mode: sandbox.DenyAll}, "8.8.8.8:444", false},
		{"allowed range under deny-all", sandbox.Network{Mode: sandbox.DenyAll}, "10.1.0.1:444", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dial, dialled := outside(t)
			_, g := setup(t, tt.policy, EgressConfig{DialContext: dial, AllowRanges: ranges})
			wait := patience
			if !tt.want {
				wait = time.Second // some are not even answered
			}
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			conn, err := gonet.DialContextTCP(ctx, g.Stack, full(tt.addr), ipv4.ProtocolNumber)
			if err == nil {
				defer conn.Close()
			}
			if got := err == nil; got != tt.want {
				t.Errorf("connected = %t (%v), want %t", got, err, tt.want)
			}
			if got := dialled.Load() > 0; got != tt.want {
				t.Errorf("the host dialled = %t, want %t", got, tt.want)
			}
		})
	}
}

func setPolicy(t testing.TB, l *Link, n sandbox.Network) {
	t.Helper()
	if err := l.SetPolicy(n); err != nil {
		t.Fatal(err)
	}
}

func TestLink_SetPolicyCutsFlows(t *testing.T) {
	dial, _ := outside(t)
	l, g := setup(t, allowAll(), EgressConfig{DialContext: dial})
	conn, err := g.dial(t, "8.8.8.8:80")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	echo(t, conn, "before")
	setPolicy(t, l, denyAll())
	conn.SetReadDeadline(time.Now().Add(patience))
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read after the change: %v, want the connection cut", err)
	}
	if c, err := g.dial(t, "8.8.8.8:81"); err == nil {
		c.Close()
		t.Error("a new connection succeeded")
	}
	setPolicy(t, l, allowAll())
	c, err := g.dial(t, "8.8.8.8:80")
	if err != nil {
		t.Fatalf("after allowing again: %v", err)
	}
	c.Close()
}

func TestLink_Dial(t *testing.T) {
	l, g := setup(t, sandbox.Network{Mode: sandbox.DenyAll}, EgressConfig{})
	ln, err := gonet.ListenTCP(g.Stack, tcpip.FullAddress{NIC: 1, Port: 8080}, ipv4.ProtocolNumber)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		c, err := ln.Accept()
		if err == nil {
			defer c.Close()
			io.WriteString(c, c.RemoteAddr().String())
		}
	}()
	conn, err := l.Dial(t.Context(), 8080)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	peer, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	if ap := netip.MustParseAddrPort(string(peer)); ap.Addr() != GatewayAddr {
		t.Errorf("the guest sees peer %s, want %s", ap.Addr(), GatewayAddr)
	}
	if _, err := l.Dial(t.Context(), 9090); cay.CodeOf(err) != cay.Unavailable {
		t.Errorf("dial of a closed port: %v, want unavailable", err)
	}
}

// If a slow reader gets many small segments, our stack drops some, because it has
// promised more room than their overhead leaves. They arrive soon after the reader reads.
func TestLink_SlowReader(t *testing.T) {
	l, g := setup(t, denyAll(), EgressConfig{})
	ln, err := gonet.ListenTCP(g.Stack, full("100.64.0.2:7000"), ipv4.ProtocolNumber)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	connect := func() (ours, guests net.Conn) {
		t.Helper()
		ours, err := l.Dial(t.Context(), 7000)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ours.Close() })
		guests, err = ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { guests.Close() })
		return ours, guests
	}
	slow, from := connect()
	tick, tock := connect()
	turn := func(ours, guests net.Conn) {
		t.Helper()
		echoed := make(chan error, 1)
		go func() {
			_, err := io.CopyN(guests, guests, 5)
			echoed <- err
		}()
		echo(t, ours, "hello")
		if err := <-echoed; err != nil {
			t.Fatal(err)
		}
	}
	turn(slow, from) // opens the window
	message := make([]byte, 80)
	written, dropped := int64(0), l.stack.Stats().DroppedPackets
	for dropped.Value() < 100 && written < defaultTCPBuffer/2 {
		if n, err := from.Write(message); err != nil {
			t.Fatal(err)
		} else {
			written += int64(n)
		}
		turn(tick, tock) // makes each message a segment of its own
	}
	if dropped.Value() == 0 {
		t.Fatal("nothing was dropped: this tests nothing")
	}
	timeouts := g.Stats().TCP.Timeouts.Value()
	slow.SetReadDeadline(time.Now().Add(patience))
	if n, err := io.CopyN(io.Discard, slow, written); err != nil {
		t.Fatalf("%d of %d bytes: %v", n, written, err)
	}
	// The sender times out once for all of them; if they came late, it would time out for
	// every two.
	if n := g.Stats().TCP.Timeouts.Value() - timeouts; n > dropped.Value()/4 {
		t.Errorf("the sender waited %d times for %d segments that were dropped", n, dropped.Value())
	}
}

func TestLink_Ready(t *testing.T) {
	l, g := setup(t, denyAll(), EgressConfig{})
	select {
	case <-l.Ready():
		t.Fatal("ready before the knock")
	default:
	}
	for range 2 { // a second knock is harmless
		if c, err := g.dial(t, "100.64.0.1:1"); err == nil {
			c.Close()
			t.Error("the knock was answered")
		}
	}
	<-l.Ready()
}

func TestLink_CloseTwice(t *testing.T) {
	l, _ := setup(t, denyAll(), EgressConfig{})
	for range 2 {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A packet that arrives while the link closes must not block the close.
func TestLink_CloseUnderTraffic(t *testing.T) {
	stray := packet(func(ip header.IPv4) {
		header.TCP(ip.Payload()).Encode(&header.TCPFields{
			SrcPort: 4000, DstPort: 80, DataOffset: header.TCPMinimumSize, Flags: header.TCPFlagAck,
		})
	})
	e := openEgress(t, EgressConfig{})
	for range 50 {
		ours, guests, err := Pair()
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.SetNonblock(guests, true); err != nil {
			t.Fatal(err)
		}
		l, err := e.NewLink(ours, "ses_test", denyAll(), nil)
		if err != nil {
			t.Fatal(err)
		}
		flooding, closed := make(chan struct{}), make(chan struct{})
		var flood sync.WaitGroup
		flood.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-closed:
					return
				default:
				}
				// Fails when the link is closed, or has no room.
				_, _ = unix.Write(guests, stray)
				if i == 100 {
					close(flooding)
				}
			}
		})
		<-flooding
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		close(closed)
		flood.Wait()
		unix.Close(guests)
	}
}
