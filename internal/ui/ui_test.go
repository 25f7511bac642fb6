package ui_test

import (
	"compress/gzip"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/ui"
)

// nobody is an authenticator that accepts no token.
type nobody struct{}

func (nobody) Authenticate(context.Context, string) (api.Principal, error) {
	return api.Principal{}, cay.Errorf(cay.Unauthenticated, "the token is not valid")
}

// serve serves the inspector beside a route of the API.
func serve(t *testing.T) string {
	t.Helper()
	mux := api.NewMux(nobody{})
	mux.HandlePublic("GET /v1/here", func(w http.ResponseWriter, _ *http.Request) error { return api.NoContent(w) })
	mux.HandlePublic("POST /ui/login", func(w http.ResponseWriter, _ *http.Request) error { return api.NoContent(w) })
	ui.Mount(mux)
	srv := httptest.NewUnstartedServer(nil)
	srv.Config = api.NewServer(mux, nil, slog.New(slog.DiscardHandler))
	srv.Start()
	t.Cleanup(srv.Close)
	return srv.URL
}

// fetch makes a request like a browser that opens a page, unless headers, "name:
// value" each, say otherwise.
func fetch(t *testing.T, method, url string, headers ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "text/html,application/xhtml+xml,*/*;q=0.8")
	req.Header.Set("Accept-Encoding", "identity")
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if req.Header.Set(name, value); strings.EqualFold(name, "Host") {
			req.Host = value
		}
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

// Browsers get the page; programs, and requests to the API, get the same answers as
// without the inspector.
func TestMount_Paths(t *testing.T) {
	t.Parallel()
	base := serve(t)
	const page, missing = `<div id="app">`, `"code":"not_found"`
	for _, tc := range []struct {
		method, path, accept string
		status               int
		says                 string
	}{
		{"GET", "/", "text/html", 200, page},
		{"GET", "/sandboxes/web?tab=files", "text/html", 200, page},
		{"GET", "/ui/login", "text/html", 200, page}, // where there is a route for POST alone
		{"GET", "/index.html", "text/html", 200, page},
		{"GET", "/../../etc/passwd", "text/html", 200, page},
		{"GET", "/favicon.svg", "image/*", 200, "<svg"},
		{"GET", "/", "*/*", 200, page},
		{"GET", "/", "", 200, page},
		{"GET", "/", "application/json", 404, missing},
		{"GET", "/sandboxes", "*/*", 404, missing},
		{"GET", "/sandboxes", "application/json", 404, missing},
		{"GET", "/v1/nowhere", "text/html", 404, missing},
		{"GET", "/v2/nowhere", "text/html", 404, missing},
		{"GET", "/api/nowhere", "text/html", 404, missing},
		{"GET", "/oauth/nowhere", "text/html", 404, missing},
		{"GET", "/.well-known/nowhere", "text/html", 404, missing},
		{"GET", "/assets/nothing.js", "text/html", 404, missing},
		{"POST", "/sandboxes", "text/html", 404, missing},
		{"DELETE", "/v1/here", "text/html", 405, "cannot be used"},
		{"GET", "/v1/here", "text/html", 204, ""},
	} {
		resp, body := fetch(t, tc.method, base+tc.path, "Accept: "+tc.accept)
		if resp.StatusCode != tc.status || !strings.Contains(body, tc.says) {
			t.Errorf("%s %s (%s): %d %.120s, want %d with %s", tc.method, tc.path, tc.accept, resp.StatusCode, body, tc.status, tc.says)
		}
	}
}

func TestMount_Policy(t *testing.T) {
	t.Parallel()
	base := serve(t)
	resp, body := fetch(t, "GET", base+"/sandboxes")
	policy := resp.Header.Get("Content-Security-Policy")
	for _, want := range []string{
		"default-src 'none'", "script-src 'self';", "connect-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'self'",
		"require-trusted-types-for 'script'", "trusted-types 'none'",
	} {
		if !strings.Contains(policy, want) {
			t.Errorf("the policy %q has no %q", policy, want)
		}
	}
	if strings.Contains(policy, "unsafe-eval") || regexp.MustCompile(`(script|style)-src [^;]*unsafe-inline`).MatchString(policy) {
		t.Errorf("the policy %q lets markup do things", policy)
	}
	for name, want := range map[string]string{
		"Content-Type": "text/html; charset=utf-8", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY",
		"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin", "Cache-Control": "no-store", "Set-Cookie": "",
	} {
		if got := resp.Header.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	nonce := regexp.MustCompile(`'nonce-([A-Z0-9]{26})'`).FindStringSubmatch(policy)
	if nonce == nil || !strings.Contains(body, `content="`+nonce[1]+`"`) || strings.Contains(body, "{{") {
		t.Fatalf("the nonce of %q is not in the page", policy)
	}
	if again, _ := fetch(t, "GET", base+"/sandboxes"); again.Header.Get("Content-Security-Policy") == policy {
		t.Error("two pages have one nonce")
	}
	// The page has no inline scripts.
	for _, script := range regexp.MustCompile(`<script[^>]*>`).FindAllString(body, -1) {
		if !strings.Contains(script, ` src="/assets/`) {
			t.Errorf("the page has %s", script)
		}
	}
	if strings.Contains(body, "<style") || regexp.MustCompile(` on[a-z]+=`).MatchString(body) {
		t.Errorf("the page has styles or handlers of its own: %s", body)
	}
}

// The page is refused for another host name that resolves to this machine.
func TestMount_Host(t *testing.T) {
	t.Parallel()
	base := serve(t)
	for host, want := range map[string]int{"evil.example": 403, "web.localhost": 403, "localhost:7070": 200} {
		if resp, body := fetch(t, "GET", base+"/", "Host: "+host); resp.StatusCode != want {
			t.Errorf("as %s: %d %.80s, want %d", host, resp.StatusCode, body, want)
		}
	}
}

// assets are the files that a page loads first.
func assets(t *testing.T, base string) []string {
	t.Helper()
	_, body := fetch(t, "GET", base+"/")
	var all []string
	for _, m := range regexp.MustCompile(`(?:src|href)="(/[^"]+)"`).FindAllStringSubmatch(body, -1) {
		all = append(all, m[1])
	}
	if len(all) < 3 {
		t.Fatalf("the page begins with %v", all)
	}
	return all
}

func TestMount_Files(t *testing.T) {
	t.Parallel()
	base := serve(t)
	total := 0
	for _, path := range assets(t, base) {
		plain, body := fetch(t, "GET", base+path)
		if plain.StatusCode != 200 || plain.Header.Get("Content-Encoding") != "" || strings.HasPrefix(plain.Header.Get("Content-Type"), "text/html") {
			t.Fatalf("%s: %d %v", path, plain.StatusCode, plain.Header)
		}
		if forever := strings.Contains(plain.Header.Get("Cache-Control"), "immutable"); forever != strings.HasPrefix(path, "/assets/") {
			t.Errorf("%s is cached %q", path, plain.Header.Get("Cache-Control"))
		}
		etag := plain.Header.Get("ETag")
		if resp, _ := fetch(t, "GET", base+path, "If-None-Match: W/"+etag); resp.StatusCode != 304 || etag == "" {
			t.Errorf("%s with its tag %s: %d", path, etag, resp.StatusCode)
		}
		if resp, _ := fetch(t, "GET", base+path, `If-None-Match: "other"`); resp.StatusCode != 200 {
			t.Errorf("%s with another tag: %d", path, resp.StatusCode)
		}
		if head, text := fetch(t, "HEAD", base+path); head.StatusCode != 200 || text != "" {
			t.Errorf("HEAD %s: %d %q", path, head.StatusCode, text)
		}
		if none, _ := fetch(t, "GET", base+path, "Accept-Encoding: gzip;q=0, br"); none.Header.Get("Content-Encoding") != "" {
			t.Errorf("%s is compressed for who does not want it", path)
		}
		small, packed := fetch(t, "GET", base+path, "Accept-Encoding: br, gzip")
		total += len(packed)
		if small.Header.Get("Content-Encoding") != "gzip" {
			if len(body) > 2000 {
				t.Errorf("%s is not compressed", path)
			}
			continue
		}
		z, err := gzip.NewReader(strings.NewReader(packed))
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(z); err != nil || string(b) != body {
			t.Errorf("%s is something else when compressed: %v", path, err)
		}
	}
	if total < 10<<10 || total > 300<<10 {
		t.Errorf("a page begins with %d bytes", total)
	}
}

// dist has only files that pages load, and no traces of the machine that built it.
func TestDist_Clean(t *testing.T) {
	t.Parallel()
	err := filepath.WalkDir("dist", func(name string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if strings.HasSuffix(name, ".map") || regexp.MustCompile(`sourceMappingURL|/work/|/home/|localhost:\d`).Match(b) {
			t.Errorf("%s has something of where it was built", name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The committed dist equals a fresh build of the source, on machines with Node.
func TestDist_IsBuilt(t *testing.T) {
	t.Parallel()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("node is missing")
	}
	if _, err := os.Stat("node_modules/vite"); err != nil {
		t.Skip("make ui-deps has not been run")
	}
	out := t.TempDir()
	cmd := exec.CommandContext(t.Context(), node, "node_modules/vite/bin/vite.js", "build", "--outDir", out, "--logLevel", "error")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	built, committed := tree(t, out), tree(t, "dist")
	for name, text := range built {
		if committed[name] != text {
			t.Errorf("dist/%s is not what the source builds: run make ui", name)
		}
	}
	for name := range committed {
		if _, ok := built[name]; !ok {
			t.Errorf("dist/%s is not built any more: run make ui", name)
		}
	}
}

func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	err := filepath.WalkDir(dir, func(name string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		all[rel] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// The code that shows untrusted text, ansi.ts and the like, is tested by the scripts
// in test.
func TestSource_Scripts(t *testing.T) {
	t.Parallel()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("node is missing")
	}
	if _, err := os.Stat("node_modules/vite"); err != nil {
		t.Skip("vite is missing: make ui-deps")
	}
	if out, err := exec.CommandContext(t.Context(), node, "--test", "test/").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
