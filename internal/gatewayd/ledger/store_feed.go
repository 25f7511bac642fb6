package ledger

import (
	"context"
	"fmt"

	"github.com/cayhq/cay/internal/db"
)

// position returns the sequence number of the record id in the order in which records
// became durable; the end of that order if the team or project cannot see such a record.
func (s store) position(ctx context.Context, team, project, id string) (seq int64, err error) {
	err = s.db.QueryRow(ctx, `SELECT coalesce(
			(SELECT seq FROM gateway_requests WHERE id = ? AND team_id = ? AND (? = '' OR project_id = ?)),
			(SELECT max(seq) FROM gateway_requests), 0)`, id, team, project, project).Scan(&seq)
	if err != nil {
		return 0, fmt.Errorf("find the last request: %w", err)
	}
	return seq, nil
}

// after appends to the feed the records after its position, and reports whether there may
// be more than one page.
func (s store) after(ctx context.Context, f *Feed) (more bool, err error) {
	var last int64
	if err := s.db.QueryRow(ctx, `SELECT coalesce(max(seq), 0) FROM gateway_requests`).Scan(&last); err != nil {
		return false, fmt.Errorf("find the last request: %w", err)
	}
	if last < f.seq { // all records were deleted, and sequence numbers started again
		f.seq = 0
	}
	sel := selectRequests(f.team, f.project)
	sel.filter(&f.filter)
	sel.and(`r.seq > ? AND r.seq <= ?`, f.seq, last)
	rows, err := s.db.Query(ctx, `SELECT r.seq, r.record FROM gateway_requests r WHERE `+sel.where.String()+` ORDER BY r.seq LIMIT ?`, append(sel.args, feedPage)...)
	if err != nil {
		return false, fmt.Errorf("read new requests: %w", err)
	}
	defer rows.Close()
	f.have = f.have[:0:0]
	for rows.Next() {
		var record string
		if err := rows.Scan(&f.seq, &record); err != nil {
			return false, fmt.Errorf("read new requests: %w", db.Error(err))
		}
		r, err := decodeRequest(record)
		if err != nil {
			return false, fmt.Errorf("read new requests: %w", err)
		}
		f.have = append(f.have, *r)
	}
	if err := rows.Err(); err != nil {
		return false, fmt.Errorf("read new requests: %w", db.Error(err))
	}
	if len(f.have) == feedPage {
		return true, nil
	}
	f.seq = last
	return false, nil
}
