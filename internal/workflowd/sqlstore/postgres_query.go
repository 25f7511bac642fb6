package sqlstore

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
)

// The events of a run may be newer than the progress in its row.
const pgRunColumns = `r.id, r.project, r.workflow, r.status, r.build, r.key, r.run_group, r.priority, r.parent, r.root, r.previous, r.next, r.first,
	r.attributes, r.created_at, r.not_before, r.started_at, r.completed_at, greatest(r.updated_at, e.at), r.expires_at,
	r.cancel_requested, r.cancel_reason, r.error_code, r.recoveries, greatest(r.events, e.slot), r.kind, r.extra`

const pgProgress = ` LEFT JOIN LATERAL (SELECT slot, at FROM cay.events WHERE run = r.id ORDER BY slot DESC LIMIT 1) e ON true `

func pgScanRun(row pgx.CollectableRow) (r history.Run, err error) {
	err = row.Scan(&r.ID, &r.Project, &r.Workflow, &r.Status, &r.Build, &r.Key, &r.Group, &r.Priority, &r.Parent, &r.Root, &r.Previous, &r.Next, &r.First,
		&r.Attributes, &r.CreatedAt, &r.NotBefore, &r.StartedAt, &r.CompletedAt, &r.UpdatedAt, &r.ExpiresAt,
		&r.CancelRequested, &r.CancelReason, &r.ErrorCode, &r.Recoveries, &r.Events, &r.Kind, &r.Extra)
	return r, err
}

// Live runs that wait for more than timers and hooks, and the sleeping ones. The
// conditions must match the predicates of the indexes word for word.
const (
	pgAwake  = "status IN ('pending', 'running') AND NOT asleep AND (status = 'running' OR not_before = 0)"
	pgAsleep = "status IN ('pending', 'running') AND NOT (NOT asleep AND (status = 'running' OR not_before = 0))"
)

// collect runs a query and reads its rows with scan.
func collect[T any](ctx context.Context, p *Postgres, scan pgx.RowToFunc[T], query string, args ...any) ([]T, error) {
	rows, err := p.pool.Query(ctx, p.sql(query), args...)
	if err != nil {
		return nil, pgError(err)
	}
	all, err := pgx.CollectRows(rows, scan)
	return all, pgError(err)
}

// Run implements workflowd.Store.
func (p *Postgres) Run(ctx context.Context, id string) (*history.Run, error) {
	rows, err := p.pool.Query(ctx, p.sql("SELECT "+pgRunColumns+" FROM cay.runs r"+pgProgress+"WHERE r.id = $1"), id)
	if err != nil {
		return nil, pgError(err)
	}
	r, err := pgx.CollectExactlyOneRow(rows, pgScanRun)
	if err != nil {
		return nil, pgNotFound(err, "run", id)
	}
	return &r, nil
}

// Events implements workflowd.Store.
func (p *Postgres) Events(ctx context.Context, id string, from int64, limit int) ([]history.Event, error) {
	// slot is the number of the last event in a row: the first row that the query returns
	// contains event from, and limit rows contain at least limit events.
	query, args := "SELECT data FROM cay.events WHERE run = $1 AND slot >= $2 ORDER BY slot", []any{id, from}
	if limit > 0 {
		query, args = query+" LIMIT $3", append(args, limit)
	}
	rows, err := p.pool.Query(ctx, p.sql(query), args...)
	if err != nil {
		return nil, pgError(err)
	}
	var events []history.Event
	var data []byte
	_, err = pgx.ForEachRow(rows, []any{&data}, func() error {
		var err error
		events, err = history.DecodeEvents(data, events) // data is newly allocated for each row
		return err
	})
	if err != nil {
		return nil, pgError(err)
	}
	if len(events) == 0 {
		var there bool
		if err := p.pool.QueryRow(ctx, p.sql("SELECT EXISTS (SELECT FROM cay.runs WHERE id = $1)"), id).Scan(&there); err != nil {
			return nil, pgError(err)
		}
		if !there {
			return nil, notFound("run", id)
		}
	}
	skip := 0
	for skip < len(events) && events[skip].Slot < from {
		skip++
	}
	events = events[skip:]
	if limit > 0 && len(events) > limit {
		events = events[:limit:limit]
	}
	return events, nil
}

// Runs implements workflowd.Store.
func (p *Postgres) Runs(ctx context.Context, q history.Query) (*history.Page[history.Run], error) {
	with := new(condition)
	c, from, err := p.runCondition(ctx, q, with)
	if err != nil {
		return nil, err
	}
	c.and(with.sql(), with.args...)
	order, after := "DESC", "<"
	if q.Ascending {
		order, after = "ASC", ">"
	}
	if q.Cursor != "" {
		at, err := parseCursor(q.Cursor)
		if err != nil {
			return nil, err
		}
		c.and("(created_at, id) "+after+" (?, ?)", at.at, at.tie)
	}
	limit := pageLimit(q.Limit)
	tail := " ORDER BY created_at " + order + ", id " + order + " LIMIT " + strconv.Itoa(limit+1)
	statuses := slices.Sorted(slices.Values(q.Statuses))
	if q.Workflow != "" && len(statuses) == 0 {
		statuses = slices.Sorted(slices.Values(history.Statuses)) // the index of workflows has this order
	}
	some, args := "SELECT * FROM "+from.table+" r WHERE "+c.sql()+tail, slices.Concat(from.args, c.args)
	if len(statuses) > 0 {
		// The statement merges one list for each status, in the order of the status's
		// index.
		var lists []string
		args = slices.Clone(from.args)
		for _, status := range slices.Compact(statuses) {
			lists = append(lists, "(SELECT * FROM "+from.table+" r WHERE "+c.sql()+" AND status = ?"+tail+")")
			args = append(append(args, c.args...), string(status))
		}
		some = "SELECT * FROM (" + strings.Join(lists, " UNION ALL ") + ") u" + tail
	}
	runs, err := collect(ctx, p, pgScanRun, numbered(from.with+"SELECT "+pgRunColumns+" FROM ("+some+") r"+pgProgress+
		"ORDER BY r.created_at "+order+", r.id "+order), args...)
	if err != nil {
		return nil, err
	}
	return page(runs, limit, func(r *history.Run) cursor { return cursor{r.CreatedAt, r.ID} }), nil
}

// pgFrom is the table expression of a query; with is the statement's prefix, and has
// args.
type pgFrom struct {
	with, table string
	args        []any
}

// runCondition returns the condition that q sets on runs, without statuses and cursor,
// and the table to query. PostgreSQL has no statistics about attributes, so runCondition
// first finds out whether to select all runs that have the attributes or to scan all runs
// in order. In the second case the conditions on attributes are added to with.
func (p *Postgres) runCondition(ctx context.Context, q history.Query, with *condition) (*condition, pgFrom, error) {
	from := pgFrom{table: "cay.runs"}
	c := runCondition(q)
	if q.Project == "" {
		// Indexes begin with the project, so a query over all projects names the project
		// if there is only one.
		var first, last *string
		if err := p.pool.QueryRow(ctx, p.sql("SELECT (SELECT min(project) FROM cay.runs), (SELECT max(project) FROM cay.runs)")).Scan(&first, &last); err != nil {
			return nil, from, pgError(err)
		}
		if first != nil && *first == *last {
			c.and("project = ?", *first)
		}
	}
	m := runAttributes(q)
	if len(m)+len(q.HasAttributes) == 0 {
		return c, from, nil
	}
	// "??" is an operator's "?"; see numbered.
	found := new(condition)
	if len(m) > 0 {
		found.and("attributes @> ?::jsonb", m)
	}
	if len(q.HasAttributes) > 0 {
		found.and("attributes ??& ?::text[]", q.HasAttributes)
	}
	var n int
	if err := p.pool.QueryRow(ctx, p.sql(numbered("SELECT count(*) FROM (SELECT FROM cay.runs WHERE "+found.sql()+" LIMIT "+strconv.Itoa(fewRuns+1)+") u")), found.args...).Scan(&n); err != nil {
		return nil, from, pgError(err)
	}
	if n <= fewRuns {
		from = pgFrom{"WITH few AS MATERIALIZED (SELECT * FROM cay.runs WHERE " + found.sql() + ") ", "few", found.args}
		return c, from, nil
	}
	// These functions implement the operators. No index supports them.
	if len(m) > 0 {
		with.and("jsonb_contains(attributes, ?::jsonb)", m)
	}
	if len(q.HasAttributes) > 0 {
		with.and("jsonb_exists_all(attributes, ?::text[])", q.HasAttributes)
	}
	return c, from, nil
}

// numbered replaces "?" by PostgreSQL's placeholders. "??" becomes a question mark.
func numbered(statement string) string {
	var b strings.Builder
	n := 0
	for i, part := range strings.Split(strings.ReplaceAll(statement, "??", "\x00"), "?") {
		if i > 0 {
			n++
			fmt.Fprintf(&b, "$%d", n)
		}
		b.WriteString(part)
	}
	return strings.ReplaceAll(b.String(), "\x00", "?")
}

// page makes a page of at most limit items. items has one more if the list goes on.
func page[T any](items []T, limit int, at func(*T) cursor) *history.Page[T] {
	pg := &history.Page[T]{Items: items}
	if len(items) > limit {
		pg.Items = items[:limit]
		pg.Cursor = at(&items[limit-1]).String()
	}
	return pg
}

const pgHookColumns = "run, id, project, token, webhook, metadata, created_at"

func pgScanHook(row pgx.CollectableRow) (h history.Hook, err error) {
	err = row.Scan(&h.Run, &h.ID, &h.Project, &h.Token, &h.Webhook, &h.Metadata, &h.CreatedAt)
	return h, err
}

// Hook implements workflowd.Store.
func (p *Postgres) Hook(ctx context.Context, project, token string) (*history.Hook, error) {
	rows, err := p.pool.Query(ctx, p.sql("SELECT "+pgHookColumns+" FROM cay.hooks WHERE project = $1 AND token = $2"), project, token)
	if err != nil {
		return nil, pgError(err)
	}
	h, err := pgx.CollectExactlyOneRow(rows, pgScanHook)
	if err != nil {
		return nil, pgNotFound(err, "hook", token)
	}
	return &h, nil
}

// Hooks implements workflowd.Store. The oldest come first.
func (p *Postgres) Hooks(ctx context.Context, project, run, after string, limit int) (*history.Page[history.Hook], error) {
	c := new(condition)
	if project != "" {
		c.and("project = ?", project)
	}
	if run != "" {
		c.and("run = ?", run)
	}
	if after != "" {
		at, err := parseCursor(after)
		if err != nil {
			return nil, err
		}
		inRun, id, _ := strings.Cut(at.tie, " ")
		c.and("(created_at, run, id) > (?, ?, ?)", at.at, inRun, id)
	}
	limit = pageLimit(limit)
	hooks, err := collect(ctx, p, pgScanHook, "SELECT "+pgHookColumns+" FROM cay.hooks WHERE "+numbered(c.sql())+
		" ORDER BY created_at, run, id LIMIT "+strconv.Itoa(limit+1), c.args...)
	if err != nil {
		return nil, err
	}
	return page(hooks, limit, func(h *history.Hook) cursor { return cursor{h.CreatedAt, h.Run + " " + h.ID} }), nil
}

// Chunks implements workflowd.Store.
func (p *Postgres) Chunks(ctx context.Context, run, stream string, from int64, limit int) ([]history.Chunk, history.StreamInfo, error) {
	info := history.StreamInfo{Name: stream}
	var chunks []history.Chunk
	b := new(pgx.Batch)
	b.Queue(p.sql("SELECT chunks, closed FROM cay.streams WHERE run = $1 AND name = $2"), run, stream).QueryRow(func(row pgx.Row) error {
		err := row.Scan(&info.Chunks, &info.Closed)
		if err == pgx.ErrNoRows {
			return nil
		}
		return err
	})
	b.Queue(p.sql("SELECT index, data FROM cay.chunks WHERE run = $1 AND stream = $2 AND index >= $3 ORDER BY index LIMIT $4"),
		run, stream, max(from, 0), pageLimit(limit)).Query(func(rows pgx.Rows) (err error) {
		chunks, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (c history.Chunk, err error) {
			err = row.Scan(&c.Index, &c.Data)
			return c, err
		})
		return err
	})
	if err := p.pool.SendBatch(ctx, b).Close(); err != nil {
		return nil, info, pgError(err)
	}
	// Chunks that were stored between the two queries belong to the next answer.
	end := slices.IndexFunc(chunks, func(c history.Chunk) bool { return c.Index >= info.Chunks })
	if end >= 0 {
		chunks = chunks[:end]
	}
	return chunks, info, nil
}

// Streams implements workflowd.Store.
func (p *Postgres) Streams(ctx context.Context, run string) ([]history.StreamInfo, error) {
	return collect(ctx, p, func(row pgx.CollectableRow) (s history.StreamInfo, err error) {
		err = row.Scan(&s.Name, &s.Chunks, &s.Closed)
		return s, err
	}, "SELECT name, chunks, closed FROM cay.streams WHERE run = $1 ORDER BY name", run)
}

// StreamRun implements workflowd.Store.
func (p *Postgres) StreamRun(ctx context.Context, project, stream string) (string, error) {
	var run string
	err := p.pool.QueryRow(ctx, p.sql(`SELECT r.id FROM cay.streams s JOIN cay.runs r ON r.id = s.run
		WHERE s.name = $1 AND r.project = $2 ORDER BY r.created_at DESC, r.id DESC LIMIT 1`), stream, project).Scan(&run)
	if err != nil {
		return "", pgNotFound(err, "stream", stream)
	}
	return run, nil
}

// Blob implements workflowd.Store.
func (p *Postgres) Blob(ctx context.Context, run, name string) ([]byte, error) {
	var data []byte
	if err := p.pool.QueryRow(ctx, p.sql("SELECT data FROM cay.blobs WHERE run = $1 AND name = $2"), run, name).Scan(&data); err != nil {
		return nil, pgNotFound(err, "payload", name)
	}
	return data, nil
}

// Due implements workflowd.Store.
func (p *Postgres) Due(ctx context.Context, before time.Time, limit int) ([]workflowd.Due, error) {
	return collect(ctx, p, func(row pgx.CollectableRow) (d workflowd.Due, err error) {
		err = row.Scan(&d.Run, &d.ID, &d.At)
		return d, err
	}, `SELECT t.run, t.id, t.at FROM cay.timers t JOIN cay.runs r ON r.id = t.run
		WHERE t.at < $1 AND r.owner = $2 ORDER BY t.at, t.run, t.id LIMIT $3`, before.UnixMilli(), p.epoch.Load(), limit)
}

// Owned implements workflowd.Store.
func (p *Postgres) Owned(ctx context.Context, after string, limit int) ([]history.Run, error) {
	return collect(ctx, p, pgScanRun, "SELECT "+pgRunColumns+" FROM (SELECT * FROM cay.runs WHERE owner = $1 AND "+pgAwake+
		" AND kind = '' AND id > $2 ORDER BY id LIMIT $3) r"+pgProgress+"ORDER BY r.id", p.epoch.Load(), after, limit)
}

// Last implements workflowd.Store.
func (p *Postgres) Last(ctx context.Context, first string) (*history.Run, error) {
	rows, err := p.pool.Query(ctx, p.sql("SELECT "+pgRunColumns+" FROM (SELECT * FROM cay.runs WHERE first = $1 ORDER BY next = '' DESC, created_at DESC LIMIT 1) r"+pgProgress), first)
	if err != nil {
		return nil, pgError(err)
	}
	r, err := pgx.CollectExactlyOneRow(rows, pgScanRun)
	if err != nil {
		return nil, pgNotFound(err, "chain of run", first)
	}
	return &r, nil
}

// LiveChildren implements workflowd.Store.
func (p *Postgres) LiveChildren(ctx context.Context, first string) ([]history.Run, error) {
	return collect(ctx, p, pgScanRun, "SELECT "+pgRunColumns+` FROM (SELECT c.* FROM cay.runs f JOIN cay.runs c ON c.parent = f.id AND c.parent <> ''
		WHERE (f.first = $1 AND f.first <> '' OR f.id = $1) AND c.status IN ('pending', 'running')) r`+pgProgress, first)
}

// Expired implements workflowd.Store.
func (p *Postgres) Expired(ctx context.Context, now time.Time, limit int) ([]string, error) {
	return collect(ctx, p, pgx.RowTo[string], `SELECT id FROM cay.runs r WHERE expires_at <> 0 AND expires_at <= $1
		AND status IN ('completed', 'failed', 'cancelled')
		AND (expires_at < 0 OR NOT EXISTS (SELECT FROM cay.runs c WHERE c.first = r.id AND c.first <> '')
			AND (first = '' OR NOT EXISTS (SELECT FROM cay.runs c WHERE c.parent = r.id AND c.parent <> '' AND c.status IN ('pending', 'running'))))
		ORDER BY expires_at LIMIT $2`, now.UnixMilli(), limit)
}

// Delete implements workflowd.Store.
func (p *Postgres) Delete(ctx context.Context, ids []string) error {
	err := p.ofEnded(ctx, ids, func(tx pgx.Tx, ids []string) error {
		b := new(pgx.Batch)
		for _, table := range []string{"events", "timers", "hooks", "starts", "streams", "chunks", "blobs", "inbox"} {
			b.Queue(p.sql("DELETE FROM cay."+table+" WHERE run = ANY ($1)"), ids)
		}
		b.Queue(p.sql("DELETE FROM cay.runs WHERE id = ANY ($1)"), ids)
		p.queueForget(b, ids, "")
		return tx.SendBatch(ctx, b).Close()
	})
	if err == nil {
		p.notifier.deleted(ids)
	}
	return err
}

// ofEnded runs f in a transaction, with the runs of ids that exist. All must have ended;
// they cannot change until the transaction is over. Errors: conflict, a run has not
// ended.
func (p *Postgres) ofEnded(ctx context.Context, ids []string, f func(tx pgx.Tx, ids []string) error) error {
	return pgError(pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, p.sql("SELECT id, status FROM cay.runs WHERE id = ANY ($1) ORDER BY id FOR UPDATE"), ids)
		if err != nil {
			return err
		}
		var ended []string
		var id string
		var status history.Status
		_, err = pgx.ForEachRow(rows, []any{&id, &status}, func() error {
			if !status.Terminal() {
				return cay.Errorf(cay.Conflict, "run %s has not ended: it is %s", id, status)
			}
			ended = append(ended, id)
			return nil
		})
		if err != nil || len(ended) == 0 {
			return err
		}
		return f(tx, ended)
	}))
}

// Strip implements workflowd.Store.
func (p *Postgres) Strip(ctx context.Context, ids []string) error {
	return p.ofEnded(ctx, ids, func(tx pgx.Tx, ids []string) error {
		for _, id := range ids {
			if err := p.stripEvents(ctx, tx, id); err != nil {
				return err
			}
		}
		b := new(pgx.Batch)
		b.Queue(p.sql("UPDATE cay.chunks SET data = '' WHERE run = ANY ($1)"), ids)
		b.Queue(p.sql("DELETE FROM cay.blobs WHERE run = ANY ($1)"), ids)
		b.Queue(p.sql("UPDATE cay.runs SET expires_at = 0 WHERE id = ANY ($1)"), ids)
		return tx.SendBatch(ctx, b).Close()
	})
}

// stripEvents rewrites the events of a run without their payloads.
func (p *Postgres) stripEvents(ctx context.Context, tx pgx.Tx, id string) error {
	rows, err := tx.Query(ctx, p.sql("SELECT slot, data FROM cay.events WHERE run = $1"), id)
	if err != nil {
		return err
	}
	var slots []int64
	var stripped [][]byte
	var slot int64
	var data []byte
	_, err = pgx.ForEachRow(rows, []any{&slot, &data}, func() error {
		events, err := history.DecodeEvents(data, nil)
		if err != nil {
			return err
		}
		for i := range events {
			events[i].Payload, events[i].Input = nil, nil
		}
		slots, stripped = append(slots, slot), append(stripped, history.AppendEvents(nil, events))
		return nil
	})
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, p.sql(`UPDATE cay.events e SET data = n.data FROM unnest($2::bigint[], $3::bytea[]) n (slot, data)
		WHERE e.run = $1 AND e.slot = n.slot`), id, slots, stripped)
	return err
}

// Schedules implements workflowd.Store.
func (p *Postgres) Schedules(ctx context.Context, project string) ([]history.Schedule, error) {
	return collect(ctx, p, decodeRow[history.Schedule], "SELECT data FROM cay.schedules WHERE $1 IN ('', project) ORDER BY project, id", project)
}

// decodeRow reads a row whose only column is JSON.
func decodeRow[T any](row pgx.CollectableRow) (v T, err error) {
	var data []byte
	if err = row.Scan(&data); err == nil {
		err = json.Unmarshal(data, &v)
	}
	return v, err
}

// PutSchedule implements workflowd.Store.
func (p *Postgres) PutSchedule(ctx context.Context, s history.Schedule) error {
	_, err := p.pool.Exec(ctx, p.sql(`INSERT INTO cay.schedules (project, id, data) VALUES ($1, $2, $3)
		ON CONFLICT (project, id) DO UPDATE SET data = excluded.data`), s.Project, s.ID, s)
	if err == nil {
		p.notifier.changedSchedules()
	}
	return pgError(err)
}

// DeleteSchedule implements workflowd.Store.
func (p *Postgres) DeleteSchedule(ctx context.Context, project, id string) error {
	tag, err := p.pool.Exec(ctx, p.sql("DELETE FROM cay.schedules WHERE project = $1 AND id = $2"), project, id)
	if err == nil && tag.RowsAffected() == 0 {
		return notFound("schedule", id)
	}
	if err == nil {
		p.notifier.changedSchedules()
	}
	return pgError(err)
}

// Limits implements workflowd.Store.
func (p *Postgres) Limits(ctx context.Context, project string) ([]history.Limit, error) {
	return collect(ctx, p, decodeRow[history.Limit], "SELECT data FROM cay.limits WHERE $1 IN ('', project) ORDER BY project, workflow", project)
}

// PutLimit implements workflowd.Store.
func (p *Postgres) PutLimit(ctx context.Context, l history.Limit) error {
	_, err := p.pool.Exec(ctx, p.sql(`INSERT INTO cay.limits (project, workflow, data) VALUES ($1, $2, $3)
		ON CONFLICT (project, workflow) DO UPDATE SET data = excluded.data`), l.Project, l.Workflow, l)
	return pgError(err)
}

// DeleteLimit implements workflowd.Store.
func (p *Postgres) DeleteLimit(ctx context.Context, project, workflow string) error {
	tag, err := p.pool.Exec(ctx, p.sql("DELETE FROM cay.limits WHERE project = $1 AND workflow = $2"), project, workflow)
	if err == nil && tag.RowsAffected() == 0 {
		return notFound("limit of workflow", workflow)
	}
	return pgError(err)
}
