package sandboxd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/store"
	"github.com/cayhq/cay/sandbox"
)

// recover brings memory, machines and rows together after a restart:
//
//	row                what happens
//	pending            failed; its machine is reaped: nobody waits for it
//	resuming           back to where it was before; its machine is reaped
//	running, paused    adopted if its machine is there, whether its guest answers
//	                   or not; if it is not there, failed with reason lost, and
//	                   reaped. If it was paused to be saved, it goes on
//	stopping           its machine is saved, if that is still to be done, and
//	                   reaped, and the stop recorded, all in the background
//	to be deleted      as stopping, and the row removed
//	none, or final     its machine, if there is one, is reaped
//
// Only a machine that has ended, or of which nothing is there, is given up. Every
// other failure (no room, no descriptors, no memory, an error of the disk, no answer in
// time) leaves machine and row as they are, and recovery of that sandbox is tried again,
// after a second at first and every 30 seconds in the end.
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

// recoverAll recovers sandboxes by machine id. What it cannot finish is tried
// again later: one machine that cannot be removed does not keep the daemon from
// starting.
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
	_ = g.Wait() // its functions return nil
}

func (e *Engine) reap(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, teardownTimeout)
	defer cancel()
	if err := e.cfg.Runtime.Reap(ctx, id); err != nil {
		return fmt.Errorf("remove machine %s: %w", id, err)
	}
	return nil
}

// rereadLeftover returns the row of a leftover as it is now; nil if it has ended, or goes on
// with another machine.
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
		f = store.Failure{From: sandbox.Pending, Reason: sandbox.ReasonStart, Message: "the daemon ended while it was being created"}
	case sandbox.Resuming:
		f = store.Failure{From: sandbox.Resuming, Reason: sandbox.ReasonStart, Message: "the daemon ended while it was being resumed"}
	case sandbox.Running, sandbox.Paused:
		err := e.adopt(ctx, r)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return contextError(ctx) // which says nothing about the machine
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
	// The machine first: a row that has ended is not looked at again.
	if err := e.reap(ctx, r.MachineID()); err != nil {
		return err
	}
	if f.From != "" {
		if _, err := e.store.Fail(ctx, r.ID, f, e.now()); err != nil {
			return err
		}
	}
	var k store.KeptCommands
	if r.StartedAt == nil {
		k.Blob = store.NoCommands
	}
	return e.store.Ended(ctx, r.ID, r.SessionID, r.Usage, k, e.now())
}

// adopt makes the machine of a sandbox that ran before the restart ours.
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
	// What the row says about the machine may not have reached it.
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
	var silence error // why the guest does not answer; it takes its time, and is asked again
	if !m.paused {
		var h guest.Health
		if h, silence = askGuest(ctx, m, guestPatience); silence == nil {
			// The machine's own certificates may have changed. One that is paused
			// gets them when it goes on.
			e.trustAtStart(ctx, m, r.Network, h.Trust)
		}
		if ctx.Err() != nil {
			return contextError(ctx)
		}
	}
	if r.Frozen {
		if _, err := e.store.SetFrozen(ctx, r.ID, false); err != nil {
			return err
		}
	}
	if r.Boot != e.clock.Boot() {
		// Another boot's clock means nothing here. Usage says how long it ran.
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

// errMachineGone is why a sandbox is given up after a restart.
var errMachineGone = errors.New("its machine does not run any more")

// adoptSession makes a handle of a machine that an earlier daemon started. Errors:
// errMachineGone; any other says nothing about the machine.
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
	m.drives = store.WritesDrives(r.Mounts)
	if err := m.flows.GoOn(ctx); err != nil {
		e.postpone(ctx, m, err)
		return nil, err
	}
	m.follow()
	inst.SetTraffic(r.Usage.IngressBytes, r.Usage.EgressBytes)
	e.reach(m, r.GuestToken)
	m.commands.Store(true) // nobody knows
	m.imageEnv, m.env = r.ImageEnv, r.Env
	for _, digest := range []string{r.Digest, r.RuntimeDigest} {
		if digest == "" {
			continue
		}
		// The machine holds its files open; the lease only keeps them listed.
		if _, err := e.lease(ctx, m, digest); err != nil {
			e.log.WarnContext(ctx, "image of an adopted sandbox is not leased", "sandbox", r.ID, "digest", digest, "error", err)
		}
	}
	return m, nil
}

// postpone leaves a machine that cannot be adopted now as it is, for the next try.
func (e *Engine) postpone(ctx context.Context, m *session, err error) {
	m.cancel(err)
	m.free()
	if derr := m.inst.Detach(); derr != nil {
		e.log.ErrorContext(ctx, "machine that is not adopted yet keeps what the daemon holds of it", "sandbox", m.sandboxID, "error", derr)
	}
}

// endAdopted goes on, in the background, with the end of a sandbox that an earlier
// daemon began, if there is something to save that it may not have saved. It reports
// false if there is not.
func (e *Engine) endAdopted(ctx context.Context, r *store.Row) (ending bool, err error) {
	if r.StartedAt == nil || r.Deleting || !r.Persistent && !store.WritesDrives(r.Mounts) {
		return false, nil
	}
	m, err := e.adoptSession(ctx, r)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return false, contextError(ctx)
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
			// It is stuck, and the sampler's from now on.
			e.log.ErrorContext(e.ctx, "sandbox is not saved yet", "sandbox", r.ID, "error", err)
		}
	})
	return true, nil
}

// pauseProbe is how long a guest of which nobody knows whether it is paused is
// given to show that it is not.
const pauseProbe = time.Second

// settlePause has an adopted machine paused or running as its row says. The restart
// may have come between the row's change and the machine's, on the way into a pause
// or out of it, or while the machine was paused to be saved.
func (e *Engine) settlePause(ctx context.Context, m *session, r *store.Row) error {
	paused, sure := m.inst.Paused()
	if !sure {
		_, silence := askGuest(ctx, m, pauseProbe)
		if ctx.Err() != nil {
			return contextError(ctx)
		}
		// A sandbox that was to be running is not paused by anybody but for a save.
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

// askGuest returns what the guest of a machine says of itself, or why it did not
// within its time.
func askGuest(ctx context.Context, m *session, patience time.Duration) (guest.Health, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return m.guest.Health(ctx)
}

// firstRetry is how long after a restart what it could not recover is tried again.
const firstRetry = time.Second

// armRecovery has leftovers recovered after a while, and then after twice as long each
// time, until the sampler, which does the same, is as quick.
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

// recoverLeftover tries again what recovery could not finish. Meanwhile it has the
// leftovers to itself: whoever else wants to end one of them takes it out of the map.
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
			continue // with the row as it was: what has changed meanwhile is refused by conditions of the statements
		}
		todo[id] = now
	}
	e.recoverAll(e.ctx, todo)
}

// endUnrecovered ends a sandbox whose machine recovery could not adopt yet, if the
// machine has nothing that is to be saved first. Errors: unavailable while recovery
// goes on, or has to adopt the machine to save it.
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

// endLeftover ends the machine first: a row that has ended is not looked at again.
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
