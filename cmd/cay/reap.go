package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/daemon"
)

const reapHelp = `End the sandboxes that a stopped daemon of this machine has left running, before cay is
removed. The daemon's data stays: if it starts again, these sandboxes have ended, and
persistent ones start from their last save.

Settings come from $CAY_CONFIG and the environment, as for cay serve.`

// newReapCommand returns the hidden command that packages call when they are removed.
func newReapCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "reap", Short: "End the sandboxes of a stopped daemon", Long: reapHelp, Hidden: true,
		Args: none, ValidArgsFunction: cobra.NoFileCompletions,
	}
	return a.verb(c, func(ctx context.Context, _ []string) error {
		cfg, err := config.Load(config.Sources{File: os.Getenv("CAY_CONFIG"), Env: os.Getenv})
		if err != nil {
			return &exitError{exitUsage, err}
		}
		return daemon.Reap(ctx, cfg, newLogger(a.stderr, cfg.LogLevel, cfg.LogFormat))
	})
}
