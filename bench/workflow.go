package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
)

// WorkflowOptions are the options of the suite of workflows.
type WorkflowOptions struct {
	// Program is the argv of a program that calls ServeWorkflows with the added
	// arguments.
	Program []string
	Daemon  *Daemon // its worker is measured, too; nil: it is not
	// Opponents is the program of other engines; see bench/opponents. Empty means
	// none. NoOpponents says why opponents are missing.
	Opponents, NoOpponents string
	WorkDir                string // on the disk that is to be measured
	Stderr                 io.Writer

	// Live and Sleeping are the numbers of live and of sleeping runs. 0 means 10,000
	// and a million.
	Live, Sleeping int
	// Divide divides all work, for tests. 0 means 1.
	Divide int
}

// workflowBench has the common state of the suite's probes.
type workflowBench struct{ o WorkflowOptions }

// flowEngine is an engine of workflows.
type flowEngine struct {
	name   string
	stores []flowStore
	// slow is the factor by which the engine's work is reduced.
	slow int
}

var flowEngines = []flowEngine{
	{name: Cay, stores: []flowStore{flowSQLite, flowFull, flowPostgres, flowServed}, slow: 1},
	{name: "dbos", stores: []flowStore{flowSQLite, flowFull, flowPostgres}, slow: 1},
	{name: "go-workflows", stores: []flowStore{flowSQLite, flowFull}, slow: 20},
}

// NewWorkflowSuite returns the suite of durable workflows: engines, each in its own
// process, execute steps that do nothing.
func NewWorkflowSuite(o WorkflowOptions) *Suite {
	for n, byDefault := range map[*int]int{&o.Live: 10_000, &o.Sleeping: 1_000_000, &o.Divide: 1} {
		if *n == 0 {
			*n = byDefault
		}
	}
	w := &workflowBench{o}
	return &Suite{
		Name: "workflow",
		Probes: []Probe{
			w.throughput("steps_sequential", flowSQLite, 1, 5000, 10_000),
			w.throughput("steps_20", flowSQLite, 20, 500, 0),
			w.throughput("steps_100", flowSQLite, 100, 200, 60_000),
			w.throughput("steps_1000", flowSQLite, 1000, 50, 0),
			w.throughput("full_sequential", flowFull, 1, 2000, 0),
			w.throughput("full_100", flowFull, 100, 200, 20_000),
			w.throughput("postgres_sequential", flowPostgres, 1, 2000, 2000),
			w.throughput("postgres_100", flowPostgres, 100, 200, 30_000),
			w.throughput("served_sequential", flowServed, 1, 2000, 0),
			w.throughput("served_100", flowServed, 100, 200, 0),
			w.parallel("parallel_10000", flowSQLite, 10_000),
			w.latency("one_step", "one_step", flowSQLite, 0.3),
			w.latency("one_step_full", "one_step", flowFull, 0),
			w.latency("one_step_postgres", "one_step", flowPostgres, 0),
			w.latency("hook", "resume", flowSQLite, 1),
			w.latency("hook_postgres", "resume", flowPostgres, 0),
			w.recovery("recovery", flowSQLite, 2),
			w.recovery("recovery_postgres", flowPostgres, 0),
			w.asleep("sleeping_10000", 10_000, 0, Cay, "dbos"),
			w.asleep("sleeping", o.Sleeping, 1<<30/1e6, Cay),
		},
		Close: func() error { return nil },
	}
}

// subjects returns the engines that support a store; if only is not empty, only the
// engines with these names.
func (w *workflowBench) subjects(store flowStore, open func(context.Context, flowEngine) (*Session, error), only ...string) []Subject {
	var all []Subject
	for _, e := range flowEngines {
		if !slices.Contains(e.stores, store) || len(only) > 0 && !slices.Contains(only, e.name) {
			continue
		}
		s := Subject{Name: e.name, Open: func(ctx context.Context, _ int) (*Session, error) { return open(ctx, e) }}
		if e.name != Cay && w.o.Opponents == "" {
			if w.o.NoOpponents == "" {
				continue
			}
			s.Skip = w.o.NoOpponents
		}
		all = append(all, s)
	}
	return all
}

// start starts an engine over a place.
func (w *workflowBench) start(ctx context.Context, e flowEngine, p *flowPlace) (*flowPeer, error) {
	argv := w.o.Program
	if e.name != Cay {
		argv = []string{w.o.Opponents, e.name}
	}
	return startFlowPeer(ctx, slices.Concat(argv, p.flags()), p.env(), w.o.Stderr)
}

// open starts an engine over a fresh place, for all samples of a row.
func (w *workflowBench) open(ctx context.Context, e flowEngine, store flowStore) (_ *flowPeer, closeAll func() error, err error) {
	p, err := newFlowPlace(ctx, w.o.WorkDir, store, w.o.Daemon)
	if err != nil {
		return nil, nil, err
	}
	peer, err := w.start(ctx, e, p)
	if err != nil {
		return nil, nil, errors.Join(err, p.remove())
	}
	return peer, func() error { return errors.Join(peer.stop(), p.remove()) }, nil
}

// scaled returns the engine's share of n.
func (w *workflowBench) scaled(e flowEngine, n int) int { return max(n/e.slow/w.o.Divide, 1) }

// throughput measures how many steps a second are executed by runs that start
// together.
func (w *workflowBench) throughput(row string, store flowStore, runs, steps int, budget float64) Probe {
	return Probe{
		Rows: []Row{{row, "steps/s", budget}}, N: 5, Warmup: 1,
		Subjects: w.subjects(store, func(ctx context.Context, e flowEngine) (*Session, error) {
			peer, closeAll, err := w.open(ctx, e, store)
			if err != nil {
				return nil, err
			}
			r := flowRequest{Do: "run", Runs: runs, Steps: w.scaled(e, steps)}
			return &Session{
				Sample: func(ctx context.Context) ([]float64, error) {
					ms, err := peer.do(ctx, r)
					if err != nil {
						return nil, err
					}
					return []float64{float64(r.Runs*r.Steps) / ms[0] * 1000}, nil
				},
				Close: func(context.Context) error { return closeAll() },
			}, nil
		}),
	}
}

// parallel measures how many steps a second one run executes that starts all at
// once.
func (w *workflowBench) parallel(row string, store flowStore, steps int) Probe {
	return Probe{
		Rows: []Row{{row, "steps/s", 0}}, N: 3, Warmup: 1,
		Subjects: w.subjects(store, func(ctx context.Context, e flowEngine) (*Session, error) {
			peer, closeAll, err := w.open(ctx, e, store)
			if err != nil {
				return nil, err
			}
			r := flowRequest{Do: "parallel", Steps: w.scaled(e, steps)}
			return &Session{
				Sample: func(ctx context.Context) ([]float64, error) {
					ms, err := peer.do(ctx, r)
					if err != nil {
						return nil, err
					}
					return []float64{float64(r.Steps) / ms[0] * 1000}, nil
				},
				Close: func(context.Context) error { return closeAll() },
			}, nil
		}),
	}
}

// latency measures the median of a duration, and its 99th percentile.
func (w *workflowBench) latency(row, do string, store flowStore, budget float64) Probe {
	return Probe{
		Rows: []Row{{row, "ms", budget}, {row + ".p99", "ms", 0}}, N: 5, Warmup: 1,
		Subjects: w.subjects(store, func(ctx context.Context, e flowEngine) (*Session, error) {
			peer, closeAll, err := w.open(ctx, e, store)
			if err != nil {
				return nil, err
			}
			runs := 200
			if e.name != Cay && do == "resume" {
				runs = 10 // some look for messages once a second
			}
			return &Session{
				Sample: func(ctx context.Context) ([]float64, error) {
					ms, err := peer.do(ctx, flowRequest{Do: do, Runs: max(runs/w.o.Divide, 1)})
					if err != nil {
						return nil, err
					}
					slices.Sort(ms)
					return []float64{ms[len(ms)/2], ms[len(ms)*99/100]}, nil
				},
				Close: func(context.Context) error { return closeAll() },
			}, nil
		}),
	}
}

// recovery measures the time from the start of a program until all runs that were in
// a step when the program before was killed are in that step again.
func (w *workflowBench) recovery(row string, store flowStore, budget float64) Probe {
	return Probe{
		Rows: []Row{{row, "s", budget}}, N: 3,
		Subjects: w.subjects(store, func(ctx context.Context, e flowEngine) (*Session, error) {
			return &Session{Sample: func(ctx context.Context) ([]float64, error) {
				s, err := w.recover(ctx, e, store)
				return []float64{s}, err
			}}, nil
		}, Cay, "dbos"),
	}
}

func (w *workflowBench) recover(ctx context.Context, e flowEngine, store flowStore) (seconds float64, err error) {
	p, err := newFlowPlace(ctx, w.o.WorkDir, store, w.o.Daemon)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, p.remove()) }()
	peer, err := w.start(ctx, e, p)
	if err != nil {
		return 0, err
	}
	_, err = peer.do(ctx, flowRequest{Do: "live", Runs: w.o.Live})
	if err := errors.Join(err, peer.kill()); err != nil {
		return 0, err
	}
	if peer, err = w.start(ctx, e, p); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, peer.kill()) }() // its steps do not end
	ms, err := peer.do(ctx, flowRequest{Do: "recovered", Runs: w.o.Live})
	if err != nil {
		return 0, err
	}
	return ms[0] / 1000, nil
}

// asleep measures the memory of a process whose runs all sleep, and the time to get
// there.
func (w *workflowBench) asleep(row string, runs int, budget float64, only ...string) Probe {
	return Probe{
		Rows: []Row{{row, "MB", budget}, {row + ".start", "s", 0}, {row + ".disk", "MB", 0}}, N: 1,
		Subjects: w.subjects(flowSQLite, func(ctx context.Context, e flowEngine) (*Session, error) {
			return &Session{Sample: func(ctx context.Context) (_ []float64, err error) {
				p, err := newFlowPlace(ctx, w.o.WorkDir, flowSQLite, nil)
				if err != nil {
					return nil, err
				}
				defer func() { err = errors.Join(err, p.remove()) }()
				peer, err := w.start(ctx, e, p)
				if err != nil {
					return nil, err
				}
				defer func() { err = errors.Join(err, peer.kill()) }()
				ms, err := peer.do(ctx, flowRequest{Do: "sleep", Runs: max(runs/w.o.Divide, 1)})
				if err != nil {
					return nil, err
				}
				if _, err := peer.do(ctx, flowRequest{Do: "settle"}); err != nil {
					return nil, err
				}
				m, err := pssOf(peer.cmd.Process.Pid)
				if err != nil {
					return nil, err
				}
				disk, err := treeSize(p.dir)
				if err != nil {
					return nil, err
				}
				return []float64{(m.pss - m.file) / 1e6, ms[0] / 1000, disk / 1e6}, nil
			}}, nil
		}, only...),
	}
}

// treeSize returns the bytes in the files of a directory.
func treeSize(dir string) (float64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, fmt.Errorf("measure files: %w", err)
	}
	var sum float64
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return 0, fmt.Errorf("measure files: %w", err)
		}
		sum += float64(info.Size())
	}
	return sum, nil
}

// FindOpponents returns the program of other engines of workflows, which is beside
// ours, or the reason why it cannot be run.
func FindOpponents(path string) (program, missing string) {
	found, err := exec.LookPath(path)
	if err != nil {
		return "", "not built (make opponents)"
	}
	return found, ""
}
