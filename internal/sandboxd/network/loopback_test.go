package network

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/miekg/dns"

	"github.com/cayhq/cay/sandbox"
)

// Where the operator allows the host's loopback, a name on it has for the guest an
// address other than the guest's own loopback, and leads to the host's.
func TestAllowRanges_loopback(t *testing.T) {
	t.Parallel()
	host, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	port := host.Addr().(*net.TCPAddr).AddrPort().Port()
	for name, policy := range map[string]sandbox.Network{"allow-all": allowAll(), "custom": custom("loopback.example.com")} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			var dialled []string // guarded by mu
			w := openWorld(t, policy, func(_ *world, cfg *EgressConfig) {
				cfg.AllowRanges = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
				cfg.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
					mu.Lock()
					dialled = append(dialled, address)
					mu.Unlock()
					return new(net.Dialer).DialContext(ctx, network, address)
				}
			})
			q := w.udp(t, at(GatewayAddr, 53))
			defer q.Close()
			if got := addrsOf(ask(t, q, "loopback.example.com", dns.TypeA)); !slices.Equal(got, []string{Placeholder.String()}) {
				t.Fatalf("addresses %v, want %v", got, Placeholder)
			}
			served := make(chan error, 1)
			go func() {
				conn, err := host.Accept()
				if err == nil {
					_, err = http.ReadRequest(bufio.NewReader(conn))
				}
				if err == nil {
					_, err = conn.Write([]byte("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi"))
					conn.Close()
				}
				served <- err
			}()
			conn, err := w.dial(t, at(Placeholder, port))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if status, body, err := get(conn, "loopback.example.com", "/"); status != 200 || body != "hi" {
				t.Errorf("%d %q, %v", status, body, err)
			}
			if err := <-served; err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if want := []string{at(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)}; !slices.Equal(dialled, want) {
				t.Errorf("dialled %v, want %v", dialled, want)
			}
		})
	}
}

// The daemon itself is never reached, even if the operator allows its address.
func TestAllowRanges_daemon(t *testing.T) {
	t.Parallel()
	w := openWorld(t, allowAll(), func(_ *world, cfg *EgressConfig) {
		cfg.AllowRanges = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
		cfg.OwnPorts = func() []uint16 { return []uint16{7071, 7070} }
		cfg.DialContext = func(_ context.Context, _, address string) (net.Conn, error) {
			t.Errorf("%s was dialled", address)
			return nil, net.ErrClosed
		}
	})
	conn, err := w.dial(t, at(Placeholder, 7070))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if status, body, err := get(conn, "loopback.example.com", "/"); status == 200 {
		t.Errorf("%d %q, %v", status, body, err)
	}
	w.awaitDenied(t, "blocked address of the daemon")
}
