package ledger

import (
	"time"

	"github.com/cayhq/cay/gateway"
)

// scopes are the kinds of budgets, in the order in which they are asked.
var scopes = [...]gateway.Scope{gateway.ScopeTeam, gateway.ScopeProject, gateway.ScopeKey, gateway.ScopeUser, gateway.ScopeTag}

// spender names who spends: one of a scope, within a team.
type spender struct {
	team  string
	scope gateway.Scope
	ref   string
}

// definition is a budget as it was set.
type definition struct {
	gateway.BudgetParams
	createdAt time.Time
}

// balance counts what one that has a budget spends. Everything in it is guarded
// by Book.mu.
//
// What is admitted is open until it is settled, queued until its record is
// durable, then spent. The database has spent, and held, which bounds open and
// queued from above; leased is held as it was last written. While a commit is
// under way it is not known which of two states the database is in, and what is
// admitted must be covered in both.
type balance struct {
	id  spender
	def *definition // that applies; replaced, not changed
	// since is when the period began, or the budget was set, if that was later.
	since     time.Time
	spent     gateway.Money
	unsettled gateway.Money // part of spent
	alerted   int           // the highest percentage that was warned of in this period

	open   gateway.Money
	queued gateway.Money
	leased gateway.Money

	// Of the commit under way:
	committing bool
	inflight   gateway.Money // part of queued that becomes spent
	next       gateway.Money // becomes leased

	period  int  // counts periods
	dirty   bool // in Book.dirty
	users   int  // holds and queued records that point here
	touched time.Time
	gone    bool // its budget was deleted
}

// roll begins a new period if it is time. A clock that goes back to an earlier
// period changes nothing. What is held in the database is of the old period, so
// nothing is admitted before the new one is there.
func (a *balance) roll(now time.Time) {
	start := periodStart(a.def.Period, now)
	if !start.After(a.since) {
		return
	}
	a.since, a.spent, a.unsettled, a.alerted, a.leased = start, 0, 0, 0, 0
	a.period++
}

// left is how much may yet be admitted.
func (a *balance) left() gateway.Money {
	return a.def.Limit - a.spent.Plus(a.queued).Plus(a.open)
}

// covered reports whether the database holds enough for all that is open and
// queued, whatever becomes of the commit under way.
func (a *balance) covered() bool {
	all := a.open.Plus(a.queued)
	return all <= a.leased && (!a.committing || all-a.inflight <= a.next)
}

// lease returns what the database is to hold when cost of the queued has become
// spent: what is needed, and a stock of a hundredth of the limit if it may have
// that.
func (a *balance) lease(cost gateway.Money, idle bool) gateway.Money {
	need := max(0, a.open.Plus(a.queued)-cost)
	if idle {
		return need
	}
	return max(need, min(need.Plus(a.def.Limit/100), a.def.Limit-a.spent.Plus(cost)))
}

// charge returns what a request costs this budget.
func (a *balance) charge(r *gateway.Request) gateway.Money {
	cost := r.Cost // 0 where a caller's own key paid
	if a.def.IncludeBYOK && r.MarketCost != nil {
		cost = r.MarketCost
	}
	if cost == nil {
		return 0
	}
	return max(0, *cost)
}

// need returns what a call may cost this budget.
func (a *balance) need(n Need) gateway.Money {
	if n.BYOK && !a.def.IncludeBYOK {
		return max(0, n.Spent)
	}
	return max(0, n.Cost.Plus(n.Spent))
}

// alerts returns the highest percentage to warn of once spent is spent, alerted
// if there is none above that.
func (a *balance) alerts(spent gateway.Money) int {
	highest := a.alerted
	for _, percent := range a.def.AlertAt {
		p := gateway.Money(percent)
		if percent > highest && spent > 0 && spent >= a.def.Limit/100*p+a.def.Limit%100*p/100 {
			highest = percent
		}
	}
	return highest
}

// budget returns the balance as users see it, with what is durable as spent.
func (a *balance) budget() *gateway.Budget {
	return &gateway.Budget{
		BudgetID:     gateway.BudgetID{Scope: a.id.scope, Ref: a.id.ref},
		BudgetParams: a.def.BudgetParams,
		Spent:        a.spent, Held: a.open.Plus(a.queued), Unsettled: a.unsettled,
		Since: a.since, ResetAt: periodEnd(a.def.Period, a.since),
	}
}
