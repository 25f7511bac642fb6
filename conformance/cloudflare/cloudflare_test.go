package cloudflare

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testenv"
	"github.com/cayhq/cay/sandbox"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// patience is how long one thing may take, on a busy machine.
const patience = 5 * time.Minute

const example = "../../examples/cloudflare"

// world is a daemon with the image that the example starts from.
type world struct {
	*testenv.Env
	cay  string   // program
	mark string   // in the environment of all that the test runs
	vars []string // environment of it and of what it runs
}

func open(t *testing.T) *world {
	t.Helper()
	if os.Getenv("CAY_CONFORMANCE") == "" {
		t.Skip("make conformance-cloudflare runs this")
	}
	w := &world{Env: testenv.Start(t), mark: "CAY_TEST_MARK=" + t.Name() + strconv.Itoa(os.Getpid())}
	var err error
	if w.cay, err = filepath.Abs("../../bin/cay"); err != nil {
		t.Fatal(err)
	}
	for _, need := range []string{w.cay, filepath.Join(example, "node_modules")} {
		if _, err := os.Stat(need); err != nil {
			t.Fatalf("%v; make build and make conformance-cloudflare-deps make it", err)
		}
	}
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "DOCKER_") && !strings.HasPrefix(kv, "WRANGLER_") && !strings.HasPrefix(kv, "CLOUDFLARE_") {
			w.vars = append(w.vars, kv)
		}
	}
	w.vars = append(w.vars, w.mark, "CAY_URL="+w.URL, "CAY_TOKEN="+w.Token, "HOME="+t.TempDir(), "WRANGLER_SEND_METRICS=false", "CI=1", "NO_COLOR=1")
	w.run(t, ".", w.cay, "image", "build", "-f", "server/cay.yaml")
	return w
}

// run runs a program to its end and returns what it wrote to standard output.
func (w *world) run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env, cmd.Stderr, cmd.WaitDelay = dir, w.vars, t.Output(), 10*time.Second
	out, err := cmd.Output()
	t.Logf("%s", out)
	if err != nil {
		t.Fatalf("%s %q: %v", name, args, err)
	}
	return string(out)
}

var ready = regexp.MustCompile(`Ready on http://([^\s/]+)`)

// processes returns the processes of the test that run a program, by its name; all for "".
func (w *world) processes(t *testing.T, program string) (pids []int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		environ, err := os.ReadFile("/proc/" + e.Name() + "/environ")
		if err != nil || !slices.Contains(strings.Split(string(environ), "\x00"), w.mark) {
			continue // it has ended, or is another's
		}
		comm, err := os.ReadFile("/proc/" + e.Name() + "/comm")
		if err == nil && (program == "" || strings.TrimSpace(string(comm)) == program) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// dev starts "wrangler dev" in a directory and returns the host it listens on. stop
// tells cay alone to end, and waits until it has ended.
func (w *world) dev(t *testing.T, dir string, args ...string) (host string, stop func()) {
	t.Helper()
	cmd := exec.Command(w.cay, append([]string{"cloudflare", "exec", "--", "npx", "wrangler", "dev", "--port", "0"}, args...)...)
	cmd.Dir, cmd.Env, cmd.Stderr = dir, w.vars, t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	hosts, read := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(read)
		lines := bufio.NewScanner(io.TeeReader(out, t.Output()))
		for lines.Scan() {
			if m := ready.FindStringSubmatch(lines.Text()); m != nil {
				select {
				case hosts <- m[1]:
				default:
				}
			}
		}
	}()
	ended := false
	stop = func() {
		if ended {
			return
		}
		ended = true
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		kill := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
		<-read
		err := cmd.Wait()
		if kill.Stop(); err != nil {
			t.Logf("wrangler dev ended with %v", err)
		}
	}
	t.Cleanup(stop)
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case host = <-hosts:
	case <-read:
		t.Fatal("wrangler dev ended before it was ready")
	case <-timeout.C:
		t.Fatalf("wrangler dev is not ready after %v", patience)
	}
	return host, stop
}

// containers are the sandboxes of the daemon that are containers.
func (w *world) containers(t *testing.T) []sandbox.Sandbox {
	t.Helper()
	page, err := w.Client.List(t.Context(), sandbox.ListParams{Tags: map[string]string{"docker": "container"}})
	if err != nil {
		t.Fatal(err)
	}
	return page.Items
}

// TestExample runs the example in both languages.
func TestExample(t *testing.T) {
	w := open(t)
	for _, main := range []string{"src/index.js", "src/index.ts"} {
		t.Run(main, func(t *testing.T) { w.example(t, main) })
	}
}

// example runs the example, and its client twice: a program runs on gVisor, what it
// wrote and its exit code come back, and the agent's state changes. When cay is told to
// end, no process of wrangler is left, and no container.
func (w *world) example(t *testing.T, main string) {
	host, stop := w.dev(t, example, main)
	for range 2 {
		out := w.run(t, example, "npx", "node", "client.mjs", host)
		var result struct {
			Success        bool
			Stdout, Stderr string
			ExitCode       int
		}
		var state struct {
			Runs       int
			LastOutput string
		}
		for line := range strings.Lines(out) {
			what, rest, _ := strings.Cut(line, " ")
			source, rest2, _ := strings.Cut(rest, " ")
			var err error
			switch {
			case what == "result":
				err = json.Unmarshal([]byte(rest), &result)
			case what == "state" && source == "server":
				err = json.Unmarshal([]byte(rest2), &state)
			}
			if err != nil {
				t.Errorf("%q: %v", line, err)
			}
		}
		if result.Success || strings.TrimSpace(result.Stdout) != "42" || !strings.Contains(result.Stderr, "gvisor") || result.ExitCode != 3 {
			t.Errorf("runPython returned %+v, want 42, gVisor's release, and exit code 3", result)
		}
		if state.Runs != 1 || strings.TrimSpace(state.LastOutput) != "42" {
			t.Errorf("the state is %+v, want one run that wrote 42", state)
		}
	}
	stop()
	if left := w.containers(t); len(left) > 0 {
		t.Errorf("%d containers are left, the first is %s", len(left), left[0].Name)
	}
	if left := w.processes(t, ""); len(left) > 0 {
		t.Errorf("the processes %v are left", left)
	}
}

// TestKilled kills workerd: what its containers were is removed while wrangler goes on.
func TestKilled(t *testing.T) {
	w := open(t)
	host, stop := w.dev(t, example)
	// The client calls, and keeps the container.
	w.run(t, example, "npx", "node", "client.mjs", host, "keep")
	if n := len(w.containers(t)); n != 1 {
		t.Fatalf("there are %d containers, want one", n)
	}
	pids := w.processes(t, "workerd")
	if len(pids) == 0 {
		t.Fatal("there is no workerd")
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
	again, late := time.NewTicker(100*time.Millisecond), time.NewTimer(patience)
	defer again.Stop()
	defer late.Stop()
	for len(w.containers(t)) > 0 {
		select {
		case <-again.C:
		case <-late.C:
			t.Fatalf("%d containers of a workerd that was killed are left after %v", len(w.containers(t)), patience)
		}
	}
	stop()
	if left := w.processes(t, ""); len(left) > 0 {
		t.Errorf("the processes %v are left", left)
	}
}
