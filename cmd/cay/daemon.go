package main

import (
	"context"
	"io"
	"log/slog"

	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/daemon"
	"github.com/cayhq/cay/sandbox"
)

// serveDaemon runs a daemon that logs to w until ctx ends.
func serveDaemon(w io.Writer) func(context.Context, config.Config, func(url, gatewayURL string)) error {
	return func(ctx context.Context, cfg config.Config, ready func(url, gatewayURL string)) error {
		return daemon.Run(ctx, cfg, daemon.Options{Logger: newLogger(w, cfg)}, ready)
	}
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
