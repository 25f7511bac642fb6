package store

import (
	"context"
	"fmt"
	"time"

	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/sandbox"
)

// maxPruned is how many pruned snapshots PruneSnapshots lists.
const maxPruned = 200

// unneeded is the condition that a stop made the snapshot and that no sandbox starts from
// it.
const unneeded = isAutomatic + ` AND NOT ` + needed

// PruneSnapshots deletes the automatic snapshots of a scope that were created by that
// time and that no sandbox starts from, and lists them. A dry run only lists them.
func (s *Store) PruneSnapshots(ctx context.Context, sc Scope, by time.Time, dryRun bool, now time.Time) (*sandbox.SnapshotPrune, error) {
	const which = `WHERE ` + unneeded + ` AND team_id = ? AND (? = '' OR project_id = ?) AND created_at <= ?`
	args := []any{sc.Team, sc.Project, sc.Project, by.UnixMilli()}
	var p *sandbox.SnapshotPrune
	prune := func(tx *db.Tx) error {
		p = &sandbox.SnapshotPrune{Snapshots: []sandbox.Snapshot{}}
		err := tx.QueryRow(ctx, `SELECT count(*), coalesce(sum(size_bytes), 0) FROM sandbox_snapshots `+which, args...).Scan(&p.Count, &p.SizeBytes)
		if err != nil {
			return err
		}
		rows, err := shownSnapshots(ctx, tx, which+` ORDER BY created_at, id LIMIT ?`, append(args, maxPruned)...)
		if err != nil {
			return err
		}
		for _, r := range rows {
			p.Snapshots = append(p.Snapshots, r.Snapshot)
		}
		if dryRun {
			return nil
		}
		_, err = tx.Exec(ctx, deleteSnapshots+which, append([]any{now.UnixMilli()}, args...)...)
		return err
	}
	in := s.db.Write
	if dryRun {
		in = s.db.Read
	}
	if err := in(ctx, prune); err != nil {
		return nil, fmt.Errorf("prune snapshots: %w", err)
	}
	return p, nil
}

// maxUnneeded is how many snapshots unneededSnapshots adds up.
const maxUnneeded = 10_000

// unneededSnapshots returns the number of a team's snapshots that a prune would delete,
// and their bytes, up to maxUnneeded.
func unneededSnapshots(ctx context.Context, q rowQuerier, team string) (n int, bytes int64, err error) {
	err = q.QueryRow(ctx, `SELECT count(*), coalesce(sum(size_bytes), 0) FROM
		(SELECT size_bytes FROM sandbox_snapshots WHERE `+unneeded+` AND team_id = ? LIMIT ?)`, team, maxUnneeded).Scan(&n, &bytes)
	if err != nil {
		return 0, 0, fmt.Errorf("add up old snapshots: %w", err)
	}
	return n, bytes, nil
}
