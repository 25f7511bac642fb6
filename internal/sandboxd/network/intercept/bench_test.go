package intercept

import (
	"fmt"
	"io"
	"net/http"
	"testing"
)

// BenchmarkProxy_Stream measures a stream through TLS on both sides.
func BenchmarkProxy_Stream(b *testing.B) {
	const size = 256 << 20
	block := make([]byte, 1<<20)
	for _, guestH2 := range []bool{false, true} {
		for _, serverH2 := range []bool{false, true} {
			b.Run(fmt.Sprintf("guest h2=%v server h2=%v", guestH2, serverH2), func(b *testing.B) {
				w := newWorld(b, allow(host))
				w.serve(host, 443, serverH2, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
					rw.Header().Set("Content-Length", fmt.Sprint(size))
					for range size / len(block) {
						if _, err := rw.Write(block); err != nil {
							return
						}
					}
				}))
				c := w.guest(guestH2)
				b.SetBytes(size)
				for b.Loop() {
					res, err := c.Get("https://" + host + "/")
					if err != nil {
						b.Fatal(err)
					}
					if n, err := io.Copy(io.Discard, res.Body); err != nil || n != size {
						b.Fatal(n, err)
					}
					res.Body.Close()
				}
			})
		}
	}
}

// BenchmarkProxy_Latency measures a request on existing connections, and on a new
// connection of the guest with a cached leaf.
func BenchmarkProxy_Latency(b *testing.B) {
	w := newWorld(b, allow(host))
	w.serve(host, 443, false, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, fresh := range []bool{false, true} {
		b.Run(fmt.Sprintf("new connection=%v", fresh), func(b *testing.B) {
			c := w.guest(false)
			for b.Loop() {
				get(b, c, "https://"+host+"/")
				<-w.flows
				if fresh {
					c.CloseIdleConnections()
				}
			}
		})
	}
}
