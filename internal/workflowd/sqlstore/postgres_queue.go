package sqlstore

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/workflowd/queue"
)

// postgresMessages is the migration that creates the tables of the queue.
const postgresMessages = `
CREATE TABLE cay.messages (
	id text COLLATE "C" PRIMARY KEY,
	project text NOT NULL,
	deployment text NOT NULL,
	topic text NOT NULL,
	run text COLLATE "C" NOT NULL,
	step text NOT NULL,
	key text NOT NULL,
	content_type text NOT NULL,
	created_at bigint NOT NULL,
	due bigint NOT NULL,
	attempt integer NOT NULL,
	receipt text COLLATE "C" NOT NULL,
	lease_until bigint NOT NULL, -- due, or 0 if it is not leased
	last_error text NOT NULL,
	body bytea NOT NULL
);
ALTER TABLE cay.messages ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE INDEX messages_due ON cay.messages (project, deployment, due);
CREATE INDEX messages_run ON cay.messages (run);

-- Idempotency keys. until is 0 while the message is pending.
CREATE TABLE cay.message_keys (
	project text NOT NULL,
	topic text NOT NULL,
	key text NOT NULL,
	message text COLLATE "C" NOT NULL,
	until bigint NOT NULL,
	PRIMARY KEY (project, topic, key)
);
CREATE INDEX message_keys_until ON cay.message_keys (until) WHERE until > 0;

-- created_at is 0 if it has never registered.
CREATE TABLE cay.deployments (
	project text NOT NULL,
	id text COLLATE "C" NOT NULL,
	url text NOT NULL,
	secret text NOT NULL,
	created_at bigint NOT NULL,
	seen_at bigint NOT NULL,
	error text NOT NULL,
	draining boolean NOT NULL,
	PRIMARY KEY (project, id)
);
`

// postgresPriority is the migration that adds the priority of messages.
const postgresPriority = `
ALTER TABLE cay.messages ADD COLUMN priority integer NOT NULL DEFAULT 0;
CREATE INDEX messages_urgent ON cay.messages (project, deployment, due) WHERE priority > 0;
`

// pgPublish stores a message, unless its key is in use.
const pgPublish = `
WITH k AS (
	INSERT INTO cay.message_keys AS k (project, topic, key, message, until)
	SELECT $2::text, $4::text, $7::text, $1::text, 0 WHERE $7::text <> ''
	ON CONFLICT (project, topic, key) DO UPDATE SET message = excluded.message, until = 0
	WHERE k.until > 0 AND k.until <= $12 OR k.until = 0 AND k.message = excluded.message
	RETURNING message
), m AS (
	INSERT INTO cay.messages (id, project, deployment, topic, run, step, key, content_type, created_at, due, body, attempt, receipt, lease_until, last_error, priority)
	SELECT $1::text, $2::text, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text, $9::bigint, $10::bigint, $11::bytea, 0, '', 0, '', $13::integer
	WHERE $7::text = '' OR EXISTS (SELECT FROM k)
	ON CONFLICT (id) DO NOTHING
	RETURNING project, deployment
)
INSERT INTO cay.deployments (project, id, url, secret, created_at, seen_at, error, draining)
SELECT project, deployment, '', '', 0, $12::bigint, '', false FROM m
ON CONFLICT DO NOTHING`

// pgLease leases due messages that no other process is leasing at the moment.
const pgLease = `
WITH n AS (
	SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[]) n (id, receipt, until)
), c AS (
	SELECT m.id FROM cay.messages m JOIN n USING (id) WHERE m.due <= $4 OR m.receipt = n.receipt FOR UPDATE OF m SKIP LOCKED
)
UPDATE cay.messages m SET attempt = m.attempt + (m.receipt <> n.receipt)::int, receipt = n.receipt, due = n.until, lease_until = n.until, last_error = ''
FROM n, c WHERE m.id = n.id AND c.id = m.id
RETURNING m.id, m.project, m.deployment, m.topic, m.run, m.step, m.key, m.content_type, m.created_at, m.due, m.attempt,
	m.receipt, m.lease_until, m.last_error, m.priority, m.body`

// postgresQueue implements queue.Store. The methods of Postgres implement
// workflowd.Store, which uses some of the same names.
type postgresQueue struct{ p *Postgres }

var _ queue.Store = postgresQueue{}

// Queue returns the store of messages in this schema.
func (p *Postgres) Queue() queue.Store { return postgresQueue{p} }

// Changes reports changes made by other processes.
func (q postgresQueue) Changes() <-chan queue.Change { return q.p.listener.changes }

// queueMessage adds the statement that stores a message to a batch.
func (p *Postgres) queueMessage(b *pgx.Batch, m *queue.Message, now int64) {
	b.Queue(p.sql(pgPublish), m.ID, m.Project, m.Deployment, m.Topic, m.Run, m.Step, m.Key, m.ContentType, m.CreatedAt, m.Due, notNil(m.Body), now, m.Priority)
}

// Write stores a batch. While the database does not answer it retries, like
// Postgres.Commit.
func (q postgresQueue) Write(ctx context.Context, b *queue.Batch) error {
	give := time.Now().Add(q.p.o.Patience)
	pause := 5 * time.Millisecond
	unknown := false // an earlier try may have stored the batch
	for {
		trying, cancel := context.WithTimeout(ctx, q.p.o.Patience)
		err := q.try(trying, b, unknown)
		silent := trying.Err() != nil && ctx.Err() == nil
		cancel()
		switch {
		case err == nil:
			q.p.notifier.queued(b)
			return nil
		case silent:
			return cay.Errorf(cay.Unavailable, "the database does not answer: %w", err)
		case isAborted(err):
		case isLost(err):
			unknown = unknown || !pgconn.SafeToRetry(err)
		default:
			return pgError(err)
		}
		if time.Now().After(give) {
			return pgError(err)
		}
		if wait(ctx, pause/2+rand.N(pause)) != nil {
			return pgError(err)
		}
		pause = min(2*pause, 500*time.Millisecond)
	}
}

func (q postgresQueue) try(ctx context.Context, b *queue.Batch, unknown bool) error {
	first, last := new(pgx.Batch), new(pgx.Batch)
	q.before(first, b, unknown)
	if len(b.Register) == 0 {
		q.after(first, b)
		if first.Len() == 0 {
			return nil
		}
		return q.p.pool.SendBatch(ctx, first).Close()
	}
	return pgx.BeginFunc(ctx, q.p.pool, func(tx pgx.Tx) error {
		if err := tx.SendBatch(ctx, first).Close(); err != nil {
			return err
		}
		for _, r := range b.Register {
			if err := q.register(ctx, tx, r, b.Now, unknown); err != nil {
				return err
			}
		}
		q.after(last, b)
		return tx.SendBatch(ctx, last).Close()
	})
}

// before adds the statements that precede the registrations.
func (q postgresQueue) before(batch *pgx.Batch, b *queue.Batch, unknown bool) {
	p := q.p
	for _, x := range b.Publish {
		m := &x.Message
		p.queueMessage(batch, m, b.Now)
		x.First = m.ID
		if m.Key != "" {
			// A separate statement sees a key that another process has stored meanwhile.
			batch.Queue(p.sql("SELECT message FROM cay.message_keys WHERE project = $1 AND topic = $2 AND key = $3"), m.Project, m.Topic, m.Key).
				QueryRow(func(row pgx.Row) error { return row.Scan(&x.First) })
		}
	}
	for _, x := range b.Acknowledge {
		x.Done = false
		batch.Queue(p.sql(`WITH d AS (DELETE FROM cay.messages WHERE id = $1 AND project = $2 AND receipt = $3 RETURNING project, topic, key),
			k AS (UPDATE cay.message_keys k SET until = $4 FROM d
				WHERE d.key <> '' AND k.project = d.project AND k.topic = d.topic AND k.key = d.key AND k.message = $1)
			SELECT EXISTS (SELECT FROM d)`), x.ID, x.Project, x.Receipt, b.Now+queue.KeyMemory.Milliseconds()).
			QueryRow(func(row pgx.Row) error { return row.Scan(&x.Done) })
		if unknown {
			batch.Queue(p.sql("SELECT EXISTS (SELECT FROM cay.messages WHERE id = $1)"), x.ID).QueryRow(func(row pgx.Row) error {
				var there bool
				err := row.Scan(&there)
				x.Done = x.Done || !there // our first try deleted it
				return err
			})
		}
	}
	for _, x := range b.Extend {
		x.Done = false
		until := int64(0)
		if x.Lease {
			until = x.Due
		}
		batch.Queue(p.sql("UPDATE cay.messages SET due = $1, lease_until = $2, last_error = '' WHERE id = $3 AND project = $4 AND receipt = $5"),
			x.Due, until, x.ID, x.Project, x.Receipt).
			Exec(func(tag pgconn.CommandTag) error { x.Done = tag.RowsAffected() > 0; return nil })
	}
	for _, x := range b.Settle {
		if x.Uncounted {
			batch.Queue(p.sql(`UPDATE cay.messages SET due = $1, lease_until = 0, attempt = attempt - 1, receipt = '', last_error = $4
				WHERE id = $2 AND receipt = $3 AND lease_until > 0`), x.Due, x.ID, x.Receipt, x.LastError)
		} else {
			batch.Queue(p.sql(`UPDATE cay.messages SET due = $1, lease_until = 0, last_error = $4
				WHERE id = $2 AND receipt = $3 AND lease_until > 0`), x.Due, x.ID, x.Receipt, x.LastError)
		}
		x.Next = 0
		batch.Queue(p.sql("SELECT due FROM cay.messages WHERE id = $1"), x.ID).Query(dueOf(func(_ string, due int64) { x.Next = due }, false))
	}
}

// dueOf reads rows with the due times of messages; ids tells whether the rows have ids
// too.
func dueOf(found func(id string, due int64), ids bool) func(rows pgx.Rows) error {
	return func(rows pgx.Rows) error {
		var id string
		var due int64
		to := []any{&due}
		if ids {
			to = []any{&id, &due}
		}
		_, err := pgx.ForEachRow(rows, to, func() error { found(id, due); return nil })
		return err
	}
}

// after adds the statements that follow the registrations.
func (q postgresQueue) after(batch *pgx.Batch, b *queue.Batch) {
	p := q.p
	for _, v := range b.Void {
		p.queueVoid(batch, v, b.Now)
	}
	for _, f := range b.Forget {
		if f.Run != "" {
			p.queueForget(batch, []string{f.Run}, f.Project)
		}
	}
	for _, h := range b.Hasten {
		p.queueHasten(batch, h, b.Now)
	}
	if len(b.Lease) == 0 {
		return
	}
	var ids, receipts []string
	var until []int64
	leases := make(map[string]*queue.Lease, len(b.Lease))
	for _, l := range b.Lease {
		l.Message, l.Next = nil, 0
		leases[l.ID] = l
		ids, receipts, until = append(ids, l.ID), append(receipts, l.Receipt), append(until, l.Until)
	}
	batch.Queue(p.sql(pgLease), ids, receipts, until, b.Now).Query(func(rows pgx.Rows) error {
		defer rows.Close()
		for rows.Next() {
			m := new(queue.Message)
			if err := rows.Scan(append(messageFields(m), &m.Body)...); err != nil {
				return err
			}
			leases[m.ID].Message = m
		}
		return rows.Err()
	})
	batch.Queue(p.sql("SELECT id, due FROM cay.messages WHERE id = ANY ($1)"), ids).
		Query(dueOf(func(id string, due int64) { leases[id].Next = due }, true))
}

func messageFields(m *queue.Message) []any {
	return []any{&m.ID, &m.Project, &m.Deployment, &m.Topic, &m.Run, &m.Step, &m.Key, &m.ContentType, &m.CreatedAt, &m.Due, &m.Attempt,
		&m.Receipt, &m.LeaseUntil, &m.LastError, &m.Priority}
}

func (p *Postgres) queueVoid(b *pgx.Batch, v *queue.Void, now int64) {
	if v.Until != 0 {
		b.Queue(p.sql(`UPDATE cay.messages SET due = $3, lease_until = $3
			WHERE project = $1 AND deployment = $2 AND due > $3 AND due <= $4 AND lease_until > 0`),
			v.Project, v.Deployment, v.Until, v.Until+time.Hour.Milliseconds())
		return
	}
	b.Queue(p.sql(`UPDATE cay.messages SET due = least(due, $3), lease_until = 0, last_error = '', receipt = ''
		WHERE project = $1 AND deployment = $2 AND (lease_until > 0 OR last_error <> '' AND receipt <> '')
			AND id <> ALL ($4::text[])`),
		v.Project, v.Deployment, now, append([]string{}, v.Except...)) // never NULL
}

// queueForget adds the statements that delete the messages of runs, and the keys of the
// messages. project "" matches any.
func (p *Postgres) queueForget(b *pgx.Batch, runs []string, project string) {
	b.Queue(p.sql(`DELETE FROM cay.message_keys k USING cay.messages m WHERE m.run = ANY ($1) AND ($2 = '' OR m.project = $2) AND m.key <> ''
		AND k.project = m.project AND k.topic = m.topic AND k.key = m.key AND k.message = m.id`), runs, project)
	b.Queue(p.sql(`DELETE FROM cay.messages WHERE run = ANY ($1) AND ($2 = '' OR project = $2)`), runs, project)
}

// queueHasten adds the statements that make the messages of a run due.
func (p *Postgres) queueHasten(b *pgx.Batch, h *queue.Hasten, now int64) {
	h.Entries, h.Leased = nil, 0
	if h.Run == "" {
		return
	}
	b.Queue(p.sql(`UPDATE cay.messages SET due = least(due, $3), priority = $4 WHERE project = $1 AND run = $2 AND lease_until = 0
		RETURNING id, deployment, due, octet_length(body)`), h.Project, h.Run, now, h.Priority).Query(func(rows pgx.Rows) error {
		e := queue.Entry{Project: h.Project, Run: h.Run, Priority: h.Priority}
		_, err := pgx.ForEachRow(rows, []any{&e.ID, &e.Deployment, &e.Due, &e.Size}, func() error {
			h.Entries = append(h.Entries, e)
			return nil
		})
		return err
	})
	b.Queue(p.sql("SELECT count(*) FROM cay.messages WHERE project = $1 AND run = $2 AND lease_until > 0"), h.Project, h.Run).
		QueryRow(func(row pgx.Row) error { return row.Scan(&h.Leased) })
}

const pgDeployment = "project, id, url, secret, created_at, seen_at, error, draining"

func deploymentFields(d *queue.Deployment) []any {
	return []any{&d.Project, &d.ID, &d.URL, &d.Secret, &d.CreatedAt, &d.SeenAt, &d.Error, &d.Draining}
}

func (q postgresQueue) register(ctx context.Context, tx pgx.Tx, r *queue.Register, now int64, unknown bool) error {
	d := r.Deployment
	old := new(queue.Deployment)
	// From here on the row exists and is locked.
	if r.Do == queue.RegisterApp {
		if _, err := tx.Exec(ctx, q.p.sql(`INSERT INTO cay.deployments (`+pgDeployment+`) VALUES ($1, $2, '', '', 0, $3, '', false) ON CONFLICT DO NOTHING`),
			d.Project, d.ID, now); err != nil {
			return err
		}
	}
	err := tx.QueryRow(ctx, q.p.sql("SELECT "+pgDeployment+" FROM cay.deployments WHERE project = $1 AND id = $2 FOR UPDATE"), d.Project, d.ID).
		Scan(deploymentFields(old)...)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		old = nil
	case err != nil:
		return err
	}
	row, put := queue.Registered(r.Do, old, d)
	stored := unknown && old != nil && r.Do == queue.RegisterApp && old.URL == row.URL && old.Secret == row.Secret
	if !stored { // if stored, the earlier try's answer holds
		r.Old, r.Void = old, r.Do == queue.RegisterApp && old != nil && old.URL == row.URL && old.Secret != row.Secret
	}
	b := new(pgx.Batch)
	if put {
		b.Queue(q.p.sql(`UPDATE cay.deployments SET url = $3, secret = $4, created_at = $5, seen_at = $6, error = $7, draining = $8
			WHERE project = $1 AND id = $2`), row.Project, row.ID, row.URL, row.Secret, row.CreatedAt, row.SeenAt, row.Error, row.Draining)
	}
	if r.Void {
		q.p.queueVoid(b, &queue.Void{Project: d.Project, Deployment: d.ID}, now)
	}
	r.Deployment = row
	return tx.SendBatch(ctx, b).Close()
}

func (q postgresQueue) Pending(ctx context.Context, project, deployment string, before int64, limit int) (entries []queue.Entry, rest queue.Rest, err error) {
	entries, rest.Urgent, err = q.pending(ctx, "priority > 0", project, deployment, before, limit)
	if err != nil {
		return nil, rest, err
	}
	others, other, err := q.pending(ctx, "priority = 0", project, deployment, before, limit-len(entries))
	rest.Other = other
	return append(entries, others...), rest, err
}

// pending returns the messages of a level, and when the earliest of the others is due.
func (q postgresQueue) pending(ctx context.Context, level, project, deployment string, before int64, limit int) (entries []queue.Entry, rest int64, err error) {
	// limit+1: the last row tells when the remaining messages are due.
	rows, err := q.p.pool.Query(ctx, q.p.sql(`SELECT id, run, due, lease_until, octet_length(body), priority FROM cay.messages
		WHERE project = $1 AND deployment = $2 AND `+level+` ORDER BY due LIMIT $3`), project, deployment, limit+1)
	if err != nil {
		return nil, 0, pgError(err)
	}
	defer rows.Close()
	rest = math.MaxInt64
	for rows.Next() {
		e := queue.Entry{Project: project, Deployment: deployment}
		if err := rows.Scan(&e.ID, &e.Run, &e.Due, &e.LeaseUntil, &e.Size, &e.Priority); err != nil {
			return nil, 0, pgError(err)
		}
		if e.Due >= before || len(entries) == limit {
			rest = e.Due
			break
		}
		entries = append(entries, e)
	}
	rows.Close()
	return entries, rest, pgError(rows.Err())
}

func (q postgresQueue) Entry(ctx context.Context, id string) (*queue.Entry, error) {
	e := &queue.Entry{ID: id}
	err := q.p.pool.QueryRow(ctx, q.p.sql("SELECT project, deployment, run, due, lease_until, octet_length(body), priority FROM cay.messages WHERE id = $1"), id).
		Scan(&e.Project, &e.Deployment, &e.Run, &e.Due, &e.LeaseUntil, &e.Size, &e.Priority)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return e, pgError(err)
}

func (q postgresQueue) Messages(ctx context.Context, project, run string, limit int) ([]queue.Message, error) {
	rows, err := q.p.pool.Query(ctx, q.p.sql(`SELECT id, project, deployment, topic, run, step, key, content_type, created_at, due, attempt,
		receipt, lease_until, last_error, priority FROM cay.messages WHERE project = $1 AND ($2 = '' OR run = $2) ORDER BY due LIMIT $3`),
		project, run, pageLimit(limit))
	if err != nil {
		return nil, pgError(err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (m queue.Message, err error) {
		err = row.Scan(messageFields(&m)...)
		return m, err
	})
	return list, pgError(err)
}

func (q postgresQueue) Deployments(ctx context.Context, project string) ([]queue.Deployment, error) {
	return q.deployments(ctx, "SELECT "+pgDeployment+" FROM cay.deployments WHERE $1 = '' OR project = $1 ORDER BY created_at DESC, id DESC", project)
}

func (q postgresQueue) deployments(ctx context.Context, text string, args ...any) ([]queue.Deployment, error) {
	rows, err := q.p.pool.Query(ctx, q.p.sql(text), args...)
	if err != nil {
		return nil, pgError(err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d queue.Deployment, err error) {
		err = row.Scan(deploymentFields(&d)...)
		return d, err
	})
	return list, pgError(err)
}

func (q postgresQueue) Sweep(ctx context.Context, seen, now int64) ([]queue.Deployment, error) {
	if _, err := q.p.pool.Exec(ctx, q.p.sql("DELETE FROM cay.message_keys WHERE until > 0 AND until <= $1"), now); err != nil {
		return nil, pgError(err)
	}
	if _, err := q.p.pool.Exec(ctx, q.p.sql(`DELETE FROM cay.message_keys WHERE (project, topic, key) IN
		(SELECT project, topic, key FROM cay.message_keys WHERE until > 0 ORDER BY until DESC OFFSET $1)`), queue.MaxKeys); err != nil {
		return nil, pgError(err)
	}
	// If a message is published at this moment for a deployment unseen for so long, the
	// processes that know the deployment deliver it; Publish creates the deployment
	// again.
	return q.deployments(ctx, `DELETE FROM cay.deployments d WHERE seen_at < $1
		AND NOT EXISTS (SELECT FROM cay.messages m WHERE m.project = d.project AND m.deployment = d.id) RETURNING `+pgDeployment, seen)
}
