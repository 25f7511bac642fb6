package sqlstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/internal/workflowd/admission"
)

// Lease implements workflowd.Owner.
func (p *Postgres) Lease() time.Duration { return p.o.Lease }

// Register implements workflowd.Owner.
func (p *Postgres) Register(ctx context.Context) error {
	var epoch int32
	b := new(pgx.Batch)
	b.Queue(p.sql(`INSERT INTO cay.owners (name, process, lease_until) VALUES ($1, $2, clock_timestamp() + $3) RETURNING epoch`),
		p.o.Name, thisProcess(), p.o.Lease).QueryRow(func(row pgx.Row) error { return row.Scan(&epoch) })
	b.Queue("SELECT pg_notify($1, $2)", p.channel, noteOwners)
	if err := p.pool.SendBatch(ctx, b).Close(); err != nil {
		return pgError(err)
	}
	p.epoch.Store(epoch)
	if p.listener != nil {
		p.listener.wake()
	}
	return nil
}

// unregister ends this process's registration, so that other processes can take its runs.
// It waits for transactions that have passed the fence: the server may still commit
// transactions that no goroutine here waits for any more. Without the wait, others could
// forget the registration before a run is claimed in its name, and the run would never
// have an owner again.
func (p *Postgres) unregister(ctx context.Context) error {
	b := new(pgx.Batch)
	b.Queue("SELECT pg_advisory_xact_lock($1, $2)", p.fenceClass, p.epoch.Load())
	b.Queue(p.sql("UPDATE cay.owners SET ended = true WHERE epoch = $1"), p.epoch.Load())
	b.Queue("SELECT pg_notify($1, $2)", p.channel, noteEnded)
	return pgError(p.pool.SendBatch(ctx, b).Close())
}

// Renew implements workflowd.Owner.
func (p *Postgres) Renew(ctx context.Context) error {
	tag, err := p.pool.Exec(ctx, p.sql("UPDATE cay.owners SET lease_until = clock_timestamp() + $2 WHERE epoch = $1 AND NOT ended"),
		p.epoch.Load(), p.o.Lease)
	if err == nil && tag.RowsAffected() == 0 {
		return cay.Errorf(cay.Conflict, "another process has taken over the runs of this one")
	}
	return pgError(err)
}

// Serve implements workflowd.Owner.
func (p *Postgres) Serve(definitions []workflowd.Served) {
	p.listener.serve(slices.Clone(definitions))
	p.listener.wake()
}

// served returns, column by column, the definitions that a process serves.
func served(definitions []workflowd.Served) (project, workflow, build []string) {
	project, workflow, build = []string{}, []string{}, []string{}
	for _, d := range definitions {
		project, workflow, build = append(project, d.Project), append(workflow, d.Workflow), append(build, d.Build)
	}
	return project, workflow, build
}

// pgClaimable selects and locks runs that no live process owns and that the caller
// serves. For each such owner (0 for none) and workflow it takes the first rows of an
// index, at most $4, so that its cost does not grow with the number of runs.
func pgClaimable(state, lock string) string {
	return `SELECT c.id FROM (SELECT 0 AS epoch UNION ALL SELECT epoch FROM cay.owners WHERE ended) d
	CROSS JOIN (SELECT project, workflow, array_agg(build) || ''::text AS builds
		FROM unnest($1::text[], $2::text[], $3::text[]) s (project, workflow, build) GROUP BY project, workflow) s
	CROSS JOIN LATERAL (SELECT id, priority FROM cay.runs r
		WHERE r.owner = d.epoch AND r.workflow = s.workflow AND r.project = s.project AND r.build = ANY (s.builds) AND ` + state + `
		ORDER BY r.priority DESC, r.id LIMIT $4 ` + lock + `) c
	ORDER BY c.priority DESC, c.id LIMIT $4`
}

// Claim implements workflowd.Owner.
func (p *Postgres) Claim(ctx context.Context, limit int) ([]history.Run, error) {
	if err := p.endDead(ctx); err != nil {
		return nil, err
	}
	project, workflow, build := served(p.listener.served())
	if len(project) == 0 {
		return nil, nil
	}
	// A single statement claims and reads, so that the read includes everything stored
	// before the run became claimable.
	const lock = "FOR UPDATE SKIP LOCKED"
	var runs []history.Run
	b := new(pgx.Batch)
	p.fence(b)
	b.Queue(p.sql(`WITH r AS (UPDATE cay.runs r SET owner = $5 FROM (`+pgClaimable(pgAwake, lock)+`) n WHERE r.id = n.id RETURNING r.*)
		SELECT `+pgRunColumns+` FROM r`+pgProgress+`ORDER BY r.priority DESC, r.id`),
		project, workflow, build, limit, p.epoch.Load()).Query(func(rows pgx.Rows) (err error) {
		runs, err = pgx.CollectRows(rows, pgScanRun)
		return err
	})
	if err := p.pool.SendBatch(ctx, b).Close(); err != nil {
		return nil, pgError(err)
	}
	// Sleeping runs come after, many more at a time.
	var asleep int64
	if len(runs) < limit {
		b := new(pgx.Batch)
		p.fence(b)
		b.Queue(p.sql(`UPDATE cay.runs r SET owner = $5 FROM (`+pgClaimable(pgAsleep, lock)+`) n WHERE r.id = n.id`),
			project, workflow, build, claimAsleep, p.epoch.Load()).Exec(func(tag pgconn.CommandTag) error {
			asleep = tag.RowsAffected()
			return nil
		})
		if err := p.pool.SendBatch(ctx, b).Close(); err != nil {
			// The runs claimed above must go to workers despite this error; sleeping runs
			// are tried again at the next claim.
			p.o.Logger.WarnContext(ctx, "cannot take over sleeping runs", "error", pgError(err))
		}
	}
	if len(runs) > 0 || asleep > 0 {
		// The claimed runs may have messages and timers, and there may be more runs to
		// claim.
		p.listener.report(workflowd.Notice{Kind: workflowd.NoticeInbox})
		if len(runs) == limit || asleep == claimAsleep {
			p.listener.report(workflowd.Notice{Kind: workflowd.NoticeClaim})
		}
		p.o.Logger.InfoContext(ctx, "took over runs", "awake", len(runs), "asleep", asleep)
	}
	return runs, nil
}

// claimAsleep is how many sleeping runs are claimed at a time.
const claimAsleep = 5000

// Take implements workflowd.Owner.
func (p *Postgres) Take(ctx context.Context, runs []string) (owned []string, err error) {
	if len(runs) == 0 {
		return nil, nil
	}
	taken := int64(0)
	b := new(pgx.Batch)
	p.fence(b)
	b.Queue(p.sql(`UPDATE cay.runs r SET owner = $2 FROM (SELECT id FROM cay.runs c WHERE id = ANY ($1)
		AND status IN ('pending', 'running') AND owner = ANY (ARRAY(SELECT 0 UNION ALL SELECT epoch FROM cay.owners WHERE ended))
		ORDER BY id FOR UPDATE SKIP LOCKED) n WHERE r.id = n.id`), runs, p.epoch.Load()).Exec(func(tag pgconn.CommandTag) error {
		taken = tag.RowsAffected()
		return nil
	})
	b.Queue(p.sql("SELECT id FROM cay.runs WHERE id = ANY ($1) AND owner = $2"), runs, p.epoch.Load()).Query(func(rows pgx.Rows) (err error) {
		owned, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	if err := p.pool.SendBatch(ctx, b).Close(); err != nil {
		return nil, pgError(err)
	}
	if taken > 0 {
		p.listener.report(workflowd.Notice{Kind: workflowd.NoticeInbox})
	}
	return owned, nil
}

// Ask implements workflowd.Owner.
func (p *Postgres) Ask(ctx context.Context, run string) error {
	_, err := p.pool.Exec(ctx, p.sql("SELECT pg_notify($2, $3 || ' ' || owner || ' ' || id) FROM cay.runs WHERE id = $1"), run, p.channel, noteAsked)
	return pgError(err)
}

// Disown implements workflowd.Owner.
func (p *Postgres) Disown(ctx context.Context, runs []string) error {
	if len(runs) == 0 {
		return nil
	}
	b := new(pgx.Batch)
	p.fence(b)
	b.Queue(p.sql(`UPDATE cay.runs r SET owner = 0 FROM (SELECT id FROM cay.runs WHERE id = ANY ($1) AND owner = $2 ORDER BY id FOR UPDATE) n
		WHERE r.id = n.id`), runs, p.epoch.Load())
	b.Queue("SELECT pg_notify($1, $2)", p.channel, noteClaim)
	return pgError(p.pool.SendBatch(ctx, b).Close())
}

// Post implements workflowd.Owner.
func (p *Postgres) Post(ctx context.Context, m workflowd.Message) (int64, error) {
	b := new(pgx.Batch)
	id := p.queuePost(b, []string{m.Run}, [][]byte{history.AppendEvent(nil, &m.Event)})
	if err := p.pool.SendBatch(ctx, b).Close(); err != nil {
		return 0, pgError(err)
	}
	if *id == 0 {
		return 0, cay.Errorf(cay.NotFound, "run %q not found", m.Run)
	}
	return *id, nil
}

// Verdict implements workflowd.Owner.
func (p *Postgres) Verdict(ctx context.Context, id int64) (*workflowd.Verdict, error) {
	v := workflowd.Verdict{ID: id}
	var code, why *string
	err := p.pool.QueryRow(ctx, p.sql("SELECT verdict, why FROM cay.inbox WHERE id = $1"), id).Scan(&code, &why)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, cay.Errorf(cay.NotFound, "message %d is gone", id)
	case err != nil:
		return nil, pgError(err)
	case code == nil:
		return nil, nil
	}
	v.Code = cay.Code(*code)
	if why != nil {
		v.Why = *why
	}
	if _, err := p.pool.Exec(ctx, p.sql("DELETE FROM cay.inbox WHERE id = $1"), id); err != nil {
		p.o.Logger.Debug("a message that was decided stays until its run ends", "error", err)
	}
	return &v, nil
}

// queuePost adds the statement that stores messages for runs and notifies the runs'
// owners. The statement stores the last message's id in the result, if any of the runs
// exists. If a run changes owners meanwhile, the new owner finds its messages in a sweep;
// see listener.sweep.
func (p *Postgres) queuePost(b *pgx.Batch, runs []string, events [][]byte) *int64 {
	last := new(int64)
	b.Queue(p.sql(`WITH posted AS (
			INSERT INTO cay.inbox (run, event) SELECT n.run, n.event
			FROM unnest($1::text[], $2::bytea[]) WITH ORDINALITY n (run, event, i) JOIN cay.runs r ON r.id = n.run ORDER BY n.i RETURNING id, run)
		SELECT pg_notify($3, $4 || ' ' || owner), (SELECT max(id) FROM posted) FROM (SELECT DISTINCT owner FROM cay.runs WHERE id IN (SELECT run FROM posted)) o`),
		runs, events, p.channel, noteInbox).Query(func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{nil, last}, func() error { return nil })
		return err
	})
	return last
}

// Inbox implements workflowd.Owner.
func (p *Postgres) Inbox(ctx context.Context, limit int) ([]workflowd.Message, error) {
	return collect(ctx, p, func(row pgx.CollectableRow) (m workflowd.Message, err error) {
		var event []byte
		if err = row.Scan(&m.ID, &m.Run, &event); err == nil {
			_, err = history.DecodeEvent(event, &m.Event)
		}
		return m, err
	}, `SELECT i.id, i.run, i.event FROM cay.inbox i JOIN cay.runs r ON r.id = i.run WHERE r.owner = $1 AND i.verdict IS NULL ORDER BY i.id LIMIT $2`,
		p.epoch.Load(), limit)
}

// Running implements workflowd.Owner.
func (p *Postgres) Running(ctx context.Context, project, workflow, group string) (int, error) {
	query, args := "SELECT count(*) FROM cay.runs WHERE status = 'running' AND project = $1 AND workflow = $2", []any{project, workflow}
	if group != "" {
		query, args = query+" AND run_group = $3", append(args, group)
	}
	var n int
	err := p.pool.QueryRow(ctx, p.sql(query), args...).Scan(&n)
	return n, pgError(err)
}

// letInState are the runs that were let in by a limit.
type letInState struct {
	Pending []string `json:"pending,omitempty"` // as of when it was written
	Starts  []int64  `json:"starts,omitempty"`  // within the period of the rate, Unix milliseconds
}

// LetIn implements admission.Shared. The lock on the row of the limit has processes decide
// one after the other.
func (p *Postgres) LetIn(ctx context.Context, l history.Limit, run string) (let admission.LetIn, err error) {
	err = pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		var data []byte
		var now int64
		err := tx.QueryRow(ctx, p.sql(`SELECT state, (extract(epoch FROM clock_timestamp()) * 1000)::bigint FROM cay.limits
			WHERE project = $1 AND workflow = $2 FOR UPDATE`), l.Project, l.Workflow).Scan(&data, &now)
		if errors.Is(err, pgx.ErrNoRows) { // the limit was deleted meanwhile
			let = admission.LetIn{OK: true}
			return nil
		}
		if err != nil {
			return err
		}
		var state letInState
		if err := json.Unmarshal(data, &state); err != nil {
			return err
		}
		var running int
		err = tx.QueryRow(ctx, p.sql(`SELECT count(*) FILTER (WHERE status = 'running' AND project = $1 AND workflow = $2),
				coalesce(array_agg(id) FILTER (WHERE status = 'pending'), '{}')
			FROM cay.runs WHERE status = 'running' AND project = $1 AND workflow = $2 OR id = ANY ($3)`),
			l.Project, l.Workflow, append([]string{}, state.Pending...)).Scan(&running, &state.Pending)
		if err != nil {
			return err
		}
		let = admission.LetIn{OK: slices.Contains(state.Pending, run), Pending: state.Pending}
		if run == "" || let.OK {
			return nil
		}
		if period := l.Period.Milliseconds(); l.Rate > 0 {
			state.Starts = slices.DeleteFunc(state.Starts, func(at int64) bool { return at <= now-period })
			if n := len(state.Starts); n >= l.Rate {
				let.Wait = time.Duration(state.Starts[n-l.Rate]+period-now) * time.Millisecond
				return nil
			}
			state.Starts = append(state.Starts, now)
		}
		if l.Concurrency > 0 && running+len(state.Pending) >= l.Concurrency {
			return nil
		}
		state.Pending = append(state.Pending, run)
		let.OK, let.Pending = true, state.Pending
		_, err = tx.Exec(ctx, p.sql("UPDATE cay.limits SET state = $3 WHERE project = $1 AND workflow = $2"), l.Project, l.Workflow, state)
		return err
	})
	return let, pgError(err)
}

// Notices implements workflowd.Owner.
func (p *Postgres) Notices() <-chan workflowd.Notice { return p.listener.notices }

// peer is another registered process.
type peer struct {
	epoch   int32
	name    string
	process string
	until   time.Time
	expired bool
	// connected: the process has a session that listens.
	connected bool
}

// pgPeers selects the other processes. pg_locks shows which are connected.
const pgPeers = `SELECT o.epoch, o.name, o.process, o.lease_until, o.lease_until < clock_timestamp(), EXISTS (
		SELECT FROM pg_locks l WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2 AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
		AND l.classid = $2::bigint::oid AND l.objid = o.epoch::bigint::oid)
	FROM cay.owners o WHERE NOT o.ended AND o.epoch <> $1`

func scanPeer(row pgx.CollectableRow) (o peer, err error) {
	err = row.Scan(&o.epoch, &o.name, &o.process, &o.until, &o.expired, &o.connected)
	return o, err
}

// endDead ends the registrations of dead processes: see listener.judge.
func (p *Postgres) endDead(ctx context.Context) error {
	others, err := collect(ctx, p, scanPeer, pgPeers, p.epoch.Load(), int64(uint32(p.sessionClass)))
	if err != nil {
		return err
	}
	for _, dead := range p.listener.judge(others) {
		if err := p.end(ctx, dead); err != nil {
			return err
		}
	}
	return nil
}

// end ends another process's registration, unless the registration was renewed since we
// read it. When end returns, no statement that the process has sent can still be
// committed.
func (p *Postgres) end(ctx context.Context, o peer) error {
	err := pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		// Transactions that have passed the fence hold its lock in share mode. Such a
		// transaction is about to commit, or its process died or was cut off while
		// sending it. In the second case everyone would wait for it. PostgreSQL only lets
		// a role terminate its own sessions.
		if _, err := tx.Exec(ctx, `SELECT pg_terminate_backend(l.pid) FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid AND a.usename = current_user
			WHERE l.locktype = 'advisory' AND l.granted AND l.mode = 'ShareLock' AND l.objsubid = 2
			AND l.classid = $1::bigint::oid AND l.objid = $2::bigint::oid
			AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())`,
			int64(uint32(p.fenceClass)), int64(o.epoch)); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1, $2)", p.fenceClass, o.epoch); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, p.sql("UPDATE cay.owners SET ended = true WHERE epoch = $1 AND NOT ended AND lease_until = $2"), o.epoch, o.until)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		p.o.Logger.InfoContext(ctx, "a process is dead; its runs are to be taken over", "process", o.name, "epoch", o.epoch)
		_, err = tx.Exec(ctx, "SELECT pg_notify($1, $2)", p.channel, noteEnded)
		return err
	})
	return pgError(err)
}

// thisProcess identifies this process to other processes on the same machine, so that
// they can see at once that it is dead: boot id, pid namespace, pid, and start time,
// since pids are reused. It returns "" on systems without /proc.
func thisProcess() string {
	boot, namespace := here()
	if boot == "" {
		return ""
	}
	began := processBegan(os.Getpid())
	if began == "" {
		return ""
	}
	return fmt.Sprintf("%s %s %d %s", boot, namespace, os.Getpid(), began)
}

func here() (boot, namespace string) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", ""
	}
	if namespace, err = os.Readlink("/proc/self/ns/pid"); err != nil {
		return "", ""
	}
	return strings.TrimSpace(string(b)), namespace
}

// processBegan returns the start time of a process as the kernel prints it, "" if there
// is no such process.
func processBegan(pid int) string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	// The name, in parentheses, may contain any characters. After it come the state and,
	// as the twentieth field, the start time.
	_, rest, ok := strings.Cut(string(b[strings.LastIndexByte(string(b), ')')+1:]), " ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 20 || fields[0] == "Z" {
		return "" // a zombie counts as dead
	}
	return fields[19]
}

// isGone reports whether a process has certainly exited.
func isGone(process string) bool {
	f := strings.Fields(process)
	if len(f) != 4 {
		return false
	}
	boot, namespace := here()
	if boot == "" || f[0] != boot || f[1] != namespace {
		return false
	}
	pid, err := strconv.Atoi(f[2])
	return err == nil && processBegan(pid) != f[3]
}
