package intercept

import (
	"context"
	"errors"
	"io"

	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cayhq/cay/sandbox"
)

// A forwarded request carries the token of its session, and no similar header of the
// guest.
func TestForwardToken(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, guestH2, serverH2 bool) {
		w := newWorld(t, allow(host,
			sandbox.Rule{Match: sandbox.Match{Path: exact("/plain")}, SetHeaders: map[string]string{"X-Rule": "1"}},
			sandbox.Rule{ForwardURL: "https://gateway.example.net:8443/base/"},
		))
		var asked atomic.Pointer[string]
		w.forwardToken = func(_ context.Context, audience string) (string, error) {
			asked.Store(&audience)
			return "the.real.token", nil
		}
		seen := make(chan *http.Request, 1)
		handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // the trailers come after the body
			seen <- r
		})
		w.serve("gateway.example.net", 8443, serverH2, handler)
		w.serve(host, 443, serverH2, handler)
		c := w.guest(guestH2)
		send := func(path string) *http.Request {
			t.Helper()
			req, err := http.NewRequestWithContext(t.Context(), "POST", "https://"+host+path, io.NopCloser(strings.NewReader("body")))
			if err != nil {
				t.Fatal(err)
			}
			req.Header = http.Header{"vercel-sandbox-oidc-token": {"evil"}, "Vercel-Sandbox_Oidc-Token": {"evil"}, "vercel_forwarded_host": {"evil"}}
			req.Trailer = http.Header{"Vercel-Sandbox-Oidc-Token": {"evil"}, "Vercel_forwarded_host": {"evil"}, "X-Sum": {"1"}}
			do(t, c, req)
			return receive(t, seen, "the request")
		}
		r := send("/x")
		for _, headers := range []http.Header{r.Header, r.Trailer} {
			for name, values := range headers {
				if strings.Contains(strings.Join(values, " "), "evil") {
					t.Errorf("the receiver sees the guest's %s: %v", name, values)
				}
			}
		}
		if got := r.Header.Values("Vercel-Sandbox-Oidc-Token"); len(got) != 1 || got[0] != "the.real.token" {
			t.Errorf("the token is %q", got)
		}
		if r.Trailer.Get("X-Sum") != "1" {
			t.Errorf("the trailers are %v", r.Trailer)
		}
		if got := asked.Swap(nil); got == nil || *got != "https://gateway.example.net:8443/base" {
			t.Errorf("the token was asked for %v", got)
		}
		w.flow()
		if r := send("/plain"); r.Header.Get("X-Rule") != "1" || r.Header.Get("Vercel-Sandbox-Oidc-Token") == "the.real.token" || asked.Load() != nil {
			t.Errorf("a request that is not forwarded has a token: %v", r.Header)
		}
		w.flow()

		w.forwardToken = func(context.Context, string) (string, error) { return "", errors.New("secret cause") }
		res, body := get(t, w.guest(guestH2), "https://"+host+"/y")
		if res.StatusCode != http.StatusBadGateway || strings.Contains(body, "secret cause") {
			t.Errorf("without a token: %d %s", res.StatusCode, body)
		}
		if f := w.flow(); f.Verdict != sandbox.Broken {
			t.Errorf("recorded %+v", f)
		}
		select {
		case r := <-seen:
			t.Errorf("the receiver sees a request without a token: %v", r.Header)
		default:
		}
	})
}

func TestAudience(t *testing.T) {
	t.Parallel()
	for forward, want := range map[string]string{
		"https://x.example":             "https://x.example",
		"https://X.example/":            "https://x.example",
		"https://x.example:443/a/b/":    "https://x.example/a/b",
		"https://x.example:80":          "https://x.example:80",
		"http://x.example:80//":         "http://x.example",
		"http://x.example:8080/a%2Fb":   "http://x.example:8080/a%2Fb",
		"http://[2001:db8::1]:80/p":     "http://[2001:db8::1]/p",
		"https://user:pw@x.example/p?q": "https://x.example/p",
	} {
		u, err := url.Parse(forward)
		if err != nil {
			t.Fatal(err)
		}
		if got := audience(u); got != want {
			t.Errorf("%s: %s, want %s", forward, got, want)
		}
	}
}
