// Package postgres keeps workflows in a PostgreSQL database that several processes
// share: servers that start runs, workers that execute them, or both in one. Each
// run belongs to one process at a time. When that one ends, another that has a
// worker for the workflow goes on with its runs: at once if it was stopped in order
// or has died on the same machine, within seconds if it died elsewhere, and when
// its lease is over if it cannot be seen any more.
//
// Programs that need a database for themselves only are better served by package
// workflow/sqlite, which needs no server.
package postgres

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/internal/workflowd/sqlstore"
	"github.com/cayhq/cay/workflow"
)

// Options tune a database. The zero value is good.
type Options struct {
	// Schema holds the tables; it is made if it is missing. Programs that are to see
	// each other's runs have the same. Empty means "cay".
	Schema string
	// Conns bounds the connections of this process, beside one that listens. 0 means
	// pool_max_conns of the address, or 10. Each transactional step that runs takes one.
	Conns int
	// Lease is how long a process that cannot be seen to be alive keeps its runs. All
	// processes should have the same. 0 means 10 s.
	Lease time.Duration
	// Name is this process's for people. Empty means its host and pid.
	Name string
	// MaxPayload is the largest value there may be, in bytes. 0 means 100 MB.
	MaxPayload int
	// Logger gets what goes on in the background. nil discards it.
	Logger *slog.Logger
	// Client is how values are encoded and sealed.
	Client workflow.ClientOptions
}

// Open opens a database, makes or upgrades its tables, and starts an engine in this
// process. dsn is a URL, as in postgres://user:password@host/database, or a list of
// key=value; what it leaves out comes from the environment variables of PostgreSQL.
// The server has to be PostgreSQL 13 or later, and connections have to be to it, or
// to a pool that keeps sessions: not one that shares them by transaction.
//
// The client's Close stops the engine and gives its runs to others. Errors: invalid
// (the address), unavailable (the server does not answer), permission_denied (the
// schema is missing and may not be made), not_supported (the server is too old, or
// the schema was made by a later release).
func Open(ctx context.Context, dsn string, o Options) (*workflow.Client, error) {
	store, err := sqlstore.OpenPostgres(ctx, dsn, sqlstore.PostgresOptions{
		Schema: o.Schema, Conns: o.Conns, Lease: o.Lease, Name: o.Name, Logger: o.Logger,
	})
	if err != nil {
		return nil, err
	}
	engine, err := workflowd.Open(ctx, workflowd.Config{Store: store, Logger: o.Logger, MaxPayload: o.MaxPayload})
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return workflow.NewClient(backend{engine.For(""), engine}, o.Client), nil
}

// backend is the engine's, which ends with the client.
type backend struct {
	workflow.Backend
	engine *workflowd.Engine
}

func (b backend) Close() error { return b.engine.Close() }
