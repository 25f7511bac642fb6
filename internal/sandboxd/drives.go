package sandboxd

import (
	"context"
	"fmt"
	"slices"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/ident"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/store"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/sandbox"
)

// A drive is a row and a blob, written by Instance.SaveDisk. A blob does not change. To
// save a drive, the engine writes another blob, points the row at it in one statement,
// and then deletes the old blob; readers of a blob hold a lease of it. So at any moment
// the row names the complete old or the complete new content, and a blob that no row
// names is garbage.
//
// sandbox_drives.sandbox_id is the sandbox that has the drive read-write: from before its
// machine starts (attachDrives) until nothing of the machine is left (detachDrives).

// errNoDrives is the error of a daemon without a store of drives.
var errNoDrives = cay.Errorf(cay.NotSupported, "this daemon keeps no drives")

// CreateDrive implements Drives.
func (e *Engine) CreateDrive(ctx context.Context, p sandbox.CreateDriveParams) (*sandbox.Drive, error) {
	sc, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if e.cfg.Drives == nil {
		return nil, errNoDrives
	}
	if sc.Project, err = e.project(ctx, sc, p.ProjectID); err != nil {
		return nil, err
	}
	p = p.WithDefaults()
	if p.MaxMB > e.cfg.Limits.MaxDiskMB {
		return nil, cay.Errorf(cay.Invalid, "max_mb %d is more than this daemon's maximum of %d", p.MaxMB, e.cfg.Limits.MaxDiskMB)
	}
	// Fail before the source of the clone is saved and copied in vain.
	switch _, err := e.store.FindDrive(ctx, sc, p.Name); cay.CodeOf(err) {
	case cay.NotFound:
	case "":
		return nil, store.DriveExists(p.Name)
	default:
		return nil, err
	}
	now := e.now()
	d := &store.DriveRow{Drive: sandbox.Drive{
		ID: ident.NewDrive(), Name: p.Name, TeamID: sc.Team, ProjectID: sc.Project, MaxMB: p.MaxMB,
		Annotations: p.Annotations, CreatedAt: now, UpdatedAt: now,
	}}
	if p.From != "" {
		if err := e.cloneDrive(ctx, sc, p.From, d); err != nil {
			return nil, err
		}
	}
	if err := e.insertDrive(ctx, d); err != nil {
		e.dropDriveBlob(ctx, d.BlobID)
		return nil, err
	}
	e.at("drive-created")
	e.log.InfoContext(ctx, "drive created", "drive", d.ID, "team", d.TeamID, "project", d.ProjectID, "parent", d.ParentID)
	return &d.Drive, nil
}

func (e *Engine) insertDrive(ctx context.Context, d *store.DriveRow) error {
	quota, err := e.cfg.Accounts.Quota(ctx, d.TeamID)
	if err != nil {
		return fmt.Errorf("read quota: %w", err)
	}
	return e.store.InsertDrive(ctx, d, quota)
}

// cloneDrive gives d a copy of the current content of the drive from.
func (e *Engine) cloneDrive(ctx context.Context, sc store.Scope, from string, d *store.DriveRow) error {
	src, err := e.store.FindDrive(ctx, sc, from)
	if err != nil {
		return err
	}
	if d.MaxMB == 0 {
		d.MaxMB = src.MaxMB
	}
	if d.MaxMB < src.MaxMB {
		return cay.Errorf(cay.Invalid, "max_mb %d is less than the %d of drive %q, which is to be cloned", d.MaxMB, src.MaxMB, src.Name)
	}
	if src, err = e.saveAttached(ctx, src.ID); err != nil {
		return err
	}
	if err := e.checkSnapshotQuota(ctx, d.TeamID, src.SizeBytes); err != nil {
		return err
	}
	src, lease, err := e.leaseDrive(ctx, src.ID)
	if err != nil {
		return err
	}
	d.ParentID = src.ID
	if lease == nil {
		return nil
	}
	defer lease.Release()
	d.SizeBytes, d.SavedAt = src.SizeBytes, src.SavedAt
	d.BlobID, err = e.copyDriveBlob(ctx, lease, d.ID)
	return err
}

// GetDrive implements Drives.
func (e *Engine) GetDrive(ctx context.Context, ref string) (*sandbox.Drive, error) {
	d, err := e.lookupDrive(ctx, ref)
	if err != nil {
		return nil, err
	}
	return &d.Drive, nil
}

// lookupDrive returns the drive that the caller's ref names.
func (e *Engine) lookupDrive(ctx context.Context, ref string) (*store.DriveRow, error) {
	sc, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	return e.store.FindDrive(ctx, sc, ref)
}

// ListDrives implements Drives.
func (e *Engine) ListDrives(ctx context.Context, p sandbox.DriveListParams) (*sandbox.Page[sandbox.Drive], error) {
	sc, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	l, err := e.listing(ctx, sc, "drives", p.ProjectID, store.SortedBy(p.Order, p.Ascending), p.Cursor, p.Limit)
	if err != nil {
		return nil, err
	}
	drives, err := e.store.ListDrives(ctx, l, p)
	if err != nil {
		return nil, err
	}
	page := &sandbox.Page[sandbox.Drive]{Items: []sandbox.Drive{}}
	drives, page.Next = store.Cut(l, drives, func(d *store.DriveRow) (any, string) { return d.Place(l.By), d.ID })
	for _, d := range drives {
		page.Items = append(page.Items, d.Drive)
	}
	return page, nil
}

// SaveDrive implements Drives.
func (e *Engine) SaveDrive(ctx context.Context, ref string) (*sandbox.Drive, error) {
	d, err := e.lookupDrive(ctx, ref)
	if err != nil {
		return nil, err
	}
	if d, err = e.saveAttached(ctx, d.ID); err != nil {
		return nil, err
	}
	return &d.Drive, nil
}

// DeleteDrive implements Drives.
func (e *Engine) DeleteDrive(ctx context.Context, ref string) error {
	d, err := e.lookupDrive(ctx, ref)
	if err != nil {
		return err
	}
	blobID, err := e.store.RemoveDrive(ctx, d.ID)
	if err != nil {
		return err
	}
	e.at("drive-removed")
	e.dropDriveBlob(ctx, blobID)
	e.log.InfoContext(ctx, "drive deleted", "drive", d.ID)
	return nil
}

// driveMounts returns the mounts of a sandbox's drives for Spec.Mounts, from the last
// saved content. The content stays in place until done is called, after the start.
// Errors: not_found if a drive was deleted, conflict if it is damaged, not_supported.
func (e *Engine) driveMounts(ctx context.Context, r *store.Row) (mounts []machine.Mount, done func(), err error) {
	var leases []func()
	done = func() {
		for _, release := range leases {
			release()
		}
	}
	for _, mnt := range r.Mounts {
		if e.cfg.Drives == nil {
			return nil, nil, errNoDrives
		}
		d, lease, err := e.leaseDrive(ctx, mnt.Drive)
		if err != nil {
			done()
			return nil, nil, fmt.Errorf("mount %s: %w", mnt.Path, err)
		}
		spec := &machine.DriveSpec{SizeMB: d.MaxMB, ReadOnly: mnt.Mode == sandbox.MountReadOnly}
		if lease != nil {
			leases = append(leases, lease.Release)
			spec.From = lease.Dir
		}
		mounts = append(mounts, machine.Mount{Target: mnt.Path, Drive: spec})
	}
	return mounts, done, nil
}

// newDrives returns the mount points of drives that were never written to; the guest
// gives these directories to the sandbox's user (guest.Config.Owned).
func newDrives(mounts []machine.Mount) []string {
	var paths []string
	for _, m := range mounts {
		if m.Drive != nil && m.Drive.From == "" && !m.Drive.ReadOnly {
			paths = append(paths, m.Target)
		}
	}
	return paths
}

// saveDrives saves the drives that a sandbox has read-write, at the end of its session:
// after its guest is quiesced and before its machine is destroyed. The caller holds
// m.saving. It may be called again after an error.
//
// A drive may be impossible to save because of changes that root in the guest made to it.
// Such a drive keeps its last saved content, and the machine is destroyed.
func (e *Engine) saveDrives(ctx context.Context, r *store.Row, m *session) error {
	for _, mnt := range r.Mounts {
		if mnt.Mode != sandbox.MountReadWrite {
			continue
		}
		d, err := e.store.GetDrive(ctx, mnt.Drive)
		if err != nil {
			return err
		}
		saved, err := e.writeDrive(ctx, r, m, d, mnt.Path)
		switch cay.CodeOf(err) {
		case "":
		case cay.Conflict, cay.TooLarge:
			e.log.WarnContext(ctx, "drive was left as it was last saved", "drive", d.ID, "sandbox", r.ID, "session", r.SessionID, "error", err)
			continue
		default:
			return err
		}
		switched, err := e.switchDrive(ctx, d.ID, saved)
		if err == nil && !switched {
			err = fmt.Errorf("drive %s is no longer of session %s of sandbox %s", d.ID, r.SessionID, r.ID)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// saveAttached returns a drive whose saved content is current: if a sandbox has the
// drive, it is saved from that sandbox's machine first.
func (e *Engine) saveAttached(ctx context.Context, id string) (*store.DriveRow, error) {
	for {
		d, err := e.store.GetDrive(ctx, id)
		if err != nil || d.SandboxID == "" {
			return d, err
		}
		m := e.live(d.SandboxID)
		if m == nil {
			if d, err = e.store.GetDrive(ctx, id); err != nil || d.SandboxID == "" {
				return d, err // the session has ended meanwhile
			}
			return nil, changingHands(d)
		}
		saved, err := e.saveFromMachine(ctx, d, m)
		if err != nil || saved {
			if err == nil {
				d, err = e.store.GetDrive(ctx, id)
			}
			return d, err
		}
	}
}

// saveFromMachine saves a drive from a running or paused machine, which goes on. It
// returns false without an error if the machine ended before the save, after waiting for
// that end, or if a concurrent save replaced the drive's content.
func (e *Engine) saveFromMachine(ctx context.Context, d *store.DriveRow, m *session) (bool, error) {
	select {
	case <-m.created:
	case <-ctx.Done():
		return false, wire.ContextError(ctx)
	}
	var (
		saved  bool
		err    error
		ending = m.createErr != nil // the session may have no machine
	)
	if !ending {
		saved, err = e.saveLocked(ctx, d, m)
		ending = m.ctx.Err() != nil || isClosed(m.inst.Done())
	}
	if saved || !ending || ctx.Err() != nil {
		return saved, err
	}
	if m.stuck.Load() {
		return false, cay.Errorf(cay.Conflict, "%s, which has drive %q, could not be brought to its end yet", d.Holder(), d.Name).
			WithHint("try again in a minute; the daemon's log says what is in the way")
	}
	select {
	case <-m.gone:
	case <-ctx.Done():
		return false, wire.ContextError(ctx)
	}
	if e.live(m.sandboxID) == m { // the machine has not ended, Close has detached it
		return false, context.Cause(m.ctx)
	}
	return false, nil
}

// saveLocked is saveFromMachine for a machine that is not ending.
func (e *Engine) saveLocked(ctx context.Context, d *store.DriveRow, m *session) (bool, error) {
	// A concurrent stop does not wait for this: the stop saves the drive itself.
	ctx, end := m.bound(ctx)
	defer end()
	if err := m.lock(ctx); err != nil {
		return false, err
	}
	defer m.unlock()
	r, err := e.store.Get(ctx, m.sandboxID)
	if err != nil {
		return false, err
	}
	at := slices.IndexFunc(r.Mounts, func(mnt sandbox.Mount) bool { return mnt.Drive == d.ID && mnt.Mode == sandbox.MountReadWrite })
	if at < 0 || r.SessionID != m.id {
		return false, changingHands(d)
	}
	m.saving.Lock()
	defer m.saving.Unlock()
	if d, err = e.store.GetDrive(ctx, d.ID); err != nil {
		return false, err
	}
	s, err := e.writeDrive(ctx, r, m, d, r.Mounts[at].Path)
	if err != nil {
		return false, err
	}
	if more := s.SizeBytes - d.SizeBytes; more > 0 {
		if err := e.checkSnapshotQuota(ctx, d.TeamID, more); err != nil {
			e.dropDriveBlob(ctx, s.BlobID)
			return false, err
		}
	}
	return e.switchDrive(ctx, d.ID, s)
}

func changingHands(d *store.DriveRow) error {
	return cay.Errorf(cay.Conflict, "drive %q is changing hands", d.Name).WithHint("try again in a moment")
}
