package sqlstore

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"

	"github.com/cayhq/cay"
)

// pgError gives an error of the database the error code that users see.
func pgError(err error) error {
	if err == nil || errors.As(err, new(*cay.Error)) {
		return err
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch {
		case pg.Code == fencedOff:
			return cay.Errorf(cay.Conflict, "another process has taken over the runs of this one: %w", err)
		case pg.Code == "23505": // unique_violation: of numbers that only the owner of a run assigns
			return cay.Errorf(cay.Conflict, "another process writes what this one owns: %w", err)
		case pg.Code == "53100": // disk_full
			return cay.Errorf(cay.NoSpace, "the database cannot grow: %w", err)
		case pg.Code == "42501": // insufficient_privilege
			return cay.Errorf(cay.PermissionDenied, "the database refuses: %w", err)
		case pg.Code == "22021" || pg.Code == "22P05": // text of a query; the engine checks texts before it stores them
			return cay.Errorf(cay.Invalid, "text must be UTF-8 without zero bytes: %w", err)
		case unavailable(pg.Code):
			return cay.Errorf(cay.Unavailable, "the database does not answer: %w", err)
		}
		return err
	}
	switch {
	case errors.Is(err, puddle.ErrClosedPool):
		return errClosed
	case errors.Is(err, context.Canceled):
		return cay.Errorf(cay.Canceled, "the caller gave up: %w", err)
	case errors.Is(err, context.DeadlineExceeded):
		return cay.Errorf(cay.DeadlineExceeded, "the database did not answer in time: %w", err)
	case isLost(err):
		return cay.Errorf(cay.Unavailable, "the database does not answer: %w", err)
	}
	return err
}

// unavailable reports whether a SQLSTATE says that trying again later may help.
func unavailable(state string) bool {
	switch state {
	case "57P01", "57P02", "57P03", // shut down, crashed, cannot connect now
		"57P05",          // idle session timeout
		"53300",          // too many connections
		"25006",          // read-only: a standby that was the primary
		"40001", "40P01": // serialization failure, deadlock
		return true
	}
	return strings.HasPrefix(state, "08") // connection exception
}

// isLost reports whether err says that the connection was lost or could not be made.
func isLost(err error) bool {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false // these are a net.Error too
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return unavailable(pg.Code) && !isAborted(err)
	}
	return errors.As(err, new(*pgconn.ConnectError)) || errors.As(err, new(net.Error)) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, pgconn.ErrConnClosed)
}

// isAborted reports whether the server rolled the transaction back because of a
// concurrent one.
func isAborted(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "40001" || pg.Code == "40P01")
}

// pgNotFound is pgError for a query that looks for one object of a kind.
func pgNotFound(err error, what, id string) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return notFound(what, id)
	}
	return pgError(err)
}
