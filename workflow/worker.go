package workflow

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay"
)

// Worker executes runs: the code of workflows, and their steps. Any number of workers may
// share a Backend; at any time at most one worker executes a run.
//
// For a run that the worker has, the code waits in memory, and its events are not read
// again. The run is replayed from its log only after the worker dropped it because it was
// idle, or after another worker had it.
type Worker struct {
	client *Client
	config WorkerConfig
	defs   map[string]*definition
	log    *slog.Logger
	steps  *stepQueue
	strays *strays
	late   atomic.Int64 // see LateResults

	// Start sets the fields below.
	base     context.Context // parent of all the worker's contexts
	end      context.CancelCauseFunc
	stopping context.Context // ends when the worker has to stop
	stop     context.CancelFunc
	stopped  chan struct{} // closed when the worker has stopped

	mu    sync.Mutex // guards state
	state workerState
}

type workerState int

const (
	workerNew workerState = iota
	workerStarted
	workerStopped
)

// WorkerConfig configures a Worker. Only Definitions is required.
type WorkerConfig struct {
	// Definitions are the workflows that the worker executes: see Definitions.
	Definitions []Workflow
	// Build names the version of the program. With a Build, runs that begin on this
	// worker stay with workers of this build, or with workers that Accept it: for
	// programs whose old versions keep running beside new ones until their runs have
	// ended. Empty means that any worker may go on with a run, so the code of all workers
	// must fit: see Version.
	Build string
	// Accept are older builds whose runs this worker accepts.
	Accept []string
	// Name tells people which worker has a run. Empty means program, host and process id.
	Name string
	// MaxRuns bounds the runs that the worker has at a time. Further runs wait. 0 means
	// 10000.
	MaxRuns int
	// MaxSteps bounds the steps that are executed at a time. Further steps wait, and the
	// runs take turns. 0 means 1000.
	MaxSteps int
	// IdleTimeout is how long a run may wait only for timers, hooks and children before
	// the worker drops it. The run is replayed when an event arrives. 0 means one minute.
	IdleTimeout time.Duration
	// StopTimeout is how long Stop waits for steps before it cancels their contexts, and
	// again how long it waits after that. 0 means 10 s.
	StopTimeout time.Duration
	// Divergence is the policy for runs whose log does not fit their code.
	Divergence DivergencePolicy
	// VerifyReplay replays each run from its log before the run ends, and fails it with
	// REPLAY_DIVERGENCE if its code does not do the same again. It is for tests: it finds
	// code that is not deterministic, and costs the memory of all logs.
	VerifyReplay bool
	// Logger logs the worker's messages and those of Context.Logger. Nil means no logs.
	Logger *slog.Logger
	// Observer receives reports of the worker's actions. Nil means none.
	Observer Observer
}

// DivergencePolicy decides about a run whose log does not fit the code of its worker: see
// DivergenceError. With either policy the divergence is logged, nothing of the run is
// executed, and before the policy applies the run is released and tried again a few
// times.
type DivergencePolicy int

const (
	// DivergenceBlocks keeps the run unchanged, so that it goes on when code that fits is
	// deployed: a bad release loses nothing. The attribute "$diverged" has the error. It
	// is the default.
	DivergenceBlocks DivergencePolicy = iota
	// DivergenceFails makes the run fail with REPLAY_DIVERGENCE.
	DivergenceFails
)

const (
	defaultMaxRuns     = 10000
	defaultMaxSteps    = 1000
	defaultIdleTimeout = time.Minute
	defaultStopTimeout = 10 * time.Second
)

// Why contexts of steps end, besides the step's own timeout and its workflow.
var (
	errStopping  = cay.Errorf(cay.Unavailable, "the worker stops")
	errLeaseLost = cay.Errorf(cay.Conflict, "the run was taken from the worker")
)

// NewWorker returns a Worker that is not started. It panics if two definitions have the
// same name, or if there are none.
func NewWorker(c *Client, config WorkerConfig) *Worker {
	if c == nil || len(config.Definitions) == 0 {
		panic("workflow: NewWorker needs a client and definitions")
	}
	w := &Worker{client: c, config: config, defs: map[string]*definition{}}
	for _, d := range Definitions(config.Definitions...) {
		w.defs[d.Name()] = d.definition()
	}
	conf := &w.config
	setDefault(&conf.MaxRuns, defaultMaxRuns)
	setDefault(&conf.MaxSteps, defaultMaxSteps)
	setDefault(&conf.IdleTimeout, defaultIdleTimeout)
	setDefault(&conf.StopTimeout, defaultStopTimeout)
	if conf.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "localhost"
		}
		conf.Name = fmt.Sprintf("%s@%s/%d", filepath.Base(os.Args[0]), host, os.Getpid())
	}
	if conf.Logger == nil {
		conf.Logger = slog.New(slog.DiscardHandler)
	}
	if conf.Observer == nil {
		conf.Observer = NoObserver{}
	}
	w.log = conf.Logger.With("component", "workflow")
	w.steps = newStepQueue(conf.MaxSteps)
	w.strays = newStrays()
	return w
}

func setDefault[T int | time.Duration](v *T, def T) {
	if *v <= 0 {
		*v = def
	}
}

// Start connects the worker to its Backend, and returns when the worker can get runs. The
// end of ctx stops the worker as Stop does; contexts of steps inherit the values of ctx.
// A worker whose connection breaks reconnects by itself. Errors: the errors of
// Backend.Attach; conflict if the worker has been started before.
func (w *Worker) Start(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state != workerNew {
		return cay.Errorf(cay.Conflict, "the worker has been started before")
	}
	base, end := context.WithCancelCause(context.WithoutCancel(ctx))
	a, err := w.attach(ctx, base, nil)
	if err != nil {
		end(err)
		return err
	}
	w.state, w.base, w.end, w.stopped = workerStarted, base, end, make(chan struct{})
	w.stopping, w.stop = context.WithCancel(ctx)
	go w.keepAttached(a)
	return nil
}

// LateResults counts the results of steps that came after their Timeout or Heartbeat had
// ended the attempt. They are not recorded. A high count means that a timeout is too
// short, or that a step ignores its context.
func (w *Worker) LateResults() int64 { return w.late.Load() }

// Stop stops the worker, and returns when it has stopped: it accepts no more runs, steps
// get StopTimeout to end, and all runs are released, to go on elsewhere or later. The
// results of steps that end in time are recorded; the other steps are executed again.
// Stopping twice, or before the start, is fine.
func (w *Worker) Stop() {
	w.mu.Lock()
	started := w.stopped != nil
	w.state = workerStopped
	w.mu.Unlock()
	if started {
		w.stop()
		<-w.stopped
	}
}

func (w *Worker) info() WorkerInfo {
	info := WorkerInfo{Name: w.config.Name, Build: w.config.Build, Accept: w.config.Accept, MaxRuns: w.config.MaxRuns}
	for _, d := range w.config.Definitions {
		info.Definitions = append(info.Definitions, d.definition().info)
	}
	return info
}

// attach connects once. ctx bounds the call, base is the parent of the attachment's
// contexts; held are the runs of the lost session.
func (w *Worker) attach(ctx, base context.Context, held []string) (*attachment, error) {
	// The session outlives the contexts of steps, because their results have to be
	// recorded.
	life, end := context.WithCancelCause(context.WithoutCancel(base))
	undo := context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })
	a := newAttachment(w, base)
	info := w.info()
	info.HeldRuns = held
	session, err := w.client.backend.Attach(life, info, a)
	undo() // from here on, only the attachment ends life
	a.begin(session, end)
	if err != nil {
		a.close(err) // runs may have been assigned before the error
		return nil, err
	}
	return a, nil
}

const (
	reattachFirst = 100 * time.Millisecond
	reattachMax   = 15 * time.Second
)

// keepAttached keeps the worker connected until it stops.
func (w *Worker) keepAttached(a *attachment) {
	defer close(w.stopped)
	defer func() {
		w.steps.close()
		w.end(errStopping)
		if !waitFor(&w.steps.pool.all, w.config.StopTimeout) {
			w.log.Warn("worker stops although steps go on that do not heed their context")
		}
	}()
	for {
		select {
		case <-w.stopping.Done():
			a.drain()
			return
		case <-a.session.Lost():
		}
		held := a.abandon()
		w.log.Warn("connection of the worker lost")
		if a = w.reattach(held); a == nil {
			return
		}
		w.log.Info("worker connected again")
	}
}

// reattach tries to connect until it succeeds; it returns nil when the worker has to
// stop.
func (w *Worker) reattach(held []string) *attachment {
	for wait := reattachFirst; ; wait = min(wait*2, reattachMax) {
		a, err := w.attach(w.stopping, w.base, held)
		if err == nil {
			return a
		}
		if w.stopping.Err() != nil {
			return nil
		}
		wait := jitter(wait, 0.2)
		w.log.Warn("worker cannot connect", "error", err, "again_in", wait)
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-w.stopping.Done():
			timer.Stop()
			return nil
		}
	}
}
