package sandboxd

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/limit"
	"github.com/cayhq/cay/internal/sandboxd/clock"
	"github.com/cayhq/cay/internal/sandboxd/feed"
	"github.com/cayhq/cay/internal/sandboxd/flowlog"
	"github.com/cayhq/cay/internal/sandboxd/ident"
	"github.com/cayhq/cay/internal/sandboxd/label"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/store"
	"github.com/cayhq/cay/sandbox"
)

// Engine keeps sandboxes in a database and runs them on a Runtime. For states and
// authority see the package comment.
type Engine struct {
	cfg        Config
	log        *slog.Logger
	clock      clock.Clock
	store      *store.Store
	boots      *limit.Limit
	pools      *pools
	calls      *limit.Limit  // guest calls under way, by team
	reading    chan struct{} // places for concurrent readers of kept commands
	autosaving chan struct{} // place for one save of a running sandbox by its SaveEvery
	conns      *limit.Limit  // connections to ports in guests, by team
	flows      *flowlog.Log

	watchers *feed.Hub // the store tells it of changes

	janitor  janitor    // deletes and checks snapshots
	programs keptByRows // which programs of saved memory may be removed

	labels *label.Book[*session]

	// ctx ends when the engine closes; it is the parent of all work that
	// outlives a call.
	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup // counts the work that outlives calls

	mu        sync.Mutex
	closed    bool                  // refuses new machines and new background work
	bySandbox map[string]*session   // sessions by sandbox id
	byID      map[string]*session   // the same sessions by session id
	leftover  map[string]*store.Row // machines that recovery could not finish, by machine id; nil for machines without a row
	sampler   clock.Timer
	recoverer clock.Timer // retries leftover; nil: nothing is left over
	sweeper   clock.Timer // sweeps drive blobs; nil: nothing to sweep
	strays    clock.Timer // sweeps blobs of kept commands, as sweeper

	// reached is called at named points of the lifecycle; tests kill the process there.
	// Nil outside tests.
	reached atomic.Pointer[func(point string)]
}

// NewEngine migrates the database to this version's schema and returns an engine on it.
// Call Open before use.
func NewEngine(ctx context.Context, cfg Config) (*Engine, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	cfg.Runtime = machine.Patient(cfg.Runtime, cfg.Limits.Silence)
	watchers := feed.NewHub()
	var flows *flowlog.Log
	s, err := store.Open(ctx, cfg.DB, store.Options{
		Secrets: cfg.Secrets, PreviewURL: cfg.PreviewURL, MaxCommands: cfg.Limits.KeptCommands, Watchers: watchers,
		Removed: func(id string) { flows.Removed(id) },
	})
	if err != nil {
		return nil, err
	}
	if err := s.SealAll(ctx); err != nil {
		return nil, err
	}
	e := &Engine{
		cfg: cfg, log: cfg.Logger.With("component", "sandboxd"), clock: cfg.Clock, store: s, watchers: watchers,
		boots:   limit.New(limit.Bounds{All: cfg.Limits.Boots, Waiting: cfg.Limits.BootQueue}),
		calls:   limit.New(limit.Bounds{All: cfg.Limits.Calls, Each: max(1, cfg.Limits.Calls/2)}),
		conns:   limit.New(limit.Bounds{All: cfg.Limits.Conns, Each: max(1, cfg.Limits.Conns/2)}),
		janitor: janitor{wake: make(chan struct{}, 1), clock: clock.NewSteady(cfg.Clock)},
		reading: make(chan struct{}, maxReading), autosaving: make(chan struct{}, 1),
		bySandbox: make(map[string]*session), byID: make(map[string]*session), leftover: make(map[string]*store.Row),
	}
	if cfg.Programs != nil {
		cfg.Programs.OnFree(e.janitor.wakeUp)
	}
	e.labels = label.New[*session](s, cfg.Secrets.Key("preview links"), e.now)
	e.pools = newPools(e, cfg.Pools)
	records, err := store.OpenFlows(ctx, cfg.FlowDB, cfg.DB)
	if err != nil {
		return nil, err
	}
	flows = flowlog.New(records, e.log, cfg.Limits.Flows, e.at)
	e.flows = flows
	if cfg.Reached != nil {
		e.reached.Store(&cfg.Reached)
	}
	e.ctx, e.cancel = context.WithCancelCause(context.Background())
	return e, nil
}

// Open takes over the sandboxes of an earlier engine, see recover.go, and starts to
// sample usage. The engine serves calls once Open has returned.
func (e *Engine) Open(ctx context.Context) error {
	e.flows.Start()
	if err := e.recover(ctx); err != nil {
		return fmt.Errorf("recover sandboxes: %w", err)
	}
	e.armSampler()
	e.armRecovery(firstRetry)
	e.background(e.checkCounts)
	if len(e.pools.all) > 0 {
		e.background(e.pools.refill)
	}
	if e.cfg.Snapshots != nil {
		e.background(e.runJanitor)
	}
	e.openDrives()
	e.openCommandBlobs()
	return nil
}

// errClosing is the cause with which work ends when the daemon stops.
var errClosing = cay.Errorf(cay.Unavailable, "the daemon is stopping").WithHint("try again in a moment")

// Close ends all work of the engine and waits for it. Creations under way are canceled;
// running sandboxes keep running for the next engine to adopt, unless
// Config.DestroyOnStop is set. Closing twice, or before Open, is allowed. The caller
// closes the database and the Runtime.
func (e *Engine) Close() {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		e.wg.Wait()
		return
	}
	e.closed = true
	if e.sampler != nil {
		e.sampler.Stop()
	}
	clock.Stop(&e.recoverer)
	clock.Stop(&e.sweeper)
	clock.Stop(&e.strays)
	machines := e.liveLocked()
	e.mu.Unlock()

	e.cancel(errClosing)
	e.watchers.Close(errClosing)
	e.sample(context.Background(), machines)
	var wg sync.WaitGroup
	for _, m := range machines {
		wg.Go(func() { e.releaseMachine(m) })
	}
	wg.Wait()
	e.wg.Wait()
	if err := e.flows.Close(); err != nil {
		e.log.Error("flow records were not written", "error", err)
	}
}

// releaseMachine releases one machine when the engine closes.
func (e *Engine) releaseMachine(m *session) {
	if s := m.state(); s == sandbox.Pending || s == sandbox.Resuming {
		m.cancel(errClosing)
	}
	<-m.created
	if m.createErr != nil && !m.stuck.Load() {
		return // the failed creation has cleaned up
	}
	if e.cfg.DestroyOnStop {
		ctx, cancel := context.WithTimeout(context.Background(), teardownTimeout)
		defer cancel()
		if err := e.stop(ctx, m, store.End{Reason: sandbox.ReasonRequested, Message: "the daemon stopped"}); err != nil {
			e.log.Error("sandbox was not stopped", "sandbox", m.sandboxID, "error", err)
		}
		return
	}
	m.detach(errClosing)
	m.finishing.Lock() // its holder gives up soon, as the engine is closing
	defer m.finishing.Unlock()
	if !isClosed(m.gone) {
		m.saving.Lock() // its holder resumes the machine first
		defer m.saving.Unlock()
		// The next engine completes a stop that is under way, and removes a machine that
		// is half destroyed.
		if m.inst != nil && !isClosed(m.inst.Done()) {
			if err := m.inst.Detach(); err != nil {
				e.log.Error("machine was not detached", "sandbox", m.sandboxID, "error", err)
			}
		}
		m.flows.End(errClosing)
		m.free()
		close(m.gone)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// background runs f in a goroutine that Close waits for. It returns false, and does not
// run f, if the engine is closing.
func (e *Engine) background(f func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	e.wg.Go(f)
	return true
}

// live returns the session of a sandbox by the sandbox's id, nil if it has none.
func (e *Engine) live(id string) *session {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.bySandbox[id]
}

// liveFor is live for the id of a sandbox or of a session.
func (e *Engine) liveFor(ref string) *session {
	e.mu.Lock()
	defer e.mu.Unlock()
	if strings.HasPrefix(ref, ident.SessionPrefix) {
		return e.byID[ref]
	}
	return e.bySandbox[ref]
}

func (e *Engine) liveLocked() []*session {
	all := make([]*session, 0, len(e.bySandbox))
	for _, m := range e.bySandbox {
		all = append(all, m)
	}
	return all
}

func (e *Engine) all() []*session {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.liveLocked()
}

// add registers a session. If the sandbox has a session already, add returns that one.
// Errors: errClosing.
func (e *Engine) add(m *session) (other *session, err error) {
	id := m.sessionID()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, errClosing
	}
	if other := e.bySandbox[m.sandboxID]; other != nil {
		return other, nil
	}
	e.bySandbox[m.sandboxID], e.byID[id] = m, m
	e.cfg.Metrics.Live(len(e.bySandbox))
	return nil, nil
}

func (e *Engine) drop(m *session) {
	id := m.sessionID()
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.bySandbox, m.sandboxID)
	delete(e.byID, id)
	e.cfg.Metrics.Live(len(e.bySandbox))
	e.countSilentLocked()
	e.labels.ForgetSandbox(m.sandboxID)
}

// setSession changes the session id of a machine that is being created.
func (e *Engine) setSession(m *session, id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.byID, m.id)
	m.id = id
	e.byID[id] = m
}

// at tells a test that the engine has reached a named point of its lifecycle.
func (e *Engine) at(point string) {
	if f := e.reached.Load(); f != nil {
		(*f)(point)
	}
}

func (e *Engine) now() time.Time { return e.clock.Now().UTC().Truncate(time.Millisecond) }

// caller returns the scope of the caller of ctx.
func caller(ctx context.Context) (store.Scope, error) {
	p, err := api.RequirePrincipal(ctx)
	if err != nil {
		return store.Scope{}, err
	}
	return store.Scope{Team: p.TeamID, Project: p.ProjectID}, nil
}

// project returns the project of a request; see api.Principal.Project.
func (e *Engine) project(ctx context.Context, sc store.Scope, requested string) (string, error) {
	return api.Principal{TeamID: sc.Team, ProjectID: sc.Project}.Project(ctx, e.cfg.Accounts, requested)
}

// InUse lists what a team, or one of its projects, has, as in "3 sandboxes, 1 drive"; ""
// if nothing.
func (e *Engine) InUse(ctx context.Context, teamID, projectID string) (string, error) {
	sc := store.Scope{Team: teamID, Project: projectID}
	sandboxes, snapshots, drives, err := e.store.Count(ctx, sc)
	if err != nil {
		return "", err
	}
	var has []string
	for _, c := range []struct {
		n         int
		one, many string
	}{{sandboxes, "sandbox", "sandboxes"}, {snapshots, "snapshot", "snapshots"}, {drives, "drive", "drives"}} {
		switch c.n {
		case 0:
		case 1:
			has = append(has, "1 "+c.one)
		default:
			has = append(has, fmt.Sprintf("%d %s", c.n, c.many))
		}
	}
	return strings.Join(has, ", "), nil
}
