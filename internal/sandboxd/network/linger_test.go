package network

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/cayhq/cay/sandbox"
)

// A guest that does not take what it was sent keeps the place of its connection,
// since that keeps its memory in the daemon, and both for as long as the link
// lives at most.
func TestLimits_untaken(t *testing.T) {
	t.Parallel()
	const most = 4
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			c.Write(bytes.Repeat([]byte("x"), 128<<10)) // more than the guest has room for
			c.Close()
		}
	}()
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
	begun := time.Now()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took > patience/2 {
		t.Errorf("the end of the link took %v", took)
	}
}
