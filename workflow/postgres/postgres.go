// Package postgres keeps workflows in a PostgreSQL database that several processes share:
// servers that start runs, workers that execute them, or both in one. Each run belongs to
// one process at a time. When that process ends, another process that has a worker for
// the workflow takes over: at once if the process was stopped in order or died on the
// same machine, within seconds if it died on another machine, and after its lease if the
// others can no longer see it.
//
// Programs that do not share the database are better served by package workflow/sqlite,
// which needs no server.
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

// Options configure a database. The zero value is usable.
type Options struct {
	// Schema holds the tables. Open creates it if it is missing. Programs that share runs
	// use the same schema. Empty means "cay".
	Schema string
	// Conns bounds the connections of this process, not counting the one that listens. 0
	// means pool_max_conns of the address, or 10. Each running transactional step uses
	// one.
	Conns int
	// Lease is how long a process keeps its runs when the others cannot see that it is
	// alive. All processes should have the same. 0 means 10 s.
	Lease time.Duration
	// Name identifies this process to people. Empty means its host and pid.
	Name string
	// MaxPayload is the largest allowed value, in bytes. 0 means 100 MB.
	MaxPayload int
	// Logger logs the background work. nil discards the logs.
	Logger *slog.Logger
	// Client configures how values are encoded and sealed.
	Client workflow.ClientOptions
}

// Open opens a database, creates or upgrades its tables, and starts an engine in this
// process. dsn is a URL, as in postgres://user:password@host/database, or a list of
// key=value; PostgreSQL's environment variables supply missing parameters. The server
// must be PostgreSQL 13 or later, reached directly or through a pool in session mode, not
// in transaction mode.
//
// The client's Close stops the engine and releases its runs to other processes. Errors:
// invalid (the address), unavailable (the server does not answer), permission_denied (the
// schema is missing and may not be made), not_supported (the server is too old, or the
// schema was made by a later release).
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

// backend is the engine's backend; closing it closes the engine.
type backend struct {
	workflow.Backend
	engine *workflowd.Engine
}

func (b backend) Close() error { return b.engine.Close() }
