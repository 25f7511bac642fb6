package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/cayhq/cay/internal/db"
)

// kept returns the owner of an id, nil if it is unknown.
func (s store) kept(ctx context.Context, h [32]byte) (*Kept, error) {
	var k Kept
	err := s.db.QueryRow(ctx, `SELECT team_id, project_id, tokens FROM gateway_kept WHERE hash = ?`, h[:]).Scan(&k.TeamID, &k.ProjectID, &k.Tokens)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read whose an id is: %w", db.Error(err))
	}
	return &k, nil
}

// keep writes the owners of ids. An id that has an owner keeps it: providers do not issue
// an id twice.
func (s store) keep(ctx context.Context, rows map[[32]byte]keptRow) error {
	return s.db.Unsynced().Write(ctx, func(tx *db.Tx) error {
		for h, row := range rows {
			if _, err := tx.Exec(ctx, `INSERT INTO gateway_kept (hash, team_id, project_id, tokens, created_at) VALUES (?, ?, ?, ?, ?)
				ON CONFLICT (hash) DO UPDATE SET tokens = excluded.tokens, created_at = excluded.created_at
				WHERE team_id = excluded.team_id AND project_id = excluded.project_id`,
				h[:], row.TeamID, row.ProjectID, row.Tokens, row.at.UnixMilli()); err != nil {
				return fmt.Errorf("write whose an id is: %w", err)
			}
		}
		return nil
	})
}

// pruneKept deletes a batch of ids that are too old or too many, and returns the number
// deleted.
func (s store) pruneKept(ctx context.Context, before time.Time, most int) (n int64, err error) {
	err = s.db.Unsynced().Write(ctx, func(tx *db.Tx) error {
		r, err := tx.Exec(ctx, `DELETE FROM gateway_kept WHERE hash IN (SELECT hash FROM gateway_kept
			WHERE created_at < max(?, coalesce((SELECT created_at FROM gateway_kept ORDER BY created_at DESC LIMIT 1 OFFSET ?), 0)) LIMIT 5000)`,
			before.UnixMilli(), most)
		if err != nil {
			return fmt.Errorf("forget old ids: %w", err)
		}
		n = r.Rows
		return nil
	})
	return n, err
}
