package db

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"modernc.org/sqlite"

	"github.com/cayhq/cay"
)

// State is the state of a database at one moment, to be copied. The database may be in
// use, also by other processes: they read and write as before, but the database's log
// grows until the State is closed.
type State struct {
	path string
	db   *sql.DB
	conn *sql.Conn
}

// OpenState keeps the current state of the database at path. Errors: not_found,
// unavailable.
func OpenState(ctx context.Context, path string) (_ *State, err error) {
	path, err = filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(path); err != nil {
		return nil, cay.Errorf(cay.NotFound, "there is no database %s: %w", path, err)
	}
	c, err := sqlite.NewConnector(dsn(path, Options{BusyTimeout: 5 * time.Second}, true))
	if err != nil {
		return nil, err
	}
	s := &State{path: path, db: sql.OpenDB(c)}
	defer func() {
		if err != nil {
			err = errors.Join(Error(err), s.db.Close())
		}
	}()
	if s.conn, err = s.db.Conn(ctx); err != nil {
		return nil, err
	}
	if _, err = s.conn.ExecContext(ctx, "BEGIN"); err != nil {
		return nil, err
	}
	// The first statement that reads decides which state the transaction sees.
	var tables int
	err = s.conn.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema").Scan(&tables)
	return s, err
}

// Close lets go of the state.
func (s *State) Close() error {
	// Closing the connection rolls the transaction back.
	return errors.Join(s.conn.Close(), s.db.Close())
}

// Query implements Querier, on the state.
func (s *State) Query(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	rows, err := s.conn.QueryContext(ctx, query, args...)
	return rows, Error(err)
}

var _ Querier = (*State)(nil)

// copyPages is how many pages are copied between two looks at the context.
const copyPages = 4096

// CopyTo writes the state into a new database file, page by page, and checks the file.
// Errors: internal (the database is damaged), no_space.
func (s *State) CopyTo(ctx context.Context, file string) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return Error(err)
	}
	if err := f.Close(); err != nil {
		return err
	}
	err = s.conn.Raw(func(c any) (err error) {
		from, ok := c.(interface {
			NewBackup(to string) (*sqlite.Backup, error)
		})
		if !ok {
			return errors.New("the driver of SQLite makes no backups")
		}
		b, err := from.NewBackup((&url.URL{Scheme: "file", Path: file}).String())
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, b.Finish()) }()
		for more := true; more; {
			if err := ctx.Err(); err != nil {
				return err
			}
			if more, err = b.Step(copyPages); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return Error(fmt.Errorf("copy database %s: %w", s.path, err))
	}
	return checkFile(ctx, file, s.path)
}

// checkFile reads a whole database file and returns an error if it is damaged; path names
// the database of which it is a copy.
func checkFile(ctx context.Context, file, path string) error {
	q := url.Values{"immutable": {"1"}, "mode": {"ro"}}
	c, err := sqlite.NewConnector((&url.URL{Scheme: "file", Path: file, RawQuery: q.Encode()}).String())
	if err != nil {
		return err
	}
	d := sql.OpenDB(c)
	var line string
	err = d.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&line)
	if err = errors.Join(err, d.Close()); err != nil {
		return Error(fmt.Errorf("check the copy of %s: %w", path, err))
	}
	if line != "ok" {
		return cay.Errorf(cay.Internal, "database %s: %s", path, line).WithHint("Restore it from an earlier backup.")
	}
	return nil
}
