package preview_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/leaktest"
	"github.com/cayhq/cay/internal/sandboxd/preview"
	"github.com/cayhq/cay/sandbox"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// The labels of every test.
const (
	open    = "open"    // a public port
	closed  = "closed"  // a private port
	other   = "other"   // a private port of another team
	idle    = "idle"    // a port nothing listens on
	removed = "removed" // a port that was removed
	paused  = "paused"
	slow    = "slow" // of a sandbox that starts when the test says so
)

const apiSecret = "cay_secret"

// world is a set of Targets whose ports all belong to one guest.
type world struct {
	guest   string // address
	expires time.Time
	started chan struct{}
	ends    map[string]context.CancelFunc // by label: the end of its Target
	ctx     map[string]context.Context

	mu    sync.Mutex
	dials int
}

// teams has the team of each label.
var teams = map[string]string{open: "team_a", closed: "team_a", other: "team_b"}

func newWorld(t testing.TB, guest http.Handler) *world {
	t.Helper()
	srv := httptest.NewUnstartedServer(guest)
	srv.Config.Protocols = protocols("h1", "h2c")
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	srv.Start()
	t.Cleanup(srv.Close)
	wo := &world{
		guest: srv.Listener.Addr().String(), expires: time.Now().Add(time.Hour), started: make(chan struct{}),
		ends: map[string]context.CancelFunc{}, ctx: map[string]context.Context{},
	}
	for _, label := range []string{open, closed, other} {
		wo.ctx[label], wo.ends[label] = context.WithCancel(t.Context())
	}
	return wo
}

func protocols(names ...string) *http.Protocols {
	p := new(http.Protocols)
	for _, name := range names {
		switch name {
		case "h1":
			p.SetHTTP1(true)
		case "h2c":
			p.SetUnencryptedHTTP2(true)
		case "h2":
			p.SetHTTP2(true)
		}
	}
	return p
}

func (wo *world) WakePreview(ctx context.Context, label string) (*preview.Target, error) {
	return nil, cay.Errorf(cay.Stopped, "nothing is asleep")
}

func (wo *world) Preview(ctx context.Context, label string) (*preview.Target, error) {
	t := &preview.Target{SandboxID: "sbx_" + label, TeamID: teams[label], Port: 3000, Access: sandbox.Public, Context: wo.ctx[label]}
	t.Dial = func(ctx context.Context) (net.Conn, error) {
		wo.mu.Lock()
		wo.dials++
		wo.mu.Unlock()
		return new(net.Dialer).DialContext(ctx, "tcp", wo.guest)
	}
	switch label {
	case open:
	case closed, other:
		t.Access = sandbox.Private
	case idle:
		t.Dial = func(context.Context) (net.Conn, error) {
			return nil, cay.Errorf(cay.Unavailable, "nothing listens")
		}
	case removed:
		return nil, cay.Errorf(cay.Stopped, "the port is gone")
	case paused:
		return nil, cay.Errorf(cay.Conflict, "paused")
	case slow:
		select {
		case <-wo.started:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	default:
		return nil, cay.Errorf(cay.NotFound, "no preview %q", label)
	}
	return t, nil
}

func (wo *world) CheckLink(_ context.Context, label, token string) (time.Time, error) {
	if token != "token-of-"+label {
		return time.Time{}, cay.Errorf(cay.Unauthenticated, "no such link")
	}
	return wo.expires, nil
}

// front is a server of previews, with a client that keeps no cookies and follows no
// redirects.
type front struct {
	t       testing.TB
	addr    string
	client  *http.Client
	handler *preview.Handler
}

func serve(t testing.TB, wo *world, change func(*preview.Config), names ...string) *front {
	t.Helper()
	cfg := preview.Config{Domain: "Preview.test", Targets: wo, HasSecret: func(s string) bool { return strings.Contains(s, apiSecret) }}
	if change != nil {
		change(&cfg)
	}
	h := preview.New(cfg)
	srv := httptest.NewUnstartedServer(h.Before(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "the API")
	})))
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	srv.Config.Protocols = protocols("h1", "h2c")
	srv.Start()
	if len(names) == 0 {
		names = []string{"h1"}
	}
	f := &front{t: t, addr: srv.Listener.Addr().String(), handler: h}
	tr := &http.Transport{
		Protocols: protocols(names...), DisableCompression: true, ExpectContinueTimeout: time.Minute, MaxIdleConnsPerHost: 64,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, f.addr)
		},
	}
	f.client = &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	t.Cleanup(func() {
		tr.CloseIdleConnections()
		h.Close()
		srv.Close()
	})
	return f
}

func host(label string) string { return label + ".preview.test" }

// request makes a request, with headers given as name, value, ...
func (f *front) request(method, label, target string, body io.Reader, headers ...string) *http.Request {
	f.t.Helper()
	r, err := http.NewRequestWithContext(f.t.Context(), method, "http://"+host(label)+target, body)
	if err != nil {
		f.t.Fatal(err)
	}
	for pair := range slices.Chunk(headers, 2) {
		r.Header.Add(pair[0], pair[1])
	}
	return r
}

// do returns a response whose body was read.
func (f *front) do(r *http.Request) (*http.Response, string) {
	f.t.Helper()
	resp, err := f.client.Do(r)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatalf("%s %s: %v", r.Method, r.URL, err)
	}
	return resp, string(body)
}

func (f *front) get(label, target string, headers ...string) (*http.Response, string) {
	f.t.Helper()
	return f.do(f.request("GET", label, target, nil, headers...))
}

// hello is a guest that answers hello.
var hello = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "hello") })

func TestHandler_Match(t *testing.T) {
	t.Parallel()
	h := preview.New(preview.Config{Domain: "Preview.Example.com"})
	defer h.Close()
	for host, want := range map[string]string{
		"abc.preview.example.com": "abc", "ABC.Preview.EXAMPLE.com:7070": "abc", "abc.preview.example.com.": "abc",
		"abc.preview.example.com.:80": "abc", "abc.preview.example.com:": "abc", "a_b!.preview.example.com": "a_b!",
		"preview.example.com": "", ".preview.example.com": "", "a.b.preview.example.com": "", "xpreview.example.com": "",
		"abc.preview.example.com.evil.test": "", "example.com": "", "": "", "localhost": "", "127.0.0.1:80": "", "[::1]:80": "",
		"[::1]": "", "abc.preview.example.com:1:2": "", "abc.preview.example.com..": "",
	} {
		if got, ok := h.Match(host); got != want || ok != (want != "") {
			t.Errorf("%q: %q %v, want %q", host, got, ok, want)
		}
	}
}

// Hosts that are not a preview's are served by the API, previews never are.
func TestHandler_Before(t *testing.T) {
	t.Parallel()
	f := serve(t, newWorld(t, hello), nil)
	for label, want := range map[string]string{open: "hello", "nobody": "There is no such preview", "a.b": "the API"} {
		if _, body := f.get(label, "/"); !strings.HasPrefix(body, want) {
			t.Errorf("%s: %q", label, body)
		}
	}
}

func TestPages(t *testing.T) {
	t.Parallel()
	f := serve(t, newWorld(t, hello), nil)
	for _, tt := range []struct {
		label, target string
		status        int
		text          string
		refresh       bool
	}{
		{"nobody", "/", 404, "There is no such preview", false},
		{"no_body", "/", 404, "There is no such preview", false},
		{strings.Repeat("a", 64), "/", 404, "There is no such preview", false},
		{removed, "/", 410, "This preview is gone", false},
		{closed, "/", 401, "This preview is private", false},
		{idle, "/", 502, "Start your server on 0.0.0.0:3000 or 127.0.0.1:3000", true},
		{paused, "/", 503, "not running", false},
	} {
		t.Run(tt.label, func(t *testing.T) {
			resp, line := f.get(tt.label, tt.target)
			if resp.StatusCode != tt.status || !strings.Contains(line, tt.text) || strings.Count(line, "\n") != 1 {
				t.Errorf("for programs: %d %q", resp.StatusCode, line)
			}
			resp, html := f.get(tt.label, tt.target, "Accept", "text/html,*/*;q=0.8")
			if resp.StatusCode != tt.status || !strings.Contains(html, tt.text) || !strings.HasPrefix(html, "<!DOCTYPE html>") {
				t.Errorf("for browsers: %d %q", resp.StatusCode, html)
			}
			if refresh := strings.Contains(html, `http-equiv="refresh"`); refresh != tt.refresh {
				t.Errorf("refresh is %v", refresh)
			}
			if strings.Contains(html, "http://") || strings.Contains(html, "<script") || !strings.Contains(resp.Header.Get("Content-Security-Policy"), "default-src 'none'") {
				t.Errorf("the page is not self-contained: %v %s", resp.Header, html)
			}
			if (tt.status == 503) != (resp.Header.Get("Retry-After") != "") && tt.status != 502 {
				t.Errorf("Retry-After %q", resp.Header.Get("Retry-After"))
			}
		})
	}
}

// A visitor waits for a sandbox that is starting.
func TestStarting(t *testing.T) {
	t.Parallel()
	wo := newWorld(t, hello)
	f := serve(t, wo, nil)
	time.AfterFunc(time.Millisecond, func() { close(wo.started) })
	if resp, body := f.get(slow, "/"); resp.StatusCode != 200 || body != "hello" {
		t.Errorf("%d %q", resp.StatusCode, body)
	}
}

// A server that takes a request and says nothing.
func TestSilent(t *testing.T) {
	t.Parallel()
	gone := make(chan struct{})
	f := serve(t, newWorld(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		close(gone)
	})), func(c *preview.Config) { c.AnswerTimeout = 20 * time.Millisecond })
	if resp, body := f.get(open, "/"); resp.StatusCode != 504 || !strings.Contains(body, "does not answer") {
		t.Errorf("%d %q", resp.StatusCode, body)
	}
	<-gone
}

// A server that does not answer in HTTP, or breaks off.
func TestGarbled(t *testing.T) {
	t.Parallel()
	for name, says := range map[string]string{
		"Nothing": "", "Other": "SSH-2.0-OpenSSH_9.2\r\n", "LongHeader": "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 1<<20) + "\r\n\r\n",
		"Unasked": "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			f := serve(t, newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				conn, _, err := http.NewResponseController(w).Hijack()
				if err == nil {
					io.WriteString(conn, says)
					conn.Close()
				}
			})), nil)
			if resp, body := f.get(open, "/"); resp.StatusCode != 502 || !strings.Contains(body, "no usable answer") {
				t.Errorf("%d %q", resp.StatusCode, body)
			}
		})
	}
}

// When a port is removed, a link expires or the daemon stops, open connections are cut.
func TestCut(t *testing.T) {
	t.Parallel()
	endless := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	for name, cut := range map[string]func(*world, *front){
		"PortRemoved": func(wo *world, _ *front) { wo.ends[closed]() },
		"Stop":        func(_ *world, f *front) { f.handler.Close() },
		"LinkExpired": func(*world, *front) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wo := newWorld(t, endless)
			f := serve(t, wo, nil)
			var resp *http.Response
			for life := 200 * time.Millisecond; ; life *= 2 {
				if name == "LinkExpired" {
					wo.expires = time.Now().Add(life)
				}
				var err error
				if resp, err = f.client.Do(f.request("GET", closed, "/", nil, "Cay-Preview-Token", "token-of-closed")); err == nil {
					defer resp.Body.Close()
					if resp.StatusCode == http.StatusOK {
						break
					}
				}
				if name != "LinkExpired" || life > time.Minute { // a busy machine may not answer before it expires
					t.Fatalf("%+v, %v", resp, err)
				}
			}
			cut(wo, f)
			if _, err := io.ReadAll(resp.Body); err == nil {
				t.Error("the answer ended as if it were complete")
			}
		})
	}
}

func TestClosed(t *testing.T) {
	t.Parallel()
	f := serve(t, newWorld(t, hello), nil)
	f.handler.Close()
	if resp, body := f.get(open, "/"); resp.StatusCode != 503 {
		t.Errorf("%d %q", resp.StatusCode, body)
	}
}
