package sandboxd

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/clock"
	"github.com/cayhq/cay/internal/sandboxd/feed"
	"github.com/cayhq/cay/internal/sandboxd/flowlog"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/idle"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/outbound"
	"github.com/cayhq/cay/internal/sandboxd/store"
	"github.com/cayhq/cay/internal/sandboxd/usage"
	"github.com/cayhq/cay/sandbox"
)

// session is one run of a sandbox, from its start to its end, as the engine holds it.
// Three things are told apart: a sandbox, which has a name and lasts; a session of it;
// and the session's machine, which the Runtime has (a sentry, a directory, a cgroup).
// A sandbox that is resumed gets another session, with another machine. What this holds
// can be rebuilt from the sandbox's row and Runtime.Adopt.
//
// Whoever creates it closes created when inst, guest and env are set for good,
// or when the creation has failed and cleaned up. finish closes gone when
// nothing of the machine is left.
type session struct {
	sandboxID string
	id        string      // and the machine's; mu guards it while it is pending
	scope     store.Scope // whose it is; project is set

	// ctx ends, with what callers are told as the cause, when the sandbox is to
	// end or the engine lets go of it. All calls into the guest end with it.
	ctx    context.Context
	cancel context.CancelCauseFunc

	created   chan struct{}
	createErr error // why creation failed; set before created is closed
	gone      chan struct{}

	// op is held, by lock, while status, timeout, idle or network change, so
	// that the row, this handle and the machine change together.
	op chan struct{}
	// finishing is held by finish.
	finishing sync.Mutex
	// failure is how the machine ended by itself, for finish to record.
	failure atomic.Pointer[store.Failure]
	// why is why it is being stopped; nil if it is not.
	why atomic.Pointer[store.End]
	// stuck is set when a step of the end failed; the sampler tries again.
	stuck atomic.Bool
	// left is the snapshot that was made of it at its end, wanted the one that was
	// asked for; nil: an automatic one. finishing guards them.
	left   *store.SnapshotRow
	wanted *saveRequest

	// saving is held while the machine is saved, paused or let go on; it guards the
	// next five. op or finishing are taken before it.
	saving   sync.Mutex
	paused   bool // its processes stand still
	quiesced bool // or have ended, so that it can be saved at its end
	drives   bool // it has drives whose changes are to be saved at its end
	silent   bool // it did not answer when it was to be saved, and is ended as it is
	adopted  bool // started by an earlier daemon
	// obstacles are what kept its memory from being saved when its guest was last asked.
	obstacles []string

	// commands is set when its guest may know commands; kept is what was kept of
	// them at its end, nil before.
	commands atomic.Bool
	kept     atomic.Pointer[keepingCommands]

	pooled *pooled // to be its inst; nil: none was there. See Engine.claim
	inst   machine.Instance
	guest  *guest.Client
	relay  *guest.Client // the same guest by connections whose traffic counts; for Dial
	leases []*Lease
	// imageEnv is the image's and the runtime's environment, env the sandbox's
	// own; see environ.
	imageEnv, env map[string]string
	// trusted are the certificates that were installed in the guest; nil if none.
	trusted atomic.Pointer[[]byte]
	ran     time.Duration // Clock.Mono when it ran, before its guest was asked; set while it is created

	flows     *flowlog.Buffer
	outbounds outbound.Desk
	idle      *idle.Watch
	meter     usage.Meter
	readings  feed.Feed[sandbox.Stats]
	changes   feed.Feed[sandbox.CommandChange] // of its commands
	conns     atomic.Int32                     // to its ports, open or being dialled

	calls   atomic.Int32 // guest calls under way
	watched atomic.Bool  // and asked whether it answers; see answers.go
	answers atomic.Pointer[answering]

	mu       sync.Mutex     // taken before Engine.mu, where both are
	detached bool           // no new timers; who set it decides what becomes of the machine
	status   sandbox.Status // Pending, Resuming, Running, Paused; Hibernated while it is being saved; Stopping once it is to end
	settled  chan struct{}  // closed when it is Hibernated no more; nil unless it is
	ending   *attempt       // to end it, under way; nil: none
	keep     bool           // it is persistent
	started  time.Duration  // Clock.Mono
	timeout  time.Duration  // from started
	deadline clock.Timer    // nil when not running
	prober   clock.Timer    // nil unless watched
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

// bound returns a context that ends with ctx, or with the machine and for its
// reason. The caller calls end when it is done.
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

// lock waits for op. It fails when ctx or the machine ends.
func (m *session) lock(ctx context.Context) error {
	select {
	case m.op <- struct{}{}:
		return nil
	case <-m.ctx.Done():
		return context.Cause(m.ctx)
	case <-ctx.Done():
		return contextError(ctx)
	}
}

func (m *session) unlock() { <-m.op }

// detach makes the machine unusable for calls and timers. It reports whether
// this call did.
func (m *session) detach(cause error) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	first := !m.detached
	m.detached = true
	m.cancel(cause)
	if m.settled != nil {
		close(m.settled)
		m.settled = nil
	}
	m.status = sandbox.Stopping
	clock.Stop(&m.deadline)
	m.idle.Stop()
	clock.Stop(&m.prober)
	return first
}

// free gives back what of the machine is not the Runtime's.
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

// setState sets the status, unless the machine is to end.
func (m *session) setState(s sandbox.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.status == sandbox.Stopping {
		return
	}
	if m.status == sandbox.Hibernated && s != sandbox.Hibernated {
		close(m.settled)
		m.settled = nil
	}
	if s == sandbox.Hibernated && m.settled == nil {
		m.settled = make(chan struct{})
	}
	m.status = s
}

// settle waits until a machine that is being hibernated is no more. It returns at
// once for any other.
func (m *session) settle(ctx context.Context) error {
	m.mu.Lock()
	settled := m.settled
	m.mu.Unlock()
	if settled == nil {
		return nil
	}
	select {
	case <-settled:
	case <-ctx.Done():
		return contextError(ctx)
	}
	return nil
}

// sessionID returns the session's id.
func (m *session) sessionID() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.id
}

// hasRun reports whether it was ever a running sandbox.
func (m *session) hasRun() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.started != 0
}

// persistent reports whether what it writes is kept.
func (m *session) persistent() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.keep
}

// overlay brings a row up to date with what the machine knows better. Times
// are told by the wall clock as it is now, whatever it was at the start.
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

// contextError is what the caller of a ctx that has ended is told.
func contextError(ctx context.Context) error {
	cause := context.Cause(ctx)
	if cay.CodeOf(cause) != cay.Internal {
		return cause
	}
	if ctx.Err() == context.DeadlineExceeded {
		return cay.Errorf(cay.DeadlineExceeded, "the time given was not enough: %w", cause)
	}
	return cay.Errorf(cay.Canceled, "the caller gave up: %w", cause)
}
