package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"modernc.org/sqlite"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/flock"
	"github.com/cayhq/cay/internal/workflowd"
)

// SQLiteOptions configure a SQLite store.
type SQLiteOptions struct {
	// Full makes every commit survive a power cut. Without it, a commit survives the
	// death of the process at once, and a power cut after the next checkpoint.
	Full bool
	// Existing makes OpenSQLite return not_found instead of creating a database, or
	// creating tables in a database without workflows.
	Existing bool
	// Readers is the number of concurrent queries. 0 means 4.
	Readers int
}

// SQLite is a store in one file, for one process.
//
// A commit inserts one row into a journal, and waits for nothing else. A fold moves the
// rows of the journal, many commits at a time, into tables that can be searched. Until
// then the rows are also in memory (tail), where commits check for uniqueness and reads
// of single runs look first; queries over many runs fold first. Opening folds the rows
// that an earlier process left in the journal.
//
// Lock order: folds, then write, then mu.
type SQLite struct {
	path string
	lock *os.File
	read *sql.DB
	back *sql.DB // runs checkpoints
	db   *sql.DB // the database of w

	queries sqliteQueries // prepared on read

	folds sync.Mutex // held for a fold

	write   sync.Mutex
	w       *writer // guarded by write
	stmts   sqliteStatements
	group   group   // guarded by write; reused by commits
	seq     int64   // guarded by write; number of the last row of the journal
	closed  bool    // guarded by write
	erasing erasing // guarded by write

	mu      sync.RWMutex
	cur     *tail // guarded by mu; changed with write held
	folding *tail // guarded by mu; the tail being folded, nil if there is none. Only the fold changes it
	foldErr error // guarded by mu; why the last fold failed

	dirty chan struct{} // cur is not empty
	large chan struct{} // cur should be folded now
	stop  chan struct{}
	done  chan struct{}
}

var _ workflowd.Store = (*SQLite)(nil)

const (
	foldAfter = 200 * time.Millisecond
	foldSize  = 1 << 20  // a tail of this size is folded at once
	tailSize  = 4 << 20  // a tail of this size makes commits wait for the fold under way
	tailMax   = 64 << 20 // a tail of this size that cannot be folded makes commits fail

	// lockWait is roughly how long OpenSQLite retries while another process holds the
	// lock.
	lockWait = 256 * time.Millisecond
)

// OpenSQLite opens the database at path, and creates it if it is missing, readable by its
// owner only. Errors: conflict (another process has it open), no_space, not_supported (it
// was written by a later release), internal (it is damaged, or a file of another kind,
// which is left as it is), not_found (see SQLiteOptions.Existing).
func OpenSQLite(ctx context.Context, path string, o SQLiteOptions) (_ *SQLite, err error) {
	if o.Readers <= 0 {
		o.Readers = 4
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, fmt.Errorf("open workflow database: %w", err)
	}
	if o.Existing {
		if err := mustHaveWorkflows(ctx, path); err != nil {
			return nil, err
		}
	}
	s := &SQLite{
		path: path, cur: newTail(),
		group: newGroup(),
		dirty: make(chan struct{}, 1), large: make(chan struct{}, 1),
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	if s.lock, err = lockFile(ctx, path); err != nil {
		return nil, err
	}
	if err = s.open(ctx, o); err != nil {
		return nil, errors.Join(sqliteError("open", err), s.closeFiles())
	}
	go s.run(s.erasing != erasesNothing)
	return s, nil
}

// mustHaveWorkflows refuses a file that is not a database with the workflow tables. It
// runs before the lock is taken, because the lock creates a file. At that time this
// process must not have the database open, see lockFile.
func mustHaveWorkflows(ctx context.Context, path string) error {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return cay.Errorf(cay.NotFound, "there is no database %s", path)
	}
	if err != nil {
		return fmt.Errorf("open workflow database: %w", err)
	}
	if err := errors.Join(mustBeSQLite(f), f.Close()); err != nil {
		return err
	}
	d, err := openSQLite(path, 1, []string{"busy_timeout(10000)", "query_only(1)"})
	if err != nil {
		return err
	}
	var tables int
	err = d.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_schema WHERE name = 'workflow_meta'`).Scan(&tables)
	if err := errors.Join(err, d.Close()); err != nil {
		return sqliteError("open", err)
	}
	if tables == 0 {
		return cay.Errorf(cay.NotFound, "the database %s has no workflows in it", path)
	}
	return nil
}

// mustBeSQLite refuses a file of another format.
func mustBeSQLite(f *os.File) error {
	const magic = "SQLite format 3\x00"
	head := make([]byte, len(magic))
	n, err := io.ReadFull(f, head)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return fmt.Errorf("open workflow database: %w", err)
	}
	if n > 0 && string(head[:n]) != magic {
		return cay.Errorf(cay.Internal, "%s is not a SQLite database, or is damaged", f.Name())
	}
	return nil
}

// lockFile keeps other processes out. It locks a file of its own: SQLite's POSIX locks on
// the database file are released when the process closes any descriptor of that file.
func lockFile(ctx context.Context, path string) (*os.File, error) {
	f, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open workflow database: %w", err)
	}
	// A process that is being killed holds its lock until it is gone, and a forked child
	// holds its parent's lock until it executes another program: there is no event to
	// wait for.
	for wait := time.Millisecond; ; wait *= 2 {
		err := flock.Lock(f, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if errors.Is(err, flock.ErrLocked) {
			if wait < lockWait {
				select {
				case <-time.After(wait):
					continue
				case <-ctx.Done():
				}
			}
			err = cay.Errorf(cay.Conflict, "the workflow database %s is open in another process", path)
		}
		return nil, errors.Join(err, f.Close())
	}
}

func (s *SQLite) open(ctx context.Context, o SQLiteOptions) error {
	f, err := os.OpenFile(s.path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err = mustBeSQLite(f); err == nil {
		err = f.Chmod(0o600)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	sync := "NORMAL"
	if o.Full {
		sync = "FULL"
	}
	pragmas := []string{"busy_timeout(10000)", "synchronous(" + sync + ")", "temp_store(MEMORY)", "wal_autocheckpoint(0)",
		"journal_size_limit(16777216)"} // a burst must not leave a huge WAL behind
	if s.db, err = openSQLite(s.path, 1, append(pragmas, "journal_mode(WAL)", "cache_size(-16000)")); err != nil {
		return err
	}
	if s.w, err = newWriter(ctx, s.db); err != nil {
		return err
	}
	if err := s.migrate(); err != nil {
		return err
	}
	if err := s.stmts.prepare(s.w); err != nil {
		return err
	}
	if s.back, err = openSQLite(s.path, 1, pragmas); err != nil {
		return err
	}
	if s.read, err = openSQLite(s.path, o.Readers, append(pragmas, "query_only(1)")); err != nil {
		return err
	}
	if err := s.queries.prepare(ctx, s.read); err != nil {
		return err
	}
	if err := s.readErasing(ctx); err != nil {
		return err
	}
	return s.recover(ctx)
}

func openSQLite(path string, conns int, pragmas []string) (*sql.DB, error) {
	q := url.Values{"_pragma": pragmas, "_txlock": {"immediate"}}
	c, err := sqlite.NewConnector((&url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}).String())
	if err != nil {
		return nil, err
	}
	d := sql.OpenDB(c)
	d.SetMaxOpenConns(conns)
	d.SetMaxIdleConns(conns)
	return d, nil
}

// migrate creates the tables. It would also upgrade a database of an earlier format, but
// there is none yet.
func (s *SQLite) migrate() error {
	exec := func(text string) error {
		_, err := s.w.conn.ExecContext(context.Background(), text)
		return err
	}
	return s.w.tx(func() error {
		var tables, format int
		row := s.w.conn.QueryRowContext(context.Background(), `SELECT count(*) FROM sqlite_schema WHERE name = 'workflow_meta'`)
		if err := row.Scan(&tables); err != nil {
			return err
		}
		if tables == 0 {
			if err := exec(sqliteSchema + sqliteFirst + sqliteIndexes + sqliteMessages + sqlitePriority); err != nil {
				return err
			}
			return exec(`INSERT INTO workflow_meta VALUES ('format', ` + strconv.Itoa(sqliteFormat) + `)`)
		}
		row = s.w.conn.QueryRowContext(context.Background(), `SELECT value FROM workflow_meta WHERE name = 'format'`)
		if err := row.Scan(&format); err != nil {
			return err
		}
		if format > sqliteFormat {
			return cay.Errorf(cay.NotSupported, "the workflow database %s was written by a later release", s.path)
		}
		add := func(table, column, text string) error {
			var columns int
			row := s.w.conn.QueryRowContext(context.Background(), `SELECT count(*) FROM pragma_table_info(?) WHERE name = ?`, table, column)
			if err := row.Scan(&columns); err != nil || columns > 0 {
				return err
			}
			return exec(text)
		}
		if err := add("workflow_runs", "first", sqliteFirst); err != nil {
			return err
		}
		if err := exec(sqliteIndexes + sqliteMessages); err != nil {
			return err
		}
		return add("workflow_messages", "priority", sqlitePriority)
	})
}

// recover folds the rows that an earlier process left in the journal.
func (s *SQLite) recover(ctx context.Context) error {
	dest := make([]driver.Value, 2)
	for {
		// Fold in portions of the usual size.
		ok, err := true, error(nil)
		for s.cur.size < foldSize {
			if ok, err = s.stmts.journalNext.row(dest, s.seq); err != nil || !ok {
				break
			}
			s.seq = dest[0].(int64)
			data := dest[1].([]byte)
			if err = replayRecords(data, s.cur); err != nil {
				err = fmt.Errorf("row %d of the journal: %w", s.seq, err)
				break
			}
			s.cur.seq = s.seq
			s.cur.size += len(data)
		}
		if err != nil {
			return err
		}
		if err := s.fold(ctx); err != nil {
			return err
		}
		if !ok {
			return nil
		}
	}
}

// Owner returns nil: one process owns all runs.
func (s *SQLite) Owner() workflowd.Owner { return nil }

// Path returns the path of the database file.
func (s *SQLite) Path() string { return s.path }

// Close folds the remaining rows and closes the database. Later commits and queries fail.
func (s *SQLite) Close() error {
	s.write.Lock()
	if s.closed {
		s.write.Unlock()
		return nil
	}
	s.closed = true
	s.write.Unlock()
	close(s.stop)
	<-s.done
	err := s.fold(context.Background())
	return errors.Join(sqliteError("close", err), s.closeFiles())
}

func (s *SQLite) closeFiles() error {
	var errs []error
	if s.read != nil {
		errs = append(errs, s.queries.close(), s.read.Close())
	}
	if s.back != nil {
		errs = append(errs, s.back.Close())
	}
	if s.w != nil {
		errs = append(errs, s.w.close())
	}
	if s.db != nil {
		// The last connection to close writes the WAL back into the file.
		errs = append(errs, s.db.Close())
	}
	return errors.Join(append(errs, flock.Close(s.lock))...)
}

// sqliteError gives an error of the database the error code for the engine.
func sqliteError(doing string, err error) error {
	if err == nil {
		return nil
	}
	if errors.As(err, new(*cay.Error)) {
		return err
	}
	if mapped := db.Error(err); errors.As(mapped, new(*cay.Error)) {
		return mapped
	}
	var e *sqlite.Error
	if errors.As(err, &e) {
		return cay.Errorf(cay.Unavailable, "the workflow database does not work (%s): %w", doing, err)
	}
	if errors.Is(err, sql.ErrConnDone) || err.Error() == "sql: database is closed" || err.Error() == "sql: statement is closed" {
		return errClosed
	}
	return fmt.Errorf("workflow database: %s: %w", doing, err)
}

var errClosed = cay.Errorf(cay.Unavailable, "the workflow database is closed")
