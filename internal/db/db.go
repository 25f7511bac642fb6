// Package db opens the daemon's database and runs statements on it.
//
// The database is SQLite, in one file, used by one daemon: a single connection writes, a
// bounded pool reads, and readers never wait for the writer (WAL). When Exec and Write
// return, their commits survive a power cut; concurrent transactions share a commit, and
// concurrent commits share one sync of the disk. DB.Unsynced is for changes that nobody waits for, such as usage records. Unsynced
// commits survive the death of the process, and survive a power cut after the next sync.
//
// Slices keep their SQL in their own store files and bring their own line of migrations
// (DB.Migrate). For the sake of a second database later they write portable statements: ?
// as the placeholder, columns of INTEGER, REAL, TEXT and BLOB, times as Unix
// milliseconds, JSON as TEXT, and nothing specific to the driver; every statement passes
// through this package, which is where a dialect would be translated. The package knows
// no slice, and no table except its own.
package db

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"modernc.org/sqlite"

	"github.com/cayhq/cay"
)

// Options tune a database. The zero value has the daemon's settings.
type Options struct {
	// Readers is how many statements may read at the same time. 0 means 4.
	Readers int
	// BusyTimeout is how long a statement waits for a lock that another
	// process holds before unavailable is returned. 0 means 5 s.
	BusyTimeout time.Duration
	// Synced, if not nil, is called each time all commits are on the disk, before they
	// are acknowledged. It is for tests of power cuts.
	Synced func()
	// Reserve is how many bytes of the disk are kept free for writes while the disk is
	// full, where the file system supports it. 0: none.
	Reserve int64
}

// DB is an open database. Methods may be called concurrently.
type DB struct {
	path    string
	read    *pool
	writer  *writer
	sync    *syncer
	reserve *reserve
	lazy    bool // see Unsynced
}

// Open opens the database at path. It makes a missing database, readable by its owner
// only. Errors: no_space, unavailable (locked by another process); internal for a file
// that is damaged or not a database.
func Open(ctx context.Context, path string, o Options) (*DB, error) {
	if o.Readers == 0 {
		o.Readers = 4
	}
	if o.BusyTimeout == 0 {
		o.BusyTimeout = 5 * time.Second
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	if err := ensurePrivate(path); err != nil {
		return nil, err
	}
	d := &DB{path: path, sync: &syncer{path: path, synced: o.Synced}, reserve: &reserve{wal: path + "-wal", bytes: o.Reserve}}
	// The writer comes first: it puts the file into WAL mode.
	write, err := openPool(ctx, dsn(path, o, false), 1)
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	d.writer = &writer{pool: write}
	if d.read, err = openPool(ctx, dsn(path, o, true), o.Readers); err != nil {
		return nil, errors.Join(fmt.Errorf("open database %s: %w", path, err), write.close())
	}
	return d, nil
}

// Close closes the database. Statements still running are waited for.
func (d *DB) Close() error {
	// The writer is closed last: the last connection writes the log back into the file.
	return errors.Join(d.read.close(), d.writer.pool.close(), d.sync.close())
}

// Unsynced returns d for changes that nobody waits for, or that become known only by a
// later change: its Exec and Write do not wait for the disk. A power cut may undo the
// last commits, but never a commit without all commits after it.
func (d *DB) Unsynced() *DB {
	lazy := *d
	lazy.lazy = true
	return &lazy
}

// Sync returns when all earlier commits are on the disk. A caller that has read data and
// is about to do something irreversible with it, such as removing files, calls Sync
// first, because the commit that it read may not be on the disk yet.
func (d *DB) Sync() error { return d.sync.sync() }

// acknowledged returns when the last commit may be acknowledged. sync syncs the database.
func (d *DB) acknowledged(sync func() error) error {
	d.reserve.keep()
	if d.lazy {
		return nil
	}
	return sync()
}

// Path returns the absolute path of the database file.
func (d *DB) Path() string { return d.path }

// ensurePrivate makes the file, and removes other users' permissions from an existing
// file. SQLite gives its -wal and -shm files the same mode.
func ensurePrivate(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	if err := errors.Join(f.Chmod(0o600), f.Close()); err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	return nil
}

func dsn(path string, o Options, readOnly bool) string {
	q := url.Values{}
	// busy_timeout first: the pragmas after it may already meet a lock.
	q.Add("_pragma", "busy_timeout("+strconv.FormatInt(o.BusyTimeout.Milliseconds(), 10)+")")
	if readOnly {
		q.Add("_pragma", "query_only(1)")
	} else {
		q.Add("_pragma", "journal_mode(WAL)")
		q.Add("_pragma", "journal_size_limit(67108864)") // a burst must not leave a huge log behind
		q.Add("_pragma", "cache_size(-16384)")           // KiB: the leaves of many indexes
		q.Set("_txlock", "immediate")
	}
	q.Add("_pragma", "synchronous(NORMAL)")
	q.Add("_pragma", "foreign_keys(1)")
	q.Add("_pragma", "temp_store(MEMORY)")
	return (&url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}).String()
}

// Result says how many rows a statement changed.
type Result struct{ Rows int64 }

// Exec runs a writing statement in a transaction of its own. After an error of the disk,
// the statement may have taken effect.
func (d *DB) Exec(ctx context.Context, query string, args ...any) (Result, error) {
	if !d.writer.tryTurn() {
		var r Result
		err := d.Write(ctx, func(tx *Tx) (err error) {
			r, err = tx.Exec(ctx, query, args...)
			return err
		})
		return r, err
	}
	r, err := d.execAlone(ctx, query, args)
	if err == nil {
		err = d.acknowledged(d.sync.sync)
	}
	return r, err
}

// execAlone is Exec for a caller that has the writer's turn: SQLite itself begins and
// commits the transaction. It gives the turn away.
func (d *DB) execAlone(ctx context.Context, query string, args []any) (r Result, err error) {
	defer d.writer.pass(nil)
	err = retryBusy(ctx, func() error {
		s, err := d.writer.pool.prepare(ctx, query)
		if err != nil {
			return err
		}
		res, err := s.ExecContext(ctx, args...)
		if err != nil {
			return err
		}
		r.Rows, err = res.RowsAffected()
		return err
	})
	return r, err
}

// Query runs a reading statement. The caller closes the rows.
func (d *DB) Query(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	s, err := d.read.prepare(ctx, query)
	if err != nil {
		return nil, Error(err)
	}
	rows, err := s.QueryContext(ctx, args...)
	return rows, Error(err)
}

// QueryRow runs a reading statement of at most one row.
func (d *DB) QueryRow(ctx context.Context, query string, args ...any) Row {
	s, err := d.read.prepare(ctx, query)
	if err != nil {
		return Row{err: err}
	}
	return Row{row: s.QueryRowContext(ctx, args...)}
}

// Row is a row yet to be scanned.
type Row struct {
	row *sql.Row
	err error
}

// Scan copies the row's columns; sql.ErrNoRows if there is no row.
func (r Row) Scan(dest ...any) error {
	if r.err != nil {
		return Error(r.err)
	}
	return Error(r.row.Scan(dest...))
}

// Write runs f in a transaction that holds the write lock from its start, so the data
// that f reads stays true until the commit. Write commits if f returns nil and undoes f
// otherwise. Transactions that wait for each other share a commit, so Write may return
// after the f of later callers: f must not wait for a lock that a caller of Write holds.
// f may run again if another process held the lock, or if the shared commit failed, so f
// must change only the database, and variables that it sets anew. ctx is looked at before
// each statement, but ends none.
func (d *DB) Write(ctx context.Context, f func(*Tx) error) error {
	g, err := d.writeGroup(ctx, f)
	if err != nil {
		return err
	}
	return d.acknowledged(g.sync)
}

// Read runs f in a transaction in which every statement sees the same state.
func (d *DB) Read(ctx context.Context, f func(*Tx) error) error {
	return Error(d.read.tx(ctx, &sql.TxOptions{ReadOnly: true}, f))
}

// Tx runs statements inside Write or Read. It must not be used afterwards.
type Tx struct {
	tx   *sql.Tx
	pool *pool
	// uninterrupted says that the end of a context must not interrupt a statement: SQLite
	// then rolls back the whole transaction, which other callers share.
	uninterrupted bool
	broken        error // an error after which SQLite may have rolled back the transaction
}

// Exec runs one writing statement.
func (t *Tx) Exec(ctx context.Context, query string, args ...any) (Result, error) {
	ctx, err := t.context(ctx)
	if err != nil {
		return Result{}, err
	}
	res, err := t.stmt(ctx, query).ExecContext(ctx, args...)
	if err != nil {
		if endsTx(err) {
			t.broken = err
		}
		return Result{}, err
	}
	n, err := res.RowsAffected()
	return Result{Rows: n}, err
}

// Query runs a reading statement. The caller closes the rows before the next statement.
func (t *Tx) Query(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	ctx, err := t.context(ctx)
	if err != nil {
		return nil, err
	}
	return t.stmt(ctx, query).QueryContext(ctx, args...)
}

// QueryRow runs a reading statement of at most one row.
func (t *Tx) QueryRow(ctx context.Context, query string, args ...any) Row {
	ctx, err := t.context(ctx)
	if err != nil {
		return Row{err: err}
	}
	return Row{row: t.stmt(ctx, query).QueryRowContext(ctx, args...)}
}

// Probe returns nil if the database still answers: it reads, and takes and releases the
// write lock, without a change. It is for watchdogs; ctx bounds the wait.
func (d *DB) Probe(ctx context.Context) error {
	var tables int
	if err := d.QueryRow(ctx, "SELECT count(*) FROM sqlite_schema").Scan(&tables); err != nil {
		return fmt.Errorf("read database %s: %w", d.path, err)
	}
	if err := d.Unsynced().Write(ctx, func(*Tx) error { return nil }); err != nil {
		return fmt.Errorf("lock database %s: %w", d.path, err)
	}
	return nil
}

// context returns the context for a statement, or the error of ctx if it has ended.
func (t *Tx) context(ctx context.Context) (context.Context, error) {
	if !t.uninterrupted {
		return ctx, nil
	}
	return context.WithoutCancel(ctx), ctx.Err()
}

// Check reads the whole database and returns an error that names the damage. It is for
// doctor and for tests: it takes time in proportion to the size.
func (d *DB) Check(ctx context.Context) error {
	rows, err := d.Query(ctx, "PRAGMA integrity_check(10)")
	if err != nil {
		return err
	}
	defer rows.Close()
	var faults []error
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			return Error(err)
		}
		if line != "ok" {
			faults = append(faults, cay.Errorf(cay.Internal, "database %s: %s", d.path, line).
				WithHint("Restore it from a backup, or move it away to start afresh."))
		}
	}
	if err := rows.Err(); err != nil {
		return Error(err)
	}
	return errors.Join(faults...)
}

// newPool opens connections; no other function names the driver.
func newPool(dsn string, conns int) (*pool, error) {
	c, err := sqlite.NewConnector(dsn)
	if err != nil {
		return nil, err
	}
	p := &pool{db: sql.OpenDB(c)}
	p.db.SetMaxOpenConns(conns)
	p.db.SetMaxIdleConns(conns)
	return p, nil
}
