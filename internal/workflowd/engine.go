package workflowd

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd/runid"
	"github.com/cayhq/cay/workflow"
)

// Config is what an Engine needs. Zero fields have the defaults named.
type Config struct {
	Store  Store
	Logger *slog.Logger // nil logs nothing
	// Lanes is how many groups may be committed at one time. 0 means 1, which is what
	// SQLite is made for, or if the store is shared with other processes one for two
	// processors, at most 4.
	Lanes int
	// MaxPending bounds the runs that wait to start, in memory. 0 means 500,000.
	MaxPending int
	// MaxQueue bounds the events that wait to be committed, by lane. 0 means 16,384.
	MaxQueue int
	// InlinePayload is the largest payload kept in the log, in bytes; larger ones are
	// kept beside it. 0 means 256 KiB.
	InlinePayload int
	// MaxPayload is the largest payload there may be. 0 means 100 MB.
	MaxPayload int
	// MaxRecoveries is how often a run is given to a worker again, without progress,
	// after the one that had it died. Then the step that was under way fails, or, if
	// there was none, the run: both as POISONED. 0 means 12. See suspects.go.
	MaxRecoveries int
	// Turn is how long a suspect is tried apart from others before these are let in
	// beside it. It doubles with each attempt that a step of the run has lost, up to
	// an hour. 0 means 10 s.
	Turn time.Duration
	// RemoteWorkers says that each worker is a process of its own. Otherwise all of
	// them are in the engine's process, and die with it.
	RemoteWorkers bool
	// Now is the wall clock. Nil means time.Now.
	Now func() time.Time
	// Retention is how long ended external runs are kept that do not say. 0 keeps them.
	Retention time.Duration
	// Runtimes are those of external runs that the engine can wake, and Messages is what it
	// wakes them with. Nil is fine: then it refuses to.
	Runtimes map[history.Kind]Runtime
	Messages Messages
	// Metrics is told what happens. Nil is fine.
	Metrics Metrics
}

func (c *Config) setDefaults() {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Lanes == 0 {
		c.Lanes = 1
		if c.Store.Owner() != nil {
			// Each takes turns with the server. With few processors a second one takes
			// from the first: its groups are smaller, and there are more of them.
			c.Lanes = max(1, min(4, runtime.GOMAXPROCS(0)/2))
		}
	}
	setDefault(&c.MaxPending, 500_000)
	setDefault(&c.MaxQueue, 16_384)
	setDefault(&c.InlinePayload, 256<<10)
	setDefault(&c.MaxPayload, 100_000_000)
	setDefault(&c.MaxRecoveries, 12)
	if c.Turn == 0 {
		c.Turn = 10 * time.Second
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Metrics == nil {
		c.Metrics = noMetrics{}
	}
}

func setDefault(v *int, d int) {
	if *v == 0 {
		*v = d
	}
}

// errClosed is what callers get when the engine is being closed.
var errClosed = cay.Errorf(cay.Unavailable, "the workflow engine is closed")

// Engine keeps runs in a Store and gives them to workers. See the package comment.
type Engine struct {
	cfg   Config
	store Store
	log   *slog.Logger

	// ctx ends when Close begins to stop background work; tasks are that work.
	ctx    context.Context
	cancel context.CancelCauseFunc
	tasks  sync.WaitGroup

	lanes     []*lane
	live      sync.Map // run id -> *run, those in a lane's memory
	hub       hub
	feed      feed
	elsewhere elsewhere
	dispatch  dispatcher
	timers    timers
	tails     tails
	byName    byName
	schedules schedules
	estate    estate
	owner     Owner // nil if this process is the store's only one
	ids       runid.Source
	leases    atomic.Uint64
	strip     chan struct{} // has a token when payloads are to be deleted at once
	loads     loads

	mu       sync.Mutex // guards what follows
	sessions map[*session]struct{}
	closed   bool
}

// Open returns an engine on a store, and goes on with the runs that are in it.
// Close closes the store too; after an error it is still the caller's. Errors: those
// of the store.
func Open(ctx context.Context, cfg Config) (*Engine, error) {
	cfg.setDefaults()
	e := &Engine{
		cfg: cfg, store: cfg.Store, log: cfg.Logger.With("component", "workflowd"),
		sessions: make(map[*session]struct{}),
		strip:    make(chan struct{}, 1),
	}
	e.ctx, e.cancel = context.WithCancelCause(context.Background())
	e.hub.init()
	e.feed.init()
	e.elsewhere.init()
	e.dispatch.init(e)
	e.timers.init(e)
	e.tails.init()
	e.schedules.init(e)
	e.owner = e.store.Owner()
	e.estate.init()
	for range cfg.Lanes {
		e.lanes = append(e.lanes, newLane(e))
	}
	for _, l := range e.lanes {
		e.spawn(l.loop)
	}
	if err := e.recover(ctx); err != nil {
		e.stop()
		return nil, err
	}
	if e.owner != nil {
		e.own()
	}
	e.spawn(e.timers.loop)
	e.spawn(e.schedules.loop)
	e.spawn(e.expire)
	return e, nil
}

// spawn starts background work that Close waits for.
func (e *Engine) spawn(f func()) {
	e.tasks.Go(f)
}

// Close ends all sessions, stops, and closes the store. Closing twice is fine.
func (e *Engine) Close() error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil
	}
	e.closed = true
	sessions := make([]*session, 0, len(e.sessions))
	for s := range e.sessions {
		sessions = append(sessions, s)
	}
	e.mu.Unlock()

	for _, s := range sessions {
		s.end(false)
	}
	e.stop()
	if err := e.store.Close(); err != nil {
		return fmt.Errorf("close workflow store: %w", err)
	}
	return nil
}

// stop ends what runs in the background.
func (e *Engine) stop() {
	for _, l := range e.lanes {
		l.close() // it commits what is queued
	}
	e.dispatch.close()
	e.cancel(errClosed)
	e.tasks.Wait()
	e.hub.close()
	e.feed.close()
}

// now is the wall clock, in Unix milliseconds.
func (e *Engine) now() int64 { return e.cfg.Now().UnixMilli() }

// laneOf returns the lane that a run and all its family belong to: parents learn
// of the end of their children in the same commit.
func (e *Engine) laneOf(run, root string) *lane {
	if len(e.lanes) == 1 {
		return e.lanes[0]
	}
	if root == "" {
		root = run
	}
	h := uint32(2166136261)
	for i := range len(root) {
		h = (h ^ uint32(root[i])) * 16777619
	}
	return e.lanes[h%uint32(len(e.lanes))]
}

// route returns the lane of a run of which only the id is known. Errors: not_found.
func (e *Engine) route(ctx context.Context, run string) (*lane, error) {
	if len(e.lanes) == 1 {
		return e.lanes[0], nil
	}
	if r, ok := e.live.Load(run); ok {
		return r.(*liveRun).lane, nil
	}
	row, err := e.store.Run(ctx, run)
	if err != nil {
		return nil, err
	}
	return e.laneOf(run, row.Root), nil
}

// recoverPage is how many runs are read at a time when the engine opens.
const recoverPage = 1000

// recover puts in line for a worker what was running when the last process ended.
func (e *Engine) recover(ctx context.Context) error {
	after := ""
	for {
		runs, err := e.store.Owned(ctx, after, recoverPage)
		if err != nil {
			return fmt.Errorf("read unfinished runs: %w", err)
		}
		for i := range runs {
			e.takeOver(&runs[i])
		}
		if len(runs) < recoverPage {
			return nil
		}
		after = runs[len(runs)-1].ID
	}
}

// takeOver puts a run in line that a worker elsewhere, or before, may have had.
func (e *Engine) takeOver(r *history.Run) {
	t := ticketOf(r)
	t.recovered = r.Status == history.Running
	e.dispatch.enqueue(t)
}

// For returns the engine as the workers and clients of a project see it.
func (e *Engine) For(project string) workflow.Backend { return &backend{e: e, project: project} }
