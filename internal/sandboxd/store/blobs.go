package store

import (
	"context"
	"fmt"
	"strings"

	"github.com/cayhq/cay/internal/db"
)

// Blobs are names of blobs.
type Blobs struct{ Snapshots, Drives, Commands, Programs []string }

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
	// A backup may find a database that this version has not migrated yet.
	known, err := db.Collect(ctx, q, db.Column[string], `SELECT name FROM cay_migrations WHERE line = 'sandboxd' AND name = ?`, programsMigration.Name)
	if err != nil || len(known) == 0 {
		return b, err
	}
	pairs, err := db.Collect(ctx, q, db.Column[string], neededPrograms)
	if err != nil {
		return Blobs{}, err
	}
	for id := range programsIn(pairs) {
		b.Programs = append(b.Programs, id)
	}
	return b, nil
}

// needsPrograms is the condition that a snapshot has, or should have, memory.
const needsPrograms = `programs <> '' AND kind = 'memory' AND ` + keptSnapshot

const neededPrograms = `SELECT DISTINCT programs FROM sandbox_snapshots WHERE ` + needsPrograms

var programsMigration = db.Migration{Name: "programs of memory", SQL: `
	ALTER TABLE sandbox_snapshots ADD COLUMN programs TEXT NOT NULL DEFAULT ''; -- that restore its memory, a programs.Pair; '': unknown
	CREATE INDEX sandbox_snapshots_programs ON sandbox_snapshots (programs) WHERE ` + needsPrograms}

// NeededPrograms returns the IDs of the programs that saved memory needs. Some may not
// exist: imported memory came without programs.
func (s *Store) NeededPrograms(ctx context.Context) (map[string]bool, error) {
	pairs, err := db.Collect(ctx, s.db, db.Column[string], neededPrograms)
	if err != nil {
		return nil, fmt.Errorf("look for programs of saved memory: %w", err)
	}
	return programsIn(pairs), nil
}

func programsIn(pairs []string) map[string]bool {
	ids := make(map[string]bool)
	for _, text := range pairs {
		sentry, guest, _ := strings.Cut(text, ".")
		ids[sentry], ids[guest] = true, true
	}
	return ids
}
