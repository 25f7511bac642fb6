package sandboxd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/clock"
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
	// stopGrace is how long the processes of a stopping sandbox have to exit by
	// themselves before the engine saves its files.
	stopGrace = time.Second
	// quiescePatience bounds the quiescing of a guest. After this time the machine is
	// saved with its processes running.
	quiescePatience = stopGrace + 5*time.Second
)

// saveRequest says what to save of a machine.
type saveRequest struct {
	kind       sandbox.SnapshotKind
	name       string
	replace    bool              // take name from the snapshot that holds it
	env        map[string]string // added to the environment of the image
	noNetwork  bool              // leave out the sandbox's network policy
	expiration *sandbox.Duration // nil: the expiration set for the sandbox
	automatic  bool
	periodic   bool // by the sandbox's SaveEvery
	hibernate  bool // the machine stays paused
	// unless is an earlier snapshot. If its files equal the machine's, saveMachine
	// returns it and makes no new snapshot.
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
	r, m, err := e.lookupLocked(ctx, ref)
	if err != nil {
		return nil, err
	}
	snap, err := e.snapshotLocked(ctx, r, m, q, p.Stop)
	m.unlock()
	if err != nil {
		return nil, err
	}
	e.log.InfoContext(ctx, "snapshot made", "snapshot", snap.ID, "sandbox", r.ID, "kind", snap.Kind, "bytes", snap.SizeBytes,
		"took", time.Duration(snap.Duration), "paused", time.Duration(snap.Paused))
	return &snap.Snapshot, nil
}

// snapshotLocked makes a snapshot of a machine. The caller holds m.op.
func (e *Engine) snapshotLocked(ctx context.Context, r *store.Row, m *session, q saveRequest, stop bool) (*store.SnapshotRow, error) {
	if err := e.checkSave(ctx, r, q); err != nil {
		return nil, err
	}
	if stop && q.kind == sandbox.FilesystemSnapshot {
		// The stop saves the files anyway, after all processes have ended.
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
	bound, done := m.bound(ctx) // a concurrent stop does not wait for this snapshot: the stop saves the sandbox itself
	defer done()
	if q.kind == sandbox.MemorySnapshot {
		defer e.savingMemory()()
	}
	m.saving.Lock()
	snap, err := e.saveMachine(bound, r, m, q)
	if err != nil {
		err = e.machineError(m, err)
	} else {
		// Record this snapshot before a stop saves the sandbox: the later snapshot is the
		// newer one.
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

// record inserts the row of a snapshot whose files exist. If that fails, the files are
// removed, by record or later by the collection.
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

// checkSave reports whether the engine may try a requested save.
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

// saveMachine writes the files of a snapshot of a running or paused machine. It returns
// the row to record, or q.unless if there is nothing to record. The caller holds
// m.saving. After a successful save with q.hibernate the machine stays paused. Errors:
// no_space, too_large, unavailable, not_supported.
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
	if d.Base = e.openBase(ctx, r.SnapshotID); d.Base != nil {
		defer d.Base.Close()
		p.Base = d.Base.DiskDir()
	}
	build := snapshot.ThisBuild()
	var stood time.Duration // when the machine was paused
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
	snap.SizeBytes, snap.Build, snap.Programs = manifest.Size(), manifest.Build.Cay, manifest.Build.ID
	snap.Duration, snap.Paused = usage.Millis(e.clock.Mono()-began), usage.Millis(time.Duration(state.Paused))
	if q.kind == sandbox.MemorySnapshot {
		snap.Paused = usage.Millis(e.clock.Mono() - stood)
	}
	return snap, nil
}

// openBase opens the snapshot that a sandbox has started from, or was saved in before, as the
// base of another one. nil: there is none with files.
func (e *Engine) openBase(ctx context.Context, id string) *snapshot.Snapshot {
	if id == "" {
		return nil
	}
	base, err := e.cfg.Snapshots.OpenPart(ctx, id, snapshot.DiskPart)
	switch {
	case err != nil:
		if cay.CodeOf(err) != cay.NotFound {
			e.log.WarnContext(ctx, "a sandbox is saved without the blocks of its last snapshot", "snapshot", id, "error", err)
		}
		return nil
	case !base.HasDisk():
		base.Close()
		return nil
	}
	return base
}

// images returns the digests of a machine's images by mount point.
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

// describe makes the row of a snapshot of r. The caller fills in the size, the build and
// the durations later.
func (e *Engine) describe(r *store.Row, q saveRequest) *store.SnapshotRow {
	now := e.now()
	s := &store.SnapshotRow{
		Snapshot: sandbox.Snapshot{
			ID: ident.NewSnapshot(), Name: q.name, TeamID: r.TeamID, ProjectID: r.ProjectID, Kind: q.kind, Status: sandbox.SnapshotCreated,
			Automatic: q.automatic, ParentID: r.SnapshotID, SandboxID: r.ID, SandboxName: r.Name, SessionID: r.SessionID,
			Image: r.Image, Digest: r.Digest, Runtime: r.Runtime, User: r.User, WorkDir: r.WorkDir,
			DiskMB: r.DiskMB, VCPUs: r.VCPUs, MemoryMB: r.MemoryMB, Annotations: r.Annotations, CreatedAt: now, UpdatedAt: now,
		},
		Hibernated: q.hibernate, Periodic: q.periodic, Replace: q.replace, RuntimeDigest: r.RuntimeDigest, ImageEnv: mergeEnv(r.ImageEnv, q.env),
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

// manifestOf returns the manifest that is stored with the files of a snapshot.
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

// freeze pauses a machine, unless it is paused already, so that its memory and its disk
// are saved in the state of one moment. thaw resumes the machine if freeze paused it.
func (e *Engine) freeze(ctx context.Context, m *session) (thaw func(), err error) {
	if m.paused {
		return func() {}, nil
	}
	// Set frozen in the row before the pause: recovery resumes a machine whose row is
	// frozen.
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

// thaw resumes a machine that freeze paused.
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

// saveAtEnd saves the drives of a stopping machine and, if the sandbox is persistent or a
// snapshot was requested, its files. It may be called again. If the machine has exited by
// itself meanwhile, its unsaved changes are lost.
func (e *Engine) saveAtEnd(ctx context.Context, m *session, why store.End) error {
	m.saving.Lock()
	defer m.saving.Unlock()
	keep := m.persistent() || m.wanted != nil
	if m.silent || isClosed(m.inst.Done()) {
		return nil
	}
	if !keep && !m.drives || m.left != nil && !m.drives {
		e.archiveBeforeEnd(ctx, m, why)
		return nil
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	if !e.cfg.DestroyOnStop {
		// A closing engine cancels the save; the next engine saves the sandbox.
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
			if q.unless = nil; !stays { // the snapshot was deleted meanwhile
				continue
			}
			e.log.InfoContext(ctx, "nothing has changed since the last snapshot", "sandbox", r.ID, "snapshot", snap.ID)
			m.left = snap
			return nil
		}
		err = e.record(ctx, snap)
		if cay.CodeOf(err) == cay.AlreadyExists && q.name != "" {
			q.name = "" // another snapshot took the name meanwhile; a stop does not wait until the name is free
			continue
		}
		if err == nil {
			m.left = snap
		}
		return err
	}
}

// archiveBeforeEnd keeps the commands of a machine whose files are not saved, or were saved
// before. A paused machine is resumed for this; a machine that an earlier daemon has
// already saved, and was about to destroy, stays paused.
func (e *Engine) archiveBeforeEnd(ctx context.Context, m *session, why store.End) {
	if why.Deleting || m.archive.Load() != nil || m.adopted && m.left != nil {
		return
	}
	if m.paused && m.commands.Load() {
		if err := m.inst.Resume(ctx); err != nil {
			e.log.WarnContext(ctx, "paused sandbox did not go on to be stopped", "sandbox", m.sandboxID, "error", err)
			return
		}
		m.paused = false
	}
	e.archiveCommands(ctx, m)
}

// unlessEnded returns the error of a save, or nil if the machine has exited by itself, or
// does not answer and is therefore destroyed without a save.
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

// quiesce ends the processes of a machine that is to be saved and pauses the machine, so
// that its files do not change any more. If the guest does not end its processes, the
// machine is saved with them running. Errors: machine.ErrSilent.
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
		e.archiveCommands(ctx, m)
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

// autosave is the state of saving a persistent sandbox while it runs. session.mu guards it.
type autosave struct {
	every time.Duration // 0: never
	timer clock.Timer   // nil: not set
}

// saveShare is which part of the time a sandbox may stand still for these saves: a tenth.
const saveShare = 10

// armSaveLocked sets the timer of the next save of a sandbox that is saved while it runs,
// to fire no earlier than atLeast from now.
func (e *Engine) armSaveLocked(m *session, atLeast time.Duration) {
	clock.Stop(&m.autosave.timer)
	if m.autosave.every == 0 || !m.keep || m.detached || e.cfg.Snapshots == nil {
		return
	}
	m.autosave.timer = e.clock.At(e.clock.Mono()+max(m.autosave.every, atLeast), func() { e.background(func() { e.autosave(m) }) })
}

// autosave saves a running sandbox, if its files have changed, and sets the timer again. One
// sandbox is saved at a time.
func (e *Engine) autosave(m *session) {
	select {
	case e.autosaving <- struct{}{}:
		defer func() { <-e.autosaving }()
	case <-m.ctx.Done():
		return
	}
	if m.lock(e.ctx) != nil {
		return // the session is ending
	}
	began := e.clock.Mono()
	if err := e.autosaveLocked(e.ctx, m); err != nil && m.ctx.Err() == nil && e.ctx.Err() == nil {
		e.log.Warn("running sandbox was not saved", "sandbox", m.sandboxID, "error", err)
	}
	m.unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	e.armSaveLocked(m, saveShare*(e.clock.Mono()-began))
}

// autosaveLocked saves a sandbox if it runs. The caller holds m.op.
func (e *Engine) autosaveLocked(ctx context.Context, m *session) error {
	r, err := e.store.Get(ctx, m.sandboxID)
	if err != nil || r.Status != sandbox.Running || r.SessionID != m.id || !r.Persistent || r.SaveEvery == 0 {
		return err
	}
	q := saveRequest{kind: sandbox.FilesystemSnapshot, automatic: true, periodic: true}
	if err := e.checkSave(ctx, r, q); err != nil {
		return err
	}
	compared := *r
	compared.Retention = nil // EachStop is about stops
	if q.unless, err = e.mayStay(ctx, &compared); err != nil {
		return err
	}
	ctx, done := m.bound(ctx)
	defer done()
	m.saving.Lock()
	defer m.saving.Unlock()
	var snap *store.SnapshotRow
	if snap, err = e.saveMachine(ctx, r, m, q); err != nil {
		return e.machineError(m, err)
	}
	if snap == q.unless {
		return nil
	}
	return e.record(ctx, snap)
}
