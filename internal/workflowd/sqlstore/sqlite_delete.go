package sqlstore

import (
	"context"
	"database/sql/driver"
	"errors"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
)

// Delete removes ended runs.
func (s *SQLite) Delete(ctx context.Context, ids []string) error {
	return s.eachEnded(ctx, "delete", ids, func(n int64, r *history.Run) error {
		if _, err := s.stmts.segmentsDelete.exec(n<<slotBits, (n+1)<<slotBits); err != nil {
			return err
		}
		for _, st := range []*statement{
			s.stmts.attributesDelete, s.stmts.timersDelete, s.stmts.hooksDelete,
			s.stmts.chunksDelete, s.stmts.streamsDelete, s.stmts.runKill,
		} {
			if _, err := st.exec(n); err != nil {
				return err
			}
		}
		if _, err := s.stmts.blobsDelete.exec(r.ID); err != nil {
			return err
		}
		return s.stmts.messages.forget(r.Project, r.ID)
	})
}

// Strip deletes the payloads of ended runs, also from the free pages of the file.
func (s *SQLite) Strip(ctx context.Context, ids []string) error {
	if err := s.beginErasing(ctx); err != nil {
		return sqliteError("strip", err)
	}
	err := s.eachEnded(ctx, "strip", ids, func(n int64, r *history.Run) error {
		if err := s.stripEvents(n); err != nil {
			return err
		}
		if err := s.stripChunks(n); err != nil {
			return err
		}
		if _, err := s.stmts.blobsDelete.exec(r.ID); err != nil {
			return err
		}
		r.ExpiresAt = 0
		_, err := s.stmts.runUpdate.exec(string(r.Status), r.UpdatedAt, nil, int64(0), int64(0), r.Events, history.AppendRun(nil, r), n)
		return err
	})
	// The payloads deleted before an error are erased, too.
	return errors.Join(err, sqliteError("erase", s.erase(ctx)))
}

func (s *SQLite) stripEvents(n int64) error {
	var row [2]driver.Value
	for place := n << slotBits; ; place++ {
		ok, err := s.stmts.segmentNext.row(row[:], place, (n+1)<<slotBits)
		if err != nil || !ok {
			return err
		}
		place = row[0].(int64)
		events, err := history.DecodeEvents(row[1].([]byte), nil)
		if err != nil {
			return err
		}
		for i := range events {
			events[i].Payload, events[i].Input = nil, nil
		}
		if _, err := s.stmts.segmentUpdate.exec(history.AppendEvents(nil, events), place); err != nil {
			return err
		}
	}
}

func (s *SQLite) stripChunks(n int64) error {
	var row [2]driver.Value
	for place := int64(0); ; place++ {
		ok, err := s.stmts.chunksNext.row(row[:], n, place)
		if err != nil || !ok {
			return err
		}
		place = row[0].(int64)
		var empty []history.Chunk
		for data := row[1].([]byte); len(data) > 0; {
			if _, data, err = takeChunks(data, 0, 1, nil); err != nil {
				return err
			}
			empty = append(empty, history.Chunk{})
		}
		if _, err := s.stmts.chunksUpdate.exec(appendChunks(nil, empty), place); err != nil {
			return err
		}
	}
}

// eachEnded calls f for each of the runs that exists, with many runs in a transaction,
// but few enough that commits do not wait for long. Errors: conflict if a run has not
// ended; the runs before it are done.
func (s *SQLite) eachEnded(ctx context.Context, doing string, ids []string, f func(n int64, r *history.Run) error) error {
	for len(ids) > 0 {
		if err := ctx.Err(); err != nil {
			return sqliteError(doing, err)
		}
		done, err := s.someEnded(ids, f)
		if err == nil && done == 0 {
			// The tables must hold all of a run: records that are still in a tail would
			// be written after the deletion. A run that has ended gets few new records.
			err = s.fold(ctx)
		}
		if err != nil {
			return sqliteError(doing, err)
		}
		ids = ids[done:]
	}
	return nil
}

// someEnded calls f for the first runs of ids, and returns their number. The number is 0
// if a tail has records of the first run.
func (s *SQLite) someEnded(ids []string, f func(n int64, r *history.Run) error) (done int, err error) {
	s.write.Lock()
	defer s.write.Unlock()
	if s.closed {
		return 0, errClosed
	}
	started := time.Now()
	err = s.w.tx(func() error {
		for done < len(ids) && s.tails(ids[done]) == [2]*tailRun{} && (done == 0 || time.Since(started) < foldSlice) {
			n, r, err := s.endedRun(ids[done])
			if err != nil {
				if done > 0 {
					return nil // the next call begins with this run and returns the error
				}
				return err
			}
			if r != nil {
				if err := f(n, r); err != nil {
					return err
				}
			}
			done++
		}
		return nil
	})
	return done, err
}

// endedRun reads an ended run from the tables, nil if the run does not exist.
func (s *SQLite) endedRun(id string) (n int64, _ *history.Run, err error) {
	var row [4]driver.Value
	ok, err := s.stmts.runGet.row(row[:], id)
	if err != nil || !ok {
		return 0, nil, err
	}
	r := new(history.Run)
	if _, err := history.DecodeRun(row[3].([]byte), r); err != nil {
		return 0, nil, err
	}
	if !r.Status.Terminal() {
		return 0, nil, cay.Errorf(cay.Conflict, "run %s has not ended: it is %s", id, r.Status)
	}
	return row[0].(int64), r, nil
}
