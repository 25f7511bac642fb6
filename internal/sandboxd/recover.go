package sandboxd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/store"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/sandbox"
)

// recover reconciles memory, machines and rows after a restart:
//
//	row                what happens
//	pending            failed, as its caller is gone; its machine is reaped
//	resuming           hibernated or stopped, as before; its machine is reaped
//	running, paused    its machine is adopted, whether its guest answers or not, and
//	                   resumed if it was paused for a save; without a machine the
//	                   row becomes failed with reason lost, and remains are reaped
//	stopping           its machine is saved, unless that was done, and reaped, and
//	                   the stop is recorded, all in the background
//	deleting           as stopping, without a save; the row is removed
//	none, or final     its machine, if there is one, is reaped
//
// A sandbox is given up only if its machine has ended or left no trace. After any other
// failure (disk full, no descriptors, no memory, a disk error, a timeout) the machine and
// the row stay as they are, and the recovery of that sandbox is retried, first after 1 s,
// in the end every 30 s.
func (e *Engine) recover(ctx context.Context) error {
	rows, err := e.store.Unfinished(ctx)
	if err != nil {
		return err
	}
	machines, err := e.cfg.Runtime.List(ctx)
	if err != nil {
		return fmt.Errorf("list machines: %w", err)
	}
	todo := make(map[string]*store.Row, len(rows)+len(machines))
	for _, id := range machines {
		todo[id] = nil
	}
	for _, r := range rows {
		todo[r.MachineID()] = r
	}
	e.recoverAll(ctx, todo)
	return ctx.Err()
}

// recoverAll recovers sandboxes by machine id. Failures are retried later, so that a
// machine that cannot be removed does not keep the daemon from starting.
func (e *Engine) recoverAll(ctx context.Context, todo map[string]*store.Row) {
	var g errgroup.Group
	g.SetLimit(fanOut)
	for id, r := range todo {
		g.Go(func() error {
			err := e.recoverOne(ctx, id, r)
			if err != nil {
				e.log.ErrorContext(ctx, "sandbox was not recovered yet", "sandbox", id, "error", err)
			}
			if err != nil {
				e.mu.Lock()
				defer e.mu.Unlock()
				e.leftover[id] = r
				return nil
			}
			e.at("recovered")
			return nil
		})
	}
	_ = g.Wait() // the functions return nil
}

func (e *Engine) reap(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, teardownTimeout)
	defer cancel()
	if err := e.cfg.Runtime.Reap(ctx, id); err != nil {
		return fmt.Errorf("remove machine %s: %w", id, err)
	}
	return nil
}

// rereadLeftover reads the row of a leftover again; nil if the sandbox has ended, or has
// another machine now.
func (e *Engine) rereadLeftover(ctx context.Context, id string, r *store.Row) (*store.Row, error) {
	now, err := e.store.Get(ctx, r.ID)
	if cay.CodeOf(err) == cay.NotFound || err == nil && (now.Status.Final() || now.MachineID() != id) {
		return nil, nil
	}
	return now, err
}

func (e *Engine) recoverOne(ctx context.Context, id string, r *store.Row) error {
	if r == nil {
		e.log.InfoContext(ctx, "machine without a sandbox is removed", "machine", id)
		return e.reap(ctx, id)
	}
	var f store.Failure
	switch r.Status {
	case sandbox.Pending:
		f = store.Failure{From: sandbox.Pending, Reason: sandbox.ReasonStartFailed, Message: "the daemon ended while it was being created"}
	case sandbox.Resuming:
		f = store.Failure{From: sandbox.Resuming, Reason: sandbox.ReasonStartFailed, Message: "the daemon ended while it was being resumed"}
	case sandbox.Running, sandbox.Paused:
		err := e.adopt(ctx, r)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return wire.ContextError(ctx) // a canceled recovery says nothing about the machine
		}
		if !errors.Is(err, errMachineGone) {
			return err
		}
		e.log.WarnContext(ctx, "sandbox was lost", "sandbox", r.ID, "error", err)
		f = store.Failure{From: sandbox.Running, Reason: sandbox.ReasonLost, Message: "it did not survive a restart of the daemon"}
	case sandbox.Stopping:
		switch ending, err := e.endAdopted(ctx, r); {
		case err != nil:
			return err
		case ending:
			return nil
		}
	}
	// Remove the machine first: recovery does not look at rows that have ended.
	if err := e.reap(ctx, r.MachineID()); err != nil {
		return err
	}
	if f.From != "" {
		if _, err := e.store.Fail(ctx, r.ID, f, e.now()); err != nil {
			return err
		}
	}
	var k store.CommandArchive
	if r.StartedAt == nil {
		k.Blob = store.NoCommands
	}
	return e.store.Ended(ctx, r.ID, r.SessionID, r.Usage, k, e.now())
}

// adopt takes over the machine of a sandbox that ran before the restart.
func (e *Engine) adopt(ctx context.Context, r *store.Row) (err error) {
	m, err := e.adoptSession(ctx, r)
	if err != nil {
		return err
	}
	defer close(m.created)
	defer func() {
		if err != nil {
			e.postpone(ctx, m, err)
		}
	}()
	// The daemon may have died between updating the row's policy and the machine's.
	network, err := e.network(r)
	if err != nil {
		return err
	}
	if err := m.inst.SetNetwork(network); err != nil {
		return fmt.Errorf("set network: %w", err)
	}
	if err := e.settlePause(ctx, m, r); err != nil {
		return err
	}
	var silence error // why the guest does not answer; the guest is probed again later
	if !m.paused {
		var h guest.Health
		if h, silence = askGuest(ctx, m, guestPatience); silence == nil {
			// The certificates of the operator may have changed. A paused machine gets
			// them when it is resumed.
			e.trustAtStart(ctx, m, r.Network, h.Trust)
			e.resetStale(m)
		}
		if ctx.Err() != nil {
			return wire.ContextError(ctx)
		}
	}
	if r.Frozen {
		if _, err := e.store.SetFrozen(ctx, r.ID, false); err != nil {
			return err
		}
	}
	if r.Boot != e.clock.Boot() {
		// StartedMono of another boot means nothing now. Compute it from the run time in
		// Usage.
		r.StartedMono = e.clock.Mono() - time.Duration(r.Usage.WallTime)
	}
	if _, err := e.add(m); err != nil {
		return err
	}
	e.run(m, r)
	if silence != nil {
		e.fellSilent(m, silence)
		e.watchGuest(m)
	}
	e.log.InfoContext(ctx, "sandbox adopted", "sandbox", r.ID, "session", m.id)
	return nil
}

// errMachineGone is the reason why recovery gives up a sandbox.
var errMachineGone = errors.New("its machine does not run any more")

// adoptSession creates a session for a machine that an earlier daemon started. Errors:
// errMachineGone; any other error says nothing about the machine.
func (e *Engine) adoptSession(ctx context.Context, r *store.Row) (*session, error) {
	inst, err := e.cfg.Runtime.Adopt(ctx, r.MachineID())
	if cay.CodeOf(err) == cay.NotFound {
		return nil, fmt.Errorf("%w: %w", errMachineGone, err)
	}
	if err != nil {
		return nil, err
	}
	m := e.newSession(r)
	m.inst, m.adopted = inst, true
	m.stale.Store(true)
	m.drives = store.WritesDrives(r.Mounts)
	if err := m.flows.GoOn(ctx); err != nil {
		e.postpone(ctx, m, err)
		return nil, err
	}
	m.follow()
	inst.SetTraffic(r.Usage.IngressBytes, r.Usage.EgressBytes)
	e.reach(m, r.GuestToken)
	m.commands.Store(true) // unknown after a restart
	m.imageEnv, m.env = r.ImageEnv, r.Env
	for _, digest := range []string{r.Digest, r.RuntimeDigest} {
		if digest == "" {
			continue
		}
		// The machine holds its image files open; the lease only shows that they are in
		// use.
		if _, err := e.lease(ctx, m, digest); err != nil {
			e.log.WarnContext(ctx, "image of an adopted sandbox is not leased", "sandbox", r.ID, "digest", digest, "error", err)
		}
	}
	return m, nil
}

// postpone leaves a machine that cannot be adopted now untouched, for the next attempt.
func (e *Engine) postpone(ctx context.Context, m *session, err error) {
	m.cancel(err)
	m.free()
	if derr := m.inst.Detach(); derr != nil {
		e.log.ErrorContext(ctx, "machine that is not adopted yet keeps what the daemon holds of it", "sandbox", m.sandboxID, "error", derr)
	}
}

// endAdopted completes, in the background, a stop that an earlier daemon began, if there
// are files or drives that may not have been saved. It returns false if there is nothing
// to save.
func (e *Engine) endAdopted(ctx context.Context, r *store.Row) (ending bool, err error) {
	if r.StartedAt == nil || r.Deleting || !r.Persistent && !store.WritesDrives(r.Mounts) {
		return false, nil
	}
	m, err := e.adoptSession(ctx, r)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return false, wire.ContextError(ctx)
	case errors.Is(err, errMachineGone):
		e.log.WarnContext(ctx, "sandbox ended before it was saved", "sandbox", r.ID, "error", err)
		return false, nil
	default:
		return false, err
	}
	if m.left, err = e.store.EndSnapshot(ctx, r); err != nil {
		e.postpone(ctx, m, err)
		return false, err
	}
	m.started = r.StartedMono
	m.meter.Begin(r.StartedMono, r.Usage)
	m.why.Store(&store.End{Reason: r.Reason, Message: r.Message, Deleting: r.Deleting})
	m.detach(stoppedError(r.Name, r.Reason, r.Message))
	close(m.created)
	if _, err := e.add(m); err != nil {
		e.postpone(ctx, m, err)
		return false, err
	}
	e.background(func() {
		if err := e.awaitEnd(e.ctx, m); err != nil {
			// The session is stuck, and the sampler retries its end.
			e.log.ErrorContext(e.ctx, "sandbox is not saved yet", "sandbox", r.ID, "error", err)
		}
	})
	return true, nil
}

// pauseProbe is how long recovery waits for the guest of a machine that may be paused; if
// the guest answers, it is not.
const pauseProbe = time.Second

// settlePause pauses or resumes an adopted machine to match its row. The restart may have
// come between the change of the row and the change of the machine, or while the machine
// was paused for a save.
func (e *Engine) settlePause(ctx context.Context, m *session, r *store.Row) error {
	paused, sure := m.inst.Paused()
	if !sure {
		_, silence := askGuest(ctx, m, pauseProbe)
		if ctx.Err() != nil {
			return wire.ContextError(ctx)
		}
		// A sandbox whose row is running can be paused only by a save.
		paused = silence != nil && (r.Frozen || r.Status == sandbox.Paused)
	}
	m.paused = r.Status == sandbox.Paused
	switch {
	case paused && !m.paused:
		if err := m.inst.Resume(ctx); err != nil {
			return fmt.Errorf("resume: %w", err)
		}
	case !paused && m.paused:
		if err := m.inst.Pause(ctx); err != nil {
			return fmt.Errorf("pause: %w", err)
		}
	}
	return nil
}

// askGuest returns the health of a machine's guest, or an error if it does not answer
// within patience.
func askGuest(ctx context.Context, m *session, patience time.Duration) (guest.Health, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return m.guest.Health(ctx)
}

// staleTimeout bounds the question for the connections of an adopted machine.
const staleTimeout = 10 * time.Second

// resetStale ends, in the background, the connections that the guest of an adopted machine
// has from before: their other ends are gone with the earlier daemon. A connection on
// which the guest sends is reset by its next packet; this is for connections on which the
// guest only waits, which it would do forever. Only the guest knows them. resetStale does
// nothing for a machine whose connections have been reset.
func (e *Engine) resetStale(m *session) {
	if !m.stale.CompareAndSwap(true, false) {
		return
	}
	e.background(func() {
		ctx, cancel := context.WithTimeout(m.ctx, staleTimeout)
		defer cancel()
		all, err := m.guest.Connections(ctx)
		if err != nil {
			if ctx.Err() == nil {
				e.log.WarnContext(ctx, "connections from before the restart may hang in a sandbox", "sandbox", m.sandboxID, "error", err)
			}
			m.stale.Store(true) // try again when the guest answers again, or is resumed
			return
		}
		stale := make([]machine.Connection, 0, len(all))
		for _, c := range all {
			stale = append(stale, machine.Connection(c))
		}
		m.inst.Reset(stale)
	})
}

// firstRetry is the delay after a restart before the first retry of failed recoveries.
const firstRetry = time.Second

// armRecovery schedules the next recovery of leftovers, and doubles the delay each time,
// until the sampler, which retries too, is as frequent.
func (e *Engine) armRecovery(in time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || len(e.leftover) == 0 || in >= samplePeriod {
		return
	}
	e.recoverer = e.clock.At(e.clock.Mono()+in, func() {
		e.background(func() {
			e.recoverLeftover()
			e.armRecovery(2 * in)
		})
	})
}

// recoverLeftover retries the recovery of leftovers. Meanwhile it owns them: another
// caller that wants to end a leftover first takes it out of the map.
func (e *Engine) recoverLeftover() {
	e.mu.Lock()
	todo := e.leftover
	e.leftover = make(map[string]*store.Row)
	e.mu.Unlock()
	for id, r := range todo {
		if r == nil {
			continue
		}
		now, err := e.rereadLeftover(e.ctx, id, r)
		if err != nil {
			e.log.WarnContext(e.ctx, "row of a sandbox that is not recovered yet cannot be read", "sandbox", r.ID, "error", err)
			continue // use the old row; conditional statements refuse transitions from a status that has changed
		}
		todo[id] = now
	}
	e.recoverAll(e.ctx, todo)
}

// endUnrecovered ends a sandbox whose machine recovery could not adopt yet, if nothing of
// the machine is to be saved. Errors: unavailable while recovery goes on, or if recovery
// must adopt the machine to save it.
func (e *Engine) endUnrecovered(ctx context.Context, r *store.Row, why store.End) error {
	if store.WritesDrives(r.Mounts) || r.Persistent && !why.Deleting {
		return notRecovered(r.Name)
	}
	id := r.MachineID()
	e.mu.Lock()
	_, left := e.leftover[id]
	delete(e.leftover, id)
	e.mu.Unlock()
	if !left {
		return notRecovered(r.Name)
	}
	err := e.endLeftover(ctx, r, why)
	if err != nil {
		e.log.ErrorContext(ctx, "sandbox that was not recovered does not end", "sandbox", r.ID, "error", err)
		e.mu.Lock()
		e.leftover[id] = r
		e.mu.Unlock()
		return notRecovered(r.Name)
	}
	return nil
}

// endLeftover removes the machine before it updates the row: recovery does not look at
// rows that have ended.
func (e *Engine) endLeftover(ctx context.Context, r *store.Row, why store.End) error {
	if err := e.reap(ctx, r.MachineID()); err != nil {
		return err
	}
	if _, err := e.store.BeginStop(ctx, r.ID, r.SessionID, why, e.now()); err != nil {
		return err
	}
	if why.Deleting {
		if err := e.store.MarkDeleting(ctx, r.ID, why.KeepSnapshots); err != nil {
			return err
		}
	}
	now, err := e.store.Get(ctx, r.ID)
	if err != nil {
		return err
	}
	return e.recoverOne(ctx, r.MachineID(), now)
}
