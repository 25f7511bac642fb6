package wire_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/leaktest"
	"github.com/cayhq/cay/internal/wire"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// dial serves h and returns a connection to it.
func dial(t *testing.T, h http.HandlerFunc) *wire.Conn {
	t.Helper()
	srv := httptest.NewServer(h)
	tr := &http.Transport{}
	t.Cleanup(func() {
		tr.CloseIdleConnections()
		srv.Close()
	})
	c, err := wire.Target{URL: srv.URL + "/", Token: "t", HTTPClient: &http.Client{Transport: tr}}.Resolve()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestConn_Repeats(t *testing.T) {
	t.Parallel()
	reset := func(w http.ResponseWriter) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		conn.(*net.TCPConn).SetLinger(0)
		conn.Close()
	}
	unavailable := func(w http.ResponseWriter) {
		w.WriteHeader(http.StatusServiceUnavailable)
		io.WriteString(w, `{"error":{"code":"unavailable","message":"starting","retry_after_ms":10}}`)
	}
	conflict := func(w http.ResponseWriter) {
		w.WriteHeader(http.StatusConflict)
		io.WriteString(w, `{"error":{"code":"conflict","message":"no"}}`)
	}
	for _, tt := range []struct {
		name  string
		fail  func(http.ResponseWriter)
		req   wire.Request
		tries int32
		want  cay.Code
	}{
		{"GET after a reset", reset, wire.Request{Method: "GET"}, 2, ""},
		{"GET after unavailable", unavailable, wire.Request{Method: "GET"}, 2, ""},
		{"GET after conflict", conflict, wire.Request{Method: "GET"}, 1, cay.Conflict},
		{"POST that may be repeated, reset", reset, wire.Request{Method: "POST", JSON: 1, Repeat: true}, 2, ""},
		{"POST that may be repeated, unavailable", unavailable, wire.Request{Method: "POST", JSON: 1, Repeat: true}, 2, ""},
		{"POST after a reset", reset, wire.Request{Method: "POST", JSON: 1}, 1, cay.Unavailable},
		{"POST after unavailable", unavailable, wire.Request{Method: "POST", JSON: 1}, 1, cay.Unavailable},
		{"PUT of a stream", unavailable, wire.Request{Method: "PUT", Body: strings.NewReader("x"), Repeat: true}, 1, cay.Unavailable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var tries atomic.Int32
			c := dial(t, func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				if tries.Add(1) == 1 {
					tt.fail(w)
					return
				}
				io.WriteString(w, `{}`)
			})
			tt.req.Path = "/x"
			err := c.Call(t.Context(), tt.req, new(struct{}))
			if got := cay.CodeOf(err); got != tt.want || tries.Load() != tt.tries {
				t.Errorf("%d tries, error %v; want %d, code %q", tries.Load(), err, tt.tries, tt.want)
			}
		})
	}
}

func TestConn_NobodyListens(t *testing.T) {
	t.Parallel()
	// Not a closed port: another test could have opened it by now.
	c, err := wire.Target{URL: "http://127.0.0.1:1"}.Resolve()
	if err != nil {
		t.Fatal(err)
	}
	err = c.Call(t.Context(), wire.Request{Method: "POST", Path: "/x", JSON: 1}, nil)
	var e *cay.Error
	if !errors.As(err, &e) || e.Code != cay.Unavailable || !strings.Contains(e.Hint, "cay serve") {
		t.Errorf("error is %#v", err)
	}
}

func TestConn_Contexts(t *testing.T) {
	t.Parallel()
	c := dial(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	err := c.Call(ctx, wire.Request{Method: "GET", Path: "/x"}, nil)
	if cay.CodeOf(err) != cay.DeadlineExceeded || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("deadline: %v", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	err = c.Call(ctx, wire.Request{Method: "GET", Path: "/x"}, nil)
	if cay.CodeOf(err) != cay.Canceled || !errors.Is(err, context.Canceled) {
		t.Errorf("cancel: %v", err)
	}
}

// A body whose reader blocks does not keep a request from ending.
func TestConn_BlockedBody(t *testing.T) {
	t.Parallel()
	c := dial(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/refuse" {
			if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
				t.Error(err)
			}
			w.Header().Set("Connection", "close")
			w.WriteHeader(http.StatusConflict)
			io.WriteString(w, `{"error":{"code":"conflict","message":"no"}}`)
			return
		}
		io.Copy(io.Discard, r.Body)
	})
	for path, want := range map[string]cay.Code{"/read": cay.Canceled, "/refuse": cay.Conflict} {
		blocked, w := io.Pipe()
		ctx, cancel := context.WithCancel(t.Context())
		reading := make(chan struct{})
		go func() {
			w.Write([]byte("x"))
			close(reading)
		}()
		done := make(chan error)
		go func() { done <- c.Call(ctx, wire.Request{Method: "POST", Path: path, Body: blocked}, nil) }()
		if want == cay.Canceled { // a refusal can come before the body is read
			<-reading
			cancel()
		}
		if err := <-done; cay.CodeOf(err) != want {
			t.Errorf("%s: %v", path, err)
		}
		cancel()
		w.Close()
	}
}

// An answer that is not cay's gets an error that says so.
func TestConn_OtherAnswers(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		status int
		body   string
		want   cay.Code
	}{
		{502, "<html>Bad Gateway", cay.Unavailable},
		{404, "404 page not found", cay.Internal},
		{403, `{"error":"no"}`, cay.Internal},
		{302, "", cay.Invalid},
		{200, "<html>Welcome", cay.Unavailable},
		{200, "", cay.Unavailable},
	} {
		c := dial(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://127.0.0.1:1/")
			w.WriteHeader(tt.status)
			io.WriteString(w, tt.body)
		})
		err := c.Call(t.Context(), wire.Request{Method: "PATCH", Path: "/x"}, new(struct{}))
		if cay.CodeOf(err) != tt.want {
			t.Errorf("%d %q: %v, want %s", tt.status, tt.body, err, tt.want)
		}
	}
}

func TestTarget_Resolve(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "admin.token"), []byte("of-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name          string
		target        wire.Target
		envURL, token string
		wantURL, auth string
		bad           bool
	}{
		{name: "nothing set", wantURL: wire.DefaultURL, auth: "Bearer of-file"},
		{name: "environment", envURL: "https://cay.example:1/sub/", token: "of-env", wantURL: "https://cay.example:1/sub", auth: "Bearer of-env"},
		{name: "fields", target: wire.Target{URL: "http://a", Token: "of-field"}, envURL: "http://b", token: "x", wantURL: "http://a", auth: "Bearer of-field"},
		{name: "the file's token stays here", envURL: "https://cay.example", wantURL: "https://cay.example"},
		{name: "a name of this machine", envURL: "http://localhost:9", wantURL: "http://localhost:9", auth: "Bearer of-file"},
		{name: "another scheme", envURL: "ftp://a", bad: true},
		{name: "no scheme", envURL: "127.0.0.1:7070", bad: true},
		{name: "a password", envURL: "http://u:secret@a", bad: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("CAY_DATA", dir)
			t.Setenv("CAY_URL", tt.envURL)
			t.Setenv("CAY_TOKEN", tt.token)
			var got *http.Request
			tt.target.HTTPClient = &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
				got = r
				return &http.Response{StatusCode: 204, Body: http.NoBody, Request: r}, nil
			})}
			c, err := tt.target.Resolve()
			if tt.bad {
				if cay.CodeOf(err) != cay.Invalid || strings.Contains(err.Error(), "secret") {
					t.Errorf("error is %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Call(t.Context(), wire.Request{Method: "GET", Path: "/x"}, nil); err != nil {
				t.Fatal(err)
			}
			if got.URL.String() != tt.wantURL+"/x" || got.Header.Get("Authorization") != tt.auth {
				t.Errorf("request to %s with %q, want %s with %q", got.URL, got.Header.Get("Authorization"), tt.wantURL+"/x", tt.auth)
			}
		})
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
