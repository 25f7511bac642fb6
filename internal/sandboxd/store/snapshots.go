package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/sandboxd/ident"
	"github.com/cayhq/cay/sandbox"
)

// Statuses of snapshots that the API does not show, in addition to
// sandbox.SnapshotStatus.
const (
	snapshotHibernated = "hibernated" // a sandbox is hibernated in it
	snapshotDiscarded  = "discarded"  // a sandbox was hibernated in it; the row is removed together with the files
)

// SnapshotRow is a snapshot as the database holds it.
type SnapshotRow struct {
	sandbox.Snapshot
	Hibernated    bool // a sandbox is hibernated in the snapshot, which the API does not show
	Periodic      bool // made while the sandbox ran, by its SaveEvery; the next snapshot takes its place
	Replace       bool // not in the database: take the name from the snapshot that has it
	Missing       bool // the files of the snapshot were not found
	RuntimeDigest string
	ImageEnv      map[string]string `json:"-"`
	GuestToken    string            `json:"-"` // token of the guest in a memory snapshot
	Programs      string            // that restore the memory of a memory snapshot, as a programs.Pair
	Extra         SnapshotExtra
}

// SnapshotExtra holds further properties that a sandbox started from the snapshot needs.
type SnapshotExtra struct {
	Mounts []sandbox.Mount `json:"mounts,omitempty"` // drives mounted in a memory snapshot, by id
	// Network is the policy that the sandbox had, without the headers that rules set. Nil
	// in imported snapshots, and if the caller left the policy out.
	Network *sandbox.Network `json:"network,omitempty"`
}

const snapshotColumns = `id, team_id, project_id, name, kind, status, automatic, parent_id, sandbox_id, sandbox_name, session_id,
	image, digest, runtime, runtime_digest, image_env, user, workdir, disk_mb, vcpus, memory_mb, build, size_bytes,
	created_at, updated_at, last_used_at, expires_at, took, paused, guest_token, extra, stored, annotations, programs, periodic`

func (s *Store) scanSnapshot(from db.Scanner) (*SnapshotRow, error) {
	var (
		r                SnapshotRow
		name             sql.NullString
		status           string
		imageEnv, extra  string
		created, updated int64
		used, expires    sql.NullInt64
		took, paused     int64
		stored           bool
		annotations      string
	)
	err := from.Scan(&r.ID, &r.TeamID, &r.ProjectID, &name, &r.Kind, &status, &r.Automatic, &r.ParentID, &r.SandboxID, &r.SandboxName, &r.SessionID,
		&r.Image, &r.Digest, &r.Runtime, &r.RuntimeDigest, &imageEnv, &r.User, &r.WorkDir, &r.DiskMB, &r.VCPUs, &r.MemoryMB, &r.Build, &r.SizeBytes,
		&created, &updated, &used, &expires, &took, &paused, &r.GuestToken, &extra, &stored, &annotations, &r.Programs, &r.Periodic)
	if err != nil {
		return nil, err
	}
	if r.GuestToken, err = s.unseal(r.GuestToken, tokenOf(r.ID)); err != nil {
		return nil, fmt.Errorf("open %s: %w", tokenOf(r.ID), err)
	}
	if err := errors.Join(json.Unmarshal([]byte(imageEnv), &r.ImageEnv), json.Unmarshal([]byte(extra), &r.Extra)); err != nil {
		return nil, fmt.Errorf("snapshot %s: columns image_env, extra: %w", r.ID, err)
	}
	if r.Annotations, err = parseAnnotations(annotations); err != nil {
		return nil, fmt.Errorf("snapshot %s: column annotations: %w", r.ID, err)
	}
	r.Name = name.String
	switch status {
	case snapshotHibernated:
		r.Status, r.Hibernated = sandbox.SnapshotCreated, true
	case snapshotDiscarded:
		r.Status, r.Hibernated = sandbox.SnapshotDeleted, true
	default:
		r.Status = sandbox.SnapshotStatus(status)
	}
	r.Missing = !stored && r.Status == sandbox.SnapshotCreated
	r.CreatedAt, r.UpdatedAt = time.UnixMilli(created).UTC(), time.UnixMilli(updated).UTC()
	r.LastUsedAt, r.ExpiresAt = nullTime(used), nullTime(expires)
	r.Duration, r.Paused = millis(took), millis(paused)
	return &r, nil
}

func snapshotNotFound(ref string) error {
	return cay.Errorf(cay.NotFound, "snapshot %q not found", ref)
}

// Usable reports whether a sandbox can be started from a snapshot. Errors: not_found if
// the snapshot was deleted, conflict if its files are lost.
func (r *SnapshotRow) Usable() error {
	switch {
	case r.Status == sandbox.SnapshotDeleted:
		return cay.Errorf(cay.NotFound, "snapshot %q was deleted", r.ID)
	case r.Missing:
		return cay.Errorf(cay.Conflict, "the files of snapshot %q are missing on the host", r.ID).
			WithHint("restore them from a backup of the data directory and restart the daemon, or delete the snapshot")
	}
	return nil
}

// shownColumns are snapshotColumns without the columns that are large or sealed, which
// the API does not show.
var shownColumns = strings.NewReplacer("image_env", "'{}'", "guest_token", "''").Replace(snapshotColumns)

// snapshotsOf returns the snapshots that a query selects, with all columns.
func (s *Store) snapshotsOf(ctx context.Context, q db.Querier, where string, args ...any) ([]*SnapshotRow, error) {
	return s.readSnapshots(ctx, q, snapshotColumns, where, args...)
}

// shownSnapshots returns the snapshots that a query selects, with the columns that the
// API shows.
func shownSnapshots(ctx context.Context, q db.Querier, where string, args ...any) ([]*SnapshotRow, error) {
	return (&Store{}).readSnapshots(ctx, q, shownColumns, where, args...)
}

func (s *Store) readSnapshots(ctx context.Context, q db.Querier, columns, where string, args ...any) ([]*SnapshotRow, error) {
	all, err := db.Collect(ctx, q, s.scanSnapshot, `SELECT `+columns+` FROM sandbox_snapshots `+where, args...)
	if err != nil {
		return nil, fmt.Errorf("read snapshots: %w", err)
	}
	return all, nil
}

// FindSnapshot returns the snapshot with the id or name ref. An id also finds a deleted
// snapshot, a name does not. Errors: not_found if the scope has none.
func (s *Store) FindSnapshot(ctx context.Context, sc Scope, ref string) (*SnapshotRow, error) {
	cond := `name = ? AND status = 'created'`
	if strings.HasPrefix(ref, ident.SnapshotPrefix) {
		cond = `id = ? AND status IN ('created', 'deleted')`
	}
	found, err := s.snapshotsOf(ctx, s.db, `WHERE `+cond+` AND team_id = ? AND (? = '' OR project_id = ?) LIMIT 2`,
		ref, sc.Team, sc.Project, sc.Project)
	switch {
	case err != nil:
		return nil, err
	case len(found) == 0:
		return nil, snapshotNotFound(ref)
	case len(found) == 2:
		return nil, cay.Errorf(cay.Conflict, "several projects have a snapshot named %q", ref).
			WithHint("use its id, or a token of the project")
	}
	return found[0], nil
}

// GetSnapshot returns a snapshot by its id, including snapshots that the API does not
// show. Errors: not_found.
func (s *Store) GetSnapshot(ctx context.Context, id string) (*SnapshotRow, error) {
	found, err := s.snapshotsOf(ctx, s.db, `WHERE id = ?`, id)
	switch {
	case err != nil:
		return nil, err
	case len(found) == 0:
		return nil, snapshotNotFound(id)
	}
	return found[0], nil
}

// insertSnapshot inserts the row of a snapshot whose files exist. Errors: already_exists
// if its name is taken.
func (s *Store) insertSnapshot(ctx context.Context, tx *db.Tx, r *SnapshotRow) error {
	imageEnv, err := toJSON(r.ImageEnv)
	if err != nil {
		return err
	}
	extra, err := toJSON(r.Extra)
	if err != nil {
		return err
	}
	annotations, err := annotationsJSON(r.Annotations)
	if err != nil {
		return err
	}
	status := string(sandbox.SnapshotCreated)
	if r.Hibernated {
		status = snapshotHibernated
	}
	_, err = tx.Exec(ctx, `INSERT INTO sandbox_snapshots (`+snapshotColumns+`)
		VALUES (?`+strings.Repeat(`, ?`, strings.Count(snapshotColumns, ","))+`)`,
		r.ID, r.TeamID, r.ProjectID, sql.NullString{String: r.Name, Valid: r.Name != ""}, r.Kind, status, r.Automatic,
		r.ParentID, r.SandboxID, r.SandboxName, r.SessionID,
		r.Image, r.Digest, r.Runtime, r.RuntimeDigest, imageEnv, r.User, r.WorkDir, r.DiskMB, r.VCPUs, r.MemoryMB, r.Build, r.SizeBytes,
		r.CreatedAt.UnixMilli(), r.UpdatedAt.UnixMilli(), unixMilli(r.LastUsedAt), unixMilli(r.ExpiresAt),
		ms(r.Duration), ms(r.Paused), s.seal(r.GuestToken, tokenOf(r.ID)), extra, true, annotations, r.Programs, r.Periodic)
	if db.IsUnique(err, "sandbox_snapshots.project_id") {
		return SnapshotExists(r.Name)
	}
	return err
}

// InsertImported inserts the row of an imported snapshot, if the team's quota allows it.
// Errors: already_exists, quota_exceeded.
func (s *Store) InsertImported(ctx context.Context, r *SnapshotRow, quota account.Quota) error {
	err := s.db.Write(ctx, func(tx *db.Tx) error {
		if err := snapshotRoom(ctx, tx, quota, r.TeamID, r.SizeBytes); err != nil {
			return err
		}
		return s.insertSnapshot(ctx, tx, r)
	})
	if err != nil && cay.CodeOf(err) == cay.Internal {
		return fmt.Errorf("record snapshot: %w", err)
	}
	return err
}

// SnapshotExists is the error for a name that is taken.
func SnapshotExists(name string) error {
	return cay.Errorf(cay.AlreadyExists, "a snapshot named %q exists", name).
		WithHint("choose another name, or delete that snapshot")
}

// needSnapshot checks that a snapshot is usable, in the transaction that makes a sandbox
// depend on the snapshot. Errors: those of Usable.
func needSnapshot(ctx context.Context, tx *db.Tx, id string) error {
	found, err := shownSnapshots(ctx, tx, `WHERE id = ?`, id)
	switch {
	case err != nil:
		return err
	case len(found) == 0:
		return snapshotNotFound(id)
	}
	return found[0].Usable()
}

// markSnapshotDeleted marks a snapshot as deleted. Its row stays, without the name, which
// is free again; the collector removes the files, see Engine.freeSnapshots.
func markSnapshotDeleted(ctx context.Context, tx *db.Tx, id string, now time.Time) error {
	_, err := tx.Exec(ctx, deleteSnapshots+`WHERE id = ? AND status IN ('created', 'hibernated')`, now.UnixMilli(), id)
	return err
}

// markAutomaticDeleted deletes the automatic snapshots of a sandbox, except those that
// another sandbox starts from.
func markAutomaticDeleted(ctx context.Context, tx *db.Tx, sandboxID string, now time.Time) error {
	_, err := tx.Exec(ctx, deleteSnapshots+`WHERE sandbox_id = ? AND `+unneeded, now.UnixMilli(), sandboxID)
	return err
}

// deleteSnapshots is the start of a statement: its parameter is the time, and a WHERE
// clause must follow.
const deleteSnapshots = `UPDATE sandbox_snapshots SET name = NULL, updated_at = ?,
	status = CASE status WHEN 'hibernated' THEN 'discarded' ELSE 'deleted' END `

// TouchSnapshot records that a sandbox was started from a snapshot.
func (s *Store) TouchSnapshot(ctx context.Context, id string, now time.Time) error {
	_, err := s.db.Unsynced().Exec(ctx, `UPDATE sandbox_snapshots SET last_used_at = ? WHERE id = ? AND status = 'created'`, now.UnixMilli(), id)
	return err
}

// rowQuerier is a database, or a transaction of it.
type rowQuerier interface {
	QueryRow(ctx context.Context, query string, args ...any) db.Row
}

// kept returns the bytes that a team's snapshots, hibernated sandboxes and drives take on
// the host's disk.
func (c counts) kept() int64 { return c.snapshotBytes + c.driveBytes }

// snapshotRoom reports whether a team may keep more bytes of snapshots, hibernated
// sandboxes and drives. Errors: quota_exceeded.
func snapshotRoom(ctx context.Context, q rowQuerier, quota account.Quota, team string, more int64) error {
	if quota.SnapshotMB == 0 {
		return nil
	}
	all, err := countsOf(ctx, q, Scope{Team: team})
	if err != nil {
		return err
	}
	used := all.kept()
	left := quota.SnapshotMB<<20 - used
	if more <= left && left > 0 {
		return nil
	}
	hint := "delete snapshots or drives, or have the quota raised"
	n, bytes, err := unneededSnapshots(ctx, q, team)
	if err != nil {
		return err
	}
	if n > 0 {
		hint = fmt.Sprintf("%d MiB of that are %d old snapshots that stops made and nothing starts from: \"cay snapshot prune\" shows and deletes them; or have the quota raised",
			roundMB(bytes), n)
	}
	return cay.Errorf(cay.QuotaExceeded, "the team's quota is %d MiB of snapshots and drives, and %d are in use: there is no room for %d more",
		quota.SnapshotMB, roundMB(used), max(1, roundMB(more))).WithHint("%s", hint)
}

// roundMB returns bytes in MiB, rounded up.
func roundMB(bytes int64) int64 { return (bytes + 1<<20 - 1) >> 20 }

// CheckSnapshotBytes is snapshotRoom for a check before the save.
func (s *Store) CheckSnapshotBytes(ctx context.Context, quota account.Quota, team string, more int64) error {
	return snapshotRoom(ctx, s.db, quota, team, more)
}

// needed is the condition that a persistent sandbox's next session starts from the
// snapshot.
const needed = `EXISTS (SELECT 1 FROM sandboxes b WHERE b.snapshot_id = sandbox_snapshots.id AND b.snapshot_id <> '' AND b.persistent = 1 AND b.deleting = 0)`

// keptAutomatic is how many automatic snapshots, the newest ones, are kept for a sandbox
// without a retention of its own.
const keptAutomatic = 3

// Retain deletes the snapshots that their sandbox's retention does not keep, and returns
// their number. For a sandbox without a retention it deletes automatic snapshots only,
// all but the newest keptAutomatic.
func (s *Store) Retain(ctx context.Context, sandboxID string, now, deletedAt time.Time) (n int, err error) {
	err = s.db.Write(ctx, func(tx *db.Tx) error {
		n = 0
		var text string
		err := tx.QueryRow(ctx, `SELECT retention FROM sandboxes WHERE id = ?`, sandboxID).Scan(&text)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		r, of := sandbox.Retention{Keep: keptAutomatic}, ` AND automatic = 1`
		if text != "" {
			r, of = sandbox.Retention{}, ""
			if err := json.Unmarshal([]byte(text), &r); err != nil {
				return fmt.Errorf("sandbox %s: column retention: %w", sandboxID, err)
			}
		}
		evicted, err := evictedSnapshots(ctx, tx, sandboxID, of, r, now)
		if err != nil {
			return err
		}
		for _, id := range evicted {
			if err := markSnapshotDeleted(ctx, tx, id, deletedAt); err != nil {
				return err
			}
		}
		n = len(evicted)
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("thin out snapshots: %w", err)
	}
	return n, nil
}

// evictedSnapshots returns the unnamed snapshots of a sandbox that match the condition
// and that r does not keep. Snapshots that a sandbox needs are kept.
func evictedSnapshots(ctx context.Context, tx *db.Tx, sandboxID, of string, r sandbox.Retention, now time.Time) ([]string, error) {
	rows, err := tx.Query(ctx, `SELECT id, created_at, periodic, `+needed+` FROM sandbox_snapshots
		WHERE sandbox_id = ? AND status = 'created' AND name IS NULL`+of+` ORDER BY created_at DESC, id DESC`, sandboxID)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var evicted []string
	for rank := 1; rows.Next(); rank++ {
		var (
			id              string
			created         int64
			periodic, inUse bool
		)
		if err := rows.Scan(&id, &created, &periodic, &inUse); err != nil {
			return nil, err
		}
		if periodic && rank > 1 && !inUse { // a later snapshot takes its place, whatever r keeps
			evicted = append(evicted, id)
			rank--
			continue
		}
		tooMany := rank > r.Keep && !r.All && !r.KeepEvicted
		tooOld := r.MaxAge > 0 && now.Sub(time.UnixMilli(created)) > time.Duration(r.MaxAge)
		if !inUse && (tooMany || tooOld) {
			evicted = append(evicted, id)
		}
	}
	return evicted, rows.Err()
}

// ExpireSnapshots deletes the snapshots that expired between after and by, except those
// that a sandbox needs, and returns their number.
func (s *Store) ExpireSnapshots(ctx context.Context, after, by, deletedAt time.Time) (int64, error) {
	res, err := s.db.Exec(ctx, deleteSnapshots+`WHERE expires_at IS NOT NULL AND status = 'created'
		AND expires_at > ? AND expires_at <= ? AND NOT `+needed, deletedAt.UnixMilli(), after.UnixMilli(), by.UnixMilli())
	if err != nil {
		return 0, fmt.Errorf("expire snapshots: %w", err)
	}
	return res.Rows, nil
}

// SnapshotDates are the times of the next work on snapshots. Zero: never.
type SnapshotDates struct {
	Expiring bool      // some snapshots have an expiration, possibly in the past
	Expiry   time.Time // the first expiration after now
	Deleted  time.Time // when the snapshot was deleted whose row was deleted first
}

// SnapshotDates returns the times of the next work on snapshots.
func (s *Store) SnapshotDates(ctx context.Context, now time.Time) (SnapshotDates, error) {
	var (
		d            SnapshotDates
		expiry, gone sql.NullInt64
	)
	err := s.db.QueryRow(ctx, `SELECT
		EXISTS (SELECT 1 FROM sandbox_snapshots WHERE expires_at IS NOT NULL AND status = 'created'),
		(SELECT min(expires_at) FROM sandbox_snapshots WHERE expires_at IS NOT NULL AND status = 'created' AND expires_at > ?),
		(SELECT min(updated_at) FROM sandbox_snapshots WHERE status = 'deleted' AND stored = 0)`, now.UnixMilli()).
		Scan(&d.Expiring, &expiry, &gone)
	if err != nil {
		return d, fmt.Errorf("read when snapshots expire: %w", err)
	}
	if expiry.Valid {
		d.Expiry = time.UnixMilli(expiry.Int64)
	}
	if gone.Valid {
		d.Deleted = time.UnixMilli(gone.Int64)
	}
	return d, nil
}

// LeftSnapshots returns the ids, after last, of deleted snapshots whose files may still
// exist.
func (s *Store) LeftSnapshots(ctx context.Context, last string, limit int) ([]string, error) {
	return s.snapshotIDs(ctx, leftSnapshot, last, limit)
}

// snapshotIDs returns the ids, after last, of snapshots that match cond. The caller
// removes files, so the rows are first synced: the condition then still holds after a
// power cut.
func (s *Store) snapshotIDs(ctx context.Context, cond, last string, limit int) ([]string, error) {
	ids, err := db.Collect(ctx, s.db, db.Column[string],
		`SELECT id FROM sandbox_snapshots WHERE `+cond+` AND id > ? ORDER BY id LIMIT ?`, last, limit)
	if err != nil {
		return nil, fmt.Errorf("read snapshots: %w", err)
	}
	if len(ids) == 0 {
		return nil, nil
	}
	return ids, s.db.Sync()
}

// memoryLeft is the condition that a sandbox was hibernated in the snapshot, which is now
// a snapshot of files only, and that its memory still exists: the guest's token is
// removed with the memory.
const memoryLeft = `status = 'created' AND kind = 'filesystem' AND guest_token <> ''`

// MemoryLeft returns the ids, after last, of snapshots whose memory is not needed any
// more.
func (s *Store) MemoryLeft(ctx context.Context, last string, limit int) ([]string, error) {
	return s.snapshotIDs(ctx, memoryLeft, last, limit)
}

// MemoryDropped records that a snapshot consists of files only, and their size in bytes.
func (s *Store) MemoryDropped(ctx context.Context, id string, size int64) error {
	if _, err := s.db.Exec(ctx, `UPDATE sandbox_snapshots SET guest_token = '', size_bytes = ? WHERE id = ? AND `+memoryLeft, size, id); err != nil {
		return fmt.Errorf("record that snapshot %s has no memory: %w", id, err)
	}
	return nil
}

// SnapshotRemoved records that the files of a deleted snapshot are removed.
func (s *Store) SnapshotRemoved(ctx context.Context, id string) error {
	err := s.db.Write(ctx, func(tx *db.Tx) error {
		if _, err := tx.Exec(ctx, `DELETE FROM sandbox_snapshots WHERE id = ? AND status = 'discarded'`, id); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `UPDATE sandbox_snapshots SET stored = 0 WHERE id = ? AND status = 'deleted'`, id)
		return err
	})
	if err != nil {
		return fmt.Errorf("record the removal of snapshot %s: %w", id, err)
	}
	return nil
}

// StoredSnapshots returns the ids of the snapshots that should have files. The value says
// whether the files existed at the last check.
func (s *Store) StoredSnapshots(ctx context.Context) (map[string]bool, error) {
	kept := make(map[string]bool)
	_, err := db.Collect(ctx, s.db, func(row db.Scanner) (struct{}, error) {
		var id string
		var stored bool
		err := row.Scan(&id, &stored)
		kept[id] = stored
		return struct{}{}, err
	}, `SELECT id, stored FROM sandbox_snapshots WHERE status IN ('created', 'hibernated')`)
	if err != nil {
		return nil, fmt.Errorf("read snapshots: %w", err)
	}
	return kept, nil
}

// SetStored records whether the files of a snapshot exist, and reports whether that has
// changed.
func (s *Store) SetStored(ctx context.Context, id string, stored bool) (bool, error) {
	res, err := s.db.Exec(ctx, `UPDATE sandbox_snapshots SET stored = ? WHERE id = ? AND stored <> ? AND status IN ('created', 'hibernated')`,
		stored, id, stored)
	if err != nil {
		return false, fmt.Errorf("record the files of snapshot %s: %w", id, err)
	}
	return res.Rows == 1, nil
}

// ForgetSnapshots removes the rows of snapshots that were deleted by that time.
func (s *Store) ForgetSnapshots(ctx context.Context, by time.Time) error {
	_, err := s.db.Exec(ctx, `DELETE FROM sandbox_snapshots WHERE status = 'deleted' AND stored = 0 AND updated_at <= ?`, by.UnixMilli())
	if err != nil {
		return fmt.Errorf("forget deleted snapshots: %w", err)
	}
	return nil
}

// CountSnapshots returns the number of snapshots, including hibernated sandboxes, and
// their bytes.
func (s *Store) CountSnapshots(ctx context.Context) (n int, bytes int64, err error) {
	err = s.db.QueryRow(ctx, `SELECT coalesce(sum(snapshots + hibernations), 0), coalesce(sum(snapshot_bytes), 0) FROM sandbox_counts`).
		Scan(&n, &bytes)
	if err != nil {
		return 0, 0, fmt.Errorf("count snapshots: %w", err)
	}
	return n, bytes, nil
}

const needsImageQuery = `SELECT
	EXISTS (SELECT 1 FROM sandbox_snapshots WHERE digest = ? AND ` + keptSnapshot + `) OR
	EXISTS (SELECT 1 FROM sandbox_snapshots WHERE runtime_digest = ? AND ` + keptSnapshot + `) OR
	EXISTS (SELECT 1 FROM sandboxes WHERE digest = ? AND ` + needsImage + `) OR
	EXISTS (SELECT 1 FROM sandboxes WHERE runtime_digest = ? AND ` + needsImage + `)`

// NeedsImage reports whether a snapshot, or a sandbox that runs or can be resumed, uses
// an image or a runtime.
func (s *Store) NeedsImage(ctx context.Context, digest string) (needed bool, err error) {
	err = s.db.QueryRow(ctx, needsImageQuery, digest, digest, digest, digest).Scan(&needed)
	if err != nil {
		return false, fmt.Errorf("look for what needs image %s: %w", digest, err)
	}
	return needed, nil
}

// ListSnapshots returns the snapshots of a page, and one row more if there is another
// page.
func (s *Store) ListSnapshots(ctx context.Context, l Listing, p sandbox.SnapshotListParams) ([]*SnapshotRow, error) {
	sc := l.Scope
	// The unary plus keeps SQLite from reading all snapshots of the team or project.
	q, args, project := `WHERE team_id = ?`, []any{sc.Team}, `+project_id = ?`
	switch {
	case strings.HasPrefix(p.Sandbox, ident.SandboxPrefix):
		q = `WHERE +team_id = ?`
	case p.Sandbox == "" && p.Name == "":
		project = `project_id = ?`
	}
	and := func(cond string, a ...any) { q, args = q+" AND "+cond, append(args, a...) }
	if sc.Project != "" {
		and(project, sc.Project)
	}
	if p.Deleted {
		and(`status IN ('created', 'deleted')`)
	} else {
		and(`status = 'created'`)
	}
	switch {
	case p.Sandbox == "":
	case strings.HasPrefix(p.Sandbox, ident.SandboxPrefix):
		and(`sandbox_id = ?`, p.Sandbox)
	default: // also for the name of a deleted sandbox
		and(`sandbox_name = ?`, p.Sandbox)
	}
	if p.Name != "" {
		and(`name = ?`, p.Name)
	}
	createdWithin(and, "created_at", p.CreatedAfter, p.CreatedBefore)
	q, args = l.page(q, args, "created_at", "id")
	return shownSnapshots(ctx, s.db, q, args...)
}

// maxSiblings is how many siblings of a node the tree shows.
const maxSiblings = 10

// SnapshotTree walks from a snapshot to its parents or, if descendants is set, to its
// children, over at most limit snapshots. The path includes deleted snapshots whose rows
// still exist. Among several children it prefers one that is not deleted. Siblings
// include existing snapshots only.
func (s *Store) SnapshotTree(ctx context.Context, sc Scope, r *SnapshotRow, descendants bool, limit int) (*sandbox.SnapshotTree, error) {
	var tree *sandbox.SnapshotTree
	err := s.db.Read(ctx, func(tx *db.Tx) (err error) {
		tree = &sandbox.SnapshotTree{Nodes: []sandbox.SnapshotNode{}}
		if tree.Anchor, err = snapshotNode(ctx, tx, sc, r, maxSiblings); err != nil {
			return err
		}
		for at := r; ; {
			next, err := nextInTree(ctx, tx, sc, at, descendants)
			if err != nil || next == nil {
				return err
			}
			if len(tree.Nodes) == limit {
				tree.Next = at.ID
				return nil
			}
			node, err := snapshotNode(ctx, tx, sc, next, maxSiblings)
			if err != nil {
				return err
			}
			tree.Nodes = append(tree.Nodes, node)
			at = next
		}
	})
	if err != nil {
		return nil, err
	}
	return tree, nil
}

// nextInTree returns the parent of a snapshot or, if descendants is set, its newest
// child, preferring one that is not deleted. Nil: there is none.
func nextInTree(ctx context.Context, tx *db.Tx, sc Scope, at *SnapshotRow, descendants bool) (*SnapshotRow, error) {
	cond, id := `id = ?`, at.ParentID
	if descendants {
		cond, id = `parent_id = ? AND parent_id <> ''`, at.ID
	}
	if id == "" {
		return nil, nil
	}
	found, err := shownSnapshots(ctx, tx, `WHERE `+cond+` AND status IN ('created', 'deleted') AND team_id = ? AND (? = '' OR project_id = ?)
		ORDER BY status, created_at DESC, id DESC LIMIT 1`, id, sc.Team, sc.Project, sc.Project)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found[0], nil
}

// snapshotNode returns a snapshot with up to limit existing siblings.
func snapshotNode(ctx context.Context, tx *db.Tx, sc Scope, r *SnapshotRow, limit int) (sandbox.SnapshotNode, error) {
	node := sandbox.SnapshotNode{Snapshot: r.Snapshot, Siblings: []sandbox.Snapshot{}, Count: 1}
	if r.ParentID == "" {
		return node, nil
	}
	const siblings = ` parent_id = ? AND parent_id <> '' AND id <> ? AND status = 'created' AND team_id = ? AND (? = '' OR project_id = ?)`
	args := []any{r.ParentID, r.ID, sc.Team, sc.Project, sc.Project}
	var n int
	if err := tx.QueryRow(ctx, `SELECT count(*) FROM sandbox_snapshots WHERE`+siblings, args...).Scan(&n); err != nil {
		return node, fmt.Errorf("count snapshots: %w", err)
	}
	rows, err := shownSnapshots(ctx, tx, `WHERE`+siblings+` ORDER BY created_at DESC, id DESC LIMIT ?`, append(args, limit)...)
	if err != nil {
		return node, err
	}
	node.Count += n
	for _, s := range rows {
		node.Siblings = append(node.Siblings, s.Snapshot)
	}
	return node, nil
}

// DeleteSnapshot deletes a snapshot. Without force, it refuses if a sandbox needs the
// snapshot. It returns false if the snapshot was deleted already. Errors: conflict, which
// names the sandbox that needs the snapshot.
func (s *Store) DeleteSnapshot(ctx context.Context, id string, force bool, now time.Time) (deleted bool, err error) {
	err = s.db.Write(ctx, func(tx *db.Tx) error {
		deleted = false
		var sandboxID, name string
		err := tx.QueryRow(ctx, `SELECT id, name FROM sandboxes WHERE snapshot_id = ? AND snapshot_id <> '' AND persistent = 1 AND deleting = 0
			ORDER BY created_at, id LIMIT 1`, id).Scan(&sandboxID, &name)
		switch {
		case force && err == nil:
		case err == nil:
			return cay.Errorf(cay.Conflict, "sandbox %q (%s) is to start from the snapshot %s the next time", name, sandboxID, id).
				WithHint("delete that sandbox first, or have it start from another snapshot")
		case !errors.Is(err, sql.ErrNoRows):
			return err
		}
		res, err := tx.Exec(ctx, deleteSnapshots+`WHERE id = ? AND status = 'created'`, now.UnixMilli(), id)
		deleted = res.Rows == 1
		return err
	})
	if err != nil && cay.CodeOf(err) == cay.Internal {
		return false, fmt.Errorf("delete snapshot: %w", err)
	}
	return deleted, err
}
