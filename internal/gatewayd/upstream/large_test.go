package upstream

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// watched is a body in memory that records when it is closed.
type watched struct {
	bytes.Reader
	closed atomic.Int64
}

func (b *watched) Close() error { b.closed.Add(1); return nil }

// Large requests arrive whole, over reused connections, and their bodies are closed when
// the call has ended.
func TestClient_Large(t *testing.T) {
	t.Parallel()
	s := newScript(t, func(c net.Conn, _, _ int64, body []byte) bool {
		say(c, fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
		return true
	})
	c := newTestClient(t)
	for i, n := range []int{maxBody - 1, maxBody, maxBody + 1, 1 << 20, 3, 5 << 20} {
		text := strings.Repeat(string(rune('a'+i)), n)
		r := post(t, t.Context(), s.url, text)
		b := &watched{}
		b.Reset([]byte(text))
		r.Body = b
		if status, got, err := do(t, c, r); err != nil || status != 200 || got != text {
			t.Errorf("%d bytes: %d, %d bytes, %v", n, status, len(got), err)
		}
		if b.closed.Load() != 1 {
			t.Errorf("the body of %d bytes was closed %d times", n, b.closed.Load())
		}
	}
	if n := s.conns.Load(); n != 1 || c.idle != 1 {
		t.Errorf("%d connections were made, %d are kept", n, c.idle)
	}
}

// raw is a server that passes each connection to serve after reading the head of a
// request.
func raw(t testing.TB, serve func(c net.Conn, n int64)) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	var n atomic.Int64
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			context.AfterFunc(t.Context(), func() { c.Close() })
			go func() {
				if _, err := http.ReadRequest(bufio.NewReaderSize(c, 1)); err == nil {
					serve(c, n.Add(1))
				}
			}()
		}
	}()
	return "http://" + l.Addr().String() + "/x"
}

// The answer of a server that does not read the request is returned, however long it is,
// and the connection is not reused.
func TestClient_LargeUnread(t *testing.T) {
	t.Parallel()
	answer := strings.Repeat("no ", 4<<20)
	url := raw(t, func(c net.Conn, _ int64) {
		say(c, fmt.Sprintf("HTTP/1.1 413 Too Large\r\nContent-Length: %d\r\n\r\n%s", len(answer), answer))
	})
	c := newTestClient(t)
	if status, got, err := do(t, c, post(t, t.Context(), url, strings.Repeat("x", 64<<20))); err != nil || status != 413 || got != answer || c.idle != 0 {
		t.Errorf("%d, %d bytes, %v; %d connections are kept", status, len(got), err, c.idle)
	}
}

// A call that is canceled while its request is written ends, and so does the writer.
func TestClient_LargeCanceled(t *testing.T) {
	t.Parallel()
	there := make(chan struct{})
	url := raw(t, func(net.Conn, int64) { close(there) })
	c := newTestClient(t)
	why := errors.New("no more")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() { <-there; cancel(why) }()
	r := post(t, ctx, url, strings.Repeat("x", 64<<20))
	b := &watched{}
	b.Reset(make([]byte, 64<<20))
	r.Body = b
	if _, _, err := do(t, c, r); !errors.Is(err, why) || b.closed.Load() != 1 || c.idle != 0 {
		t.Errorf("%v; the body was closed %d times", err, b.closed.Load())
	}
}

// A request that a server may have processed is not sent again, unless it is marked as
// idempotent, and then it is sent whole.
func TestClient_LargeNotTwice(t *testing.T) {
	t.Parallel()
	s := newScript(t, func(c net.Conn, _, n int64, body []byte) bool {
		if n == 2 || n == 4 {
			return false
		}
		say(c, fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
		return true
	})
	c := newTestClient(t)
	for i, key := range []string{"", "", "", "1"} {
		r := post(t, t.Context(), s.url, largeBody)
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
		_, got, err := do(t, c, r)
		if i == 1 {
			if err == nil || s.requests.Load() != 2 {
				t.Errorf("a connection that is closed instead of an answer: %v after %d requests", err, s.requests.Load())
			}
		} else if err != nil || got != largeBody {
			t.Errorf("%d: %d bytes, %v", i, len(got), err)
		}
	}
	if n := s.requests.Load(); n != 5 {
		t.Errorf("%d requests", n)
	}
}

// A body whose length differs from ContentLength is an error.
func TestClient_LargeWrongLength(t *testing.T) {
	t.Parallel()
	s := newScript(t, func(c net.Conn, _, _ int64, _ []byte) bool { say(c, fine); return true })
	c := newTestClient(t)
	for _, n := range []int64{int64(len(largeBody)) - 1, int64(len(largeBody)) + 1} {
		r := post(t, t.Context(), s.url, largeBody)
		r.ContentLength = n
		if _, _, err := do(t, c, r); !errors.Is(err, errLength) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	if s.requests.Load() != 0 || c.idle != 0 {
		t.Errorf("%d requests, %d connections are kept", s.requests.Load(), c.idle)
	}
}

// The same over TLS.
func TestClient_LargeTLS(t *testing.T) {
	t.Parallel()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		_, _ = w.Write(body)
	}))
	t.Cleanup(s.Close)
	c := newTestClient(t, func(tr *http.Transport) {
		tr.TLSClientConfig = s.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	})
	text := strings.Repeat("x", 1<<20)
	for range 3 { // the first is the Transport's
		if _, got, err := do(t, c, post(t, t.Context(), s.URL, text)); err != nil || got != text {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	}
	if c.idle != 1 {
		t.Errorf("%d connections are ours", c.idle)
	}
}
