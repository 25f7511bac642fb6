package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/bench"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/image"
	"github.com/cayhq/cay/sandbox"
)

const benchHelp = `Measure this machine: a suite's rows, by a daemon of its own that is removed
afterwards, and by the opponents that are installed here. Nothing else should
run meanwhile; the load average at each row's start is part of the result.

The suites are sandbox, network, state, vercel, workflow and gateway; without one
named, all are run.
docs/benchmarks.md says what each row means.

Exit codes: 0 measured, whatever the times, 1 error, 2 wrong usage.`

// benchSuites are the names of the suites, in the order in which they run.
var benchSuites = []string{"sandbox", "network", "state", "vercel", "workflow", "gateway"}

type benchOptions struct {
	suites     []string
	n          int
	rows       []string
	opponents  string
	sdk        string
	portkey    string
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
		ValidArgs: benchSuites,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) > 1:
				return usage(cmd, "one suite at a time; %q is one too many", args[1])
			case len(args) == 1 && !slices.Contains(benchSuites, args[0]):
				return usage(cmd, "there is no suite %q; there are %s", args[0], strings.Join(benchSuites, ", "))
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
	fl.StringVar(&o.sdk, "sdk", "conformance/vercel/node_modules/sandbox-v3", "directory of @vercel/sandbox 3 for the suite vercel")
	fl.StringVar(&o.portkey, "portkey", "bench/opponents/portkey/node_modules/@portkey-ai/gateway", "directory of @portkey-ai/gateway for the suite gateway")
	fl.StringVar(&o.cpuProfile, "cpuprofile", "", "write a CPU profile of the daemon to this file")
	return a.verb(c, func(ctx context.Context, args []string) error {
		if o.suites = benchSuites; len(args) > 0 {
			o.suites = args
		}
		return o.run(ctx, a)
	})
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
	world, err := bench.NewWorld()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, world.Close()) }()
	d, err := bench.StartDaemon(ctx, []string{program, benchDaemon, "--world", world.Map(), "--cpuprofile", o.cpuProfile}, a.stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Stop()) }()
	if slices.ContainsFunc(o.suites, func(s string) bool { return s != "workflow" && s != "gateway" }) {
		if err := a.ensureImages(ctx, d.Client, sandbox.CreateParams{}, a.json); err != nil {
			return err
		}
	}

	so := bench.SandboxOptions{Daemon: d, Opponents: o.opponents == "auto"}
	so.StartPooled = func(ctx context.Context, size int) (*bench.Daemon, error) {
		argv := []string{program, benchDaemon, "--pool", strconv.Itoa(size)}
		if o.cpuProfile != "" {
			argv = append(argv, "--cpuprofile", fmt.Sprintf("%s.pool-%d", o.cpuProfile, size))
		}
		return bench.StartDaemon(ctx, argv, a.stderr)
	}
	if so.WorkDir, err = os.MkdirTemp(cfg.Data, "bench-"); err != nil {
		return fmt.Errorf("make work directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(so.WorkDir)) }()
	wo := bench.WorkflowOptions{Program: []string{program, benchWorkflows}, Daemon: d, WorkDir: so.WorkDir, Stderr: a.stderr}
	if o.cpuProfile != "" {
		wo.Program = append(wo.Program, "--cpuprofile", o.cpuProfile+".workflow")
	}
	if so.Opponents {
		if so.Images, err = image.Open(cfg.ImageDir(), image.Options{}); err != nil {
			return err
		}
		wo.Opponents, wo.NoOpponents = bench.FindOpponents(filepath.Join(filepath.Dir(program), "cay-opponents"))
	}
	no := bench.NetworkOptions{Daemon: d, World: world, Opponents: so.Opponents, Images: so.Images, WorkDir: so.WorkDir}
	suites := map[string]*bench.Suite{
		"sandbox": bench.NewSandboxSuite(so),
		"network": bench.NewNetworkSuite(no),
		"state":   bench.NewStateSuite(bench.StateOptions{Daemon: d, Opponents: so.Opponents, WorkDir: so.WorkDir}),
		"vercel": bench.NewVercelSuite(bench.VercelOptions{
			Daemon: d, StartPooled: so.StartPooled, SDK: o.sdk, Stderr: a.stderr, Opponents: so.Opponents, WorkDir: so.WorkDir,
		}),
		"workflow": bench.NewWorkflowSuite(wo),
		"gateway": bench.NewGatewaySuite(bench.GatewayOptions{
			Program: []string{program, benchGateway}, Serve: []string{program, "serve"}, Portkey: o.portkey,
			Opponents: so.Opponents, WorkDir: so.WorkDir, Stderr: a.stderr,
		}),
	}
	for _, s := range suites {
		defer func() { err = errors.Join(err, s.Close()) }()
	}
	selected, err := o.selectRows(suites)
	if err != nil {
		return &exitError{exitUsage, err}
	}

	p := a.newProgress(false)
	p.amount = countText
	var results []bench.Result
	for _, name := range o.suites {
		rows, ok := selected[name]
		if !ok || err != nil {
			continue
		}
		var more []bench.Result
		more, err = bench.Run(ctx, suites[name], bench.Options{
			N: o.n, Rows: rows,
			Progress: func(row, subject string, done, n int) { p.step(row+" "+subject, int64(done), int64(n)) },
		})
		results = append(results, more...)
	}
	p.done()
	// Results measured before an error are worth showing.
	if a.json {
		return errors.Join(err, bench.WriteJSON(a.stdout, results))
	}
	return errors.Join(err, bench.WriteTable(a.stdout, results))
}

// selectRows returns the rows to take of each suite; no rows means all.
func (o *benchOptions) selectRows(suites map[string]*bench.Suite) (map[string][]string, error) {
	selected := map[string][]string{}
	for _, name := range o.suites {
		if len(o.rows) == 0 {
			selected[name] = nil
		}
	}
	for _, row := range o.rows {
		known := false
		for _, name := range o.suites {
			if suites[name].Has(row) {
				selected[name], known = append(selected[name], row), true
			}
		}
		if !known {
			return nil, cay.Errorf(cay.Invalid, "there is no row %q in %s", row, strings.Join(o.suites, " or ")).
				WithHint("docs/benchmarks.md lists the rows of each suite")
		}
	}
	return selected, nil
}

// benchDaemon is the hidden command that runs the daemon of a bench.
const benchDaemon = "benchd"

func newBenchDaemonCommand(a *app) *cobra.Command {
	var (
		world, cpuProfile string
		pool              int
	)
	c := &cobra.Command{
		Use: benchDaemon, Short: "Be the daemon of a bench", Hidden: true,
		Args: none, ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.Flags().StringVar(&world, "world", "", "what sandboxes find outside")
	c.Flags().IntVar(&pool, "pool", 0, "machines that wait")
	c.Flags().StringVar(&cpuProfile, "cpuprofile", "", "file for a CPU profile")
	return a.verb(c, func(ctx context.Context, _ []string) error {
		cfg, err := config.Load(config.Sources{File: os.Getenv("CAY_CONFIG"), Env: os.Getenv})
		if err != nil {
			return &exitError{exitUsage, err}
		}
		return bench.ServeDaemon(ctx, cfg, a.stdin, a.stdout, newLogger(a.stderr, quietly(cfg)), world, pool, cpuProfile)
	})
}

// benchWorkflows is the hidden command that runs a program with workflows.
const benchWorkflows = "benchw"

func newBenchWorkflowsCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: benchWorkflows, Short: "Be a program with workflows", Hidden: true,
		DisableFlagParsing: true, ValidArgsFunction: cobra.NoFileCompletions,
	}
	return a.verb(c, func(ctx context.Context, args []string) error {
		return bench.ServeWorkflows(ctx, args, a.stdin, a.stdout)
	})
}

// benchGateway is the hidden command that plays the provider and the clients of
// a gateway.
const benchGateway = "benchg"

func newBenchGatewayCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: benchGateway, Short: "Be the provider and the clients of a gateway", Hidden: true,
		DisableFlagParsing: true, ValidArgsFunction: cobra.NoFileCompletions,
	}
	return a.verb(c, func(ctx context.Context, args []string) error {
		return bench.ServeField(ctx, args, a.stdin, a.stdout)
	})
}
