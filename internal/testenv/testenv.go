// Package testenv starts a whole daemon for tests and Examples: real gVisor,
// real images, a database and a data directory of its own, on a free port of the
// loopback address.
//
// Every test binary that uses it must call Main from its TestMain, because
// sandboxes are started by executing the test binary again.
package testenv

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/daemon"
	"github.com/cayhq/cay/internal/image/imagetest"
	"github.com/cayhq/cay/internal/sandboxd/gvisor"
	"github.com/cayhq/cay/sandbox"
)

// Main runs a test binary's tests. It does not return in a process that was
// started as a sandbox's helper.
func Main(m *testing.M) int {
	gvisor.HandleReexec()
	return m.Run()
}

// Env is a running daemon.
type Env struct {
	URL, Token string
	// GatewayURL is the origin of the AI gateway.
	GatewayURL string
	Client     *sandbox.Client
	Config     config.Config

	daemon *daemon.Daemon
}

// Start starts a daemon that ends, with all its sandboxes, when the test ends.
// It skips the test on machines that cannot start sandboxes. change may change
// the configuration.
func Start(t testing.TB, change ...func(*config.Config)) *Env {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("starting sandboxes needs root")
	}
	for _, ref := range []string{"debian", "node24", "python3.13"} {
		imagetest.Acquire(t, ref)
	}
	e, err := start(t.Context(), t.TempDir(), imagetest.Dir(t), slog.New(slog.NewTextHandler(t.Output(), nil)), change...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Stop(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func start(ctx context.Context, dir, images string, log *slog.Logger, change ...func(*config.Config)) (*Env, error) {
	cfg := config.Default()
	cfg.Data = dir
	cfg.Quota.CreatesPerMinute = 0
	for _, f := range change {
		f(&cfg)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	gateway, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	d, err := daemon.New(ctx, cfg, daemon.Options{Logger: log, Listener: ln, GatewayListener: gateway, ImageDir: images, DestroyOnStop: true})
	if err != nil {
		return nil, errors.Join(err, ln.Close(), gateway.Close())
	}
	if err := d.Start(ctx); err != nil {
		return nil, errors.Join(err, d.Stop())
	}
	token, err := os.ReadFile(cfg.AdminTokenFile())
	if err != nil {
		return nil, errors.Join(err, d.Stop())
	}
	e := &Env{URL: d.URL(), GatewayURL: d.GatewayURL(), Token: strings.TrimSpace(string(token)), Config: cfg, daemon: d}
	e.Client = sandbox.NewClient(sandbox.ClientOptions{URL: e.URL, Token: e.Token})
	return e, nil
}

// Stop ends the daemon and its sandboxes.
func (e *Env) Stop() error { return e.daemon.Stop() }

// Examples starts a daemon for the runnable Examples of a package and points the
// default client at it, by CAY_URL and CAY_TOKEN. On machines that cannot start
// sandboxes it returns the reason, and the Examples must not be run. stop ends
// the daemon.
func Examples() (stop func(), err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("starting sandboxes needs root")
	}
	dir, err := os.MkdirTemp("", "cay-examples-")
	if err != nil {
		return nil, err
	}
	images := os.Getenv("CAY_TEST_IMAGES")
	if images == "" {
		root, err := moduleRoot()
		if err != nil {
			return nil, err
		}
		images = filepath.Join(root, ".cache", "images")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	e, err := start(ctx, dir, images, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	os.Setenv("CAY_URL", e.URL)
	os.Setenv("CAY_TOKEN", e.Token)
	return func() {
		if err := errors.Join(e.Stop(), os.RemoveAll(dir)); err != nil {
			fmt.Fprintln(os.Stderr, "testenv:", err)
		}
	}, nil
}

// moduleRoot returns the directory of go.mod above the working directory.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("not in a Go module")
		}
		dir = parent
	}
}
