package network

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"testing"

	"github.com/miekg/dns"

	"github.com/cayhq/cay/sandbox"
)

// sink is a server that takes or sends bytes after a hello, for measurements.
func sink(b *testing.B, give bool) (addr string) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { ln.Close() })
	serve(ln, func(c net.Conn) {
		if !give {
			io.Copy(io.Discard, struct{ io.Reader }{c})
			return
		}
		chunk := make([]byte, 256<<10)
		for {
			if _, err := c.Write(chunk); err != nil {
				return
			}
		}
	})
	return ln.Addr().String()
}

// benchLink is a guest with a policy, for which all names resolve to addr.
func benchLink(b *testing.B, n sandbox.Network, addr string) guestStack {
	ns := benchServer(b)
	_, g := setup(b, n, EgressConfig{
		Nameservers: []string{ns}, Limits: sandbox.NetworkLimits{ConnectionsPerSecond: 1 << 20},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		},
	})
	return g
}

func benchServer(b *testing.B) string {
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	started := make(chan struct{})
	s := &dns.Server{PacketConn: pc, NotifyStartedFunc: func() { close(started) }, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		a := new(dns.Msg).SetReply(q)
		a.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 300}, A: net.IPv4(8, 8, 8, 8)}}
		w.WriteMsg(a)
	})}
	go s.ActivateAndServe()
	<-started
	b.Cleanup(func() { s.Shutdown() })
	return pc.LocalAddr().String()
}

// begin connects and sends the hello of a name.
func (g guestStack) begin(b *testing.B, name string) net.Conn {
	conn, err := g.dial(b, "8.8.8.8:443")
	if err != nil {
		b.Fatal(err)
	}
	ours, theirs := net.Pipe()
	go func() {
		_ = tls.Client(theirs, &tls.Config{ServerName: name}).HandshakeContext(b.Context())
	}()
	buf := make([]byte, 16<<10)
	n, err := ours.Read(buf)
	if err != nil {
		b.Fatal(err)
	}
	ours.Close()
	theirs.Close()
	if _, err := conn.Write(buf[:n]); err != nil {
		b.Fatal(err)
	}
	return conn
}

const benchChunk = 256 << 10

// BenchmarkStream measures a stream in each mode and direction; the goal is 600 MB/s by
// name.
func BenchmarkStream(b *testing.B) {
	for _, bm := range []struct {
		name   string
		policy sandbox.Network
		down   bool
	}{
		{"allow-all/up", allowAll(), false},
		{"allow-all/down", allowAll(), true},
		{"by name/up", custom("*.example.com"), false},
		{"by name/down", custom("*.example.com"), true},
	} {
		b.Run(bm.name, func(b *testing.B) {
			conn := benchLink(b, bm.policy, sink(b, bm.down)).begin(b, "api.example.com")
			defer conn.Close()
			buf := make([]byte, benchChunk)
			b.SetBytes(benchChunk)
			for b.Loop() {
				if bm.down {
					if _, err := io.ReadFull(conn, buf); err != nil {
						b.Fatal(err)
					}
				} else if _, err := conn.Write(buf); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkConnect measures the time from dialling until the first byte has come back, by
// address and by name.
func BenchmarkConnect(b *testing.B) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { ln.Close() })
	serve(ln, func(c net.Conn) {
		c.Read(make([]byte, 4096))
		c.Write([]byte{1})
	})
	for name, n := range map[string]sandbox.Network{"allow-all": allowAll(), "by name": custom("*.example.com")} {
		b.Run(name, func(b *testing.B) {
			g := benchLink(b, n, ln.Addr().String())
			b.ResetTimer()
			for b.Loop() {
				conn := g.begin(b, "api.example.com")
				if _, err := conn.Read(make([]byte, 1)); err != nil {
					b.Fatal(err)
				}
				conn.Close()
			}
		})
	}
}
