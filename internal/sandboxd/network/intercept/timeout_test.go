package intercept

import (
	"bufio"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cayhq/cay/internal/sandboxd/network/policy"
	"github.com/cayhq/cay/sandbox"
)

// A guest's connection without requests is closed after a while.
func TestProxy_Timeouts(t *testing.T) {
	t.Parallel()
	pol, err := policy.Compile(sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{allow(host, sandbox.Rule{Respond: &sandbox.Response{Status: 204}})}})
	if err != nil {
		t.Fatal(err)
	}
	ca, err := OpenCA(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	const request = "GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n"
	for _, test := range []struct {
		name   string
		tls    bool
		send   string
		answer bool
		after  time.Duration
	}{
		{"handshake", true, "\x16\x03\x01", false, handshakeTime},
		{"first request", false, "", false, headerTime},
		{"half a request", false, request[:20], false, headerTime},
		{"next request", false, request, true, guestIdle},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := New(Config{CA: ca, Logger: slog.New(slog.DiscardHandler)})
				defer p.Close()
				guest, end := net.Pipe()
				defer guest.Close()
				s := &Session{Name: host, Port: 80, Policy: func() *policy.Policy { return pol }, Upstream: p.NewUpstream(nil)}
				go func() {
					if test.tls {
						p.ServeTLS(t.Context(), end, s)
					} else {
						p.ServeHTTP1(t.Context(), end, s)
					}
				}()
				if _, err := io.WriteString(guest, test.send); err != nil {
					t.Fatal(err)
				}
				r := bufio.NewReader(guest)
				if test.answer {
					if res, err := http.ReadResponse(r, nil); err != nil || res.StatusCode != 204 {
						t.Fatal(res, err)
					}
				}
				start := time.Now()
				_, err := io.Copy(io.Discard, r)
				if took := time.Since(start); err != nil || took < test.after || took > test.after+time.Second {
					t.Errorf("the connection ended after %v (%v), want %v", took, err, test.after)
				}
			})
		})
	}
}
