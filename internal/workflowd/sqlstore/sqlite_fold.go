package sqlstore

import (
	"context"
	"database/sql/driver"
	"fmt"
	"maps"
	"os"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
)

const (
	// slotBits and indexBits are how many bits of a place hold the position in a run or
	// stream.
	slotBits  = 24
	indexBits = 31
	// foldSlice bounds how long a fold keeps commits waiting.
	foldSlice = 2 * time.Millisecond
)

// sqliteStatements are the prepared statements of the writer.
type sqliteStatements struct {
	journalInsert, journalNext, journalDelete            *statement
	tokenHolder, keyHolder                               *statement
	blobInsert                                           *statement
	runGet, runInsert, runUpdate                         *statement
	segmentInsert                                        *statement
	attributesDelete, attributeInsert                    *statement
	timerSet, timerDelete, timersDelete                  *statement
	hookInsert, hookDelete, hooksDelete                  *statement
	streamGet, streamInsert, streamUpdate, chunksInsert  *statement
	segmentsDelete, chunksDelete, streamsDelete, runKill *statement
	segmentNext, segmentUpdate, chunksNext, chunksUpdate *statement
	blobsDelete                                          *statement
	schedulePut, scheduleDelete, limitPut, limitDelete   *statement

	messages messageStatements
}

func (s *sqliteStatements) prepare(w *writer) error {
	for st, text := range map[**statement]string{
		&s.journalInsert: `INSERT INTO workflow_journal (seq, data) VALUES (?, ?)`,
		&s.journalNext:   `SELECT seq, data FROM workflow_journal WHERE seq > ? ORDER BY seq LIMIT 1`,
		&s.journalDelete: `DELETE FROM workflow_journal WHERE seq <= ?`,
		&s.tokenHolder: `SELECT r.id, h.id FROM workflow_hooks h JOIN workflow_runs r ON r.n = h.run
			WHERE h.project = ? AND h.token = ?`,
		&s.keyHolder:  `SELECT id FROM workflow_runs WHERE project = ? AND workflow = ? AND key = ?`,
		&s.blobInsert: `INSERT OR IGNORE INTO workflow_blobs (run, name, data) VALUES (?, ?, ?)`,

		&s.runGet: `SELECT n, events, asleep, record FROM workflow_runs WHERE id = ?`,
		&s.runInsert: `INSERT INTO workflow_runs (id, project, workflow, status, key, parent, created_at, updated_at,
			expires_at, asleep, awake, events, record, first) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		&s.runUpdate: `UPDATE workflow_runs SET status = ?, updated_at = ?, expires_at = ?, asleep = ?, awake = ?,
			events = ?, record = ? WHERE n = ?`,
		&s.segmentInsert:    `INSERT INTO workflow_segments (place, events) VALUES (?, ?)`,
		&s.attributesDelete: `DELETE FROM workflow_attributes WHERE run = ?`,
		&s.attributeInsert:  `INSERT INTO workflow_attributes (run, name, value) VALUES (?, ?, ?)`,
		&s.timerSet:         `INSERT OR REPLACE INTO workflow_timers (run, id, at) VALUES (?, ?, ?)`,
		&s.timerDelete:      `DELETE FROM workflow_timers WHERE run = ? AND id = ?`,
		&s.timersDelete:     `DELETE FROM workflow_timers WHERE run = ?`,
		&s.hookInsert: `INSERT OR REPLACE INTO workflow_hooks (run, id, project, token, webhook, metadata, created_at)
			VALUES (?, ?, ?, ?, ?, ?, ?)`,
		&s.hookDelete:   `DELETE FROM workflow_hooks WHERE run = ? AND id = ?`,
		&s.hooksDelete:  `DELETE FROM workflow_hooks WHERE run = ?`,
		&s.streamGet:    `SELECT n, chunks, closed FROM workflow_streams WHERE run = ? AND name = ?`,
		&s.streamInsert: `INSERT INTO workflow_streams (run, name, chunks, closed) VALUES (?, ?, ?, ?)`,
		&s.streamUpdate: `UPDATE workflow_streams SET chunks = ?, closed = ? WHERE n = ?`,
		&s.chunksInsert: `INSERT INTO workflow_chunks (place, chunks) VALUES (?, ?)`,

		&s.segmentsDelete: `DELETE FROM workflow_segments WHERE place >= ? AND place < ?`,
		&s.chunksDelete: `DELETE FROM workflow_chunks WHERE place IN (SELECT c.place FROM workflow_streams s
			JOIN workflow_chunks c ON c.place >= s.n << 31 AND c.place < (s.n + 1) << 31 WHERE s.run = ?)`,
		&s.streamsDelete: `DELETE FROM workflow_streams WHERE run = ?`,
		&s.blobsDelete:   `DELETE FROM workflow_blobs WHERE run = ?`,
		&s.runKill:       `DELETE FROM workflow_runs WHERE n = ?`,

		&s.segmentNext:   `SELECT place, events FROM workflow_segments WHERE place >= ? AND place < ? ORDER BY place LIMIT 1`,
		&s.segmentUpdate: `UPDATE workflow_segments SET events = ? WHERE place = ?`,
		&s.chunksNext: `SELECT c.place, c.chunks FROM workflow_streams s
			JOIN workflow_chunks c ON c.place >= s.n << 31 AND c.place < (s.n + 1) << 31
			WHERE s.run = ? AND c.place >= ? ORDER BY c.place LIMIT 1`,
		&s.chunksUpdate: `UPDATE workflow_chunks SET chunks = ? WHERE place = ?`,

		&s.schedulePut:    `INSERT OR REPLACE INTO workflow_schedules (project, id, data) VALUES (?, ?, ?)`,
		&s.scheduleDelete: `DELETE FROM workflow_schedules WHERE project = ? AND id = ?`,
		&s.limitPut:       `INSERT OR REPLACE INTO workflow_limits (project, workflow, data) VALUES (?, ?, ?)`,
		&s.limitDelete:    `DELETE FROM workflow_limits WHERE project = ? AND workflow = ?`,
	} {
		var err error
		if *st, err = w.prepare(text); err != nil {
			return err
		}
	}
	return s.messages.prepare(w)
}

// run folds commits soon after they are made. unerased means that an earlier process may
// have ended before it erased stripped data.
func (s *SQLite) run(unerased bool) {
	defer close(s.done)
	if unerased {
		// The engine sees the same error when the next run is stripped.
		_ = s.erase(context.Background())
	}
	after := time.NewTimer(0)
	if !after.Stop() {
		<-after.C
	}
	for {
		select {
		case <-s.stop:
			return
		case <-s.dirty:
			after.Reset(foldAfter)
			select {
			case <-s.stop:
				return
			case <-s.large:
			case <-after.C:
			}
			after.Stop()
		case <-s.large:
		}
		// A failed fold is retried after the next commit, and by queries, which report
		// its error.
		if s.fold(context.Background()) == nil {
			s.checkpoint()
		}
	}
}

// fold writes everything committed before the call into the tables.
func (s *SQLite) fold(ctx context.Context) error {
	s.folds.Lock()
	defer s.folds.Unlock()
	// The loop runs twice if an earlier fold failed: once for the old tail, once for
	// newer commits.
	for {
		t, again := s.takeTail()
		if t == nil {
			return nil
		}
		if err := s.foldTail(ctx, t); err != nil {
			return sqliteError("fold", err)
		}
		s.write.Lock() // commits read the tail without mu
		s.mu.Lock()
		s.folding = nil
		s.mu.Unlock()
		s.write.Unlock()
		if !again {
			return nil
		}
	}
}

// takeTail returns the tail to fold, nil if the tail is empty; again means that an
// earlier fold of the tail failed. It takes the tail between two commits: a row of the
// journal depends on the content of the tail that it is applied to.
func (s *SQLite) takeTail() (t *tail, again bool) {
	s.write.Lock()
	defer s.write.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.folding != nil {
		return s.folding, true
	}
	if s.cur.seq == 0 {
		return nil, false
	}
	s.folding, s.cur = s.cur, newTail()
	return s.folding, false
}

// foldTail writes t in slices; commits go on between them.
func (s *SQLite) foldTail(ctx context.Context, t *tail) error {
	for next := 0; next < len(t.order); {
		if err := ctx.Err(); err != nil {
			return err
		}
		from := next
		s.write.Lock()
		started := time.Now()
		err := s.w.tx(func() error {
			for ; next < len(t.order) && (next == from || time.Since(started) < foldSlice); next++ {
				if tr := t.order[next]; !tr.folded {
					if err := s.foldRun(tr); err != nil {
						return fmt.Errorf("run %s: %w", tr.id, err)
					}
				}
			}
			return nil
		})
		s.write.Unlock()
		if err != nil {
			return err
		}
		for _, tr := range t.order[from:next] {
			tr.folded = true
		}
	}
	s.write.Lock()
	defer s.write.Unlock()
	_, err := s.stmts.journalDelete.exec(t.seq)
	return err
}

// foldRun writes a tail's records of one run. They may be in the tables already, if a
// process was killed before it could delete the rows of the journal.
func (s *SQLite) foldRun(tr *tailRun) error {
	var row [4]driver.Value
	exists, err := s.stmts.runGet.row(row[:], tr.id)
	if err != nil {
		return err
	}
	var (
		n, events, asleep int64
		was               history.Run
	)
	if exists {
		n, events, asleep = row[0].(int64), row[1].(int64), row[2].(int64)
		if _, err := history.DecodeRun(row[3].([]byte), &was); err != nil {
			return err
		}
	}
	if !exists && len(tr.events) == 0 {
		return nil // the run was deleted
	}
	r := tr.run
	if r.ID == "" {
		r = was
	}
	switch {
	case tr.sleep > 0:
		asleep = 1
	case tr.sleep < 0:
		asleep = 0
	}
	awake := int64(0)
	ended := r.Status.Terminal()
	if !ended && asleep == 0 && !r.Kind.External() && !(r.Status == history.Pending && r.NotBefore > 0) {
		awake = 1
	}
	record := history.AppendRun(nil, &r)
	if !exists {
		res, err := s.stmts.runInsert.exec(r.ID, r.Project, r.Workflow, string(r.Status), text(r.Key), text(r.Parent),
			r.CreatedAt, r.UpdatedAt, number(r.ExpiresAt), asleep, awake, r.Events, record, text(r.First))
		if err != nil {
			return err
		}
		if n, err = res.LastInsertId(); err != nil {
			return err
		}
	} else if _, err := s.stmts.runUpdate.exec(string(r.Status), r.UpdatedAt, number(r.ExpiresAt), asleep, awake,
		max(events, r.Events), record, n); err != nil {
		return err
	}
	if err := s.foldEvents(tr, n, events); err != nil {
		return err
	}
	if !maps.Equal(was.Attributes, r.Attributes) {
		if _, err := s.stmts.attributesDelete.exec(n); err != nil {
			return err
		}
		for k, v := range r.Attributes {
			if _, err := s.stmts.attributeInsert.exec(n, k, v); err != nil {
				return err
			}
		}
	}
	if err := s.foldOpen(tr, n, exists, ended); err != nil {
		return err
	}
	for name, stream := range tr.streams {
		if err := s.foldStream(n, name, stream); err != nil {
			return fmt.Errorf("stream %q: %w", name, err)
		}
	}
	return nil
}

// foldEvents appends the events that the tables do not have yet.
func (s *SQLite) foldEvents(tr *tailRun, n, there int64) error {
	first, data := tr.first, tr.events
	for len(data) > 0 && first <= there {
		var e history.Event
		rest, err := history.DecodeEvent(data, &e)
		if err != nil {
			return err
		}
		data, first = rest, first+1
	}
	if len(data) == 0 {
		return nil
	}
	if first != there+1 {
		return fmt.Errorf("events from %d on are missing", there+1)
	}
	if tr.run.Events >= 1<<slotBits {
		return cay.Errorf(cay.TooLarge, "the log of run %s is too long", tr.id)
	}
	_, err := s.stmts.segmentInsert.exec(n<<slotBits|first, data)
	return err
}

// foldOpen writes timers and hooks. A run that has ended has none; for a run that is new
// to the tables there is nothing to delete.
func (s *SQLite) foldOpen(tr *tailRun, n int64, exists, ended bool) error {
	if ended {
		if !exists {
			return nil
		}
		if _, err := s.stmts.timersDelete.exec(n); err != nil {
			return err
		}
		_, err := s.stmts.hooksDelete.exec(n)
		return err
	}
	for id, at := range tr.timers {
		var err error
		if at > 0 {
			_, err = s.stmts.timerSet.exec(n, id, at)
		} else if exists {
			_, err = s.stmts.timerDelete.exec(n, id)
		}
		if err != nil {
			return err
		}
	}
	for _, id := range tr.hookIDs {
		var err error
		h := tr.hooks[id]
		if h != nil {
			_, err = s.stmts.hookInsert.exec(n, id, h.Project, h.Token, flag(h.Webhook), blob(h.Metadata), h.CreatedAt)
		} else if exists {
			_, err = s.stmts.hookDelete.exec(n, id)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// foldStream appends the chunks that the tables do not have yet.
func (s *SQLite) foldStream(run int64, name string, t *tailStream) error {
	var row [3]driver.Value
	exists, err := s.stmts.streamGet.row(row[:], run, name)
	if err != nil {
		return err
	}
	var n, there int64
	closed := t.closed
	if exists {
		n, there = row[0].(int64), row[1].(int64)
		closed = closed || row[2].(int64) != 0
	}
	chunks := t.chunks
	for len(chunks) > 0 && chunks[0].Index < there {
		chunks = chunks[1:]
	}
	if len(chunks) > 0 && chunks[0].Index != there {
		return fmt.Errorf("chunks from %d on are missing", there)
	}
	count := there + int64(len(chunks))
	if count >= 1<<indexBits {
		return cay.Errorf(cay.TooLarge, "the stream is too long")
	}
	if !exists {
		res, err := s.stmts.streamInsert.exec(run, name, count, flag(closed))
		if err != nil {
			return err
		}
		if n, err = res.LastInsertId(); err != nil {
			return err
		}
	} else if _, err := s.stmts.streamUpdate.exec(count, flag(closed), n); err != nil {
		return err
	}
	if len(chunks) == 0 {
		return nil
	}
	_, err = s.stmts.chunksInsert.exec(n<<indexBits|there, appendChunks(nil, chunks))
	return err
}

// walSize is the size in bytes at which the WAL is written back; at walMax commits wait
// for the checkpoint.
const (
	walSize = 4 << 20
	walMax  = 64 << 20
)

// checkpoint writes the WAL back into the database when the WAL is large enough. The
// writer does not run checkpoints, because that would keep commits waiting.
func (s *SQLite) checkpoint() {
	size := func() int64 {
		fi, err := os.Stat(s.path + "-wal")
		if err != nil {
			return 0
		}
		return fi.Size()
	}
	if size() < walSize {
		return
	}
	// The error is ignored: if the disk is full, commits fail and report it.
	_, _ = s.back.ExecContext(context.Background(), `PRAGMA wal_checkpoint(PASSIVE)`)
	if size() < walMax {
		return
	}
	// Commits made during the checkpoint keep SQLite from restarting the WAL. Few frames
	// are left now, so commits can wait.
	s.write.Lock()
	defer s.write.Unlock()
	_, _ = s.back.ExecContext(context.Background(), `PRAGMA wal_checkpoint(PASSIVE)`)
}

func text(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func number(n int64) any {
	if n == 0 {
		return nil
	}
	return n
}

func blob(b []byte) any {
	if b == nil {
		return nil
	}
	return b
}

func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
