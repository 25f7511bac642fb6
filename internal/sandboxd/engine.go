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
	"github.com/cayhq/cay/account"
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

// Engine keeps sandboxes in a database and runs them on a Runtime. See the
// package comment for its states and for what is authoritative.
type Engine struct {
	cfg     Config
	log     *slog.Logger
	clock   clock.Clock
	store   *store.Store
	boots   *limit.Limit
	pools   *pools
	calls   *limit.Limit  // guest calls under way, by team
	reading chan struct{} // places for who reads what is kept of commands
	conns   *limit.Limit  // connections to ports in guests, by team
	flows   *flowlog.Log

	watchers *feed.Hub // told by the store what changes

	keeper keeper // of snapshots

	labels *label.Book[*session]

	// ctx ends when the engine closes; it is the parent of all work that
	// outlives a call.
	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup // that work

	mu        sync.Mutex
	closed    bool                  // no new machine, no new background work
	bySandbox map[string]*session   // by sandbox id
	byID      map[string]*session   // the same, by session id
	leftover  map[string]*store.Row // what recovery could not finish, by machine id; nil rows have none
	sampler   clock.Timer
	recoverer clock.Timer // of leftovers; nil: there were none
	sweeper   clock.Timer // of what drives held; nil: there is nothing to sweep
	strays    clock.Timer // among what is kept of commands, as sweeper

	// reached is called at named points of the lifecycle, for tests that kill
	// the process there. Nil otherwise.
	reached atomic.Pointer[func(point string)]
}

// NewEngine brings the database to this version's schema and returns an engine
// on it. Call Open before use.
func NewEngine(ctx context.Context, cfg Config) (*Engine, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	cfg.Runtime = machine.Patient(cfg.Runtime, cfg.Limits.Silence)
	watchers := feed.NewHub()
	s, err := store.Open(ctx, cfg.DB, store.Options{
		Secrets: cfg.Secrets, PreviewURL: cfg.PreviewURL, MaxCommands: cfg.Limits.KeptCommands, Watchers: watchers,
	})
	if err != nil {
		return nil, err
	}
	if err := s.SealAll(ctx); err != nil {
		return nil, err
	}
	e := &Engine{
		cfg: cfg, log: cfg.Logger.With("component", "sandboxd"), clock: cfg.Clock, store: s, watchers: watchers,
		boots:     limit.New(limit.Bounds{All: cfg.Limits.Boots, Waiting: cfg.Limits.BootQueue}),
		calls:     limit.New(limit.Bounds{All: cfg.Limits.Calls, Each: max(1, cfg.Limits.Calls/2)}),
		conns:     limit.New(limit.Bounds{All: cfg.Limits.Conns, Each: max(1, cfg.Limits.Conns/2)}),
		keeper:    keeper{wake: make(chan struct{}, 1), clock: clock.NewSteady(cfg.Clock)},
		reading:   make(chan struct{}, maxReading),
		bySandbox: make(map[string]*session), byID: make(map[string]*session), leftover: make(map[string]*store.Row),
	}
	e.labels = label.New[*session](s, cfg.Secrets.Key("preview links"), e.now)
	e.pools = newPools(e, cfg.Pools)
	e.flows = flowlog.New(s, e.log, cfg.Limits.Flows, e.at)
	if cfg.Reached != nil {
		e.reached.Store(&cfg.Reached)
	}
	e.ctx, e.cancel = context.WithCancelCause(context.Background())
	return e, nil
}

// Open takes over what an earlier engine left, see recover.go, and begins to
// sample usage. The engine serves calls once it has returned.
func (e *Engine) Open(ctx context.Context) error {
	e.flows.Start()
	if err := e.recover(ctx); err != nil {
		return fmt.Errorf("recover sandboxes: %w", err)
	}
	e.armSampler()
	e.armRecovery(firstRetry)
	if len(e.pools.all) > 0 {
		e.background(e.pools.keep)
	}
	if e.cfg.Snapshots != nil {
		e.background(e.keepSnapshots)
	}
	e.openDrives()
	e.openCommandBlobs()
	return nil
}

// errClosing is why work ends when the daemon stops.
var errClosing = cay.Errorf(cay.Unavailable, "the daemon is stopping").WithHint("try again in a moment")

// Close ends what the engine does and waits for it. Sandboxes being created are
// given up; running ones keep running for the next engine to adopt, unless
// Config.DestroyOnStop ends them. Closing twice, or before Open, is fine. The
// database and the Runtime stay the caller's.
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
		wg.Go(func() { e.letGo(m) })
	}
	wg.Wait()
	e.wg.Wait()
	if err := e.flows.Close(); err != nil {
		e.log.Error("flow records were not written", "error", err)
	}
}

// letGo ends the engine's hold of one machine as it closes.
func (e *Engine) letGo(m *session) {
	if s := m.state(); s == sandbox.Pending || s == sandbox.Resuming {
		m.cancel(errClosing)
	}
	<-m.created
	if m.createErr != nil && !m.stuck.Load() {
		return // and has cleaned up
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
	m.finishing.Lock() // who ends it gives up soon, now that we close
	defer m.finishing.Unlock()
	if !isClosed(m.gone) {
		m.saving.Lock() // who saves it lets it go on
		defer m.saving.Unlock()
		// One that is ending the next engine ends, and of one that is half gone it
		// removes the rest.
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

// background runs f in a goroutine that Close waits for, or not at all if the
// engine is closing.
func (e *Engine) background(f func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	e.wg.Go(f)
	return true
}

// live returns the session of a sandbox that has one, by the sandbox's id.
func (e *Engine) live(id string) *session {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.bySandbox[id]
}

// liveFor is live by the id of the sandbox or of the session.
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

// add registers a session, unless the engine is closing, or its sandbox has one:
// then it returns that.
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

// setSession makes a machine that is being created one of another session.
func (e *Engine) setSession(m *session, id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.byID, m.id)
	m.id = id
	e.byID[id] = m
}

// at tells a test that the engine has come to a point of its lifecycle.
func (e *Engine) at(point string) {
	if f := e.reached.Load(); f != nil {
		(*f)(point)
	}
}

func (e *Engine) now() time.Time { return e.clock.Now().UTC().Truncate(time.Millisecond) }

// caller returns whose sandboxes the caller of ctx reaches.
func caller(ctx context.Context) (store.Scope, error) {
	p, ok := api.PrincipalFrom(ctx)
	if !ok || p.TeamID == "" {
		return store.Scope{}, cay.Errorf(cay.Unauthenticated, "no token was given").WithHint("set CAY_TOKEN, or send an Authorization header")
	}
	return store.Scope{Team: p.TeamID, Project: p.ProjectID}, nil
}

// project returns the project a request is about: the one asked for if the
// caller reaches it, else the token's own, else the team's default.
func (e *Engine) project(ctx context.Context, sc store.Scope, asked string) (string, error) {
	switch {
	case asked == "" && sc.Project != "":
		return sc.Project, nil
	case asked == "" && sc.Team == account.DefaultTeam:
		return account.DefaultProject, nil
	case asked == "":
		return "", cay.Errorf(cay.Invalid, "project_id is empty, and team %q has no default project", sc.Team).
			WithHint("name a project, or use a token of one")
	case sc.Project != "" && asked != sc.Project:
		return "", cay.Errorf(cay.NotFound, "project %q not found", asked)
	}
	if err := e.cfg.Accounts.CheckProject(ctx, sc.Team, asked); err != nil {
		return "", err
	}
	return asked, nil
}

// InUse says what a team has, or one project of it, as in "3 sandboxes, 1
// drive"; "" if nothing.
func (e *Engine) InUse(ctx context.Context, teamID, projectID string) (string, error) {
	sc := store.Scope{Team: teamID, Project: projectID}
	sandboxes, err := e.store.Count(ctx, sc)
	if err != nil {
		return "", err
	}
	snapshots, drives, err := e.store.CountKept(ctx, sc)
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
