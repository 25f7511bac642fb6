package gatewayd

import (
	"slices"
	"strings"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/asks"
	"github.com/cayhq/cay/internal/gatewayd/catalog"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/request"
)

// charge is the cost of a call.
type charge struct {
	known     bool
	total     gateway.Money // amount charged
	market    gateway.Money
	in, out   gateway.Money
	version   string
	estimated bool
	searches  int64
	unpriced  []string // parts without a price, not included
	tokens    gateway.Tokens
}

// total returns the cost of a call as known so far: of the served answer, nil if there is
// none, and of the lost attempts.
func (b *bill) total(v *view, rq *request.Request, served *exchange) charge {
	cost := v.priceOf(rq, served)
	if l := &b.lost; l.total|l.market != 0 || l.unpriced {
		cost.total, cost.market = cost.total.Plus(l.total), cost.market.Plus(l.market)
		cost.known = cost.known && (!l.unpriced || l.total != 0)
		cost.version = orDefault(cost.version, l.version)
	}
	if served == nil { // no answer: the usage is that of the attempts
		cost.tokens, cost.searches = plusTokens(cost.tokens, b.lost.tokens), cost.searches+b.lost.searches
	}
	return cost
}

// priceOf returns the cost of the answer of an attempt as known so far, nil if no provider
// serves the call.
func (v *view) priceOf(rq *request.Request, x *exchange) (cost charge) {
	if x == nil {
		cost.known = true // no provider was called
		return cost
	}
	cost.estimated = x.estimated
	u := x.usage
	if u == nil {
		return cost
	}
	cost.tokens = gateway.Tokens{
		Input: hub.Count(u.Input), CacheRead: hub.Count(u.CacheRead), CacheWrite: hub.Count(u.CacheWrite), CacheWrite1h: hub.Count(u.CacheWrite1h),
		Output: hub.Count(u.Output), Reasoning: hub.Count(u.Reasoning), Estimated: x.estimated,
	}
	cost.searches = hub.Count(u.Searches)
	o, byok := x.o.offer, x.record.BYOK
	p := o.endpoint.Price
	if u.Model != "" && u.Model != o.endpoint.Model {
		if m, other := v.at(o.provider.Name, u.Model); m != nil && m != o.model {
			p = other // a fallback model answered, at its own price
		}
	}
	if p == nil { // the provider's reported cost is better than none
		if cost.market, cost.known = catalog.Reported(u.Cost); cost.known {
			cost.version = reported
			if !byok {
				cost.total = cost.market
			}
		}
		return cost
	}
	by := catalog.CostOf(p, u)
	cost.known, cost.version = true, p.Version
	by.Total = by.Total.Plus(pieces(rq, p, x.images, x.seconds))
	more, unpriced := v.ran(o, u, x.asked)
	by.Total = by.Total.Plus(more)
	if x.asked != nil && x.asked.Fast() && p.ServiceTiers[x.asked.Speed] == 0 {
		unpriced = append(unpriced, "speed "+x.asked.Speed)
	}
	cost.unpriced = unpriced
	cost.market, cost.in, cost.out = by.Total, by.Input, by.Output
	cost.total = by.Total
	if byok {
		cost.total = 0
	}
	return cost
}

// ran returns the cost of the tools that the provider ran, and the names of tools without
// a known price.
func (v *view) ran(o *offer, u *hub.Usage, asked *asks.Asks) (cost gateway.Money, unpriced []string) {
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
		_, p := v.at(o.provider.Name, orDefault(name, asks.ImageModel))
		if p == nil {
			unpriced = append(unpriced, orDefault(name, asks.ImageModel))
			continue
		}
		cost = cost.Plus(catalog.CostOf(p, other).Total)
	}
	slices.Sort(unpriced)
	return cost, unpriced
}

// searchTool returns the tool whose price applies to searches: the tool named in the
// answer, else the most expensive one that was requested.
func searchTool(o *offer, u *hub.Usage, asked *asks.Asks) string {
	name := orDefault(u.SearchTool, "web_search")
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
