package cloudflare

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// egress is a copy of the Worker in ./egress, with the modules of the example.
func egress(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("egress")); err != nil {
		t.Fatal(err)
	}
	modules, err := filepath.Abs(filepath.Join(example, "node_modules"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestEgress has handlers of a Worker answer what programs in its sandboxes ask for:
// over HTTP and HTTPS, where the sandbox reaches nothing else and where it reaches the
// internet, by names that do not exist, and with a handler that is added later.
func TestEgress(t *testing.T) {
	w := open(t)
	host, stop := w.dev(t, egress(t))
	call := func(kind, method string, args ...string) (result struct {
		Stdout, Stderr, Error string
		ExitCode              int
	}) {
		t.Helper()
		resp, err := http.Get("http://" + host + "/" + kind + "/" + method + "?" + url.Values{"argument": args}.Encode())
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(body, &result); err != nil && string(body) != "null" {
			t.Fatalf("%s %q: %s", method, args, body)
		}
		if result.Error != "" {
			t.Fatalf("%s %q: %s", method, args, result.Error)
		}
		return result
	}
	get := func(kind, url string) (stdout string, status int) {
		t.Helper()
		r := call(kind, "exec", "curl -sS --max-time 60 "+url)
		t.Logf("%s %s: exit %d, %q, %q", kind, url, r.ExitCode, r.Stdout, r.Stderr)
		return strings.TrimSpace(r.Stdout), r.ExitCode
	}
	for _, tt := range []struct{ kind, url, want string }{
		{"Offline", "http://vault.test/a?b=c", "vault: GET http://vault.test/a?b=c of Offline"},
		{"Offline", "https://vault.test/a", "vault: GET https://vault.test/a of Offline"},
		{"Offline", "http://other.test/", ""},
		{"Offline", "https://other.test/", ""},
		{"Online", "https://vault.test/", "vault: GET https://vault.test/ of Online"},
		{"Online", "http://v1.api.test/x", "api: GET http://v1.api.test/x of Online"},
	} {
		got, exit := get(tt.kind, tt.url)
		if got != tt.want || (exit == 0) != (tt.want != "") {
			t.Errorf("%s %s: exit %d, %q, want %q", tt.kind, tt.url, exit, got, tt.want)
		}
	}
	call("Offline", "setOutboundByHost", "later.test", "late")
	if got, _ := get("Offline", "https://later.test/"); got != "late: GET https://later.test/ of Offline" {
		t.Errorf("a handler that was added later: %q", got)
	}
	for _, c := range w.containers(t) {
		if mode := string(c.Network.Mode); c.Annotations == nil || mode != "deny-all" && mode != "allow-all" {
			t.Errorf("container %s has the network %+v", c.Name, c.Network)
		}
	}
	stop()
	if left := w.containers(t); len(left) > 0 {
		t.Errorf("%d containers are left, the first is %s", len(left), left[0].Name)
	}
}
