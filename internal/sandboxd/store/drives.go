package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/sandboxd/ident"
	"github.com/cayhq/cay/sandbox"
)

// DriveRow is a drive as the database holds it.
type DriveRow struct {
	sandbox.Drive
	BlobID string // blob with the last saved content; "": the drive is empty
}

const (
	driveColumns = `d.id, d.team_id, d.project_id, d.name, d.max_mb, d.blob_id, d.size_bytes, d.sandbox_id, s.name, d.parent_id,
		d.created_at, d.updated_at, d.saved_at, d.annotations`
	driveTables = ` FROM sandbox_drives d LEFT JOIN sandboxes s ON s.id = d.sandbox_id `
)

func scanDrive(from db.Scanner) (*DriveRow, error) {
	var (
		d                 DriveRow
		holder, holderNam sql.NullString
		created, updated  int64
		saved             sql.NullInt64
		annotations       string
	)
	err := from.Scan(&d.ID, &d.TeamID, &d.ProjectID, &d.Name, &d.MaxMB, &d.BlobID, &d.SizeBytes, &holder, &holderNam, &d.ParentID,
		&created, &updated, &saved, &annotations)
	if err != nil {
		return nil, err
	}
	if d.Annotations, err = parseAnnotations(annotations); err != nil {
		return nil, fmt.Errorf("drive %s: column annotations: %w", d.ID, err)
	}
	d.SandboxID, d.SandboxName = holder.String, holderNam.String
	d.CreatedAt, d.UpdatedAt, d.SavedAt = time.UnixMilli(created).UTC(), time.UnixMilli(updated).UTC(), nullTime(saved)
	return &d, nil
}

func driveNotFound(ref string) error {
	return cay.Errorf(cay.NotFound, "drive %q not found", ref)
}

// drivesOf returns the drives that a query selects.
func drivesOf(ctx context.Context, q db.Querier, query string, args ...any) ([]*DriveRow, error) {
	all, err := db.Collect(ctx, q, scanDrive, `SELECT `+driveColumns+driveTables+query, args...)
	if err != nil {
		return nil, fmt.Errorf("read drives: %w", err)
	}
	return all, nil
}

// driveOf returns the drive with the name or id ref. Errors: not_found if the scope has
// none.
func driveOf(ctx context.Context, q db.Querier, sc Scope, ref string) (*DriveRow, error) {
	column := "name"
	if strings.HasPrefix(ref, ident.DrivePrefix) {
		column = "id"
	}
	drives, err := drivesOf(ctx, q, `WHERE d.`+column+` = ? AND d.team_id = ? AND (? = '' OR d.project_id = ?) LIMIT 2`,
		ref, sc.Team, sc.Project, sc.Project)
	switch {
	case err != nil:
		return nil, err
	case len(drives) == 0:
		return nil, driveNotFound(ref)
	case len(drives) == 2:
		return nil, cay.Errorf(cay.Conflict, "several projects have a drive named %q", ref).
			WithHint("use its id, or a token of the project")
	}
	return drives[0], nil
}

// attachDrives attaches to a sandbox the drives that it mounts, in the transaction that
// makes the sandbox pending or resuming. Names become ids in r.Mounts. Drives mounted
// read-write are reserved for this sandbox until detachDrives. Errors: not_found;
// conflict if another sandbox has a drive read-write; invalid if r itself wants a drive
// read-write twice.
func attachDrives(ctx context.Context, tx *db.Tx, r *Row) error {
	mounts, drives, err := mountsOf(ctx, tx, r.Scope(), r.Mounts)
	if err != nil {
		return err
	}
	for i, d := range drives {
		if mounts[i].Mode != sandbox.MountReadWrite {
			continue
		}
		res, err := tx.Exec(ctx, `UPDATE sandbox_drives SET sandbox_id = ? WHERE id = ? AND (sandbox_id IS NULL OR sandbox_id = ?)`,
			r.ID, d.ID, r.ID)
		if err != nil {
			return err
		}
		if res.Rows == 0 {
			return cay.Errorf(cay.Conflict, "%s has drive %q read-write, and only one sandbox at a time can", d.Holder(), d.Name).
				WithHint("stop that sandbox, or mount the drive at %s read-only or as a copy", mounts[i].Path)
		}
	}
	r.Mounts, r.drivesMB = mounts, mountedMB(mounts, drives)
	return nil
}

// mountedMB returns how many MiB of the host's disk a machine may take for its drives: it
// has a copy of each drive, and adds to the copy.
func mountedMB(mounts []sandbox.Mount, drives []*DriveRow) int64 {
	var mb int64
	for i, d := range drives {
		if mounts[i].Mode == sandbox.MountReadOnly {
			mb += roundMB(d.SizeBytes)
		} else {
			mb += d.MaxMB
		}
	}
	return mb
}

// Holder names the sandbox that has the drive read-write.
func (d *DriveRow) Holder() string {
	if d.SandboxName == "" {
		return "another sandbox"
	}
	return fmt.Sprintf("sandbox %q", d.SandboxName)
}

// mountsOf returns the mounts sorted by path, with drive ids in place of names and with
// modes set, and the drives in the same order. Errors: not_found, which names the mount;
// invalid if a drive is mounted read-write at two paths.
func mountsOf(ctx context.Context, q db.Querier, sc Scope, mounts []sandbox.Mount) ([]sandbox.Mount, []*DriveRow, error) {
	var (
		resolved = slices.Clone(mounts) // a clone, because the transaction may run again with mounts
		drives   = make([]*DriveRow, len(mounts))
		written  = make(map[string]string)
	)
	slices.SortFunc(resolved, func(a, b sandbox.Mount) int { return strings.Compare(a.Path, b.Path) })
	for i, m := range resolved {
		d, err := driveOf(ctx, q, sc, m.Drive)
		if cay.CodeOf(err) == cay.NotFound {
			return nil, nil, cay.Errorf(cay.NotFound, "drive %q, to be mounted at %s, not found", m.Drive, m.Path).
				WithHint("create the drive, or change what the sandbox mounts at %s", m.Path)
		}
		if err != nil {
			return nil, nil, err
		}
		if m.Mode == "" {
			m.Mode = sandbox.MountReadWrite
		}
		if m.Mode == sandbox.MountReadWrite {
			if at, ok := written[d.ID]; ok {
				return nil, nil, cay.Errorf(cay.Invalid, "drive %q is to be mounted read-write at %s and at %s", d.Name, at, m.Path).
					WithHint("mount it read-write at one of them")
			}
			written[d.ID] = m.Path
		}
		m.Drive = d.ID
		resolved[i], drives[i] = m, d
	}
	return resolved, drives, nil
}

// detachDrives releases the drives of a sandbox, in the transaction that records that its
// machine is gone.
func detachDrives(ctx context.Context, tx *db.Tx, sandboxID string) error {
	_, err := tx.Exec(ctx, `UPDATE sandbox_drives SET sandbox_id = NULL WHERE sandbox_id = ?`, sandboxID)
	return err
}

// WritesDrives reports whether a sandbox with these mounts has drives that are to be
// saved.
func WritesDrives(mounts []sandbox.Mount) bool {
	return slices.ContainsFunc(mounts, func(m sandbox.Mount) bool {
		return m.Mode == sandbox.MountReadWrite || m.Mode == ""
	})
}

// FindDrive returns the drive with the name or id ref. Errors: not_found if the scope has
// none.
func (s *Store) FindDrive(ctx context.Context, sc Scope, ref string) (*DriveRow, error) {
	return driveOf(ctx, s.db, sc, ref)
}

// ResolveMounts is mountsOf for a sandbox that is not being started.
func (s *Store) ResolveMounts(ctx context.Context, sc Scope, mounts []sandbox.Mount) ([]sandbox.Mount, error) {
	mounts, _, err := mountsOf(ctx, s.db, sc, mounts)
	return mounts, err
}

// GetDrive returns a drive by its id. Errors: not_found.
func (s *Store) GetDrive(ctx context.Context, id string) (*DriveRow, error) {
	d, err := scanDrive(s.db.QueryRow(ctx, `SELECT `+driveColumns+driveTables+`WHERE d.id = ?`, id))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, driveNotFound(id)
	}
	if err != nil {
		return nil, fmt.Errorf("read drive: %w", err)
	}
	return d, nil
}

// ListDrives returns the drives of a page, and one drive more if there is another page.
// At most maxDrives are sorted.
func (s *Store) ListDrives(ctx context.Context, l Listing, p sandbox.DriveListParams) ([]*DriveRow, error) {
	sc := l.Scope
	q, args := `WHERE d.team_id = ?`, []any{sc.Team}
	and := func(cond string, a ...any) { q, args = q+" AND "+cond, append(args, a...) }
	if sc.Project != "" {
		and(`d.project_id = ?`, sc.Project)
	}
	if p.NamePrefix != "" {
		and(`d.name >= ? AND d.name < ?`, p.NamePrefix, p.NamePrefix+afterNames)
	}
	q, args = l.page(q, args, "d."+string(l.By), "d.id") // each order is named as its column
	return drivesOf(ctx, s.db, q, args...)
}

// Place returns the value by which a list sorts the drive.
func (d *DriveRow) Place(by sandbox.Order) any {
	switch by {
	case sandbox.ByName:
		return d.Name
	case sandbox.ByUpdate:
		return d.UpdatedAt.UnixMilli()
	}
	return d.CreatedAt.UnixMilli()
}

// maxDrives is how many drives a team may have.
const maxDrives = 10_000

// InsertDrive adds a drive. Errors: already_exists, quota_exceeded.
func (s *Store) InsertDrive(ctx context.Context, d *DriveRow, quota account.Quota) error {
	err := s.db.Write(ctx, func(tx *db.Tx) error {
		team, err := countsOf(ctx, tx, Scope{Team: d.TeamID})
		if err != nil {
			return err
		}
		if team.drives >= maxDrives {
			return cay.Errorf(cay.QuotaExceeded, "the team has %d drives, and may not have more", team.drives).WithHint("delete drives that are not needed")
		}
		if d.SizeBytes > 0 { // clones made at the same time count against the quota
			if err := snapshotRoom(ctx, tx, quota, d.TeamID, d.SizeBytes); err != nil {
				return err
			}
		}
		annotations, err := annotationsJSON(d.Annotations)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO sandbox_drives (id, team_id, project_id, name, max_mb, blob_id, size_bytes, parent_id, created_at, updated_at, saved_at, annotations)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, d.ID, d.TeamID, d.ProjectID, d.Name, d.MaxMB, d.BlobID, d.SizeBytes, d.ParentID,
			d.CreatedAt.UnixMilli(), d.UpdatedAt.UnixMilli(), unixMilli(d.SavedAt), annotations)
		return err
	})
	switch {
	case db.IsUnique(err, "sandbox_drives.project_id"):
		return DriveExists(d.Name)
	case err != nil && cay.CodeOf(err) == cay.Internal:
		return fmt.Errorf("record drive: %w", err)
	}
	return err
}

// DriveExists is the error for a name that is taken.
func DriveExists(name string) error {
	return cay.Errorf(cay.AlreadyExists, "a drive named %q exists", name).
		WithHint("choose another name, or delete that drive")
}

// SavedDrive is the saved content of a drive that is to be recorded in the drive's row.
type SavedDrive struct {
	BlobID    string
	SizeBytes int64
	// Over is the id of the blob from which the saved content was derived.
	Over string
	// SandboxID and SessionID identify the machine from which the drive was saved.
	SandboxID, SessionID string
}

// SwitchDrive makes the saved content the content of a drive. It returns false if the
// drive no longer holds the blob d.Over, or if the session no longer has the drive.
func (s *Store) SwitchDrive(ctx context.Context, id string, d SavedDrive, now time.Time) (bool, error) {
	return s.changed(ctx, `UPDATE sandbox_drives SET blob_id = ?, size_bytes = ?, saved_at = ?, updated_at = ?
		WHERE id = ? AND blob_id = ? AND sandbox_id = ? AND EXISTS (SELECT 1 FROM sandboxes s WHERE s.id = sandbox_id AND s.session_id = ?)`,
		d.BlobID, d.SizeBytes, now.UnixMilli(), now.UnixMilli(), id, d.Over, d.SandboxID, d.SessionID)
}

// RemoveDrive deletes the row of a drive and returns the id of the drive's blob. Errors:
// not_found, conflict if a sandbox has the drive, or has it mounted in saved memory.
func (s *Store) RemoveDrive(ctx context.Context, id string) (blobID string, err error) {
	err = s.db.Write(ctx, func(tx *db.Tx) error {
		drives, err := drivesOf(ctx, tx, `WHERE d.id = ?`, id)
		if err != nil {
			return err
		}
		if len(drives) == 0 {
			return driveNotFound(id)
		}
		d := drives[0]
		if d.SandboxID != "" {
			return cay.Errorf(cay.Conflict, "%s has drive %q read-write", d.Holder(), d.Name).WithHint("stop that sandbox first")
		}
		var asleep string
		err = tx.QueryRow(ctx, `SELECT name FROM sandboxes WHERE project_id = ? AND hibernation_id <> '' AND mounts LIKE '%"' || ? || '"%' LIMIT 1`,
			d.ProjectID, d.ID).Scan(&asleep)
		if err == nil {
			return cay.Errorf(cay.Conflict, "sandbox %q, which is hibernated, goes on with drive %q", asleep, d.Name).
				WithHint("resume that sandbox first, or delete it")
		}
		if !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		blobID = d.BlobID
		_, err = tx.Exec(ctx, `DELETE FROM sandbox_drives WHERE id = ?`, id)
		return err
	})
	if err != nil && cay.CodeOf(err) == cay.Internal {
		err = fmt.Errorf("remove drive: %w", err)
	}
	return blobID, err
}

// DriveBlobs returns the blobs that drives hold.
func (s *Store) DriveBlobs(ctx context.Context) (map[string]bool, error) {
	return s.names(ctx, "drives", `SELECT blob_id FROM sandbox_drives WHERE blob_id <> ''`)
}

// IsDriveBlob reports whether a drive holds a blob.
func (s *Store) IsDriveBlob(ctx context.Context, id string) (is bool, err error) {
	err = s.db.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM sandbox_drives WHERE blob_id = ? AND blob_id <> '')`, id).Scan(&is)
	return is, err
}
