package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/internal/workflowd/queue"
)

// Commit implements workflowd.Store. A group without claims takes one round trip: all its
// statements are sent together, as one transaction.
func (p *Postgres) Commit(ctx context.Context, g *workflowd.Group) error {
	c := &commit{p: p, group: g}
	give := time.Now().Add(p.o.Patience)
	pause := 5 * time.Millisecond
	for {
		// A server that says nothing at all is given up like one that is not there.
		trying, cancel := context.WithTimeout(ctx, p.o.Patience)
		err := c.try(trying)
		silent := trying.Err() != nil && ctx.Err() == nil
		cancel()
		switch {
		case err == nil:
			p.notifier.changed(&c.records)
			return nil
		case silent:
			return cay.Errorf(cay.Unavailable, "the database does not answer: %w", err)
		case isAborted(err): // nothing was stored
		case isLost(err):
			c.unknown = c.unknown || c.settled && !pgconn.SafeToRetry(err)
		default:
			return pgError(err)
		}
		if time.Now().After(give) {
			return pgError(err)
		}
		p.o.Logger.Debug("commit is tried again", "error", err)
		if wait(ctx, pause/2+rand.N(pause)) != nil {
			return pgError(err)
		}
		pause = min(2*pause, 500*time.Millisecond)
	}
}

// wait waits for a time.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// commit is one group on its way.
type commit struct {
	p       *Postgres
	group   *workflowd.Group
	settled bool
	records workflowd.Records
	// rows are the records in table form.
	rows *rows
	// won tells which claims were granted when the group was settled.
	won []bool
	// unknown: an earlier try may have stored the group.
	unknown bool
}

func (c *commit) try(ctx context.Context) error {
	if c.unknown {
		if stored, err := c.stored(ctx); stored || err != nil {
			return err
		}
	}
	if len(c.group.Claims) == 0 {
		// Settle does not need a connection.
		c.settle()
		b := new(pgx.Batch)
		c.rows.queue(c.p, b, true)
		return c.p.pool.SendBatch(ctx, b).Close()
	}
	conn, err := c.p.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release() // closes it if it is in a transaction
	if err := c.claim(ctx, conn.Conn(), true); err != nil {
		return err
	}
	b := new(pgx.Batch)
	c.rows.queue(c.p, b, false)
	b.Queue("COMMIT")
	return conn.SendBatch(ctx, b).Close()
}

// claim decides the claims and settles the group. It begins a transaction if begin is
// set.
func (c *commit) claim(ctx context.Context, conn *pgx.Conn, begin bool) error {
	won, inserted, err := c.p.decide(ctx, conn, c.group.Claims, begin)
	if err != nil {
		return err
	}
	if c.settled && !slices.Equal(won, c.won) {
		// The records of the settled group depend on the first decision, so a different
		// decision fails the commit.
		return cay.Errorf(cay.Unavailable, "a name was taken by another run while the database did not answer")
	}
	c.won = won
	c.settle()
	c.rows.unclaim(c.group.Claims, inserted)
	return nil
}

func (c *commit) settle() {
	if c.settled {
		return
	}
	c.settled = true
	if c.group.Settle != nil {
		c.records = c.group.Settle()
	}
	c.rows = newRows(&c.records)
}

// stored reports whether the group is in the database. It looks for a record that no
// other group has.
func (c *commit) stored(ctx context.Context) (bool, error) {
	r := c.rows
	var found bool
	switch {
	case len(r.eventRun) > 0:
		err := c.p.pool.QueryRow(ctx, c.p.sql("SELECT EXISTS (SELECT FROM cay.events WHERE run = $1 AND slot = $2)"),
			r.eventRun[0], r.eventSlot[0]).Scan(&found)
		return found, err
	case len(r.chunkRun) > 0:
		err := c.p.pool.QueryRow(ctx, c.p.sql("SELECT EXISTS (SELECT FROM cay.chunks WHERE run = $1 AND stream = $2 AND index = $3)"),
			r.chunkRun[0], r.chunkStream[0], r.chunkIndex[0]).Scan(&found)
		return found, err
	}
	return false, nil // all else may be stored twice
}

func (p *Postgres) fence(b *pgx.Batch) {
	b.Queue(p.sql("SELECT cay.fence($1)"), p.epoch.Load())
}

// decide decides claims: it writes the holder of the name into each claim, and returns
// which claims were granted, and which of the granted names are newly inserted.
//
// Rows of others are read and not locked, and our own are inserted in one order, so
// that groups that want each other's names do not wait for each other in a circle.
func (p *Postgres) decide(ctx context.Context, conn *pgx.Conn, claims []*workflowd.Claim, begin bool) (won, inserted []bool, err error) {
	won, inserted = make([]bool, len(claims)), make([]bool, len(claims))
	type holder struct{ run, hook string }
	holders := make(map[claimed]holder, len(claims))
	first := make(map[claimed]int, len(claims)) // index of the first claim of the name in the group
	var names []claimed
	for i, c := range claims {
		name := claimName(c)
		if _, ok := first[name]; !ok {
			first[name] = i
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(x, y claimed) int {
		return cmp.Or(cmp.Compare(x.project, y.project), cmp.Compare(x.a, y.a), cmp.Compare(x.b, y.b))
	})
	for fenced := false; len(names) > 0; fenced = true {
		var tokens, keys struct{ project, a, b, run, hook []string }
		for _, n := range names {
			c, to := claims[first[n]], &tokens
			if c.Token == "" {
				to = &keys
			}
			to.project, to.a, to.b = append(to.project, n.project), append(to.a, n.a), append(to.b, n.b)
			to.run, to.hook = append(to.run, c.Run), append(to.hook, c.Hook)
		}
		b := new(pgx.Batch)
		if !fenced {
			if begin {
				b.Queue("BEGIN")
			}
			p.fence(b)
		}
		took := func(rows pgx.Rows) error {
			var n claimed
			_, err := pgx.ForEachRow(rows, []any{&n.project, &n.a, &n.b}, func() error {
				inserted[first[n]] = true
				return nil
			})
			return err
		}
		have := func(rows pgx.Rows) error {
			var n claimed
			var h holder
			_, err := pgx.ForEachRow(rows, []any{&n.project, &n.a, &n.b, &h.run, &h.hook}, func() error {
				holders[n] = h
				return nil
			})
			return err
		}
		if len(tokens.a) > 0 {
			b.Queue(p.sql(`INSERT INTO cay.hooks (project, token, run, id)
				SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[])
				ON CONFLICT DO NOTHING RETURNING project, token, ''`),
				tokens.project, tokens.a, tokens.run, tokens.hook).Query(took)
			b.Queue(p.sql(`SELECT h.project, h.token, '', h.run, h.id FROM cay.hooks h
				JOIN unnest($1::text[], $2::text[]) n (project, token) USING (project, token)`), tokens.project, tokens.a).Query(have)
		}
		if len(keys.a) > 0 {
			b.Queue(p.sql(`INSERT INTO cay.starts (project, workflow, key, run)
				SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[])
				ON CONFLICT DO NOTHING RETURNING project, workflow, key`), keys.project, keys.a, keys.b, keys.run).Query(took)
			b.Queue(p.sql(`SELECT s.project, s.workflow, s.key, s.run, '' FROM cay.starts s
				JOIN unnest($1::text[], $2::text[], $3::text[]) n (project, workflow, key) USING (project, workflow, key)`),
				keys.project, keys.a, keys.b).Query(have)
		}
		if err := conn.SendBatch(ctx, b).Close(); err != nil {
			return nil, nil, err
		}
		// A name that was taken at the insert and released before the select is inserted
		// again.
		names = slices.DeleteFunc(names, func(n claimed) bool { _, ok := holders[n]; return ok })
	}
	for i, c := range claims {
		h := holders[claimName(c)]
		won[i] = h.run == c.Run && h.hook == c.Hook
		c.Owner, c.OwnerHook = "", ""
		if !won[i] {
			c.Owner, c.OwnerHook = h.run, h.hook
		}
	}
	return won, inserted, nil
}

func claimName(c *workflowd.Claim) claimed {
	if c.Token != "" {
		return claimed{c.Project, c.Token, ""}
	}
	return claimed{c.Project, c.Workflow, c.Key}
}

// Transact implements workflowd.Store. It does not retry: f may have had effects outside
// the database.
func (p *Postgres) Transact(ctx context.Context, g *workflowd.Group, f func(tx workflowd.Tx) error) error {
	select {
	case p.steps <- struct{}{}:
		defer func() { <-p.steps }()
	case <-ctx.Done():
		return pgError(ctx.Err())
	}
	conn, err := p.db.Conn(ctx)
	if err != nil {
		return pgError(err)
	}
	defer conn.Close()
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return pgError(err)
	}
	defer tx.Rollback() // does nothing after the commit
	if err := f(tx); err != nil {
		return err
	}
	c := &commit{p: p, group: g}
	err = conn.Raw(func(driverConn any) error {
		conn := driverConn.(*stdlib.Conn).Conn()
		if status := conn.PgConn().TxStatus(); status != 'T' {
			return cay.Errorf(cay.Conflict, "the step has ended the transaction it was given, or a statement in it failed")
		}
		if err := c.claim(ctx, conn, false); err != nil {
			return err
		}
		b := new(pgx.Batch)
		c.rows.queue(p, b, len(g.Claims) == 0) // with claims, decide has taken the fence already
		return conn.SendBatch(ctx, b).Close()
	})
	if err == nil {
		err = tx.Commit()
	}
	if err != nil && isLost(err) && c.settled {
		// The connection may have been lost after the commit. If the server is
		// unreachable, or still executing the commit, the outcome stays unknown.
		if stored, e := c.stored(context.WithoutCancel(ctx)); e == nil && stored {
			err = nil
		}
	}
	if err != nil {
		if errors.Is(err, sql.ErrTxDone) {
			err = cay.Errorf(cay.Conflict, "the step has ended the transaction it was given: %w", err)
		}
		return pgError(err)
	}
	p.notifier.changed(&c.records)
	return nil
}

// rows are the records of a group by table and column, in the form of statement
// arguments.
type rows struct {
	runs []*history.Run

	eventRun           []string
	eventSlot, eventAt []int64
	eventData          [][]byte
	timers             map[entity]int64 // 0: it has ended
	hooks              map[entity]*history.Hook
	ended              []string // runs
	last               []string // runs in ended that no run continues
	chunkRun           []string
	chunkStream        []string
	chunkIndex         []int64
	chunkData          [][]byte
	streams            []stream
	blobs              []workflowd.Blob
	messages           []queue.Message
	asleep             map[string]bool
	inbox              []int64
	verdicts           []workflowd.Verdict
	postRun            []string
	postEvent          [][]byte
	dropToken, dropKey []claimed
}

// entity is a timer or hook of a run.
type entity struct{ run, id string }

type stream struct {
	run, name string
	chunks    int64
	closed    bool
}

// maxEventRow bounds the events of one row, beyond the first, in bytes: a reader that
// wants few events should not have to read many.
const maxEventRow = 256 << 10

func newRows(r *workflowd.Records) *rows {
	w := new(rows)
	runs := make(map[string]*history.Run, len(r.Runs)+len(r.Logs))
	for i := range r.Runs {
		runs[r.Runs[i].ID] = &r.Runs[i]
	}
	for i := range r.Logs {
		l := &r.Logs[i]
		if w.addEvents(l) {
			runs[l.Run.ID] = l.Run
		}
	}
	w.runs = slices.SortedFunc(maps.Values(runs), func(a, b *history.Run) int { return cmp.Compare(a.ID, b.ID) })
	for _, r := range w.runs {
		switch {
		case r.NotBefore == 0:
		case r.Status == history.Pending:
			w.setTimer(r.ID, "", r.NotBefore)
		default:
			w.setTimer(r.ID, "", 0)
		}
	}
	for i := range r.Chunks {
		c := &r.Chunks[i]
		s := stream{run: c.Run, name: c.Stream, closed: c.Close}
		for j := range c.Chunks {
			w.chunkRun, w.chunkStream = append(w.chunkRun, c.Run), append(w.chunkStream, c.Stream)
			w.chunkIndex, w.chunkData = append(w.chunkIndex, c.Chunks[j].Index), append(w.chunkData, notNil(c.Chunks[j].Data))
			s.chunks = max(s.chunks, c.Chunks[j].Index+1)
		}
		w.addStream(s)
	}
	w.blobs, w.messages = r.Blobs, r.Messages
	if len(r.Asleep)+len(r.Awake) > 0 {
		w.asleep = make(map[string]bool, len(r.Asleep)+len(r.Awake))
		for _, id := range r.Asleep {
			w.asleep[id] = true
		}
		for _, id := range r.Awake {
			w.asleep[id] = false
		}
	}
	w.inbox, w.verdicts = r.Inbox, r.Verdicts
	for i := range r.Post {
		w.postRun = append(w.postRun, r.Post[i].Run)
		w.postEvent = append(w.postEvent, history.AppendEvent(nil, &r.Post[i].Event))
	}
	return w
}

// notNil returns an empty slice for nil, because nil would be stored as NULL.
func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// addEvents adds events of a run, and reports whether they change the row of the run.
func (w *rows) addEvents(l *workflowd.Log) (changed bool) {
	var data []byte
	for i := range l.Events {
		e := &l.Events[i]
		data = history.AppendEvent(data, e)
		if last := i == len(l.Events)-1; last || len(data) >= maxEventRow {
			w.eventRun, w.eventSlot = append(w.eventRun, l.Run.ID), append(w.eventSlot, e.Slot)
			w.eventAt, w.eventData = append(w.eventAt, e.At), append(w.eventData, data)
			data = nil
		}
		switch e.Type {
		case history.RunCreated, history.RunStarted, history.AttrSet, history.CancelRequested:
			changed = true
		case history.RunCompleted, history.RunFailed, history.RunCancelled:
			changed = true
			w.ended = append(w.ended, l.Run.ID)
			if l.Run.Next == "" {
				w.last = append(w.last, l.Run.ID)
			}
		case history.HookCreated:
			w.setHook(l.Run.ID, e.ID, &history.Hook{
				Run: l.Run.ID, ID: e.ID, Project: l.Run.Project, Token: e.Token,
				Webhook: e.Webhook, Metadata: e.Payload, CreatedAt: e.At,
			})
		case history.HookDisposed:
			w.setHook(l.Run.ID, e.ID, nil)
		}
		if !l.Run.Kind.External() {
			w.addTimer(l.Run.ID, e)
		}
	}
	return changed
}

// addTimer records the change that an event makes to the timers of a run.
func (w *rows) addTimer(run string, e *history.Event) {
	switch e.Type {
	case history.WaitCreated:
		w.setTimer(run, e.ID, e.Until)
	case history.StepRetrying:
		w.setTimer(run, e.ID, max(e.Until, 1))
	case history.WaitCompleted:
		w.setTimer(run, e.ID, 0)
	case history.StepStarted, history.StepCompleted, history.StepFailed:
		if e.Attempt != 1 { // the first attempt has no timer
			w.setTimer(run, e.ID, 0)
		}
	}
}

// setTimer records when a timer of a run is due; 0 deletes the timer.
func (w *rows) setTimer(run, id string, at int64) {
	if w.timers == nil {
		w.timers = make(map[entity]int64)
	}
	w.timers[entity{run, id}] = at
}

func (w *rows) setHook(run, id string, h *history.Hook) {
	if w.hooks == nil {
		w.hooks = make(map[entity]*history.Hook)
	}
	w.hooks[entity{run, id}] = h
}

// addStream adds new chunks of a stream. It merges them by stream, because one statement
// may change a row only once.
func (w *rows) addStream(s stream) {
	i := slices.IndexFunc(w.streams, func(o stream) bool { return o.run == s.run && o.name == s.name })
	if i < 0 {
		w.streams = append(w.streams, s)
		return
	}
	w.streams[i].chunks = max(w.streams[i].chunks, s.chunks)
	w.streams[i].closed = w.streams[i].closed || s.closed
}

// unclaim releases names that this group inserted but does not use: their hook or run was
// not made.
func (w *rows) unclaim(claims []*workflowd.Claim, inserted []bool) {
	w.dropToken, w.dropKey = nil, nil
	for i, c := range claims {
		if !inserted[i] {
			continue
		}
		if c.Token != "" {
			if _, ok := w.hooks[entity{c.Run, c.Hook}]; !ok {
				w.dropToken = append(w.dropToken, claimName(c))
			}
		} else if !slices.ContainsFunc(w.runs, func(r *history.Run) bool { return r.ID == c.Run }) {
			w.dropKey = append(w.dropKey, claimName(c))
		}
	}
}

// queue adds the statements that store the rows, and the fence if the transaction has
// none yet. Most groups consist of events only: their statement includes the fence, which
// saves a fifth of the time. A single row of events or of runs is sent as plain values.
func (w *rows) queue(p *Postgres, b *pgx.Batch, fence bool) {
	switch {
	case len(w.eventRun) == 1 && fence:
		b.Queue(p.sql("INSERT INTO cay.events (run, slot, at, data) SELECT $1, $2::bigint, $3::bigint, $4::bytea FROM cay.fence($5)"),
			w.eventRun[0], w.eventSlot[0], w.eventAt[0], w.eventData[0], p.epoch.Load())
	case len(w.eventRun) > 0 && fence:
		b.Queue(p.sql(`INSERT INTO cay.events (run, slot, at, data)
			SELECT n.* FROM cay.fence($5), unnest($1::text[], $2::bigint[], $3::bigint[], $4::bytea[]) n`),
			w.eventRun, w.eventSlot, w.eventAt, w.eventData, p.epoch.Load())
	case len(w.eventRun) > 0:
		b.Queue(p.sql(`INSERT INTO cay.events (run, slot, at, data)
			SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bytea[])`),
			w.eventRun, w.eventSlot, w.eventAt, w.eventData)
	case fence:
		p.fence(b)
	}
	w.queueRuns(p, b)
	w.queueTimers(p, b)
	w.queueHooks(p, b)
	w.queueStreams(p, b)
	if len(w.asleep) > 0 {
		ids := slices.Sorted(maps.Keys(w.asleep))
		asleep := make([]bool, len(ids))
		for i, id := range ids {
			asleep[i] = w.asleep[id]
		}
		b.Queue(p.sql(`UPDATE cay.runs r SET asleep = n.asleep FROM unnest($1::text[], $2::boolean[]) n (id, asleep)
			WHERE r.id = n.id AND r.asleep <> n.asleep`), ids, asleep)
	}
	for i := range w.blobs {
		b.Queue(p.sql("INSERT INTO cay.blobs (run, name, data) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"),
			w.blobs[i].Run, w.blobs[i].Name, notNil(w.blobs[i].Data))
	}
	for i := range w.messages {
		p.queueMessage(b, &w.messages[i], w.messages[i].CreatedAt)
	}
	if len(w.inbox) > 0 {
		b.Queue(p.sql("DELETE FROM cay.inbox WHERE id = ANY ($1)"), w.inbox)
	}
	for _, v := range w.verdicts {
		b.Queue(p.sql("UPDATE cay.inbox SET verdict = $2, why = $3, event = '' WHERE id = $1"), v.ID, string(v.Code), v.Why)
	}
	// The ends come last, so that they also delete what this group gave to the run.
	w.queueEnds(p, b)
	if len(w.postRun) > 0 {
		p.queuePost(b, w.postRun, w.postEvent)
	}
}

// queueEnds adds the statements that delete the timers, hooks and messages of runs that
// have ended. Messages for a run that is continued stay: the owner forwards them when it
// reads its inbox.
//
// Most groups end at most one run. A statement for one run has a plan that the server keeps.
// It plans a statement for an array anew each time, because the plan depends on the
// array's length. No statement reads the table of runs: a plan that was made while the
// table was empty would read all of it.
func (w *rows) queueEnds(p *Postgres, b *pgx.Batch) {
	switch len(w.ended) {
	case 0:
	case 1:
		b.Queue(p.sql(`WITH t AS (DELETE FROM cay.timers WHERE run = $1), h AS (DELETE FROM cay.hooks WHERE run = $1)
			DELETE FROM cay.inbox WHERE run = $1 AND verdict IS NULL AND $2`), w.ended[0], len(w.last) > 0)
	default:
		b.Queue(p.sql("DELETE FROM cay.timers WHERE run = ANY ($1)"), w.ended)
		b.Queue(p.sql("DELETE FROM cay.hooks WHERE run = ANY ($1)"), w.ended)
		if len(w.last) > 0 {
			b.Queue(p.sql("DELETE FROM cay.inbox WHERE verdict IS NULL AND run = ANY ($1)"), w.last)
		}
	}
}

// The statements that store rows of runs begin with pgRunInsert and end with pgRunUpdate.
const (
	pgRunInsert = `INSERT INTO cay.runs AS r (id, project, workflow, status, build, key, run_group, parent, root, previous, next, cancel_reason, first,
			priority, created_at, not_before, started_at, completed_at, updated_at, expires_at, recoveries, events,
			attributes, cancel_requested, error_code, kind, extra, owner) `
	pgRunUpdate = ` ON CONFLICT (id) DO UPDATE SET status = excluded.status, build = excluded.build, key = excluded.key, run_group = excluded.run_group,
			priority = excluded.priority, parent = excluded.parent, root = excluded.root, previous = excluded.previous, next = excluded.next, first = excluded.first,
			attributes = excluded.attributes, created_at = excluded.created_at, not_before = excluded.not_before, started_at = excluded.started_at,
			completed_at = excluded.completed_at, updated_at = excluded.updated_at, expires_at = excluded.expires_at,
			cancel_requested = excluded.cancel_requested, cancel_reason = excluded.cancel_reason, error_code = excluded.error_code,
			recoveries = excluded.recoveries, events = excluded.events, kind = excluded.kind, extra = excluded.extra`
)

// queueRuns adds the statement that stores the rows of runs. A single row is sent as
// plain values, which both sides handle faster than 27 arrays of one element.
func (w *rows) queueRuns(p *Postgres, b *pgx.Batch) {
	n := len(w.runs)
	if n == 0 {
		return
	}
	if n == 1 {
		r := w.runs[0]
		attributes := r.Attributes
		if len(attributes) == 0 {
			attributes = nil
		}
		b.Queue(p.sql(pgRunInsert+`VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22,
			$23, $24, $25, $26, $27, $28)`+pgRunUpdate),
			r.ID, r.Project, r.Workflow, string(r.Status), r.Build, r.Key, r.Group, r.Parent, r.Root, r.Previous, r.Next, r.CancelReason, r.First,
			r.Priority, r.CreatedAt, r.NotBefore, r.StartedAt, r.CompletedAt, r.UpdatedAt, r.ExpiresAt, r.Recoveries, r.Events,
			attributes, r.CancelRequested, r.ErrorCode, string(r.Kind), r.Extra, p.epoch.Load())
		return
	}
	text := make([][]string, 13)
	for i := range text {
		text[i] = make([]string, n)
	}
	number := make([][]int64, 9)
	for i := range number {
		number[i] = make([]int64, n)
	}
	attributes, cancel := make([]map[string]string, n), make([]bool, n)
	for i, r := range w.runs {
		for j, s := range [...]string{r.ID, r.Project, r.Workflow, string(r.Status), r.Build, r.Key, r.Group, r.Parent, r.Root, r.Previous, r.Next, r.CancelReason, r.First} {
			text[j][i] = s
		}
		for j, v := range [...]int64{int64(r.Priority), r.CreatedAt, r.NotBefore, r.StartedAt, r.CompletedAt, r.UpdatedAt, r.ExpiresAt, int64(r.Recoveries), r.Events} {
			number[j][i] = v
		}
		if len(r.Attributes) > 0 {
			attributes[i] = r.Attributes
		}
		cancel[i] = r.CancelRequested
	}
	code, kind, extra := make([]string, n), make([]string, n), make([][]byte, n)
	for i, r := range w.runs {
		code[i], kind[i], extra[i] = r.ErrorCode, string(r.Kind), r.Extra
	}
	b.Queue(p.sql(pgRunInsert+`SELECT n.*, $28 FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
			$10::text[], $11::text[], $12::text[], $13::text[], $14::bigint[], $15::bigint[], $16::bigint[], $17::bigint[], $18::bigint[], $19::bigint[],
			$20::bigint[], $21::bigint[], $22::bigint[], $23::jsonb[], $24::boolean[], $25::text[], $26::text[], $27::bytea[]) n`+pgRunUpdate),
		text[0], text[1], text[2], text[3], text[4], text[5], text[6], text[7], text[8], text[9], text[10], text[11], text[12],
		number[0], number[1], number[2], number[3], number[4], number[5], number[6], number[7], number[8],
		attributes, cancel, code, kind, extra, p.epoch.Load())
}

func (w *rows) queueTimers(p *Postgres, b *pgx.Batch) {
	var run, id, goneRun, goneID []string
	var at []int64
	for t, when := range w.timers {
		if when == 0 {
			goneRun, goneID = append(goneRun, t.run), append(goneID, t.id)
		} else {
			run, id, at = append(run, t.run), append(id, t.id), append(at, when)
		}
	}
	if len(run) > 0 {
		b.Queue(p.sql(`INSERT INTO cay.timers (run, id, at) SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[])
			ON CONFLICT (run, id) DO UPDATE SET at = excluded.at`), run, id, at)
	}
	if len(goneRun) > 0 {
		b.Queue(p.sql("DELETE FROM cay.timers t USING unnest($1::text[], $2::text[]) n (run, id) WHERE t.run = n.run AND t.id = n.id"), goneRun, goneID)
	}
}

func (w *rows) queueHooks(p *Postgres, b *pgx.Batch) {
	var made []*history.Hook
	var goneRun, goneID []string
	for e, h := range w.hooks {
		if h == nil {
			goneRun, goneID = append(goneRun, e.run), append(goneID, e.id)
		} else {
			made = append(made, h)
		}
	}
	slices.SortFunc(made, func(x, y *history.Hook) int {
		return cmp.Or(cmp.Compare(x.Project, y.Project), cmp.Compare(x.Token, y.Token))
	})
	for _, h := range made { // there are few
		b.Queue(p.sql(`INSERT INTO cay.hooks AS h (project, token, run, id, webhook, metadata, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7)
			ON CONFLICT (project, token) DO UPDATE SET webhook = excluded.webhook, metadata = excluded.metadata, created_at = excluded.created_at,
			run = excluded.run, id = excluded.id
			WHERE h.run = excluded.run OR h.run = ANY ($8)`), h.Project, h.Token, h.Run, h.ID, h.Webhook, h.Metadata, h.CreatedAt, w.ended)
	}
	if len(goneRun) > 0 {
		b.Queue(p.sql("DELETE FROM cay.hooks h USING unnest($1::text[], $2::text[]) n (run, id) WHERE h.run = n.run AND h.id = n.id"), goneRun, goneID)
	}
	for _, n := range w.dropToken {
		b.Queue(p.sql("DELETE FROM cay.hooks WHERE project = $1 AND token = $2"), n.project, n.a)
	}
	for _, n := range w.dropKey {
		b.Queue(p.sql("DELETE FROM cay.starts WHERE project = $1 AND workflow = $2 AND key = $3"), n.project, n.a, n.b)
	}
}

func (w *rows) queueStreams(p *Postgres, b *pgx.Batch) {
	if len(w.chunkRun) > 0 {
		b.Queue(p.sql(`INSERT INTO cay.chunks (run, stream, index, data)
			SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bytea[])`), w.chunkRun, w.chunkStream, w.chunkIndex, w.chunkData)
	}
	if len(w.streams) == 0 {
		return
	}
	var run, name []string
	var chunks []int64
	var closed []bool
	for _, s := range w.streams {
		run, name = append(run, s.run), append(name, s.name)
		chunks, closed = append(chunks, s.chunks), append(closed, s.closed)
	}
	b.Queue(p.sql(`INSERT INTO cay.streams AS s (run, name, chunks, closed)
		SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::boolean[])
		ON CONFLICT (run, name) DO UPDATE SET chunks = greatest(s.chunks, excluded.chunks), closed = s.closed OR excluded.closed`),
		run, name, chunks, closed)
}
