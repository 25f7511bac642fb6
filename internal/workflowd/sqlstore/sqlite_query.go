package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
)

// sqliteQueries are the prepared statements of the most frequent queries.
type sqliteQueries struct{ run, events, hook *sql.Stmt }

func (q *sqliteQueries) prepare(ctx context.Context, d *sql.DB) error {
	for st, text := range map[**sql.Stmt]string{
		&q.run: `SELECT record FROM workflow_runs WHERE id = ?`,
		// The query returns segments from the one that contains the slot on, or one row
		// of NULL if there is none.
		&q.events: `SELECT s.events FROM workflow_runs r LEFT JOIN workflow_segments s
			ON s.place >= max(r.n << 24, coalesce((SELECT max(place) FROM workflow_segments WHERE place <= (r.n << 24 | ?2)), 0))
			AND s.place < (r.n + 1) << 24 WHERE r.id = ?1 ORDER BY s.place`,
		&q.hook: `SELECT ` + hookColumns + `h.project = ? AND h.token = ?`,
	} {
		var err error
		if *st, err = d.PrepareContext(ctx, text); err != nil {
			return err
		}
	}
	return nil
}

func (q *sqliteQueries) close() error {
	var errs []error
	for _, st := range []*sql.Stmt{q.run, q.events, q.hook} {
		if st != nil {
			errs = append(errs, st.Close())
		}
	}
	return errors.Join(errs...)
}

// tails returns the records of a run in the tails: first the older tail's, then the
// newer's. Either may be nil. Fields that commits change are copied.
func (s *SQLite) tails(id string) (runs [2]*tailRun) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for i, t := range []*tail{s.folding, s.cur} {
		if t == nil {
			continue
		}
		if tr := t.runs[id]; tr != nil {
			c := tailRun{id: id, run: tr.run, first: tr.first, events: tr.events}
			runs[i] = &c
		}
	}
	return runs
}

// Run returns a run.
func (s *SQLite) Run(ctx context.Context, id string) (*history.Run, error) {
	tails := s.tails(id)
	for _, tr := range []*tailRun{tails[1], tails[0]} {
		if tr != nil && tr.run.ID != "" {
			return &tr.run, nil
		}
	}
	var record []byte
	err := s.queries.run.QueryRowContext(ctx, id).Scan(&record)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, notFound("run", id)
	}
	if err != nil {
		return nil, sqliteError("read run", err)
	}
	r := new(history.Run)
	if _, err := history.DecodeRun(record, r); err != nil {
		return nil, err
	}
	return r, nil
}

// Events returns events of a run.
func (s *SQLite) Events(ctx context.Context, id string, from int64, limit int) ([]history.Event, error) {
	from = max(from, 1)
	// The tails are read first, so that records folded meanwhile are found twice instead
	// of never.
	tails := s.tails(id)
	known := false
	var events []history.Event
	full := func() bool { return limit > 0 && len(events) >= limit }
	add := func(data []byte) error {
		for len(data) > 0 && !full() {
			var e history.Event
			rest, err := history.DecodeEvent(data, &e)
			if err != nil {
				return err
			}
			if e.Slot == from+int64(len(events)) {
				events = append(events, e)
			}
			data = rest
		}
		return nil
	}
	if tails[0] == nil && tails[1] == nil || needsTable(tails, from) {
		rows, err := s.queries.events.QueryContext(ctx, id, min(from, 1<<slotBits-1))
		if err != nil {
			return nil, sqliteError("read events", err)
		}
		for rows.Next() && !full() {
			var data []byte
			known = true
			err := rows.Scan(&data)
			if err == nil {
				err = add(data)
			}
			if err != nil {
				return nil, errors.Join(sqliteError("read events", err), rows.Close())
			}
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			return nil, sqliteError("read events", err)
		}
	}
	for _, tr := range tails {
		if tr != nil {
			known = true
			if err := add(tr.events); err != nil {
				return nil, err
			}
		}
	}
	if !known {
		return nil, notFound("run", id)
	}
	return events, nil
}

// needsTable reports whether some events from a slot on are not in the tails.
func needsTable(tails [2]*tailRun, from int64) bool {
	for _, tr := range tails {
		if tr != nil && tr.events != nil {
			return from < tr.first
		}
	}
	return true
}

// query folds, and runs a statement over the tables. It calls each for each row.
func (s *SQLite) query(ctx context.Context, text string, args []any, each func(*sql.Rows) error) error {
	if err := s.fold(ctx); err != nil {
		return err
	}
	rows, err := s.read.QueryContext(ctx, text, args...)
	if err != nil {
		return sqliteError("query", err)
	}
	for rows.Next() {
		if err := each(rows); err != nil {
			return errors.Join(sqliteError("query", err), rows.Close())
		}
	}
	return sqliteError("query", errors.Join(rows.Err(), rows.Close()))
}

// Runs returns a page of runs.
func (s *SQLite) Runs(ctx context.Context, q history.Query) (*history.Page[history.Run], error) {
	if err := s.fold(ctx); err != nil {
		return nil, err
	}
	limit := pageLimit(q.Limit)
	text, args, err := s.selectRuns(ctx, q, limit+1)
	if err != nil {
		return nil, err
	}
	page := &history.Page[history.Run]{Items: []history.Run{}}
	var last cursor
	err = s.query(ctx, text, args, func(rows *sql.Rows) error {
		var n, at int64
		var record []byte
		if err := rows.Scan(&n, &at, &record); err != nil {
			return err
		}
		if len(page.Items) == limit {
			page.Cursor = last.String()
			return nil
		}
		last = cursor{at, strconv.FormatInt(n, 10)}
		page.Items = append(page.Items, history.Run{})
		_, err := history.DecodeRun(record, &page.Items[len(page.Items)-1])
		return err
	})
	if err != nil {
		return nil, err
	}
	return page, nil
}

// selectRuns makes the statement for a query: n, created_at and record of at most
// limit runs.
func (s *SQLite) selectRuns(ctx context.Context, q history.Query, limit int) (text string, args []any, err error) {
	c, err := s.runCondition(ctx, q)
	if err != nil {
		return "", nil, err
	}
	order, than := "DESC", "<"
	if q.Ascending {
		order, than = "ASC", ">"
	}
	if q.Cursor != "" {
		at, err := parseCursor(q.Cursor)
		if err != nil {
			return "", nil, err
		}
		n, err := strconv.ParseInt(at.tie, 10, 64)
		if err != nil {
			return "", nil, cay.Errorf(cay.Invalid, "the cursor is not one that a list has given")
		}
		c.and("(created_at, n) "+than+" (?, ?)", at.at, n)
	}
	few, err := s.whereAttributes(ctx, c, askedAttributes(q))
	if err != nil {
		return "", nil, err
	}
	statuses := slices.Sorted(slices.Values(q.Statuses))
	if q.Workflow != "" && len(statuses) == 0 {
		statuses = slices.Sorted(slices.Values(history.Statuses)) // the index of workflows has this order
	}
	where, status := c.sql(), " AND status = ?"
	if few || q.Key != "" || q.Parent != "" {
		// The selected runs are sorted.
		statuses, where, status = q.Statuses, unordered(c), " AND +status = ?"
	}
	sorted := " ORDER BY created_at " + order + ", n " + order + " LIMIT " + strconv.Itoa(limit)
	one := func(term string) string {
		return "SELECT n, created_at, record FROM workflow_runs WHERE " + where + term + sorted
	}
	if len(statuses) == 0 {
		return one(""), c.args, nil
	}
	// The statement merges one list for each status, in the order of the status's index.
	var lists []string
	for _, of := range slices.Compact(statuses) {
		lists = append(lists, "SELECT * FROM ("+one(status)+")")
		args = append(append(args, c.args...), string(of))
	}
	return strings.Join(lists, " UNION ALL ") + sorted, args, nil
}

// runCondition returns the condition that q sets on runs; the caller adds statuses and
// cursor. Indexes begin with the project, so a query over all projects names the project
// if there is only one.
func (s *SQLite) runCondition(ctx context.Context, q history.Query) (*condition, error) {
	c := runCondition(q)
	if q.Project != "" {
		return c, nil
	}
	var first, last sql.NullString
	if err := s.read.QueryRowContext(ctx, `SELECT (SELECT min(project) FROM workflow_runs), (SELECT max(project) FROM workflow_runs)`).Scan(&first, &last); err != nil {
		return nil, sqliteError("query", err)
	}
	if first == last {
		c.and("project = ?", first.String)
	}
	return c, nil
}

// fewRuns is the largest number of runs that is cheap to sort.
const fewRuns = 2000

// whereAttributes adds the conditions on attributes to c. It reports whether they select
// few runs.
func (s *SQLite) whereAttributes(ctx context.Context, c *condition, asked []attribute) (few bool, err error) {
	for _, a := range asked {
		of, args := a.condition()
		var n int
		err := s.read.QueryRowContext(ctx, `SELECT count(*) FROM (SELECT 1 FROM workflow_attributes WHERE `+of+` LIMIT `+strconv.Itoa(fewRuns+1)+`)`, args...).Scan(&n)
		if err != nil {
			return false, sqliteError("query", err)
		}
		if n <= fewRuns && !few {
			few = true
			c.and("n IN (SELECT run FROM workflow_attributes WHERE "+of+")", args...)
		} else {
			c.and("EXISTS (SELECT 1 FROM workflow_attributes WHERE run = n AND "+of+")", args...)
		}
	}
	return few, nil
}

const hookColumns = `h.n, r.id, h.id, h.project, h.token, h.webhook, h.metadata, h.created_at
	FROM workflow_hooks h JOIN workflow_runs r ON r.n = h.run WHERE `

func scanHook(rows *sql.Rows) (n int64, h history.Hook, err error) {
	err = rows.Scan(&n, &h.Run, &h.ID, &h.Project, &h.Token, &h.Webhook, &h.Metadata, &h.CreatedAt)
	return n, h, err
}

// Hook returns the live hook of a token.
func (s *SQLite) Hook(ctx context.Context, project, token string) (*history.Hook, error) {
	if h, ok := s.tailHook(project, token); ok {
		if h == nil {
			return nil, notFound("hook", token)
		}
		return h, nil
	}
	var found *history.Hook
	rows, err := s.queries.hook.QueryContext(ctx, project, token)
	if err != nil {
		return nil, sqliteError("read hook", err)
	}
	if rows.Next() {
		_, h, err := scanHook(rows)
		if err != nil {
			return nil, errors.Join(sqliteError("read hook", err), rows.Close())
		}
		found = &h
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return nil, sqliteError("read hook", err)
	}
	if found != nil {
		s.mu.RLock()
		held := holder{found.Run, found.ID}
		gone := s.cur.lost(held) || s.folding.lost(held)
		s.mu.RUnlock()
		if !gone {
			return found, nil
		}
	}
	// The holder may have lost the token to another run since the tails were read.
	if h, ok := s.tailHook(project, token); ok && h != nil {
		return h, nil
	}
	return nil, notFound("hook", token)
}

// tailHook returns the live hook of a token in the tails, nil if the tails know that the
// hook is gone. It reports false if the tails do not mention the token.
func (s *SQLite) tailHook(project, token string) (*history.Hook, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, t := range []*tail{s.cur, s.folding} {
		if t == nil {
			continue
		}
		if h, ok := t.tokens[claimed{project, token, ""}]; ok {
			if s.cur.lost(h) || s.folding.lost(h) {
				return nil, true
			}
			hook := *t.runs[h.run].hooks[h.hook]
			return &hook, true
		}
	}
	return nil, false
}

// Hooks returns a page of live hooks, in order of creation.
func (s *SQLite) Hooks(ctx context.Context, project, run, cur string, limit int) (*history.Page[history.Hook], error) {
	limit = pageLimit(limit)
	c := new(condition)
	if project != "" {
		c.and("h.project = ?", project)
	}
	if run != "" {
		c.and("h.run = (SELECT n FROM workflow_runs WHERE id = ?)", run)
	}
	if cur != "" {
		at, err := parseCursor(cur)
		if err != nil {
			return nil, err
		}
		c.and("h.n > ?", at.at)
	}
	page := &history.Page[history.Hook]{Items: []history.Hook{}}
	var last int64
	err := s.query(ctx, `SELECT `+hookColumns+c.sql()+` ORDER BY h.n LIMIT `+strconv.Itoa(limit+1), c.args, func(rows *sql.Rows) error {
		n, h, err := scanHook(rows)
		if err != nil {
			return err
		}
		if len(page.Items) == limit {
			page.Cursor = cursor{at: last}.String()
			return nil
		}
		last = n
		page.Items = append(page.Items, h)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return page, nil
}

// Chunks returns chunks of a stream.
func (s *SQLite) Chunks(ctx context.Context, run, stream string, from int64, limit int) ([]history.Chunk, history.StreamInfo, error) {
	from = max(from, 0)
	limit = pageLimit(limit)
	info := history.StreamInfo{Name: stream}
	var n int64
	err := s.query(ctx, `SELECT s.n, s.chunks, s.closed FROM workflow_runs r JOIN workflow_streams s ON s.run = r.n
		WHERE r.id = ? AND s.name = ?`, []any{run, stream}, func(rows *sql.Rows) error {
		return rows.Scan(&n, &info.Chunks, &info.Closed)
	})
	if err != nil || n == 0 || from >= info.Chunks {
		return nil, info, err
	}
	rows, err := s.read.QueryContext(ctx, `SELECT place, chunks FROM workflow_chunks WHERE place >=
		(SELECT max(place) FROM workflow_chunks WHERE place <= ?1) AND place < ?2 ORDER BY place`,
		n<<indexBits|from, n<<indexBits|info.Chunks)
	if err != nil {
		return nil, info, sqliteError("read chunks", err)
	}
	defer rows.Close()
	var chunks []history.Chunk
	for rows.Next() && len(chunks) < limit {
		var place int64
		var data []byte
		if err := rows.Scan(&place, &data); err != nil {
			return nil, info, sqliteError("read chunks", err)
		}
		for index := place & (1<<indexBits - 1); len(data) > 0 && len(chunks) < limit; index++ {
			var one []history.Chunk
			if one, data, err = takeChunks(data, index, 1, nil); err != nil {
				return nil, info, err
			}
			if index >= from {
				chunks = append(chunks, one...)
			}
		}
	}
	return chunks, info, sqliteError("read chunks", rows.Err())
}

// Streams returns the streams of a run.
func (s *SQLite) Streams(ctx context.Context, run string) ([]history.StreamInfo, error) {
	infos := []history.StreamInfo{}
	err := s.query(ctx, `SELECT s.name, s.chunks, s.closed FROM workflow_runs r JOIN workflow_streams s ON s.run = r.n
		WHERE r.id = ? ORDER BY s.name`, []any{run}, func(rows *sql.Rows) error {
		var i history.StreamInfo
		if err := rows.Scan(&i.Name, &i.Chunks, &i.Closed); err != nil {
			return err
		}
		infos = append(infos, i)
		return nil
	})
	return infos, err
}

// StreamRun returns the newest run of a project that has a stream.
func (s *SQLite) StreamRun(ctx context.Context, project, stream string) (string, error) {
	run := ""
	err := s.query(ctx, `SELECT r.id FROM workflow_streams s JOIN workflow_runs r ON r.n = s.run
		WHERE s.name = ? AND r.project = ? ORDER BY r.n DESC LIMIT 1`, []any{stream, project}, func(rows *sql.Rows) error {
		return rows.Scan(&run)
	})
	if err == nil && run == "" {
		err = notFound("stream", stream)
	}
	return run, err
}

// Blob returns a payload.
func (s *SQLite) Blob(ctx context.Context, run, name string) ([]byte, error) {
	var data []byte
	err := s.read.QueryRowContext(ctx, `SELECT data FROM workflow_blobs WHERE run = ? AND name = ?`, run, name).Scan(&data)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, notFound("payload", name)
	}
	return data, sqliteError("read payload", err)
}

// Due returns timers.
func (s *SQLite) Due(ctx context.Context, before time.Time, limit int) ([]workflowd.Due, error) {
	var due []workflowd.Due
	err := s.query(ctx, `SELECT r.id, t.id, t.at FROM workflow_timers t JOIN workflow_runs r ON r.n = t.run
		WHERE t.at < ? ORDER BY t.at LIMIT ?`, []any{before.UnixMilli(), limit}, func(rows *sql.Rows) error {
		var d workflowd.Due
		if err := rows.Scan(&d.Run, &d.ID, &d.At); err != nil {
			return err
		}
		due = append(due, d)
		return nil
	})
	return due, err
}

// Owned returns the runs to give to workers after a start.
func (s *SQLite) Owned(ctx context.Context, after string, limit int) ([]history.Run, error) {
	n := int64(0)
	if after != "" {
		if err := s.read.QueryRowContext(ctx, `SELECT n FROM workflow_runs WHERE id = ?`, after).Scan(&n); err != nil {
			if errors.Is(err, sql.ErrNoRows) {
				return nil, notFound("run", after)
			}
			return nil, sqliteError("read run", err)
		}
	}
	var runs []history.Run
	err := s.query(ctx, `SELECT record FROM workflow_runs WHERE awake = 1 AND n > ? ORDER BY n LIMIT ?`, []any{n, limit}, func(rows *sql.Rows) error {
		var record []byte
		if err := rows.Scan(&record); err != nil {
			return err
		}
		runs = append(runs, history.Run{})
		_, err := history.DecodeRun(record, &runs[len(runs)-1])
		return err
	})
	return runs, err
}

// Last returns the last run of a chain.
func (s *SQLite) Last(ctx context.Context, first string) (*history.Run, error) {
	var last *history.Run
	err := s.query(ctx, `SELECT record FROM workflow_runs WHERE first = ? ORDER BY created_at DESC, n DESC LIMIT 1`, []any{first}, func(rows *sql.Rows) error {
		var record []byte
		if err := rows.Scan(&record); err != nil {
			return err
		}
		last = new(history.Run)
		_, err := history.DecodeRun(record, last)
		return err
	})
	if err == nil && last == nil {
		err = notFound("chain of run", first)
	}
	return last, err
}

// LiveChildren returns the live runs that runs of a chain have started.
func (s *SQLite) LiveChildren(ctx context.Context, first string) ([]history.Run, error) {
	var children []history.Run
	err := s.query(ctx, `SELECT c.record FROM workflow_runs p JOIN workflow_runs c ON c.parent = p.id
		WHERE (p.first = ?1 OR p.id = ?1) AND c.status IN ('pending', 'running')`, []any{first}, func(rows *sql.Rows) error {
		var record []byte
		if err := rows.Scan(&record); err != nil {
			return err
		}
		children = append(children, history.Run{})
		_, err := history.DecodeRun(record, &children[len(children)-1])
		return err
	})
	return children, err
}

// Expired returns ended runs that are to be deleted.
func (s *SQLite) Expired(ctx context.Context, now time.Time, limit int) ([]string, error) {
	var ids []string
	err := s.query(ctx, `SELECT id FROM workflow_runs r WHERE expires_at IS NOT NULL AND expires_at <= ?
		AND status IN ('completed', 'failed', 'cancelled')
		AND (expires_at < 0 OR NOT EXISTS (SELECT 1 FROM workflow_runs c WHERE c.first = r.id)
			AND (first IS NULL OR NOT EXISTS (SELECT 1 FROM workflow_runs c WHERE c.parent = r.id AND c.status IN ('pending', 'running'))))
		ORDER BY expires_at LIMIT ?`, []any{now.UnixMilli(), limit}, func(rows *sql.Rows) error {
		var id string
		if err := rows.Scan(&id); err != nil {
			return err
		}
		ids = append(ids, id)
		return nil
	})
	return ids, err
}

// Schedules returns the schedules of a project, all of them for "".
func (s *SQLite) Schedules(ctx context.Context, project string) ([]history.Schedule, error) {
	return decodeRows[history.Schedule](ctx, s, "read schedules",
		`SELECT data FROM workflow_schedules WHERE ?1 = '' OR project = ?1 ORDER BY project, id`, project)
}

// decodeRows reads the rows of a query whose only column is JSON.
func decodeRows[T any](ctx context.Context, s *SQLite, what, query string, args ...any) ([]T, error) {
	rows, err := s.read.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, sqliteError(what, err)
	}
	defer rows.Close()
	list := []T{}
	for rows.Next() {
		var data []byte
		if err := rows.Scan(&data); err != nil {
			return nil, sqliteError(what, err)
		}
		var v T
		if err := json.Unmarshal(data, &v); err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, sqliteError(what, rows.Err())
}

// PutSchedule inserts or replaces a schedule.
func (s *SQLite) PutSchedule(_ context.Context, sch history.Schedule) error {
	return s.put("write schedule", s.stmts.schedulePut, sch.Project, sch.ID, sch)
}

// put stores a row whose third column is JSON.
func (s *SQLite) put(what string, st *statement, project, id string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	s.write.Lock()
	defer s.write.Unlock()
	if s.closed {
		return errClosed
	}
	_, err = st.exec(project, id, string(data))
	return sqliteError(what, err)
}

// DeleteSchedule removes a schedule.
func (s *SQLite) DeleteSchedule(_ context.Context, project, id string) error {
	return s.remove("schedule", s.stmts.scheduleDelete, project, id)
}

// remove deletes a row. Errors: not_found.
func (s *SQLite) remove(kind string, st *statement, project, id string) error {
	s.write.Lock()
	defer s.write.Unlock()
	if s.closed {
		return errClosed
	}
	r, err := st.exec(project, id)
	if err != nil {
		return sqliteError("delete "+kind, err)
	}
	if n, err := r.RowsAffected(); err != nil || n == 0 {
		return notFound(kind, id)
	}
	return nil
}

// Limits implements workflowd.Store.
func (s *SQLite) Limits(ctx context.Context, project string) ([]history.Limit, error) {
	return decodeRows[history.Limit](ctx, s, "read limits",
		`SELECT data FROM workflow_limits WHERE ?1 = '' OR project = ?1 ORDER BY project, workflow`, project)
}

// PutLimit implements workflowd.Store.
func (s *SQLite) PutLimit(_ context.Context, l history.Limit) error {
	return s.put("write limit", s.stmts.limitPut, l.Project, l.Workflow, l)
}

// DeleteLimit implements workflowd.Store.
func (s *SQLite) DeleteLimit(_ context.Context, project, workflow string) error {
	return s.remove("limit of workflow", s.stmts.limitDelete, project, workflow)
}
