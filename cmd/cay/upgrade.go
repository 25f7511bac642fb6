package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/handover"
)

const upgradeHelp = `Replace the daemon of this machine by another program, without closing its
sockets: sandboxes and their commands go on, and requests that arrive meanwhile
wait a moment. FILE is a program of cay; without it, the daemon starts its own
program again, which may be a newer file now. Signal SIGUSR2 does the same.

The daemon starts the program with its own arguments and environment, and goes on
serving until the program has read the configuration. Then it stops, and the
program takes over. If the program fails, or does not serve within 2 minutes, the
old daemon goes on; not if the program has changed databases so that older
versions refuse them. Keep a copy of the databases.

Streams are told to attach again, which the command line and the Go SDK do.
Connections of sandboxes to the outside are reset. The new process has another
id, which systemd is told. A daemon that is process 1 of a container cannot be
replaced: replace the container.

Exit codes: 0 the new program serves, 1 the old one goes on, or none; 2 wrong usage.`

type upgradeOptions struct {
	data string
	file string
}

// upgraded is the output of upgrade.
type upgraded struct {
	PID     int    `json:"pid"`
	Version string `json:"version"`
}

func newUpgradeCommand(a *app) *cobra.Command {
	var o upgradeOptions
	c := &cobra.Command{
		Use: "upgrade [FILE]", Short: "Replace the daemon while it serves", Long: upgradeHelp,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage(cmd, "it takes one program, not %d arguments", len(args))
			}
			return nil
		},
	}
	c.Flags().StringVar(&o.data, "data", "", "data directory of the daemon (default $CAY_DATA, else as of \"cay serve\")")
	return a.verb(c, func(ctx context.Context, args []string) error {
		if len(args) > 0 {
			o.file = args[0]
		}
		return o.run(ctx, a)
	})
}

func (o *upgradeOptions) run(ctx context.Context, a *app) error {
	var r handover.Request
	if o.file != "" {
		path, err := filepath.Abs(o.file)
		if err != nil {
			return fmt.Errorf("find %s: %w", o.file, err)
		}
		info, err := os.Stat(path)
		if err != nil {
			return cay.Errorf(cay.FileNotFound, "no program %s: %w", o.file, err)
		}
		if !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
			return cay.Errorf(cay.Invalid, "%s is not a program", o.file)
		}
		r.Program = path
	}
	if o.data == "" {
		cfg, err := config.Load(config.Sources{File: os.Getenv("CAY_CONFIG"), Env: os.Getenv})
		if err != nil {
			return &exitError{exitUsage, err}
		}
		o.data = cfg.Data
	}
	result, err := handover.Ask(ctx, o.data, r)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(upgraded(*result))
	}
	fmt.Fprintf(a.stdout, "cay %s serves, as process %d\n", result.Version, result.PID)
	return nil
}
