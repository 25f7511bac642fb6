package db

import (
	"context"
	"fmt"
	"time"

	"github.com/cayhq/cay"
)

// Migration is a step of a line. A released step is never edited: a later step corrects
// it.
type Migration struct {
	Name string // a short description; recorded, and checked against the record
	SQL  string // one or more statements
}

const migrationTable = `CREATE TABLE IF NOT EXISTS cay_migrations (
	line       TEXT NOT NULL,
	version    INTEGER NOT NULL,
	name       TEXT NOT NULL,
	applied_at INTEGER NOT NULL,
	PRIMARY KEY (line, version)
)`

// Migrate brings the tables of one slice up to date: it applies the steps of line that
// the database has not recorded yet, all of them or none. The version of a step is its
// position in the list, from 1. Errors: conflict if a newer cay wrote the database, or if
// the record in the database disagrees with the list.
func (d *DB) Migrate(ctx context.Context, line string, steps []Migration) error {
	err := d.Write(ctx, func(tx *Tx) error {
		if _, err := tx.tx.ExecContext(ctx, migrationTable); err != nil {
			return err
		}
		done, err := recorded(ctx, tx, line)
		if err != nil {
			return err
		}
		if len(done) > len(steps) {
			return cay.Errorf(cay.Conflict, "%s was written by a newer cay: its %s tables are at version %d, this build knows %d",
				d.path, line, len(done), len(steps)).WithHint("Run the newer cay, or restore a backup made before it.")
		}
		for i, name := range done {
			if name != steps[i].Name {
				return cay.Errorf(cay.Conflict, "%s: version %d of its %s tables is %q, this build expects %q",
					d.path, i+1, line, name, steps[i].Name).WithHint("It was written by another line of builds; use that one.")
			}
		}
		for i := len(done); i < len(steps); i++ {
			// tx.Exec would cache the statement, although a step runs only once.
			if _, err := tx.tx.ExecContext(ctx, steps[i].SQL); err != nil {
				return fmt.Errorf("step %d, %s: %w", i+1, steps[i].Name, err)
			}
			if _, err := tx.Exec(ctx, `INSERT INTO cay_migrations (line, version, name, applied_at) VALUES (?, ?, ?, ?)`,
				line, i+1, steps[i].Name, time.Now().UnixMilli()); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil && cay.CodeOf(err) == cay.Internal {
		return fmt.Errorf("migrate %s: %w", line, err)
	}
	return err
}

// recorded returns the names of the applied steps of a line, in order.
func recorded(ctx context.Context, tx *Tx, line string) ([]string, error) {
	rows, err := tx.Query(ctx, `SELECT name FROM cay_migrations WHERE line = ? ORDER BY version`, line)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var names []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, rows.Err()
}
