package workflow

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// app is the app in the directory app, built with one line of the SDK.
type app struct {
	daemon, token string // the daemon's address
	dir           string
	url           string // while it runs
	cmd           *exec.Cmd
}

// buildApp builds the app with a line of the SDK, as its user would.
func buildApp(t *testing.T, line, daemon, token string) *app {
	t.Helper()
	return buildIn(t, "app", line, daemon, token)
}

// buildIn builds an app of a directory with the packages that are installed in another one.
func buildIn(t *testing.T, source, installed, daemon, token string) *app {
	t.Helper()
	a := &app{daemon: daemon, token: token, dir: t.TempDir()}
	entries, err := os.ReadDir(source)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries { // but what is installed or built there
		switch from, to := filepath.Join(source, e.Name()), filepath.Join(a.dir, e.Name()); {
		case e.Name() == "node_modules" || strings.HasPrefix(e.Name(), "."):
		case e.IsDir():
			err = errors.Join(err, os.CopyFS(to, os.DirFS(from)))
		default:
			text, e := os.ReadFile(from)
			err = errors.Join(err, e, os.WriteFile(to, text, 0o600))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	packages, err := filepath.Abs(filepath.Join(installed, "node_modules"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(packages, filepath.Join(a.dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "npm", "run", "build")
	cmd.Dir, cmd.Env, cmd.WaitDelay = a.dir, environment(), 10*time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the app: %v\n%s", err, out)
	}
	return a
}

var address = regexp.MustCompile(`http://127\.0\.0\.1:\d+`)

// start starts the app with "cay vercel exec -- npm start" and waits until it listens.
func (a *app) start(t *testing.T) {
	t.Helper()
	cmd := exec.Command(program(t), "vercel", "exec", "--", "npm", "start")
	cmd.Env = append(environment(), "PORT=0", "CAY_URL="+a.daemon, "CAY_TOKEN="+a.token, "XDG_CACHE_HOME="+filepath.Join(a.dir, ".cache"))
	a.listen(t, cmd)
}

// listen starts the app with a command and waits until it listens.
func (a *app) listen(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	a.cmd = cmd
	cmd.Dir, cmd.WaitDelay, cmd.Stderr = a.dir, 10*time.Second, t.Output()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // npm, a shell and node
	out, err := a.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.kill)
	listening := make(chan string, 1)
	go func() {
		defer close(listening)
		for s := bufio.NewScanner(out); s.Scan(); {
			if at := address.FindString(s.Text()); at != "" {
				listening <- at
			}
		}
	}()
	select {
	case at, ok := <-listening:
		if !ok {
			t.Fatal("the app ended before it listened")
		}
		a.url = at
	case <-time.After(patience):
		t.Fatal("the app does not listen")
	}
}

// kill kills the app with SIGKILL.
func (a *app) kill() {
	if a.cmd == nil {
		return
	}
	_ = syscall.Kill(-a.cmd.Process.Pid, syscall.SIGKILL) // it may have ended
	_ = a.cmd.Wait()                                      // its error is the kill
	a.cmd = nil
}

// client returns a client that uses no connection twice: Node closes a connection that was idle
// for five seconds, and resets a call that comes in that moment.
func client() *http.Client {
	return &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
}

// call asks the app and decodes its answer.
func (a *app) call(t *testing.T, method, path string, body, answer any) {
	t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), method, a.url+path, bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	response, err := client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err = io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s", response.Status, text)
	}
	if err == nil {
		err = json.Unmarshal(text, answer)
	}
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
}

// run starts a run and returns its id.
func (a *app) run(t *testing.T, workflow string, args ...any) string {
	t.Helper()
	if args == nil {
		args = []any{}
	}
	var run struct{ RunID string }
	a.call(t, http.MethodPost, "/runs/"+workflow, args, &run)
	return run.RunID
}

// result waits until a run ends, and returns its result as the app reports it.
func (a *app) result(t *testing.T, run string) string {
	t.Helper()
	var result json.RawMessage
	a.call(t, http.MethodGet, "/runs/"+run+"/result", nil, &result)
	return string(result)
}

// stream reads a run's stream, one value a line, from an index on. Close it.
func (a *app) stream(t *testing.T, run string, from int) io.ReadCloser {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("%s/runs/%s/stream?from=%d", a.url, run, from), nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	return response.Body
}

// waitFor waits until a run has written a line.
func (a *app) waitFor(t *testing.T, run, line string) {
	t.Helper()
	body := a.stream(t, run, 0)
	defer body.Close()
	s := bufio.NewScanner(body)
	for s.Scan() {
		if s.Text() == line {
			return
		}
	}
	t.Fatalf("run %s ends its stream without %s: %v", run, line, s.Err())
}

// all reads a stream to its end.
func all(t *testing.T, body io.ReadCloser) string {
	t.Helper()
	defer body.Close()
	text, err := io.ReadAll(body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// environment returns the test's environment, without variables that would change the
// programs' behaviour.
func environment() []string {
	var env []string
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, "VERCEL") && !strings.HasPrefix(name, "WORKFLOW_") && !strings.HasPrefix(name, "NODE_") && !strings.HasPrefix(name, "CAY_") {
			env = append(env, kv)
		}
	}
	return env
}
