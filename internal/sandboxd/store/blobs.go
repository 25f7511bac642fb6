package store

import (
	"context"

	"github.com/cayhq/cay/internal/db"
)

// Blobs are names of blobs.
type Blobs struct{ Snapshots, Drives, Commands []string }

// NeededBlobs returns the blobs that the rows of a database refer to and that should be
// on the disk. It is for backups: q may be the state of a database that is in use.
func NeededBlobs(ctx context.Context, q db.Querier) (b Blobs, err error) {
	for query, names := range map[string]*[]string{
		`SELECT id FROM sandbox_snapshots WHERE stored <> 0 AND status IN ('created', 'hibernated')`: &b.Snapshots,
		`SELECT blob_id FROM sandbox_drives WHERE blob_id <> ''`:                                     &b.Drives,
		`SELECT commands FROM sandbox_sessions WHERE commands_bytes > 0`:                             &b.Commands,
	} {
		if *names, err = db.Collect(ctx, q, db.Column[string], query); err != nil {
			return Blobs{}, err
		}
	}
	return b, nil
}
