package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/daemon"
	"github.com/cayhq/cay/internal/handover"
	"github.com/cayhq/cay/internal/systemd"
	"github.com/cayhq/cay/sandbox"
)

// serveDaemon runs a daemon that logs to w until ctx ends.
func serveDaemon(stdout, w *os.File) func(context.Context, config.Config, func(url, gatewayURL string)) error {
	return func(ctx context.Context, cfg config.Config, ready func(url, gatewayURL string)) error {
		h, stop, err := newHandover(stdout, w)
		if err != nil {
			return err
		}
		defer stop()
		return daemon.Run(ctx, cfg, daemon.Options{Logger: newLogger(w, cfg), Handover: h}, ready)
	}
}

// newHandover returns how this process takes over from another, and lets others take over.
// stop frees it.
func newHandover(stdout, stderr *os.File) (h daemon.Handover, stop func(), err error) {
	if h.From, err = handover.FromPredecessor(os.Getenv); err != nil {
		return h, nil, err
	}
	if h.From == nil {
		if h.Sockets, err = handover.FromSystemd(os.Getenv, os.Getpid()); err != nil {
			return h, nil, err
		}
	}
	for _, name := range []string{handover.Env, "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		if err := os.Unsetenv(name); err != nil {
			return h, nil, fmt.Errorf("clear %s: %w", name, err)
		}
	}
	if manager := os.Getenv("NOTIFY_SOCKET"); manager != "" {
		h.Announce = func(pid int) error { return systemd.MainPID(manager, pid) }
	}
	if os.Getpid() == 1 {
		return h, func() {}, nil // its end is the end of the container
	}
	path, err := os.Executable()
	if err != nil {
		return h, nil, fmt.Errorf("find this program: %w", err)
	}
	h.Program = handover.Program{Path: path, Args: os.Args[1:], Env: os.Environ(), Stdout: stdout, Stderr: stderr}
	signals, again := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(signals, syscall.SIGUSR2)
	ctx, cancel := context.WithCancel(context.Background())
	var passing sync.WaitGroup
	passing.Go(func() {
		for {
			select {
			case <-signals:
			case <-ctx.Done():
				return
			}
			select {
			case again <- struct{}{}:
			case <-ctx.Done():
				return
			}
		}
	})
	h.Again = again
	return h, func() {
		signal.Stop(signals)
		cancel()
		passing.Wait()
	}, nil
}

// startEphemeral starts an engine in this process; it logs warnings to w. ctx
// bounds the start only.
func startEphemeral(w io.Writer) func(context.Context, config.Config) (*sandbox.Client, func() error, error) {
	return func(ctx context.Context, cfg config.Config) (*sandbox.Client, func() error, error) {
		return daemon.Ephemeral(ctx, cfg, newLogger(w, quietly(cfg)))
	}
}

// quietly returns cfg for a daemon that is only a part of a command.
func quietly(cfg config.Config) config.Config {
	cfg.LogLevel = max(cfg.LogLevel, slog.LevelWarn)
	return cfg
}

func newLogger(w io.Writer, cfg config.Config) *slog.Logger {
	o := &slog.HandlerOptions{Level: cfg.LogLevel}
	if cfg.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
