package store

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/sandbox"
)

// Flows holds the records of flows, in a database of its own: guests cause as many records
// as they like, and no creation waits behind them. The rows of sandboxes are in another
// database, so Flows looks there before it adds records, and records of a deleted sandbox
// stay until RemoveFlows or SweepFlows. The caller serializes AddFlows with both.
type Flows struct {
	db        *db.DB
	sandboxes *db.DB

	moving sync.Mutex  // held while records move; see moveOf
	moved  atomic.Bool // the table of earlier versions is empty
}

var flowMigrations = []db.Migration{{Name: "flows", SQL: `
	CREATE TABLE flows (
		id         INTEGER PRIMARY KEY, -- in the order they began; below 0: of an earlier version
		sandbox_id TEXT NOT NULL,
		seq        INTEGER NOT NULL,
		time       INTEGER NOT NULL,
		verdict    TEXT NOT NULL,
		open       INTEGER NOT NULL,
		record     TEXT NOT NULL, -- JSON of sandbox.Flow
		UNIQUE (sandbox_id, seq)
	);
	CREATE INDEX flows_open ON flows (sandbox_id) WHERE open = 1;`}}

// flowsMigration marks a database whose flow records are in flows.db, so that an earlier
// version, which would look for the records here, refuses the database. Its statement has no
// effect. The table sandbox_flows stays for the records that have not moved yet.
var flowsMigration = db.Migration{Name: "flow records move to flows.db", SQL: `DROP INDEX IF EXISTS sandbox_flows_moving`}

// OpenFlows migrates the table in d. sandboxes is the database of a Store.
func OpenFlows(ctx context.Context, d, sandboxes *db.DB) (*Flows, error) {
	if err := d.Migrate(ctx, "flows", flowMigrations); err != nil {
		return nil, err
	}
	return &Flows{db: d, sandboxes: sandboxes}, nil
}

// AddFlows records flows by sandbox, replacing records with the same Seq, and drops the
// oldest beyond keep. Flows of deleted sandboxes are left out. It returns how many
// records were written. A power cut may lose them.
func (s *Flows) AddFlows(ctx context.Context, flows map[string][]sandbox.Flow, keep int) (written int, err error) {
	exist, err := s.existing(ctx, slices.Collect(maps.Keys(flows)))
	if err != nil {
		return 0, err
	}
	err = s.db.Unsynced().Write(ctx, func(tx *db.Tx) error {
		written = 0
		for id, list := range flows {
			if !exist[id] {
				continue
			}
			for _, f := range list {
				record, err := toJSON(f)
				if err != nil {
					return err
				}
				res, err := tx.Exec(ctx, `INSERT INTO flows (id, sandbox_id, seq, time, verdict, open, record)
					VALUES ((SELECT max(coalesce(max(id), 0), 0) + 1 FROM flows), ?, ?, ?, ?, ?, ?)
					ON CONFLICT (sandbox_id, seq) DO UPDATE SET verdict = excluded.verdict, open = excluded.open, record = excluded.record`,
					id, f.Seq, f.Time.UnixMilli(), f.Verdict, f.Open, record)
				if err != nil {
					return err
				}
				written += int(res.Rows)
			}
			if _, err := tx.Exec(ctx, `DELETE FROM flows WHERE sandbox_id = ? AND seq <= (
				SELECT seq FROM flows WHERE sandbox_id = ? ORDER BY seq DESC LIMIT 1 OFFSET ?)`, id, id, keep); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("write flows: %w", err)
	}
	return written, nil
}

// Flows returns up to limit records of a sandbox, oldest first.
func (s *Flows) Flows(ctx context.Context, id string, p sandbox.FlowParams, limit int) ([]sandbox.Flow, error) {
	if _, err := s.moveOf(ctx, id); err != nil {
		return nil, err
	}
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
	}, `SELECT record, open FROM flows
		WHERE sandbox_id = ? AND seq > ? AND (? = '' OR verdict = ?) ORDER BY seq LIMIT ?`, id, p.After, p.Verdict, p.Verdict, limit)
	if err != nil {
		return nil, fmt.Errorf("read flows: %w", err)
	}
	return all, nil
}

// LastFlow returns the highest Seq of a sandbox, after it has marked all records of the
// sandbox as closed: the machine that would have closed them is gone, or was adopted.
func (s *Flows) LastFlow(ctx context.Context, id string) (seq int64, err error) {
	if _, err := s.moveOf(ctx, id); err != nil {
		return 0, err
	}
	err = s.db.Unsynced().Write(ctx, func(tx *db.Tx) error {
		if _, err := tx.Exec(ctx, `UPDATE flows SET open = 0 WHERE sandbox_id = ? AND open = 1`, id); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `SELECT coalesce(max(seq), 0) FROM flows WHERE sandbox_id = ?`, id).Scan(&seq)
	})
	if err != nil {
		return 0, fmt.Errorf("read the last flow: %w", err)
	}
	return seq, nil
}

// TrimFlows removes the oldest records if there are more than limit, down to nine tenths
// of limit, and returns how many are left.
func (s *Flows) TrimFlows(ctx context.Context, limit int) (left int, err error) {
	err = s.db.Unsynced().Write(ctx, func(tx *db.Tx) error {
		if err := tx.QueryRow(ctx, `SELECT count(*) FROM flows`).Scan(&left); err != nil || left <= limit {
			return err
		}
		res, err := tx.Exec(ctx, `DELETE FROM flows WHERE id IN (SELECT id FROM flows ORDER BY id LIMIT ?)`, left-limit+limit/10)
		left -= int(res.Rows)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("trim flows: %w", err)
	}
	return left, nil
}

// sweptAtOnce is how many sandboxes one transaction of a removal covers.
const sweptAtOnce = 500

// RemoveFlows removes the records of those of the sandboxes that do not exist any more.
func (s *Flows) RemoveFlows(ctx context.Context, ids []string) error {
	for some := range slices.Chunk(ids, sweptAtOnce) {
		exist, err := s.existing(ctx, some)
		if err != nil {
			return err
		}
		some = slices.DeleteFunc(slices.Clone(some), func(id string) bool { return exist[id] })
		if len(some) == 0 {
			continue
		}
		text, err := toJSON(some)
		if err != nil {
			return err
		}
		if _, err := s.db.Unsynced().Exec(ctx, `DELETE FROM flows WHERE sandbox_id IN (SELECT value FROM json_each(?))`, text); err != nil {
			return fmt.Errorf("remove the flows of deleted sandboxes: %w", err)
		}
	}
	return nil
}

// SweepFlows removes the records of all sandboxes that do not exist any more. It reads the
// id of each sandbox that has records, and not each record.
func (s *Flows) SweepFlows(ctx context.Context) error {
	for last := ""; ; {
		ids, err := db.Collect(ctx, s.db, func(row db.Scanner) (id string, err error) { return id, row.Scan(&id) },
			`WITH RECURSIVE ids (id) AS (SELECT min(sandbox_id) FROM flows WHERE sandbox_id > ?
				UNION ALL SELECT (SELECT min(sandbox_id) FROM flows WHERE sandbox_id > ids.id) FROM ids WHERE ids.id IS NOT NULL LIMIT ?)
			SELECT id FROM ids WHERE id IS NOT NULL`, last, sweptAtOnce)
		if err != nil {
			return fmt.Errorf("list sandboxes with flows: %w", err)
		}
		if err := s.RemoveFlows(ctx, ids); err != nil {
			return err
		}
		if len(ids) < sweptAtOnce {
			return nil
		}
		last = ids[len(ids)-1]
	}
}

// existing returns which of the sandboxes exist.
func (s *Flows) existing(ctx context.Context, ids []string) (map[string]bool, error) {
	text, err := toJSON(ids)
	if err != nil {
		return nil, err
	}
	found, err := db.Collect(ctx, s.sandboxes, func(row db.Scanner) (id string, err error) { return id, row.Scan(&id) },
		`SELECT id FROM sandboxes WHERE id IN (SELECT value FROM json_each(?))`, text)
	if err != nil {
		return nil, fmt.Errorf("look for the sandboxes of flows: %w", err)
	}
	exist := make(map[string]bool, len(found))
	for _, id := range found {
		exist[id] = true
	}
	return exist, nil
}

// oldIDs is subtracted from the ids of records that move, so that they stay the oldest.
const oldIDs = 1 << 40

// MoveFlows moves the records of one sandbox that an earlier version wrote into the
// database of sandboxes. It returns false if no such records are left. Other methods move the
// records of the sandbox that they are about first.
func (s *Flows) MoveFlows(ctx context.Context) (more bool, err error) {
	if s.moved.Load() {
		return false, nil
	}
	var id string
	if err := s.sandboxes.QueryRow(ctx, `SELECT coalesce(min(sandbox_id), '') FROM sandbox_flows`).Scan(&id); err != nil {
		return false, fmt.Errorf("look for flows of an earlier version: %w", err)
	}
	if id == "" {
		s.moved.Store(true)
		return false, nil
	}
	_, err = s.moveOf(ctx, id)
	return err == nil, err
}

// moveOf moves the records of a sandbox. They are on the disk in their new place before
// they leave the old one; a record that moves again, after a crash, is there already.
func (s *Flows) moveOf(ctx context.Context, id string) (n int, err error) {
	if s.moved.Load() {
		return 0, nil
	}
	s.moving.Lock()
	defer s.moving.Unlock()
	type row struct {
		id, seq, time   int64
		verdict, record string
	}
	rows, err := db.Collect(ctx, s.sandboxes, func(from db.Scanner) (r row, err error) {
		return r, from.Scan(&r.id, &r.seq, &r.time, &r.verdict, &r.record)
	}, `SELECT id, seq, time, verdict, record FROM sandbox_flows WHERE sandbox_id = ?`, id)
	if err != nil {
		return 0, fmt.Errorf("read flows of an earlier version: %w", err)
	}
	if len(rows) == 0 {
		return 0, nil
	}
	err = s.db.Write(ctx, func(tx *db.Tx) error {
		for _, r := range rows {
			// No connection of the process that wrote the record is open.
			if _, err := tx.Exec(ctx, `INSERT INTO flows (id, sandbox_id, seq, time, verdict, open, record) VALUES (?, ?, ?, ?, ?, 0, ?)
				ON CONFLICT DO NOTHING`, r.id-oldIDs, id, r.seq, r.time, r.verdict, r.record); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("move flows of an earlier version: %w", err)
	}
	if _, err := s.sandboxes.Unsynced().Exec(ctx, `DELETE FROM sandbox_flows WHERE sandbox_id = ?`, id); err != nil {
		return 0, fmt.Errorf("remove flows that have moved: %w", err)
	}
	return len(rows), nil
}
