package workflow

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testenv"
)

// e2e is the app of the directory e2e, on Hono or on Next.js.
type e2e struct {
	*app
	line, server string
	world        bool // it runs over @cayhq/world
	faults       *faults
}

// buildE2E builds the app with a line of the SDK, for a server.
func buildE2E(t *testing.T, d *testenv.Env, line, server string) *e2e {
	t.Helper()
	dir, f := t.TempDir(), startFaults(t, d.URL)
	err := errors.Join(
		os.CopyFS(dir, os.DirFS(filepath.Join("e2e", server))),
		os.CopyFS(filepath.Join(dir, "workflows"), os.DirFS("e2e/workflows")),
		os.CopyFS(filepath.Join(dir, "lib"), os.DirFS("e2e/lib")),
	)
	routes, e := os.ReadFile("e2e/routes.mjs")
	if err := errors.Join(err, e, os.WriteFile(filepath.Join(dir, "routes.mjs"), routes, 0o600)); err != nil {
		t.Fatal(err)
	}
	return &e2e{app: buildIn(t, dir, line, f.URL, d.Token), line: line, server: server, faults: f}
}

// begin starts the app, over the World that it is for.
func (a *e2e) begin(t *testing.T) {
	t.Helper()
	if a.world {
		a.startWorld(t)
	} else {
		a.start(t)
	}
}

// ask asks the app, and returns the status and the body of its answer.
func (a *e2e) ask(t *testing.T, method, path, body string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, a.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	response, err := (&http.Client{Timeout: patience}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, all(t, response.Body)
}

// read reads a path of the app into an answer.
func (a *e2e) read(t *testing.T, answer any, format string, args ...any) {
	t.Helper()
	a.call(t, http.MethodGet, fmt.Sprintf(format, args...), nil, answer)
}

// wants checks the result of a run.
func (a *e2e) wants(t *testing.T, run, want string) {
	t.Helper()
	if got := a.result(t, run); got != `{"result":`+want+`}` {
		t.Errorf("the result of %s is %s, want %s", run, got, want)
	}
}

// outcome is how a run has ended, and what its error was.
type outcome struct {
	Result json.RawMessage
	Status string
	Error  string
	Cause  struct{ Name, Message, Code, Stack string }
}

func (a *e2e) outcome(t *testing.T, run string) outcome {
	t.Helper()
	var o outcome
	a.read(t, &o, "/runs/%s/result", run)
	return o
}

// fails checks that a run fails with a message.
func (a *e2e) fails(t *testing.T, run, message string) outcome {
	t.Helper()
	o := a.outcome(t, run)
	if o.Status != "failed" || o.Error != "WorkflowRunFailedError" || !strings.Contains(o.Cause.Message, message) {
		t.Errorf("the outcome of %s is %+v, want the failure %q", run, o, message)
	}
	return o
}

// status checks the state of a run in the World.
func (a *e2e) status(t *testing.T, run, want string) {
	t.Helper()
	var got struct{ Status string }
	a.read(t, &got, "/runs/%s/data", run)
	if got.Status != want {
		t.Errorf("run %s is %s, want %s", run, got.Status, want)
	}
}

type step struct {
	StepName, Status string
	Attempt          int
	Error            struct{ Message, Stack string }
}

// step returns the step of a run with a name.
func (a *e2e) step(t *testing.T, run, name string) step {
	t.Helper()
	var steps []step
	a.read(t, &steps, "/runs/%s/steps", run)
	for _, s := range steps {
		if strings.HasSuffix(s.StepName, "//"+name) {
			return s
		}
	}
	t.Fatalf("run %s has no step %s: %+v", run, name, steps)
	return step{}
}

type event struct {
	EventID, EventType, CorrelationID string
	CreatedAt                         time.Time
}

// events returns the events of a run, and the first of each type.
func (a *e2e) events(t *testing.T, run string) ([]event, map[string]event) {
	t.Helper()
	var events []event
	a.read(t, &events, "/runs/%s/events", run)
	first := map[string]event{}
	for _, e := range events {
		if _, ok := first[e.EventType]; !ok {
			first[e.EventType] = e
		}
	}
	return events, first
}

// resume resumes a hook.
func (a *e2e) resume(t *testing.T, token string, payload any) (run string) {
	t.Helper()
	var resumed struct{ RunID string }
	a.call(t, http.MethodPost, "/hooks/"+token, payload, &resumed)
	return resumed.RunID
}

// lines reads a stream of the app to its end.
func (a *e2e) lines(t *testing.T, format string, args ...any) string {
	t.Helper()
	status, text := a.ask(t, http.MethodGet, fmt.Sprintf(format, args...), "")
	if status != http.StatusOK {
		t.Fatalf("%s: %d %s", fmt.Sprintf(format, args...), status, text)
	}
	return text
}

// command runs the SDK's own command line against the World of the app.
func (a *e2e) command(t *testing.T, args ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program(t), append([]string{"vercel", "exec", "--", "npx", "workflow"}, args...)...)
	cmd.Env = append(environment(), "CAY_URL="+a.daemon, "CAY_TOKEN="+a.token, "XDG_CACHE_HOME="+filepath.Join(a.dir, ".cache"),
		"WORKFLOW_VERCEL_AUTH_TOKEN="+a.token, "WORKFLOW_VERCEL_TEAM=team_default", "WORKFLOW_VERCEL_PROJECT=prj_default")
	if a.world {
		cmd = exec.CommandContext(ctx, "npx", append([]string{"workflow"}, args...)...)
		cmd.Env = append(environment(), "WORKFLOW_TARGET_WORLD=@cayhq/world", "CAY_URL="+a.daemon, "CAY_TOKEN="+a.token)
	}
	var stderr bytes.Buffer
	cmd.Dir, cmd.WaitDelay, cmd.Stderr = a.dir, 10*time.Second, &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("workflow %s: %v\n%s\n%s", strings.Join(args, " "), err, out, stderr.Bytes())
	}
	return out
}

// faults is a proxy before the daemon that fails requests.
type faults struct {
	*httptest.Server

	mu    sync.Mutex
	armed []*fault
}

// fault fails requests whose path and body hold all words with status 500: as many as left says,
// and n so far.
type fault struct {
	words   []string
	left, n int
}

func startFaults(t *testing.T, daemon string) *faults {
	t.Helper()
	to, err := url.Parse(daemon)
	if err != nil {
		t.Fatal(err)
	}
	f := &faults{}
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.FlushInterval = -1 // streams
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && strings.Contains(r.URL.Path, "/events") {
			body, err := io.ReadAll(r.Body)
			if err != nil || f.fails(r.URL.Path+string(body)) {
				http.Error(w, "a fault of the test", http.StatusInternalServerError)
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(f.Close)
	return f
}

// arm lets requests fail that hold all words.
func (f *faults) arm(left int, words ...string) *fault {
	one := &fault{words: words, left: left}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed = append(f.armed, one)
	return one
}

// disarm ends a fault, and returns how many requests it has failed.
func (f *faults) disarm(one *fault) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	one.left = 0
	return one.n
}

func (f *faults) fails(request string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
next:
	for _, one := range f.armed {
		for _, word := range one.words {
			if one.left == 0 || !strings.Contains(request, word) {
				continue next
			}
		}
		one.left--
		one.n++
		return true
	}
	return false
}
