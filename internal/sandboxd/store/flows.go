package store

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/sandbox"
)

// AddFlows records flows by sandbox, replacing records with the same Seq, and drops the
// oldest beyond keep. Flows of deleted sandboxes are left out. It returns how many
// records were written.
func (s *Store) AddFlows(ctx context.Context, flows map[string][]sandbox.Flow, keep int) (written int, err error) {
	err = s.db.Unsynced().Write(ctx, func(tx *db.Tx) error {
		written = 0
		for id, list := range flows {
			for _, f := range list {
				record, err := toJSON(f)
				if err != nil {
					return err
				}
				res, err := tx.Exec(ctx, `INSERT INTO sandbox_flows (sandbox_id, seq, time, verdict, open, record)
					SELECT ?, ?, ?, ?, ?, ? WHERE EXISTS (SELECT 1 FROM sandboxes WHERE id = ?)
					ON CONFLICT (sandbox_id, seq) DO UPDATE SET verdict = excluded.verdict, open = excluded.open, record = excluded.record`,
					id, f.Seq, f.Time.UnixMilli(), f.Verdict, f.Open, record, id)
				if err != nil {
					return err
				}
				written += int(res.Rows)
			}
			if _, err := tx.Exec(ctx, `DELETE FROM sandbox_flows WHERE sandbox_id = ? AND seq <= (
				SELECT seq FROM sandbox_flows WHERE sandbox_id = ? ORDER BY seq DESC LIMIT 1 OFFSET ?)`, id, id, keep); err != nil {
				return err
			}
		}
		return nil
	})
	return written, err
}

// Flows returns up to limit records of a sandbox, oldest first.
func (s *Store) Flows(ctx context.Context, id string, p sandbox.FlowParams, limit int) ([]sandbox.Flow, error) {
	all, err := db.Collect(ctx, s.db, func(row db.Scanner) (f sandbox.Flow, err error) {
		var record string
		var open bool
		if err := row.Scan(&record, &open); err != nil {
			return f, err
		}
		if err := json.Unmarshal([]byte(record), &f); err != nil {
			return f, fmt.Errorf("sandbox %s: a flow record: %w", id, err)
		}
		f.Open = open
		return f, nil
	}, `SELECT record, open FROM sandbox_flows
		WHERE sandbox_id = ? AND seq > ? AND (? = '' OR verdict = ?) ORDER BY seq LIMIT ?`, id, p.After, p.Verdict, p.Verdict, limit)
	if err != nil {
		return nil, fmt.Errorf("read flows: %w", err)
	}
	return all, nil
}

// LastFlow returns the highest Seq of a sandbox, after it has marked all records of the
// sandbox as closed: the daemon that would have closed them is gone.
func (s *Store) LastFlow(ctx context.Context, id string) (seq int64, err error) {
	err = s.db.Unsynced().Write(ctx, func(tx *db.Tx) error {
		if err := closeFlows(ctx, tx, id); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `SELECT coalesce(max(seq), 0) FROM sandbox_flows WHERE sandbox_id = ?`, id).Scan(&seq)
	})
	return seq, err
}

// closeFlows marks records of connections that cannot be open any more as closed.
func closeFlows(ctx context.Context, tx *db.Tx, id string) error {
	_, err := tx.Exec(ctx, `UPDATE sandbox_flows SET open = 0 WHERE sandbox_id = ? AND open = 1`, id)
	return err
}

// TrimFlows removes the oldest records if there are more than limit, down to nine tenths
// of limit, and returns how many are left.
func (s *Store) TrimFlows(ctx context.Context, limit int) (left int, err error) {
	err = s.db.Unsynced().Write(ctx, func(tx *db.Tx) error {
		if err := tx.QueryRow(ctx, `SELECT count(*) FROM sandbox_flows`).Scan(&left); err != nil || left <= limit {
			return err
		}
		res, err := tx.Exec(ctx, `DELETE FROM sandbox_flows WHERE id IN (SELECT id FROM sandbox_flows ORDER BY id LIMIT ?)`, left-limit+limit/10)
		left -= int(res.Rows)
		return err
	})
	return left, err
}
