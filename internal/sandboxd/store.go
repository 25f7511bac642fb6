package sandboxd

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
	"github.com/cayhq/cay/sandbox"
)

// Times are Unix milliseconds, durations milliseconds unless named otherwise.
var migrations = []db.Migration{{Name: "sandboxes", SQL: `
	CREATE TABLE sandboxes (
		id            TEXT PRIMARY KEY,
		team_id       TEXT NOT NULL,
		project_id    TEXT NOT NULL,
		name          TEXT NOT NULL,
		status        TEXT NOT NULL,
		reason        TEXT NOT NULL DEFAULT '',
		message       TEXT NOT NULL DEFAULT '',
		deleting      INTEGER NOT NULL DEFAULT 0, -- 1: remove the row when it has ended
		image         TEXT NOT NULL,
		digest        TEXT NOT NULL DEFAULT '',
		runtime       TEXT NOT NULL,
		runtime_digest TEXT NOT NULL DEFAULT '',
		vcpus         REAL NOT NULL,
		memory_mb     INTEGER NOT NULL,
		disk_mb       INTEGER NOT NULL,
		env           TEXT NOT NULL,            -- JSON object, as asked for
		image_env     TEXT NOT NULL DEFAULT '{}', -- JSON object, of the image and the runtime
		tags          TEXT NOT NULL,            -- JSON object; sandbox_tags holds the same
		user          TEXT NOT NULL,
		workdir       TEXT NOT NULL,
		network       TEXT NOT NULL,            -- JSON of sandbox.Network
		timeout       INTEGER NOT NULL,
		idle_timeout  INTEGER NOT NULL,
		created_at    INTEGER NOT NULL,
		updated_at    INTEGER NOT NULL,
		started_at    INTEGER,
		expires_at    INTEGER,                  -- by the wall clock of the last write; what counts is started_mono
		stopped_at    INTEGER,
		started_mono  INTEGER NOT NULL DEFAULT 0, -- Clock.Mono at the start, in nanoseconds
		boot          TEXT NOT NULL DEFAULT '',   -- Clock.Boot at the start
		guest_token   TEXT NOT NULL,
		cpu           INTEGER NOT NULL DEFAULT 0,
		wall          INTEGER NOT NULL DEFAULT 0,
		memory_peak   INTEGER NOT NULL DEFAULT 0,
		ingress_bytes INTEGER NOT NULL DEFAULT 0,
		egress_bytes  INTEGER NOT NULL DEFAULT 0,
		UNIQUE (project_id, name)
	);
	CREATE INDEX sandboxes_by_team ON sandboxes (team_id, created_at DESC, id DESC);
	CREATE INDEX sandboxes_live ON sandboxes (team_id) WHERE status IN ('pending', 'running', 'paused', 'stopping');
	CREATE TABLE sandbox_tags (
		sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
		key        TEXT NOT NULL,
		value      TEXT NOT NULL,
		PRIMARY KEY (sandbox_id, key)
	);
	CREATE INDEX sandbox_tags_by_value ON sandbox_tags (key, value, sandbox_id);
	CREATE TABLE sandbox_idempotency (
		project_id TEXT NOT NULL,
		key        TEXT NOT NULL,
		request    BLOB NOT NULL, -- SHA-256 of the parameters
		sandbox_id TEXT NOT NULL,
		created_at INTEGER NOT NULL,
		PRIMARY KEY (project_id, key)
	);
	CREATE INDEX sandbox_idempotency_by_age ON sandbox_idempotency (created_at);
	CREATE TABLE sandbox_creates ( -- a token bucket for each team
		team_id TEXT PRIMARY KEY,
		tokens  REAL NOT NULL,
		at      INTEGER NOT NULL
	);`}, {Name: "ports, flow log, sealed policies", SQL: `
	ALTER TABLE sandboxes ADD COLUMN sealed_network BLOB; -- JSON of sandbox.Network, sealed; NULL if network hides nothing of it
	ALTER TABLE sandboxes ADD COLUMN ports TEXT NOT NULL DEFAULT '[]'; -- JSON of []sandbox.Port without URL; sandbox_ports holds the same
	CREATE TABLE sandbox_ports (
		label      TEXT PRIMARY KEY,
		sandbox_id TEXT NOT NULL, -- may be gone: a label outlives its sandbox
		port       INTEGER NOT NULL,
		access     TEXT NOT NULL,
		epoch      INTEGER NOT NULL DEFAULT 0, -- grows when access changes; a link is of one epoch
		created_at INTEGER NOT NULL,
		gone_at    INTEGER
	);
	CREATE UNIQUE INDEX sandbox_ports_declared ON sandbox_ports (sandbox_id, port) WHERE gone_at IS NULL;
	CREATE INDEX sandbox_ports_gone ON sandbox_ports (gone_at) WHERE gone_at IS NOT NULL;
	CREATE TABLE sandbox_flows (
		id         INTEGER PRIMARY KEY, -- in the order they began
		sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
		seq        INTEGER NOT NULL,
		time       INTEGER NOT NULL,
		verdict    TEXT NOT NULL,
		open       INTEGER NOT NULL,
		record     TEXT NOT NULL, -- JSON of sandbox.Flow
		UNIQUE (sandbox_id, seq)
	);`}}

// store is the slice's tables.
type store struct {
	db *db.DB
	// previewURL makes the URL of a label; nil makes none.
	previewURL func(label string) string
}

func openStore(ctx context.Context, d *db.DB) (store, error) {
	return store{db: d}, d.Migrate(ctx, "sandboxd", migrations)
}

// row is a sandbox as it is kept. Its Network is what may be shown.
type row struct {
	sandbox.Sandbox
	sealed        []byte // all of the policy, if Network hides secrets of it
	deleting      bool
	runtimeDigest string
	imageEnv      map[string]string
	startedMono   time.Duration
	boot          string
	guestToken    string
}

// scope is whose sandboxes a caller reaches.
type scope struct {
	team    string
	project string // empty: every project of the team
}

// live are the statuses that hold a machine, or may.
const live = `('pending', 'running', 'paused', 'stopping')`

const columns = `id, team_id, project_id, name, status, reason, message, deleting,
	image, digest, runtime, runtime_digest, vcpus, memory_mb, disk_mb, env, image_env, tags, user, workdir, network,
	timeout, idle_timeout, created_at, updated_at, started_at, expires_at, stopped_at, started_mono, boot, guest_token,
	cpu, wall, memory_peak, ingress_bytes, egress_bytes, sealed_network, ports`

type scanner interface{ Scan(dest ...any) error }

func (s store) scan(from scanner) (*row, error) {
	var (
		r                           row
		env, imageEnv, tags         string
		net, ports                  string
		created, updated            int64
		started, expires, stopped   sql.NullInt64
		timeout, idle, cpu, wallFor int64
	)
	err := from.Scan(&r.ID, &r.TeamID, &r.ProjectID, &r.Name, &r.Status, &r.Reason, &r.Message, &r.deleting,
		&r.Image, &r.Digest, &r.Runtime, &r.runtimeDigest, &r.VCPUs, &r.MemoryMB, &r.DiskMB, &env, &imageEnv, &tags, &r.User, &r.WorkDir, &net,
		&timeout, &idle, &created, &updated, &started, &expires, &stopped, &r.startedMono, &r.boot, &r.guestToken,
		&cpu, &wallFor, &r.Usage.MemoryPeak, &r.Usage.IngressBytes, &r.Usage.EgressBytes, &r.sealed, &ports)
	if err != nil {
		return nil, err
	}
	for _, f := range []struct {
		column, text string
		into         any
	}{{"env", env, &r.Env}, {"image_env", imageEnv, &r.imageEnv}, {"tags", tags, &r.Tags}, {"network", net, &r.Network}, {"ports", ports, &r.Ports}} {
		if err := json.Unmarshal([]byte(f.text), f.into); err != nil {
			return nil, fmt.Errorf("sandbox %s: column %s: %w", r.ID, f.column, err)
		}
	}
	s.setURLs(r.Ports)
	r.Timeout, r.IdleTimeout = millis(timeout), millis(idle)
	r.Usage.ActiveCPU, r.Usage.WallTime = millis(cpu), millis(wallFor)
	r.CreatedAt, r.UpdatedAt = time.UnixMilli(created).UTC(), time.UnixMilli(updated).UTC()
	r.StartedAt, r.ExpiresAt, r.StoppedAt = nullTime(started), nullTime(expires), nullTime(stopped)
	return &r, nil
}

func millis(ms int64) sandbox.Duration { return sandbox.Duration(time.Duration(ms) * time.Millisecond) }

func ms(d sandbox.Duration) int64 { return time.Duration(d).Milliseconds() }

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

// find returns the sandbox ref names, not_found if scope has none.
func (s store) find(ctx context.Context, sc scope, ref string) (*row, error) {
	if strings.HasPrefix(ref, idPrefix) {
		return s.one(ctx, ref, `SELECT `+columns+` FROM sandboxes WHERE id = ? AND team_id = ? AND (? = '' OR project_id = ?)`,
			ref, sc.team, sc.project, sc.project)
	}
	rows, err := s.all(ctx, `SELECT `+columns+` FROM sandboxes WHERE name = ? AND team_id = ? AND (? = '' OR project_id = ?) LIMIT 2`,
		ref, sc.team, sc.project, sc.project)
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

func (s store) get(ctx context.Context, id string) (*row, error) {
	return s.one(ctx, id, `SELECT `+columns+` FROM sandboxes WHERE id = ?`, id)
}

func (s store) one(ctx context.Context, ref, query string, args ...any) (*row, error) {
	r, err := s.scan(s.db.QueryRow(ctx, query, args...))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, notFound(ref)
	}
	if err != nil {
		return nil, fmt.Errorf("read sandbox: %w", err)
	}
	return r, nil
}

func (s store) all(ctx context.Context, query string, args ...any) ([]*row, error) {
	rows, err := s.db.Query(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read sandboxes: %w", err)
	}
	defer rows.Close()
	var all []*row
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

// unfinished returns the sandboxes a restart has to look after.
func (s store) unfinished(ctx context.Context) ([]*row, error) {
	return s.all(ctx, `SELECT `+columns+` FROM sandboxes WHERE deleting = 1 OR status IN `+live)
}

// list returns up to limit rows after the cursor, newest first.
func (s store) list(ctx context.Context, sc scope, p sandbox.ListParams, after cursor, limit int) ([]*row, error) {
	q, args := `SELECT `+columns+` FROM sandboxes WHERE team_id = ?`, []any{sc.team}
	and := func(cond string, a ...any) { q, args = q+" AND "+cond, append(args, a...) }
	if sc.project != "" {
		and(`project_id = ?`, sc.project)
	}
	if len(p.Status) > 0 {
		and(`status IN (?`+strings.Repeat(`, ?`, len(p.Status)-1)+`)`, anys(p.Status)...)
	}
	if p.NamePrefix != "" {
		and(`substr(name, 1, ?) = ?`, len(p.NamePrefix), p.NamePrefix)
	}
	for _, k := range sortedKeys(p.Tags) {
		and(`EXISTS (SELECT 1 FROM sandbox_tags WHERE sandbox_id = id AND key = ? AND value = ?)`, k, p.Tags[k])
	}
	if after.ID != "" {
		and(`(created_at < ? OR created_at = ? AND id < ?)`, after.At, after.At, after.ID)
	}
	return s.all(ctx, q+` ORDER BY created_at DESC, id DESC LIMIT ?`, append(args, limit)...)
}

func anys[T any](s []T) []any {
	a := make([]any, len(s))
	for i := range s {
		a[i] = s[i]
	}
	return a
}

// started takes a sandbox from pending to running, false if it is no longer pending.
func (s store) started(ctx context.Context, r *row) (bool, error) {
	imageEnv, err := toJSON(r.imageEnv)
	if err != nil {
		return false, err
	}
	return s.changed(ctx, `UPDATE sandboxes SET status = 'running', digest = ?, runtime_digest = ?, image_env = ?, user = ?, workdir = ?,
		started_at = ?, expires_at = ?, updated_at = ?, started_mono = ?, boot = ? WHERE id = ? AND status = 'pending'`,
		r.Digest, r.runtimeDigest, imageEnv, r.User, r.WorkDir,
		r.StartedAt.UnixMilli(), r.ExpiresAt.UnixMilli(), r.UpdatedAt.UnixMilli(), int64(r.startedMono), r.boot, r.ID)
}

// move takes a sandbox between statuses that keep its machine, false if it was
// not in from.
func (s store) move(ctx context.Context, id string, from, to sandbox.Status, now time.Time) (bool, error) {
	return s.changed(ctx, `UPDATE sandboxes SET status = ?, updated_at = ? WHERE id = ? AND status = ?`,
		to, now.UnixMilli(), id, from)
}

// beginStop takes a sandbox to stopping, false if it is there already or has ended.
func (s store) beginStop(ctx context.Context, id string, e end, now time.Time) (bool, error) {
	return s.changed(ctx, `UPDATE sandboxes SET status = 'stopping', reason = ?, message = ?, deleting = ?, updated_at = ?
		WHERE id = ? AND status IN ('pending', 'running', 'paused')`, e.reason, e.message, e.deleting, now.UnixMilli(), id)
}

// fail takes a sandbox to failed, false if it was not where f expects it.
func (s store) fail(ctx context.Context, id string, f failure, now time.Time) (bool, error) {
	from := `('running', 'paused')`
	if f.from == sandbox.Pending {
		from = `('pending')`
	}
	return s.changed(ctx, `UPDATE sandboxes SET status = 'failed', reason = ?, message = ?, expires_at = NULL,
		stopped_at = ?, updated_at = ? WHERE id = ? AND status IN `+from,
		f.reason, f.message, now.UnixMilli(), now.UnixMilli(), id)
}

// ended records the final usage, and that nothing is left of the machine of a
// sandbox that was stopping; rows marked for it are removed.
func (s store) ended(ctx context.Context, id string, u sandbox.Usage, now time.Time) error {
	return s.db.Write(ctx, func(tx *db.Tx) error {
		if err := setUsage(ctx, tx, id, u); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE sandboxes SET status = 'stopped', expires_at = NULL, stopped_at = ?, updated_at = ?
			WHERE id = ? AND status = 'stopping'`, now.UnixMilli(), now.UnixMilli(), id); err != nil {
			return err
		}
		if err := closeFlows(ctx, tx, id); err != nil {
			return err
		}
		_, err := forget(ctx, tx, id, ` AND deleting = 1`, now)
		return err
	})
}

// markDeleting makes ended remove the row of a sandbox that is ending.
func (s store) markDeleting(ctx context.Context, id string) error {
	_, err := s.db.Exec(ctx, `UPDATE sandboxes SET deleting = 1 WHERE id = ? AND status IN ('stopping', 'failed')`, id)
	return err
}

// remove forgets a sandbox that has ended, false if it has not.
func (s store) remove(ctx context.Context, id string, now time.Time) (removed bool, err error) {
	err = s.db.Write(ctx, func(tx *db.Tx) error {
		removed, err = forget(ctx, tx, id, "", now)
		return err
	})
	return removed, err
}

// forget removes a sandbox that has ended, if cond holds, all but its labels.
func forget(ctx context.Context, tx *db.Tx, id, cond string, now time.Time) (bool, error) {
	res, err := tx.Exec(ctx, `DELETE FROM sandboxes WHERE id = ? AND status IN ('stopped', 'failed')`+cond, id)
	if err != nil || res.Rows == 0 {
		return false, err
	}
	return true, dropPorts(ctx, tx, id, nil, now)
}

func setUsage(ctx context.Context, tx *db.Tx, id string, u sandbox.Usage) error {
	_, err := tx.Exec(ctx, `UPDATE sandboxes SET cpu = ?, wall = ?, memory_peak = ?, ingress_bytes = ?, egress_bytes = ? WHERE id = ?`,
		ms(u.ActiveCPU), ms(u.WallTime), u.MemoryPeak, u.IngressBytes, u.EgressBytes, id)
	return err
}

// saveUsage records the counters of sandboxes that run, by id.
func (s store) saveUsage(ctx context.Context, usage map[string]sandbox.Usage) error {
	return s.db.Write(ctx, func(tx *db.Tx) error {
		for id, u := range usage {
			if err := setUsage(ctx, tx, id, u); err != nil {
				return err
			}
		}
		return nil
	})
}

// extend adds to the timeout of a sandbox that runs, if the sum is at most max.
func (s store) extend(ctx context.Context, id string, by, max sandbox.Duration, now time.Time) (bool, error) {
	return s.changed(ctx, `UPDATE sandboxes SET timeout = timeout + ?, expires_at = expires_at + ?, updated_at = ?
		WHERE id = ? AND status IN ('running', 'paused') AND timeout + ? <= ?`,
		ms(by), ms(by), now.UnixMilli(), id, ms(by), ms(max))
}

// change is what an update sets. Nil fields stay as they are.
type change struct {
	tags    map[string]string
	network *policy
	idle    *sandbox.Duration
	// ports without a label get the one their port has, or a new one; a label
	// that is given is declared again.
	ports []sandbox.Port
}

// update makes a change, not ok if the sandbox has ended and more than tags and
// ports are to change. ended are the labels that are gone, or have another access.
func (s store) update(ctx context.Context, id string, c change, now time.Time) (ended map[string]bool, ok bool, err error) {
	err = s.db.Write(ctx, func(tx *db.Tx) (err error) {
		set, args, cond := `updated_at = ?`, []any{now.UnixMilli()}, ""
		if c.tags != nil {
			text, err := toJSON(c.tags)
			if err != nil {
				return err
			}
			set, args = set+`, tags = ?`, append(args, text)
		}
		if c.network != nil {
			text, err := toJSON(c.network.shown)
			if err != nil {
				return err
			}
			set, args = set+`, network = ?, sealed_network = ?`, append(args, text, c.network.sealed)
			cond = ` AND status IN ('running', 'paused')`
		}
		if c.idle != nil {
			set, args, cond = set+`, idle_timeout = ?`, append(args, ms(*c.idle)), ` AND status IN ('running', 'paused')`
		}
		res, err := tx.Exec(ctx, `UPDATE sandboxes SET `+set+` WHERE id = ?`+cond, append(args, id)...)
		if ok = res.Rows == 1; err != nil || !ok {
			return err
		}
		if c.ports != nil {
			if ended, err = setPorts(ctx, tx, id, c.ports, now); err != nil {
				return err
			}
		}
		if c.tags == nil {
			return nil
		}
		if _, err := tx.Exec(ctx, `DELETE FROM sandbox_tags WHERE sandbox_id = ?`, id); err != nil {
			return err
		}
		return insertTags(ctx, tx, id, c.tags)
	})
	return ended, ok, err
}

func insertTags(ctx context.Context, tx *db.Tx, id string, tags map[string]string) error {
	for k, v := range tags {
		if _, err := tx.Exec(ctx, `INSERT INTO sandbox_tags (sandbox_id, key, value) VALUES (?, ?, ?)`, id, k, v); err != nil {
			return err
		}
	}
	return nil
}

// count returns how many sandboxes a team has, or one project of it.
func (s store) count(ctx context.Context, sc scope) (n int, err error) {
	err = s.db.QueryRow(ctx, `SELECT count(*) FROM sandboxes WHERE team_id = ? AND (? = '' OR project_id = ?)`,
		sc.team, sc.project, sc.project).Scan(&n)
	return n, err
}

// changed runs an update of one row and reports whether there was one.
func (s store) changed(ctx context.Context, query string, args ...any) (bool, error) {
	res, err := s.db.Exec(ctx, query, args...)
	if err != nil {
		return false, fmt.Errorf("update sandbox: %w", err)
	}
	return res.Rows == 1, nil
}
