package ledger

import (
	"time"

	"github.com/cayhq/cay/gateway"
)

// scopes are the kinds of budgets, in the order in which they are asked.
var scopes = [...]gateway.Scope{gateway.ScopeTeam, gateway.ScopeProject, gateway.ScopeKey, gateway.ScopeUser, gateway.ScopeTag}

// spender identifies a budget's subject: a team, project, key, user or tag (scope and
// ref) within a team.
type spender struct {
	team  string
	scope gateway.Scope
	ref   string
}

// definition is a budget as the user set it.
type definition struct {
	gateway.BudgetParams
	createdAt time.Time
}

// balance counts the spending of one spender that has a budget. All fields are guarded by
// memory.mu.
//
// An admitted amount is in open until the call is settled, in queued until the call's
// record is durable, and then in spent. The database stores spent and held; held is an
// upper bound of open + queued; leased is the value of held that was last written. During
// a commit the database may be in the state before or after it, so both states must cover
// all admitted amounts.
type balance struct {
	id  spender
	def *definition // the definition that applies; replaced as a whole, never changed
	// since is the start of the period, or the creation of the budget if that is later.
	since     time.Time
	spent     gateway.Money
	unsettled gateway.Money // part of spent
	alerted   int           // the highest percentage that was warned of in this period

	open   gateway.Money
	queued gateway.Money
	leased gateway.Money

	// State of the commit under way:
	committing bool
	inflight   gateway.Money // part of queued that becomes spent
	next       gateway.Money // becomes leased

	period  int  // counts periods
	dirty   bool // in balances.dirty
	users   int  // holds and queued records that point here
	touched time.Time
	gone    bool // its budget was deleted
}

// roll starts a new period when the current one has ended. A clock that goes back to an
// earlier period changes nothing. The held amount in the database still belongs to the
// old period, so no call is admitted before the new period is written.
func (a *balance) roll(now time.Time) {
	start := periodStart(a.def.Period, now)
	if !start.After(a.since) {
		return
	}
	a.since, a.spent, a.unsettled, a.alerted, a.leased = start, 0, 0, 0, 0
	a.period++
}

// left returns the amount that may still be admitted.
func (a *balance) left() gateway.Money {
	return a.def.Limit - a.spent.Plus(a.queued).Plus(a.open)
}

// covered reports whether the database holds enough for all open and queued amounts,
// whether or not the commit under way succeeds.
func (a *balance) covered() bool {
	all := a.open.Plus(a.queued)
	return all <= a.leased && (!a.committing || all-a.inflight <= a.next)
}

// lease returns the amount that the database is to hold after cost of the queued amount
// has moved to spent: the amount needed, plus a stock of 1/100 of the limit if the
// balance is in use and the limit allows it.
func (a *balance) lease(cost gateway.Money, idle bool) gateway.Money {
	need := max(0, a.open.Plus(a.queued)-cost)
	if idle {
		return need
	}
	return max(need, min(need.Plus(a.def.Limit/100), a.def.Limit-a.spent.Plus(cost)))
}

// charge returns the amount that a finished request costs this budget.
func (a *balance) charge(r *gateway.Request) gateway.Money {
	cost := r.Cost // 0 for calls with the caller's own provider key
	if a.def.IncludeBYOK && r.MarketCost != nil {
		cost = r.MarketCost
	}
	if cost == nil {
		return 0
	}
	return max(0, *cost)
}

// need returns the largest amount that a call may cost this budget.
func (a *balance) need(n Need) gateway.Money {
	if n.BYOK && !a.def.IncludeBYOK {
		return max(0, n.Spent)
	}
	return max(0, n.Cost.Plus(n.Spent))
}

// alerts returns the highest alert percentage that spent has reached, or alerted if no
// higher one is reached.
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

// budget returns the balance in the form that users see; Spent is the durable amount.
func (a *balance) budget() *gateway.Budget {
	return &gateway.Budget{
		BudgetID:     gateway.BudgetID{Scope: a.id.scope, Ref: a.id.ref},
		BudgetParams: a.def.BudgetParams,
		Spent:        a.spent, Held: a.open.Plus(a.queued), Unsettled: a.unsettled,
		Since: a.since, ResetAt: periodEnd(a.def.Period, a.since),
	}
}
