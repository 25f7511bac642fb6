package sandboxd

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/sandbox"
)

// machine is the engine's handle of a sandbox that has not ended. What it holds
// can be rebuilt from the sandbox's row and Runtime.Adopt.
//
// Whoever creates it closes created when inst, guest and env are set for good,
// or when the creation has failed and cleaned up. finish closes gone when
// nothing of the machine is left.
type machine struct {
	id    string
	scope scope // whose it is; project is set

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
	failure atomic.Pointer[failure]
	// why is why it is being stopped; nil if it is not.
	why atomic.Pointer[end]
	// stuck is set when a step of the end failed; the sampler tries again.
	stuck atomic.Bool

	inst   Instance
	guest  *guest.Client
	relay  *guest.Client // the same guest by connections whose traffic counts; for Dial
	leases []*Lease
	// imageEnv is the image's and the runtime's environment, env the sandbox's
	// own; see environ.
	imageEnv, env map[string]string
	// trusted are the certificates that were installed in the guest; nil if none.
	trusted atomic.Pointer[[]byte]
	base    sandbox.Usage // what was recorded when the machine was adopted

	flows *flowBuffer
	conns atomic.Int32 // to its ports, open or being dialled

	calls      atomic.Int32 // guest calls under way
	busy       atomic.Int32 // those that count as activity while they last
	lastActive atomic.Int64 // Clock.Mono
	idling     atomic.Bool  // an idle check is under way, which arms idler again

	mu       sync.Mutex     // taken before Engine.mu, where both are
	detached bool           // no new timers; who set it decides what becomes of the machine
	status   sandbox.Status // Pending, Running, Paused; Stopping once it is to end
	started  time.Duration  // Clock.Mono
	timeout  time.Duration  // from started
	idle     time.Duration  // 0: never
	usage    sandbox.Usage  // as last sampled
	sampled  time.Duration  // when, Clock.Mono
	saved    sandbox.Usage  // as last recorded
	deadline Timer          // nil when not running
	idler    Timer          // nil when not running, paused, or idle is 0
}

func (e *Engine) newMachine(r *row) *machine {
	m := &machine{
		id: r.ID, scope: scope{r.TeamID, r.ProjectID}, status: r.Status,
		created: make(chan struct{}), gone: make(chan struct{}), op: make(chan struct{}, 1),
		flows: newFlowBuffer(e.flows, r.ID),
	}
	m.ctx, m.cancel = context.WithCancelCause(context.Background())
	return m
}

// reaches reports whether the machine is one of sc's.
func (sc scope) reaches(m *machine) bool {
	return sc.team == m.scope.team && (sc.project == "" || sc.project == m.scope.project)
}

// lock waits for op. It fails when ctx or the machine ends.
func (m *machine) lock(ctx context.Context) error {
	select {
	case m.op <- struct{}{}:
		return nil
	case <-m.ctx.Done():
		return context.Cause(m.ctx)
	case <-ctx.Done():
		return contextError(ctx)
	}
}

func (m *machine) unlock() { <-m.op }

// detach makes the machine unusable for calls and timers. It reports whether
// this call did.
func (m *machine) detach(cause error) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	first := !m.detached
	m.detached = true
	m.cancel(cause)
	m.status = sandbox.Stopping
	stopTimer(&m.deadline)
	stopTimer(&m.idler)
	return first
}

func stopTimer(t *Timer) {
	if *t != nil {
		(*t).Stop()
		*t = nil
	}
}

// free gives back what of the machine is not the Runtime's.
func (m *machine) free() {
	if m.guest != nil {
		m.guest.CloseIdleConnections()
	}
	for _, l := range m.leases {
		l.Release()
	}
	m.leases = nil
}

// state returns the status.
func (m *machine) state() sandbox.Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.status
}

// setState sets the status, unless the machine is to end.
func (m *machine) setState(s sandbox.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.status != sandbox.Stopping {
		m.status = s
	}
}

// overlay brings a row up to date with what the machine knows better. Times
// are told by the wall clock as it is now, whatever it was at the start.
func (m *machine) overlay(r *row, now time.Time, mono time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.Status != sandbox.Running && r.Status != sandbox.Paused || m.started == 0 {
		return
	}
	expires := now.Add(m.started + m.timeout - mono).Truncate(time.Millisecond)
	r.ExpiresAt = &expires
	r.Usage = m.usage
	r.Usage.WallTime = truncateMS(mono - m.started)
}

func truncateMS(d time.Duration) sandbox.Duration {
	return sandbox.Duration(d.Truncate(time.Millisecond))
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
