package docker

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/compat/docker"
	"github.com/cayhq/cay/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// patience is how long a client may take, on a busy machine.
const patience = 5 * time.Minute

// serve serves a socket over a daemon and returns the environment of its clients.
func serve(t *testing.T) []string {
	t.Helper()
	if os.Getenv("CAY_CONFORMANCE") == "" {
		t.Skip("make conformance-docker runs this")
	}
	env := testenv.Start(t)
	dir, err := os.MkdirTemp("", "cay")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "docker.sock")
	l, err := docker.Listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	server := docker.New(docker.Config{Sandboxes: env.Client, Images: env.Client.Images(), Version: "test", Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	var vars []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "DOCKER_") {
			vars = append(vars, kv)
		}
	}
	return append(vars, "DOCKER_HOST=unix://"+path, "HOME="+dir)
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
	env := serve(t)
	if _, err := os.Stat(".venv"); err != nil {
		t.Fatal(".venv is missing; make conformance-docker-deps installs it")
	}
	run(t, env, ".venv/bin/python", "-B", "cases.py")
}

// TestCommandLine runs a script of docker's command line.
func TestCommandLine(t *testing.T) {
	env := serve(t)
	if _, err := exec.LookPath("docker"); err != nil {
		t.Skip("there is no docker command line in PATH")
	}
	run(t, env, "sh", "-eux", "cli.sh")
}
