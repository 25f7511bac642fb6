package sandboxd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/ident"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/snapshot"
	"github.com/cayhq/cay/internal/sandboxd/store"
	"github.com/cayhq/cay/internal/sandboxd/usage"
	"github.com/cayhq/cay/sandbox"
)

const (
	// saveTimeout bounds one save of a machine.
	saveTimeout = 15 * time.Minute
	// stopGrace is how long the processes of a sandbox that is stopped have to end
	// by themselves before its files are saved.
	stopGrace = time.Second
	// quiescePatience bounds quiescing a guest: one that does not answer is saved
	// as it is.
	quiescePatience = stopGrace + 5*time.Second
)

// saveRequest says what to save of a machine.
type saveRequest struct {
	kind       sandbox.SnapshotKind
	name       string
	replace    bool              // take name from the snapshot that has it
	env        map[string]string // added to the image's
	noNetwork  bool              // leave out the sandbox's network policy
	expiration *sandbox.Duration // nil: the sandbox's
	automatic  bool
	hibernate  bool // the machine stays paused
	// unless is a snapshot to keep instead of making one, if it has the same files.
	unless *store.SnapshotRow
}

// CreateSnapshot implements Service.
func (e *Engine) CreateSnapshot(ctx context.Context, ref string, p sandbox.SnapshotParams) (*sandbox.Snapshot, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if e.cfg.Snapshots == nil {
		return nil, errNoSnapshots
	}
	q := saveRequest{kind: p.Kind, name: p.Name, replace: p.Replace, env: p.Env, expiration: p.Expiration, noNetwork: p.WithoutNetwork}
	if q.kind == "" {
		q.kind = sandbox.FilesystemSnapshot
	}
	r, m, err := e.locked(ctx, ref)
	if err != nil {
		return nil, err
	}
	snap, err := e.snapshotLocked(ctx, r, m, q, p.Stop)
	m.unlock()
	if err != nil {
		return nil, err
	}
	e.log.InfoContext(ctx, "snapshot made", "snapshot", snap.ID, "sandbox", r.ID, "kind", snap.Kind, "bytes", snap.SizeBytes,
		"took", time.Duration(snap.Took), "paused", time.Duration(snap.Paused))
	return &snap.Snapshot, nil
}

// snapshotLocked makes a snapshot of a machine whose op is held.
func (e *Engine) snapshotLocked(ctx context.Context, r *store.Row, m *session, q saveRequest, stop bool) (*store.SnapshotRow, error) {
	if err := e.checkSave(ctx, r, q); err != nil {
		return nil, err
	}
	if stop && q.kind == sandbox.FilesystemSnapshot {
		// Its end saves it anyhow, with nothing running any more.
		m.finishing.Lock()
		m.wanted = &q
		m.finishing.Unlock()
		if err := e.stop(ctx, m, store.End{Reason: sandbox.ReasonRequested}); err != nil {
			return nil, err
		}
		m.finishing.Lock()
		defer m.finishing.Unlock()
		if m.left == nil {
			return nil, e.machineError(m, cay.Errorf(cay.Unavailable, "the sandbox ended before it was saved"))
		}
		if m.left.Name != q.name {
			return nil, cay.Errorf(cay.Conflict, "the sandbox was saved as snapshot %s, without the name %q: that was taken meanwhile, or somebody else stopped it first",
				m.left.ID, q.name)
		}
		return m.left, nil
	}
	bound, done := m.bound(ctx) // a stop does not wait for this, it saves the sandbox itself
	defer done()
	m.saving.Lock()
	snap, err := e.saveMachine(bound, r, m, q)
	if err != nil {
		err = e.machineError(m, err)
	} else {
		// Before a stop saves it: of the two that is the newer one.
		err = e.record(ctx, snap)
	}
	m.saving.Unlock()
	if err != nil {
		return nil, err
	}
	if stop {
		m.finishing.Lock()
		m.left = snap
		m.finishing.Unlock()
		if err := e.stop(ctx, m, store.End{Reason: sandbox.ReasonRequested}); err != nil {
			return nil, err
		}
	}
	return snap, nil
}

// record records a snapshot whose files are there. If that fails they are
// removed, now or by the collection.
func (e *Engine) record(ctx context.Context, snap *store.SnapshotRow) error {
	ctx = context.WithoutCancel(ctx)
	if err := e.store.Snapshotted(ctx, snap, e.now()); err != nil {
		e.discard(ctx, snap)
		return fmt.Errorf("record snapshot: %w", err)
	}
	e.at("snapshotted")
	e.snapshotMade(snap.SandboxID)
	return nil
}

// discard removes the files of a snapshot that was not recorded.
func (e *Engine) discard(ctx context.Context, snap *store.SnapshotRow) {
	if err := e.cfg.Snapshots.Delete(ctx, snap.ID); err != nil {
		e.log.WarnContext(ctx, "files of a snapshot that was not recorded are left to the collection", "snapshot", snap.ID, "error", err)
	}
}

// checkSave reports whether a save that was asked for may be tried.
func (e *Engine) checkSave(ctx context.Context, r *store.Row, q saveRequest) error {
	if q.kind == sandbox.MemorySnapshot {
		if !e.cfg.Runtime.SavesMemory() {
			return cay.Errorf(cay.NotSupported, "this runtime cannot save the memory of sandboxes").WithHint("save the files")
		}
		if slices.ContainsFunc(r.Mounts, func(m sandbox.Mount) bool { return m.Mode != sandbox.MountReadOnly }) {
			return cay.Errorf(cay.NotSupported, "the memory of a sandbox with a drive that it writes to cannot be saved").
				WithHint("save its files, or mount the drive read-only")
		}
	}
	if q.name != "" && !q.replace {
		_, err := e.store.FindSnapshot(ctx, r.Scope(), q.name)
		if err == nil {
			return cay.Errorf(cay.AlreadyExists, "a snapshot named %q exists", q.name).WithHint("choose another name, or delete that snapshot")
		}
		if cay.CodeOf(err) != cay.NotFound {
			return err
		}
	}
	return e.checkSnapshotQuota(ctx, r.TeamID, 0)
}

// saveMachine makes the files of a snapshot of a machine that runs or is paused,
// and returns the row to record, or q.unless if there is nothing to record. Whoever
// calls holds m.saving. Of the machine of a hibernation that succeeded nothing runs
// on. Errors: no_space, too_large, unavailable, not_supported.
func (e *Engine) saveMachine(ctx context.Context, r *store.Row, m *session, q saveRequest) (_ *store.SnapshotRow, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, saveTimeout, cay.Errorf(cay.DeadlineExceeded, "the sandbox was not saved within %v", saveTimeout))
	defer cancel()
	began := e.clock.Mono()
	st, err := m.inst.Stats(ctx)
	if err != nil {
		return nil, fmt.Errorf("read counters: %w", err)
	}
	size := st.DiskBytes
	if q.kind == sandbox.MemorySnapshot {
		if err := e.checkMemory(ctx, m); err != nil {
			return nil, err
		}
		size += st.MemoryBytes
	}
	d, err := e.cfg.Snapshots.Create(ctx, size)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			if aerr := d.Abort(); aerr != nil {
				e.log.WarnContext(ctx, "files of a snapshot that failed are left to the collection", "sandbox", m.sandboxID, "error", aerr)
			}
		}
	}()
	p := machine.SaveParams{Images: e.images(r), MaxBytes: e.cfg.Limits.MaxSnapshotBytes}
	build := snapshot.ThisBuild()
	var stood time.Duration // since when
	if q.kind == sandbox.MemorySnapshot {
		var thaw func()
		if thaw, err = e.freeze(ctx, m); err != nil {
			return nil, err
		}
		stood = e.clock.Mono()
		defer func() {
			if err != nil || !q.hibernate {
				thaw()
			}
		}()
		if p.Dir, err = d.MemoryDir(); err != nil {
			return nil, err
		}
		memory, err := m.inst.Checkpoint(ctx, p)
		if err != nil {
			return nil, err
		}
		build.ID = memory.Build
		e.at("memory-saved")
	}
	if p.Dir, err = d.DiskDir(); err != nil {
		return nil, err
	}
	state, err := m.inst.SaveDisk(ctx, p)
	if err != nil {
		return nil, err
	}
	e.at("disk-saved")
	if q.unless != nil && e.sameFiles(ctx, q.unless, p.Dir) {
		return q.unless, d.Abort()
	}
	snap := e.describe(r, q)
	manifest, err := d.Commit(ctx, manifestOf(snap, build))
	if err != nil {
		return nil, err
	}
	e.at("committed")
	snap.SizeBytes, snap.Build = manifest.Size(), manifest.Build.Cay
	snap.Took, snap.Paused = usage.Millis(e.clock.Mono()-began), usage.Millis(time.Duration(state.Paused))
	if q.kind == sandbox.MemorySnapshot {
		snap.Paused = usage.Millis(e.clock.Mono() - stood)
	}
	return snap, nil
}

// images is what the images of a machine are, by mount point.
func (e *Engine) images(r *store.Row) map[string]string {
	images := map[string]string{"/": r.Digest}
	if e.cfg.Tool.Mount.Source != "" {
		images[e.cfg.Tool.Mount.Target] = e.cfg.Tool.Mount.Source
	}
	if r.Runtime != "" {
		images[runtimeDir+r.Runtime] = r.RuntimeDigest
	}
	return images
}

// describe makes the row of a snapshot of r. What its files are is filled in later.
func (e *Engine) describe(r *store.Row, q saveRequest) *store.SnapshotRow {
	now := e.now()
	s := &store.SnapshotRow{
		Snapshot: sandbox.Snapshot{
			ID: ident.NewSnapshot(), Name: q.name, TeamID: r.TeamID, ProjectID: r.ProjectID, Kind: q.kind, Status: sandbox.SnapshotCreated,
			Automatic: q.automatic, ParentID: r.SnapshotID, SandboxID: r.ID, SandboxName: r.Name, SessionID: r.SessionID,
			Image: r.Image, Digest: r.Digest, Runtime: r.Runtime, User: r.User, WorkDir: r.WorkDir,
			DiskMB: r.DiskMB, VCPUs: r.VCPUs, MemoryMB: r.MemoryMB, Annotations: r.Annotations, CreatedAt: now, UpdatedAt: now,
		},
		Hibernated: q.hibernate, Replace: q.replace, RuntimeDigest: r.RuntimeDigest, ImageEnv: mergeEnv(r.ImageEnv, q.env),
	}
	if !q.noNetwork {
		s.Extra.Network = withoutSecrets(r.Network)
	}
	if q.kind == sandbox.MemorySnapshot {
		s.GuestToken = r.GuestToken
		s.Extra.Mounts = r.Mounts
	}
	keep := r.SnapshotExpiration
	switch {
	case q.expiration != nil:
		keep = *q.expiration
	case r.Retention != nil && r.Retention.Expiration != nil:
		keep = *r.Retention.Expiration
	}
	if keep != 0 && !q.hibernate {
		expires := now.Add(time.Duration(keep))
		s.ExpiresAt = &expires
	}
	return s
}

// manifestOf is what is kept with the files of a snapshot.
func manifestOf(s *store.SnapshotRow, by snapshot.Build) snapshot.Manifest {
	m := snapshot.Manifest{
		ID: s.ID, Name: s.Name, Kind: snapshot.Kind(s.Kind), CreatedAt: s.CreatedAt, Source: s.SandboxID, Parent: s.ParentID,
		Image: s.Digest, DiskMB: s.DiskMB, Guest: guestOf(s), Build: by,
	}
	if s.Runtime != "" {
		m.Runtimes = []snapshot.Runtime{{Target: runtimeDir + s.Runtime, Digest: s.RuntimeDigest}}
	}
	if s.Kind == sandbox.MemorySnapshot {
		m.VCPUs, m.MemoryMB = s.VCPUs, s.MemoryMB
	}
	return m
}

// freeze pauses a machine, unless it is paused already, so that what is saved of
// it one after the other is of one moment. thaw lets it go on as it was.
func (e *Engine) freeze(ctx context.Context, m *session) (thaw func(), err error) {
	if m.paused {
		return func() {}, nil
	}
	// The row first: recovery lets go on what we leave paused.
	ok, err := e.store.SetFrozen(ctx, m.sandboxID, true)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, stoppedError(m.sandboxID, "", "")
	}
	e.at("frozen")
	if err := m.inst.Pause(ctx); err != nil {
		return nil, fmt.Errorf("pause: %w", err)
	}
	m.paused = true
	return func() { e.thaw(ctx, m) }, nil
}

// thaw lets a machine go on that freeze has paused.
func (e *Engine) thaw(ctx context.Context, m *session) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardownTimeout)
	defer cancel()
	if err := m.inst.Resume(ctx); err != nil {
		if !isClosed(m.inst.Done()) {
			e.log.ErrorContext(ctx, "sandbox that was saved does not go on", "sandbox", m.sandboxID, "error", err)
		}
		return
	}
	m.paused = false
	if _, err := e.store.SetFrozen(ctx, m.sandboxID, false); err != nil {
		e.log.ErrorContext(ctx, "that a sandbox goes on was not recorded", "sandbox", m.sandboxID, "error", err)
	}
}

// saveAtEnd saves what is to outlive a machine that is being stopped: its drives
// and, if it is persistent, its files. It may be called again. A machine that has
// ended by itself meanwhile has lost what it did not save.
func (e *Engine) saveAtEnd(ctx context.Context, m *session, why store.End) error {
	m.saving.Lock()
	defer m.saving.Unlock()
	keep := m.persistent() || m.wanted != nil
	if m.silent || isClosed(m.inst.Done()) {
		return nil
	}
	if !keep && !m.drives || m.left != nil && !m.drives {
		e.keepLast(ctx, m, why)
		return nil
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	if !e.cfg.DestroyOnStop {
		// An engine that closes does not wait for it: the next one goes on.
		defer context.AfterFunc(e.ctx, func() { cancel(errClosing) })()
	}
	r, err := e.store.Get(ctx, m.sandboxID)
	if err != nil {
		return err
	}
	if err := e.quiesce(ctx, m, why); err != nil {
		return e.unlessEnded(ctx, m, err)
	}
	if err := e.saveDrives(ctx, r, m); err != nil {
		return e.unlessEnded(ctx, m, fmt.Errorf("save drives: %w", err))
	}
	m.drives = false
	if !keep || why.Deleting || r.Deleting || m.left != nil {
		return nil
	}
	q := saveRequest{kind: sandbox.FilesystemSnapshot, automatic: true}
	if m.wanted != nil {
		q = *m.wanted
	} else if q.unless, err = e.mayStay(ctx, r); err != nil {
		return err
	}
	for {
		snap, err := e.saveMachine(ctx, r, m, q)
		if err != nil {
			return e.unlessEnded(ctx, m, fmt.Errorf("save files: %w", err))
		}
		if snap == q.unless {
			stays, err := e.store.SnapshotStays(ctx, r.SessionID, snap.ID)
			if err != nil {
				return err
			}
			if q.unless = nil; !stays { // it was deleted meanwhile
				continue
			}
			e.log.InfoContext(ctx, "nothing has changed since the last snapshot", "sandbox", r.ID, "snapshot", snap.ID)
			m.left = snap
			return nil
		}
		err = e.record(ctx, snap)
		if cay.CodeOf(err) == cay.AlreadyExists && q.name != "" {
			q.name = "" // it was taken meanwhile; an end does not wait until it is free
			continue
		}
		if err == nil {
			m.left = snap
		}
		return err
	}
}

// keepLast keeps the commands of a machine of which nothing is saved, or nothing
// any more. One that was paused goes on for it; one that an earlier daemon was
// about to end, and has saved, stands still.
func (e *Engine) keepLast(ctx context.Context, m *session, why store.End) {
	if why.Deleting || m.kept.Load() != nil || m.adopted && m.left != nil {
		return
	}
	if m.paused && m.commands.Load() {
		if err := m.inst.Resume(ctx); err != nil {
			e.log.WarnContext(ctx, "paused sandbox did not go on to be stopped", "sandbox", m.sandboxID, "error", err)
			return
		}
		m.paused = false
	}
	e.keepCommands(ctx, m)
}

// unlessEnded is the error of a save, or nil if its machine has ended by itself,
// or is to be ended without it, as it does not answer.
func (e *Engine) unlessEnded(ctx context.Context, m *session, err error) error {
	if errors.Is(err, machine.ErrSilent) {
		e.log.ErrorContext(ctx, "sandbox is ended without being saved", "sandbox", m.sandboxID, "error", err)
		m.silent = true
		return nil
	}
	if isClosed(m.inst.Done()) {
		e.log.WarnContext(ctx, "sandbox ended before it was saved", "sandbox", m.sandboxID, "error", err)
		return nil
	}
	return err
}

// quiesce ends the processes of a machine that is to be saved, and pauses it, so
// that nothing changes any more. A guest that does not do its part is saved as it
// is. Errors: errSilent.
func (e *Engine) quiesce(ctx context.Context, m *session, why store.End) error {
	if m.quiesced {
		return nil
	}
	m.quiesced = true
	goOn := func() {
		if err := m.inst.Resume(ctx); err != nil {
			e.log.WarnContext(ctx, "paused sandbox did not go on to be stopped", "sandbox", m.sandboxID, "error", err)
		}
		m.paused = false
	}
	if m.paused {
		goOn()
	}
	err := quiesceGuest(ctx, m)
	if err != nil && m.adopted {
		goOn() // an earlier daemon may have left it paused
		err = quiesceGuest(ctx, m)
	}
	if err != nil {
		e.log.WarnContext(ctx, "sandbox is saved with its processes running", "sandbox", m.sandboxID, "error", err)
	}
	if !why.Deleting && cay.CodeOf(err) != cay.DeadlineExceeded {
		e.keepCommands(ctx, m)
	}
	switch err := m.inst.Pause(ctx); {
	case errors.Is(err, machine.ErrSilent):
		return err
	case err != nil:
		e.log.WarnContext(ctx, "sandbox that is saved was not paused", "sandbox", m.sandboxID, "error", err)
	default:
		m.paused = true
	}
	return nil
}

func quiesceGuest(ctx context.Context, m *session) error {
	ctx, cancel := context.WithTimeout(ctx, quiescePatience)
	defer cancel()
	_, err := m.guest.Quiesce(ctx, stopGrace)
	return err
}
