// Package store is the tables of sandboxes, sessions, snapshots, drives, ports and flows.
// Every transition is one conditional statement, or one transaction; what follows from it
// is the caller's. It knows no machine and no caller: scopes are given.
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
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/sandboxd/ident"
	"github.com/cayhq/cay/internal/secret"
	"github.com/cayhq/cay/sandbox"
)

// Store is the slice's tables.
type Store struct {
	db   *db.DB
	opts Options
}

// Options are what a store does not know by itself.
type Options struct {
	// Secrets seals what nobody may read in the database. Nil: nothing is sealed.
	Secrets *secret.Box
	// MaxCommands is how many bytes of commands a team keeps.
	MaxCommands int64
	// PreviewURL makes the URL of a label; nil makes none.
	PreviewURL func(label string) string
	// Watchers are told of sandboxes that change. Nil: nobody watches.
	Watchers Watchers
}

// Open brings the tables to this version's schema.
func Open(ctx context.Context, d *db.DB, o Options) (*Store, error) {
	if err := d.Migrate(ctx, "sandboxd", migrations); err != nil {
		return nil, err
	}
	return &Store{d, o}, nil
}

// live are the statuses that hold a machine, or may.
const live = `('pending', 'running', 'paused', 'stopping', 'resuming')`

const columns = `id, team_id, project_id, name, status, reason, message, deleting,
	image, digest, runtime, runtime_digest, vcpus, memory_mb, disk_mb, env, image_env, tags, user, workdir, network,
	timeout, idle_timeout, created_at, updated_at, started_at, expires_at, stopped_at, started_mono, boot, guest_token,
	cpu, wall, memory_peak, ingress_bytes, egress_bytes, sealed_network, ports,
	persistent, session_id, session_timeout, next, snapshot_id, hibernation_id, frozen, snapshot_expiration, retention, mounts,
	total_cpu, total_wall, total_memory_peak, total_ingress_bytes, total_egress_bytes, annotations, status_at`

type scanner interface{ Scan(dest ...any) error }

func (s *Store) scan(from scanner) (*Row, error) {
	var (
		r                           Row
		env, imageEnv, tags         string
		net, ports                  string
		created, updated            int64
		started, expires, stopped   sql.NullInt64
		timeout, idle, cpu, wallFor int64
		sessionTimeout, expiration  int64
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
		&totalCPU, &totalWall, &r.before.MemoryPeak, &r.before.IngressBytes, &r.before.EgressBytes, &annotations, &statusAt)
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
	r.SessionTimeout, r.SnapshotExpiration = millis(sessionTimeout), millis(expiration)
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

// Find returns the sandbox ref names, or has a session of, not_found if scope
// has none.
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

// OfMachine returns the sandbox that a machine is of, which has the id of its session.
// Errors: not_found.
func (s *Store) OfMachine(ctx context.Context, machine string) (*Row, error) {
	return s.one(ctx, cay.Errorf(cay.NotFound, "machine %q is no sandbox's", machine), `SELECT `+columns+` FROM sandboxes
		WHERE id = (SELECT sandbox_id FROM sandbox_sessions v WHERE v.id = ?)`, machine)
}

// Again reads the row of a sandbox once more, for a call that is about what it
// was about before.
func (s *Store) Again(ctx context.Context, r *Row) (*Row, error) {
	now, err := s.Get(ctx, r.ID)
	if err == nil {
		now.Only = r.Only
	}
	return now, err
}

// one returns the sandbox of a query, or the error missing if there is none.
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
	rows, err := s.db.Query(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read sandboxes: %w", err)
	}
	defer rows.Close()
	var all []*Row
	for rows.Next() {
		r, err := s.scan(rows)
		if err != nil {
			return nil, fmt.Errorf("read sandboxes: %w", db.Error(err))
		}
		all = append(all, r)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read sandboxes: %w", db.Error(err))
	}
	return all, nil
}

func notFound(ref string) error {
	return cay.Errorf(cay.NotFound, "sandbox %q not found", ref)
}

// Unfinished returns the sandboxes a restart has to look after.
func (s *Store) Unfinished(ctx context.Context) ([]*Row, error) {
	return s.all(ctx, `SELECT `+columns+` FROM sandboxes WHERE deleting = 1 OR status IN `+live)
}

// Started takes a sandbox from pending or resuming to running, false if it is
// there no longer. One that was hibernated is so no more. If it is persistent, its
// files as they were hibernated are what its next session starts from, until it is
// saved again.
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

// errNotThere undoes what was written about a sandbox that is not where it was.
var errNotThere = errors.New("the sandbox is not where it was")

func startedRow(ctx context.Context, tx *db.Tx, r *Row) (bool, error) {
	imageEnv, err := toJSON(r.ImageEnv)
	if err != nil {
		return false, err
	}
	res, err := tx.Exec(ctx, `UPDATE sandboxes SET status = 'running', digest = ?, runtime_digest = ?, image_env = ?, user = ?, workdir = ?,
		started_at = ?, expires_at = ?, updated_at = ?, status_at = ?, started_mono = ?, boot = ?,
		next = CASE status WHEN 'pending' THEN '{}' ELSE next END
		WHERE id = ? AND session_id = ? AND status IN ('pending', 'resuming')`,
		r.Digest, r.RuntimeDigest, imageEnv, r.User, r.WorkDir,
		r.StartedAt.UnixMilli(), r.ExpiresAt.UnixMilli(), r.UpdatedAt.UnixMilli(), r.UpdatedAt.UnixMilli(), int64(r.StartedMono), r.Boot, r.ID, r.SessionID)
	return res.Rows == 1, err
}

// Move takes a sandbox between statuses that keep its machine, false if it was
// not in from.
func (s *Store) Move(ctx context.Context, id string, from, to sandbox.Status, now time.Time) (bool, error) {
	defer s.changing(ctx, id)()
	return s.changed(ctx, `UPDATE sandboxes SET status = ?, updated_at = ?, status_at = ? WHERE id = ? AND status = ?`,
		to, now.UnixMilli(), now.UnixMilli(), id, from)
}

// BeginStop takes a sandbox to stopping, false if it is there already or has
// ended, or has another session by now. The session of one that is being created
// may yet change.
func (s *Store) BeginStop(ctx context.Context, id, session string, e End, now time.Time) (bool, error) {
	defer s.changing(ctx, id)()
	return s.noted(ctx, `UPDATE sandboxes SET status = 'stopping', reason = ?, message = ?, deleting = ?, keep_snapshots = ?, updated_at = ?, status_at = ?
		WHERE id = ? AND (status = 'pending' OR session_id = ? AND status IN ('running', 'paused', 'resuming'))`,
		e.Reason, e.Message, e.Deleting, e.KeepSnapshots, now.UnixMilli(), now.UnixMilli(), id, session)
}

// Fail takes a sandbox to failed, false if it was not where f expects it. One
// that was being resumed is where it was before: what it is to start from is
// still there.
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

// Ended records the final usage, and that nothing is left of the machine of a
// sandbox that was stopping; rows marked for it are removed.
func (s *Store) Ended(ctx context.Context, id, session string, u sandbox.Usage, k KeptCommands, now time.Time) error {
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
		if err := closeFlows(ctx, tx, id); err != nil {
			return err
		}
		_, err := forget(ctx, tx, id, ` AND deleting = 1`, now)
		return err
	})
}

// MarkDeleting makes Ended remove the row of a sandbox that is ending, and its
// automatic snapshots unless they are kept.
func (s *Store) MarkDeleting(ctx context.Context, id string, keepSnapshots bool) error {
	_, err := s.db.Exec(ctx, `UPDATE sandboxes SET deleting = 1, keep_snapshots = ? WHERE id = ? AND status IN ('stopping', 'failed')`,
		keepSnapshots, id)
	return err
}

// Remove forgets a sandbox that has ended, and its automatic snapshots unless they
// are kept; false if it has not ended.
func (s *Store) Remove(ctx context.Context, id string, keepSnapshots bool, now time.Time) (removed bool, err error) {
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

// forget removes a sandbox that has ended, if cond holds, all but its labels.
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

// SaveUsage records the counters of sandboxes that run, by id. A power cut may take
// the last of them.
func (s *Store) SaveUsage(ctx context.Context, usage map[string]sandbox.Usage) error {
	return s.db.Unsynced().Write(ctx, func(tx *db.Tx) error {
		for id, u := range usage {
			if err := setUsage(ctx, tx, id, u); err != nil {
				return err
			}
		}
		return nil
	})
}

// Extend adds to the timeout of a session that runs, if the sum is at most max.
func (s *Store) Extend(ctx context.Context, id, session string, by, max sandbox.Duration, now time.Time) (bool, error) {
	defer s.changing(ctx, id)()
	return s.changed(ctx, `UPDATE sandboxes SET timeout = timeout + ?, expires_at = expires_at + ?, updated_at = ?
		WHERE id = ? AND session_id = ? AND status IN ('running', 'paused') AND timeout + ? <= ?`,
		ms(by), ms(by), now.UnixMilli(), id, session, ms(by), ms(max))
}

// Update makes a change, not ok if the sandbox has ended and what is to change is
// its machine's, or if it is to rest and does not. ended are the labels that are gone, or have another access.
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
		switch {
		case c.Resting:
			cond = ` AND ` + atRest
		case c.Network != nil || c.Idle != nil || c.Persistent != nil:
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

// mergedNext is what is set for the next session of a sandbox, with more.
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

// Count returns how many sandboxes a team has, or one project of it.
func (s *Store) Count(ctx context.Context, sc Scope) (n int, err error) {
	err = s.db.QueryRow(ctx, `SELECT count(*) FROM sandboxes WHERE team_id = ? AND (? = '' OR project_id = ?)`,
		sc.Team, sc.Project, sc.Project).Scan(&n)
	return n, err
}

// changed runs an update of one row and reports whether there was one.
func (s *Store) changed(ctx context.Context, query string, args ...any) (bool, error) {
	return changed(ctx, s.db, query, args...)
}

// noted is changed for what is told by a later change, or means nothing after a power
// cut.
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
