package intercept

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// A server that switches protocols without being asked, or to another one, is
// left at once: what it holds open would be a descriptor of the daemon for each
// request, without end.
func TestProxy_UpgradeNobodyAskedFor(t *testing.T) {
	t.Parallel()
	for name, offer := range map[string]string{
		"unasked": "", "another": "Connection: Upgrade\r\nUpgrade: websocket\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, allow(host))
			left := make(chan error, 1)
			w.serveRaw(host, 80, func(c net.Conn) {
				if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
					left <- err
					return
				}
				io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\n")
				_, err := c.Read(make([]byte, 1))
				left <- err
			})
			answer := w.raw("GET / HTTP/1.1\r\nHost: " + host + "\r\n" + offer + "\r\nGET / HTTP/1.1\r\nHost: evil.example.net\r\nConnection: close\r\n\r\n")
			if !strings.HasPrefix(answer, "HTTP/1.1 502") {
				t.Errorf("answered %q", answer)
			}
			if err := receive(t, left, "the end of the connection"); err != io.EOF {
				t.Errorf("the server's connection: %v", err)
			}
		})
	}
}
