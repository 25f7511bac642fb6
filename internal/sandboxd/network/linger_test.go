package network

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// A guest that does not take the bytes sent to it keeps the place of its connection,
// because the bytes keep memory in the daemon; both last at most as long as the link.
func TestLimits_untaken(t *testing.T) {
	t.Parallel()
	const most = 4
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	serve(ln, func(c net.Conn) {
		c.Write(bytes.Repeat([]byte("x"), leastToGuest)) // more than the guest has room for
	})
	l, g := setup(t, allowAll(), EgressConfig{
		Limits: sandbox.NetworkLimits{Connections: most},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, ln.Addr().String())
		},
	})
	log := newFlowLog()
	l.OnFlow(log.add)
	little := tcpip.TCPReceiveBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: 4 << 10, Max: 4 << 10}
	if err := g.SetTransportProtocolOption(tcp.ProtocolNumber, &little); err != nil {
		t.Fatal(err)
	}
	dst := netip.MustParseAddrPort("93.184.0.30:7")
	for i := range most {
		conn, err := g.dial(t, dst.String())
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		defer conn.Close()
		if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		log.await(t, "its end", func(f sandbox.Flow) bool { return f.Seq == int64(i+1) && !f.Open })
	}
	if conn, err := g.dial(t, dst.String()); err == nil {
		conn.Close()
		t.Errorf("the daemon holds the data of %d connections, and opens one more", most)
	}
	log.awaitDenied(t, "limit connections")
	closed := make(chan error, 1)
	go func() { closed <- l.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("the link does not end")
	}
}

// Connections into the guest are bounded in the same way, including closed connections
// whose bytes were not taken.
func TestLink_DialPort_untaken(t *testing.T) {
	t.Parallel()
	l, g := setup(t, denyAll(), EgressConfig{})
	little := tcpip.TCPReceiveBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: 4 << 10, Max: 4 << 10}
	if err := g.SetTransportProtocolOption(tcp.ProtocolNumber, &little); err != nil {
		t.Fatal(err)
	}
	ln, err := gonet.ListenTCP(g.Stack, full("100.64.0.2:7000"), ipv4.ProtocolNumber)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	open := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.inbound)
	}
	message := bytes.Repeat([]byte("x"), leastToGuest)
	ours, err := l.DialPort(t.Context(), 7000)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	if _, err := ours.Write(message); err != nil {
		t.Fatal(err)
	}
	if err := ours.Close(); err != nil {
		t.Fatal(err)
	}
	if n := open(); n != 1 {
		t.Errorf("%d connections count while the guest has not taken the data", n)
	}
	l.mu.Lock()
	var fill []*inbound
	for len(l.inbound) < maxInbound {
		c := new(inbound)
		fill = append(fill, c)
		l.inbound[c] = struct{}{}
	}
	l.mu.Unlock()
	if _, err := l.DialPort(t.Context(), 7000); cay.CodeOf(err) != cay.QuotaExceeded {
		t.Errorf("one more connection: %v", err)
	}
	l.mu.Lock()
	for _, c := range fill {
		delete(l.inbound, c)
	}
	l.mu.Unlock()
	if got, err := io.ReadAll(theirs); err != nil || len(got) != len(message) {
		t.Errorf("the guest got %d bytes, %v", len(got), err)
	}
	theirs.Close()
	for deadline := time.Now().Add(patience); open() > 0; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("the connection counts after its end")
		}
	}
}
