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

// serveDaemon runs a daemon that logs to w until ctx ends. The daemon notifies systemd if
// systemd has started this process.
func serveDaemon(stdout, w *os.File) func(context.Context, config.Config, <-chan func() (config.Config, error), func(url, gatewayURL string)) error {
	return func(ctx context.Context, cfg config.Config, reload <-chan func() (config.Config, error), ready func(url, gatewayURL string)) error {
		unit := systemd.FromEnv(os.Getenv, os.Getpid())
		h, stop, err := newHandover(unit, stdout, w)
		if err != nil {
			return err
		}
		defer stop()
		if err := systemd.ClearEnv(); err != nil {
			return err
		}
		level := new(slog.LevelVar)
		level.Set(cfg.LogLevel)
		opts := daemon.Options{
			Logger: newLogger(w, level, cfg.LogFormat), Handover: h, Supervision: daemon.Supervision{Unit: unit, Reload: reload, Level: level},
		}
		return daemon.Run(ctx, cfg, opts, ready)
	}
}

// newHandover returns how this process takes over from another, and lets others take over,
// which get the environment that this process has now. stop frees it.
func newHandover(unit *systemd.Unit, stdout, stderr *os.File) (h daemon.Handover, stop func(), err error) {
	if h.From, err = handover.FromPredecessor(os.Getenv); err != nil {
		return h, nil, err
	}
	if h.From == nil {
		if h.Sockets, err = handover.FromSystemd(os.Getenv, os.Getpid()); err != nil {
			return h, nil, err
		}
	}
	// WATCHDOG_PID would tell the next process that the watchdog is not for it.
	for _, name := range []string{handover.Env, "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "WATCHDOG_PID"} {
		if err := os.Unsetenv(name); err != nil {
			return h, nil, fmt.Errorf("clear %s: %w", name, err)
		}
	}
	if unit != nil {
		h.Announce = unit.MainPID
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
		return daemon.Ephemeral(ctx, cfg, newLogger(w, max(cfg.LogLevel, slog.LevelWarn), cfg.LogFormat))
	}
}

func newLogger(w io.Writer, level slog.Leveler, format string) *slog.Logger {
	o := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
