// Command opponents runs other durable workflow engines for Go under the suite
// "workflow" of cay-bench. The command is in a separate module, so that cay does
// not depend on the other engines.
//
//	opponents dbos|go-workflows -store sqlite|postgres -at PATH|DSN [-full]
//
// It opens the engine, answers {"ready":true,"version":"..."} on its standard
// output, then reads a request a line and answers each with one line, until its
// standard input ends. The requests are those of bench/workflow_peer.go.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"sync"
	"time"
)

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "opponents:", err)
		os.Exit(1)
	}
}

// engine is one opponent, opened. Steps do nothing and return an int.
type engine interface {
	// run starts runs of steps steps each, all at once, and waits for all.
	run(ctx context.Context, runs, steps int) error
	// parallel waits for one run that starts steps steps at once.
	parallel(ctx context.Context, steps int) error
	// resume starts a run that waits for a message, sends the message, and returns
	// the time until the run's code continues.
	resume(ctx context.Context) (time.Duration, error)
	// live starts runs of three steps whose fourth step does not end, and waits
	// until all are in the fourth step. recovered waits for as many runs to be in
	// it again after a restart.
	live(ctx context.Context, runs int) error
	recovered(ctx context.Context, runs int) error
	// sleep starts runs that sleep for a day, and waits until all do.
	sleep(ctx context.Context, runs int) error
	close() error
}

// place is where an engine keeps its runs.
type place struct {
	store string // sqlite or postgres
	at    string // a file or a DSN
	full  bool   // SQLite's synchronous=FULL and not NORMAL
}

var errNotSupported = errors.New("not supported")

func open(ctx context.Context, name string, p place) (engine, error) {
	switch name {
	case "dbos":
		return openDBOS(ctx, p)
	case "go-workflows":
		return openGoWorkflows(ctx, p)
	}
	return nil, fmt.Errorf("there is no opponent %q", name)
}

var modules = map[string]string{
	"dbos":         "github.com/dbos-inc/dbos-transact-golang",
	"go-workflows": "github.com/cschleiden/go-workflows",
}

// version returns the version of module that this program was built with.
func version(module string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, d := range info.Deps {
		if d.Path == module {
			return d.Version
		}
	}
	return ""
}

type request struct {
	Do    string `json:"do"`
	Runs  int    `json:"runs"`
	Steps int    `json:"steps"`
}

type answer struct {
	Ready   bool      `json:"ready,omitempty"`
	Version string    `json:"version,omitempty"`
	MS      []float64 `json:"ms,omitempty"`
	Error   string    `json:"error,omitempty"`
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) (err error) {
	begun := time.Now()
	if len(args) == 0 {
		return errors.New("which opponent?")
	}
	var p place
	fl := flag.NewFlagSet(args[0], flag.ContinueOnError)
	fl.StringVar(&p.store, "store", "sqlite", "sqlite or postgres")
	fl.StringVar(&p.at, "at", "", "file or DSN")
	fl.BoolVar(&p.full, "full", false, "SQLite with synchronous=FULL")
	if err := fl.Parse(args[1:]); err != nil {
		return err
	}
	e, err := open(ctx, args[0], p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	out := json.NewEncoder(stdout)
	if err := out.Encode(answer{Ready: true, Version: version(modules[args[0]])}); err != nil {
		return err
	}
	for in := json.NewDecoder(stdin); ; {
		var r request
		if err := in.Decode(&r); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read request: %w", err)
		}
		var a answer
		if a.MS, err = do(ctx, e, r, begun); err != nil {
			a.Error = err.Error()
		}
		if err := out.Encode(a); err != nil {
			return err
		}
	}
}

// do carries out a request, and returns its durations in milliseconds.
func do(ctx context.Context, e engine, r request, begun time.Time) ([]float64, error) {
	since := time.Now()
	switch r.Do {
	case "run":
		return took(since, e.run(ctx, r.Runs, r.Steps))
	case "parallel":
		return took(since, e.parallel(ctx, r.Steps))
	case "one_step": // one after the other
		return each(r.Runs, func() (time.Duration, error) {
			since := time.Now()
			err := e.run(ctx, 1, 1)
			return time.Since(since), err
		})
	case "resume":
		return each(r.Runs, func() (time.Duration, error) { return e.resume(ctx) })
	case "live":
		return took(since, e.live(ctx, r.Runs))
	case "recovered": // since this program began
		return took(begun, e.recovered(ctx, r.Runs))
	case "sleep":
		return took(since, e.sleep(ctx, r.Runs))
	case "settle": // free memory that can be freed
		debug.FreeOSMemory()
		return nil, nil
	}
	return nil, fmt.Errorf("unknown request %q", r.Do)
}

func took(since time.Time, err error) ([]float64, error) {
	if err != nil {
		return nil, err
	}
	return []float64{ms(time.Since(since))}, nil
}

func each(n int, f func() (time.Duration, error)) ([]float64, error) {
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

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// starters bounds the concurrent starts when there are very many runs.
const starters = 64

// start starts runs and waits until each has arrived.
func start(ctx context.Context, runs int, one func() error, at *arrivals) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	defer all.Wait()
	for i := range starters {
		all.Go(func() {
			for range (runs + starters - 1 - i) / starters {
				if err := one(); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	if err := at.await(ctx, runs); err != nil {
		return context.Cause(ctx)
	}
	return nil
}

// arrivals counts events inside runs.
type arrivals struct{ c chan struct{} }

func newArrivals() *arrivals { return &arrivals{make(chan struct{}, 1<<20)} }

func (a *arrivals) arrive() { a.c <- struct{}{} }

func (a *arrivals) await(ctx context.Context, n int) error {
	for range n {
		select {
		case <-a.c:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
