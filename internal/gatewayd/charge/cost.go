package charge

import (
	"cmp"
	"slices"
	"strings"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/asks"
	"github.com/cayhq/cay/internal/gatewayd/catalog"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/plan"
	"github.com/cayhq/cay/internal/gatewayd/request"
)

// Cost is the cost of a call.
type Cost struct {
	Known     bool
	Total     gateway.Money // amount charged
	Market    gateway.Money
	In, Out   gateway.Money
	Version   string
	Estimated bool
	Searches  int64
	Unpriced  []string // parts without a price, not included
	Tokens    gateway.Tokens
}

// PriceOf returns the cost of the answer of an attempt as known so far; x is nil if no
// provider serves the call.
func PriceOf(v *plan.View, rq *request.Request, x *Result) (cost Cost) {
	if x == nil {
		cost.Known = true // no provider was called
		return cost
	}
	cost.Estimated = x.Estimated
	u := x.Usage
	if u == nil {
		return cost
	}
	cost.Tokens = gateway.Tokens{
		Input: hub.Count(u.Input), CacheRead: hub.Count(u.CacheRead), CacheWrite: hub.Count(u.CacheWrite), CacheWrite1h: hub.Count(u.CacheWrite1h),
		Output: hub.Count(u.Output), Reasoning: hub.Count(u.Reasoning), Estimated: x.Estimated,
	}
	cost.Searches = hub.Count(u.Searches)
	o, byok := x.Offer, x.BYOK
	p := o.Endpoint.Price
	if u.Model != "" && u.Model != o.Endpoint.Model {
		if m, other := v.At(o.Provider.Name, u.Model); m != nil && m != o.Model {
			p = other // a fallback model answered, at its own price
		}
	}
	if p == nil { // the provider's reported cost is better than none
		if cost.Market, cost.Known = catalog.Reported(u.Cost); cost.Known {
			cost.Version = reported
			if !byok {
				cost.Total = cost.Market
			}
		}
		return cost
	}
	by := catalog.CostOf(p, u)
	cost.Known, cost.Version = true, p.Version
	by.Total = by.Total.Plus(pieces(rq, p, x.Images, x.Seconds))
	more, unpriced := ran(v, o, u, x.Asked)
	by.Total = by.Total.Plus(more)
	if x.Asked != nil && x.Asked.Fast() && p.ServiceTiers[x.Asked.Speed] == 0 {
		unpriced = append(unpriced, "speed "+x.Asked.Speed)
	}
	cost.Unpriced = unpriced
	cost.Market, cost.In, cost.Out = by.Total, by.Input, by.Output
	cost.Total = by.Total
	if byok {
		cost.Total = 0
	}
	return cost
}

// ran returns the cost of the tools that the provider ran, and the names of tools without
// a known price.
func ran(v *plan.View, o *plan.Offer, u *hub.Usage, asked *asks.Asks) (cost gateway.Money, unpriced []string) {
	count := func(name string, n int64) {
		if n <= 0 {
			return
		}
		each, known := toolPrice(o, name)
		if !known {
			unpriced = append(unpriced, name)
		}
		cost = cost.Plus(each.Times(n))
	}
	count(searchTool(o, u, asked), hub.Count(u.Searches))
	for name, n := range u.Tools {
		count(name, n)
	}
	for i := range u.Others {
		other := &u.Others[i]
		name := other.Model
		if name == "" && asked != nil {
			name = asked.ImageModel()
		}
		_, p := v.At(o.Provider.Name, cmp.Or(name, asks.ImageModel))
		if p == nil {
			unpriced = append(unpriced, cmp.Or(name, asks.ImageModel))
			continue
		}
		cost = cost.Plus(catalog.CostOf(p, other).Total)
	}
	slices.Sort(unpriced)
	return cost, unpriced
}

// searchTool returns the tool whose price applies to searches: the tool named in the
// answer, else the most expensive one that was requested.
func searchTool(o *plan.Offer, u *hub.Usage, asked *asks.Asks) string {
	name := cmp.Or(u.SearchTool, "web_search")
	most, _ := toolPrice(o, name)
	if asked == nil || u.SearchTool != "" {
		return name
	}
	for _, t := range asked.Tools {
		if p, known := toolPrice(o, t.Name); strings.Contains(t.Name, "search") && t.Name != "file_search" && (known && p > most || !known && name == "web_search") {
			name, most = t.Name, p
		}
	}
	return name
}

// reported is the price version for costs that the provider reported with its answer.
const reported = "reported"

// plusTokens returns the sum of two counts.
func plusTokens(a, b gateway.Tokens) gateway.Tokens {
	return gateway.Tokens{
		Input: a.Input + b.Input, CacheRead: a.CacheRead + b.CacheRead, CacheWrite: a.CacheWrite + b.CacheWrite, CacheWrite1h: a.CacheWrite1h + b.CacheWrite1h,
		Output: a.Output + b.Output, Reasoning: a.Reasoning + b.Reasoning, Estimated: a.Estimated || b.Estimated,
	}
}
