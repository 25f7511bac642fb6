package ledger

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/db"
)

// keys returns all keys.
func (s store) keys(ctx context.Context) ([]*key, error) {
	rows, err := s.db.Query(ctx, `SELECT id, hash, team_id, project_id, name, prefix, scope, tags, disabled, created_at, expires_at FROM gateway_keys`)
	if err != nil {
		return nil, fmt.Errorf("read keys: %w", err)
	}
	defer rows.Close()
	var all []*key
	for rows.Next() {
		k, err := scanKey(rows)
		if err != nil {
			return nil, fmt.Errorf("read keys: %w", db.Error(err))
		}
		all = append(all, k)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read keys: %w", db.Error(err))
	}
	return all, nil
}

func scanKey(rows *sql.Rows) (*key, error) {
	k := &key{k: new(gateway.Key), rates: new(rates)}
	var h []byte
	var scope, tags string
	var created int64
	var expires sql.NullInt64
	if err := rows.Scan(&k.k.ID, &h, &k.k.TeamID, &k.k.ProjectID, &k.k.Name, &k.k.Prefix, &scope, &tags, &k.k.Disabled, &created, &expires); err != nil {
		return nil, err
	}
	if copy(k.hash[:], h) != len(k.hash) {
		return nil, fmt.Errorf("the hash of key %s has %d bytes", k.k.ID, len(h))
	}
	k.k.CreatedAt, k.k.ExpiresAt = fromMillis(created), nullTime(expires)
	if err := errors.Join(json.Unmarshal([]byte(scope), &k.k.KeyScope), json.Unmarshal([]byte(tags), &k.k.Tags)); err != nil {
		return nil, fmt.Errorf("key %s: %w", k.k.ID, err)
	}
	return k, nil
}

// insertKey adds a key, and its budget if budget is not nil.
func (s store) insertKey(ctx context.Context, k *key, budget *gateway.BudgetParams) error {
	scope, tags, err := keyJSON(k.k)
	if err != nil {
		return err
	}
	return s.db.Write(ctx, func(tx *db.Tx) error {
		var n int
		if err := tx.QueryRow(ctx, `SELECT count(*) FROM gateway_keys WHERE team_id = ?`, k.k.TeamID).Scan(&n); err != nil {
			return err
		}
		if n >= maxKeys {
			return cay.Errorf(cay.QuotaExceeded, "team %q has %d keys, as many as it may have", k.k.TeamID, n).WithHint("delete some that are not needed")
		}
		if _, err := tx.Exec(ctx, `INSERT INTO gateway_keys (id, hash, team_id, project_id, name, prefix, scope, tags, disabled, created_at, expires_at)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
			k.k.ID, k.hash[:], k.k.TeamID, k.k.ProjectID, k.k.Name, k.k.Prefix, scope, tags, k.k.Disabled, k.k.CreatedAt.UnixMilli(), millisOrNull(k.k.ExpiresAt)); err != nil {
			return fmt.Errorf("insert key: %w", err)
		}
		if budget == nil {
			return nil
		}
		return insertDefinition(ctx, tx, spender{k.k.TeamID, gateway.ScopeKey, k.k.ID}, &definition{*budget, k.k.CreatedAt})
	})
}

func keyJSON(k *gateway.Key) (scope, tags string, err error) {
	s, err := json.Marshal(k.KeyScope)
	if err != nil {
		return "", "", fmt.Errorf("encode scope of key: %w", err)
	}
	t, err := json.Marshal(k.Tags)
	if err != nil {
		return "", "", fmt.Errorf("encode tags of key: %w", err)
	}
	return string(s), string(t), nil
}

// updateKey writes the fields of a key that can change.
func (s store) updateKey(ctx context.Context, k *key) error {
	scope, tags, err := keyJSON(k.k)
	if err != nil {
		return err
	}
	_, err = s.db.Exec(ctx, `UPDATE gateway_keys SET name = ?, scope = ?, tags = ?, disabled = ?, expires_at = ? WHERE id = ?`,
		k.k.Name, scope, tags, k.k.Disabled, millisOrNull(k.k.ExpiresAt), k.k.ID)
	if err != nil {
		return fmt.Errorf("update key: %w", err)
	}
	return nil
}

// deleteKey deletes a key with its budget.
func (s store) deleteKey(ctx context.Context, team, id string) error {
	return s.db.Write(ctx, func(tx *db.Tx) error {
		if _, err := tx.Exec(ctx, `DELETE FROM gateway_keys WHERE id = ?`, id); err != nil {
			return fmt.Errorf("delete key: %w", err)
		}
		return deleteDefinition(ctx, tx, spender{team, gateway.ScopeKey, id})
	})
}

// lastUsed returns when a key was last used, nil for never.
func (s store) lastUsed(ctx context.Context, id string) (*time.Time, error) {
	var used sql.NullInt64
	err := s.db.QueryRow(ctx, `SELECT last_used_at FROM gateway_keys WHERE id = ?`, id).Scan(&used)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return nil, fmt.Errorf("read key: %w", err)
	}
	return nullTime(used), nil
}

// listKeys returns the ids of keys, newest first, and when they were last used.
func (s store) listKeys(ctx context.Context, team, project string, after position, limit int) (ids []string, used []*time.Time, err error) {
	rows, err := s.db.Query(ctx, `SELECT id, last_used_at FROM gateway_keys WHERE team_id = ? AND (? = '' OR project_id = ?)
		AND (? = '' OR (created_at, id) < (?, ?)) ORDER BY created_at DESC, id DESC LIMIT ?`,
		team, project, project, after.ID, after.At, after.ID, limit)
	if err != nil {
		return nil, nil, fmt.Errorf("list keys: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		var at sql.NullInt64
		if err := rows.Scan(&id, &at); err != nil {
			return nil, nil, fmt.Errorf("list keys: %w", db.Error(err))
		}
		ids, used = append(ids, id), append(used, nullTime(at))
	}
	if err := rows.Err(); err != nil {
		return nil, nil, fmt.Errorf("list keys: %w", db.Error(err))
	}
	return ids, used, nil
}
