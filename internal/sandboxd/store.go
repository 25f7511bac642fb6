package sandboxd

import (
	"cmp"
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

// store is the slice's tables.
type store struct {
	db *db.DB
	// secrets seals what nobody may read in the database. Nil: nothing is sealed.
	secrets *secret.Box
	// maxCommands is how many bytes of commands a team keeps.
	maxCommands int64
	// previewURL makes the URL of a label; nil makes none.
	previewURL func(label string) string
	// changes is told of sandboxes that change. Nil: nobody watches.
	changes *changeHub
}

func openStore(ctx context.Context, d *db.DB, secrets *secret.Box) (store, error) {
	return store{db: d, secrets: secrets}, d.Migrate(ctx, "sandboxd", migrations)
}

// row is a sandbox as it is kept. Its Network is what may be shown.
type row struct {
	sandbox.Sandbox
	sealed        []byte // all of the policy, if Network hides secrets of it
	unreadable    error  // why its environment or its token is missing here; nil: it is not
	deleting      bool
	runtimeDigest string
	imageEnv      map[string]string
	startedMono   time.Duration
	boot          string
	guestToken    string

	sessionTimeout sandbox.Duration // as asked for; Timeout is this session's, which grows
	hibernation    string           // id of the snapshot it is hibernated in
	frozen         bool             // the engine may have paused the machine to save it
	next           nextSession
	before         sandbox.Usage   // of the sessions before this one
	filesOnly      bool            // not kept: start from the files of a memory snapshot
	source         *sandbox.Source // not kept: to be fetched before it runs
	only           string          // not kept: the session a call is about, if it is not about the sandbox
	drivesMB       int64           // not read: as attachDrives found it
}

// nextSession is what of a sandbox is to change when its next session starts.
// Nil fields stay as they are.
type nextSession struct {
	VCPUs    *float64          `json:"vcpus,omitempty"`
	MemoryMB *int64            `json:"memory_mb,omitempty"`
	Env      map[string]string `json:"env,omitzero"`
	Mounts   []sandbox.Mount   `json:"mounts,omitzero"`
	Runtime  *string           `json:"runtime,omitempty"`
	// Unfilled says that there can be none: the sandbox has not got its source yet,
	// which nobody keeps.
	Unfilled bool `json:"unfilled,omitempty"`
}

// machineID is the id of the machine of the newest session.
func (r *row) machineID() string { return r.SessionID }

// setTotal brings the total up to date with the newest session's usage.
func (r *row) setTotal() {
	r.Total = sandbox.Usage{
		ActiveCPU: r.before.ActiveCPU + r.Usage.ActiveCPU, WallTime: r.before.WallTime + r.Usage.WallTime,
		MemoryPeak:   max(r.before.MemoryPeak, r.Usage.MemoryPeak),
		IngressBytes: r.before.IngressBytes + r.Usage.IngressBytes, EgressBytes: r.before.EgressBytes + r.Usage.EgressBytes,
	}
}

// scope is whose sandboxes a caller reaches.
type scope struct {
	team    string
	project string // empty: every project of the team
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

func (s store) scan(from scanner) (*row, error) {
	var (
		r                           row
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
	err := from.Scan(&r.ID, &r.TeamID, &r.ProjectID, &r.Name, &r.Status, &r.Reason, &r.Message, &r.deleting,
		&r.Image, &r.Digest, &r.Runtime, &r.runtimeDigest, &r.VCPUs, &r.MemoryMB, &r.DiskMB, &env, &imageEnv, &tags, &r.User, &r.WorkDir, &net,
		&timeout, &idle, &created, &updated, &started, &expires, &stopped, &r.startedMono, &r.boot, &r.guestToken,
		&cpu, &wallFor, &r.Usage.MemoryPeak, &r.Usage.IngressBytes, &r.Usage.EgressBytes, &r.sealed, &ports,
		&r.Persistent, &r.SessionID, &sessionTimeout, &next, &r.SnapshotID, &r.hibernation, &r.frozen, &expiration, &retention, &mounts,
		&totalCPU, &totalWall, &r.before.MemoryPeak, &r.before.IngressBytes, &r.before.EgressBytes, &annotations, &statusAt)
	if err != nil {
		return nil, err
	}
	for _, f := range []struct {
		text  *string
		owner string
	}{{&env, envOf(r.ID)}, {&next, nextOf(r.ID)}, {&r.guestToken, tokenOf(r.ID)}} {
		if *f.text, err = s.unseal(*f.text, f.owner); err != nil {
			r.unreadable = fmt.Errorf("open %s: %w", f.owner, err)
		}
	}
	for _, f := range []struct {
		column, text string
		into         any
	}{{"env", env, &r.Env}, {"image_env", imageEnv, &r.imageEnv}, {"tags", tags, &r.Tags}, {"network", net, &r.Network}, {"ports", ports, &r.Ports},
		{"next", next, &r.next}, {"retention", retention, &r.Retention}, {"mounts", mounts, &r.Mounts},
		{"annotations", annotations, &r.Annotations}} {
		if f.text == "" {
			continue
		}
		if err := json.Unmarshal([]byte(f.text), f.into); err != nil {
			return nil, fmt.Errorf("sandbox %s: column %s: %w", r.ID, f.column, err)
		}
	}
	s.setURLs(r.Ports)
	r.Timeout, r.IdleTimeout = millis(timeout), millis(idle)
	r.Usage.ActiveCPU, r.Usage.WallTime = millis(cpu), millis(wallFor)
	r.sessionTimeout, r.SnapshotExpiration = millis(sessionTimeout), millis(expiration)
	r.before.ActiveCPU, r.before.WallTime = millis(totalCPU), millis(totalWall)
	r.setTotal()
	r.showNext()
	r.CreatedAt, r.UpdatedAt, r.StatusAt = time.UnixMilli(created).UTC(), time.UnixMilli(updated).UTC(), time.UnixMilli(statusAt).UTC()
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

// find returns the sandbox ref names, or has a session of, not_found if scope
// has none.
func (s store) find(ctx context.Context, sc scope, ref string) (*row, error) {
	const within = ` AND team_id = ? AND (? = '' OR project_id = ?)`
	switch {
	case strings.HasPrefix(ref, ident.SandboxPrefix):
		return s.one(ctx, notFound(ref), `SELECT `+columns+` FROM sandboxes WHERE id = ?`+within, ref, sc.team, sc.project, sc.project)
	case strings.HasPrefix(ref, ident.SessionPrefix):
		r, err := s.one(ctx, sessionNotFound(ref), `SELECT `+columns+` FROM sandboxes
			WHERE id = (SELECT sandbox_id FROM sandbox_sessions v WHERE v.id = ?)`+within, ref, sc.team, sc.project, sc.project)
		if err == nil {
			r.only = ref
		}
		return r, err
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
	return s.one(ctx, notFound(id), `SELECT `+columns+` FROM sandboxes WHERE id = ?`, id)
}

// again reads the row of a sandbox once more, for a call that is about what it
// was about before.
func (s store) again(ctx context.Context, r *row) (*row, error) {
	now, err := s.get(ctx, r.ID)
	if err == nil {
		now.only = r.only
	}
	return now, err
}

// one returns the sandbox of a query, or the error missing if there is none.
func (s store) one(ctx context.Context, missing error, query string, args ...any) (*row, error) {
	r, err := s.scan(s.db.QueryRow(ctx, query, args...))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, missing
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

// over says that a call cannot be made: the session that it is about has ended.
// A call about a sandbox has no such error.
func (r *row) over() error {
	if r.only == "" || r.only == r.SessionID && !r.Status.Final() && r.Status != sandbox.Hibernated {
		return nil
	}
	text := fmt.Sprintf("session %q of sandbox %q has ended", r.only, r.Name)
	switch {
	case r.only != r.SessionID:
	case r.Reason != "":
		text += fmt.Sprintf(" (%s)", r.Reason)
		if r.Message != "" {
			text += ": " + r.Message
		}
	default:
		text += fmt.Sprintf(" (%s)", r.Status)
	}
	return cay.Errorf(cay.Stopped, "%s", text).WithHint("use the sandbox's name or id for what is not about this session alone")
}

// ref is what a call is about, as it was named or by the sandbox's id.
func (r *row) ref() string { return cmp.Or(r.only, r.ID) }

// unfinished returns the sandboxes a restart has to look after.
func (s store) unfinished(ctx context.Context) ([]*row, error) {
	return s.all(ctx, `SELECT `+columns+` FROM sandboxes WHERE deleting = 1 OR status IN `+live)
}

// started takes a sandbox from pending or resuming to running, false if it is
// there no longer. One that was hibernated is so no more; what it was hibernated
// in nobody needs.
func (s store) started(ctx context.Context, r *row) (bool, error) {
	defer s.changing(ctx, r.ID)()
	ok := false
	err := s.db.Write(ctx, func(tx *db.Tx) (err error) {
		ok, err = startedRow(ctx, tx, r)
		if err != nil || !ok || r.hibernation == "" {
			return err
		}
		return markSnapshotDeleted(ctx, tx, r.hibernation, r.UpdatedAt)
	})
	if err != nil {
		return false, fmt.Errorf("update sandbox: %w", err)
	}
	return ok, nil
}

func startedRow(ctx context.Context, tx *db.Tx, r *row) (bool, error) {
	imageEnv, err := toJSON(r.imageEnv)
	if err != nil {
		return false, err
	}
	res, err := tx.Exec(ctx, `UPDATE sandboxes SET status = 'running', digest = ?, runtime_digest = ?, image_env = ?, user = ?, workdir = ?,
		started_at = ?, expires_at = ?, updated_at = ?, status_at = ?, started_mono = ?, boot = ?, hibernation_id = '',
		next = CASE status WHEN 'pending' THEN '{}' ELSE next END
		WHERE id = ? AND session_id = ? AND status IN ('pending', 'resuming')`,
		r.Digest, r.runtimeDigest, imageEnv, r.User, r.WorkDir,
		r.StartedAt.UnixMilli(), r.ExpiresAt.UnixMilli(), r.UpdatedAt.UnixMilli(), r.UpdatedAt.UnixMilli(), int64(r.startedMono), r.boot, r.ID, r.SessionID)
	return res.Rows == 1, err
}

// move takes a sandbox between statuses that keep its machine, false if it was
// not in from.
func (s store) move(ctx context.Context, id string, from, to sandbox.Status, now time.Time) (bool, error) {
	defer s.changing(ctx, id)()
	return s.changed(ctx, `UPDATE sandboxes SET status = ?, updated_at = ?, status_at = ? WHERE id = ? AND status = ?`,
		to, now.UnixMilli(), now.UnixMilli(), id, from)
}

// beginStop takes a sandbox to stopping, false if it is there already or has
// ended, or has another session by now. The session of one that is being created
// may yet change.
func (s store) beginStop(ctx context.Context, id, session string, e end, now time.Time) (bool, error) {
	defer s.changing(ctx, id)()
	return s.changed(ctx, `UPDATE sandboxes SET status = 'stopping', reason = ?, message = ?, deleting = ?, updated_at = ?, status_at = ?
		WHERE id = ? AND (status = 'pending' OR session_id = ? AND status IN ('running', 'paused', 'resuming'))`,
		e.reason, e.message, e.deleting, now.UnixMilli(), now.UnixMilli(), id, session)
}

// fail takes a sandbox to failed, false if it was not where f expects it. One
// that was being resumed is where it was before: what it is to start from is
// still there.
func (s store) fail(ctx context.Context, id string, f failure, now time.Time) (bool, error) {
	defer s.changing(ctx, id)()
	from, to := `('running', 'paused')`, `'failed'`
	switch f.from {
	case sandbox.Pending:
		from = `('pending')`
	case sandbox.Resuming:
		from, to = `('resuming')`, `CASE WHEN hibernation_id <> '' THEN 'hibernated' ELSE 'stopped' END`
	}
	return s.changed(ctx, `UPDATE sandboxes SET status = `+to+`, reason = ?, message = ?, expires_at = NULL, frozen = 0,
		stopped_at = ?, updated_at = ?, status_at = ? WHERE id = ? AND status IN `+from,
		f.reason, f.message, now.UnixMilli(), now.UnixMilli(), now.UnixMilli(), id)
}

// ended records the final usage, and that nothing is left of the machine of a
// sandbox that was stopping; rows marked for it are removed.
func (s store) ended(ctx context.Context, id, session string, u sandbox.Usage, k keptCommands, now time.Time) error {
	defer s.changing(ctx, id)()
	return s.db.Write(ctx, func(tx *db.Tx) error {
		if err := setCommands(ctx, tx, session, k, s.maxCommands); err != nil {
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
		if err := leaveHibernation(ctx, tx, id, now); err != nil {
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
	defer s.changing(ctx, id)()
	err = s.db.Write(ctx, func(tx *db.Tx) error {
		removed, err = forget(ctx, tx, id, "", now)
		return err
	})
	return removed, err
}

// forget removes a sandbox that has ended, if cond holds, all but its labels.
func forget(ctx context.Context, tx *db.Tx, id, cond string, now time.Time) (bool, error) {
	const ended = ` WHERE id = ? AND status IN ('stopped', 'failed', 'hibernated')`
	var hibernation string
	err := tx.QueryRow(ctx, `SELECT hibernation_id FROM sandboxes`+ended+cond, id).Scan(&hibernation)
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

// extend adds to the timeout of a session that runs, if the sum is at most max.
func (s store) extend(ctx context.Context, id, session string, by, max sandbox.Duration, now time.Time) (bool, error) {
	defer s.changing(ctx, id)()
	return s.changed(ctx, `UPDATE sandboxes SET timeout = timeout + ?, expires_at = expires_at + ?, updated_at = ?
		WHERE id = ? AND session_id = ? AND status IN ('running', 'paused') AND timeout + ? <= ?`,
		ms(by), ms(by), now.UnixMilli(), id, session, ms(by), ms(max))
}

// change is what an update sets. Nil fields stay as they are.
type change struct {
	tags        map[string]string
	annotations map[string]string
	network     *policy
	idle        *sandbox.Duration
	// ports without a label get the one their port has, or a new one; a label
	// that is given is declared again.
	ports []sandbox.Port

	// The next session's, and of snapshots.
	persistent *bool
	timeout    *sandbox.Duration
	snapshot   *string
	expiration *sandbox.Duration
	retention  *sandbox.Retention // one with a Keep of 0 is none
	next       nextSession
	// resting says that the sandbox is to be one without a machine.
	resting bool
}

// any reports whether anything is set.
func (n nextSession) any() bool {
	return n.VCPUs != nil || n.MemoryMB != nil || n.Env != nil || n.Mounts != nil || n.Runtime != nil
}

// merge adds what of n is set to what is set already.
func (n nextSession) merge(more nextSession) nextSession {
	if more.VCPUs != nil {
		n.VCPUs = more.VCPUs
	}
	if more.MemoryMB != nil {
		n.MemoryMB = more.MemoryMB
	}
	if more.Env != nil {
		n.Env = more.Env
	}
	if more.Mounts != nil {
		n.Mounts = more.Mounts
	}
	if more.Runtime != nil {
		n.Runtime = more.Runtime
	}
	return n
}

// update makes a change, not ok if the sandbox has ended and what is to change is
// its machine's, or if it is to rest and does not. ended are the labels that are gone, or have another access.
func (s store) update(ctx context.Context, id string, c change, now time.Time) (ended map[string]bool, ok bool, err error) {
	defer s.changing(ctx, id)()
	err = s.db.Write(ctx, func(tx *db.Tx) (err error) {
		set, args, cond := `updated_at = ?`, []any{now.UnixMilli()}, ""
		if c.tags != nil {
			text, err := toJSON(c.tags)
			if err != nil {
				return err
			}
			set, args = set+`, tags = ?`, append(args, text)
		}
		if c.annotations != nil {
			text, err := annotationsJSON(c.annotations)
			if err != nil {
				return err
			}
			set, args = set+`, annotations = ?`, append(args, text)
		}
		if c.network != nil {
			text, err := toJSON(c.network.shown)
			if err != nil {
				return err
			}
			set, args = set+`, network = ?, sealed_network = ?`, append(args, text, c.network.sealed)
		}
		if c.idle != nil {
			set, args = set+`, idle_timeout = ?`, append(args, ms(*c.idle))
		}
		if c.persistent != nil {
			set, args = set+`, persistent = ?`, append(args, *c.persistent)
		}
		switch {
		case c.resting:
			cond = ` AND ` + atRest
		case c.network != nil || c.idle != nil || c.persistent != nil:
			cond = ` AND status IN ('running', 'paused')`
		}
		if c.timeout != nil {
			set, args = set+`, session_timeout = ?`, append(args, ms(*c.timeout))
		}
		if c.snapshot != nil {
			if *c.snapshot != "" {
				if err := needSnapshot(ctx, tx, *c.snapshot); err != nil {
					return err
				}
			}
			set, args = set+`, snapshot_id = ?`, append(args, *c.snapshot)
		}
		if c.expiration != nil {
			set, args = set+`, snapshot_expiration = ?`, append(args, ms(*c.expiration))
		}
		if c.retention != nil {
			text, err := retentionJSON(c.retention)
			if err != nil {
				return err
			}
			set, args = set+`, retention = ?`, append(args, text)
		}
		if c.next.any() {
			text, err := s.mergedNext(ctx, tx, id, c.next)
			if err != nil {
				return err
			}
			set, args = set+`, next = ?`, append(args, text)
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

// mergedNext is what is set for the next session of a sandbox, with more.
func (s store) mergedNext(ctx context.Context, tx *db.Tx, id string, more nextSession) (string, error) {
	var text string
	if err := tx.QueryRow(ctx, `SELECT next FROM sandboxes WHERE id = ?`, id).Scan(&text); err != nil {
		return "", err
	}
	text, err := s.unseal(text, nextOf(id))
	if err != nil {
		return "", fmt.Errorf("open %s: %w", nextOf(id), err)
	}
	var next nextSession
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
