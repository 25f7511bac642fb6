package upstream

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func newTestClient(t testing.TB, change ...func(*http.Transport)) *Client {
	tr := &http.Transport{MaxIdleConnsPerHost: 8, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: 4 << 10, DisableCompression: true}
	for _, f := range change {
		f(tr)
	}
	c := New(tr)
	t.Cleanup(c.CloseIdleConnections)
	return c
}

func post(t testing.TB, ctx context.Context, url, body string) *http.Request {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// do makes a call and returns its answer.
func do(t testing.TB, c http.RoundTripper, r *http.Request) (int, string, error) {
	t.Helper()
	resp, err := c.RoundTrip(r)
	if err != nil {
		return 0, "", err
	}
	b, err := io.ReadAll(resp.Body)
	if cerr := resp.Body.Close(); cerr != nil {
		t.Errorf("close: %v", cerr)
	}
	return resp.StatusCode, string(b), err
}

// script is a scripted server: for each request of each connection it calls f, which may
// write and close as it likes, and returns false to end the connection.
type script struct {
	url             string
	conns, requests atomic.Int64
	mu              sync.Mutex
	heads           []http.Header // guarded by mu
	ended           chan struct{} // receives a value per ended connection
	serve           func(c net.Conn, conn, request int64, body []byte) bool
}

func newScript(t testing.TB, serve func(c net.Conn, conn, request int64, body []byte) bool) *script {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &script{url: "http://" + l.Addr().String() + "/v1/x", serve: serve, ended: make(chan struct{}, 1000)}
	var all sync.WaitGroup
	t.Cleanup(func() { l.Close(); all.Wait() })
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			context.AfterFunc(t.Context(), func() { c.Close() })
			n := s.conns.Add(1)
			all.Go(func() {
				defer func() { c.Close(); s.ended <- struct{}{} }()
				in := bufio.NewReader(c)
				for {
					r, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					body, err := io.ReadAll(r.Body)
					if err != nil {
						return
					}
					s.mu.Lock()
					s.heads = append(s.heads, r.Header)
					s.mu.Unlock()
					if !s.serve(c, n, s.requests.Add(1), body) {
						return
					}
				}
			})
		}
	})
	return s
}

func say(c net.Conn, text string) { _, _ = io.WriteString(c, text) }

const fine = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine"

func TestClient_KeepsConnections(t *testing.T) {
	t.Parallel()
	s := newScript(t, func(c net.Conn, _, n int64, body []byte) bool {
		switch n % 4 {
		case 0:
			say(c, fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
		case 1:
			say(c, fmt.Sprintf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(body), body))
		case 2:
			say(c, "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"+fmt.Sprintf("HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
		default:
			say(c, "HTTP/1.1 204 No Content\r\n\r\n")
		}
		return true
	})
	c := newTestClient(t)
	for i := 1; i <= 12; i++ {
		text := fmt.Sprint("call ", i)
		status, got, err := do(t, c, post(t, t.Context(), s.url, text))
		want := []int{200, 200, 404, 204}[i%4]
		if want == 204 {
			text = ""
		}
		if err != nil || status != want || got != text {
			t.Errorf("%d: %d %q %v", i, status, got, err)
		}
	}
	if n := s.conns.Load(); n != 1 {
		t.Errorf("%d connections were made", n)
	}
}

// After such answers the connection is not reused.
func TestClient_LeavesConnections(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"says so":   "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\nfine",
		"is old":    "HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\nfine",
		"says more": fine + "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScript(t, func(c net.Conn, _, _ int64, _ []byte) bool { say(c, answer); return true })
			c := newTestClient(t)
			for range 3 {
				if status, got, err := do(t, c, post(t, t.Context(), s.url, "x")); err != nil || status != 200 || got != "fine" {
					t.Errorf("%d %q %v", status, got, err)
				}
				<-s.ended
			}
			if n := s.conns.Load(); n != 3 {
				t.Errorf("%d connections for 3 calls", n)
			}
		})
	}
}

// A connection is not reused after an answer with a malformed end, because the following
// bytes could be mistaken for the answer to another call.
func TestClient_BadEnd(t *testing.T) {
	t.Parallel()
	s := newScript(t, func(c net.Conn, _, n int64, _ []byte) bool {
		if n == 1 {
			say(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfine\r\nzz\r\n")
		} else {
			say(c, fine)
		}
		return true
	})
	c := newTestClient(t)
	if _, got, err := do(t, c, post(t, t.Context(), s.url, "x")); err == nil || got != "fine" {
		t.Errorf("%q %v", got, err)
	}
	<-s.ended
	if _, got, err := do(t, c, post(t, t.Context(), s.url, "x")); err != nil || got != "fine" || s.conns.Load() != 2 {
		t.Errorf("%q %v, %d connections", got, err, s.conns.Load())
	}
}

// A connection closed while idle is not used, and the caller sees no error.
func TestClient_ClosedWhileIdle(t *testing.T) {
	t.Parallel()
	s := newScript(t, func(c net.Conn, _, _ int64, _ []byte) bool { say(c, fine); return false })
	c := newTestClient(t)
	for range 20 {
		if _, got, err := do(t, c, post(t, t.Context(), s.url, "x")); err != nil || got != "fine" {
			t.Fatalf("%q %v", got, err)
		}
		<-s.ended
	}
	if s.requests.Load() != 20 {
		t.Errorf("%d requests", s.requests.Load())
	}
}

// A request that a server may have processed is not sent again, unless it is marked as
// idempotent.
func TestClient_NotTwice(t *testing.T) {
	t.Parallel()
	s := newScript(t, func(c net.Conn, _, n int64, _ []byte) bool {
		if n == 2 || n == 4 {
			return false
		}
		say(c, fine)
		return true
	})
	c := newTestClient(t)
	if _, _, err := do(t, c, post(t, t.Context(), s.url, "x")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := do(t, c, post(t, t.Context(), s.url, "x")); !errors.Is(err, io.EOF) {
		t.Errorf("a connection that is closed instead of an answer: %v", err)
	}
	if n := s.requests.Load(); n != 2 {
		t.Fatalf("%d requests", n)
	}
	if _, _, err := do(t, c, post(t, t.Context(), s.url, "x")); err != nil {
		t.Fatal(err)
	}
	r := post(t, t.Context(), s.url, "x")
	r.Header.Set("Idempotency-Key", "1")
	if _, got, err := do(t, c, r); err != nil || got != "fine" {
		t.Errorf("with an idempotency key: %q %v", got, err)
	}
	if n := s.requests.Load(); n != 5 {
		t.Errorf("%d requests", n)
	}
}

func TestClient_Canceled(t *testing.T) {
	t.Parallel()
	why := errors.New("no more")
	for name, begin := range map[string]string{
		"before the answer":  "",
		"within the head":    "HTTP/1.1 200 OK\r\nContent-",
		"within the body":    "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegin",
		"between the chunks": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegin\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			there := make(chan struct{})
			s := newScript(t, func(c net.Conn, _, _ int64, _ []byte) bool { say(c, begin); close(there); return true })
			c := newTestClient(t)
			ctx, cancel := context.WithCancelCause(t.Context())
			go func() { <-there; cancel(why) }()
			if status, got, err := do(t, c, post(t, ctx, s.url, "x")); !errors.Is(err, why) {
				t.Errorf("%d %q %v", status, got, err)
			}
			<-s.ended // the server sees the close
			if c.idle != 0 {
				t.Error("the connection is kept")
			}
			before := s.requests.Load()
			if _, _, err := do(t, c, post(t, ctx, s.url, "x")); !errors.Is(err, why) || s.requests.Load() != before {
				t.Errorf("a call that had ended before: %v", err)
			}
		})
	}
}

// An answer that is closed early closes its connection, also during a concurrent read.
func TestClient_ClosedEarly(t *testing.T) {
	t.Parallel()
	s := newScript(t, func(c net.Conn, _, _ int64, _ []byte) bool {
		say(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegin")
		return true
	})
	c := newTestClient(t)
	for _, reading := range []bool{false, true} {
		resp, err := c.RoundTrip(post(t, t.Context(), s.url, "x"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(resp.Body, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
		read := make(chan error, 1)
		if reading {
			go func() { _, err := resp.Body.Read(make([]byte, 5)); read <- err }()
		}
		if err := resp.Body.Close(); err != nil {
			t.Error(err)
		}
		if reading {
			if err := <-read; err == nil {
				t.Error("the read goes on")
			}
		}
		if _, err := resp.Body.Read(make([]byte, 5)); err == nil || err == io.EOF {
			t.Errorf("read after close: %v", err)
		}
		<-s.ended
	}
	if c.idle != 0 || s.conns.Load() != 2 {
		t.Errorf("%d idle, %d made", c.idle, s.conns.Load())
	}
}

func TestClient_LargeHead(t *testing.T) {
	t.Parallel()
	for name, head := range map[string]string{
		"one": "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 5<<10) + "\r\n\r\n",
		"1xx": strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", 200) + fine,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScript(t, func(c net.Conn, _, _ int64, _ []byte) bool { say(c, head); return false })
			if _, _, err := do(t, newTestClient(t), post(t, t.Context(), s.url, "x")); err == nil || !strings.Contains(err.Error(), "larger than 4096 bytes") {
				t.Errorf("%v", err)
			}
		})
	}
}

// No part of a request can become another request.
func TestClient_Injected(t *testing.T) {
	t.Parallel()
	s := newScript(t, func(c net.Conn, _, _ int64, _ []byte) bool { say(c, fine); return true })
	c := newTestClient(t)
	for name, change := range map[string]func(r *http.Request){
		"value":        func(r *http.Request) { r.Header["X"] = []string{"a\r\nX-Admin: 1"} },
		"newline":      func(r *http.Request) { r.Header["X"] = []string{"a\nb"} },
		"zero":         func(r *http.Request) { r.Header["X"] = []string{"a\x00b"} },
		"name":         func(r *http.Request) { r.Header["X: 1\r\nY"] = []string{"a"} },
		"host":         func(r *http.Request) { r.Host = "a b" },
		"path":         func(r *http.Request) { r.URL.Opaque = "//h/a\r\nX: 1" },
		"long body":    func(r *http.Request) { r.ContentLength = 2 },
		"short body":   func(r *http.Request) { r.ContentLength = 8 },
		"wrong method": func(r *http.Request) { r.Method = "PO ST" },
	} {
		r := post(t, t.Context(), s.url, "body")
		change(r)
		if _, _, err := do(t, c, r); err == nil || strings.Contains(err.Error(), "X-Admin") {
			t.Errorf("%s: %v", name, err)
		}
	}
	r := post(t, t.Context(), s.url, "body")
	r.Header["Content-Length"], r.Header["Host"], r.Header["X"] = []string{"1"}, []string{"other"}, []string{" a\t", "b"}
	if _, got, err := do(t, c, r); err != nil || got != "fine" {
		t.Fatalf("%q %v", got, err)
	}
	if n := s.requests.Load(); n != 1 || !reflect.DeepEqual(s.heads[0], http.Header{"Content-Length": {"4"}, "X": {"a", "b"}}) {
		t.Errorf("the server got %d: %v", n, s.heads)
	}
}

// With TLS the client respects the server's choice of HTTP/2; from the second call on it
// uses its own connections to servers without HTTP/2.
func TestClient_TLS(t *testing.T) {
	t.Parallel()
	for _, two := range []bool{false, true} {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprint(w, r.ProtoMajor, " ", r.TLS.ServerName)
		}))
		s.EnableHTTP2 = two
		s.StartTLS()
		t.Cleanup(s.Close)
		c := newTestClient(t, func(tr *http.Transport) {
			tr.ForceAttemptHTTP2, tr.TLSClientConfig = true, s.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
			tr.TLSClientConfig.ServerName = "example.com"
		})
		want, kept := "1 example.com", 1
		if two {
			want, kept = "2 example.com", 0
		}
		for range 4 {
			if status, got, err := do(t, c, post(t, t.Context(), s.URL, "x")); err != nil || status != 200 || got != want {
				t.Errorf("HTTP/2 %v: %d %q %v", two, status, got, err)
			}
		}
		if c.idle != kept {
			t.Errorf("HTTP/2 %v: %d connections are ours", two, c.idle)
		}
	}
}

// A server with an invalid certificate gets no request, from the client or from the
// Transport.
func TestClient_Untrusted(t *testing.T) {
	t.Parallel()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it got a request") }))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	c := newTestClient(t)
	r := post(t, t.Context(), s.URL, "x")
	c.host(r).plain.Store(true)
	if _, _, err := do(t, c, r); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("%v", err)
	}
}

// The Transport makes requests that use proxies, are large and not in memory, or are
// unusual.
func TestClient_Others(t *testing.T) {
	t.Parallel()
	s := newScript(t, func(c net.Conn, _, _ int64, body []byte) bool {
		say(c, fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
		return true
	})
	proxy, _ := url.Parse(s.url)
	for name, it := range map[string]struct {
		setting func(*http.Transport)
		request func(*http.Request)
	}{
		"proxy": {func(tr *http.Transport) { tr.Proxy = http.ProxyURL(proxy) }, func(r *http.Request) {}},
		"large": {func(*http.Transport) {}, func(r *http.Request) {
			r.Body, r.ContentLength = io.NopCloser(io.LimitReader(bytes.NewReader(make([]byte, maxBody+1)), maxBody+1)), maxBody+1
		}},
		"chunks": {func(*http.Transport) {}, func(r *http.Request) { r.ContentLength = -1 }},
		"close":  {func(*http.Transport) {}, func(r *http.Request) { r.Close = true }},
		"expect": {func(*http.Transport) {}, func(r *http.Request) { r.Header.Set("Upgrade", "x") }},
		"delete": {func(*http.Transport) {}, func(r *http.Request) { r.Method = http.MethodDelete }},
	} {
		c := newTestClient(t, it.setting)
		r := post(t, t.Context(), s.url, "text")
		it.request(r)
		want := max(4, int(r.ContentLength))
		if _, got, err := do(t, c, r); err != nil || len(got) != want {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
		if c.idle != 0 {
			t.Errorf("%s is made by the client itself", name)
		}
	}
}

func TestClient_IdleBounds(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	all.Add(5)
	s := newScript(t, func(c net.Conn, _, n int64, _ []byte) bool {
		if n <= 5 { // all at once
			all.Done()
			all.Wait()
		}
		say(c, fine)
		return true
	})
	c := newTestClient(t, func(tr *http.Transport) { tr.MaxIdleConnsPerHost = 3 })
	var calls sync.WaitGroup
	for range 5 {
		calls.Go(func() {
			if _, _, err := do(t, c, post(t, t.Context(), s.url, "x")); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	if c.idle != 3 {
		t.Errorf("%d are kept", c.idle)
	}
	<-s.ended
	<-s.ended
	h := c.host(post(t, t.Context(), s.url, "x"))
	c.mu.Lock()
	h.idle[0].since = time.Now().Add(-time.Hour)
	c.mu.Unlock()
	c.sweep()
	<-s.ended
	if c.idle != 2 || len(h.idle) != 2 || c.timer == nil {
		t.Errorf("%d are left of 3, one of them old", c.idle)
	}
	c.CloseIdleConnections()
	<-s.ended
	<-s.ended
	if c.idle != 0 || c.timer != nil {
		t.Errorf("%d are left", c.idle)
	}
	c.sweep() // a sweep that began meanwhile
}

// Many concurrent calls, some of them canceled, get the right answers.
func TestClient_AtOnce(t *testing.T) {
	t.Parallel()
	s := newScript(t, func(c net.Conn, _, _ int64, body []byte) bool {
		say(c, fmt.Sprintf("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", len(body), body))
		say(c, "0\r\n\r\n")
		return true
	})
	c := newTestClient(t)
	var calls sync.WaitGroup
	var lost atomic.Int64
	for i := range 16 {
		calls.Go(func() {
			for n := range 60 {
				text := strings.Repeat(fmt.Sprintf("%d/%d ", i, n), 1+n*7)
				ctx, cancel := context.WithCancel(t.Context())
				given := n%5 == 0
				if given {
					go cancel()
				}
				_, got, err := do(t, c, post(t, ctx, s.url, text))
				cancel()
				switch {
				case err != nil && given:
					lost.Add(1)
				case err != nil:
					t.Errorf("%d/%d: %v", i, n, err)
				case got != text:
					t.Errorf("%d/%d got %.40q", i, n, got)
				}
			}
		})
	}
	calls.Wait()
	t.Logf("%d calls were given up in time, %d connections", lost.Load(), s.conns.Load())
}

// reply is a connection whose other side answers the first request with fixed bytes, and
// then closes.
type reply struct {
	net.Conn
	asked   chan struct{}
	once    sync.Once
	answer  *bytes.Reader
	refuses bool // accepts half of the written bytes
	closed  chan struct{}
	end     sync.Once
}

func newReply(answer []byte) *reply {
	return &reply{asked: make(chan struct{}), closed: make(chan struct{}), answer: bytes.NewReader(answer)}
}

func (r *reply) Write(p []byte) (int, error) {
	if r.refuses {
		r.once.Do(func() { close(r.asked) })
		return len(p) / 2, syscall.EPIPE
	}
	if bytes.HasSuffix(p, []byte("body")) {
		r.once.Do(func() { close(r.asked) })
	}
	return len(p), nil
}

func (r *reply) Read(p []byte) (int, error) {
	select {
	case <-r.asked:
		return r.answer.Read(p)
	case <-r.closed:
		return 0, net.ErrClosed
	}
}

func (r *reply) Close() error                     { r.end.Do(func() { close(r.closed) }); return nil }
func (r *reply) SetDeadline(time.Time) error      { return nil }
func (r *reply) SetReadDeadline(time.Time) error  { return nil }
func (r *reply) SetWriteDeadline(time.Time) error { return nil }

// The answer of a server that does not read the whole request is returned.
func TestClient_EarlyAnswer(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]string{
		"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nno!": "no!", "": "",
	} {
		for _, body := range []string{"body", strings.Repeat("x", 3*maxBody)} {
			rep := newReply([]byte(answer))
			rep.refuses = true
			c := newTestClient(t, func(tr *http.Transport) {
				tr.DialContext = func(context.Context, string, string) (net.Conn, error) { return rep, nil }
			})
			status, got, err := do(t, c, post(t, t.Context(), "http://host/x", body))
			if want == "" && !errors.Is(err, syscall.EPIPE) || want != "" && (err != nil || status != 413 || got != want) || c.idle != 0 {
				t.Errorf("%q to %d bytes: %d %q %v", answer, len(body), status, got, err)
			}
		}
	}
}

// heard is the client's view of an answer.
type heard struct {
	Status  int
	Head    http.Header
	Body    string
	Failed  bool // no answer
	Cut     bool // incomplete body
	Trailer http.Header
}

func hear(t testing.TB, c http.RoundTripper, body string) (h heard) {
	resp, err := c.RoundTrip(post(t, t.Context(), "http://host/x", body))
	if err != nil {
		return heard{Failed: true}
	}
	b, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	return heard{Status: resp.StatusCode, Head: resp.Header, Body: string(b), Cut: err != nil, Trailer: resp.Trailer}
}

var answers = []string{
	fine, "", "HTTP/1.1 200 OK", "HTTP/1.1 200 OK\r\n\r\nuntil the end", "HTTP/1.0 200 OK\r\n\r\nold", "garbage\r\n\r\n",
	"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nfine!",
	"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfine\r\n0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4;a=b\r\nfine\r\n0\r\nX: y\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfine\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n4\r\nfine\r\n0\r\nX: y\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nfine\r\n",
	"HTTP/1.1 100 Continue\r\n\r\n" + fine, "HTTP/1.1 103 Early\r\nA: b\r\n\r\nHTTP/1.1 204 None\r\nContent-Length: 3\r\n\r\n", "HTTP/1.1 304 Same\r\nContent-Length: 3\r\n\r\n",
	"HTTP/1.1 200 OK\r\nX : y\r\n\r\n", "HTTP/1.1 200 OK\r\n folded: y\r\n\r\n", "HTTP/1.1 200 OK\r\nX: y\r\n z\r\nContent-Length: 0\r\n\r\n", "HTTP/2.0 200 OK\r\n\r\n",
	"HTTP/1.1 2000 OK\r\n\r\n", "HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 200 OK\nContent-Length: 4\n\nfine", "HTTP/1.1 99 Low\r\nContent-Length: 1\r\n\r\nx",
	"HTTP/1.1 599 High\r\nContent-Length: 1\r\n\r\nx", "HTTP/1.1 000 Zero\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 050 Low\r\nContent-Length: 0\r\n\r\n",
}

func TestClient_SameAsTransport(t *testing.T) {
	t.Parallel()
	for _, a := range answers {
		compare(t, []byte(a))
	}
}

// FuzzAnswer compares the client with net/http's Transport on the same bytes.
func FuzzAnswer(f *testing.F) {
	for _, a := range answers {
		f.Add([]byte(a))
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		if len(answer) > 4<<10 { // the two differ slightly in how they count the limit of heads
			return
		}
		compare(t, answer)
	})
}

var largeBody = strings.Repeat("x", maxBody) + "body"

func compare(t testing.TB, answer []byte) {
	t.Helper()
	dial := func(tr *http.Transport) {
		tr.MaxResponseHeaderBytes = 64 << 10
		tr.DialContext = func(context.Context, string, string) (net.Conn, error) { return newReply(answer), nil }
	}
	for _, body := range []string{"body", largeBody} {
		c := newTestClient(t, dial)
		want, got := hear(t, c.other, body), hear(t, c, body)
		if want.Status == http.StatusSwitchingProtocols { // not requested
			want = heard{Failed: true}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%q to %d bytes:\n got %+v\nwant %+v", answer, len(body), got, want)
		}
	}
}
