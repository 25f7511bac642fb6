package catalog

import (
	"cmp"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/cayhq/cay/gateway"
)

// Change describes the changes of an update to a model at a provider.
type Change struct {
	Model    string   `json:"model"` // the catalogue's name
	Provider string   `json:"provider"`
	New      bool     `json:"new"`     // the provider did not have the model
	Details  []string `json:"details"` // for people: input 1.25 -> 1.5
}

// Update returns the changes that offers make to the models in now, and the list with
// these changes: for a known model the list contains only the changed endpoints. A price,
// or a part of a price, that is missing in an offer stays unchanged. Offers of providers
// that wanted rejects are ignored. date is the version of the new prices.
func Update(now []gateway.Model, offers []Offer, wanted func(provider string) bool, date string) ([]Change, *List) {
	u := updater{byID: make(map[string]*gateway.Model), byOwn: make(map[[2]string]*gateway.Model), date: date}
	for i := range now {
		m := &now[i]
		u.byID[m.ID] = m
		for _, e := range m.Endpoints {
			u.byOwn[[2]string{e.Provider, e.Model}] = m
		}
	}
	l := &List{Date: date}
	seen := make(map[[2]string]bool)
	for i := range offers {
		o := &offers[i]
		key := [2]string{o.Provider, o.Model}
		if !wanted(o.Provider) || seen[key] {
			continue
		}
		seen[key] = true
		if m, change := u.offer(o); change != nil {
			u.changes = append(u.changes, *change)
			l.Models = append(l.Models, *m)
		}
	}
	slices.SortFunc(u.changes, func(a, b Change) int {
		return strings.Compare(a.Model+" "+a.Provider, b.Model+" "+b.Provider)
	})
	l.Models = (&List{Models: l.Models}).Overlay(nil)
	return u.changes, l
}

type updater struct {
	byID    map[string]*gateway.Model
	byOwn   map[[2]string]*gateway.Model // by provider, and its name of the model
	date    string
	changes []Change
}

// offer returns the model of an offer with the one changed endpoint, nil if nothing
// changes.
func (u *updater) offer(o *Offer) (*gateway.Model, *Change) {
	m := o.model(u.date)
	known := u.byOwn[[2]string{o.Provider, o.Model}]
	if known == nil {
		known = u.byID[m.ID]
	}
	is := terms{m.Endpoints[0].Price, m.Context, m.MaxOutput}
	if known == nil {
		return &m, &Change{Model: m.ID, Provider: o.Provider, New: true, Details: is.since(nil)}
	}
	of := *known
	i := slices.IndexFunc(known.Endpoints, func(k gateway.Endpoint) bool { return k.Provider == o.Provider })
	if i < 0 {
		e := m.Endpoints[0]
		e.Context, e.MaxOutput = m.Context, m.MaxOutput
		of.Endpoints = []gateway.Endpoint{e}
		return &of, &Change{Model: of.ID, Provider: o.Provider, New: true, Details: is.since(nil)}
	}
	e := known.Endpoints[i]
	was := terms{e.Price, cmp.Or(e.Context, known.Context), cmp.Or(e.MaxOutput, known.MaxOutput)}
	is = terms{merged(e.Price, is.price), cmp.Or(is.context, was.context), cmp.Or(is.maxOutput, was.maxOutput)}
	changed := is.since(&was)
	if len(changed) == 0 {
		return nil, nil
	}
	e.Price, e.Context, e.MaxOutput = is.price, is.context, is.maxOutput
	of.Endpoints = []gateway.Endpoint{e}
	return &of, &Change{Model: of.ID, Provider: o.Provider, Details: changed}
}

// merged returns before with the parts that newer has replaced, including all tiers if
// newer has tiers. If the result differs from before, it has newer's version.
func merged(before, newer *gateway.Price) *gateway.Price {
	if before == nil || newer == nil {
		if newer == nil {
			return before
		}
		return newer
	}
	p := *before
	p.Input, p.Output = newer.Input, newer.Output
	for _, part := range []struct{ to, from **gateway.Money }{
		{&p.CacheRead, &newer.CacheRead}, {&p.CacheWrite, &newer.CacheWrite}, {&p.CacheWrite1h, &newer.CacheWrite1h}, {&p.Reasoning, &newer.Reasoning},
	} {
		if *part.from != nil {
			*part.to = *part.from
		}
	}
	if len(newer.Tiers) > 0 {
		p.Tiers = newer.Tiers
	}
	if reflect.DeepEqual(&p, before) {
		return before
	}
	p.Version = newer.Version
	return &p
}

// terms are a provider's price and limits for a model.
type terms struct {
	price              *gateway.Price // nil: unknown
	context, maxOutput int64          // 0: unknown
}

// since describes how t differs from before, or all of t if before is nil. An unknown
// price is shown as ?.
func (t *terms) since(before *terms) (all []string) {
	is := t.texts()
	was := make([]string, len(is))
	if before != nil {
		was = before.texts()
	}
	for i, name := range [...]string{"input", "output", "cache read", "cache write", "cache write 1h", "reasoning", "tiers", "context", "max output"} {
		switch {
		case was[i] == is[i]:
		case before == nil:
			all = append(all, name+" "+is[i])
		default:
			all = append(all, name+" "+cmp.Or(was[i], "none")+" -> "+cmp.Or(is[i], "none"))
		}
	}
	return all
}

// texts returns the terms as texts, in the order of since.
func (t *terms) texts() []string {
	p := perMillion(t.price)
	if p == nil {
		p = &PricePerMillion{Input: "?", Output: "?"}
	}
	count := func(n int64) string {
		if n == 0 {
			return ""
		}
		return strconv.FormatInt(n, 10)
	}
	return []string{p.Input, p.Output, p.CacheRead, p.CacheWrite, p.CacheWrite1h, p.Reasoning, tiersText(p.Tiers), count(t.context), count(t.maxOutput)}
}

func tiersText(tiers []TierPerMillion) string {
	var all []string
	for _, t := range tiers {
		all = append(all, t.Input+"/"+t.Output+" above "+strconv.FormatInt(t.Above, 10))
	}
	return strings.Join(all, ", ")
}
