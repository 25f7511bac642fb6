package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/sandbox"
)

// maxSessions is how many sessions of a sandbox are kept in the database.
const maxSessions = 1000

// atRest is the condition for sandboxes without a machine that can have another session
// with Fresh set. It includes sandboxes that failed to start: their image may exist by
// now.
const atRest = `status IN ('hibernated', 'stopped', 'failed')`

// resumable is the condition for sandboxes that can be resumed without Fresh.
const resumable = `(` + atRest + ` AND (status = 'hibernated' OR persistent = 1))`

func insertSession(ctx context.Context, tx *db.Tx, r *Row, now time.Time) error {
	source := cmp.Or(r.Hibernation, r.SnapshotID)
	_, err := tx.Exec(ctx, `INSERT INTO sandbox_sessions (id, sandbox_id, number, status, source_id, vcpus, memory_mb, timeout, created_at, team_id)
		VALUES (?, ?, (SELECT coalesce(max(number), 0) + 1 FROM sandbox_sessions WHERE sandbox_id = ?), '', ?, ?, ?, ?, ?, ?)`,
		r.SessionID, r.ID, r.ID, source, r.VCPUs, r.MemoryMB, ms(r.Timeout), now.UnixMilli(), r.TeamID)
	return err
}

// Resume moves a sandbox that has ended to resuming, with a new session that has the
// given id and guest token. With anew the sandbox need not be persistent. Resume returns
// the sandbox's row, or nil if the sandbox is not resumable any more. Errors: not_found
// and conflict (its snapshot), quota_exceeded, and those of attachDrives.
func (s *Store) Resume(ctx context.Context, id, session, token string, anew bool, quota account.Quota, now time.Time) (r *Row, err error) {
	defer s.changing(ctx, id)()
	from := resumable
	if anew {
		from = atRest
	}
	err = s.db.Unsynced().Write(ctx, func(tx *db.Tx) error {
		r, err = s.scan(tx.QueryRow(ctx, `SELECT `+columns+` FROM sandboxes WHERE id = ? AND deleting = 0 AND `+from, id))
		if errors.Is(err, sql.ErrNoRows) {
			r = nil
			return nil
		}
		if err != nil {
			return err
		}
		if r.Unreadable != nil {
			return r.Unreadable
		}
		if r.coming.Unfilled {
			return cay.Errorf(cay.Conflict, "sandbox %q ended before it had its source", r.Name).
				WithHint("delete it, and create it again")
		}
		if r.Hibernation == "" && r.SnapshotID != "" {
			if err := needSnapshot(ctx, tx, r.SnapshotID); err != nil {
				return startsFromNothing(r, err)
			}
		}
		if err := closeSession(ctx, tx, id); err != nil {
			return err
		}
		if r.Hibernation == "" {
			r.GuestToken = token // the guest starts from files; a guest restored from memory keeps its token
		}
		r.before, r.Usage = r.Total, sandbox.Usage{}
		r.Status, r.Reason, r.Message = sandbox.Resuming, "", ""
		r.SessionID, r.Timeout, r.UpdatedAt, r.StatusAt = session, r.SessionTimeout, now, now
		r.StartedAt, r.ExpiresAt, r.StoppedAt = nil, nil, nil
		r.ApplyNext()
		if err := checkQuota(ctx, tx, r, quota, now); err != nil {
			return err
		}
		if err := attachDrives(ctx, tx, r); err != nil {
			return err
		}
		env, err := toJSON(r.Env)
		if err != nil {
			return err
		}
		mounts, err := toJSON(mountsOrNone(r.Mounts))
		if err != nil {
			return err
		}
		next, err := toJSON(r.coming)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE sandboxes SET status = 'resuming', reason = '', message = '', session_id = ?, guest_token = ?,
			timeout = session_timeout, updated_at = ?, status_at = ?, started_at = NULL, expires_at = NULL, stopped_at = NULL, frozen = 0,
			vcpus = ?, memory_mb = ?, env = ?, mounts = ?, drives_mb = ?, next = ?, runtime = ?, runtime_digest = ?,
			total_cpu = total_cpu + cpu, total_wall = total_wall + wall, total_memory_peak = max(total_memory_peak, memory_peak),
			total_ingress_bytes = total_ingress_bytes + ingress_bytes, total_egress_bytes = total_egress_bytes + egress_bytes,
			cpu = 0, wall = 0, memory_peak = 0, ingress_bytes = 0, egress_bytes = 0 WHERE id = ?`,
			session, s.seal(r.GuestToken, tokenOf(id)), now.UnixMilli(), now.UnixMilli(), r.VCPUs, r.MemoryMB, s.seal(env, envOf(id)), mounts, r.drivesMB,
			s.seal(next, nextOf(id)),
			r.Runtime, r.RuntimeDigest, id); err != nil {
			return err
		}
		return insertSession(ctx, tx, r, now)
	})
	if err != nil && cay.CodeOf(err) == cay.Internal {
		return nil, fmt.Errorf("record session: %w", err)
	}
	return r, err
}

// startsFromNothing returns the error for a sandbox whose next session cannot start
// because its snapshot is missing or unusable.
func startsFromNothing(r *Row, err error) error {
	if code := cay.CodeOf(err); code == cay.NotFound {
		return cay.Errorf(code, "sandbox %q is to start from a snapshot: %w", r.Name, err).
			WithHint("set its snapshot_id to another snapshot, or to nothing to start from the image")
	}
	return err
}

// closeSession copies the outcome of a sandbox's newest session from the sandbox's row,
// which holds it until there is another session, to the row of the session.
func closeSession(ctx context.Context, tx *db.Tx, id string) error {
	if _, err := tx.Exec(ctx, `UPDATE sandbox_sessions SET (status, reason, message, started_at, stopped_at, timeout,
			cpu, wall, memory_peak, ingress_bytes, egress_bytes) =
		(SELECT s.status, s.reason, s.message, s.started_at, s.stopped_at, s.timeout,
			s.cpu, s.wall, s.memory_peak, s.ingress_bytes, s.egress_bytes FROM sandboxes s WHERE s.id = ?)
		WHERE sandbox_id = ? AND status = ''`, id, id); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `DELETE FROM sandbox_sessions WHERE sandbox_id = ? AND number <=
		(SELECT max(number) FROM sandbox_sessions WHERE sandbox_id = ?) - ?`, id, id, maxSessions)
	return err
}

// sessionNotFound is the error for a session that does not exist or was removed from the
// database.
func sessionNotFound(id string) error {
	return cay.Errorf(cay.NotFound, "session %q not found", id)
}

// SessionRow is a session as the database holds it.
type SessionRow struct {
	sandbox.Session
	Number int64
}

// sessionQuery selects from v, the sessions, and s, their sandboxes. The row of a sandbox
// holds the fields of its newest session that change.
var sessionQuery = func() string {
	q := `SELECT v.id, v.sandbox_id, v.number, v.source_id, v.snapshot_id, v.vcpus, v.memory_mb, v.created_at`
	for _, c := range []string{"status", "reason", "message", "timeout", "started_at", "stopped_at",
		"cpu", "wall", "memory_peak", "ingress_bytes", "egress_bytes"} {
		q += `, CASE WHEN v.id = s.session_id THEN s.` + c + ` ELSE v.` + c + ` END`
	}
	return q + ` FROM sandbox_sessions v JOIN sandboxes s ON s.id = v.sandbox_id WHERE `
}()

// sessions returns the sessions that a query selects.
func (s *Store) sessions(ctx context.Context, where string, args ...any) ([]*SessionRow, error) {
	all, err := db.Collect(ctx, s.db, scanSession, sessionQuery+where, args...)
	if err != nil {
		return nil, fmt.Errorf("read sessions: %w", err)
	}
	return all, nil
}

func scanSession(from db.Scanner) (*SessionRow, error) {
	var (
		v                = new(SessionRow)
		timeout, created int64
		started, stopped sql.NullInt64
		cpu, wall        int64
	)
	if err := from.Scan(&v.ID, &v.SandboxID, &v.Number, &v.SourceID, &v.SnapshotID, &v.VCPUs, &v.MemoryMB, &created,
		&v.Status, &v.Reason, &v.Message, &timeout, &started, &stopped,
		&cpu, &wall, &v.Usage.MemoryPeak, &v.Usage.IngressBytes, &v.Usage.EgressBytes); err != nil {
		return nil, err
	}
	v.Timeout, v.CreatedAt = millis(timeout), time.UnixMilli(created).UTC()
	v.StartedAt, v.StoppedAt = nullTime(started), nullTime(stopped)
	v.Usage.ActiveCPU, v.Usage.WallTime = millis(cpu), millis(wall)
	return v, nil
}

// SessionsOf returns a page of the sessions of a sandbox, and one row more if there is
// another page.
func (s *Store) SessionsOf(ctx context.Context, l Listing, sandboxID string) ([]*SessionRow, error) {
	where, args := l.page(`v.sandbox_id = ?`, []any{sandboxID}, "v.number", "v.id")
	return s.sessions(ctx, where, args...)
}

// ListSessions returns a page of the sessions of many sandboxes, and one row more if
// there is another page.
func (s *Store) ListSessions(ctx context.Context, l Listing) ([]*SessionRow, error) {
	where, args := `v.team_id = ?`, []any{l.Scope.Team}
	if l.Scope.Project != "" {
		where, args = where+` AND s.project_id = ?`, append(args, l.Scope.Project)
	}
	where, args = l.page(where, args, "v.created_at", "v.id")
	return s.sessions(ctx, where, args...)
}

// FindSession returns a session by its id. Errors: not_found if the scope has none.
func (s *Store) FindSession(ctx context.Context, sc Scope, id string) (*SessionRow, error) {
	found, err := s.sessions(ctx, `v.id = ? AND s.team_id = ? AND (? = '' OR s.project_id = ?)`, id, sc.Team, sc.Project, sc.Project)
	switch {
	case err != nil:
		return nil, err
	case len(found) == 0:
		return nil, sessionNotFound(id)
	}
	return found[0], nil
}

// SetFrozen records that the engine is about to pause the machine of a sandbox for a
// save, or has resumed the machine. It returns false if the sandbox is neither running
// nor paused.
func (s *Store) SetFrozen(ctx context.Context, id string, frozen bool) (bool, error) {
	return s.noted(ctx, `UPDATE sandboxes SET frozen = ? WHERE id = ? AND status IN ('running', 'paused')`, frozen, id)
}

// Snapshotted inserts the row of a snapshot and makes it the start of the sandbox's next
// session. Errors: already_exists.
func (s *Store) Snapshotted(ctx context.Context, snap *SnapshotRow, now time.Time) error {
	defer s.changing(ctx, snap.SandboxID)()
	return s.db.Write(ctx, func(tx *db.Tx) error {
		if snap.Replace {
			if _, err := tx.Exec(ctx, `UPDATE sandbox_snapshots SET name = NULL, updated_at = ? WHERE project_id = ? AND name = ?`,
				now.UnixMilli(), snap.ProjectID, snap.Name); err != nil {
				return err
			}
		}
		if err := s.insertSnapshot(ctx, tx, snap); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE sandbox_sessions SET snapshot_id = ? WHERE id = ?`, snap.ID, snap.SessionID); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `UPDATE sandboxes SET snapshot_id = ?, updated_at = ? WHERE id = ? AND session_id = ?`,
			snap.ID, now.UnixMilli(), snap.SandboxID, snap.SessionID)
		return err
	})
}

// SnapshotStays records that no file has changed since a snapshot, so that the next
// session starts from this snapshot again. It returns false and records nothing if the
// snapshot was deleted meanwhile.
func (s *Store) SnapshotStays(ctx context.Context, session, id string) (stays bool, err error) {
	err = s.db.Write(ctx, func(tx *db.Tx) error {
		res, err := tx.Exec(ctx, `UPDATE sandbox_sessions SET snapshot_id = ? WHERE id = ? AND
			EXISTS (SELECT 1 FROM sandbox_snapshots WHERE id = ? AND status = 'created') AND
			EXISTS (SELECT 1 FROM sandboxes b WHERE b.id = sandbox_sessions.sandbox_id AND b.session_id = sandbox_sessions.id AND b.snapshot_id = ?)`,
			id, session, id, id)
		if stays = res.Rows == 1; err != nil || !stays {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE sandbox_snapshots SET periodic = 0 WHERE id = ? AND periodic = 1`, id)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("update sandbox: %w", err)
	}
	return stays, nil
}

// ChangeSession gives the session of a pending sandbox another id. It returns false if
// the sandbox is not pending any more.
func (s *Store) ChangeSession(ctx context.Context, r *Row, id string) (ok bool, err error) {
	defer s.changing(ctx, r.ID)()
	err = s.db.Unsynced().Write(ctx, func(tx *db.Tx) error {
		res, err := tx.Exec(ctx, `UPDATE sandboxes SET session_id = ? WHERE id = ? AND session_id = ? AND status = 'pending'`, id, r.ID, r.SessionID)
		if ok = res.Rows == 1; err != nil || !ok {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE sandbox_sessions SET id = ? WHERE id = ?`, id, r.SessionID)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("change session: %w", err)
	}
	return ok, nil
}

// EndSnapshot returns the snapshot made when the newest session of a sandbox ended, or
// nil.
func (s *Store) EndSnapshot(ctx context.Context, r *Row) (*SnapshotRow, error) {
	if r.SnapshotID == "" {
		return nil, nil
	}
	snap, err := s.GetSnapshot(ctx, r.SnapshotID)
	switch {
	case cay.CodeOf(err) == cay.NotFound:
		return nil, nil
	case err != nil:
		return nil, err
	case snap.SessionID != r.SessionID || !snap.Automatic || snap.Periodic:
		return nil, nil
	}
	return snap, nil
}

// Hibernated records that a sandbox is hibernated in a snapshot of its own, with the
// usage up to that moment. It returns false and records nothing if the sandbox was
// neither running nor paused.
func (s *Store) Hibernated(ctx context.Context, snap *SnapshotRow, u sandbox.Usage, k CommandArchive, now time.Time) (ok bool, err error) {
	defer s.changing(ctx, snap.SandboxID)()
	err = s.db.Write(ctx, func(tx *db.Tx) error {
		res, err := tx.Exec(ctx, `UPDATE sandboxes SET status = 'hibernated', hibernation_id = ?, frozen = 0, reason = '', message = '',
			expires_at = NULL, stopped_at = ?, updated_at = ?, status_at = ? WHERE id = ? AND session_id = ? AND status IN ('running', 'paused')`,
			snap.ID, now.UnixMilli(), now.UnixMilli(), now.UnixMilli(), snap.SandboxID, snap.SessionID)
		if ok = res.Rows == 1; err != nil || !ok {
			return err
		}
		if err := s.insertSnapshot(ctx, tx, snap); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE sandbox_sessions SET snapshot_id = ? WHERE id = ?`, snap.ID, snap.SessionID); err != nil {
			return err
		}
		if err := setCommands(ctx, tx, snap.SessionID, k, s.opts.MaxCommands); err != nil {
			return err
		}
		return setUsage(ctx, tx, snap.SandboxID, u)
	})
	return ok, err
}

// StopHibernated moves a hibernated sandbox to stopped. It returns false if the sandbox
// is not hibernated.
func (s *Store) StopHibernated(ctx context.Context, id string, now time.Time) (ok bool, err error) {
	defer s.changing(ctx, id)()
	err = s.db.Write(ctx, func(tx *db.Tx) error {
		res, err := tx.Exec(ctx, `UPDATE sandboxes SET status = 'stopped', reason = ?, stopped_at = ?, updated_at = ?, status_at = ?
			WHERE id = ? AND status = 'hibernated'`, sandbox.ReasonRequested, now.UnixMilli(), now.UnixMilli(), now.UnixMilli(), id)
		if ok = res.Rows == 1; err != nil || !ok {
			return err
		}
		if err := detachDrives(ctx, tx, id); err != nil {
			return err
		}
		return leaveHibernation(ctx, tx, id, `('stopped')`, now)
	})
	return ok, err
}

// leaveHibernation ends the hibernation of a sandbox that has one of the statuses. If the
// sandbox is persistent, the snapshot it was hibernated in becomes an automatic snapshot
// of its files, from which the next session starts; otherwise the snapshot is deleted.
// The memory is dropped in the background, see MemoryLeft.
func leaveHibernation(ctx context.Context, tx *db.Tx, id, statuses string, now time.Time) error {
	var (
		hibernation string
		keep        bool
	)
	err := tx.QueryRow(ctx, `SELECT hibernation_id, persistent = 1 AND deleting = 0 FROM sandboxes
		WHERE id = ? AND status IN `+statuses+` AND hibernation_id <> ''`, id).Scan(&hibernation, &keep)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err != nil:
		return err
	case !keep:
		if err := markSnapshotDeleted(ctx, tx, hibernation, now); err != nil {
			return err
		}
	default:
		if _, err := tx.Exec(ctx, `UPDATE sandbox_snapshots SET status = 'created', kind = 'filesystem', automatic = 1, updated_at = ?,
			expires_at = (SELECT nullif(snapshot_expiration, 0) + ? FROM sandboxes WHERE id = ?) WHERE id = ?`,
			now.UnixMilli(), now.UnixMilli(), id, hibernation); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE sandboxes SET snapshot_id = hibernation_id WHERE id = ?`, id); err != nil {
			return err
		}
	}
	_, err = tx.Exec(ctx, `UPDATE sandboxes SET hibernation_id = '' WHERE id = ?`, id)
	return err
}

func retentionJSON(r *sandbox.Retention) (string, error) {
	if r == nil || *r == (sandbox.Retention{}) {
		return "", nil
	}
	return toJSON(r)
}

// mountsOrNone returns m, or an empty slice for nil, which is encoded as [].
func mountsOrNone(m []sandbox.Mount) []sandbox.Mount {
	if m == nil {
		return []sandbox.Mount{}
	}
	return m
}
