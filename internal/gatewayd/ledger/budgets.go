package ledger

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
)

// maxBudgets is the maximum number of budgets of a team; all budgets are kept in memory.
const maxBudgets = 10_000

// budgets sets and shows budgets. Definitions are durable before memory has them.
type budgets struct {
	memory *memory
	store  store
	writer *writer
	now    func() time.Time
	change *sync.Mutex // held while definitions and keys change; shared with keyring, locked before memory.mu
}

// idOf returns the spender that a team's budget is for. The default of teams belongs to
// no team.
func idOf(team string, id gateway.BudgetID) spender {
	if id.Scope == gateway.ScopeTeam && id.Ref == "" {
		team = ""
	}
	return spender{team, id.Scope, id.Ref}
}

// SetBudget creates a budget of a team, or replaces one and keeps its spent amount. A new
// budget counts from now. p must be valid. Errors: quota_exceeded (10,000 budgets).
func (b *budgets) SetBudget(ctx context.Context, team string, id gateway.BudgetID, p gateway.BudgetParams) (*gateway.Budget, error) {
	b.change.Lock()
	defer b.change.Unlock()
	at := idOf(team, id)
	def := &definition{p, timestamp(b.now())}
	if old := b.memory.definition(at); old != nil {
		def.createdAt = old.createdAt
	}
	// A new budget does not inherit the spending of a deleted budget with the same id.
	if err := b.store.setDefinition(ctx, at, def, b.memory.applying(at) == nil); err != nil {
		return nil, err
	}
	b.memory.define(at, def)
	return b.getBudget(ctx, at)
}

// GetBudget returns the budget that applies to a spender: the spender's own, or the
// default of the scope. An empty Ref selects the default itself. Errors: not_found.
func (b *budgets) GetBudget(ctx context.Context, team string, id gateway.BudgetID) (*gateway.Budget, error) {
	return b.getBudget(ctx, idOf(team, id))
}

func (b *budgets) getBudget(ctx context.Context, id spender) (*gateway.Budget, error) {
	if err := b.writer.flush(ctx, false); err != nil {
		return nil, err
	}
	def := b.memory.applying(id)
	if def == nil {
		return nil, cay.Errorf(cay.NotFound, "%s has no budget", id.text())
	}
	if id.ref != "" {
		if err := b.memory.ensure(ctx, id); err != nil {
			return nil, err
		}
	}
	return b.memory.budget(id, def), nil
}

// ListBudgets lists a team's budgets of all scopes, sorted by scope and Ref; all includes
// the default of teams. Errors: invalid (the cursor).
func (b *budgets) ListBudgets(ctx context.Context, team string, all bool, limit int, cursor string) (*gateway.Page[gateway.Budget], error) {
	after, err := parseBudgetCursor(cursor)
	if err != nil {
		return nil, err
	}
	if err := b.writer.flush(ctx, false); err != nil {
		return nil, err
	}
	ids := b.memory.defined(team, all)
	slices.SortFunc(ids, compareSpenders)
	page := &gateway.Page[gateway.Budget]{Items: []gateway.Budget{}}
	for _, id := range ids {
		if after != nil && compareSpenders(id, *after) <= 0 {
			continue
		}
		if len(page.Items) == limit {
			last := page.Items[limit-1]
			page.Next = budgetCursor(last.BudgetID)
			break
		}
		budget, err := b.getBudget(ctx, id)
		if cay.CodeOf(err) == cay.NotFound {
			continue // deleted meanwhile
		}
		if err != nil {
			return nil, err
		}
		page.Items = append(page.Items, *budget)
	}
	return page, nil
}

func compareSpenders(a, b spender) int {
	if c := scopeIndex(a.scope) - scopeIndex(b.scope); c != 0 {
		return c
	}
	return strings.Compare(a.ref, b.ref)
}

// DeleteBudget deletes a budget. From then on the default of the scope applies to the
// spender, if a default is set, and the amount already spent counts against it. Errors:
// not_found.
func (b *budgets) DeleteBudget(ctx context.Context, team string, id gateway.BudgetID) error {
	b.change.Lock()
	defer b.change.Unlock()
	at := idOf(team, id)
	if b.memory.definition(at) == nil {
		return cay.Errorf(cay.NotFound, "%s has no budget of its own", at.text())
	}
	if err := b.store.deleteDefinition(ctx, at); err != nil {
		return err
	}
	b.memory.define(at, nil)
	return nil
}

// Credits returns the remaining and the spent amount of the budget that has the least
// left for c. ok is false if no budget applies.
func (b *budgets) Credits(ctx context.Context, c *Caller) (left, spent gateway.Money, ok bool, err error) {
	if err := b.writer.flush(ctx, false); err != nil {
		return 0, 0, false, err
	}
	return b.memory.credits(ctx, c)
}
