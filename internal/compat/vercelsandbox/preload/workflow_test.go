package preload_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// patience bounds each wait, on a busy machine.
const patience = time.Minute

// told is a request about a deployment that a daemon received.
type told struct {
	Method, Path, Query, Bearer string
	URL, Secret                 string // of its body
	Working                     []string
}

// daemonOf records the apps' requests. answer, if not nil, answers instead.
func daemonOf(t *testing.T, answer http.HandlerFunc) (*httptest.Server, <-chan told) {
	t.Helper()
	calls := make(chan told, 64)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := told{Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery, Bearer: r.Header.Get("Authorization")}
		if r.Method == http.MethodPut {
			if err := json.NewDecoder(r.Body).Decode(&c); err != nil {
				t.Errorf("%s %s: %v", r.Method, r.URL, err)
			}
		}
		select {
		case calls <- c:
		default:
			t.Error("more calls than anybody expects")
		}
		if answer != nil {
			answer(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s, calls
}

// event is a line of output of testdata/app.mjs.
type event struct {
	Event, URL, Secret string
}

// app is a running testdata/app.mjs.
type app struct {
	events <-chan event
	stderr <-chan string
	in     io.Writer
}

func (a *app) does(t *testing.T, line string) {
	t.Helper()
	if _, err := fmt.Fprintln(a.in, line); err != nil {
		t.Fatal(err)
	}
}

// startApp starts an app with the module, on a daemon.
func startApp(t *testing.T, kind, daemon string, env ...string) *app {
	t.Helper()
	path, err := exec.LookPath("node")
	if err != nil {
		t.Skipf("no node: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, path, "--import="+fileURL(t, written(t, daemon)), "testdata/app.mjs", kind)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "VERCEL_OIDC_TOKEN=t"}, env...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	lines := func(open func() (io.ReadCloser, error), take func(string)) <-chan struct{} {
		r, err := open()
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for s := bufio.NewScanner(r); s.Scan(); {
				take(s.Text())
			}
		}()
		return done
	}
	events, stderr := make(chan event, 256), make(chan string, 256)
	outDone := lines(cmd.StdoutPipe, func(line string) {
		var e event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Errorf("%q: %v", line, err)
		}
		events <- e
	})
	errDone := lines(cmd.StderrPipe, func(line string) {
		t.Log(line)
		stderr <- line
	})
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close() // ends it, unless it has ended already
		<-outDone
		<-errDone
		cancel()
		_ = cmd.Wait()
	})
	return &app{events: events, stderr: stderr, in: in}
}

// next returns what comes next.
func next[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatal("nothing comes")
		panic("not reached")
	}
}

// listening returns the address of an app, after any other events.
func (a *app) listening(t *testing.T) event {
	t.Helper()
	for {
		if e := next(t, a.events); e.Event == "listening" {
			return e
		}
	}
}

var workflows = []string{"WORKFLOW_TARGET_WORLD=vercel", "VERCEL_DEPLOYMENT_ID=dpl 1"}

// The daemon knows an app that listens: also after the app moves, the daemon's
// connections end, and the app restarts.
func TestModule_registers(t *testing.T) {
	t.Parallel()
	d, calls := daemonOf(t, nil)
	a := startApp(t, "app", d.URL, workflows...)
	first := a.listening(t)
	c := next(t, calls)
	if c.Method != http.MethodPut || c.Path != "/v1/workflows/deployments/dpl 1" || c.Bearer != "Bearer t" || c.URL != first.URL || len(c.Secret) < 32 {
		t.Errorf("the daemon was told %+v of %s", c, first.URL)
	}
	d.CloseClientConnections()
	if again := next(t, calls); again.Method != c.Method || again.Path != c.Path || again.URL != c.URL || again.Secret != c.Secret || c.Working != nil {
		t.Errorf("after the end of its connections the daemon was told %+v, before %+v", again, c)
	}
	a.does(t, "move")
	second := a.listening(t)
	if second.URL == first.URL {
		t.Fatal("it has not moved")
	}
	for {
		c := next(t, calls)
		if c.Method == http.MethodDelete && c.Query == "url="+url.QueryEscape(first.URL) {
			continue // between the two
		}
		if c.Method != http.MethodPut || c.URL != second.URL {
			t.Errorf("after the move the daemon was told %+v", c)
		}
		break
	}
	a.does(t, "close")
	if c := next(t, calls); c.Method != http.MethodDelete || c.Query != "url="+url.QueryEscape(second.URL) || c.Bearer != "Bearer t" {
		t.Errorf("at the end the daemon was told %+v", c)
	}
}

// Only the daemon can deliver, however the routes are spelled; all other routes are
// open.
func TestModule_secret(t *testing.T) {
	t.Parallel()
	d, calls := daemonOf(t, nil)
	startApp(t, "app", d.URL, workflows...)
	c := next(t, calls)
	at := strings.TrimPrefix(c.URL, "http://")
	for target, closed := range map[string]bool{
		"/.well-known/workflow/v1/flow":                true,
		"/.well-known/workflow/v1/step":                true,
		"/.well-known/workflow/v1/flow?__health":       true,
		"/.well-known/workflow/v1/flow/":               true,
		"/.well-known/workflow/v1/flow.rsc":            true,
		"//.well-known///workflow/v1//flow":            true,
		"/.well-known/workflow/v1/x/../flow":           true,
		"/.well-known/workflow/v1/x/%2e%2E/flow":       true,
		"/.well-known/workflow//../v1/flow":            true,
		"/.well-known/workflow/v1/webhook/%2e%2E/flow": true,
		"/.well-known/workflow/v1/webhook/../flow":     true,
		"/.well-known/workflow/v1/flo%77":              true,
		"/%2ewell-known%2fworkflow/v1/flow":            true,
		"/%252ewell-known/workflow/v1/flow":            true,
		"/.WELL-KNOWN/Workflow/V1/Flow":                true,
		`/.well-known\workflow\v1\flow`:                true,
		"/base/.well-known/workflow/v1/flow":           true,
		"/%/.well-known/workflow/v1/flow":              true,
		"/%25%32%65well-known/workflow/v1/flow":        true,
		"http://other/.well-known/workflow/v1/flow":    true,
		"/.well-known/workflow/v1/webhook/flow":        false,
		"/.well-known/workflow/v1/webhook/a%2F%2Fb":    false,
		"/.well-known/workflow/v1/webhook/..%2Fflow":   true,
		"/.well-known/workflow/v1/flowers":             false,
		"/.well-known/workflow/v1/step-by-step":        false,
		"/.well-known/workflow/v1/manifest.json":       false,
		"/workflow":                                    false,
		"/?next=/.well-known/workflow/v1/flow":         false,
		"/api#/.well-known/workflow/v1/flow":           false,
		"/caf%C3%A9/%zz":                               false,
		"/.well-known/workflow/v1/webhook/..%2e/other": false,
	} {
		for shown, want := range map[string]int{"": 401, "wrong": 401, strings.Repeat("0", len(c.Secret)): 401, c.Secret: 200} {
			if !closed {
				want = 200
			}
			if got, text := raw(t, at, target, shown); got != want || (want == 401 && !strings.Contains(text, "only the daemon at "+d.URL)) {
				t.Errorf("POST %s with %q: %d %q, want %d", target, shown, got, text, want)
			}
		}
	}
}

// The SDK's health check by HTTP is open: it has no body, and none of a delivery's headers.
func TestModule_health(t *testing.T) {
	t.Parallel()
	d, calls := daemonOf(t, nil)
	startApp(t, "app", d.URL, workflows...)
	at := strings.TrimPrefix(next(t, calls).URL, "http://")
	const empty = "Content-Length: 0\r\n\r\n"
	for request, want := range map[string]int{
		"HEAD /.well-known/workflow/v1/flow?__health HTTP/1.1\r\n\r\n":                                        200,
		"GET /.well-known/workflow/v1/step?a=1&__health HTTP/1.1\r\n\r\n":                                     200,
		"POST /.well-known/workflow/v1/flow?__health HTTP/1.1\r\n" + empty:                                    200,
		"POST /.well-known/workflow/v1/flow?__health=1 HTTP/1.1\r\n" + empty:                                  200,
		"POST /.well-known/workflow/v1/flow?__healthy HTTP/1.1\r\n" + empty:                                   401,
		"POST /.well-known/workflow/v1/flow#?__health HTTP/1.1\r\n" + empty:                                   401,
		"POST /.well-known/workflow/v1/flow HTTP/1.1\r\n" + empty:                                             401,
		"POST /.well-known/workflow/v1/flow?__health HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}":                 401,
		"POST /.well-known/workflow/v1/flow?__health HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n": 401,
		"POST /.well-known/workflow/v1/flow?__health HTTP/1.1\r\nCe-VqsReceiptHandle: r\r\n" + empty:          401,
	} {
		line, head, _ := strings.Cut(request, "\r\n")
		if got, text := send(t, at, line+"\r\nHost: app\r\nConnection: close\r\n"+head); got != want {
			t.Errorf("%q: %d %q, want %d", request, got, text, want)
		}
	}
}

// raw posts to a target exactly as written.
func raw(t *testing.T, at, target, secret string) (int, string) {
	t.Helper()
	return send(t, at, fmt.Sprintf("POST %s HTTP/1.1\r\nHost: app\r\nX-Cay-Delivery: %s\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}", target, secret))
}

// send sends a request exactly as written.
func send(t *testing.T, at, request string) (int, string) {
	t.Helper()
	c, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	method, _, _ := strings.Cut(request, " ")
	response, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	if err != nil {
		t.Fatalf("%q: %v", request, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatalf("%q: %v", request, err)
	}
	return response.StatusCode, string(text)
}

// Servers without workflows are asked once, and again when their process uses workflows.
func TestModule_otherServer(t *testing.T) {
	t.Parallel()
	d, calls := daemonOf(t, nil)
	a := startApp(t, "other", d.URL, workflows...)
	at := a.listening(t)
	if e := next(t, a.events); e.URL != "/.well-known/workflow/v1/flow?__health" {
		t.Fatalf("it was asked for %s", e.URL)
	}
	if status, _ := raw(t, strings.TrimPrefix(at.URL, "http://"), "/", ""); status != 404 {
		t.Errorf("its own requests are answered with %d", status)
	}
	a.does(t, "use")
	for _, c := range []told{next(t, calls), next(t, calls)} { // in either order
		used := c.Method == http.MethodGet && c.Path == "/vercel/workflow/api/v2/runs"
		if registered := c.Method == http.MethodPut && c.URL == at.URL; !used && !registered {
			t.Errorf("the daemon was told %+v", c)
		}
	}
}

// A server that is still starting is asked until it can answer.
func TestModule_starting(t *testing.T) {
	t.Parallel()
	d, calls := daemonOf(t, nil)
	a := startApp(t, "starting", d.URL, workflows...)
	if at, c := a.listening(t), next(t, calls); c.URL != at.URL {
		t.Errorf("the daemon was told %+v of %s", c, at.URL)
	}
}

// Processes without a deployment are left alone.
func TestModule_noDeployment(t *testing.T) {
	t.Parallel()
	for name, env := range map[string][]string{
		"NoID":       {"WORKFLOW_TARGET_WORLD=vercel"},
		"OtherWorld": {"WORKFLOW_TARGET_WORLD=local", "VERCEL_DEPLOYMENT_ID=dpl_1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, calls := daemonOf(t, nil)
			a := startApp(t, "app", d.URL, env...)
			at := a.listening(t)
			if at.Secret != "" {
				t.Errorf("it has the secret %q", at.Secret)
			}
			if status, text := raw(t, strings.TrimPrefix(at.URL, "http://"), "/.well-known/workflow/v1/flow", ""); status != 200 {
				t.Errorf("a delivery of another World: %d %q", status, text)
			}
			if e := next(t, a.events); e.URL != "/.well-known/workflow/v1/flow" {
				t.Errorf("its first request is %s", e.URL)
			}
			a.does(t, "use")
			if c := next(t, calls); c.Method != http.MethodGet {
				t.Errorf("the daemon was told %+v", c)
			}
		})
	}
}

// After a daemon was away, the app sends it the deliveries that it works on: deliveries
// neither answered nor acknowledged, even if their connections have ended.
func TestModule_working(t *testing.T) {
	t.Parallel()
	d, calls := daemonOf(t, nil)
	a := startApp(t, "app", d.URL, workflows...)
	c := next(t, calls)
	again := func(want ...string) {
		t.Helper()
		d.CloseClientConnections()
		if got := next(t, calls); got.Method != http.MethodPut || !slices.Equal(got.Working, want) || got.Working == nil {
			t.Errorf("the daemon was told %+v, want to hear of %v", got, want)
		}
	}
	again()
	deliver := func(receipt string) net.Conn {
		t.Helper()
		conn, err := net.Dial("tcp", strings.TrimPrefix(c.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		fmt.Fprintf(conn, "POST /.well-known/workflow/v1/flow HTTP/1.1\r\nHost: app\r\nX-Cay-Delivery: %s\r\nCe-Vqsreceipthandle: %s\r\nContent-Length: 2\r\n\r\n{}", c.Secret, receipt)
		for next(t, a.events).URL != "/.well-known/workflow/v1/flow" {
		}
		return conn
	}
	first := deliver("msg_1")
	second := deliver("msg_2")
	deliver("msg_3")
	again("msg_1", "msg_2", "msg_3")
	a.does(t, "answer")
	if r, err := http.ReadResponse(bufio.NewReader(first), nil); err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("the first delivery: %v, %v", r, err)
	}
	second.Close()
	again("msg_2", "msg_3")
	a.does(t, "acknowledge msg_2")
	if c := next(t, calls); c.Method != http.MethodDelete {
		t.Errorf("the daemon was told %+v", c)
	}
	again("msg_3")
}

// Processes that share a server share the secret; when one of them ends, the others stay
// registered.
func TestModule_cluster(t *testing.T) {
	t.Parallel()
	d, calls := daemonOf(t, nil)
	a := startApp(t, "cluster", d.URL, workflows...)
	secrets := map[string]bool{a.listening(t).Secret: true, a.listening(t).Secret: true}
	c, other := next(t, calls), next(t, calls)
	if !reflect.DeepEqual(c, other) || !secrets[c.Secret] || len(secrets) != 1 {
		t.Errorf("the daemon was told %+v and %+v; the secrets are %v", c, other, secrets)
	}
	a.does(t, "one ends")
	d.CloseClientConnections()
	if c := next(t, calls); !reflect.DeepEqual(c, other) { // nothing of deliveries, which others may work on
		t.Errorf("then the daemon was told %+v", c)
	}
}

// A registration that fails is reported once, in a sentence.
func TestModule_refused(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		answer http.HandlerFunc
		env    string
		want   string
	}{
		"Old": {http.NotFound, "", "does not know workflows of the Workflow SDK"},
		"Rights": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"error": {"code": "forbidden", "message": "the token may not"}}`)
		}, "", "403 the token may not"},
		"Elsewhere": {http.NotFound, "CAY_APP_URL=http://app.example:8080", "does not know"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, calls := daemonOf(t, tt.answer)
			a := startApp(t, "app", d.URL, append(workflows, tt.env)...)
			if c := next(t, calls); tt.env != "" && "CAY_APP_URL="+c.URL != tt.env {
				t.Errorf("the daemon was told %+v", c)
			}
			if line := next(t, a.stderr); !strings.HasPrefix(line, "cay: workflows of this app wait: ") || !strings.Contains(line, tt.want) {
				t.Errorf("it says %q", line)
			}
		})
	}
}

// The registration reaches a daemon that was down once the daemon is back.
func TestModule_daemonAway(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a := startApp(t, "app", "http://"+l.Addr().String(), workflows...)
	at := a.listening(t)
	for range 7 { // calls that end without an answer
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	if line := next(t, a.stderr); !strings.Contains(line, "workflows of this app wait: http://"+l.Addr().String()+" does not answer") {
		t.Errorf("it says %q", line)
	}
	s, calls := daemonOf(t, nil)
	go func() {
		_ = http.Serve(l, s.Config.Handler) // until it is closed
	}()
	if c := next(t, calls); c.URL != at.URL {
		t.Errorf("then the daemon was told %+v", c)
	}
	if line := next(t, a.stderr); !strings.Contains(line, "knows again that this app is at "+at.URL) {
		t.Errorf("then it says %q", line)
	}
}

// The SDK's own tools take no deliveries: no server of theirs is asked for its health.
func TestModule_tools(t *testing.T) {
	t.Parallel()
	for at, want := range map[string]bool{
		"app/run.mjs": true, "node_modules/@workflow/cli/bin/run.mjs": false, "node_modules/@workflow/web/server.mjs": false,
		"node_modules/@workflow/client/run.mjs": true,
	} {
		file := filepath.Join(t.TempDir(), at)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("console.log(Boolean(process.env.CAY_DELIVERY_SECRET))"), 0o600); err != nil {
			t.Fatal(err)
		}
		link := filepath.Join(t.TempDir(), "workflow.mjs") // as npx has it
		if err := os.Symlink(file, link); err != nil {
			t.Fatal(err)
		}
		out, stderr, err := program(t, workflows, "node", "--import="+fileURL(t, written(t, "http://127.0.0.1:7070")), link)
		if err != nil || strings.TrimSpace(out) != fmt.Sprint(want) {
			t.Errorf("%s takes deliveries: %s, %v %s; want %v", at, out, err, stderr, want)
		}
	}
}
