package db

import (
	"context"
	"errors"
	"strings"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/cayhq/cay"
)

// Error gives a database error the code the user should see: no_space for a full disk,
// unavailable for a lock held too long, canceled and deadline_exceeded for the caller's
// context. Error returns all other errors, including sql.ErrNoRows, unchanged. The
// methods of DB apply Error already; callers need it only for errors of sql.Rows.
func Error(err error) error {
	if err == nil || errors.As(err, new(*cay.Error)) {
		return err
	}
	switch primary(err) {
	case sqlite3.SQLITE_FULL:
		return cay.Errorf(cay.NoSpace, "the database cannot grow: %w", err).
			WithHint("Free space on the disk that holds the data directory.")
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return cay.Errorf(cay.Unavailable, "the database is locked by another process: %w", err).
			WithHint("Is a second daemon using the same data directory?")
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return cay.Errorf(cay.Internal, "the database is damaged: %w", err).
			WithHint("Run cay doctor; restore the file from a backup, or move it away to start afresh.")
	}
	switch {
	case errors.Is(err, context.Canceled):
		return cay.Errorf(cay.Canceled, "the caller gave up: %w", err)
	case errors.Is(err, context.DeadlineExceeded):
		return cay.Errorf(cay.DeadlineExceeded, "the database did not answer in time: %w", err)
	}
	return err
}

// IsUnique reports whether err says that a row has the same value as another row in a
// unique column or set of columns. column is "table.column", the first of the set.
func IsUnique(err error, column string) bool {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return false
	}
	c := e.Code()
	return (c == sqlite3.SQLITE_CONSTRAINT_UNIQUE || c == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY) &&
		strings.Contains(e.Error(), ": "+column)
}

// busyTries is how often a transaction is tried before unavailable is returned. SQLite
// itself waits up to Options.BusyTimeout in each try, so there is no pause between tries.
const busyTries = 3

func retryBusy(ctx context.Context, f func() error) error {
	for try := 1; ; try++ {
		err := f()
		if !isBusy(err) || try == busyTries || ctx.Err() != nil {
			return Error(err)
		}
	}
}

func isBusy(err error) bool { return primary(err) == sqlite3.SQLITE_BUSY }

// endsTx reports whether SQLite may have rolled back the transaction in which a statement
// failed (https://sqlite.org/lang_transaction.html, "Response To Errors Within A
// Transaction").
func endsTx(err error) bool {
	switch primary(err) {
	case sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_INTERRUPT:
		return true
	}
	return false
}

// primary returns SQLite's result code without its extension, 0 if err has none.
func primary(err error) int {
	var e *sqlite.Error
	if errors.As(err, &e) {
		return e.Code() & 0xff
	}
	return 0
}
