package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
)

// writer is the only connection that writes. It runs its statements on the driver's
// connection, because database/sql would add as much time as a small commit takes. It is
// not safe for concurrent use.
type writer struct {
	conn  *sql.Conn
	raw   driver.Conn
	stmts []*statement

	begin, commit, rollback *statement
}

// statement is prepared on the writer's connection.
type statement struct {
	w    *writer
	sql  string
	stmt driver.Stmt
	args []driver.NamedValue
}

func newWriter(ctx context.Context, db *sql.DB) (*writer, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	w := &writer{conn: conn}
	// No other goroutine uses the connection until close, so the driver's connection may
	// outlive Raw.
	if err := conn.Raw(func(c any) error { w.raw = c.(driver.Conn); return nil }); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	for s, text := range map[**statement]string{&w.begin: "BEGIN IMMEDIATE", &w.commit: "COMMIT", &w.rollback: "ROLLBACK"} {
		if *s, err = w.prepare(text); err != nil {
			return nil, errors.Join(err, w.close())
		}
	}
	return w, nil
}

func (w *writer) prepare(text string) (*statement, error) {
	s, err := w.raw.Prepare(text)
	if err != nil {
		return nil, fmt.Errorf("prepare %q: %w", text, err)
	}
	st := &statement{w: w, sql: text, stmt: s}
	w.stmts = append(w.stmts, st)
	return st, nil
}

func (w *writer) close() error {
	var errs []error
	for _, s := range w.stmts {
		errs = append(errs, s.stmt.Close())
	}
	return errors.Join(append(errs, w.conn.Close())...)
}

// tx runs f in a transaction. If f fails, the transaction is rolled back.
func (w *writer) tx(f func() error) error {
	if _, err := w.begin.exec(); err != nil {
		return err
	}
	err := f()
	if err == nil {
		if _, err = w.commit.exec(); err == nil {
			return nil
		}
	}
	// After some errors SQLite has rolled back already; then the rollback fails, which is
	// harmless.
	_, _ = w.rollback.exec()
	return err
}

func (s *statement) bind(args []any) []driver.NamedValue {
	s.args = s.args[:0]
	for i, a := range args {
		s.args = append(s.args, driver.NamedValue{Ordinal: i + 1, Value: a})
	}
	return s.args
}

// exec runs the statement. Arguments are int64, string, []byte or nil.
func (s *statement) exec(args ...any) (driver.Result, error) {
	r, err := s.stmt.(driver.StmtExecContext).ExecContext(context.Background(), s.bind(args))
	clear(s.args)
	return r, err
}

// row runs the statement and reads its first row into dest. It reports false if there is
// no row.
func (s *statement) row(dest []driver.Value, args ...any) (bool, error) {
	rows, err := s.stmt.(driver.StmtQueryContext).QueryContext(context.Background(), s.bind(args))
	clear(s.args)
	if err != nil {
		return false, err
	}
	err = rows.Next(dest)
	cerr := rows.Close()
	if err == io.EOF {
		return false, cerr
	}
	return err == nil, errors.Join(err, cerr)
}

// texts runs the statement and returns the first column of all rows.
func (s *statement) texts(args ...any) (list []string, err error) {
	rows, err := s.stmt.(driver.StmtQueryContext).QueryContext(context.Background(), s.bind(args))
	clear(s.args)
	if err != nil {
		return nil, err
	}
	dest := make([]driver.Value, len(rows.Columns()))
	for err = rows.Next(dest); err == nil; err = rows.Next(dest) {
		list = append(list, dest[0].(string))
	}
	if err == io.EOF {
		err = nil
	}
	return list, errors.Join(err, rows.Close())
}
