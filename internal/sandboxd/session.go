package sandboxd

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay/internal/sandboxd/clock"
	"github.com/cayhq/cay/internal/sandboxd/feed"
	"github.com/cayhq/cay/internal/sandboxd/flowlog"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/idle"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/outbound"
	"github.com/cayhq/cay/internal/sandboxd/store"
	"github.com/cayhq/cay/internal/sandboxd/usage"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/sandbox"
)

// session is the engine's handle of one run of a sandbox, from its start to its end.
// There are three terms: a sandbox has a name and lasts; a session is one run of a
// sandbox; the session's machine (a sentry, a directory, a cgroup) belongs to the
// Runtime. A resumed sandbox gets another session, with another machine. A session can be
// rebuilt from the sandbox's row and Runtime.Adopt.
//
// The creator of a session closes created when inst, guest and env are set for good, or
// when the creation has failed and cleaned up. finish closes gone when nothing of the
// machine is left.
type session struct {
	sandboxID string
	id        string      // also the machine's; guarded by mu while the sandbox is pending
	scope     store.Scope // the sandbox's team and project; project is set

	// ctx ends when the sandbox is to end or the engine detaches it. The cause is the
	// error that callers get. All calls into the guest end with it.
	ctx    context.Context
	cancel context.CancelCauseFunc

	created   chan struct{}
	createErr error // why the creation failed; set before created is closed
	gone      chan struct{}

	// op is held, by lock, while status, timeout, idle or network change, so that the
	// row, this session and the machine change together.
	op chan struct{}
	// finishing is held by finish.
	finishing sync.Mutex
	// failure describes a machine that ended by itself, for finish to record.
	failure atomic.Pointer[store.Failure]
	// why is the reason of a stop; nil if the sandbox is not being stopped.
	why atomic.Pointer[store.End]
	// stuck is set when a step of the end failed; the sampler retries the end.
	stuck atomic.Bool
	// left is the snapshot made when the session ended. wanted is the snapshot that the
	// caller requested; nil: an automatic one. finishing guards both.
	left   *store.SnapshotRow
	wanted *saveRequest

	// saving is held while the machine is saved, paused or resumed, and guards the fields
	// down to obstacles. Lock order: op or finishing before saving.
	saving   sync.Mutex
	paused   bool // the machine is paused
	quiesced bool // its processes were ended, so that the files can be saved
	drives   bool // the changes to its drives are still to be saved when it ends
	silent   bool // the machine did not answer a save, and is destroyed unsaved
	adopted  bool // started by an earlier daemon
	// stale says that its guest may have connections from before it was adopted.
	stale atomic.Bool
	// obstacles, from the guest's last answer, are what kept its memory from being saved.
	obstacles []string

	// commands is set when the guest may know commands. kept are the commands kept when
	// the session ended; nil before.
	commands atomic.Bool
	archive  atomic.Pointer[commandArchive]

	pooled *pooled // the pool's machine that is to become inst; nil: there is none. See Engine.claim
	inst   machine.Instance
	guest  *guest.Client
	relay  *guest.Client // a client of the same guest over connections whose traffic is counted; for Dial
	leases []*Lease
	// imageEnv is the environment of the image and the runtime, env the sandbox's own;
	// see environ.
	imageEnv, env map[string]string
	// trusted are the certificates installed in the guest; nil if none.
	trusted atomic.Pointer[[]byte]
	ran     time.Duration // Clock.Mono when the machine had started, before the guest answered; set during creation

	flows     *flowlog.Buffer
	outbounds outbound.Desk
	idle      *idle.Watch
	meter     usage.Meter
	readings  feed.Feed[sandbox.Stats]
	changes   feed.Feed[sandbox.CommandChange] // starts and exits of commands
	conns     atomic.Int32                     // connections to ports, open or being dialed

	calls   atomic.Int32 // guest calls under way
	watched atomic.Bool  // the guest is probed while calls are under way; see answers.go
	answers atomic.Pointer[answering]

	mu          sync.Mutex     // lock order: before Engine.mu
	detached    bool           // no new timers; the caller of detach that set it ends or detaches the machine
	status      sandbox.Status // Pending, Resuming, Running, Paused; Hibernated during the save; Stopping once the end has begun
	hibernating chan struct{}  // closed when the status is no longer Hibernated; nil in other statuses
	ending      *attempt       // the attempt to end it that is under way; nil: none
	keep        bool           // the sandbox is persistent
	started     time.Duration  // Clock.Mono
	timeout     time.Duration  // counted from started
	deadline    clock.Timer    // nil when not running
	prober      clock.Timer    // nil unless calls are watched
	autosave    autosave
}

func (e *Engine) newSession(r *store.Row) *session {
	m := &session{
		sandboxID: r.ID, id: r.MachineID(), scope: r.Scope(), status: r.Status, keep: r.Persistent,
		created: make(chan struct{}), gone: make(chan struct{}), op: make(chan struct{}, 1),
		flows: e.flows.Buffer(r.ID),
	}
	m.ctx, m.cancel = context.WithCancelCause(context.Background())
	m.idle = idle.New(e.clock, e.background, idling{m, e})
	m.answersFromNow()
	return m
}

// bound returns a context that ends with ctx or with the machine, with the cause of
// either. The caller must call end.
func (m *session) bound(ctx context.Context) (_ context.Context, end func()) {
	return boundBy(m.ctx, ctx)
}

func boundBy(life, ctx context.Context) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	unhook := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	return ctx, func() {
		unhook()
		cancel(nil)
	}
}

// lock acquires op. It fails when ctx or the machine ends.
func (m *session) lock(ctx context.Context) error {
	select {
	case m.op <- struct{}{}:
		return nil
	case <-m.ctx.Done():
		return context.Cause(m.ctx)
	case <-ctx.Done():
		return wire.ContextError(ctx)
	}
}

func (m *session) unlock() { <-m.op }

// detach ends the session's context and timers, so that no new calls begin. It reports
// whether this was the first call.
func (m *session) detach(cause error) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	first := !m.detached
	m.detached = true
	m.cancel(cause)
	if m.hibernating != nil {
		close(m.hibernating)
		m.hibernating = nil
	}
	m.status = sandbox.Stopping
	clock.Stop(&m.deadline)
	clock.Stop(&m.autosave.timer)
	m.idle.Stop()
	clock.Stop(&m.prober)
	return first
}

// free releases everything of the machine that the engine holds: connections and leases.
func (m *session) free() {
	if m.guest != nil {
		m.guest.CloseIdleConnections()
	}
	for _, l := range m.leases {
		l.Release()
	}
	m.leases = nil
}

// state returns the status.
func (m *session) state() sandbox.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.status
}

// Running implements label.Session and idle.Sandbox.
func (m *session) Running() bool { return m.state() == sandbox.Running }

// Context implements label.Session.
func (m *session) Context() context.Context { return m.ctx }

// setState sets the status, unless the machine is stopping.
func (m *session) setState(s sandbox.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.status == sandbox.Stopping {
		return
	}
	if m.status == sandbox.Hibernated && s != sandbox.Hibernated {
		close(m.hibernating)
		m.hibernating = nil
	}
	if s == sandbox.Hibernated && m.hibernating == nil {
		m.hibernating = make(chan struct{})
	}
	m.status = s
}

// awaitHibernation waits until a hibernation under way has completed or failed. Without a
// hibernation under way it returns at once.
func (m *session) awaitHibernation(ctx context.Context) error {
	m.mu.Lock()
	settled := m.hibernating
	m.mu.Unlock()
	if settled == nil {
		return nil
	}
	select {
	case <-settled:
	case <-ctx.Done():
		return wire.ContextError(ctx)
	}
	return nil
}

// sessionID returns the session's id.
func (m *session) sessionID() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.id
}

// hasRun reports whether the session was ever running.
func (m *session) hasRun() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.started != 0
}

// persistent reports whether the sandbox is persistent.
func (m *session) persistent() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.keep
}

// overlay updates a row with the session's current expiry, usage and health. Times are
// computed from the current wall clock, even if it was set since the start.
func (m *session) overlay(r *store.Row, now time.Time, mono time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.Status != sandbox.Running && r.Status != sandbox.Paused || m.started == 0 {
		return
	}
	expires := now.Add(m.started + m.timeout - mono).Truncate(time.Millisecond)
	r.ExpiresAt = &expires
	r.UnresponsiveSince = m.answers.Load().since
	r.Usage = m.meter.At(mono)
	r.SetTotal()
}
