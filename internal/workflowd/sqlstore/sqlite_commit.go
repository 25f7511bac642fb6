package sqlstore

import (
	"context"
	"database/sql/driver"
	"errors"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
)

func newGroup() group { return group{said: make(map[string]*history.Run)} }

// Commit stores a group.
func (s *SQLite) Commit(ctx context.Context, g *workflowd.Group) error {
	if err := ctx.Err(); err != nil {
		return sqliteError("commit", err)
	}
	size, err := s.commit(g)
	if err != nil {
		return sqliteError("commit", err)
	}
	s.committed(size)
	return nil
}

// committed wakes the fold if the tail has reached its size, and waits if the fold lags
// behind.
func (s *SQLite) committed(size int) {
	switch {
	case size > tailSize:
		wake(s.large)
		s.folds.Lock()
		s.folds.Unlock() // only the wait matters
	case size > foldSize:
		wake(s.large)
	case size > 0:
		wake(s.dirty)
	}
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (s *SQLite) commit(g *workflowd.Group) (size int, err error) {
	s.write.Lock()
	defer s.write.Unlock()
	if err := s.acceptsLocked(); err != nil {
		return 0, err
	}
	if err := s.decide(g.Claims); err != nil {
		return 0, err
	}
	r := g.Settle()
	if err := s.verify(&r); err != nil {
		return 0, err
	}
	s.group.encode(s.cur, &r)
	switch {
	case len(r.Blobs) > 0 || len(r.Messages) > 0:
		err = s.w.tx(func() error { return s.insertLocked(&r) })
	case len(s.group.data) > 0:
		err = s.insertLocked(&r)
	default:
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return s.applyLocked(&r), nil
}

// verify refuses groups that could not be folded: events that do not follow the stored
// ones, or a key that another run has. An engine that commits such a group has a bug.
func (s *SQLite) verify(r *workflowd.Records) error {
	for i := range r.Runs {
		if err := s.verifyRun(&r.Runs[i]); err != nil {
			return err
		}
	}
	for i := range r.Logs {
		l := &r.Logs[i]
		if len(l.Events) == 0 {
			return cay.Errorf(cay.Internal, "a log of run %s without events", l.Run.ID)
		}
		first := l.Events[0].Slot
		for j := range l.Events {
			if l.Events[j].Slot != first+int64(j) {
				return cay.Errorf(cay.Internal, "events of run %s are not dense", l.Run.ID)
			}
		}
		if last := first + int64(len(l.Events)) - 1; last != l.Run.Events || last >= 1<<slotBits {
			return cay.Errorf(cay.Internal, "run %s has %d events, and slot %d", l.Run.ID, l.Run.Events, last)
		}
		there, err := s.slotLocked(l.Run.ID, first)
		if err != nil {
			return err
		}
		if there != first-1 {
			return cay.Errorf(cay.Internal, "slot %d of run %s cannot follow slot %d", first, l.Run.ID, there)
		}
		if err := s.verifyRun(l.Run); err != nil {
			return err
		}
	}
	return nil
}

// verifyRun refuses a new run whose key belongs to another run.
func (s *SQLite) verifyRun(r *history.Run) error {
	if r.Key == "" {
		return nil
	}
	if tr := s.cur.runs[r.ID]; tr != nil && tr.run.ID != "" {
		return nil
	}
	h, ok, err := s.holder(claimed{r.Project, r.Workflow, r.Key}, false)
	if err == nil && ok && h.run != r.ID {
		err = cay.Errorf(cay.Internal, "run %s has the key of run %s", r.ID, h.run)
	}
	return err
}

// slotLocked returns the last slot of a run. If the tails do not know the run and first
// is 1, the run is assumed to be new, as most such runs are.
func (s *SQLite) slotLocked(id string, first int64) (int64, error) {
	for _, t := range []*tail{s.cur, s.folding} {
		if t == nil {
			continue
		}
		if tr := t.runs[id]; tr != nil && tr.run.ID != "" {
			return tr.run.Events, nil
		}
	}
	if first == 1 {
		return 0, nil
	}
	var row [4]driver.Value
	ok, err := s.stmts.runGet.row(row[:], id)
	if err != nil || !ok {
		return 0, err
	}
	return row[1].(int64), nil
}

// acceptsLocked refuses groups when the store is closed, or when folds have failed for so
// long that too much is in memory.
func (s *SQLite) acceptsLocked() error {
	if s.closed {
		return errClosed
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.cur.size > tailMax && s.foldErr != nil {
		return s.foldErr
	}
	return nil
}

// insertLocked writes the encoded group to the journal.
func (s *SQLite) insertLocked(r *workflowd.Records) error {
	for i := range r.Blobs {
		if _, err := s.stmts.blobInsert.exec(r.Blobs[i].Run, r.Blobs[i].Name, r.Blobs[i].Data); err != nil {
			return err
		}
	}
	for i := range r.Messages {
		if _, err := s.stmts.messages.put(&r.Messages[i], r.Messages[i].CreatedAt); err != nil {
			return err
		}
	}
	if len(s.group.data) == 0 {
		return nil
	}
	_, err := s.stmts.journalInsert.exec(s.seq+1, s.group.data)
	return err
}

// applyLocked adds the written group to the tail.
func (s *SQLite) applyLocked(r *workflowd.Records) (size int) {
	if len(s.group.data) == 0 {
		return 0
	}
	s.seq++
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cur.put(r, &s.group)
	s.cur.seq = s.seq
	s.cur.size += len(s.group.data)
	return s.cur.size
}

// decide writes the holder of the name into each claim.
func (s *SQLite) decide(claims []*workflowd.Claim) error {
	if len(claims) == 0 {
		return nil
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	granted := make(map[claimed]holder, len(claims))
	for _, c := range claims {
		name := claimed{c.Project, c.Token, ""}
		if c.Token == "" {
			name = claimed{c.Project, c.Workflow, c.Key}
		}
		h, ok := granted[name]
		if !ok {
			var err error
			if h, ok, err = s.holder(name, c.Token != ""); err != nil {
				return err
			}
		}
		if ok {
			c.Owner, c.OwnerHook = h.run, h.hook
			continue
		}
		c.Owner, c.OwnerHook = "", ""
		granted[name] = holder{c.Run, c.Hook}
	}
	return nil
}

// holder returns the holder of a name. Callers hold write and mu.
func (s *SQLite) holder(name claimed, token bool) (holder, bool, error) {
	for _, t := range []*tail{s.cur, s.folding} {
		if t == nil {
			continue
		}
		names := t.keys
		if token {
			names = t.tokens
		}
		if h, ok := names[name]; ok {
			return h, !s.cur.lost(h) && !s.folding.lost(h), nil
		}
	}
	var dest [2]driver.Value
	if token {
		ok, err := s.stmts.tokenHolder.row(dest[:2], name.project, name.a)
		if err != nil || !ok {
			return holder{}, false, err
		}
		h := holder{dest[0].(string), dest[1].(string)}
		return h, !s.cur.lost(h) && !s.folding.lost(h), nil
	}
	ok, err := s.stmts.keyHolder.row(dest[:1], name.project, name.a, name.b)
	if err != nil || !ok {
		return holder{}, false, err
	}
	return holder{run: dest[0].(string)}, true, nil
}

// Transact runs f in a transaction that also stores g. No other commit runs meanwhile:
// SQLite has one writer. f must not wait for another commit.
func (s *SQLite) Transact(ctx context.Context, g *workflowd.Group, f func(tx workflowd.Tx) error) error {
	size, err := s.transact(ctx, g, f)
	if err != nil {
		return err
	}
	s.committed(size)
	return nil
}

func (s *SQLite) transact(ctx context.Context, g *workflowd.Group, f func(tx workflowd.Tx) error) (size int, err error) {
	s.write.Lock()
	defer s.write.Unlock() // f may panic
	if err := s.acceptsLocked(); err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, sqliteError("transact", err)
	}
	// The transaction does not get ctx: when ctx ended, database/sql would roll back from
	// another goroutine, while this one uses the connection. f's statements get ctx.
	tx, err := s.w.conn.BeginTx(context.WithoutCancel(ctx), nil)
	if err != nil {
		return 0, sqliteError("begin transaction", err)
	}
	committed := false
	defer func() {
		if !committed { // f panics, too
			_ = tx.Rollback()
		}
	}()
	if err := f(tx); err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, sqliteError("transact", err)
	}
	// If a BEGIN succeeds, f has ended the transaction by itself.
	if _, err := s.w.begin.exec(); err == nil {
		_, err = s.w.rollback.exec()
		return 0, errors.Join(cay.Errorf(cay.Invalid, "the function has ended the transaction it was given"), err)
	}
	if err := s.decide(g.Claims); err != nil {
		return 0, sqliteError("transact", err)
	}
	r := g.Settle()
	if err := s.verify(&r); err != nil {
		return 0, err
	}
	s.group.encode(s.cur, &r)
	if err := s.insertLocked(&r); err != nil {
		return 0, sqliteError("transact", err)
	}
	if err := tx.Commit(); err != nil {
		return 0, sqliteError("transact", err)
	}
	committed = true
	return s.applyLocked(&r), nil
}

// notFound returns the error for a missing object of a kind.
func notFound(what, id string) error { return cay.Errorf(cay.NotFound, "%s %q not found", what, id) }
