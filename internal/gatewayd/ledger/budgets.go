package ledger

import (
	"context"
	"slices"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
)

// maxBudgets is the maximum number of budgets of a team; all budgets are kept in memory.
const maxBudgets = 10_000

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
func (b *Book) SetBudget(ctx context.Context, team string, id gateway.BudgetID, p gateway.BudgetParams) (*gateway.Budget, error) {
	b.change.Lock()
	defer b.change.Unlock()
	at := idOf(team, id)
	def := &definition{p, b.timestamp()}
	if old := b.definition(at); old != nil {
		def.createdAt = old.createdAt
	}
	// A new budget does not inherit the spending of a deleted budget with the same id.
	if err := b.store.setDefinition(ctx, at, def, b.applying(at) == nil); err != nil {
		return nil, err
	}
	b.define(at, def)
	return b.getBudget(ctx, at)
}

// GetBudget returns the budget that applies to a spender: the spender's own, or the
// default of the scope. An empty Ref selects the default itself. Errors: not_found.
func (b *Book) GetBudget(ctx context.Context, team string, id gateway.BudgetID) (*gateway.Budget, error) {
	return b.getBudget(ctx, idOf(team, id))
}

func (b *Book) getBudget(ctx context.Context, id spender) (*gateway.Budget, error) {
	if err := b.flush(ctx, false); err != nil {
		return nil, err
	}
	def := b.applying(id)
	if def == nil {
		return nil, cay.Errorf(cay.NotFound, "%s has no budget", id.text())
	}
	if id.ref != "" {
		if err := b.ensure(ctx, id); err != nil {
			return nil, err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.budgetLocked(id, def), nil
}

// ensure loads a balance into memory.
func (b *Book) ensure(ctx context.Context, id spender) error {
	b.mu.Lock()
	_, missing := b.findLocked(b.teamLocked(id.team), scopeIndex(id.scope), id.ref)
	b.mu.Unlock()
	if !missing {
		return nil
	}
	return b.read(ctx, []spender{id})
}

// budgetLocked returns a budget; its spent amount is included only if the balance is in
// memory.
func (b *Book) budgetLocked(id spender, def *definition) *gateway.Budget {
	if id.ref != "" {
		if a := b.teamLocked(id.team).scopes[scopeIndex(id.scope)].balances[id.ref]; a != nil {
			a.roll(b.now())
			return a.budget()
		}
	}
	now := b.now()
	out := &gateway.Budget{
		BudgetID: gateway.BudgetID{Scope: id.scope, Ref: id.ref}, BudgetParams: def.BudgetParams,
		Since: periodStart(def.Period, now), ResetAt: periodEnd(def.Period, now),
	}
	if def.createdAt.After(out.Since) {
		out.Since = def.createdAt
	}
	return out
}

// ListBudgets lists a team's budgets of all scopes, sorted by scope and Ref; all includes
// the default of teams. Errors: invalid (the cursor).
func (b *Book) ListBudgets(ctx context.Context, team string, all bool, limit int, cursor string) (*gateway.Page[gateway.Budget], error) {
	after, err := parseBudgetCursor(cursor)
	if err != nil {
		return nil, err
	}
	if err := b.flush(ctx, false); err != nil {
		return nil, err
	}
	ids := b.defined(team, all)
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

// defined returns the spenders that have a budget of their own.
func (b *Book) defined(team string, all bool) (ids []spender) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if all && b.fallback != nil {
		ids = append(ids, spender{"", gateway.ScopeTeam, ""})
	}
	t := b.teams[team]
	if t == nil {
		return ids
	}
	for i := range t.scopes {
		if t.scopes[i].fallback != nil {
			ids = append(ids, spender{team, scopes[i], ""})
		}
		for ref := range t.scopes[i].own {
			ids = append(ids, spender{team, scopes[i], ref})
		}
	}
	return ids
}

// DeleteBudget deletes a budget. From then on the default of the scope applies to the
// spender, if a default is set, and the amount already spent counts against it. Errors:
// not_found.
func (b *Book) DeleteBudget(ctx context.Context, team string, id gateway.BudgetID) error {
	b.change.Lock()
	defer b.change.Unlock()
	at := idOf(team, id)
	if b.definition(at) == nil {
		return cay.Errorf(cay.NotFound, "%s has no budget of its own", at.text())
	}
	if err := b.store.deleteDefinition(ctx, at); err != nil {
		return err
	}
	b.undefine(at)
	return nil
}

// definition returns the budget that was set for exactly id.
func (b *Book) definition(id spender) *definition {
	b.mu.Lock()
	defer b.mu.Unlock()
	if id.team == "" {
		return b.fallback
	}
	s := &b.teamLocked(id.team).scopes[scopeIndex(id.scope)]
	if id.ref == "" {
		return s.fallback
	}
	return s.own[id.ref]
}

// applying returns the budget that applies to id.
func (b *Book) applying(id spender) *definition {
	if id.ref == "" {
		return b.definition(id)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	scope := scopeIndex(id.scope)
	return b.teamLocked(id.team).scopes[scope].definition(id.ref, scope, b)
}

func (b *Book) define(id spender, def *definition) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.defineLocked(id, def)
	b.applyLocked(id)
}

func (b *Book) defineLocked(id spender, def *definition) {
	if id.team == "" {
		b.fallback = def
		return
	}
	s := &b.teamLocked(id.team).scopes[scopeIndex(id.scope)]
	if id.ref == "" {
		s.fallback = def
		return
	}
	if s.own == nil {
		s.own = make(map[string]*definition)
	}
	s.own[id.ref] = def
}

func (b *Book) undefine(id spender) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case id.team == "":
		b.fallback = nil
	case id.ref == "":
		b.teamLocked(id.team).scopes[scopeIndex(id.scope)].fallback = nil
	default:
		delete(b.teamLocked(id.team).scopes[scopeIndex(id.scope)].own, id.ref)
	}
	b.applyLocked(id)
}

// applyLocked gives each balance that id covers the definition that now applies to it.
func (b *Book) applyLocked(id spender) {
	scope := scopeIndex(id.scope)
	one := func(s *scopeBudgets, a *balance) {
		if def := s.definition(a.id.ref, scope, b); def != nil {
			a.def = def
			return
		}
		a.gone = true
		delete(s.balances, a.id.ref)
		b.balances--
	}
	for team, t := range b.teams {
		if id.team != "" && team != id.team {
			continue
		}
		s := &t.scopes[scope]
		for ref, a := range s.balances {
			if id.ref == "" || id.ref == ref {
				one(s, a)
			}
		}
	}
}

// Credits returns the remaining and the spent amount of the budget that has the least
// left for c. ok is false if no budget applies.
func (b *Book) Credits(ctx context.Context, c *Caller) (left, spent gateway.Money, ok bool, err error) {
	if err := b.flush(ctx, false); err != nil {
		return 0, 0, false, err
	}
	var shares []share
	b.mu.Lock()
	for {
		var missing []spender
		if shares, missing = b.balancesOfLocked(nil, c); len(missing) == 0 {
			break
		}
		b.mu.Unlock()
		if err := b.read(ctx, missing); err != nil {
			return 0, 0, false, err
		}
		b.mu.Lock()
	}
	defer b.mu.Unlock()
	now := b.now()
	for _, s := range shares {
		s.balance.roll(now)
		if l := max(0, s.balance.left()); !ok || l < left {
			left, spent, ok = l, s.balance.spent, true
		}
	}
	return left, spent, ok, nil
}
