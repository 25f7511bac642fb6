package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// SQLite leaves what was deleted in the free parts of its file and in its own log.
// A database in which payloads were stripped once overwrites what it deletes from
// then on (secure_delete), which costs about as much as writing it did. Databases
// that never strip do not pay for that.

// erasing is how far a database is with that. The numbers are stored.
type erasing int64

const (
	erasesNothing erasing = 0
	owesVacuum    erasing = 1 // it overwrites; what was deleted before is still in the file
	erases        erasing = 2 // it overwrites, and nothing older is in the file
)

// truncateRetry is how long a checkpoint waits for readers, and then until the next try.
const truncateRetry = 50 * time.Millisecond

// readErasing takes up what an earlier process has stored.
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

// beginErasing has everything that is deleted from here on be overwritten.
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

// erase removes from the file what was deleted before: once the whole file is written
// anew, while commits wait; after that only SQLite's log is emptied. It waits for
// queries that still read from the log.
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
		case <-s.stop: // closing empties it, too
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// vacuumOnce writes the file anew if that is owed.
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

// truncateLog brings SQLite's log into the file and empties it. It reports false if
// somebody reads from the log.
func (s *SQLite) truncateLog(ctx context.Context) (done bool, err error) {
	conn, err := s.back.Conn(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Close() // back to the pool
	// Commits wait meanwhile: not for long.
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
