package charge

import (
	"cmp"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/asks"
	"github.com/cayhq/cay/internal/gatewayd/catalog"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
	"github.com/cayhq/cay/internal/gatewayd/plan"
	"github.com/cayhq/cay/internal/gatewayd/request"
)

// toolPrice returns the provider's price for one run of a tool; false if the price is
// unknown.
func toolPrice(o *plan.Offer, name string) (gateway.Money, bool) {
	if p := o.Endpoint.Price; p != nil {
		if m, ok := p.Tools[name]; ok {
			return m, true
		}
		if p.Search != 0 && (name == "web_search" || name == "google_search" || name == "live_search") {
			return p.Search, true
		}
	}
	if o.Provider.SelfHosted {
		return 0, true
	}
	return catalog.ToolPrice(o.Provider.Kind, name)
}

// addTools adds the maximum cost of the requested tools to a call's need.
func addTools(v *plan.View, n *ledger.Need, a *asks.Asks, o *plan.Offer, input int64) {
	unpriced := func(what string) {
		if !n.Unpriced {
			n.Unpriced, n.Why = true, what+" has no known price"
		}
	}
	if p := o.Endpoint.Price; p != nil && a.Fast() && p.ServiceTiers[a.Speed] == 0 {
		unpriced("the speed " + a.Speed)
	}
	for _, t := range a.Tools {
		each, known := toolPrice(o, t.Name)
		if !known {
			unpriced("the tool " + t.Name)
		}
		uses := t.Uses
		if uses <= 0 { // ignore implausible values
			uses = asks.DefaultUses
		}
		n.Cost = n.Cost.Plus(each.Times(uses))
	}
	for _, name := range a.Models {
		m, p := v.At(o.Provider.Name, name)
		if p == nil {
			unpriced("the model " + name)
			continue
		}
		output := cmp.Or(m.MaxOutput, defaultOutput)
		if m.Kind == request.KindImage {
			output = request.MaxImageTokens
		}
		n.Cost = n.Cost.Plus(catalog.MostOf(p, input, output, a.Tier)).Plus(p.Image)
	}
}
