package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// SQLite leaves deleted data in the free parts of its file and in its WAL. After the
// first Strip, a database overwrites whatever it deletes (secure_delete), which costs
// about as much as writing the data did. Databases without a Strip do not pay for that.

// erasing is the progress of a database towards overwriting deleted data. The numbers are
// stored.
type erasing int64

const (
	erasesNothing erasing = 0
	owesVacuum    erasing = 1 // overwrites deleted data; data deleted before is still in the file
	erases        erasing = 2 // overwrites deleted data, and no older deleted data is in the file
)

// truncateRetry is how long a checkpoint waits for readers, and how long erase waits
// between tries.
const truncateRetry = 50 * time.Millisecond

// readErasing reads the state that an earlier process stored.
func (s *SQLite) readErasing(ctx context.Context) error {
	err := s.w.conn.QueryRowContext(ctx, `SELECT value FROM workflow_meta WHERE name = 'erasing'`).Scan(&s.erasing)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err == nil {
		err = s.overwriteLocked(ctx)
	}
	return err
}

func (s *SQLite) overwriteLocked(ctx context.Context) error {
	_, err := s.w.conn.ExecContext(ctx, `PRAGMA secure_delete = ON`)
	return err
}

// beginErasing makes SQLite overwrite all data that is deleted from now on.
func (s *SQLite) beginErasing(ctx context.Context) error {
	s.write.Lock()
	defer s.write.Unlock()
	if s.closed {
		return errClosed
	}
	if s.erasing != erasesNothing {
		return nil
	}
	if err := s.overwriteLocked(ctx); err != nil {
		return err
	}
	return s.putErasingLocked(ctx, owesVacuum)
}

func (s *SQLite) putErasingLocked(ctx context.Context, e erasing) error {
	_, err := s.w.conn.ExecContext(ctx, `INSERT OR REPLACE INTO workflow_meta VALUES ('erasing', ?)`, int64(e))
	if err == nil {
		s.erasing = e
	}
	return err
}

// erase removes earlier deleted data from the file: the first time it rewrites the whole
// file, while commits wait; later it only empties the WAL. It waits for queries that
// still read from the WAL.
func (s *SQLite) erase(ctx context.Context) error {
	if err := s.vacuumOnce(ctx); err != nil {
		return err
	}
	for {
		done, err := s.truncateLog(ctx)
		if err != nil || done {
			return err
		}
		select {
		case <-time.After(truncateRetry):
		case <-s.stop: // Close empties the WAL, too
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// vacuumOnce rewrites the file if that is still owed.
func (s *SQLite) vacuumOnce(ctx context.Context) error {
	s.write.Lock()
	defer s.write.Unlock()
	if s.closed || s.erasing != owesVacuum {
		return nil
	}
	// The copy may be larger than memory.
	if _, err := s.w.conn.ExecContext(ctx, `PRAGMA temp_store = FILE`); err != nil {
		return err
	}
	_, err := s.w.conn.ExecContext(ctx, `VACUUM`)
	if _, back := s.w.conn.ExecContext(context.WithoutCancel(ctx), `PRAGMA temp_store = MEMORY`); back != nil || err != nil {
		return errors.Join(err, back)
	}
	return s.putErasingLocked(ctx, erases)
}

// truncateLog writes the WAL back into the file and empties it. It reports false if a
// query reads from the WAL.
func (s *SQLite) truncateLog(ctx context.Context) (done bool, err error) {
	conn, err := s.back.Conn(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Close() // back to the pool
	// Commits wait during the checkpoint, so it gives up after 50 ms.
	if _, err := conn.ExecContext(ctx, `PRAGMA busy_timeout = 50`); err != nil {
		return false, err
	}
	var busy, frames, moved int
	err = conn.QueryRowContext(ctx, `PRAGMA wal_checkpoint(TRUNCATE)`).Scan(&busy, &frames, &moved)
	if _, back := conn.ExecContext(context.WithoutCancel(ctx), `PRAGMA busy_timeout = 10000`); back != nil {
		err = errors.Join(err, back)
	}
	return busy == 0, err
}
