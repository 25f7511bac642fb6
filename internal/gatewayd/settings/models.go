package settings

import (
	"maps"
	"slices"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/catalog"
)

// priceVersion is the Version of prices from the settings.
const priceVersion = "settings"

// catalogBuilder builds the Catalog from the list in the binary, the lists of providers,
// the file, and the answers of servers.
type catalogBuilder struct {
	byName
	models map[string]*gateway.Model // by id
}

// build adds the models of the lists, and changes them according to the file.
func (b *catalogBuilder) build(list *catalog.List, file map[string]*Model) error {
	for _, m := range list.Overlay(catalog.Builtin()) {
		m.Endpoints = slices.Clone(m.Endpoints)
		b.models[m.ID] = &m
	}
	for _, name := range slices.Sorted(maps.Keys(b.all)) {
		b.offers(name)
	}
	for _, id := range slices.Sorted(maps.Keys(file)) {
		if err := b.override(id, file[id]); err != nil {
			return at(err, "models", id)
		}
	}
	return nil
}

// catalog returns the models, sorted by id.
func (b *catalogBuilder) catalog() *catalog.Catalog {
	var list []gateway.Model
	for _, m := range b.models {
		b.finish(m)
		list = append(list, *m)
	}
	slices.SortFunc(list, func(x, y gateway.Model) int { return strings.Compare(x.ID, y.ID) })
	return catalog.New(list)
}

// offers adds, for a provider with a name of the operator's choice, the endpoints that
// providers of its kind have, and applies the provider's own model names.
func (b *catalogBuilder) offers(name string) {
	p, e := b.all[name], b.entries[name]
	if p.Kind != "" && p.Kind != name {
		for _, m := range b.models {
			if i := endpointOf(m, p.Kind); i >= 0 && endpointOf(m, name) < 0 {
				ep := m.Endpoints[i]
				ep.Provider = name
				m.Endpoints = append(m.Endpoints, ep)
			}
		}
	}
	if e == nil {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(e.Models)) {
		m := b.models[id]
		if m == nil {
			m = &gateway.Model{ID: id, Name: id, Kind: "language", Output: []string{"text"}}
			b.models[id] = m
		}
		i := endpointOf(m, name)
		if i < 0 {
			m.Endpoints = append(m.Endpoints, gateway.Endpoint{Provider: name, Price: b.price(name)})
			i = len(m.Endpoints) - 1
		}
		m.Endpoints[i].Model = e.Models[id]
	}
}

func endpointOf(m *gateway.Model, providerName string) int {
	return slices.IndexFunc(m.Endpoints, func(e gateway.Endpoint) bool { return e.Provider == providerName })
}

// price returns the price of a provider's models that have no price of their own; nil if
// it is unknown.
func (b *catalogBuilder) price(name string) *gateway.Price {
	p := b.all[name]
	switch {
	case p == nil:
		return nil
	case p.Price == nil && p.SelfHosted:
		return catalog.Free()
	}
	return p.Price
}

// override changes a model according to the file, or adds it.
func (b *catalogBuilder) override(id string, o *Model) error {
	if o == nil {
		return cay.Errorf(cay.Invalid, "nothing is said of it")
	}
	if o.Disabled {
		if b.models[id] == nil {
			return cay.Errorf(cay.Invalid, "there is no such model to disable")
		}
		delete(b.models, id)
		return nil
	}
	m := b.models[id]
	if m == nil {
		m = &gateway.Model{ID: id, Name: id, Kind: "language", Output: []string{"text"}}
		b.models[id] = m
	}
	m.Name, m.Kind = firstOf(o.Name, m.Name), firstOf(o.Kind, m.Kind)
	m.Context, m.MaxOutput = firstOf(o.Context, m.Context), firstOf(o.MaxOutput, m.MaxOutput)
	for _, list := range []struct{ from, to *[]string }{{&o.Input, &m.Input}, {&o.Output, &m.Output}, {&o.Capabilities, &m.Abilities}, {&o.Aliases, &m.Aliases}} {
		if *list.from != nil {
			*list.to = *list.from
		}
	}
	for _, name := range slices.Sorted(maps.Keys(o.Endpoints)) {
		if err := b.overrideEndpoint(m, name, o.Endpoints[name]); err != nil {
			return at(err, "endpoints", name)
		}
	}
	return catalog.Validate(m)
}

func (b *catalogBuilder) overrideEndpoint(m *gateway.Model, name string, o *Endpoint) error {
	if o == nil {
		o = new(Endpoint)
	}
	i := endpointOf(m, name)
	if o.Disabled {
		if i >= 0 {
			m.Endpoints = slices.Delete(m.Endpoints, i, i+1)
		}
		return nil
	}
	if !b.known(name) {
		return cay.Errorf(cay.Invalid, "there is no provider %.80q", name)
	}
	if i < 0 {
		_, own, _ := strings.Cut(m.ID, "/")
		m.Endpoints = append(m.Endpoints, gateway.Endpoint{Provider: name, Model: own, Price: b.price(name)})
		i = len(m.Endpoints) - 1
	}
	ep := &m.Endpoints[i]
	ep.Model = firstOf(o.Model, ep.Model)
	ep.Context, ep.MaxOutput = firstOf(o.Context, ep.Context), firstOf(o.MaxOutput, ep.MaxOutput)
	ep.Region, ep.Quantization = firstOf(o.Region, ep.Region), firstOf(o.Quantization, ep.Quantization)
	setBool(&ep.ZeroRetention, o.ZeroRetention)
	setBool(&ep.NoTraining, o.NoTraining)
	if o.Price != nil {
		price, err := o.Price.Price(priceVersion)
		if err != nil {
			return at(err, "price")
		}
		ep.Price = price
	}
	return nil
}

// discoveries adds the models that providers were discovered to have.
func (b *catalogBuilder) discoveries(providers []string, discovered map[string][]string) {
	for _, name := range providers {
		for _, own := range discovered[name] {
			m := catalog.Offered(name, own, b.price(name))
			if b.models[m.ID] == nil && catalog.Validate(&m) == nil {
				b.models[m.ID] = &m
			}
		}
	}
}

// finish fills in the members that depend on the providers.
func (b *catalogBuilder) finish(m *gateway.Model) {
	for i := range m.Endpoints {
		ep := &m.Endpoints[i]
		if ep.Health.State == "" {
			ep.Health.State = "unknown"
		}
		p := b.all[ep.Provider]
		if p == nil {
			continue
		}
		ep.Configured = usable(p)
		ep.ZeroRetention = ep.ZeroRetention || p.ZeroRetention
		ep.NoTraining = ep.NoTraining || p.NoTraining
		ep.Region = firstOf(ep.Region, p.Region)
	}
}
