// Package copies fills a database with sandboxes that have ended, for benchmarks.
package copies

import (
	"context"
	"fmt"
	"strings"

	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/db"
)

// batch is how many rows one transaction adds.
const batch = 200_000

// Ended adds n copies of an ended sandbox with a session each, spread over teams, of which
// the default team is one. Each copy was created a second before the previous one. Quotas do
// not count the copies.
func Ended(ctx context.Context, d *db.DB, id string, teams, n int) (err error) {
	// The writer's cache of pages is made for single rows.
	if _, err := d.Exec(ctx, `PRAGMA cache_size = -1000000`); err != nil {
		return err
	}
	defer func() {
		if _, cerr := d.Exec(ctx, `PRAGMA cache_size = -2000`); err == nil {
			err = cerr
		}
	}()
	sandboxes, err := insert(ctx, d, "sandboxes", "id", teams)
	if err != nil {
		return err
	}
	sessions, err := insert(ctx, d, "sandbox_sessions", "sandbox_id", teams)
	if err != nil {
		return err
	}
	for first := 1; first <= n; first += batch {
		for _, q := range []string{sandboxes, sessions} {
			if _, err := d.Unsynced().Exec(ctx, q, first, min(n, first+batch-1), id); err != nil {
				return fmt.Errorf("copy sandbox %s: %w", id, err)
			}
		}
	}
	return nil
}

// insert returns the statement that adds the copies of a table's row with a key, from one
// number to another.
func insert(ctx context.Context, d *db.DB, table, key string, teams int) (string, error) {
	differing := map[string]string{
		"id": "printf('sbx_%026d', n)", "name": "'copy-' || n", "created_at": "created_at - 1000 * n",
		"session_id": "printf('ses_%026d', n)", "sandbox_id": "printf('sbx_%026d', n)",
		"team_id":    fmt.Sprintf("CASE n %% %d WHEN 0 THEN '%s' ELSE 'team_' || n %% %[1]d END", teams, account.DefaultTeam),
		"project_id": fmt.Sprintf("CASE n %% %d WHEN 0 THEN '%s' ELSE 'project_' || n %% %[1]d END", teams, account.DefaultProject),
	}
	if table == "sandbox_sessions" {
		differing["id"] = differing["session_id"]
	}
	names, err := db.Collect(ctx, d, db.Column[string], `SELECT name FROM pragma_table_info('`+table+`')`)
	if err != nil {
		return "", fmt.Errorf("read columns of %s: %w", table, err)
	}
	values := make([]string, len(names))
	for i, name := range names {
		if values[i] = differing[name]; values[i] == "" {
			values[i] = name
		}
	}
	return `WITH RECURSIVE numbers (n) AS (SELECT ? UNION ALL SELECT n + 1 FROM numbers WHERE n < ?)
		INSERT INTO ` + table + ` (` + strings.Join(names, ", ") + `) SELECT ` + strings.Join(values, ", ") + ` FROM numbers, ` + table + ` WHERE ` + key + ` = ?`, nil
}
