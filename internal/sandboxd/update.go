package sandboxd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
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
	r, _, err := e.current(ctx, ref)
	if err != nil {
		return nil, err
	}
	if err := e.checkNext(ctx, r, p); err != nil {
		return nil, err
	}
	if p.Mounts != nil {
		if c.next.Mounts, _, err = resolveMounts(ctx, e.store.db, scope{r.TeamID, r.ProjectID}, p.Mounts); err != nil {
			return nil, err
		}
	}
	if p.Network == nil && p.IdleTimeout == nil && p.Persistent == nil {
		return e.updateRow(ctx, r, c)
	}
	r, m, err := e.locked(ctx, r.ref())
	if err != nil {
		if r, again := e.resting(ctx, ref); again == nil {
			return e.updateResting(ctx, r, c, p)
		}
		return nil, err
	}
	defer m.unlock()
	return e.updateLive(ctx, r, m, c, p)
}

// changeOf is what p sets, but for the policy, which is sealed for its sandbox.
func (e *Engine) changeOf(p sandbox.UpdateParams) (c change, err error) {
	c = change{
		tags: p.Tags, annotations: p.Annotations, idle: p.IdleTimeout, persistent: p.Persistent, timeout: p.Timeout, snapshot: p.SnapshotID,
		expiration: p.SnapshotExpiration, retention: p.Retention,
		next: nextSession{VCPUs: p.VCPUs, MemoryMB: p.MemoryMB, Env: p.Env, Mounts: p.Mounts, Runtime: p.Runtime},
	}
	if p.Ports != nil {
		if c.ports, err = declare(p.Ports); err != nil {
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

// checkNext reports whether a sandbox can have the next session p asks for.
func (e *Engine) checkNext(ctx context.Context, r *row, p sandbox.UpdateParams) error {
	if p.Runtime != nil && r.Runtime == "" {
		return cay.Errorf(cay.Invalid, "sandbox %q has no runtime to replace by %q: it is of the image %q", r.Name, *p.Runtime, r.Image).
			WithHint("runtimes are for the default image")
	}
	if p.SnapshotID == nil || *p.SnapshotID == "" {
		return nil
	}
	snap, err := e.store.findSnapshot(ctx, scope{r.TeamID, r.ProjectID}, *p.SnapshotID)
	switch {
	case err != nil:
		return err
	case snap.Status == sandbox.SnapshotDeleted:
		return cay.Errorf(cay.NotFound, "snapshot %q was deleted", *p.SnapshotID)
	case snap.Digest != r.Digest || snap.runtimeDigest != r.runtimeDigest:
		return cay.Errorf(cay.Conflict, "snapshot %q is of another image than sandbox %q", *p.SnapshotID, r.Name).
			WithHint("create a new sandbox from it")
	case snap.DiskMB > r.DiskMB:
		return cay.Errorf(cay.Conflict, "snapshot %q is of a disk of %d MiB, and sandbox %q has %d", *p.SnapshotID, snap.DiskMB, r.Name, r.DiskMB)
	}
	*p.SnapshotID = snap.ID
	return nil
}

// updateRow makes a change that concerns no machine.
func (e *Engine) updateRow(ctx context.Context, r *row, c change) (*sandbox.Sandbox, error) {
	ended, _, err := e.store.update(ctx, r.ID, c, e.now())
	if err != nil {
		return nil, fmt.Errorf("update sandbox: %w", err)
	}
	e.previews.forget(ended)
	return e.reread(ctx, r.ID)
}

// resting returns a sandbox that has no machine but can have one again.
func (e *Engine) resting(ctx context.Context, ref string) (*row, error) {
	r, m, err := e.current(ctx, ref)
	if err == nil && (m != nil || r.Status != sandbox.Hibernated && !r.Status.Final()) {
		err = e.unusable(r)
	}
	return r, err
}

// updateResting makes a change for the next session of a sandbox that rests.
func (e *Engine) updateResting(ctx context.Context, r *row, c change, p sandbox.UpdateParams) (*sandbox.Sandbox, error) {
	if p.Network != nil {
		kept, err := e.keep(r.ID, p.Network.WithDefaults())
		if err != nil {
			return nil, err
		}
		c.network = &kept
	}
	c.resting = true
	ended, ok, err := e.store.update(ctx, r.ID, c, e.now())
	if err != nil {
		return nil, fmt.Errorf("update sandbox: %w", err)
	}
	if !ok {
		return nil, cay.Errorf(cay.Conflict, "sandbox %q was resumed or removed meanwhile", r.Name).WithHint("try again")
	}
	e.previews.forget(ended)
	return e.reread(ctx, r.ID)
}

// updateLive changes a machine, whose op is held, with its row.
func (e *Engine) updateLive(ctx context.Context, r *row, m *machine, c change, p sandbox.UpdateParams) (*sandbox.Sandbox, error) {
	if p.Persistent != nil && *p.Persistent && !r.Persistent {
		if err := e.checkSnapshotQuota(ctx, r.TeamID, 0); err != nil { // as if it had been created so
			return nil, err
		}
	}
	var network sandbox.Network
	if p.Network != nil {
		network = p.Network.WithDefaults()
		kept, err := e.keep(r.ID, network)
		if err != nil {
			return nil, err
		}
		c.network = &kept
	}
	if p.Network != nil && r.Status == sandbox.Running {
		// Before anything changes: a guest whose TLS is opened must trust us by
		// then. One that is paused gets what it lacks when it goes on.
		if err := e.trust(ctx, m, network, guest.Trust{}); err != nil {
			return nil, e.machineError(m, err)
		}
	}
	// The row first: if we die before the machine follows, recovery makes it.
	ended, ok, err := e.store.update(ctx, r.ID, c, e.now())
	if err != nil {
		return nil, fmt.Errorf("update sandbox: %w", err)
	}
	if !ok {
		return nil, stoppedError(r.Name, "", "")
	}
	e.previews.forget(ended)
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
	if p.IdleTimeout != nil {
		m.idle = time.Duration(*p.IdleTimeout)
		e.touch(m)
		e.armIdleLocked(m, 0)
	}
	m.mu.Unlock()
	return e.reread(ctx, r.ID)
}

// undo gives what a change set its value of before.
func (e *Engine) undo(ctx context.Context, before *row, c change) error {
	back := change{network: &policy{before.Network, before.sealed}, idle: &before.IdleTimeout}
	if c.tags != nil {
		back.tags = map[string]string{}
		maps.Copy(back.tags, before.Tags)
	}
	if c.annotations != nil {
		back.annotations = map[string]string{}
		maps.Copy(back.annotations, before.Annotations)
	}
	if c.persistent != nil {
		back.persistent = &before.Persistent
	}
	if c.ports != nil {
		back.ports = append([]sandbox.Port{}, before.Ports...)
	}
	ended, _, err := e.store.update(context.WithoutCancel(ctx), before.ID, back, e.now())
	e.previews.forget(ended)
	return err
}
