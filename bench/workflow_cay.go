package bench

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/workflow"
	"github.com/cayhq/cay/workflow/postgres"
	"github.com/cayhq/cay/workflow/sqlite"
)

// ServeWorkflows is a process that the suite of workflows measures: a program as
// our users write it, with a client, a worker, and a few definitions. It opens
// the database or daemon that args name, and then carries out the requests on
// stdin until stdin ends.
func ServeWorkflows(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) (err error) {
	begun := time.Now()
	var store, at, profile string
	var full bool
	fl := flag.NewFlagSet("workflows", flag.ContinueOnError)
	fl.SetOutput(io.Discard)
	fl.StringVar(&store, "store", string(flowSQLite), "sqlite, postgres or served")
	fl.StringVar(&at, "at", "", "file, DSN, or URL of a daemon whose token is in CAY_TOKEN")
	fl.BoolVar(&full, "full", false, "SQLite with synchronous=FULL")
	fl.StringVar(&profile, "cpuprofile", "", "file for a CPU profile")
	if err := fl.Parse(args); err != nil {
		return cay.Errorf(cay.Invalid, "%w", err)
	}
	if profile != "" {
		stop, err := profileTo(profile)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	client, err := openFlows(ctx, flowStore(store), at, full)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	e, err := startFlows(ctx, client)
	if err != nil {
		return err
	}
	defer e.worker.Stop()
	out := json.NewEncoder(stdout)
	if err := out.Encode(flowAnswer{Ready: true, Version: cay.Version()}); err != nil {
		return err
	}
	for in := json.NewDecoder(stdin); ; {
		var r flowRequest
		if err := in.Decode(&r); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read request: %w", err)
		}
		var a flowAnswer
		if a.MS, err = e.do(ctx, r, begun); err != nil {
			a.Error = err.Error()
		}
		if err := out.Encode(a); err != nil {
			return err
		}
	}
}

// profileTo writes a CPU profile until stop is called.
func profileTo(path string) (stop func() error, err error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "profile cannot be written: %w", err)
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(fmt.Errorf("start profile: %w", err), f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return f.Close()
	}, nil
}

func openFlows(ctx context.Context, store flowStore, at string, full bool) (*workflow.Client, error) {
	switch store {
	case flowSQLite:
		return sqlite.Open(ctx, at, sqlite.Options{Full: full})
	case flowPostgres:
		return postgres.Open(ctx, at, postgres.Options{})
	case flowServed:
		return workflow.Connect(workflow.RemoteOptions{URL: at})
	}
	return nil, cay.Errorf(cay.Invalid, "unknown store %q", store)
}

// flows is cay's engine in a user's program.
type flows struct {
	client *workflow.Client
	worker *workflow.Worker

	steps, together, sleeper, blocker *workflow.Definition[int, int]
	receiver                          *workflow.Definition[string, int]
	resumed                           chan time.Time
	asleep, blocked                   arrivals
}

// idleAfter is when the worker forgets runs that only wait. A short time makes
// the suite measure sleeping runs in the state in which they spend most of their
// time.
const idleAfter = 2 * time.Second

func startFlows(ctx context.Context, c *workflow.Client) (*flows, error) {
	e := &flows{client: c, resumed: make(chan time.Time, 1), asleep: newArrivals(), blocked: newArrivals()}
	noop := workflow.Step("noop", func(context.Context, int) (int, error) { return 1, nil })
	arrive := workflow.Step("arrive", func(context.Context, int) (int, error) { e.asleep.arrive(); return 1, nil })
	block := workflow.Step("block", func(ctx context.Context, _ int) (int, error) {
		e.blocked.arrive()
		<-ctx.Done()
		return 0, ctx.Err()
	})
	sequence := func(ctx workflow.Context, n int) (int, error) {
		sum := 0
		for i := range n {
			v, err := noop.Run(ctx, i)
			if err != nil {
				return 0, err
			}
			sum += v
		}
		return sum, nil
	}
	e.steps = workflow.Define("steps", sequence)
	e.together = workflow.Define("together", func(ctx workflow.Context, n int) (int, error) {
		futures := make([]*workflow.Future[int], n)
		for i := range futures {
			futures[i] = noop.Go(ctx, i)
		}
		all, err := workflow.All(ctx, futures...)
		return len(all), err
	})
	e.receiver = workflow.Define("receiver", func(ctx workflow.Context, token string) (int, error) {
		h, err := workflow.NewHook[int](ctx, token)
		if err != nil {
			return 0, err
		}
		v, err := h.Receive(ctx)
		e.resumed <- time.Now()
		return v, err
	})
	e.blocker = workflow.Define("blocker", func(ctx workflow.Context, _ int) (int, error) {
		if _, err := sequence(ctx, 3); err != nil {
			return 0, err
		}
		return block.Run(ctx, 0)
	})
	e.sleeper = workflow.Define("sleeper", func(ctx workflow.Context, _ int) (int, error) {
		if _, err := arrive.Run(ctx, 0); err != nil {
			return 0, err
		}
		return 0, workflow.Sleep(ctx, 24*time.Hour)
	})
	e.worker = workflow.NewWorker(c, workflow.WorkerConfig{
		Definitions: workflow.Definitions(e.steps, e.together, e.receiver, e.blocker, e.sleeper),
		MaxSteps:    20_000, // as many as there are live runs in steps that do not end
		MaxRuns:     20_000,
		IdleTimeout: idleAfter,
		Logger:      slog.New(slog.DiscardHandler),
	})
	return e, e.worker.Start(ctx)
}

func (e *flows) do(ctx context.Context, r flowRequest, begun time.Time) ([]float64, error) {
	since := time.Now()
	switch r.Do {
	case "run":
		return flowTook(since, e.run(ctx, r.Runs, r.Steps))
	case "parallel":
		run, err := e.together.Start(ctx, e.client, r.Steps)
		if err == nil {
			_, err = run.Result(ctx)
		}
		return flowTook(since, err)
	case "one_step":
		return flowEach(r.Runs, func() (time.Duration, error) {
			since := time.Now()
			err := e.run(ctx, 1, 1)
			return time.Since(since), err
		})
	case "resume":
		return flowEach(r.Runs, func() (time.Duration, error) { return e.resume(ctx) })
	case "live":
		return flowTook(since, e.start(ctx, e.blocker, r.Runs, e.blocked))
	case "recovered":
		return flowTook(begun, e.blocked.await(ctx, r.Runs))
	case "sleep":
		return flowTook(since, e.start(ctx, e.sleeper, r.Runs, e.asleep))
	case "settle":
		return nil, settle(ctx)
	}
	return nil, cay.Errorf(cay.Invalid, "unknown request %q", r.Do)
}

func flowTook(since time.Time, err error) ([]float64, error) {
	if err != nil {
		return nil, err
	}
	return []float64{ms(time.Since(since))}, nil
}

func flowEach(n int, f func() (time.Duration, error)) ([]float64, error) {
	all := make([]float64, 0, n)
	for range n {
		d, err := f()
		if err != nil {
			return nil, err
		}
		all = append(all, ms(d))
	}
	return all, nil
}

// run starts runs one after the other, as other programs do, and waits for all.
func (e *flows) run(ctx context.Context, runs, steps int) error {
	started := make([]*workflow.Run[int], runs)
	for i := range started {
		r, err := e.steps.Start(ctx, e.client, steps)
		if err != nil {
			return err
		}
		started[i] = r
	}
	for _, r := range started {
		if n, err := r.Result(ctx); err != nil {
			return err
		} else if n != steps {
			return fmt.Errorf("a run of %d steps did %d", steps, n)
		}
	}
	return nil
}

// starters bounds the concurrent starts when there are very many runs.
const starters = 64

// start starts runs and waits until each has arrived.
func (e *flows) start(ctx context.Context, d *workflow.Definition[int, int], runs int, at arrivals) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ahead := make(chan struct{}, mostAhead)
	var all sync.WaitGroup
	defer all.Wait()
	for i := range starters {
		all.Go(func() {
			for range (runs + starters - 1 - i) / starters {
				select {
				case ahead <- struct{}{}:
				case <-ctx.Done():
					return
				}
				if _, err := d.Start(ctx, e.client, 0); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	for range runs {
		if err := at.await(ctx, 1); err != nil {
			return context.Cause(ctx)
		}
		<-ahead
	}
	return nil
}

// mostAhead bounds the runs that have been started and are not waiting yet: an
// engine refuses to have too many of them in memory.
const mostAhead = 50_000

// resume returns the time from a call of a hook until the code of a run that
// waits for the hook continues.
func (e *flows) resume(ctx context.Context) (time.Duration, error) {
	token := "go-" + rand.Text()
	run, err := e.receiver.Start(ctx, e.client, token)
	if err != nil {
		return 0, err
	}
	for ev, err := range e.client.Follow(ctx, run.ID, 1) {
		if err != nil {
			return 0, err
		}
		if ev.Token == token {
			break // it waits
		}
	}
	since := time.Now()
	if err := workflow.ResumeHook(ctx, e.client, token, 1); err != nil {
		return 0, err
	}
	took := (<-e.resumed).Sub(since)
	_, err = run.Result(ctx)
	return took, err
}

// settle waits until runs that only wait have been forgotten, and frees their
// memory.
func settle(ctx context.Context) error {
	for before := ^uint64(0); ; {
		select {
		case <-time.After(idleAfter):
		case <-ctx.Done():
			return ctx.Err()
		}
		debug.FreeOSMemory()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		if m.HeapInuse >= before/100*99 {
			return nil
		}
		before = m.HeapInuse
	}
}

// arrivals counts events inside runs.
type arrivals struct{ c chan struct{} }

func newArrivals() arrivals { return arrivals{make(chan struct{}, 1<<20)} }

func (a arrivals) arrive() { a.c <- struct{}{} }

func (a arrivals) await(ctx context.Context, n int) error {
	for range n {
		select {
		case <-a.c:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
