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
	vars []string // environment of it and of what it runs
}

func open(t *testing.T) *world {
	t.Helper()
	if os.Getenv("CAY_CONFORMANCE") == "" {
		t.Skip("make conformance-cloudflare runs this")
	}
	w := &world{Env: testenv.Start(t)}
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
	w.vars = append(w.vars, "CAY_URL="+w.URL, "CAY_TOKEN="+w.Token, "HOME="+t.TempDir(), "WRANGLER_SEND_METRICS=false", "CI=1", "NO_COLOR=1")
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

// dev starts "wrangler dev" on the example and returns the host it listens on. stop
// ends it, and waits until all of it has ended.
func (w *world) dev(t *testing.T) (host string, stop func()) {
	t.Helper()
	cmd := exec.Command(w.cay, "cloudflare", "exec", "--", "npx", "wrangler", "dev", "--port", "0")
	cmd.Dir, cmd.Env, cmd.Stderr = example, w.vars, t.Output()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
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
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) // as a terminal signals; npx alone would leave wrangler behind
		kill := time.AfterFunc(patience, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
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

// TestExample runs the example, and its client twice: a program runs on gVisor, what it
// wrote and its exit code come back, and the agent's state changes. When wrangler ends,
// no container is left.
func TestExample(t *testing.T) {
	w := open(t)
	host, stop := w.dev(t)
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
}
