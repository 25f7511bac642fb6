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
	"github.com/cayhq/cay/internal/ulids"
	"github.com/cayhq/cay/internal/workflowd/admission"
	"github.com/cayhq/cay/workflow"
)

// Config configures an Engine. Zero fields have the defaults named.
type Config struct {
	Store  Store
	Logger *slog.Logger // nil logs nothing
	// Lanes is the number of concurrent commits. 0 means 1 for a store of one process,
	// which suits SQLite, and one for two processors, at most 4, for a shared store.
	Lanes int
	// MaxPending bounds the runs in memory that wait to start. 0 means 500,000.
	MaxPending int
	// MaxQueue bounds the events of a lane that wait to be committed. 0 means 16,384.
	MaxQueue int
	// InlinePayload is the largest payload kept in the log, in bytes; larger payloads are
	// stored as blobs. 0 means 256 KiB.
	InlinePayload int
	// MaxPayload is the largest allowed payload. 0 means 100 MB.
	MaxPayload int
	// MaxRecoveries is how often a run is given to a worker again, without progress,
	// after its worker died. After that the running step fails as POISONED, or the run
	// itself if no step was running. 0 means 12. See suspects.go.
	MaxRecoveries int
	// Turn is how long a suspect is tried apart from others before other runs join it. It
	// doubles with each lost attempt of a step of the run, up to an hour. 0 means 10 s.
	Turn time.Duration
	// RemoteWorkers means that each worker is a process of its own. Otherwise all workers
	// are in the engine's process and die with it.
	RemoteWorkers bool
	// Now is the wall clock. Nil means time.Now.
	Now func() time.Time
	// Retention is how long ended external runs are kept that have no retention of their
	// own. 0 keeps them for ever.
	Retention time.Duration
	// Runtimes are the external runtimes whose runs the engine can wake, and Messages
	// delivers the wake-up messages. If they are nil the engine refuses to wake external
	// runs.
	Runtimes map[history.Kind]Runtime
	Messages Messages
	// Metrics receives measurements. It may be nil.
	Metrics Metrics
}

func (c *Config) setDefaults() {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Lanes == 0 {
		c.Lanes = 1
		if c.Store.Owner() != nil {
			// Each lane takes turns with the server. With few processors a second lane
			// slows the first: the groups become smaller and more numerous.
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

// errClosed is returned to callers while the engine is being closed.
var errClosed = cay.Errorf(cay.Unavailable, "the workflow engine is closed")

// Engine keeps runs in a Store and gives them to workers. See the package comment.
type Engine struct {
	cfg   Config
	store Store
	log   *slog.Logger

	// ctx ends when Close begins to stop background work; tasks counts that work.
	ctx    context.Context
	cancel context.CancelCauseFunc
	tasks  sync.WaitGroup

	lanes     []*lane
	live      sync.Map // run id -> *liveRun, the runs in lanes' memory
	hub       hub
	feed      feed
	elsewhere elsewhere
	dispatch  dispatcher
	timers    timers
	tails     tails
	byName    byName
	schedules schedules
	door      *admission.Door // nil if no queue wakes the apps of external runs
	ownership ownership
	owner     Owner // nil if no other process uses the store
	ids       *ulids.Source
	leases    atomic.Uint64
	strip     chan struct{} // holds a token when payloads are to be deleted at once
	loads     loads
	memos     atomic.Int64 // bytes of the memos of all runs

	mu       sync.Mutex // guards the fields below
	sessions map[*session]struct{}
	closed   bool
}

// Open returns an engine on a store, and resumes the runs in the store. Close closes the
// store too; after an error the store remains the caller's. Errors: the store's.
func Open(ctx context.Context, cfg Config) (*Engine, error) {
	cfg.setDefaults()
	e := &Engine{
		cfg: cfg, ids: ulids.New("wrun_"), store: cfg.Store, log: cfg.Logger.With("component", "workflowd"),
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
	e.ownership.init()
	if err := e.openDoor(); err != nil {
		e.stop()
		return nil, err
	}
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
	e.spawn(e.door.Sweep)
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

// stop stops the background work.
func (e *Engine) stop() {
	for _, l := range e.lanes {
		l.close() // it commits the queued ops
	}
	e.dispatch.close()
	e.door.Close()
	e.cancel(errClosed)
	e.tasks.Wait()
	e.hub.close()
	e.feed.close()
}

// now is the wall clock, in Unix milliseconds.
func (e *Engine) now() int64 { return e.cfg.Now().UnixMilli() }

// laneOf returns the lane of a run, which is the lane of all its family: parents learn of
// the end of their children in the same commit.
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

// route returns the lane of a run by its id alone. Errors: not_found.
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

// recover puts the runs that were running when the last process ended in line for a
// worker.
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

// takeOver puts a run in line that another process's worker, or an earlier worker, may
// have had.
func (e *Engine) takeOver(r *history.Run) {
	t := ticketOf(r)
	t.recovered = r.Status == history.Running
	e.dispatch.enqueue(t)
}

// For returns the engine for the workers and clients of a project.
func (e *Engine) For(project string) workflow.Backend { return &backend{e: e, project: project} }
