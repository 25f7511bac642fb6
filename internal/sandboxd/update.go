package sandboxd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/store"
	"github.com/cayhq/cay/sandbox"
)

// Update implements Service.
func (e *Engine) Update(ctx context.Context, ref string, p sandbox.UpdateParams) (*sandbox.Sandbox, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	c, err := e.changeOf(p)
	if err != nil {
		return nil, err
	}
	r, _, err := e.lookupCurrent(ctx, ref)
	if err != nil {
		return nil, err
	}
	if err := e.checkNext(ctx, r, p); err != nil {
		return nil, err
	}
	if p.Mounts != nil {
		if c.Next.Mounts, err = e.store.ResolveMounts(ctx, r.Scope(), p.Mounts); err != nil {
			return nil, err
		}
	}
	if p.Network == nil && p.IdleTimeout == nil && p.Persistent == nil && p.SaveEvery == nil {
		return e.updateRow(ctx, r, c)
	}
	r, m, err := e.lookupLocked(ctx, r.Ref())
	if err != nil {
		if r, again := e.resting(ctx, ref); again == nil {
			return e.updateResting(ctx, r, c, p)
		}
		return nil, err
	}
	defer m.unlock()
	return e.updateLive(ctx, r, m, c, p)
}

// changeOf returns the change that p asks for, without the policy, which is sealed for
// its sandbox.
func (e *Engine) changeOf(p sandbox.UpdateParams) (c store.Change, err error) {
	c = store.Change{
		Tags: p.Tags, Annotations: p.Annotations, Idle: p.IdleTimeout, Persistent: p.Persistent, Timeout: p.Timeout, Snapshot: p.SnapshotID,
		Expiration: p.SnapshotExpiration, Retention: p.Retention, SaveEvery: p.SaveEvery,
		Next: store.NextSession{VCPUs: p.VCPUs, MemoryMB: p.MemoryMB, Env: p.Env, Mounts: p.Mounts, Runtime: p.Runtime},
	}
	if p.Ports != nil {
		if c.Ports, err = declare(p.Ports); err != nil {
			return c, err
		}
	}
	if p.Network != nil {
		if err := p.Network.WithDefaults().Limits.Within(e.cfg.Limits.Network); err != nil {
			return c, err
		}
	}
	limits := e.cfg.Limits
	switch {
	case p.VCPUs != nil && *p.VCPUs > limits.MaxVCPUs:
		err = cay.Errorf(cay.Invalid, "vcpus %g is more than this daemon's maximum of %g", *p.VCPUs, limits.MaxVCPUs)
	case p.MemoryMB != nil && *p.MemoryMB > limits.MaxMemoryMB:
		err = cay.Errorf(cay.Invalid, "memory_mb %d is more than this daemon's maximum of %d", *p.MemoryMB, limits.MaxMemoryMB)
	case p.Timeout != nil && time.Duration(*p.Timeout) > limits.MaxTimeout:
		err = cay.Errorf(cay.Invalid, "timeout %v is more than this daemon's maximum of %v", *p.Timeout, limits.MaxTimeout)
	case p.Persistent != nil && *p.Persistent && e.cfg.Snapshots == nil:
		err = errNoSnapshots
	}
	return c, err
}

// checkNext reports whether a sandbox can have the next session that p asks for.
func (e *Engine) checkNext(ctx context.Context, r *store.Row, p sandbox.UpdateParams) error {
	if p.Runtime != nil && r.Runtime == "" {
		return cay.Errorf(cay.Invalid, "sandbox %q has no runtime to replace by %q: it is of the image %q", r.Name, *p.Runtime, r.Image).
			WithHint("runtimes are for the default image")
	}
	if p.SnapshotID == nil || *p.SnapshotID == "" {
		return nil
	}
	snap, err := e.store.FindSnapshot(ctx, r.Scope(), *p.SnapshotID)
	switch {
	case err != nil:
		return err
	case snap.Status == sandbox.SnapshotDeleted:
		return cay.Errorf(cay.NotFound, "snapshot %q was deleted", *p.SnapshotID)
	case snap.Digest != r.Digest || snap.RuntimeDigest != r.RuntimeDigest:
		return cay.Errorf(cay.Conflict, "snapshot %q is of another image than sandbox %q", *p.SnapshotID, r.Name).
			WithHint("create a new sandbox from it")
	case snap.DiskMB > r.DiskMB:
		return cay.Errorf(cay.Conflict, "snapshot %q is of a disk of %d MiB, and sandbox %q has %d", *p.SnapshotID, snap.DiskMB, r.Name, r.DiskMB)
	}
	*p.SnapshotID = snap.ID
	return nil
}

// updateRow makes a change that does not concern a machine.
func (e *Engine) updateRow(ctx context.Context, r *store.Row, c store.Change) (*sandbox.Sandbox, error) {
	ended, _, err := e.store.Update(ctx, r.ID, c, e.now())
	if err != nil {
		return nil, fmt.Errorf("update sandbox: %w", err)
	}
	e.labels.Forget(ended)
	return e.reread(ctx, r.ID)
}

// resting returns a sandbox that has no machine but can be resumed.
func (e *Engine) resting(ctx context.Context, ref string) (*store.Row, error) {
	r, m, err := e.lookupCurrent(ctx, ref)
	if err == nil && (m != nil || r.Status != sandbox.Hibernated && !r.Status.Final()) {
		err = e.statusError(r)
	}
	return r, err
}

// updateResting makes a change for the next session of a sandbox without a machine.
func (e *Engine) updateResting(ctx context.Context, r *store.Row, c store.Change, p sandbox.UpdateParams) (*sandbox.Sandbox, error) {
	if p.Network != nil {
		kept, err := e.sealPolicy(r.ID, p.Network.WithDefaults())
		if err != nil {
			return nil, err
		}
		c.Network = &kept
	}
	c.Resting = true
	ended, ok, err := e.store.Update(ctx, r.ID, c, e.now())
	if err != nil {
		return nil, fmt.Errorf("update sandbox: %w", err)
	}
	if !ok {
		return nil, cay.Errorf(cay.Conflict, "sandbox %q was resumed or removed meanwhile", r.Name).WithHint("try again")
	}
	e.labels.Forget(ended)
	return e.reread(ctx, r.ID)
}

// updateLive changes a machine together with its row. The caller holds m.op.
func (e *Engine) updateLive(ctx context.Context, r *store.Row, m *session, c store.Change, p sandbox.UpdateParams) (*sandbox.Sandbox, error) {
	if p.Persistent != nil && *p.Persistent && !r.Persistent {
		if err := e.checkSnapshotQuota(ctx, r.TeamID, 0); err != nil { // as for the creation of a persistent sandbox
			return nil, err
		}
	}
	var network sandbox.Network
	if p.Network != nil {
		network = p.Network.WithDefaults()
		kept, err := e.sealPolicy(r.ID, network)
		if err != nil {
			return nil, err
		}
		c.Network = &kept
	}
	if p.Network != nil && r.Status == sandbox.Running {
		// Before the policy changes: a guest whose TLS is opened must already trust the
		// daemon. A paused guest gets missing certificates when it is resumed.
		if err := e.trust(ctx, m, network, guest.Trust{}); err != nil {
			return nil, e.machineError(m, err)
		}
	}
	// Write the row first: if the daemon dies before it changes the machine, recovery
	// does.
	ended, ok, err := e.store.Update(ctx, r.ID, c, e.now())
	if err != nil {
		return nil, fmt.Errorf("update sandbox: %w", err)
	}
	if !ok {
		return nil, stoppedError(r.Name, "", "")
	}
	e.labels.Forget(ended)
	if p.Network != nil {
		e.at("network-recorded")
		if err := m.inst.SetNetwork(network); err != nil {
			return nil, e.machineError(m, fmt.Errorf("set network: %w", errors.Join(err, e.undo(ctx, r, c))))
		}
	}
	m.mu.Lock()
	if p.Persistent != nil {
		m.keep = *p.Persistent
	}
	if p.SaveEvery != nil {
		m.autosave.every = time.Duration(*p.SaveEvery)
	}
	if p.Persistent != nil || p.SaveEvery != nil {
		e.armSaveLocked(m, 0)
	}
	if p.IdleTimeout != nil {
		m.idle.Set(time.Duration(*p.IdleTimeout))
		m.idle.Touch()
		m.armIdleLocked(0)
	}
	m.mu.Unlock()
	return e.reread(ctx, r.ID)
}

// undo restores the values from before a change.
func (e *Engine) undo(ctx context.Context, before *store.Row, c store.Change) error {
	back := store.Change{Network: &store.Policy{Shown: before.Network, Sealed: before.Sealed}, Idle: &before.IdleTimeout, SaveEvery: &before.SaveEvery}
	if c.Tags != nil {
		back.Tags = map[string]string{}
		maps.Copy(back.Tags, before.Tags)
	}
	if c.Annotations != nil {
		back.Annotations = map[string]string{}
		maps.Copy(back.Annotations, before.Annotations)
	}
	if c.Persistent != nil {
		back.Persistent = &before.Persistent
	}
	if c.Ports != nil {
		back.Ports = append([]sandbox.Port{}, before.Ports...)
	}
	ended, _, err := e.store.Update(context.WithoutCancel(ctx), before.ID, back, e.now())
	e.labels.Forget(ended)
	return err
}
