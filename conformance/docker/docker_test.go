package docker

import (
	"bufio"
	"context"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// patience is how long a client may take, on a busy machine.
const patience = 5 * time.Minute

// serve serves a socket over a daemon and returns the environment of its clients, in which
// REGISTRY is a registry.
func serve(t *testing.T) (*testenv.Env, []string) {
	t.Helper()
	if os.Getenv("CAY_CONFORMANCE") == "" {
		t.Skip("make conformance-docker runs this")
	}
	images := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(images.Close)
	env := testenv.Start(t, func(c *config.Config) { c.AllowRanges = append(c.AllowRanges, "127.0.0.0/8") })
	dir, err := os.MkdirTemp("", "cay")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "docker.sock")
	program, err := filepath.Abs("../../bin/cay")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "docker", "serve", "--socket", path)
	cmd.Env = append(os.Environ(), "CAY_URL="+env.URL, "CAY_TOKEN="+env.Token)
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v; make build makes it", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		kill := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
		defer kill.Stop()
		_ = cmd.Wait() // its error is the interrupt
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("cay docker serve says %q: %v", line, err)
	}
	var vars []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "DOCKER_") {
			vars = append(vars, kv)
		}
	}
	return env, append(vars, "DOCKER_HOST=unix://"+path, "HOME="+dir, "REGISTRY="+strings.TrimPrefix(images.URL, "http://"))
}

// run runs a client, whose output is the test's.
func run(t *testing.T, env []string, argv ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = env
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Errorf("%s: %v", argv[0], err)
	}
}

// TestPython runs the cases of docker-py.
func TestPython(t *testing.T) {
	_, env := serve(t)
	if _, err := os.Stat(".venv"); err != nil {
		t.Fatal(".venv is missing; make conformance-docker-deps installs it")
	}
	run(t, env, ".venv/bin/python", "-B", "cases.py")
}

// TestTools runs programs that run code in containers.
func TestTools(t *testing.T) {
	_, env := serve(t)
	// In a container, Testcontainers would try to reach containers by their own addresses.
	env = append(env, "TESTCONTAINERS_RYUK_DISABLED=true", "TESTCONTAINERS_CONNECTION_MODE=docker_host")
	run(t, env, ".venv/bin/python", "-B", "tools.py")
}

// TestCommandLine runs a script of docker's command line.
func TestCommandLine(t *testing.T) {
	_, env := serve(t)
	if _, err := exec.LookPath("docker"); err != nil {
		t.Skip("there is no docker command line in PATH")
	}
	run(t, env, "sh", "-eux", "cli.sh")
}
