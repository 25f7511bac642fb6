// Package database opens what the examples keep their runs in.
package database

import (
	"context"
	"strings"

	"github.com/cayhq/cay/workflow"
	"github.com/cayhq/cay/workflow/postgres"
	"github.com/cayhq/cay/workflow/sqlite"
)

// Open opens a PostgreSQL database, if db begins with postgres://, or the file of
// an SQLite database. The returned Client is closed by the caller.
func Open(ctx context.Context, db string) (*workflow.Client, error) {
	if strings.HasPrefix(db, "postgres://") || strings.HasPrefix(db, "postgresql://") {
		return postgres.Open(ctx, db, postgres.Options{})
	}
	return sqlite.Open(ctx, db, sqlite.Options{})
}
