package charge

import (
	"cmp"
	"context"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
	"github.com/cayhq/cay/internal/gatewayd/plan"
	"github.com/cayhq/cay/internal/gatewayd/request"
)

// Bill is the money side of a call: the reservation, and the cost once it is settled.
type Bill struct {
	Hold ledger.Hold // nil until the call is admitted, and after it is settled
	need ledger.Need // reserved by Hold
	Lost Lost        // cost of lost attempts
	Cost Cost        // once it is settled
}

// Reserve asks the ledger to admit a call, or to raise its maximum cost. began says that
// the call was admitted now.
func (b *Bill) Reserve(ctx context.Context, l ledger.Ledger, caller *ledger.Caller, need ledger.Need) (began bool, bad *hub.Error) {
	need.Spent = b.Lost.Total
	if b.Hold == nil {
		hold, err := l.Admit(ctx, caller, need)
		if err != nil {
			return false, hub.AsError(err)
		}
		b.Hold, b.need = hold, need
		return true, nil
	}
	if need.Spent == b.need.Spent && need.Cost <= b.need.Cost && need.Tokens <= b.need.Tokens && need.Unpriced == b.need.Unpriced && need.BYOK == b.need.BYOK {
		return false, nil
	}
	need.Cost, need.Tokens = max(need.Cost, b.need.Cost), max(need.Tokens, b.need.Tokens)
	if err := b.Hold.Raise(ctx, need); err != nil {
		return false, hub.AsError(err)
	}
	b.need = need
	return false, nil
}

// Total returns the cost of a call as known so far: of the served answer, nil if there is
// none, and of the lost attempts.
func (b *Bill) Total(v *plan.View, rq *request.Request, served *Result) Cost {
	cost := PriceOf(v, rq, served)
	if l := &b.Lost; l.Total|l.Market != 0 || l.Unpriced {
		cost.Total, cost.Market = cost.Total.Plus(l.Total), cost.Market.Plus(l.Market)
		cost.Known = cost.Known && (!l.Unpriced || l.Total != 0)
		cost.Version = cmp.Or(cost.Version, l.Version)
	}
	if served == nil { // no answer: the usage is that of the attempts
		cost.Tokens, cost.Searches = plusTokens(cost.Tokens, b.Lost.Tokens), cost.Searches+b.Lost.Searches
	}
	return cost
}

// Lost is the total cost of a call's lost attempts.
type Lost struct {
	Total, Market gateway.Money
	Version       string // version of the last price
	Tokens        gateway.Tokens
	Searches      int64
	Unpriced      bool // part of it has no price
}

// Lose charges for a lost attempt with the result x; another attempt may follow. It returns
// the cost of the attempt, nil if it is unknown.
func (b *Bill) Lose(v *plan.View, rq *request.Request, x *Result) *gateway.Money {
	if x.Usage == nil {
		x.Estimate(rq, false)
	}
	cost := PriceOf(v, rq, x)
	l := &b.Lost
	l.Unpriced = l.Unpriced || !cost.Known
	l.Tokens, l.Searches = plusTokens(l.Tokens, cost.Tokens), l.Searches+cost.Searches
	if !cost.Known {
		return nil
	}
	l.Total, l.Market, l.Version = l.Total.Plus(cost.Total), l.Market.Plus(cost.Market), cost.Version
	return &cost.Total
}

// Describe writes the cost of a call into its record; served says that a provider has
// served the call.
func (b *Bill) Describe(r *gateway.Request, served bool) {
	cost := &b.Cost
	r.Tokens, r.Searches = cost.Tokens, cost.Searches
	if !cost.Known {
		return
	}
	r.Cost = &cost.Total
	if served || b.Lost.Market != 0 {
		r.MarketCost, r.InputCost, r.OutputCost, r.PriceVersion = &cost.Market, &cost.In, &cost.Out, cost.Version
		r.Unpriced = cost.Unpriced
	}
}
