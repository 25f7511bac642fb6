package ledger

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/db"
)

// definitions returns all budget definitions.
func (s store) definitions(ctx context.Context) (map[spender]*definition, error) {
	rows, err := s.db.Query(ctx, `SELECT team_id, scope, ref, params, created_at FROM gateway_budgets`)
	if err != nil {
		return nil, fmt.Errorf("read budgets: %w", err)
	}
	defer rows.Close()
	all := make(map[spender]*definition)
	for rows.Next() {
		var id spender
		var params string
		var created int64
		if err := rows.Scan(&id.team, &id.scope, &id.ref, &params, &created); err != nil {
			return nil, fmt.Errorf("read budgets: %w", db.Error(err))
		}
		def := &definition{createdAt: fromMillis(created)}
		if err := json.Unmarshal([]byte(params), &def.BudgetParams); err != nil {
			return nil, fmt.Errorf("the budget of %s: %w", id.text(), err)
		}
		if scopeIndex(id.scope) < 0 {
			return nil, fmt.Errorf("a budget is of the unknown scope %q", id.scope)
		}
		all[id] = def
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read budgets: %w", db.Error(err))
	}
	return all, nil
}

// setDefinition writes a budget. fresh resets the spent amount.
func (s store) setDefinition(ctx context.Context, id spender, def *definition, fresh bool) error {
	return s.db.Write(ctx, func(tx *db.Tx) error {
		if fresh {
			if err := forgetSpending(ctx, tx, id); err != nil {
				return err
			}
		}
		return insertDefinition(ctx, tx, id, def)
	})
}

// forgetSpending deletes the spending rows of spenders that id covers and that have no
// budget of their own, so that the new budget begins at 0 for them.
func forgetSpending(ctx context.Context, tx *db.Tx, id spender) error {
	_, err := tx.Exec(ctx, `DELETE FROM gateway_spending WHERE (? = '' OR team_id = ?) AND scope = ? AND (? = '' OR ref = ?)
		AND NOT EXISTS (SELECT 1 FROM gateway_budgets b WHERE b.team_id = gateway_spending.team_id AND b.scope = gateway_spending.scope AND b.ref = gateway_spending.ref)`,
		id.team, id.team, id.scope, id.ref, id.ref)
	if err != nil {
		return fmt.Errorf("forget what was spent: %w", err)
	}
	return nil
}

func insertDefinition(ctx context.Context, tx *db.Tx, id spender, def *definition) error {
	var n int
	if err := tx.QueryRow(ctx, `SELECT count(*) FROM gateway_budgets WHERE team_id = ?`, id.team).Scan(&n); err != nil {
		return err
	}
	if n >= maxBudgets {
		return cay.Errorf(cay.QuotaExceeded, "team %q has %d budgets, as many as it may have", id.team, n).WithHint("set a default for the scope instead")
	}
	params, err := json.Marshal(def.BudgetParams)
	if err != nil {
		return fmt.Errorf("encode budget: %w", err)
	}
	if _, err := tx.Exec(ctx, `INSERT INTO gateway_budgets (team_id, scope, ref, params, created_at) VALUES (?, ?, ?, ?, ?)
		ON CONFLICT (team_id, scope, ref) DO UPDATE SET params = excluded.params`,
		id.team, id.scope, id.ref, string(params), def.createdAt.UnixMilli()); err != nil {
		return fmt.Errorf("set budget: %w", err)
	}
	return nil
}

func (s store) deleteDefinition(ctx context.Context, id spender) error {
	return s.db.Write(ctx, func(tx *db.Tx) error { return deleteDefinition(ctx, tx, id) })
}

func deleteDefinition(ctx context.Context, tx *db.Tx, id spender) error {
	if _, err := tx.Exec(ctx, `DELETE FROM gateway_budgets WHERE team_id = ? AND scope = ? AND ref = ?`, id.team, id.scope, id.ref); err != nil {
		return fmt.Errorf("delete budget: %w", err)
	}
	return nil
}
