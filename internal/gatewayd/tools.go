package gatewayd

import (
	"context"
	"fmt"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/asks"
	"github.com/cayhq/cay/internal/gatewayd/catalog"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
	"github.com/cayhq/cay/internal/gatewayd/request"
)

// allow checks what a body asks for against the key's scope and the guards, and returns
// the payload of the request, which guards may have changed.
func (v *view) allow(ctx context.Context, caller *ledger.Caller, a *asks.Asks, o *offer, p request.Payload) (request.Payload, *hub.Error) {
	key := caller.Key
	if key != nil && key.MaxOutputTokens > 0 && a.Output > key.MaxOutputTokens {
		return p, &hub.Error{Kind: hub.Forbidden, Code: "max_output_tokens",
			Message: fmt.Sprintf("this key may ask for at most %d output tokens, and this request comes to %d", key.MaxOutputTokens, a.Output)}
	}
	if err := v.Guards.Output(a.Output); err != nil {
		return p, hub.AsError(err)
	}
	for _, name := range a.Models {
		id := name
		if m, _ := v.at(o.provider.Name, name); m != nil {
			id = m.ID
		}
		if key != nil && !allows(key.Models, id) {
			return p, &hub.Error{Kind: hub.Forbidden, Code: "model_not_allowed", Param: id, Message: "this key may not use the model " + id + ", which the request names beside its own"}
		}
		var err *hub.Error
		if p, err = v.guard(ctx, caller, id, p); err != nil {
			return p, err
		}
	}
	return p, nil
}

// at returns the model with a provider's own name, and its price there; nil if unknown.
func (v *view) at(provider, name string) (*gateway.Model, *gateway.Price) {
	all := v.Catalog.List()
	for i := range all {
		for j := range all[i].Endpoints {
			if ep := &all[i].Endpoints[j]; ep.Provider == provider && ep.Model == name {
				return &all[i], ep.Price
			}
		}
	}
	if m := v.Catalog.Lookup(name); m != nil {
		for j := range m.Endpoints {
			if m.Endpoints[j].Provider == provider {
				return m, m.Endpoints[j].Price
			}
		}
		return m, nil
	}
	return nil, nil
}

// toolPrice returns the provider's price for one run of a tool; false if the price is
// unknown.
func toolPrice(o *offer, name string) (gateway.Money, bool) {
	if p := o.endpoint.Price; p != nil {
		if m, ok := p.Tools[name]; ok {
			return m, true
		}
		if p.Search != 0 && (name == "web_search" || name == "google_search" || name == "live_search") {
			return p.Search, true
		}
	}
	if o.provider.SelfHosted {
		return 0, true
	}
	return catalog.ToolPrice(o.provider.Kind, name)
}

// addTools adds the maximum cost of the requested tools to a call's need.
func (v *view) addTools(n *ledger.Need, a *asks.Asks, o *offer, input int64) {
	unpriced := func(what string) {
		if !n.Unpriced {
			n.Unpriced, n.Why = true, what+" has no known price"
		}
	}
	if p := o.endpoint.Price; p != nil && a.Fast() && p.ServiceTiers[a.Speed] == 0 {
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
		m, p := v.at(o.provider.Name, name)
		if p == nil {
			unpriced("the model " + name)
			continue
		}
		output := orDefault(m.MaxOutput, defaultOutput)
		if m.Kind == kindImage {
			output = request.MaxImageTokens
		}
		n.Cost = n.Cost.Plus(catalog.MostOf(p, input, output, a.Tier)).Plus(p.Image)
	}
}
