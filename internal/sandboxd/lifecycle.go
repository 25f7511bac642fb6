package sandboxd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/store"
	"github.com/cayhq/cay/internal/sandboxd/usage"
	"github.com/cayhq/cay/sandbox"
)

// Get implements Service.
func (e *Engine) Get(ctx context.Context, ref string) (*sandbox.Sandbox, error) {
	sc, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	r, err := e.store.Find(ctx, sc, ref)
	if err != nil {
		return nil, err
	}
	e.refreshRows(ctx, []*store.Row{r}, 0)
	return &r.Sandbox, nil
}

// refreshRows updates rows with the current values that their machines have. Counters
// read less than age ago are not read again.
func (e *Engine) refreshRows(ctx context.Context, rows []*store.Row, age time.Duration) {
	byID := make(map[string]*session)
	var machines []*session
	for _, r := range rows {
		if m := e.live(r.ID); m != nil {
			byID[r.ID] = m
			machines = append(machines, m)
		}
	}
	e.refreshAll(ctx, machines, age)
	now, mono := e.now(), e.clock.Mono()
	for _, r := range rows {
		if m := byID[r.ID]; m != nil && m.sessionID() == r.SessionID {
			m.overlay(r, now, mono)
		}
	}
}

// listing parses the parameters of a list; what names the objects. Errors: invalid,
// not_found (the project).
func (e *Engine) listing(ctx context.Context, sc store.Scope, what, project string, by store.Sorting, from string, limit int) (l store.Listing, err error) {
	if l, err = store.NewListing(what, by, from, limit); err != nil {
		return l, err
	}
	l.Scope, err = e.listed(ctx, sc, project)
	return l, err
}

// listed returns the scope of a list: the requested project; or everything that the
// caller reaches for "*" and, in a team without a default project, for "".
func (e *Engine) listed(ctx context.Context, sc store.Scope, asked string) (_ store.Scope, err error) {
	whole := asked == "" && sc.Project == "" && sc.Team != account.DefaultTeam
	if asked != "*" && !whole {
		sc.Project, err = e.project(ctx, sc, asked)
	}
	return sc, err
}

// List implements Service.
func (e *Engine) List(ctx context.Context, p sandbox.ListParams) (*sandbox.Page[sandbox.Sandbox], error) {
	sc, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	l, err := e.listing(ctx, sc, "sandboxes", p.ProjectID, store.SortedBy(p.Order, p.Ascending), p.Cursor, p.Limit)
	if err != nil {
		return nil, err
	}
	rows, err := e.store.List(ctx, l, p)
	if err != nil {
		return nil, err
	}
	page := &sandbox.Page[sandbox.Sandbox]{Items: []sandbox.Sandbox{}}
	rows, page.Next = store.Cut(l, rows, func(r *store.Row) (any, string) { return r.Place(l.By), r.ID })
	e.refreshRows(ctx, rows, time.Second)
	for _, r := range rows {
		page.Items = append(page.Items, r.Sandbox)
	}
	return page, nil
}

// SandboxOf returns the sandbox that owns a machine, whoever the caller is. Errors:
// not_found.
func (e *Engine) SandboxOf(ctx context.Context, machine string) (*sandbox.Sandbox, error) {
	r, err := e.store.OfMachine(ctx, machine)
	if err != nil {
		return nil, err
	}
	return &r.Sandbox, nil
}

// lookup returns the row of a method's sandbox, and its session, if any. If ref is a
// session that is not the newest, the session is nil.
func (e *Engine) lookup(ctx context.Context, ref string) (*store.Row, *session, error) {
	sc, err := caller(ctx)
	if err != nil {
		return nil, nil, err
	}
	r, err := e.store.Find(ctx, sc, ref)
	if err != nil {
		return nil, nil, err
	}
	m := e.live(r.ID)
	if m != nil && r.Only != "" && r.Only != m.sessionID() {
		m = nil
	}
	return r, m, nil
}

// lookupCurrent is lookup for methods that cannot act on an ended session. Errors:
// sandbox_stopped.
func (e *Engine) lookupCurrent(ctx context.Context, ref string) (*store.Row, *session, error) {
	r, m, err := e.lookup(ctx, ref)
	if err == nil {
		err = r.Over()
	}
	if err != nil {
		return nil, nil, err
	}
	return r, m, nil
}

// lookupWithMachine is lookupCurrent for a sandbox that must have a machine if its row is
// running or paused. Errors: unavailable while recovery has not finished with the
// sandbox.
func (e *Engine) lookupWithMachine(ctx context.Context, ref string) (*store.Row, *session, error) {
	for {
		r, m, err := e.lookupCurrent(ctx, ref)
		if err != nil || m != nil || r.Status != sandbox.Running && r.Status != sandbox.Paused {
			return r, m, err
		}
		if err := e.missingMachineError(ctx, r); !errors.Is(err, errRaced) {
			return nil, nil, err
		}
	}
}

// lookupLocked is lookupWithMachine for a sandbox that must be running or paused. It holds m.op,
// which the caller unlocks.
func (e *Engine) lookupLocked(ctx context.Context, ref string) (*store.Row, *session, error) {
	r, m, err := e.lookupWithMachine(ctx, ref)
	if err != nil {
		return nil, nil, err
	}
	if m == nil || r.Status != sandbox.Running && r.Status != sandbox.Paused {
		return nil, nil, e.statusError(r)
	}
	if err := m.lock(ctx); err != nil {
		return nil, nil, err
	}
	// The row may have changed during the wait for the lock.
	if r, err = e.store.Reread(ctx, r); err == nil {
		err = r.Over()
	}
	if err == nil && r.Status != sandbox.Running && r.Status != sandbox.Paused {
		err = e.statusError(r)
	}
	if err != nil {
		m.unlock()
		return nil, nil, err
	}
	return r, m, nil
}

// statusError returns the error for calls to a sandbox that does not run.
func (e *Engine) statusError(r *store.Row) error {
	switch r.Status {
	case sandbox.Pending:
		return cay.Errorf(cay.Conflict, "sandbox %q is still being created", r.Name).WithHint("wait until it is running")
	case sandbox.Paused:
		return cay.Errorf(cay.Conflict, "sandbox %q is paused", r.Name).WithHint("resume it first")
	}
	if r.Status == sandbox.Hibernated {
		return cay.Errorf(cay.Conflict, "sandbox %q is hibernated", r.Name).WithHint("resume it first")
	}
	if r.Status == sandbox.Resuming {
		return cay.Errorf(cay.Conflict, "sandbox %q is being resumed", r.Name).WithHint("wait until it is running")
	}
	err := stoppedError(r.Name, r.Reason, r.Message)
	if !r.Persistent && r.Status.Final() {
		return err.WithHint("it is not persistent: to start it without what was not saved, resume it anew")
	}
	return err
}

// reread returns the current state of a sandbox.
func (e *Engine) reread(ctx context.Context, id string) (*sandbox.Sandbox, error) {
	r, err := e.store.Get(ctx, id)
	return e.shown(ctx, r, err)
}

// shown returns the fields of a row that callers see.
func (e *Engine) shown(ctx context.Context, r *store.Row, err error) (*sandbox.Sandbox, error) {
	if err != nil {
		return nil, err
	}
	e.refreshRows(ctx, []*store.Row{r}, time.Second)
	return &r.Sandbox, nil
}

// Extend implements Service.
func (e *Engine) Extend(ctx context.Context, ref string, d sandbox.Duration) (*sandbox.Sandbox, error) {
	if d < sandbox.Duration(time.Millisecond) {
		return nil, cay.Errorf(cay.Invalid, "duration %v is not at least 1ms", d)
	}
	d = usage.Millis(time.Duration(d))
	r, m, err := e.lookupLocked(ctx, ref)
	if err != nil {
		return nil, err
	}
	defer m.unlock()
	limit := sandbox.Duration(e.cfg.Limits.MaxTimeout)
	if d > limit || r.Timeout+d > limit {
		return nil, cay.Errorf(cay.Invalid, "a timeout of %v, extended by %v, is more than this daemon's maximum of %v", r.Timeout, d, limit).
			WithHint("extend it by at most %v", max(limit-r.Timeout, 0))
	}
	ok, err := e.store.Extend(ctx, r.ID, r.SessionID, d, limit, e.now())
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, stoppedError(ref, "", "")
	}
	m.mu.Lock()
	m.timeout = time.Duration(r.Timeout + d)
	e.armDeadlineLocked(m)
	m.mu.Unlock()
	return e.reread(ctx, r.ID)
}

// Stop implements Service.
func (e *Engine) Stop(ctx context.Context, ref string) (*sandbox.Sandbox, error) {
	r, m, err := e.lookup(ctx, ref)
	if err != nil {
		return nil, err
	}
	if r.Over() != nil {
		return e.shown(ctx, r, nil)
	}
	for {
		if m != nil {
			if err := e.stop(ctx, m, store.End{Reason: sandbox.ReasonRequested}); err != nil {
				return nil, err
			}
		} else if r.Status == sandbox.Hibernated {
			if _, err := e.store.StopHibernated(ctx, r.ID, e.now()); err != nil {
				return nil, err
			}
			e.snapshotMade(r.ID) // the snapshot of files that a persistent sandbox's hibernation becomes
			e.freeSnapshots()
		}
		was := *r
		if r, err = e.store.Reread(ctx, r); err != nil || r.Status.Final() || r.Over() != nil {
			return e.shown(ctx, r, err)
		}
		if e.ctx.Err() != nil {
			return nil, errClosing // Close detaches machines that are ending
		}
		m = e.live(r.ID)
		if m == nil && r.Status != sandbox.Hibernated && r.Status == was.Status && r.SessionID == was.SessionID {
			if err := e.endUnrecovered(ctx, r, store.End{Reason: sandbox.ReasonRequested}); err != nil {
				return nil, err
			}
			return e.reread(ctx, r.ID)
		}
		// The sandbox was hibernated, or resumed, meanwhile.
	}
}

// notRecovered is the error for a sandbox that lost its machine in a restart, while
// recovery retries to finish with it.
func notRecovered(ref string) error {
	return cay.Errorf(cay.Unavailable, "sandbox %q is still being cleaned up after a restart", ref).
		WithHint("try again in a minute; the daemon's log says what is in the way")
}

// Delete is DeleteWith without parameters.
func (e *Engine) Delete(ctx context.Context, ref string) error {
	return e.DeleteWith(ctx, ref, sandbox.DeleteParams{})
}

// DeleteWith implements Service.
func (e *Engine) DeleteWith(ctx context.Context, ref string, p sandbox.DeleteParams) error {
	r, m, err := e.lookupCurrent(ctx, ref)
	if err != nil {
		return err
	}
	if m != nil {
		if err := e.stop(ctx, m, store.End{Reason: sandbox.ReasonRequested, Deleting: true, KeepSnapshots: p.KeepSnapshots}); err != nil {
			return err
		}
	}
	if removed, err := e.store.Remove(ctx, r.ID, p.KeepSnapshots, e.now()); err != nil || removed {
		e.freeSnapshots()
		e.freeCommands()
		return err
	}
	switch now, err := e.store.Get(ctx, r.ID); cay.CodeOf(err) {
	case cay.NotFound: // removed when it ended
		return nil
	case "":
		return e.endUnrecovered(ctx, now, store.End{Reason: sandbox.ReasonRequested, Deleting: true, KeepSnapshots: p.KeepSnapshots})
	default:
		return err
	}
}

// Pause implements Service.
func (e *Engine) Pause(ctx context.Context, ref string) (*sandbox.Sandbox, error) {
	r, m, err := e.lookupLocked(ctx, ref)
	if err != nil {
		return nil, err
	}
	defer m.unlock()
	if r.Status == sandbox.Paused {
		return nil, cay.Errorf(cay.Conflict, "sandbox %q is paused already", ref)
	}
	// Write the row before the pause: recovery pauses a machine again whose row is
	// paused.
	ok, err := e.store.Move(ctx, r.ID, sandbox.Running, sandbox.Paused, e.now())
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, stoppedError(ref, "", "")
	}
	e.at("pause-recorded")
	m.saving.Lock()
	defer m.saving.Unlock()
	e.findObstacles(ctx, m)
	m.setState(sandbox.Paused)
	if err := m.inst.Pause(ctx); err != nil {
		m.setState(sandbox.Running)
		_, uerr := e.store.Move(context.WithoutCancel(ctx), r.ID, sandbox.Paused, sandbox.Running, e.now())
		return nil, e.machineError(m, fmt.Errorf("pause: %w", errors.Join(err, uerr)))
	}
	m.paused = true
	m.mu.Lock()
	m.armIdleLocked(0)
	m.mu.Unlock()
	return e.reread(ctx, r.ID)
}

// unpause resumes a paused sandbox. It returns errRaced if the sandbox is not paused.
func (e *Engine) unpause(ctx context.Context, ref string) (*sandbox.Sandbox, error) {
	r, m, err := e.lookupLocked(ctx, ref)
	if cay.CodeOf(err) == cay.Stopped {
		return nil, errRaced
	}
	if err != nil {
		return nil, err
	}
	defer m.unlock()
	if r.Status != sandbox.Paused {
		return nil, errRaced
	}
	m.saving.Lock()
	defer m.saving.Unlock()
	if m.ctx.Err() != nil { // the machine ends, or belongs to the next engine
		return nil, context.Cause(m.ctx)
	}
	if err := m.inst.Resume(ctx); err != nil {
		return nil, e.machineError(m, fmt.Errorf("resume: %w", err))
	}
	e.at("resumed")
	ok, err := e.store.Move(context.WithoutCancel(ctx), r.ID, sandbox.Paused, sandbox.Running, e.now())
	if err != nil {
		return nil, errors.Join(err, m.inst.Pause(context.WithoutCancel(ctx)))
	}
	m.paused = false
	if !ok {
		return nil, stoppedError(r.Name, "", "")
	}
	e.trustAtStart(ctx, m, r.Network, guest.Trust{})
	e.resetStale(m)
	m.setState(sandbox.Running)
	m.idle.Touch()
	m.mu.Lock()
	m.armIdleLocked(0)
	m.mu.Unlock()
	return e.reread(ctx, r.ID)
}

// Stats implements Service.
func (e *Engine) Stats(ctx context.Context, ref string) (*sandbox.Stats, error) {
	r, m, err := e.running(ctx, ref, true)
	if err != nil {
		return nil, err
	}
	return e.readStats(ctx, r, m)
}

// readStats reads a machine's counters, and updates its row with them.
func (e *Engine) readStats(ctx context.Context, r *store.Row, m *session) (*sandbox.Stats, error) {
	st, err := e.refresh(ctx, m)
	if err != nil {
		return nil, e.machineError(m, err)
	}
	e.refreshRows(ctx, []*store.Row{r}, time.Minute)
	stats := &sandbox.Stats{
		Usage: r.Usage, MemoryBytes: st.MemoryBytes, MemoryLimit: r.MemoryMB << 20,
		DiskBytes: st.DiskBytes, DiskLimit: r.DiskMB << 20, Processes: st.Processes,
	}
	if m.state() == sandbox.Paused {
		return stats, nil // the guest of a paused machine cannot answer
	}
	ctx, cancel := context.WithTimeout(ctx, guestPatience)
	defer cancel()
	h, err := m.guest.Health(ctx)
	if err != nil {
		return nil, e.machineError(m, err)
	}
	stats.Commands = h.Commands
	if stats.Processes == 0 {
		stats.Processes = h.Processes
	}
	if stats.DiskBytes == 0 {
		stats.DiskBytes = h.DiskBytes
	}
	return stats, nil
}

// machineError returns the reason why the machine has ended, or is about to, instead of
// the error that this made a call fail with.
func (e *Engine) machineError(m *session, err error) error {
	if m.ctx.Err() != nil {
		return context.Cause(m.ctx)
	}
	if isClosed(m.inst.Done()) {
		x := m.inst.Exit()
		return stoppedError(m.sandboxID, x.Reason, x.Message)
	}
	return err
}
