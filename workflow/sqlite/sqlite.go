// Package sqlite keeps workflows in a file, for the one program that has it open. Nothing
// else is needed: no server, no daemon. Committed data survives the death of the program,
// and its runs go on when the file is opened again.
//
// Programs that share runs use package workflow/postgres, or the daemon: see
// workflow.Connect.
package sqlite

import (
	"context"
	"errors"
	"log/slog"

	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/internal/workflowd/sqlstore"
	"github.com/cayhq/cay/workflow"
)

// Options configure a database. The zero value is usable.
type Options struct {
	// Full makes every commit survive a power cut, at the price of waiting for the
	// disk. Otherwise a commit survives the death of the program at once, and a power
	// cut soon after.
	Full bool
	// MaxPayload is the largest allowed value, in bytes. 0 means 100 MB.
	MaxPayload int
	// NoSocket turns off the socket <path>.sock, over which "cay workflow --db <path>" on
	// this machine sees and controls the runs while the program has the file open. Only
	// the program's user and root can open the socket.
	NoSocket bool
	// Logger logs the background work. nil discards the logs.
	Logger *slog.Logger
	// Client configures how values are encoded and sealed.
	Client workflow.ClientOptions
}

// Open opens the database in a file, which it creates if it is missing, and starts an
// engine in this process. The client's Close stops the engine. Errors: conflict (another
// program has it open), invalid, not_supported (it was made by a later release).
func Open(ctx context.Context, path string, o Options) (*workflow.Client, error) {
	store, err := sqlstore.OpenSQLite(ctx, path, sqlstore.SQLiteOptions{Full: o.Full})
	if err != nil {
		return nil, err
	}
	engine, err := workflowd.Open(ctx, workflowd.Config{Store: store, Logger: o.Logger, MaxPayload: o.MaxPayload})
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	b := backend{Backend: engine.For(""), engine: engine}
	if !o.NoSocket {
		b.socket, err = workflowd.ServeSocket(workflowd.SocketPath(path), engine, o.Logger)
		if err != nil && o.Logger != nil { // the program goes on without the socket
			o.Logger.WarnContext(ctx, "runs cannot be looked at from outside", "error", err)
		}
	}
	return workflow.NewClient(b, o.Client), nil
}

// backend is the engine's backend; closing it closes the engine.
type backend struct {
	workflow.Backend
	engine *workflowd.Engine
	socket *workflowd.Socket // nil if there is none
}

func (b backend) Close() error {
	var err error
	if b.socket != nil {
		err = b.socket.Close()
	}
	return errors.Join(err, b.engine.Close())
}
