package preload_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cayhq/cay/internal/compat/vercelsandbox/preload"
)

// program runs a program with an environment of its own, and returns its output.
func program(t *testing.T, env []string, name string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("no %s: %v", name, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, env...)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// node runs a script of testdata with modules loaded before it, and decodes its
// JSON output.
func node(t *testing.T, env, modules []string, script string, args []string, out any) {
	t.Helper()
	var argv []string
	for _, m := range modules {
		argv = append(argv, "--import="+fileURL(t, m))
	}
	argv = append(append(argv, filepath.Join("testdata", script)), args...)
	stdout, stderr, err := program(t, env, "node", argv...)
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr)
	}
	if err := json.Unmarshal([]byte(stdout), out); err != nil {
		t.Fatalf("%q: %v\n%s", stdout, err, stderr)
	}
}

func fileURL(t *testing.T, path string) string {
	t.Helper()
	abs, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return (&url.URL{Scheme: "file", Path: abs}).String()
}

// written returns the path of a file with the module.
func written(t *testing.T, address string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "preload.mjs")
	if err := os.WriteFile(path, []byte(preload.Module(address, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Only these names lead to the daemon.
func TestModule_names(t *testing.T) {
	t.Parallel()
	const daemon, gateway = "https://cay.example:7443", "https://models.example:7444"
	want := map[string]string{
		"https://vercel.com/api/v2/sandboxes?a=b%20c&d":       daemon + "/api/v2/sandboxes?a=b%20c&d",
		"HTTPS://Vercel.com:443/api/":                         daemon + "/api/",
		"https://vercel.com/.well-known/openid-configuration": daemon + "/.well-known/openid-configuration",
		"https://api.vercel.com/v1/projects/p/token":          daemon + "/api/v1/projects/p/token",
		"https://cay.example/health":                          daemon + "/health",
		"https://ai-gateway.vercel.sh/v4/ai/language-model?a": gateway + "/below/v4/ai/language-model?a",
		"HTTPS://AI-Gateway.vercel.sh:443":                    gateway + "/below/",
		"https://vercel-workflow.com/api/v2/runs?limit=1":     daemon + "/vercel/workflow/api/v2/runs?limit=1",
		"https://vercel-workflow.com/other":                   daemon + "/vercel/workflow/other",
		"https://iad1.vercel-queue.com/api/v3/topic/a":        daemon + "/vercel/queue/api/v3/topic/a",
		"https://api.vercel.com/v1/workflow/run-key/d":        daemon + "/api/v1/workflow/run-key/d",

		"http://ai-gateway.vercel.sh/":                "",
		"https://ai-gateway.vercel.sh:8443/":          "",
		"https://x.ai-gateway.vercel.sh/":             "",
		"https://ai-gateway.vercel.sh.evil.example/":  "",
		"https://ai-gateway.vercel.com/":              "",
		"https://models.example/health":               "",
		"https://cay.example/":                        "",
		"https://vercel.com/":                         "",
		"https://vercel.com/api":                      "",
		"https://vercel.com/apixyz":                   "",
		"https://vercel.com/docs/api/":                "",
		"https://vercel.com/api/../login":             "",
		"https://vercel.com/x?/api/":                  "",
		"https://vercel.com:8443/api/":                "",
		"http://vercel.com/api/":                      "",
		"https://evil.example/https://vercel.com/api": "",
		"https://vercel.com.evil.example/api/":        "",
		"https://www.vercel.com/api/":                 "",
		"https://api.vercel.com.evil.example/":        "",
		"https://x@evil.example/api/":                 "",
		"https://telemetry.vercel.com/api/":           "",
		"https://x.vercel-workflow.com/api/":          "",
		"https://a.b.vercel-queue.com/api/":           "",
		"https://vercel-queue.com/api/":               "",
		"https://vercel-workflow.com.evil.example/":   "",
		"http://vercel-workflow.com/api/":             "",
		"https://vercel-workflow.com:8443/api/":       "",
		"https://abc.vercel.run/api/":                 "", // by its connection
		"not a url":                                   "",
	}
	urls := make([]string, 0, len(want))
	for u := range want {
		urls = append(urls, u)
	}
	list, err := json.Marshal(urls)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Seen     map[string]string
		SameInit bool
		Request  []string
		Connect  map[string]string
		Own      map[string]any
		Models   map[string]any
		Same     bool
		Proxied  []string
		Refused  []string

		StepHeaders []map[string]string
	}
	node(t, []string{"CAY_VERCEL_URL=" + daemon + "/", "CAY_VERCEL_GATEWAY_URL=" + gateway + "/below/"}, []string{"testdata/recorder.mjs", written(t, "")}, "rewrite.mjs", []string{string(list)}, &got)
	for u, to := range want {
		if to == "" {
			to = u
		}
		if got.Seen[u] != to {
			t.Errorf("%s leads to %s, want %s", u, got.Seen[u], to)
		}
	}
	wantHeaders := []map[string]string{
		{"a": "1", "x-cay-workflow-run": "wrun_1", "x-cay-workflow-step": "step_2"},
		{"b": "2", "x-cay-workflow-run": "wrun_1", "x-cay-workflow-step": "step_2"},
		{"c": "3"}, {"d": "4"}, {"e": "5"}, {}, // other servers, the workflow's own calls, and no step
	}
	if !reflect.DeepEqual(got.StepHeaders, wantHeaders) {
		t.Errorf("calls of a step have the headers %v, want %v", got.StepHeaders, wantHeaders)
	}
	if !got.SameInit {
		t.Error("the options of a call are not passed on as they are")
	}
	if strings.Join(got.Request, " ") != daemon+"/api/v2/user DELETE" {
		t.Errorf("a Request became %v", got.Request)
	}
	for name, host := range map[string]string{
		"other": "example.com", "parent": "vercel.run", "deep": "a.b.vercel.run", "suffix": "a.vercel.run.example.com", "evil": "evilvercel.run",
		"preview": "cay.example", "upper": "cay.example", "positional": "cay.example", "positionalOptions": "cay.example", "socket": "example.com",
		"issuer": "cay.example", "api": "api.vercel.com",
		"gateway": "models.example", "gatewayUpper": "models.example", "belowGateway": "x.ai-gateway.vercel.sh", "gatewayEvil": "evil-ai-gateway.vercel.sh",
	} {
		if got.Connect[name] != host {
			t.Errorf("connect %s: to %s, want %s", name, got.Connect[name], host)
		}
	}
	if o := got.Own; o["servername"] != "cay.example" || o["port"] != 7443.0 || o["ca"] != "c" || o["session"] != nil {
		t.Errorf("a preview's connection is made with %v", o)
	}
	if o := got.Models; o["servername"] != "models.example" || o["port"] != 7444.0 || o["session"] != nil {
		t.Errorf("a connection to the gateway is made with %v", o)
	}
	if !got.Same {
		t.Error("there are two of tls.connect")
	}
	for _, said := range got.Refused {
		if !strings.Contains(said, daemon+" for fetch alone; set WORKFLOW_EVENTS_TRANSPORT=http") {
			t.Errorf("a connection to a name of workflows: %q", said)
		}
	}
	for i, at := range []string{daemon, gateway} {
		if !strings.Contains(got.Proxied[i], at) || !strings.Contains(got.Proxied[i], "NO_PROXY") {
			t.Errorf("through a proxy: %q", got.Proxied[i])
		}
	}
}

// All of Node's APIs for requests reach the daemon, with TLS and without.
func TestModule_calls(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(http.Handler) *httptest.Server{"HTTP": httptest.NewServer, "HTTPS": httptest.NewTLSServer} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(http.HandlerFunc(daemon))
			t.Cleanup(s.Close)
			models := start(http.HandlerFunc(daemon))
			t.Cleanup(models.Close)
			env := []string{"CAY_VERCEL_URL=" + s.URL, "CAY_VERCEL_GATEWAY_URL=" + models.URL}
			if s.TLS != nil {
				file := filepath.Join(t.TempDir(), "ca.pem")
				text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
				if err := os.WriteFile(file, text, 0o600); err != nil {
					t.Fatal(err)
				}
				env = append(env, "NODE_EXTRA_CA_CERTS="+file)
			}
			var got map[string]string
			node(t, env, []string{written(t, "")}, "real.mjs", nil, &got)
			own := strings.TrimPrefix(strings.TrimPrefix(s.URL, "http://"), "https://")
			ofModels := strings.TrimPrefix(strings.TrimPrefix(models.URL, "http://"), "https://")
			for call, want := range map[string]string{
				"gateway":      "200 POST " + ofModels + " /v4/ai/language-model [Bearer t] text",
				"gatewayHTTPS": "200 GET ai-gateway.vercel.sh /echo [] ",
				"api":          "200 POST " + own + " /api/echo?a=b [Bearer t] text",
				"request":      "200 POST " + own + " /api/echo [] text",
				"stream":       "200 POST " + own + " /api/echo [] in parts",
				"aborted":      "failed: left: ",
				"abortedLater": "broken off",
				"health":       "200 GET " + own + " /health [] ",
				"preview":      "200 GET abc-1.vercel.run /echo [] ",
				"redirect":     "https://abc-1.vercel.run/echo 200 GET abc-1.vercel.run /echo [] ",
				"https":        "200 GET abc-2.vercel.run /echo [] ",
				"tls":          "GET abc-3.vercel.run /echo [] ",
				"websocket":    "hello of abc-4.vercel.run",
			} {
				if got[call] != want && (call != "websocket" || got[call] != "none") {
					t.Errorf("%s: got %q, want %q", call, got[call], want)
				}
			}
		})
	}
}

// daemon answers with a description of the request.
func daemon(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/redirect":
		http.Redirect(w, r, "https://"+r.Host+"/echo", http.StatusFound)
	case "/api/hang":
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	case "/socket":
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		_ = c.Write(r.Context(), websocket.MessageText, []byte("hello of "+r.Host))
		_ = c.Close(websocket.StatusNormalClosure, "")
	default:
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s [%s] %s", r.Method, r.Host, r.URL, r.Header.Get("Authorization"), body)
	}
}

// The order of addresses, and invalid addresses.
func TestModule_address(t *testing.T) {
	t.Parallel()
	const ask = `--eval=fetch("https://vercel.com/api/x").then((r) => console.log(r.called))`
	for _, tt := range []struct {
		name, written string
		env           []string
		want          string // else it is refused
	}{
		{"Environment", "", []string{"CAY_VERCEL_URL=http://a.example:1"}, "http://a.example:1"},
		{"Written", "http://b.example", []string{"CAY_URL=http://c.example"}, "http://b.example"},
		{"EnvironmentWins", "http://b.example", []string{"CAY_VERCEL_URL=https://a.example/below/"}, "https://a.example/below"},
		{"OfTheCommandLine", "", []string{"CAY_URL=http://c.example"}, "http://c.example"},
		{"IPv6", "", []string{"CAY_VERCEL_URL=http://[::1]:7070"}, "http://[::1]:7070"},
		{"Escaped", "http://b.example/\";x</script>\u2028", nil, "http://b.example/%22;x%3C/script%3E%E2%80%A8"},
		{"Missing", "", nil, ""},
		{"NoURL", "", []string{"CAY_VERCEL_URL=cay.example"}, ""},
		{"OtherScheme", "", []string{"CAY_VERCEL_URL=ftp://cay.example"}, ""},
		{"Password", "", []string{"CAY_VERCEL_URL=http://u:p@cay.example"}, ""},
		{"Query", "", []string{"CAY_VERCEL_URL=http://cay.example/?a"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			stdout, stderr, err := program(t, tt.env, "node", "--import="+fileURL(t, "testdata/recorder.mjs"), "--import="+fileURL(t, written(t, tt.written)), ask)
			switch {
			case tt.want == "":
				if err == nil || !strings.Contains(stderr, "CAY_VERCEL_URL is ") {
					t.Errorf("it was taken: %v, %q", err, stderr)
				}
			case err != nil || stdout != tt.want+"/api/x\n":
				t.Errorf("got %q, %v\n%s", stdout, err, stderr)
			}
		})
	}
}

// The order of the addresses of a gateway, and the errors that a program gets if
// there is none: from fetch, an error that is not a network failure, and from the
// other clients.
func TestModule_gateway(t *testing.T) {
	t.Parallel()
	const ask = `--eval=
		const said = (e) => console.log(e.message);
		fetch("https://ai-gateway.vercel.sh/x").then((r) => console.log(r.called), said);
		try { require("tls").connect({ host: "ai-gateway.vercel.sh", port: 443 }).on("error", () => {}); } catch (e) { said(e); }
		fetch("https://vercel.com/api/x").then((r) => console.log(r.called), said);`
	for _, tt := range []struct {
		name, written string
		env           []string
		want          string // twice, if it is no address
		fails         bool
	}{
		{"Environment", "http://b.example", []string{"CAY_VERCEL_GATEWAY_URL=http://a.example:1/below/", "CAY_GATEWAY_URL=http://c.example"}, "http://a.example:1/below/x", false},
		{"Written", "http://b.example", []string{"CAY_GATEWAY_URL=http://c.example"}, "http://b.example/x", false},
		{"OfTheUser", "", []string{"CAY_GATEWAY_URL=http://c.example"}, "http://c.example/x", false},
		{"Off", "", []string{"CAY_VERCEL_GATEWAY_URL=off"}, "which is off; start the daemon with --gateway-listen", false},
		{"WrittenOff", preload.Off, nil, "which is off; start the daemon with --gateway-listen", false},
		{"Unknown", "", nil, "set CAY_VERCEL_GATEWAY_URL to it", false},
		{"NoURL", "", []string{"CAY_VERCEL_GATEWAY_URL=a.example"}, `CAY_VERCEL_GATEWAY_URL is "a.example"`, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			module := filepath.Join(t.TempDir(), "preload.mjs")
			if err := os.WriteFile(module, []byte(preload.Module("http://d.example", tt.written)), 0o600); err != nil {
				t.Fatal(err)
			}
			stdout, stderr, err := program(t, tt.env, "node", "--import="+fileURL(t, "testdata/recorder.mjs"), "--import="+fileURL(t, module), ask)
			switch {
			case tt.fails:
				if err == nil || !strings.Contains(stderr, tt.want) {
					t.Errorf("it was taken: %v, %q", err, stderr)
				}
				return
			case err != nil || !strings.Contains(stdout, "http://d.example/api/x\n"):
				t.Errorf("%q, %v\n%s", stdout, err, stderr)
			}
			n := 2
			if strings.HasPrefix(tt.want, "http") {
				n = 1
			}
			if strings.Count(stdout, tt.want) != n {
				t.Errorf("got %q, want %q %d times", stdout, tt.want, n)
			}
		})
	}
}

// pythonFiles are the relevant parts of a client, and another sitecustomize.
var pythonFiles = map[string]string{
	"site/vercel/__init__.py":                   "",
	"site/vercel/sandbox/__init__.py":           "",
	"site/vercel/sandbox/_internal/__init__.py": "",
	"site/vercel/sandbox/_internal/options.py": `DEFAULT_SANDBOX_API_BASE_URL = "https://vercel.com/api"
class Options:
    def __init__(self): self.base_url = DEFAULT_SANDBOX_API_BASE_URL
`,
	"site/vercel/_internal/__init__.py":         "",
	"site/vercel/_internal/sandbox/__init__.py": "",
	"site/vercel/_internal/sandbox/core.py": `class SyncSandboxOpsClient:
    def __init__(self, *, host="https://api.vercel.com"): self.host = host
class AsyncSandboxOpsClient(SyncSandboxOpsClient):
    def __init__(self, *, host="https://api.vercel.com"): super().__init__(host=host)
`,
	"other/sitecustomize.py": "import sys; sys.other_ran = __file__\n",
}

// python runs a program with the module and pythonFiles on its path.
func python(t *testing.T, env []string, text string) (stdout, stderr string, err error) {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{"ours/sitecustomize.py": preload.Sitecustomize}
	for name, text := range pythonFiles {
		files[name] = text
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	path := strings.Join([]string{dir + "/ours", dir + "/other", dir + "/site"}, ":")
	return program(t, append(env, "PYTHONPATH="+path, "PYTHONDONTWRITEBYTECODE=1"), "python3", "-c", text)
}

func TestSitecustomize(t *testing.T) {
	t.Parallel()
	const show = `
import sys
from vercel.sandbox._internal.options import Options
from vercel._internal.sandbox.core import AsyncSandboxOpsClient, SyncSandboxOpsClient
print(Options().base_url, SyncSandboxOpsClient().host, AsyncSandboxOpsClient().host, AsyncSandboxOpsClient(host="own").host)
print(sys.other_ran == sys.modules["sitecustomize"].__file__)
`
	stdout, stderr, err := python(t, []string{"CAY_VERCEL_URL=http://127.0.0.1:7070/"}, show)
	const base = "http://127.0.0.1:7070/api"
	if want := strings.Join([]string{base, base, base, "own"}, " ") + "\nTrue\n"; stdout != want || err != nil {
		t.Errorf("got %q, %v, want %q\n%s", stdout, err, want, stderr)
	}
	// Without an address no request may go to the client's default host.
	_, stderr, err = python(t, nil, "import vercel.sandbox._internal.options")
	if err == nil || !strings.Contains(stderr, "CAY_VERCEL_URL is ''") {
		t.Errorf("without an address: %v\n%s", err, stderr)
	}
	// Programs that do not use the preload run unchanged.
	if stdout, stderr, err = python(t, nil, "print('hello')"); stdout != "hello\n" || err != nil || stderr != "" {
		t.Errorf("another program: %q, %v\n%s", stdout, err, stderr)
	}
}

// Previews of a daemon on this machine are names below localhost.
func TestSitecustomize_localhost(t *testing.T) {
	t.Parallel()
	for _, imports := range []string{"import socket", "import asyncio, socket"} {
		stdout, stderr, err := python(t, nil, imports+`
print(all(a[4][0] in ("127.0.0.1", "::1") for name in ("abc.localhost", "ABC.Localhost.", b"x.localhost") for a in socket.getaddrinfo(name, 80)))
try:
    print(socket.getaddrinfo("nowhere.invalid", 80))
except socket.gaierror:
    print("no address")
`)
		if err != nil || stdout != "True\nno address\n" {
			t.Errorf("%s: %q, %v\n%s", imports, stdout, err, stderr)
		}
	}
}
