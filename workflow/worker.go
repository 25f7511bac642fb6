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

// Worker executes runs: the code of workflows, and their steps. Any number of
// them may share a Backend; a run is executed by one at a time.
//
// A run that the worker has is its code, waiting at some place, and its events are
// not read again. It is replayed from its log only after it was dropped, for having
// been idle, or because another worker had it.
type Worker struct {
	client *Client
	config WorkerConfig
	defs   map[string]*definition
	log    *slog.Logger
	steps  *stepQueue
	strays *strays
	late   atomic.Int64 // see LateResults

	// What follows is set by Start.
	base     context.Context // of all that the worker does
	end      context.CancelCauseFunc
	stopping context.Context // ends when the worker is to stop
	stop     context.CancelFunc
	stopped  chan struct{} // closed when it has

	mu    sync.Mutex // guards state
	state workerState
}

type workerState int

const (
	workerNew workerState = iota
	workerStarted
	workerStopped
)

// WorkerConfig is what a Worker executes, and how much at one time. Only
// Definitions is needed.
type WorkerConfig struct {
	// Definitions are the workflows it executes: see Definitions.
	Definitions []Workflow
	// Build names the version of the program. With it, runs that begin on this worker
	// stay with workers of this build, or that Accept it: for programs whose old
	// versions go on running beside new ones until their runs have ended. Empty means
	// that any worker goes on with a run, and that its code must fit: see Version.
	Build string
	// Accept are older builds whose runs this worker takes over.
	Accept []string
	// Name is for people who look which worker has a run. Empty means program, host
	// and process id.
	Name string
	// MaxRuns bounds the runs the worker has at one time. Further ones wait. 0 means
	// 10000.
	MaxRuns int
	// MaxSteps bounds the steps that are executed at one time. Further ones wait, the
	// runs taking turns. 0 means 1000.
	MaxSteps int
	// IdleTimeout is how long a run may wait for nothing but timers, hooks and
	// children before the worker drops it. It is replayed when something happens. 0
	// means one minute.
	IdleTimeout time.Duration
	// StopTimeout is how long Stop lets steps go on before it cancels their contexts,
	// and then again how long it waits for those that do not care. 0 means 10 s.
	StopTimeout time.Duration
	// Divergence says what becomes of runs whose log does not fit their code.
	Divergence DivergencePolicy
	// VerifyReplay replays each run from its log before it ends, and fails it with
	// REPLAY_DIVERGENCE if its code does not do the same again. It is for tests: it
	// finds code that is not deterministic, and costs the memory of all logs.
	VerifyReplay bool
	// Logger gets the worker's log, and what Context.Logger writes. Nil means
	// that nothing is logged.
	Logger *slog.Logger
	// Observer is told what the worker does. Nil means nobody is.
	Observer Observer
}

// DivergencePolicy says what becomes of a run whose log does not fit the code of
// its worker: see DivergenceError. Either way it is logged, nothing of the run is
// executed, and it is given back and tried again some times before that.
type DivergencePolicy int

const (
	// DivergenceBlocks keeps the run as it is, so that it goes on when code that fits
	// is back: nothing is lost by a bad release. The attribute "$diverged" says what
	// is wrong. It is the default.
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

// Why contexts of steps end, besides the step's own time and its workflow.
var (
	errStopping  = cay.Errorf(cay.Unavailable, "the worker stops")
	errLeaseLost = cay.Errorf(cay.Conflict, "the run was taken from the worker")
)

// NewWorker returns a Worker that is not started. It panics if two of the
// definitions have one name, or there are none.
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

// Start connects the worker to its Backend, and returns when it may be given runs.
// The end of ctx stops the worker as Stop does; steps get their values from it. A
// worker whose connection breaks connects again by itself. Errors: those of
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

// LateResults counts the results of steps that came after their Timeout or Heartbeat
// had ended the attempt. They are not recorded. Many say that a time is too short, or
// that a step does not heed its context.
func (w *Worker) LateResults() int64 { return w.late.Load() }

// Stop ends the worker, and returns when it has ended: it takes no more runs,
// steps get StopTimeout to end, and all runs are given back, to go on elsewhere or
// later. A step that ends by then is recorded; others are executed anew. Stopping
// twice, or before the start, is fine.
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

// attach connects once. ctx bounds the call, base what follows; survived are the runs
// of the session that was lost.
func (w *Worker) attach(ctx, base context.Context, survived []string) (*attachment, error) {
	// The session outlives the contexts of steps: what they did is recorded.
	life, end := context.WithCancelCause(context.WithoutCancel(base))
	undo := context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })
	a := newAttachment(w, base)
	info := w.info()
	info.Survived = survived
	session, err := w.client.backend.Attach(life, info, a)
	undo() // from here on, only the attachment ends it
	a.begin(session, end)
	if err != nil {
		a.close(err) // runs may have been assigned before it failed
		return nil, err
	}
	return a, nil
}

const (
	reattachFirst = 100 * time.Millisecond
	reattachMax   = 15 * time.Second
)

// keepAttached has the worker connected until it stops.
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
		survived := a.abandon()
		w.log.Warn("connection of the worker lost")
		if a = w.reattach(survived); a == nil {
			return
		}
		w.log.Info("worker connected again")
	}
}

// reattach connects until it succeeds, or returns nil when the worker is to stop.
func (w *Worker) reattach(survived []string) *attachment {
	for wait := reattachFirst; ; wait = min(wait*2, reattachMax) {
		a, err := w.attach(w.stopping, w.base, survived)
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
