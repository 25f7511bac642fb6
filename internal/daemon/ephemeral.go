package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/flock"
	"github.com/cayhq/cay/internal/sandboxd/gvisor"
	"github.com/cayhq/cay/sandbox"
)

// Ephemeral starts a daemon for this process alone: over a directory of its own,
// sharing only the image store, served on a private socket. ctx bounds the start
// only. stop ends the daemon with all its sandboxes. If this process dies instead,
// the next daemon or Ephemeral over the same data directory removes the leftovers.
func Ephemeral(ctx context.Context, cfg config.Config, log *slog.Logger) (_ *sandbox.Client, stop func() error, err error) {
	cfg.Pool, cfg.Pools = 0, nil // this process is in a hurry already
	var socket string
	_, token, end, err := startEphemeral(ctx, cfg, Options{Logger: log, NoWorkflows: true, NoGateway: true}, func(dir string) (net.Listener, error) {
		socket = filepath.Join(dir, "api.sock")
		return net.Listen("unix", socket)
	})
	if err != nil {
		return nil, nil, err
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	client := sandbox.NewClient(sandbox.ClientOptions{
		URL: "http://localhost", Token: token, HTTPClient: &http.Client{Transport: transport},
	})
	return client, func() error {
		transport.CloseIdleConnections()
		return end()
	}, nil
}

// EphemeralServer is like Ephemeral, but the daemon serves on cfg.Listen, where
// other processes reach it with the admin token. It uses only the logger of opts,
// and the options for the network outside of sandboxes.
func EphemeralServer(ctx context.Context, cfg config.Config, opts Options) (url, token string, stop func() error, err error) {
	d, token, stop, err := startEphemeral(ctx, cfg, opts, func(string) (net.Listener, error) {
		return (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.Listen)
	})
	if err != nil {
		return "", "", nil, err
	}
	return d.URL(), token, stop, nil
}

// startEphemeral starts a daemon over a directory of its own; listen gets the
// directory.
func startEphemeral(ctx context.Context, cfg config.Config, opts Options, listen func(dir string) (net.Listener, error)) (_ *Daemon, token string, stop func() error, err error) {
	log := opts.Logger
	if err := reapEphemeral(ctx, cfg, log); err != nil {
		log.WarnContext(ctx, "leftovers of commands that died were not removed", "error", err)
	}
	if err := os.MkdirAll(ephemeralDir(cfg), 0o700); err != nil {
		return nil, "", nil, fmt.Errorf("make run directory: %w", err)
	}
	dir, lock, err := newEphemeralDir(ephemeralDir(cfg))
	if err != nil {
		return nil, "", nil, err
	}
	remove := func() error { return errors.Join(os.RemoveAll(dir), os.Remove(lock.Name()), flock.Close(lock)) }
	defer func() {
		if err != nil {
			err = errors.Join(err, remove())
		}
	}()

	listener, err := listen(dir)
	if err != nil {
		return nil, "", nil, fmt.Errorf("listen for this process: %w", err)
	}
	own := cfg
	own.Data, own.TLSCert, own.TLSKey, own.PreviewTLSCert, own.PreviewTLSKey, own.WorkflowDatabase = dir, "", "", "", "", ""
	opts.Listener, opts.ImageDir, opts.RuntimeDir = listener, cfg.ImageDir(), filepath.Join(dir, machinesDir)
	opts.DestroyOnStop, opts.TrustCallers = true, true
	d, err := New(ctx, own, opts)
	if err != nil {
		return nil, "", nil, errors.Join(err, listener.Close())
	}
	if err := d.Start(ctx); err != nil {
		return nil, "", nil, errors.Join(err, d.Stop())
	}
	secret, err := os.ReadFile(own.AdminTokenFile())
	if err != nil {
		return nil, "", nil, errors.Join(fmt.Errorf("read token: %w", err), d.Stop())
	}
	return d, strings.TrimSpace(string(secret)), func() error { return errors.Join(d.Stop(), remove()) }, nil
}

const machinesDir = "m" // short: control sockets are below it

func ephemeralDir(cfg config.Config) string { return filepath.Join(cfg.Data, "run") }

// newEphemeralDir makes a directory below parent and, beside it, its lock.
func newEphemeralDir(parent string) (dir string, lock *os.File, err error) {
	for lock == nil {
		f, err := os.CreateTemp(parent, "*.lock")
		if err != nil {
			return "", nil, fmt.Errorf("make run directory: %w", err)
		}
		f.Close()
		// A reaper may have been faster, and removes the file: then try another
		// one.
		if lock, err = lockFile(f.Name()); err != nil {
			return "", nil, err
		}
	}
	dir = strings.TrimSuffix(lock.Name(), ".lock")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", nil, errors.Join(fmt.Errorf("make run directory: %w", err), os.Remove(lock.Name()), flock.Close(lock))
	}
	return dir, lock, nil
}

// reapEphemeral removes the leftovers of processes that died without stopping
// their Ephemeral, sandboxes included.
func reapEphemeral(ctx context.Context, cfg config.Config, log *slog.Logger) error {
	locks, err := filepath.Glob(filepath.Join(ephemeralDir(cfg), "*.lock"))
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range locks {
		lock, err := lockFile(path)
		if err != nil || lock == nil {
			errs = append(errs, err)
			continue // in use
		}
		dir := strings.TrimSuffix(path, ".lock")
		if err := reapMachines(ctx, filepath.Join(dir, machinesDir), log); err != nil {
			errs = append(errs, err, flock.Close(lock))
			continue
		}
		errs = append(errs, os.RemoveAll(dir), os.Remove(path), flock.Close(lock))
	}
	return errors.Join(errs...)
}

// Reap ends the sandboxes that a stopped daemon has left running, and those of commands
// that died. Errors: conflict if a daemon uses the data directory.
func Reap(ctx context.Context, cfg config.Config, log *slog.Logger) error {
	if _, err := os.Stat(cfg.Data); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	lock, err := lockFile(filepath.Join(cfg.Data, "daemon.lock"))
	if err != nil {
		return err
	}
	if lock == nil {
		return cay.Errorf(cay.Conflict, "a daemon uses the data directory %q", cfg.Data).WithHint("stop it first")
	}
	return errors.Join(reapMachines(ctx, filepath.Join(cfg.Data, "machines"), log), reapEphemeral(ctx, cfg, log), flock.Close(lock))
}

func reapMachines(ctx context.Context, dir string, log *slog.Logger) error {
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	rt, err := gvisor.New(gvisor.Config{StateDir: dir, NoLimits: true, Logger: log})
	if err != nil {
		return err
	}
	ids, err := rt.List(ctx)
	errs := []error{err}
	for _, id := range ids {
		errs = append(errs, rt.Reap(ctx, id))
	}
	return errors.Join(append(errs, rt.Close())...)
}
