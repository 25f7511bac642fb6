package sandboxd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/blob"
	"github.com/cayhq/cay/internal/sandboxd/clock"
	"github.com/cayhq/cay/internal/sandboxd/ident"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/store"
)

// driveGrace is the minimal age of a blob without a drive that a sweep removes, because a
// blob is written before its row.
const driveGrace = 10 * time.Minute

// driveOverhead is how many bytes a runtime may need to save a drive of maxMB in addition
// to its data, for names, owners and other metadata.
func driveOverhead(maxMB int64) int64 { return max(256, maxMB) << 20 }

// writeDrive saves a machine's drive to a new blob. Errors: those of Instance.SaveDisk,
// no_space.
func (e *Engine) writeDrive(ctx context.Context, r *store.Row, m *session, d *store.DriveRow, at string) (store.SavedDrive, error) {
	fail := func(err error) (store.SavedDrive, error) {
		return store.SavedDrive{}, fmt.Errorf("save drive %q at %s: %w", d.Name, at, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, saveTimeout, cay.Errorf(cay.DeadlineExceeded, "it was not saved within %v", saveTimeout))
	defer cancel()
	draft, err := e.cfg.Drives.Create(ctx, d.SizeBytes)
	if err != nil {
		return fail(err)
	}
	defer e.abort(draft)
	dir, err := draft.Dir()
	if err != nil {
		return fail(err)
	}
	p := machine.SaveParams{Dir: dir, MaxBytes: d.MaxMB<<20 + driveOverhead(d.MaxMB), Mounts: []string{at}}
	if d.BlobID != "" {
		base, err := e.cfg.Drives.Local(ctx, d.BlobID)
		if err == nil {
			defer base.Release()
			p.Base = base.Dir
		} else {
			e.log.WarnContext(ctx, "a drive is saved without the blocks of its last save", "drive", d.ID, "error", err)
		}
	}
	e.at("drive-saving")
	_, err = m.inst.SaveDisk(ctx, p)
	if err != nil {
		return fail(err)
	}
	e.at("drive-written")
	info, err := draft.Commit(ctx, newDriveBlob(d.ID))
	if err != nil {
		return fail(err)
	}
	e.at("drive-committed")
	return store.SavedDrive{BlobID: info.Name, SizeBytes: info.Size, Over: d.BlobID, SandboxID: r.ID, SessionID: r.SessionID}, nil
}

func newDriveBlob(driveID string) string { return driveID + "-" + ident.Text(12) }

// abort removes an uncommitted draft.
func (e *Engine) abort(draft blob.Draft) {
	if err := draft.Abort(); err != nil {
		e.log.Error("what was not saved of a drive was not removed", "error", err)
	}
}

// switchDrive makes a saved blob the content of a drive, unless store.SwitchDrive refuses
// it. Then it removes the drive's old blob, or after an error the new one.
func (e *Engine) switchDrive(ctx context.Context, id string, s store.SavedDrive) (bool, error) {
	ok, err := e.store.SwitchDrive(ctx, id, s, e.now())
	if err != nil {
		e.dropDriveBlob(ctx, s.BlobID) // dropDriveBlob keeps it if the drive holds it after all
		return false, err
	}
	if ok {
		e.at("drive-switched")
		e.dropDriveBlob(ctx, s.Over)
	}
	return ok, nil
}

// leaseDrive returns a drive and a lease of its blob; a nil lease if the drive is empty.
// Errors: not_found, conflict if the blob is missing.
func (e *Engine) leaseDrive(ctx context.Context, id string) (*store.DriveRow, *blob.Lease, error) {
	before := ""
	for {
		d, err := e.store.GetDrive(ctx, id)
		if cay.CodeOf(err) == cay.NotFound {
			return nil, nil, cay.Errorf(cay.NotFound, "drive %s was deleted", id).
				WithHint("change what the sandbox mounts there")
		}
		if err != nil || d.BlobID == "" {
			return d, nil, err
		}
		lease, err := e.cfg.Drives.Local(ctx, d.BlobID)
		if cay.CodeOf(err) != cay.NotFound {
			return d, lease, err
		}
		if d.BlobID == before { // the blob is missing, rather than replaced by a save meanwhile
			return nil, nil, cay.Errorf(cay.Conflict, "what drive %q holds is missing", d.Name).
				WithHint("bring back %s from a backup of the data directory, or delete the drive", d.BlobID)
		}
		before = d.BlobID
	}
}

// copyDriveBlob copies a blob, or shares its files if the file system can, because blobs
// never change. Errors: no_space.
func (e *Engine) copyDriveBlob(ctx context.Context, from *blob.Lease, driveID string) (string, error) {
	draft, err := e.cfg.Drives.Create(ctx, 0)
	if err != nil {
		return "", fmt.Errorf("clone drive: %w", err)
	}
	defer e.abort(draft)
	dir, err := draft.Dir()
	if err != nil {
		return "", fmt.Errorf("clone drive: %w", err)
	}
	files, err := os.ReadDir(from.Dir)
	if err != nil {
		return "", fmt.Errorf("clone drive: %w", err)
	}
	for _, f := range files {
		err := os.Link(filepath.Join(from.Dir, f.Name()), filepath.Join(dir, f.Name()))
		if err != nil {
			err = copyTo(draft, from.Dir, f.Name())
		}
		if err != nil {
			return "", fmt.Errorf("clone drive: %w", err)
		}
	}
	e.at("drive-copied")
	info, err := draft.Commit(ctx, newDriveBlob(driveID))
	if err != nil {
		return "", fmt.Errorf("clone drive: %w", err)
	}
	return info.Name, nil
}

// copyTo copies the file dir/name into a draft.
func copyTo(draft blob.Draft, dir, name string) error {
	src, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	defer src.Close()
	w, err := draft.Writer(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, src)
	return errors.Join(err, w.Close())
}

// dropDriveBlob removes a blob unless a drive holds it. Open readers of the blob are not
// disturbed.
func (e *Engine) dropDriveBlob(ctx context.Context, id string) {
	if id == "" {
		return
	}
	ctx = context.WithoutCancel(ctx)
	held, err := e.store.IsDriveBlob(ctx, id)
	if err == nil && !held {
		err = e.cfg.Drives.Delete(ctx, id)
	}
	if err != nil && cay.CodeOf(err) != cay.NotFound {
		e.log.WarnContext(ctx, "what a drive held before was not removed yet", "blob", id, "error", err)
		e.sweepDrivesLater()
		return
	}
	e.at("drive-dropped")
}

// openDrives removes the drive blobs that a killed engine has left behind: old blobs at
// once, the others when they are old enough.
func (e *Engine) openDrives() {
	if e.cfg.Drives == nil {
		return
	}
	e.sweepDrivesLater()
	e.background(func() { e.sweepDrives(driveGrace) })
}

// sweepDrivesLater schedules a sweep for when all present blobs are old enough.
func (e *Engine) sweepDrivesLater() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	clock.Stop(&e.sweeper)
	e.sweeper = e.clock.At(e.clock.Mono()+driveGrace+time.Second, func() { e.background(func() { e.sweepDrives(driveGrace) }) })
}

// sweepDrives removes blobs that no drive holds and that are older than grace.
func (e *Engine) sweepDrives(grace time.Duration) {
	removed, err := e.removeStrayDrives(e.ctx, grace)
	if err != nil && e.ctx.Err() == nil {
		e.log.Error("what is left of drives was not removed", "error", err)
	}
	if removed > 0 {
		e.log.Info("removed what no drive holds", "blobs", removed)
	}
	e.at("drives-swept")
}

func (e *Engine) removeStrayDrives(ctx context.Context, grace time.Duration) (removed int, err error) {
	// List the blobs first, then the rows: a blob that gets its row in between is then
	// among the rows.
	blobs, err := e.cfg.Drives.List(ctx, blob.ListOptions{Prefix: ident.DrivePrefix, Before: time.Now().Add(-grace)})
	if err != nil {
		return 0, err
	}
	held, err := e.store.DriveBlobs(ctx)
	if err != nil {
		return 0, err
	}
	for _, b := range blobs {
		if held[b.Name] {
			continue
		}
		if err := e.cfg.Drives.Delete(ctx, b.Name); err != nil && cay.CodeOf(err) != cay.NotFound {
			return removed, err
		}
		removed++
	}
	_, err = e.cfg.Drives.Clean(ctx, grace)
	return removed, err
}
