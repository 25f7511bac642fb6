package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/bench"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/sandboxd/image"
	"github.com/cayhq/cay/sandbox"
)

const benchHelp = `Measure this machine: a suite's rows, by a daemon of its own that is removed
afterwards, and by the opponents that are installed here. Nothing else should
run meanwhile; the load average at each row's start is part of the result.

The suite is sandbox, the only one. docs/benchmarks.md says what each row means.

Exit codes: 0 measured, whatever the times, 1 error, 2 wrong usage.`

type benchOptions struct {
	n          int
	rows       []string
	opponents  string
	cpuProfile string
}

func newBenchCommand(a *app) *cobra.Command {
	var o benchOptions
	c := &cobra.Command{
		Use:   "bench [SUITE]",
		Short: "Measure this machine",
		Long:  benchHelp,
		Example: `  cay bench
  cay bench sandbox --row exec --row create_cold --opponents none
  cay bench --json > results.json`,
		ValidArgs: []string{"sandbox"},
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) > 1:
				return usage(cmd, "one suite at a time; %q is one too many", args[1])
			case len(args) == 1 && args[0] != "sandbox":
				return usage(cmd, "there is no suite %q; there is sandbox", args[0])
			case o.n < 0:
				return usage(cmd, "--n %d is negative", o.n)
			case o.opponents != "auto" && o.opponents != "none":
				return usage(cmd, "--opponents %q is neither auto nor none", o.opponents)
			}
			return nil
		},
	}
	fl := c.Flags()
	fl.IntVar(&o.n, "n", 0, "samples of each row, and idle sandboxes (default: each row's own number)")
	fl.StringArrayVar(&o.rows, "row", nil, "only this row; may be repeated")
	fl.StringVar(&o.opponents, "opponents", "auto", "auto: those that are installed; none")
	fl.StringVar(&o.cpuProfile, "cpuprofile", "", "write a CPU profile of the daemon to this file")
	return a.verb(c, func(ctx context.Context, _ []string) error { return o.run(ctx, a) })
}

func (o *benchOptions) run(ctx context.Context, a *app) (err error) {
	cfg, err := config.Load(config.Sources{File: os.Getenv("CAY_CONFIG"), Env: os.Getenv})
	if err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	d, err := bench.StartDaemon(ctx, []string{program, benchDaemon, "--cpuprofile", o.cpuProfile}, a.stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Stop()) }()
	if err := a.ensureImages(ctx, d.Client, sandbox.CreateParams{}, a.json); err != nil {
		return err
	}

	so := bench.SandboxOptions{Daemon: d, Opponents: o.opponents == "auto"}
	if so.Opponents {
		if so.Images, err = image.Open(cfg.ImageDir(), image.Options{}); err != nil {
			return err
		}
		if so.WorkDir, err = os.MkdirTemp(cfg.Data, "bench-"); err != nil {
			return fmt.Errorf("make work directory: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(so.WorkDir)) }()
	}
	suite := bench.NewSandboxSuite(so)
	defer func() { err = errors.Join(err, suite.Close()) }()

	p := a.newProgress(false)
	p.amount = countText
	results, err := bench.Run(ctx, suite, bench.Options{
		N: o.n, Rows: o.rows,
		Progress: func(row, subject string, done, n int) { p.step(row+" "+subject, int64(done), int64(n)) },
	})
	p.done()
	if cay.CodeOf(err) == cay.Invalid && len(results) == 0 {
		return &exitError{exitUsage, err}
	}
	// What was measured before an error is worth showing.
	if a.json {
		return errors.Join(err, bench.WriteJSON(a.stdout, results))
	}
	return errors.Join(err, bench.WriteTable(a.stdout, results))
}

// benchDaemon is the hidden command that is the daemon of a bench.
const benchDaemon = "benchd"

func newBenchDaemonCommand(a *app) *cobra.Command {
	var cpuProfile string
	c := &cobra.Command{
		Use: benchDaemon, Short: "Be the daemon of a bench", Hidden: true,
		Args: none, ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.Flags().StringVar(&cpuProfile, "cpuprofile", "", "file for a CPU profile")
	return a.verb(c, func(ctx context.Context, _ []string) error {
		cfg, err := config.Load(config.Sources{File: os.Getenv("CAY_CONFIG"), Env: os.Getenv})
		if err != nil {
			return &exitError{exitUsage, err}
		}
		return bench.ServeDaemon(ctx, cfg, a.stdin, a.stdout, newLogger(a.stderr, quietly(cfg)), cpuProfile)
	})
}
