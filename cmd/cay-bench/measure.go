package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/bench"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/image"
	"github.com/cayhq/cay/sandbox"
)

const help = `Measure this machine: a suite's rows, by a daemon of its own that is removed
afterwards, and by the opponents that are installed here. Nothing else should
run meanwhile; the load average at each row's start is part of the result.

Usage: cay-bench [SUITE] [flags]

The suites are sandbox, network, state, vercel, workflow, workflow-js and gateway;
without one named, all are run. docs/benchmarks.md says what each row means.

  cay-bench
  cay-bench sandbox --row exec --row create_cold --opponents none
  cay-bench --json > results.json

Exit codes: 0 measured, whatever the times, 1 error, 2 wrong usage.

Flags:
`

// suiteNames are the names of the suites, in the order in which they run.
var suiteNames = []string{"sandbox", "network", "state", "vercel", "workflow", "workflow-js", "gateway"}

// options are the flags and arguments of a measurement.
type options struct {
	suites     []string
	n          int
	rows       []string
	opponents  string
	sdk        string
	portkey    string
	workflows  string
	postgres   string
	steps      int
	live       int
	cpuProfile string
	json       bool
}

// newFlags returns an empty set of flags. Parse returns errors, and prints help on request
// alone.
func newFlags(name string, out io.Writer) *flag.FlagSet {
	fl := flag.NewFlagSet(name, flag.ContinueOnError)
	fl.SetOutput(io.Discard)
	fl.Usage = func() {
		fl.SetOutput(out)
		fmt.Fprint(out, help)
		fl.PrintDefaults()
		fl.SetOutput(io.Discard)
	}
	return fl
}

// parse reads a command line. Its errors are *usageError, or flag.ErrHelp.
func parse(args []string, out io.Writer) (options, error) {
	o := options{suites: suiteNames}
	fl := newFlags("cay-bench", out)
	usage := fl.Usage
	fl.Usage = func() {}
	fl.IntVar(&o.n, "n", 0, "samples of each row, and idle sandboxes (default: each row's own number)")
	fl.Func("row", "only this row; may be repeated", func(row string) error {
		o.rows = append(o.rows, row)
		return nil
	})
	fl.StringVar(&o.opponents, "opponents", "auto", "auto: those that are installed; none")
	fl.StringVar(&o.sdk, "sdk", "conformance/vercel/node_modules/sandbox-v3", "directory of @vercel/sandbox 3 for the suite vercel")
	fl.StringVar(&o.portkey, "portkey", "bench/opponents/portkey/node_modules/@portkey-ai/gateway", "directory of @portkey-ai/gateway for the suite gateway")
	fl.StringVar(&o.workflows, "workflow-sdk", "conformance/workflow", "directory with a Workflow SDK of each line, in v4 and v5, for the suite workflow-js")
	fl.StringVar(&o.postgres, "world-postgres", "bench/opponents/world-postgres", "directory with @workflow/world-postgres for the suite workflow-js")
	fl.IntVar(&o.steps, "steps", 0, "steps of each run of the suite workflow-js (default: 80 of line 4, 200 of line 5)")
	fl.IntVar(&o.live, "live", 0, "sandboxes beside which the suite sandbox measures creations (default 1000)")
	fl.StringVar(&o.cpuProfile, "cpuprofile", "", "write a CPU profile of the daemon to this `file`; not in the suite gateway, whose daemon writes none")
	fl.BoolVar(&o.json, "json", false, "print the results as JSON")
	var suites []string
	for len(args) > 0 { // flags may follow the suite
		if err := fl.Parse(args); errors.Is(err, flag.ErrHelp) {
			usage()
			return o, err
		} else if err != nil {
			return o, &usageError{err}
		}
		if args = fl.Args(); len(args) > 0 {
			suites, args = append(suites, args[0]), args[1:]
		}
	}
	switch {
	case len(suites) > 1:
		return o, usagef("one suite at a time; %q is one too many", suites[1])
	case len(suites) == 1 && !slices.Contains(suiteNames, suites[0]):
		return o, usagef("there is no suite %q; there are %s", suites[0], strings.Join(suiteNames, ", "))
	case o.n < 0:
		return o, usagef("--n %d is negative", o.n)
	case o.steps != 0 && o.steps < 10:
		return o, usagef("--steps %d is less than 10", o.steps)
	case o.live < 0 || o.live == 1:
		return o, usagef("--live %d is not 2 or more", o.live)
	case o.opponents != "auto" && o.opponents != "none":
		return o, usagef("--opponents %q is neither auto nor none", o.opponents)
	case o.cpuProfile != "" && len(suites) == 1 && suites[0] == "gateway":
		return o, usagef("the suite gateway measures `cay serve`, which writes no profile; use `perf record` on its process")
	}
	if len(suites) == 1 {
		o.suites = suites
	}
	return o, nil
}

// measure takes the samples that the arguments name, and prints the results.
func (s streams) measure(ctx context.Context, args []string) error {
	o, err := parse(args, s.stdout)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	results, err := s.results(ctx, o)
	// Results measured before an error are worth showing.
	if o.json {
		return errors.Join(err, bench.WriteJSON(s.stdout, results))
	}
	return errors.Join(err, bench.WriteTable(s.stdout, results))
}

// results starts what the suites need, and takes the samples.
func (s streams) results(ctx context.Context, o options) (results []bench.Result, err error) {
	cfg, err := config.Load(config.Sources{File: os.Getenv("CAY_CONFIG"), Env: os.Getenv})
	if err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	beside := filepath.Join(filepath.Dir(program), "cay")
	if _, err := os.Stat(beside); err != nil && (slices.Contains(o.suites, "gateway") || slices.Contains(o.suites, "workflow-js")) {
		return nil, cay.Errorf(cay.Invalid, "the suites gateway and workflow-js run the program cay beside this one: %w", err).WithHint("make build")
	}
	world, err := bench.NewWorld()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, world.Close()) }()
	d, err := bench.StartDaemon(ctx, []string{program, asDaemon, "--world", world.Map(), "--cpuprofile", o.cpuProfile}, s.stderr)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Stop()) }()
	if slices.ContainsFunc(o.suites, func(name string) bool { return !slices.Contains([]string{"workflow", "workflow-js", "gateway"}, name) }) {
		if err := s.ensureImages(ctx, d.Client); err != nil {
			return nil, err
		}
	}

	so := bench.SandboxOptions{Daemon: d, Opponents: o.opponents == "auto", Live: o.live}
	so.StartPooled = func(ctx context.Context, size int) (*bench.Daemon, error) {
		argv := []string{program, asDaemon, "--pool", strconv.Itoa(size)}
		if o.cpuProfile != "" {
			argv = append(argv, "--cpuprofile", fmt.Sprintf("%s.pool-%d", o.cpuProfile, size))
		}
		return bench.StartDaemon(ctx, argv, s.stderr)
	}
	if so.WorkDir, err = os.MkdirTemp(cfg.Data, "bench-"); err != nil {
		return nil, fmt.Errorf("make work directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(so.WorkDir)) }()
	wo := bench.WorkflowOptions{Program: []string{program, asWorkflows}, Daemon: d, WorkDir: so.WorkDir, Stderr: s.stderr}
	if o.cpuProfile != "" {
		wo.Program = append(wo.Program, "--cpuprofile", o.cpuProfile+".workflow")
	}
	if so.Opponents {
		if so.Images, err = image.Open(cfg.ImageDir(), image.Options{}); err != nil {
			return nil, err
		}
		wo.Opponents, wo.NoOpponents = bench.FindOpponents(filepath.Join(filepath.Dir(program), "cay-opponents"))
	}
	suites := map[string]*bench.Suite{
		"sandbox": bench.NewSandboxSuite(so),
		"network": bench.NewNetworkSuite(bench.NetworkOptions{Daemon: d, World: world, Opponents: so.Opponents, Images: so.Images, WorkDir: so.WorkDir}),
		"state":   bench.NewStateSuite(bench.StateOptions{Daemon: d, Opponents: so.Opponents, WorkDir: so.WorkDir}),
		"vercel": bench.NewVercelSuite(bench.VercelOptions{
			Daemon: d, StartPooled: so.StartPooled, SDK: o.sdk, Stderr: s.stderr, Opponents: so.Opponents, WorkDir: so.WorkDir,
		}),
		"workflow": bench.NewWorkflowSuite(wo),
		"workflow-js": bench.NewWorkflowJSSuite(bench.WorkflowJSOptions{
			Daemon: d, Exec: []string{beside, "vercel", "exec", "--"}, SDK: o.workflows, Postgres: o.postgres, Steps: o.steps,
			Opponents: so.Opponents, WorkDir: so.WorkDir, Stderr: s.stderr,
		}),
		"gateway": bench.NewGatewaySuite(bench.GatewayOptions{
			Program: []string{program, asField}, Serve: []string{beside, "serve"}, Portkey: o.portkey,
			Opponents: so.Opponents, WorkDir: so.WorkDir, Stderr: s.stderr,
		}),
	}
	for _, suite := range suites {
		defer func() { err = errors.Join(err, suite.Close()) }()
	}
	selected, err := o.selectRows(suites)
	if err != nil {
		return nil, err
	}
	for _, name := range o.suites {
		rows, ok := selected[name]
		if !ok {
			continue
		}
		more, err := bench.Run(ctx, suites[name], bench.Options{N: o.n, Rows: rows, Progress: s.progress()})
		if results = append(results, more...); err != nil {
			return results, err
		}
	}
	return results, nil
}

// progress returns a function that prints each row and subject once, when it begins.
func (s streams) progress() func(row, subject string, done, n int) {
	var last string
	return func(row, subject string, _, _ int) {
		if now := row + " " + subject; now != last {
			last = now
			fmt.Fprintln(s.stderr, now)
		}
	}
}

// ensureImages builds the default image and runtime, which all suites use, if they are
// missing.
func (s streams) ensureImages(ctx context.Context, c *sandbox.Client) error {
	for _, ref := range []string{"debian", "node24"} {
		_, err := c.Images().Get(ctx, ref)
		if cay.CodeOf(err) == cay.NotFound {
			fmt.Fprintf(s.stderr, "building %s, once on this machine\n", ref)
			_, err = c.Images().Build(ctx, ref, nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// selectRows returns the rows to take of each suite; no rows means all. Its errors are
// *usageError.
func (o *options) selectRows(suites map[string]*bench.Suite) (map[string][]string, error) {
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
			return nil, &usageError{cay.Errorf(cay.Invalid, "there is no row %q in %s", row, strings.Join(o.suites, " or ")).
				WithHint("docs/benchmarks.md lists the rows of each suite")}
		}
	}
	return selected, nil
}
