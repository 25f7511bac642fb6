package intercept

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/cayhq/cay/sandbox"
)

// The proxy closes the connection at once if a server switches protocols without being
// asked, or to another protocol: otherwise each request would leave an open descriptor in
// the daemon, without end.
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

// A new policy ends all denied requests under way, even if their name stays allowed:
// streams, WebSockets, and requests that have no answer yet.
func TestRules_PolicyEndsRequests(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, guestH2, serverH2 bool) {
		w := newWorld(t, allow(host))
		begun := make(chan string, 3)
		w.serve(host, 443, serverH2, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/begun") {
				_ = http.NewResponseController(rw).Flush()
			} else {
				begun <- r.URL.Path
			}
			<-r.Context().Done()
		}))
		type answer struct {
			status int
			err    error
		}
		answers := map[string]chan answer{}
		for _, path := range []string{"/denied/begun", "/denied/waits", "/other/begun"} {
			answers[path] = make(chan answer, 1)
			go func() {
				res, err := w.guest(guestH2).Get("https://" + host + path)
				if err != nil {
					answers[path] <- answer{err: err}
					return
				}
				defer res.Body.Close()
				if strings.HasSuffix(path, "/begun") {
					begun <- path
				}
				_, err = io.ReadAll(res.Body)
				answers[path] <- answer{res.StatusCode, err}
			}()
			receive(t, begun, path)
		}
		prefix := "/denied/"
		w.setPolicy(allow(host, sandbox.Rule{Match: sandbox.Match{Path: &sandbox.TextMatch{Prefix: &prefix}}, Deny: true}))
		w.upstream.Reset()
		if a := receive(t, answers["/denied/begun"], "the end of the stream"); a.err == nil {
			t.Errorf("the stream came to a clean end, status %d", a.status)
		}
		if a := receive(t, answers["/denied/waits"], "the answer"); a.status != http.StatusForbidden || a.err != nil {
			t.Errorf("without an answer: status %d, %v", a.status, a.err)
		}
		for range 2 {
			if f := w.flow(); f.Verdict != sandbox.Denied || !strings.Contains(f.Rule, "rule 1") || !strings.Contains(f.Reason, "change of the network policy") {
				t.Errorf("recorded %+v", f)
			}
		}
		select {
		case a := <-answers["/other/begun"]:
			t.Errorf("what is not denied has ended: status %d, %v", a.status, a.err)
		default:
		}
		w.upstream.Close()
		receive(t, answers["/other/begun"], "the end with the sandbox")
	})
}

// politeBody ends in good order when its request is cut.
type politeBody struct{ ctx context.Context }

func (b politeBody) Read([]byte) (int, error) { <-b.ctx.Done(); return 0, io.EOF }
func (politeBody) Close() error               { return nil }

type politeServer struct{}

func (politeServer) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Request: r, ContentLength: -1, Body: politeBody{r.Context()}}, nil
}

// A server that ends its response as soon as the connection is cut does not make the
// response look complete to the guest.
func TestRules_PolicyEndsPolitely(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		w := newWorld(t, allow(host))
		w.proxy.reverse.Transport = politeServer{}
		res, err := w.guest(h2).Get("https://" + host + "/")
		if err != nil {
			t.Fatal(err)
		}
		w.setPolicy(allow(host, sandbox.Rule{Deny: true}))
		w.upstream.Reset()
		if b, err := io.ReadAll(res.Body); err == nil {
			t.Errorf("h2 %v: the response came to a clean end: status %d, %q", h2, res.StatusCode, b)
		}
		res.Body.Close()
		if f := w.flow(); f.Verdict != sandbox.Denied || f.Status != http.StatusOK {
			t.Errorf("h2 %v: recorded %+v", h2, f)
		}
	}
}

// The same for WebSockets.
func TestRules_PolicyEndsWebSockets(t *testing.T) {
	t.Parallel()
	w := newWorld(t, allow(host))
	w.serve(host, 80, false, http.HandlerFunc(echoWebSocket))
	guest := w.guest(false)
	guest.Transport.(*http.Transport).DialContext = func(context.Context, string, string) (net.Conn, error) {
		return w.connect(t.Context(), host, 80), nil
	}
	c, _, err := websocket.Dial(t.Context(), "ws://"+host+"/", &websocket.DialOptions{HTTPClient: guest})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	if err := c.Write(t.Context(), websocket.MessageText, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.setPolicy(allow(host, sandbox.Rule{Deny: true}))
	w.upstream.Reset()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, _, err := c.Read(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("the WebSocket goes on: %v", err)
	}
	if f := w.flow(); f.Verdict != sandbox.Denied {
		t.Errorf("recorded %+v", f)
	}
}

// Headers that Connection names are not sent on, and satisfy no rule.
func TestRules_HopByHop(t *testing.T) {
	t.Parallel()
	pinned := sandbox.Match{Headers: []sandbox.FieldMatch{{Key: exact("x-mode"), Value: exact("read")}}}
	w := newWorld(t, allow(host, sandbox.Rule{Match: pinned}, sandbox.Rule{Deny: true}))
	w.serve(host, 80, false, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { io.WriteString(rw, "mode "+r.Header.Get("X-Mode")) }))
	for head, want := range map[string]string{
		"X-Mode: read\r\nConnection: close":                          "mode read",
		"X-Mode: read\r\nConnection: close, x-mode":                  "HTTP/1.1 403",
		"X-Mode: read\r\nConnection: close\r\nConnection: a ,X-MODE": "HTTP/1.1 403",
	} {
		if answer := w.raw("GET / HTTP/1.1\r\nHost: " + host + "\r\n" + head + "\r\n\r\n"); !strings.Contains(answer, want) {
			t.Errorf("%q: %s", head, answer)
		}
	}
}

// A guest cannot add a header that a rule sets in the spelling with _, which servers that
// pass headers on as variables treat as equal.
func TestRules_SetHeadersUnderscore(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, guestH2, serverH2 bool) {
		w := newWorld(t, allow(host, sandbox.Rule{SetHeaders: map[string]string{"X-Tenant-Id": "tenant-of-the-guest"}}))
		w.serve(host, 443, serverH2, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			for name, values := range r.Header {
				if strings.Contains(strings.ToLower(name), "tenant") {
					io.WriteString(rw, name+"="+strings.Join(values, ",")+"\n")
				}
			}
		}))
		req, err := http.NewRequestWithContext(t.Context(), "GET", "https://"+host+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header = http.Header{"X_tenant_id": {"another"}, "X-Tenant_Id": {"another"}, "x_tenant-id": {"another"}}
		if _, body := do(t, w.guest(guestH2), req); body != "X-Tenant-Id=tenant-of-the-guest\n" {
			t.Errorf("the server got %q", body)
		}
	})
}

// The streams of a guest's connections are bounded together: each request costs
// memory, and with HTTP/1 a connection to the server.
func TestProxy_RequestsAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, allow(host))
	begun, gate := make(chan struct{}, maxRequests+1), make(chan struct{})
	w.serve(host, 443, true, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/first" {
			begun <- struct{}{}
			<-gate
		}
	}))
	answers := make(chan int, maxRequests+1)
	request := func(c *http.Client) {
		res, err := c.Get("https://" + host + "/")
		if err != nil {
			t.Error(err)
			answers <- 0
			return
		}
		res.Body.Close()
		answers <- res.StatusCode
	}
	var c *http.Client
	for i := range maxRequests {
		if i%200 == 0 {
			c = w.guest(true)
			get(t, c, "https://"+host+"/first") // so that the other requests share its connection
			w.flow()
		}
		go request(c)
	}
	for range maxRequests {
		receive(t, begun, "a request")
	}
	go request(c)
	if status := receive(t, answers, "the answer to one more"); status != http.StatusServiceUnavailable {
		t.Errorf("one more than %d requests: status %d", maxRequests, status)
	}
	if f := w.flow(); f.Verdict != sandbox.Denied || f.Rule != "limit requests" {
		t.Errorf("recorded %+v", f)
	}
	close(gate)
	for range maxRequests {
		if status := receive(t, answers, "an answer"); status != http.StatusOK {
			t.Errorf("status %d", status)
		}
		w.flow()
	}
	go request(c)
	if status := receive(t, answers, "an answer"); status != http.StatusOK {
		t.Errorf("after all have ended: status %d", status)
	}
}

// A secret does not appear in trailers of a response that announces no body, nor in the
// JSON of servers that escape slashes.
func TestRules_ScrubOddPlaces(t *testing.T) {
	t.Parallel()
	const secret = "s3cret/value+of/length"
	w := newWorld(t, allow(host, sandbox.Rule{SetHeaders: map[string]string{"X-Key": secret}, Scrub: true}))
	w.serve(host, 443, true, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("X-Key")
		if r.URL.Path == "/json" {
			io.WriteString(rw, `{"key":"`+strings.ReplaceAll(key, "/", `\/`)+`"}`)
			return
		}
		rw.Header().Set("Content-Length", "0")
		rw.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(rw).Flush()
		rw.Header().Set(http.TrailerPrefix+"X-Echo", key)
	}))
	if _, body := get(t, w.guest(true), "https://"+host+"/json"); body != `{"key":"`+sandbox.Redacted+`"}` {
		t.Errorf("JSON: %s", body)
	}
	res, _ := get(t, w.guest(true), "https://"+host+"/trailers")
	if got := res.Trailer.Get("X-Echo"); got != sandbox.Redacted {
		t.Errorf("the trailer is %q", got)
	}
}

// Request targets that HTTP/1 does not allow are refused in HTTP/2 as well: some servers
// read the part behind such a character, others do not, so a guest could evade rules
// about queries.
func TestRules_HTTP2Target(t *testing.T) {
	t.Parallel()
	w := newWorld(t, allow(host, sandbox.Rule{Match: sandbox.Match{Query: []sandbox.FieldMatch{{Key: exact("readonly"), Value: exact("1")}}}}, sandbox.Rule{Deny: true}))
	w.serve(host, 443, true, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { io.WriteString(rw, r.RequestURI) }))
	c := w.guest(true)
	for query, status := range map[string]int{
		"a=1&readonly=1":          200,
		"a=1":                     403,
		"a=1#&readonly=1":         400,
		"a=1 &readonly=1":         400,
		"a=1\\&readonly=1":        400,
		"a=1&readonly=1&b=\u00e4": 400,
	} {
		req, err := http.NewRequestWithContext(t.Context(), "GET", "https://"+host+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.URL.RawQuery = query
		if res, body := do(t, c, req); res.StatusCode != status {
			t.Errorf("%q: status %d, %s", query, res.StatusCode, body)
		}
	}
}
