package capture

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/secret"
)

var migrations = []db.Migration{{
	Name: "bodies of requests",
	SQL: `CREATE TABLE gateway_bodies (
		seq        INTEGER PRIMARY KEY,
		id         TEXT NOT NULL UNIQUE, -- generation id
		team_id    TEXT NOT NULL,
		project_id TEXT NOT NULL,
		created_at INTEGER NOT NULL,
		size       INTEGER NOT NULL, -- what it counts for in the quota
		sealed     BLOB NOT NULL     -- JSON of gateway.RequestBody
	);
	CREATE INDEX gateway_bodies_by_time ON gateway_bodies (created_at);`,
}}

const (
	// rowSize is the size of a row without its body, in bytes.
	rowSize = 256
	// someRows is the number of rows that one transaction deletes.
	someRows = 256
)

type row struct {
	id, team, project string
	at                time.Time
	body              []byte
}

type rows struct {
	db  *db.DB
	box *secret.Box
}

func openRows(ctx context.Context, d *db.DB, box *secret.Box) (rows, error) {
	return rows{d, box}, d.Migrate(ctx, "gateway-bodies", migrations)
}

func sealedFor(id string) string { return "gateway body " + id }

func (r rows) bytes(ctx context.Context) (n int64, err error) {
	if err = r.db.QueryRow(ctx, `SELECT coalesce(sum(size), 0) FROM gateway_bodies`).Scan(&n); err != nil {
		err = fmt.Errorf("add up bodies: %w", err)
	}
	return n, err
}

// put writes rows, and returns their total size.
func (r rows) put(ctx context.Context, all []row) (added int64, err error) {
	sealed := make([][]byte, len(all))
	for i := range all {
		sealed[i] = r.box.Seal(all[i].body, sealedFor(all[i].id))
	}
	err = r.db.Write(ctx, func(tx *db.Tx) error {
		added = 0
		for i, b := range all {
			size := int64(len(sealed[i]) + rowSize)
			if _, err := tx.Exec(ctx, `INSERT OR REPLACE INTO gateway_bodies (id, team_id, project_id, created_at, size, sealed) VALUES (?, ?, ?, ?, ?, ?)`,
				b.id, b.team, b.project, b.at.UnixMilli(), size, sealed[i]); err != nil {
				return err
			}
			added += size
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("write bodies: %w", err)
	}
	return added, nil
}

// shrink deletes the oldest rows, at least excess bytes, and returns the size deleted.
func (r rows) shrink(ctx context.Context, excess int64) (freed int64, err error) {
	for freed < excess {
		n, err := r.drop(ctx, `seq IN (SELECT seq FROM (SELECT seq, sum(size) OVER (ORDER BY seq) - size AS before FROM (SELECT seq, size FROM gateway_bodies ORDER BY seq LIMIT ?)) WHERE before < ?)`, someRows, excess-freed)
		if err != nil || n == 0 {
			return freed, err
		}
		freed += n
	}
	return freed, nil
}

// prune deletes the rows created before a time, and returns the size deleted.
func (r rows) prune(ctx context.Context, before time.Time) (freed int64, err error) {
	for {
		n, err := r.drop(ctx, `seq IN (SELECT seq FROM gateway_bodies WHERE created_at < ? ORDER BY created_at LIMIT ?)`, before.UnixMilli(), someRows)
		freed += n
		if err != nil || n == 0 {
			return freed, err
		}
	}
}

// drop deletes the rows that match a condition, and returns the size deleted.
func (r rows) drop(ctx context.Context, where string, args ...any) (freed int64, err error) {
	err = r.db.Write(ctx, func(tx *db.Tx) error {
		freed = 0
		if err := tx.QueryRow(ctx, `SELECT coalesce(sum(size), 0) FROM gateway_bodies WHERE `+where, args...).Scan(&freed); err != nil || freed == 0 {
			return err
		}
		_, err := tx.Exec(ctx, `DELETE FROM gateway_bodies WHERE `+where, args...)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("delete bodies: %w", err)
	}
	return freed, nil
}

func notFound(id string) error {
	return cay.Errorf(cay.NotFound, "of request %q no body is kept", id)
}

func (r rows) get(ctx context.Context, team, project, id string) ([]byte, error) {
	var sealed []byte
	err := r.db.QueryRow(ctx, `SELECT sealed FROM gateway_bodies WHERE id = ? AND team_id = ? AND (? = '' OR project_id = ?)`, id, team, project, project).Scan(&sealed)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, notFound(id)
	case err != nil:
		return nil, fmt.Errorf("read bodies: %w", err)
	}
	return r.box.Open(sealed, sealedFor(id))
}

// having sets in has the ids that are stored.
func (r rows) having(ctx context.Context, ids []string, has map[string]bool) error {
	if len(ids) == 0 {
		return nil
	}
	args := make([]any, len(ids))
	for i, id := range ids {
		args[i] = id
	}
	found, err := r.db.Query(ctx, `SELECT id FROM gateway_bodies WHERE id IN (?`+strings.Repeat(", ?", len(ids)-1)+`)`, args...)
	if err != nil {
		return fmt.Errorf("look for bodies: %w", err)
	}
	defer found.Close()
	for found.Next() {
		var id string
		if err := found.Scan(&id); err != nil {
			return fmt.Errorf("look for bodies: %w", err)
		}
		has[id] = true
	}
	return found.Err()
}

func (r rows) remove(ctx context.Context, team, project, id string) (freed int64, err error) {
	freed, err = r.drop(ctx, `id = ? AND team_id = ? AND (? = '' OR project_id = ?)`, id, team, project, project)
	if err == nil && freed == 0 {
		err = notFound(id)
	}
	return freed, err
}
