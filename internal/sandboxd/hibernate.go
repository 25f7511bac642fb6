package sandboxd

import (
	"context"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/store"
	"github.com/cayhq/cay/sandbox"
)

// errHibernated is the cause with which calls into the guest of a hibernating sandbox
// end.
var errHibernated = cay.Errorf(cay.Unavailable, "the sandbox was hibernated").WithHint("call again: that lets it go on")

// Hibernate implements Service.
func (e *Engine) Hibernate(ctx context.Context, ref string) (*sandbox.Sandbox, error) {
	r, m, err := e.lookupCurrent(ctx, ref)
	if err != nil {
		return nil, err
	}
	if m == nil && r.Status == sandbox.Hibernated {
		return e.reread(ctx, r.ID)
	}
	if e.cfg.Snapshots == nil {
		return nil, errNoSnapshots
	}
	if r, m, err = e.lookupLocked(ctx, ref); err != nil {
		return nil, err
	}
	q := saveRequest{kind: sandbox.MemorySnapshot, hibernate: true}
	err = e.checkSave(ctx, r, q)
	if err == nil {
		err = e.hibernate(ctx, r, m, q)
	}
	m.unlock()
	if err != nil {
		return nil, err
	}
	return e.reread(ctx, r.ID)
}

// hibernate saves a machine, whose op the caller holds, and destroys it.
//
// Calls into the guest wait meanwhile: callers see a slow machine until the save is
// complete, and then get errHibernated.
func (e *Engine) hibernate(ctx context.Context, r *store.Row, m *session, q saveRequest) error {
	before := m.state()
	m.setState(sandbox.Hibernated)
	m.idle.Disarm()
	stay := func() {
		m.setState(before)
		m.idle.Touch()
		m.mu.Lock()
		m.armIdleLocked(0)
		m.mu.Unlock()
	}
	m.saving.Lock()
	defer m.saving.Unlock()
	bound, done := m.bound(ctx) // a concurrent stop does not wait for this
	defer done()
	defer e.savingMemory()()
	e.archiveCommands(bound, m) // running commands continue in the next session, and are listed for both
	snap, err := e.saveMachine(bound, r, m, q)
	if err != nil {
		e.discardArchive(ctx, m)
		stay()
		return e.machineError(m, err)
	}
	// From here on the hibernation completes even if the caller leaves.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardownTimeout)
	defer cancel()
	e.lastSample(ctx, m)
	ok, err := e.store.Hibernated(ctx, snap, m.meter.Total(), m.archiveOf(), e.now())
	if err != nil || !ok {
		if before == sandbox.Running {
			e.thaw(ctx, m)
		}
		e.discard(ctx, snap)
		e.discardArchive(ctx, m)
		stay()
		if err != nil {
			return err
		}
		return e.machineError(m, stoppedError(r.Name, "", ""))
	}
	e.at("hibernated")
	e.log.InfoContext(ctx, "sandbox hibernated", "sandbox", m.sandboxID, "session", m.id, "bytes", snap.SizeBytes)
	m.detach(errHibernated)
	if err := e.finish(ctx, m); err != nil {
		// The sampler retries the end. Until then the sandbox cannot be resumed.
		e.log.ErrorContext(ctx, "machine of a hibernated sandbox was not ended yet", "sandbox", m.sandboxID, "error", err)
	}
	return nil
}

// findObstacles asks the guest what prevents saving its memory. The caller holds
// m.saving, and the machine runs. A guest that does not answer is assumed to have no
// obstacles: the save goes on, and the Runtime bounds a restore that hangs.
func (e *Engine) findObstacles(ctx context.Context, m *session) {
	m.obstacles = nil
	if m.answers.Load().since != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, guestPatience)
	defer cancel()
	found, err := m.guest.Obstacles(ctx)
	if err != nil {
		e.log.DebugContext(ctx, "guest did not say whether its memory can be saved", "sandbox", m.sandboxID, "error", err)
	}
	m.obstacles = found
}

// checkMemory reports whether the memory of a machine can be saved, before the save
// changes anything. The caller holds m.saving. The guest of a paused machine was asked
// before the pause; if an earlier daemon paused it, its obstacles are unknown and none
// are assumed. Errors: not_supported.
func (e *Engine) checkMemory(ctx context.Context, m *session) error {
	if !m.paused {
		e.findObstacles(ctx, m)
	}
	if len(m.obstacles) == 0 {
		return nil
	}
	return cay.Errorf(cay.NotSupported, "the sandbox's processes cannot be saved while it has %s", strings.Join(m.obstacles, ", ")).
		WithHint("end what uses that, or save the files, which works meanwhile")
}
