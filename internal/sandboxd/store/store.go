// Package store holds the tables of sandboxes, sessions, snapshots, drives, ports and
// flows. Every transition is one conditional statement, or one transaction; the caller
// does the work that follows from a transition. The package knows neither machines nor
// callers: callers pass scopes.
package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/sandboxd/ident"
	"github.com/cayhq/cay/internal/secret"
	"github.com/cayhq/cay/sandbox"
)

// Store gives access to the tables of the slice.
type Store struct {
	db   *db.DB
	opts Options
}

// Options are the dependencies and limits of a Store.
type Options struct {
	// Secrets seals columns that must not be readable in the database. Nil: nothing is
	// sealed.
	Secrets *secret.Box
	// MaxCommands is how many bytes of kept commands a team may have.
	MaxCommands int64
	// PreviewURL returns the URL of a label; nil: ports have no URL.
	PreviewURL func(label string) string
	// Watchers are notified of sandboxes that change. Nil: nobody is notified.
	Watchers Watchers
	// Removed is called after a change that may have removed a sandbox. Nil: it is not.
	Removed func(id string)
}

// Open migrates the tables to this version's schema.
func Open(ctx context.Context, d *db.DB, o Options) (*Store, error) {
	if err := d.Migrate(ctx, "sandboxd", migrations); err != nil {
		return nil, err
	}
	if o.Removed == nil {
		o.Removed = func(string) {}
	}
	return &Store{d, o}, nil
}

// live lists the statuses in which a sandbox has, or may have, a machine.
const live = `('pending', 'running', 'paused', 'stopping', 'resuming')`

const columns = `id, team_id, project_id, name, status, reason, message, deleting,
	image, digest, runtime, runtime_digest, vcpus, memory_mb, disk_mb, env, image_env, tags, user, workdir, network,
	timeout, idle_timeout, created_at, updated_at, started_at, expires_at, stopped_at, started_mono, boot, guest_token,
	cpu, wall, memory_peak, ingress_bytes, egress_bytes, sealed_network, ports,
	persistent, session_id, session_timeout, next, snapshot_id, hibernation_id, frozen, snapshot_expiration, retention, mounts,
	total_cpu, total_wall, total_memory_peak, total_ingress_bytes, total_egress_bytes, annotations, status_at, privileges, save_every`

func (s *Store) scan(from db.Scanner) (*Row, error) {
	var (
		r                           Row
		env, imageEnv, tags         string
		net, ports                  string
		created, updated            int64
		started, expires, stopped   sql.NullInt64
		timeout, idle, cpu, wallFor int64
		sessionTimeout, expiration  int64
		saveEvery                   int64
		next, retention, mounts     string
		totalCPU, totalWall         int64
		annotations                 string
		statusAt                    int64
	)
	err := from.Scan(&r.ID, &r.TeamID, &r.ProjectID, &r.Name, &r.Status, &r.Reason, &r.Message, &r.Deleting,
		&r.Image, &r.Digest, &r.Runtime, &r.RuntimeDigest, &r.VCPUs, &r.MemoryMB, &r.DiskMB, &env, &imageEnv, &tags, &r.User, &r.WorkDir, &net,
		&timeout, &idle, &created, &updated, &started, &expires, &stopped, &r.StartedMono, &r.Boot, &r.GuestToken,
		&cpu, &wallFor, &r.Usage.MemoryPeak, &r.Usage.IngressBytes, &r.Usage.EgressBytes, &r.Sealed, &ports,
		&r.Persistent, &r.SessionID, &sessionTimeout, &next, &r.SnapshotID, &r.Hibernation, &r.Frozen, &expiration, &retention, &mounts,
		&totalCPU, &totalWall, &r.before.MemoryPeak, &r.before.IngressBytes, &r.before.EgressBytes, &annotations, &statusAt, &r.Privileges, &saveEvery)
	if err != nil {
		return nil, err
	}
	for _, f := range []struct {
		text  *string
		owner string
	}{{&env, envOf(r.ID)}, {&next, nextOf(r.ID)}, {&r.GuestToken, tokenOf(r.ID)}} {
		if *f.text, err = s.unseal(*f.text, f.owner); err != nil {
			r.Unreadable = fmt.Errorf("open %s: %w", f.owner, err)
		}
	}
	for _, f := range []struct {
		column, text string
		into         any
	}{{"env", env, &r.Env}, {"image_env", imageEnv, &r.ImageEnv}, {"tags", tags, &r.Tags}, {"network", net, &r.Network}, {"ports", ports, &r.Ports},
		{"next", next, &r.coming}, {"retention", retention, &r.Retention}, {"mounts", mounts, &r.Mounts},
		{"annotations", annotations, &r.Annotations}} {
		if f.text == "" {
			continue
		}
		if err := json.Unmarshal([]byte(f.text), f.into); err != nil {
			return nil, fmt.Errorf("sandbox %s: column %s: %w", r.ID, f.column, err)
		}
	}
	s.SetURLs(r.Ports)
	r.Timeout, r.IdleTimeout = millis(timeout), millis(idle)
	r.Usage.ActiveCPU, r.Usage.WallTime = millis(cpu), millis(wallFor)
	r.SessionTimeout, r.SnapshotExpiration, r.SaveEvery = millis(sessionTimeout), millis(expiration), millis(saveEvery)
	r.before.ActiveCPU, r.before.WallTime = millis(totalCPU), millis(totalWall)
	r.SetTotal()
	r.showNext()
	r.CreatedAt, r.UpdatedAt, r.StatusAt = time.UnixMilli(created).UTC(), time.UnixMilli(updated).UTC(), time.UnixMilli(statusAt).UTC()
	r.StartedAt, r.ExpiresAt, r.StoppedAt = nullTime(started), nullTime(expires), nullTime(stopped)
	return &r, nil
}

func millis(ms int64) sandbox.Duration { return sandbox.Duration(time.Duration(ms) * time.Millisecond) }

func ms(d sandbox.Duration) int64 { return time.Duration(d).Milliseconds() }

func unixMilli(t *time.Time) sql.NullInt64 {
	if t == nil {
		return sql.NullInt64{}
	}
	return sql.NullInt64{Int64: t.UnixMilli(), Valid: true}
}

func nullTime(n sql.NullInt64) *time.Time {
	if !n.Valid {
		return nil
	}
	t := time.UnixMilli(n.Int64).UTC()
	return &t
}

func toJSON(v any) (string, error) {
	b, err := json.Marshal(v)
	return string(b), err
}

// Find returns the sandbox with the name or id ref, or with a session of that id. Errors:
// not_found if the scope has none.
func (s *Store) Find(ctx context.Context, sc Scope, ref string) (*Row, error) {
	const within = ` AND team_id = ? AND (? = '' OR project_id = ?)`
	switch {
	case strings.HasPrefix(ref, ident.SandboxPrefix):
		return s.one(ctx, notFound(ref), `SELECT `+columns+` FROM sandboxes WHERE id = ?`+within, ref, sc.Team, sc.Project, sc.Project)
	case strings.HasPrefix(ref, ident.SessionPrefix):
		r, err := s.one(ctx, sessionNotFound(ref), `SELECT `+columns+` FROM sandboxes
			WHERE id = (SELECT sandbox_id FROM sandbox_sessions v WHERE v.id = ?)`+within, ref, sc.Team, sc.Project, sc.Project)
		if err == nil {
			r.Only = ref
		}
		return r, err
	}
	rows, err := s.all(ctx, `SELECT `+columns+` FROM sandboxes WHERE name = ? AND team_id = ? AND (? = '' OR project_id = ?) LIMIT 2`,
		ref, sc.Team, sc.Project, sc.Project)
	switch {
	case err != nil:
		return nil, err
	case len(rows) == 0:
		return nil, notFound(ref)
	case len(rows) == 2:
		return nil, cay.Errorf(cay.Conflict, "several projects have a sandbox named %q", ref).
			WithHint("use its id, or a token of the project")
	}
	return rows[0], nil
}

// Get returns a sandbox by its id. Errors: not_found.
func (s *Store) Get(ctx context.Context, id string) (*Row, error) {
	return s.one(ctx, notFound(id), `SELECT `+columns+` FROM sandboxes WHERE id = ?`, id)
}

// OfMachine returns the sandbox that owns a machine. The machine has the id of the
// sandbox's session. Errors: not_found.
func (s *Store) OfMachine(ctx context.Context, machine string) (*Row, error) {
	return s.one(ctx, cay.Errorf(cay.NotFound, "machine %q is no sandbox's", machine), `SELECT `+columns+` FROM sandboxes
		WHERE id = (SELECT sandbox_id FROM sandbox_sessions v WHERE v.id = ?)`, machine)
}

// Reread reads the row of a sandbox again. The new row is restricted to the same session
// as r, if any.
func (s *Store) Reread(ctx context.Context, r *Row) (*Row, error) {
	now, err := s.Get(ctx, r.ID)
	if err == nil {
		now.Only = r.Only
	}
	return now, err
}

// one returns the single row that a query selects, or the error missing.
func (s *Store) one(ctx context.Context, missing error, query string, args ...any) (*Row, error) {
	r, err := s.scan(s.db.QueryRow(ctx, query, args...))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, missing
	}
	if err != nil {
		return nil, fmt.Errorf("read sandbox: %w", err)
	}
	return r, nil
}

func (s *Store) all(ctx context.Context, query string, args ...any) ([]*Row, error) {
	all, err := db.Collect(ctx, s.db, s.scan, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read sandboxes: %w", err)
	}
	return all, nil
}

func notFound(ref string) error {
	return cay.Errorf(cay.NotFound, "sandbox %q not found", ref)
}

const unfinished = `SELECT id FROM sandboxes INDEXED BY sandboxes_live WHERE status IN ` + live + `
	UNION ALL SELECT id FROM sandboxes INDEXED BY sandboxes_deleting WHERE deleting = 1`

// Unfinished returns the sandboxes that recovery has to handle after a restart.
func (s *Store) Unfinished(ctx context.Context) ([]*Row, error) {
	return s.all(ctx, `SELECT `+columns+` FROM sandboxes WHERE id IN (`+unfinished+`)`)
}

// Started moves a sandbox from pending or resuming to running. It returns false if the
// sandbox is in neither status any more. A hibernation of the sandbox ends. If the
// sandbox is persistent, its next session starts from the files of the hibernation until
// the sandbox is saved again.
func (s *Store) Started(ctx context.Context, r *Row) (bool, error) {
	defer s.changing(ctx, r.ID)()
	ok := false
	err := s.db.Write(ctx, func(tx *db.Tx) (err error) {
		if r.Hibernation != "" {
			err = leaveHibernation(ctx, tx, r.ID, `('resuming')`, r.UpdatedAt)
		}
		if err == nil {
			ok, err = startedRow(ctx, tx, r)
		}
		if err == nil && !ok {
			err = errNotThere
		}
		return err
	})
	if err != nil && !errors.Is(err, errNotThere) {
		return false, fmt.Errorf("update sandbox: %w", err)
	}
	return ok, nil
}

// errNotThere rolls back a transaction about a sandbox that is not in the expected
// status.
var errNotThere = errors.New("the sandbox is not where it was")

func startedRow(ctx context.Context, tx *db.Tx, r *Row) (bool, error) {
	imageEnv, err := toJSON(r.ImageEnv)
	if err != nil {
		return false, err
	}
	res, err := tx.Exec(ctx, `UPDATE sandboxes SET status = 'running', digest = ?, runtime_digest = ?, image_env = ?, user = ?, workdir = ?,
		started_at = ?, expires_at = ?, updated_at = ?, status_at = ?, started_mono = ?, boot = ?,
		message = ?, next = CASE status WHEN 'pending' THEN '{}' ELSE next END
		WHERE id = ? AND session_id = ? AND status IN ('pending', 'resuming')`,
		r.Digest, r.RuntimeDigest, imageEnv, r.User, r.WorkDir,
		r.StartedAt.UnixMilli(), r.ExpiresAt.UnixMilli(), r.UpdatedAt.UnixMilli(), r.UpdatedAt.UnixMilli(), int64(r.StartedMono), r.Boot, r.Notice, r.ID, r.SessionID)
	return res.Rows == 1, err
}

// Move changes a sandbox between statuses that keep its machine. It returns false if the
// sandbox was not in from.
func (s *Store) Move(ctx context.Context, id string, from, to sandbox.Status, now time.Time) (bool, error) {
	defer s.changing(ctx, id)()
	return s.changed(ctx, `UPDATE sandboxes SET status = ?, updated_at = ?, status_at = ? WHERE id = ? AND status = ?`,
		to, now.UnixMilli(), now.UnixMilli(), id, from)
}

// BeginStop moves a sandbox to stopping. It returns false if the sandbox is stopping
// already, has ended, or has another session by now. The session is not compared while
// the sandbox is pending, because its id may still change.
func (s *Store) BeginStop(ctx context.Context, id, session string, e End, now time.Time) (bool, error) {
	defer s.changing(ctx, id)()
	return s.noted(ctx, `UPDATE sandboxes SET status = 'stopping', reason = ?, message = ?, deleting = ?, keep_snapshots = ?, updated_at = ?, status_at = ?
		WHERE id = ? AND (status = 'pending' OR session_id = ? AND status IN ('running', 'paused', 'resuming'))`,
		e.Reason, e.Message, e.Deleting, e.KeepSnapshots, now.UnixMilli(), now.UnixMilli(), id, session)
}

// Fail moves a sandbox to failed. It returns false if the sandbox was not in the status
// that f expects. A resuming sandbox moves back to hibernated or stopped instead: the
// snapshot that it starts from still exists.
func (s *Store) Fail(ctx context.Context, id string, f Failure, now time.Time) (bool, error) {
	defer s.changing(ctx, id)()
	from, to := `('running', 'paused')`, `'failed'`
	switch f.From {
	case sandbox.Pending:
		from = `('pending')`
	case sandbox.Resuming:
		from, to = `('resuming')`, `CASE WHEN hibernation_id <> '' THEN 'hibernated' ELSE 'stopped' END`
	}
	return s.changed(ctx, `UPDATE sandboxes SET status = `+to+`, reason = ?, message = ?, expires_at = NULL, frozen = 0,
		stopped_at = ?, updated_at = ?, status_at = ? WHERE id = ? AND status IN `+from,
		f.Reason, f.Message, now.UnixMilli(), now.UnixMilli(), now.UnixMilli(), id)
}

// Ended records the final usage of a stopping sandbox, and that nothing of its machine is
// left. A row marked as deleting is removed.
func (s *Store) Ended(ctx context.Context, id, session string, u sandbox.Usage, k CommandArchive, now time.Time) error {
	defer s.opts.Removed(id)
	defer s.changing(ctx, id)()
	return s.db.Write(ctx, func(tx *db.Tx) error {
		if err := setCommands(ctx, tx, session, k, s.opts.MaxCommands); err != nil {
			return err
		}
		if err := setUsage(ctx, tx, id, u); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE sandboxes SET status = 'stopped', expires_at = NULL, frozen = 0, stopped_at = ?, updated_at = ?, status_at = ?
			WHERE id = ? AND status = 'stopping'`, now.UnixMilli(), now.UnixMilli(), now.UnixMilli(), id); err != nil {
			return err
		}
		if err := detachDrives(ctx, tx, id); err != nil {
			return err
		}
		if err := leaveHibernation(ctx, tx, id, `('stopped')`, now); err != nil {
			return err
		}
		_, err := forget(ctx, tx, id, ` AND deleting = 1`, now)
		return err
	})
}

// MarkDeleting makes Ended remove the row of a stopping sandbox, and its automatic
// snapshots unless keepSnapshots is set.
func (s *Store) MarkDeleting(ctx context.Context, id string, keepSnapshots bool) error {
	_, err := s.db.Exec(ctx, `UPDATE sandboxes SET deleting = 1, keep_snapshots = ? WHERE id = ? AND status IN ('stopping', 'failed')`,
		keepSnapshots, id)
	return err
}

// Remove deletes the row of a sandbox that has ended, and its automatic snapshots unless
// keepSnapshots is set. It returns false if the sandbox has not ended.
func (s *Store) Remove(ctx context.Context, id string, keepSnapshots bool, now time.Time) (removed bool, err error) {
	defer s.opts.Removed(id)
	defer s.changing(ctx, id)()
	err = s.db.Write(ctx, func(tx *db.Tx) error {
		if _, err := tx.Exec(ctx, `UPDATE sandboxes SET keep_snapshots = ? WHERE id = ? AND status IN ('stopped', 'failed', 'hibernated')`,
			keepSnapshots, id); err != nil {
			return err
		}
		removed, err = forget(ctx, tx, id, "", now)
		return err
	})
	return removed, err
}

// forget deletes everything about a sandbox that has ended, if cond holds, except its
// labels.
func forget(ctx context.Context, tx *db.Tx, id, cond string, now time.Time) (bool, error) {
	const ended = ` WHERE id = ? AND status IN ('stopped', 'failed', 'hibernated')`
	var (
		hibernation   string
		keepSnapshots bool
	)
	err := tx.QueryRow(ctx, `SELECT hibernation_id, keep_snapshots FROM sandboxes`+ended+cond, id).Scan(&hibernation, &keepSnapshots)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err == nil && hibernation != "" {
		err = markSnapshotDeleted(ctx, tx, hibernation, now)
	}
	if err == nil {
		err = detachDrives(ctx, tx, id)
	}
	if err != nil {
		return false, err
	}
	res, err := tx.Exec(ctx, `DELETE FROM sandboxes`+ended+cond, id)
	if err != nil || res.Rows == 0 {
		return false, err
	}
	if !keepSnapshots {
		if err := markAutomaticDeleted(ctx, tx, id, now); err != nil {
			return false, err
		}
	}
	return true, dropPorts(ctx, tx, id, nil, now)
}

func setUsage(ctx context.Context, tx *db.Tx, id string, u sandbox.Usage) error {
	_, err := tx.Exec(ctx, `UPDATE sandboxes SET cpu = ?, wall = ?, memory_peak = ?, ingress_bytes = ?, egress_bytes = ? WHERE id = ?`,
		ms(u.ActiveCPU), ms(u.WallTime), u.MemoryPeak, u.IngressBytes, u.EgressBytes, id)
	return err
}

// usageAtOnce is how many sandboxes one statement of SaveUsage updates, so that other
// writers wait only briefly.
const usageAtOnce = 500

// SaveUsage records the counters of running sandboxes, by id. A power cut may lose the
// last update.
func (s *Store) SaveUsage(ctx context.Context, usage map[string]sandbox.Usage) error {
	for ids := range slices.Chunk(slices.Sorted(maps.Keys(usage)), usageAtOnce) {
		rows := make([][6]any, len(ids))
		for i, id := range ids {
			u := usage[id]
			rows[i] = [6]any{id, ms(u.ActiveCPU), ms(u.WallTime), u.MemoryPeak, u.IngressBytes, u.EgressBytes}
		}
		text, err := toJSON(rows)
		if err != nil {
			return err
		}
		if _, err := s.db.Unsynced().Exec(ctx, `UPDATE sandboxes SET cpu = u.cpu, wall = u.wall, memory_peak = u.memory_peak,
				ingress_bytes = u.ingress_bytes, egress_bytes = u.egress_bytes
			FROM (SELECT value ->> 0 AS id, value ->> 1 AS cpu, value ->> 2 AS wall, value ->> 3 AS memory_peak, value ->> 4 AS ingress_bytes,
				value ->> 5 AS egress_bytes FROM json_each(?)) u WHERE sandboxes.id = u.id`, text); err != nil {
			return fmt.Errorf("record usage: %w", err)
		}
	}
	return nil
}

// Extend adds to the timeout of a running session, if the sum is at most max.
func (s *Store) Extend(ctx context.Context, id, session string, by, max sandbox.Duration, now time.Time) (bool, error) {
	defer s.changing(ctx, id)()
	return s.changed(ctx, `UPDATE sandboxes SET timeout = timeout + ?, expires_at = expires_at + ?, updated_at = ?
		WHERE id = ? AND session_id = ? AND status IN ('running', 'paused') AND timeout + ? <= ?`,
		ms(by), ms(by), now.UnixMilli(), id, session, ms(by), ms(max))
}

// Update makes a change. ok is false if the change concerns the machine and the sandbox
// has ended, or if c.Resting is set and the sandbox has a machine. It also returns the
// labels that are gone or whose access has changed.
func (s *Store) Update(ctx context.Context, id string, c Change, now time.Time) (ended map[string]bool, ok bool, err error) {
	defer s.changing(ctx, id)()
	err = s.db.Write(ctx, func(tx *db.Tx) (err error) {
		set, args, cond := `updated_at = ?`, []any{now.UnixMilli()}, ""
		if c.Tags != nil {
			text, err := toJSON(c.Tags)
			if err != nil {
				return err
			}
			set, args = set+`, tags = ?`, append(args, text)
		}
		if c.Annotations != nil {
			text, err := annotationsJSON(c.Annotations)
			if err != nil {
				return err
			}
			set, args = set+`, annotations = ?`, append(args, text)
		}
		if c.Network != nil {
			text, err := toJSON(c.Network.Shown)
			if err != nil {
				return err
			}
			set, args = set+`, network = ?, sealed_network = ?`, append(args, text, c.Network.Sealed)
		}
		if c.Idle != nil {
			set, args = set+`, idle_timeout = ?`, append(args, ms(*c.Idle))
		}
		if c.Persistent != nil {
			set, args = set+`, persistent = ?`, append(args, *c.Persistent)
		}
		if c.SaveEvery != nil {
			set, args = set+`, save_every = ?`, append(args, ms(*c.SaveEvery))
		}
		switch {
		case c.Resting:
			cond = ` AND ` + atRest
		case c.Network != nil || c.Idle != nil || c.Persistent != nil || c.SaveEvery != nil:
			cond = ` AND status IN ('running', 'paused')`
		}
		if c.Timeout != nil {
			set, args = set+`, session_timeout = ?`, append(args, ms(*c.Timeout))
		}
		if c.Snapshot != nil {
			if *c.Snapshot != "" {
				if err := needSnapshot(ctx, tx, *c.Snapshot); err != nil {
					return err
				}
			}
			set, args = set+`, snapshot_id = ?`, append(args, *c.Snapshot)
		}
		if c.Expiration != nil {
			set, args = set+`, snapshot_expiration = ?`, append(args, ms(*c.Expiration))
		}
		if c.Retention != nil {
			text, err := retentionJSON(c.Retention)
			if err != nil {
				return err
			}
			set, args = set+`, retention = ?`, append(args, text)
		}
		if c.Next.any() {
			text, err := s.mergedNext(ctx, tx, id, c.Next)
			if err != nil {
				return err
			}
			set, args = set+`, next = ?`, append(args, text)
		}
		res, err := tx.Exec(ctx, `UPDATE sandboxes SET `+set+` WHERE id = ?`+cond, append(args, id)...)
		if ok = res.Rows == 1; err != nil || !ok {
			return err
		}
		if c.Ports != nil {
			if ended, err = setPorts(ctx, tx, id, c.Ports, now); err != nil {
				return err
			}
		}
		if c.Tags == nil {
			return nil
		}
		if _, err := tx.Exec(ctx, `DELETE FROM sandbox_tags WHERE sandbox_id = ?`, id); err != nil {
			return err
		}
		return insertTags(ctx, tx, id, c.Tags)
	})
	return ended, ok, err
}

// mergedNext returns the pending changes for the next session of a sandbox, with more
// added.
func (s *Store) mergedNext(ctx context.Context, tx *db.Tx, id string, more NextSession) (string, error) {
	var text string
	if err := tx.QueryRow(ctx, `SELECT next FROM sandboxes WHERE id = ?`, id).Scan(&text); err != nil {
		return "", err
	}
	text, err := s.unseal(text, nextOf(id))
	if err != nil {
		return "", fmt.Errorf("open %s: %w", nextOf(id), err)
	}
	var next NextSession
	if err := json.Unmarshal([]byte(text), &next); err != nil {
		return "", fmt.Errorf("sandbox %s: column next: %w", id, err)
	}
	text, err = toJSON(next.merge(more))
	return s.seal(text, nextOf(id)), err
}

func insertTags(ctx context.Context, tx *db.Tx, id string, tags map[string]string) error {
	for k, v := range tags {
		if _, err := tx.Exec(ctx, `INSERT INTO sandbox_tags (sandbox_id, key, value) VALUES (?, ?, ?)`, id, k, v); err != nil {
			return err
		}
	}
	return nil
}

// changed runs an update of one row and reports whether a row matched.
func (s *Store) changed(ctx context.Context, query string, args ...any) (bool, error) {
	return changed(ctx, s.db, query, args...)
}

// noted is changed without a sync, for updates that a later synced update follows, or
// that mean nothing after a power cut.
func (s *Store) noted(ctx context.Context, query string, args ...any) (bool, error) {
	return changed(ctx, s.db.Unsynced(), query, args...)
}

func changed(ctx context.Context, d *db.DB, query string, args ...any) (bool, error) {
	res, err := d.Exec(ctx, query, args...)
	if err != nil {
		return false, fmt.Errorf("update sandbox: %w", err)
	}
	return res.Rows == 1, nil
}
