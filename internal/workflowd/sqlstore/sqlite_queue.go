package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"math"
	"time"

	"github.com/cayhq/cay/internal/workflowd/queue"
)

// sqliteMessages are the tables of the queue. They are written directly, without the
// journal, because a message is changed only a few times before it is deleted. Bodies
// have their own table, so that a change of a message does not rewrite its body.
const sqliteMessages = `
CREATE TABLE IF NOT EXISTS workflow_messages (
	n INTEGER PRIMARY KEY,
	id TEXT NOT NULL UNIQUE,
	project TEXT NOT NULL,
	deployment TEXT NOT NULL,
	topic TEXT NOT NULL,
	run TEXT NOT NULL,
	step TEXT NOT NULL,
	key TEXT NOT NULL,
	content_type TEXT NOT NULL,
	created_at INTEGER NOT NULL,
	due INTEGER NOT NULL,
	attempt INTEGER NOT NULL,
	receipt TEXT NOT NULL,
	lease_until INTEGER NOT NULL, -- due, or 0 if it is not leased
	last_error TEXT NOT NULL,
	size INTEGER NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS workflow_messages_due ON workflow_messages (project, deployment, due);
CREATE INDEX IF NOT EXISTS workflow_messages_run ON workflow_messages (project, run);
CREATE TABLE IF NOT EXISTS workflow_message_bodies (n INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS workflow_message_keys (
	project TEXT NOT NULL,
	topic TEXT NOT NULL,
	key TEXT NOT NULL,
	message TEXT NOT NULL,
	until INTEGER NOT NULL, -- 0 while the message is pending
	PRIMARY KEY (project, topic, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS workflow_message_keys_until ON workflow_message_keys (until) WHERE until > 0;
CREATE TABLE IF NOT EXISTS workflow_deployments (
	project TEXT NOT NULL,
	id TEXT NOT NULL,
	url TEXT NOT NULL,
	secret TEXT NOT NULL,
	created_at INTEGER NOT NULL, -- 0: it has never registered
	seen_at INTEGER NOT NULL,
	error TEXT NOT NULL,
	draining INTEGER NOT NULL,
	PRIMARY KEY (project, id)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS workflow_limits (
	project TEXT NOT NULL, workflow TEXT NOT NULL, data TEXT NOT NULL, PRIMARY KEY (project, workflow)
) STRICT, WITHOUT ROWID;
`

// sqlitePriority adds a column that earlier releases do not have, and its index.
const sqlitePriority = `
ALTER TABLE workflow_messages ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;
CREATE INDEX workflow_messages_urgent ON workflow_messages (project, deployment, due) WHERE priority > 0;
`

// messageStatements are the writer's prepared statements for the queue.
type messageStatements struct {
	insert, body, deploymentKnown               *statement
	keyGet, keyPut, keyDone, keyDrop, keysTrim  *statement
	acknowledge, bodyDelete, extend             *statement
	settle, settleBack, dueGet                  *statement
	lease, bodyGet                              *statement
	deploymentGet, deploymentPut, void, voidOne *statement
	shorten, runNext                            *statement
	hasten, hastenOne, runLeased                *statement
}

const messageColumns = `id, project, deployment, topic, run, step, key, content_type, created_at, due, attempt, receipt, lease_until, last_error, priority`

func (s *messageStatements) prepare(w *writer) error {
	for st, text := range map[**statement]string{
		&s.insert: `INSERT OR IGNORE INTO workflow_messages (` + messageColumns + `, size)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, '', 0, '', ?, ?) RETURNING n`,
		&s.body: `INSERT INTO workflow_message_bodies (n, body) VALUES (?, ?)`,
		&s.deploymentKnown: `INSERT OR IGNORE INTO workflow_deployments (project, id, url, secret, created_at, seen_at, error, draining)
			VALUES (?, ?, '', '', 0, ?, '', 0)`,
		&s.keyGet:  `SELECT message FROM workflow_message_keys WHERE project = ? AND topic = ? AND key = ? AND (until = 0 OR until > ?)`,
		&s.keyPut:  `INSERT OR REPLACE INTO workflow_message_keys (project, topic, key, message, until) VALUES (?, ?, ?, ?, 0)`,
		&s.keyDone: `UPDATE workflow_message_keys SET until = ? WHERE project = ? AND topic = ? AND key = ? AND message = ?`,
		&s.keyDrop: `DELETE FROM workflow_message_keys WHERE project = ? AND topic = ? AND key = ? AND message = ?`,
		&s.keysTrim: `DELETE FROM workflow_message_keys WHERE (project, topic, key) IN
			(SELECT project, topic, key FROM workflow_message_keys WHERE until > 0 ORDER BY until DESC LIMIT -1 OFFSET ?)`,
		&s.acknowledge: `DELETE FROM workflow_messages WHERE id = ? AND project = ? AND receipt = ? RETURNING n, topic, key`,
		&s.bodyDelete:  `DELETE FROM workflow_message_bodies WHERE n = ?`,
		&s.extend:      `UPDATE workflow_messages SET due = ?, lease_until = ?, last_error = '' WHERE id = ? AND project = ? AND receipt = ? RETURNING n`,
		&s.settle: `UPDATE workflow_messages SET due = ?, lease_until = 0, last_error = ?
			WHERE id = ? AND receipt = ? AND lease_until > 0`,
		&s.settleBack: `UPDATE workflow_messages SET due = ?, lease_until = 0, attempt = attempt - 1, receipt = '', last_error = ?
			WHERE id = ? AND receipt = ? AND lease_until > 0`,
		&s.dueGet: `SELECT due FROM workflow_messages WHERE id = ?`,
		&s.lease: `UPDATE workflow_messages SET attempt = attempt + (receipt <> ?2), receipt = ?2, due = ?3, lease_until = ?3, last_error = ''
			WHERE id = ?1 AND (due <= ?4 OR receipt = ?2) RETURNING n, ` + messageColumns,
		&s.bodyGet:       `SELECT body FROM workflow_message_bodies WHERE n = ?`,
		&s.deploymentGet: `SELECT url, secret, created_at, seen_at, error, draining FROM workflow_deployments WHERE project = ? AND id = ?`,
		&s.deploymentPut: `INSERT OR REPLACE INTO workflow_deployments (project, id, url, secret, created_at, seen_at, error, draining)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
		&s.void: `SELECT id FROM workflow_messages WHERE project = ?1 AND deployment = ?2
			AND (lease_until > 0 OR last_error <> '' AND receipt <> '')`,
		&s.voidOne: `UPDATE workflow_messages SET due = min(due, ?), lease_until = 0, last_error = '', receipt = '' WHERE id = ?`,
		&s.shorten: `UPDATE workflow_messages SET due = ?3, lease_until = ?3
			WHERE project = ?1 AND deployment = ?2 AND due > ?3 AND due <= ?4 AND lease_until > 0`,
		&s.runNext: `DELETE FROM workflow_messages WHERE n = (SELECT n FROM workflow_messages WHERE project = ? AND run = ? LIMIT 1)
			RETURNING n, topic, key, id`,
		&s.hasten:    `SELECT id FROM workflow_messages WHERE project = ? AND run = ? AND lease_until = 0`,
		&s.hastenOne: `UPDATE workflow_messages SET due = min(due, ?), priority = ? WHERE id = ? RETURNING deployment, due, size`,
		&s.runLeased: `SELECT id FROM workflow_messages WHERE project = ? AND run = ? AND lease_until > 0`,
	} {
		var err error
		if *st, err = w.prepare(text); err != nil {
			return err
		}
	}
	return nil
}

// sqliteQueue implements queue.Store. The methods of SQLite implement workflowd.Store,
// which uses some of the same names.
type sqliteQueue struct{ s *SQLite }

var _ queue.Store = sqliteQueue{}

// Queue returns the store of messages in this database.
func (s *SQLite) Queue() queue.Store { return sqliteQueue{s} }

// Changes returns nil: no other process uses the database.
func (q sqliteQueue) Changes() <-chan queue.Change { return nil }

func (q sqliteQueue) Write(ctx context.Context, b *queue.Batch) error {
	s := q.s
	if err := ctx.Err(); err != nil {
		return sqliteError("write messages", err)
	}
	s.write.Lock()
	defer s.write.Unlock()
	if s.closed {
		return errClosed
	}
	err := s.w.tx(func() error { return s.stmts.messages.write(b) })
	wake(s.dirty) // for the checkpoint
	return sqliteError("write messages", err)
}

func (st *messageStatements) write(b *queue.Batch) error {
	for _, p := range b.Publish {
		var err error
		if p.First, err = st.put(&p.Message, b.Now); err != nil {
			return err
		}
	}
	for _, a := range b.Acknowledge {
		if err := st.remove(a, b.Now); err != nil {
			return err
		}
	}
	for _, x := range b.Extend {
		until := int64(0)
		if x.Lease {
			until = x.Due
		}
		var row [1]driver.Value
		var err error
		if x.Done, err = st.extend.row(row[:], x.Due, until, x.ID, x.Project, x.Receipt); err != nil {
			return err
		}
	}
	for _, x := range b.Settle {
		var err error
		if x.Uncounted {
			_, err = st.settleBack.exec(x.Due, x.LastError, x.ID, x.Receipt)
		} else {
			_, err = st.settle.exec(x.Due, x.LastError, x.ID, x.Receipt)
		}
		if err == nil {
			x.Next, err = st.due(x.ID)
		}
		if err != nil {
			return err
		}
	}
	for _, r := range b.Register {
		if err := st.register(r, b.Now); err != nil {
			return err
		}
	}
	for _, v := range b.Void {
		if err := st.voidAll(v, b.Now); err != nil {
			return err
		}
	}
	for _, f := range b.Forget {
		if err := st.forget(f.Project, f.Run); err != nil {
			return err
		}
	}
	for _, h := range b.Hasten {
		if err := st.hastenRun(h, b.Now); err != nil {
			return err
		}
	}
	for _, l := range b.Lease {
		if err := st.take(l, b.Now); err != nil {
			return err
		}
	}
	return nil
}

// put stores a message, unless its key is in use, and returns the id of the message that
// has the key.
func (st *messageStatements) put(m *queue.Message, now int64) (first string, err error) {
	if m.Key != "" {
		var row [1]driver.Value
		ok, err := st.keyGet.row(row[:], m.Project, m.Topic, m.Key, now)
		if err != nil {
			return "", err
		}
		if ok {
			return row[0].(string), nil
		}
		if _, err := st.keyPut.exec(m.Project, m.Topic, m.Key, m.ID); err != nil {
			return "", err
		}
	}
	var row [1]driver.Value
	ok, err := st.insert.row(row[:], m.ID, m.Project, m.Deployment, m.Topic, m.Run, m.Step, m.Key, m.ContentType,
		m.CreatedAt, m.Due, int64(m.Priority), int64(len(m.Body)))
	if err != nil || !ok {
		return m.ID, err
	}
	if _, err := st.body.exec(row[0].(int64), notNil(m.Body)); err != nil {
		return "", err
	}
	_, err = st.deploymentKnown.exec(m.Project, m.Deployment, now)
	return m.ID, err
}

func (st *messageStatements) remove(a *queue.Acknowledge, now int64) error {
	var row [3]driver.Value
	ok, err := st.acknowledge.row(row[:], a.ID, a.Project, a.Receipt)
	if err != nil || !ok {
		return err
	}
	a.Done = true
	if _, err := st.bodyDelete.exec(row[0].(int64)); err != nil {
		return err
	}
	if key := row[2].(string); key != "" {
		_, err = st.keyDone.exec(now+queue.KeyMemory.Milliseconds(), a.Project, row[1].(string), key, a.ID)
	}
	return err
}

// due returns when a message is due, 0 if it does not exist.
func (st *messageStatements) due(id string) (int64, error) {
	var row [1]driver.Value
	ok, err := st.dueGet.row(row[:], id)
	if err != nil || !ok {
		return 0, err
	}
	return row[0].(int64), nil
}

func (st *messageStatements) register(r *queue.Register, now int64) error {
	d := r.Deployment
	old, err := st.deployment(d.Project, d.ID)
	if err != nil {
		return err
	}
	row, put := queue.Registered(r.Do, old, d)
	r.Old, r.Void = old, false
	if put {
		_, err := st.deploymentPut.exec(row.Project, row.ID, row.URL, row.Secret, row.CreatedAt, row.SeenAt, row.Error, flag(row.Draining))
		if err != nil {
			return err
		}
	}
	r.Deployment = row
	if r.Do != queue.RegisterApp || old == nil || old.URL != row.URL || old.Secret == row.Secret {
		return nil
	}
	r.Void = true
	return st.voidAll(&queue.Void{Project: d.Project, Deployment: d.ID}, now)
}

func (st *messageStatements) deployment(project, id string) (*queue.Deployment, error) {
	var row [6]driver.Value
	ok, err := st.deploymentGet.row(row[:], project, id)
	if err != nil || !ok {
		return nil, err
	}
	return &queue.Deployment{
		Project: project, ID: id, URL: row[0].(string), Secret: row[1].(string), CreatedAt: row[2].(int64), SeenAt: row[3].(int64),
		Error: row[4].(string), Draining: row[5].(int64) != 0,
	}, nil
}

func (st *messageStatements) voidAll(v *queue.Void, now int64) error {
	if v.Until != 0 {
		_, err := st.shorten.exec(v.Project, v.Deployment, v.Until, v.Until+time.Hour.Milliseconds())
		return err
	}
	except := make(map[string]bool, len(v.Except))
	for _, id := range v.Except {
		except[id] = true
	}
	ids, err := st.void.texts(v.Project, v.Deployment)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if !except[id] {
			if _, err := st.voidOne.exec(now, id); err != nil {
				return err
			}
		}
	}
	return nil
}

// forget deletes the messages of a run, and the keys of the messages.
func (st *messageStatements) forget(project, run string) error {
	if run == "" {
		return nil
	}
	for {
		var row [4]driver.Value
		ok, err := st.runNext.row(row[:], project, run)
		if err != nil || !ok {
			return err
		}
		if _, err := st.bodyDelete.exec(row[0].(int64)); err != nil {
			return err
		}
		if key := row[2].(string); key != "" {
			if _, err := st.keyDrop.exec(project, row[1].(string), key, row[3].(string)); err != nil {
				return err
			}
		}
	}
}

func (st *messageStatements) hastenRun(h *queue.Hasten, now int64) error {
	h.Entries, h.Leased = nil, 0
	if h.Run == "" {
		return nil
	}
	ids, err := st.hasten.texts(h.Project, h.Run)
	if err != nil {
		return err
	}
	for _, id := range ids {
		var row [3]driver.Value
		if ok, err := st.hastenOne.row(row[:], now, int64(h.Priority), id); err != nil {
			return err
		} else if ok {
			h.Entries = append(h.Entries, queue.Entry{
				ID: id, Project: h.Project, Deployment: row[0].(string), Run: h.Run, Due: row[1].(int64), Size: int(row[2].(int64)),
				Priority: h.Priority,
			})
		}
	}
	leased, err := st.runLeased.texts(h.Project, h.Run)
	h.Leased = len(leased)
	return err
}

func (st *messageStatements) take(l *queue.Lease, now int64) error {
	var row [16]driver.Value
	ok, err := st.lease.row(row[:], l.ID, l.Receipt, l.Until, now)
	l.Message, l.Next = nil, 0
	if err != nil {
		return err
	}
	if !ok {
		l.Next, err = st.due(l.ID)
		return err
	}
	text := func(i int) string { return row[i].(string) }
	number := func(i int) int64 { return row[i].(int64) }
	m := &queue.Message{
		ID: text(1), Project: text(2), Deployment: text(3), Topic: text(4), Run: text(5), Step: text(6), Key: text(7), ContentType: text(8),
		CreatedAt: number(9), Due: number(10), Attempt: int(number(11)), Receipt: text(12), LeaseUntil: number(13), LastError: text(14),
		Priority: int(number(15)),
	}
	var body [1]driver.Value
	if _, err := st.bodyGet.row(body[:], row[0].(int64)); err != nil {
		return err
	}
	m.Body, _ = body[0].([]byte)
	l.Message = m
	return nil
}

func (q sqliteQueue) Pending(ctx context.Context, project, deployment string, before int64, limit int) (entries []queue.Entry, rest queue.Rest, err error) {
	entries, rest.Urgent, err = q.pending(ctx, "priority > 0", project, deployment, before, limit)
	if err != nil {
		return nil, rest, err
	}
	others, other, err := q.pending(ctx, "priority = 0", project, deployment, before, limit-len(entries))
	rest.Other = other
	return append(entries, others...), rest, err
}

// pending returns the messages of a level, and when the earliest of the others is due.
func (q sqliteQueue) pending(ctx context.Context, level, project, deployment string, before int64, limit int) (entries []queue.Entry, rest int64, err error) {
	// limit+1: the last row tells when the remaining messages are due.
	rows, err := q.s.read.QueryContext(ctx, `SELECT id, run, due, lease_until, size, priority FROM workflow_messages
		WHERE project = ? AND deployment = ? AND `+level+` ORDER BY due LIMIT ?`, project, deployment, limit+1)
	if err != nil {
		return nil, 0, sqliteError("read messages", err)
	}
	defer rows.Close()
	rest = math.MaxInt64
	for rows.Next() {
		e := queue.Entry{Project: project, Deployment: deployment}
		if err := rows.Scan(&e.ID, &e.Run, &e.Due, &e.LeaseUntil, &e.Size, &e.Priority); err != nil {
			return nil, 0, sqliteError("read messages", err)
		}
		if e.Due >= before || len(entries) == limit {
			rest = e.Due
			break
		}
		entries = append(entries, e)
	}
	return entries, rest, sqliteError("read messages", rows.Err())
}

func (q sqliteQueue) Entry(ctx context.Context, id string) (*queue.Entry, error) {
	e := &queue.Entry{ID: id}
	err := q.s.read.QueryRowContext(ctx, `SELECT project, deployment, run, due, lease_until, size, priority FROM workflow_messages WHERE id = ?`, id).
		Scan(&e.Project, &e.Deployment, &e.Run, &e.Due, &e.LeaseUntil, &e.Size, &e.Priority)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return e, sqliteError("read message", err)
}

func (q sqliteQueue) Messages(ctx context.Context, project, run string, limit int) ([]queue.Message, error) {
	c := new(condition)
	c.and("project = ?", project)
	if run != "" {
		c.and("run = ?", run)
	}
	rows, err := q.s.read.QueryContext(ctx, `SELECT `+messageColumns+` FROM workflow_messages WHERE `+c.sql()+` ORDER BY due LIMIT ?`,
		append(c.args, pageLimit(limit))...)
	if err != nil {
		return nil, sqliteError("list messages", err)
	}
	defer rows.Close()
	var list []queue.Message
	for rows.Next() {
		var m queue.Message
		if err := rows.Scan(&m.ID, &m.Project, &m.Deployment, &m.Topic, &m.Run, &m.Step, &m.Key, &m.ContentType,
			&m.CreatedAt, &m.Due, &m.Attempt, &m.Receipt, &m.LeaseUntil, &m.LastError, &m.Priority); err != nil {
			return nil, sqliteError("list messages", err)
		}
		list = append(list, m)
	}
	return list, sqliteError("list messages", rows.Err())
}

func (q sqliteQueue) Deployments(ctx context.Context, project string) ([]queue.Deployment, error) {
	return q.deployments(ctx, `SELECT project, id, url, secret, created_at, seen_at, error, draining FROM workflow_deployments
		WHERE ?1 = '' OR project = ?1 ORDER BY created_at DESC, id DESC`, project)
}

func (q sqliteQueue) deployments(ctx context.Context, text string, args ...any) ([]queue.Deployment, error) {
	rows, err := q.s.read.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, sqliteError("list deployments", err)
	}
	defer rows.Close()
	var list []queue.Deployment
	for rows.Next() {
		var d queue.Deployment
		if err := rows.Scan(&d.Project, &d.ID, &d.URL, &d.Secret, &d.CreatedAt, &d.SeenAt, &d.Error, &d.Draining); err != nil {
			return nil, sqliteError("list deployments", err)
		}
		list = append(list, d)
	}
	return list, sqliteError("list deployments", rows.Err())
}

func (q sqliteQueue) Sweep(ctx context.Context, seen, now int64) ([]queue.Deployment, error) {
	s := q.s
	s.write.Lock()
	defer s.write.Unlock()
	if s.closed {
		return nil, errClosed
	}
	// No other writer runs meanwhile, so the rows read here are the rows deleted.
	old, err := q.deployments(ctx, `SELECT project, id, url, secret, created_at, seen_at, error, draining FROM workflow_deployments d
		WHERE seen_at < ? AND NOT EXISTS (SELECT 1 FROM workflow_messages m WHERE m.project = d.project AND m.deployment = d.id)`, seen)
	if err != nil {
		return nil, err
	}
	err = s.w.tx(func() error {
		for _, d := range old {
			if _, err := s.w.conn.ExecContext(ctx, `DELETE FROM workflow_deployments WHERE project = ? AND id = ?`, d.Project, d.ID); err != nil {
				return err
			}
		}
		if _, err := s.w.conn.ExecContext(ctx, `DELETE FROM workflow_message_keys WHERE until > 0 AND until <= ?`, now); err != nil {
			return err
		}
		_, err := s.stmts.messages.keysTrim.exec(int64(queue.MaxKeys))
		return err
	})
	return old, sqliteError("remove deployments", err)
}
