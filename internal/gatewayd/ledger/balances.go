package ledger

import (
	"slices"
	"time"

	"github.com/cayhq/cay/gateway"
)

// balances are the definitions of all budgets, and the balances that are in memory. They
// are guarded by memory.mu.
type balances struct {
	teams    map[string]*teamBudgets
	fallback *definition // the default budget of teams
	count    int         // of balances
	dirty    []*balance  // to be written with the next group
}

// teamBudgets holds the budgets of a team.
type teamBudgets struct {
	scopes [len(scopes)]scopeBudgets
}

type scopeBudgets struct {
	own      map[string]*definition
	fallback *definition // the default of the scope
	balances map[string]*balance
}

func scopeIndex(s gateway.Scope) int { return slices.Index(scopes[:], s) }

// team returns a team's budgets.
func (b *balances) team(id string) *teamBudgets {
	t := b.teams[id]
	if t == nil {
		t = new(teamBudgets)
		b.teams[id] = t
	}
	return t
}

// find returns the balance of a spender. a is nil if no budget applies; missing is true
// if a budget applies whose spending has to be read from the database first.
func (b *balances) find(t *teamBudgets, scope int, ref string) (a *balance, missing bool) {
	if ref == "" {
		return nil, false
	}
	s := &t.scopes[scope]
	if a = s.balances[ref]; a != nil {
		return a, false
	}
	return nil, s.definition(ref, scope, b.fallback) != nil
}

// definition returns the budget that applies to ref, nil if there is none; teams is the
// default budget of teams.
func (s *scopeBudgets) definition(ref string, scope int, teams *definition) *definition {
	if def := s.own[ref]; def != nil {
		return def
	}
	if scopes[scope] == gateway.ScopeTeam {
		return teams
	}
	return s.fallback
}

// charged appends to dst the balances that a call of c is charged to, and returns the spenders
// whose balances have to be read first.
func (b *balances) charged(dst []share, c *Caller) (_ []share, missing []spender) {
	t := b.teams[c.TeamID]
	if t == nil {
		if b.fallback == nil {
			return dst, nil
		}
		t = b.team(c.TeamID)
	}
	one := func(scope int, ref string) {
		a, miss := b.find(t, scope, ref)
		if miss {
			missing = append(missing, spender{c.TeamID, scopes[scope], ref})
		}
		if a != nil {
			dst = append(dst, share{balance: a})
		}
	}
	one(0, c.TeamID)
	one(1, c.ProjectID)
	one(2, c.KeyID)
	one(3, c.User)
	for i, tag := range c.Tags {
		if !slices.Contains(c.Tags[:i], tag) {
			one(4, tag)
		}
	}
	return dst, missing
}

// add adds the balance of id; row is its row in the database, nil if there is no row. add
// does nothing if no budget applies to id any more, or if another goroutine has added the
// balance meanwhile.
func (b *balances) add(id spender, row *spending, now time.Time) {
	scope := scopeIndex(id.scope)
	s := &b.team(id.team).scopes[scope]
	if s.balances[id.ref] != nil {
		return
	}
	def := s.definition(id.ref, scope, b.fallback)
	if def == nil {
		return
	}
	a := &balance{id: id, def: def, touched: now}
	if row != nil {
		a.since, a.spent, a.unsettled, a.alerted, a.leased = row.since, row.spent, row.unsettled, row.alerted, row.held
	} else if a.since = periodStart(def.Period, now); def.createdAt.After(a.since) {
		a.since = def.createdAt
	}
	if s.balances == nil {
		s.balances = make(map[string]*balance)
	}
	s.balances[id.ref] = a
	b.count++
}

// mark marks a balance to be written with the next group.
func (b *balances) mark(a *balance) {
	if !a.dirty {
		a.dirty = true
		b.dirty = append(b.dirty, a)
	}
}

// gather returns the state that the marked balances and those of holds are to have in the
// database once the records of holds are written. From then until advance or mark,
// admitted amounts must be covered in both states.
func (b *balances) gather(holds []*hold, now time.Time, closed bool) (all []snapshot) {
	for _, h := range holds {
		for i := range h.shares {
			if h.shares[i].amount > 0 {
				b.mark(h.shares[i].balance)
			}
		}
	}
	for _, a := range b.dirty {
		a.roll(now)
		a.inflight = 0
	}
	for _, h := range holds {
		for i := range h.shares {
			a := h.shares[i].balance
			a.inflight = a.inflight.Plus(h.shares[i].amount)
		}
	}
	for _, a := range b.dirty {
		a.dirty = false
		if a.gone {
			continue
		}
		idle := closed || a.users == 0 && now.Sub(a.touched) >= idleAfter
		spent := a.spent.Plus(a.inflight)
		a.committing, a.next = true, a.lease(a.inflight, idle)
		all = append(all, snapshot{a, spending{
			since: a.since, spent: spent, held: a.next, unsettled: a.unsettled, alerted: a.alerts(spent),
		}})
	}
	b.dirty = b.dirty[:0]
	return all
}

// sweep marks idle balances that hold amounts, and reports whether there are any. It
// drops idle balances that hold nothing if there are too many balances.
func (b *balances) sweep(now time.Time) (marked bool) {
	for _, t := range b.teams {
		for i := range t.scopes {
			s := &t.scopes[i]
			for ref, a := range s.balances {
				switch {
				case a.users > 0 || now.Sub(a.touched) < idleAfter || a.dirty || a.committing:
				case a.leased > 0:
					b.mark(a)
					marked = true
				case b.count > maxAccounts:
					delete(s.balances, ref)
					b.count--
				}
			}
		}
	}
	return marked
}

// release marks all balances that hold amounts.
func (b *balances) release() {
	for _, t := range b.teams {
		for i := range t.scopes {
			for _, a := range t.scopes[i].balances {
				if a.leased > 0 {
					b.mark(a)
				}
			}
		}
	}
}

// definition returns the budget that was set for exactly id.
func (b *balances) definition(id spender) *definition {
	if id.team == "" {
		return b.fallback
	}
	t := b.teams[id.team]
	if t == nil {
		return nil
	}
	s := &t.scopes[scopeIndex(id.scope)]
	if id.ref == "" {
		return s.fallback
	}
	return s.own[id.ref]
}

// applying returns the budget that applies to id.
func (b *balances) applying(id spender) *definition {
	if id.ref == "" {
		return b.definition(id)
	}
	scope := scopeIndex(id.scope)
	return b.team(id.team).scopes[scope].definition(id.ref, scope, b.fallback)
}

// define sets a budget, or deletes it if def is nil. The balances that id covers keep
// their definitions until apply.
func (b *balances) define(id spender, def *definition) {
	if id.team == "" {
		b.fallback = def
		return
	}
	s := &b.team(id.team).scopes[scopeIndex(id.scope)]
	switch {
	case id.ref == "":
		s.fallback = def
	case def == nil:
		delete(s.own, id.ref)
	default:
		if s.own == nil {
			s.own = make(map[string]*definition)
		}
		s.own[id.ref] = def
	}
}

// apply gives each balance that id covers the definition that now applies to it.
func (b *balances) apply(id spender) {
	scope := scopeIndex(id.scope)
	one := func(s *scopeBudgets, a *balance) {
		if def := s.definition(a.id.ref, scope, b.fallback); def != nil {
			a.def = def
			return
		}
		a.gone = true
		delete(s.balances, a.id.ref)
		b.count--
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

// defined returns the spenders that have a budget of their own.
func (b *balances) defined(team string, all bool) (ids []spender) {
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

// budget returns the budget def of id in the form that users see; its spent amount is
// included only if the balance is in memory.
func (b *balances) budget(id spender, def *definition, now time.Time) *gateway.Budget {
	if id.ref != "" {
		if a := b.team(id.team).scopes[scopeIndex(id.scope)].balances[id.ref]; a != nil {
			a.roll(now)
			return a.budget()
		}
	}
	out := &gateway.Budget{
		BudgetID: gateway.BudgetID{Scope: id.scope, Ref: id.ref}, BudgetParams: def.BudgetParams,
		Since: periodStart(def.Period, now), ResetAt: periodEnd(def.Period, now),
	}
	if def.createdAt.After(out.Since) {
		out.Since = def.createdAt
	}
	return out
}
