package plan

import (
	"cmp"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/endpoint"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
	"github.com/cayhq/cay/internal/gatewayd/provider"
	"github.com/cayhq/cay/internal/gatewayd/request"
)

// Offer is a model at a configured provider.
type Offer struct {
	Model    *gateway.Model
	Endpoint *gateway.Endpoint
	Provider *provider.Provider
	Target   *hub.Target
	Health   *endpoint.Health
	urls     *addresses
}

// addresses caches the URLs of a few paths; there are more paths only if callers bring
// their own model names.
type addresses struct {
	byPath sync.Map // to *url.URL
	n      atomic.Int32
}

const maxAddresses = 16

// URL returns the address of a path below the provider's base.
func (o *Offer) URL(path string) (*url.URL, error) {
	if u, ok := o.urls.byPath.Load(path); ok {
		return u.(*url.URL), nil
	}
	u, err := url.Parse(o.Provider.URL(path))
	if err == nil && o.urls.n.Add(1) <= maxAddresses {
		o.urls.byPath.Store(path, u)
	}
	return u, err
}

// Model returns the model with a name, nil if there is none. "provider/name" stands for a
// provider's model that the catalogue does not have, because self-hosted servers have
// models of their own.
func (v *View) Model(name string) *gateway.Model {
	if m := v.Catalog.Lookup(name); m != nil {
		return m
	}
	first, rest, ok := strings.Cut(name, "/")
	if !ok || rest == "" {
		return nil
	}
	p := v.Providers.Get(first)
	if p == nil || !p.Unlisted {
		return nil
	}
	m := &gateway.Model{ID: name, Endpoints: []gateway.Endpoint{{Provider: first, Model: rest, Price: p.Price}}}
	if p.SelfHosted && p.Price == nil {
		m.Endpoints[0].Price = &gateway.Price{Version: "self-hosted"}
	}
	return m
}

// Offers returns the offers of a model, in the catalogue's order.
func (v *View) Offers(m *gateway.Model) []Offer {
	if all, ok := v.offers.Load(m); ok {
		return all.([]Offer)
	}
	var all []Offer
	for i := range m.Endpoints {
		ep := &m.Endpoints[i]
		p := v.Providers.Get(ep.Provider)
		if p == nil {
			continue
		}
		p = p.For(ep.Model)
		most := ep.MaxOutput
		if most == 0 {
			most = m.MaxOutput
		}
		all = append(all, Offer{
			Model: m, Endpoint: ep, Provider: p, Target: p.Target(ep.Model, most),
			Health: v.board.Of(p.Name, ep.Model), urls: new(addresses),
		})
	}
	if v.Catalog.Lookup(m.ID) == m { // other models exist for one request only
		v.offers.Store(m, all)
	}
	return all
}

// Candidate is an offer that a call may use, with the credentials to try.
type Candidate struct {
	*Offer
	Credentials []provider.Credential // a single nil if the provider needs none
	own         bool                  // the first credential belongs to the caller's project
}

// Wants are the conditions that select and order candidates.
type Wants struct {
	Caller  *ledger.Caller
	Options *request.Options
	Now     time.Time
	Session string
	Input   int64 // estimated tokens
	Kind    string
}

// Candidates returns the candidates for a model, in order, and the reason for the order
// in words. If there are none, the error says why the last offers were excluded.
func (v *View) Candidates(m *gateway.Model, w *Wants) ([]Candidate, string, *hub.Error) {
	all := v.Offers(m)
	if len(all) == 0 {
		return nil, "", &hub.Error{Kind: hub.ModelNotFound, Code: "no_provider", Param: "model", Model: m.ID,
			Message: "no provider of " + m.ID + " is configured"}
	}
	list := make([]Candidate, 0, len(all))
	var why *hub.Error   // why the last offer was excluded
	var keyless []string // providers without a credential
	for i := range all {
		o := &all[i]
		own, fallback := v.OwnOf(w.Caller, o.Provider.Name)
		if reason := w.against(o, own); reason != nil {
			why = reason
			continue
		}
		c := Candidate{Offer: o, own: len(own) > 0}
		var err *hub.Error
		if c.Credentials, err = v.credentials(o, w, own, fallback); err != nil {
			return nil, "", err
		}
		if len(c.Credentials) == 0 {
			keyless = append(keyless, o.Provider.Name)
			why = &hub.Error{Kind: hub.ModelNotFound, Code: "no_credential", Param: "model", Model: m.ID,
				Message: m.ID + " is offered by " + strings.Join(keyless, " and ") + ", and the gateway has no key of theirs"}
			continue
		}
		list = append(list, c)
	}
	if len(list) == 0 {
		return nil, "", why
	}
	return list, v.arrange(list, w), nil
}

// OwnOf returns the own credentials of the caller's project for a provider, and whether the
// operator's may be tried after them.
func (v *View) OwnOf(c *ledger.Caller, providerName string) (list []provider.Credential, fallback bool) {
	if v.Own == nil || c.ProjectID == "" {
		return nil, true
	}
	return v.Own(c.ProjectID, providerName)
}

// against returns why an offer is excluded, nil if it is not. own are the project's
// credentials for the provider.
func (w *Wants) against(o *Offer, own []provider.Credential) *hub.Error {
	no := func(kind hub.ErrorKind, code, message string) *hub.Error {
		return &hub.Error{Kind: kind, Code: code, Param: "model", Model: o.Model.ID, Message: message}
	}
	p, opt := o.Provider, w.Options
	switch {
	case opt.Only != nil && !slices.Contains(opt.Only, p.Name):
		return no(hub.BadRequest, "no_provider", "none of the providers in only offers "+o.Model.ID)
	case w.Caller.Key != nil && len(w.Caller.Key.Providers) > 0 && !slices.Contains(w.Caller.Key.Providers, p.Name):
		return no(hub.Forbidden, "provider_not_allowed", "this key may not use a provider of "+o.Model.ID)
	case opt.ZeroData && !p.ZeroRetention && !o.Endpoint.ZeroRetention && !slices.ContainsFunc(p.Credentials, keepsNothing) && !slices.ContainsFunc(own, keepsNothing) && len(opt.BYOK[p.Name]) == 0:
		return no(hub.BadRequest, "no_provider", "no provider of "+o.Model.ID+" has agreed to keep nothing (zeroDataRetention)")
	case opt.NoTraining && !p.NoTraining && !o.Endpoint.NoTraining:
		return no(hub.BadRequest, "no_provider", "no provider of "+o.Model.ID+" has agreed not to train on prompts (disallowPromptTraining)")
	case !allowsCountry(opt.Headquarters, p.Country):
		return no(hub.BadRequest, "no_provider", "no provider of "+o.Model.ID+" is where headquarters asks for")
	}
	for _, h := range opt.Has {
		if !hasAbility(o, h) {
			return no(hub.BadRequest, "no_provider", "no provider of "+o.Model.ID+" has "+h)
		}
	}
	context := o.Endpoint.Context
	if context == 0 {
		context = o.Model.Context
	}
	// The estimate is coarse: only inputs far beyond the context are excluded here, and
	// the provider decides on the rest.
	if context > 0 && w.Input > 4*context {
		return no(hub.BadRequest, "context_length_exceeded", "the prompt is far longer than the context of "+o.Model.ID)
	}
	return nil
}

// keepsNothing reports whether the credential's account has zero retention.
func keepsNothing(c provider.Credential) bool {
	m, ok := c.(provider.Mapped)
	return ok && m.ZeroRetention()
}

func allowsCountry(codes []string, country string) bool {
	if len(codes) == 0 {
		return true
	}
	if strings.HasPrefix(codes[0], "!") {
		return country != "" && !slices.ContainsFunc(codes, func(c string) bool { return strings.EqualFold(c[1:], country) })
	}
	return slices.ContainsFunc(codes, func(c string) bool { return strings.EqualFold(c, country) })
}

func hasAbility(o *Offer, has string) bool {
	if q, ok := strings.CutPrefix(has, "!quantization:"); ok {
		return !strings.EqualFold(o.Endpoint.Quantization, q)
	}
	if q, ok := strings.CutPrefix(has, "quantization:"); ok {
		return strings.EqualFold(o.Endpoint.Quantization, q)
	}
	return slices.Contains(o.Model.Abilities, has)
}

// credentials returns the credentials to try at an offer's provider: the request's, else
// the project's, followed by the operator's if fallback is set. Credentials in cool-down
// come last.
func (v *View) credentials(o *Offer, w *Wants, own []provider.Credential, fallback bool) (list []provider.Credential, err *hub.Error) {
	p := o.Provider
	brought := w.Options.BYOK[p.Name]
	if len(brought) == 0 && len(own) == 0 && len(p.Credentials) == 1 && !w.Options.ZeroData { // as nearly always
		return p.Credentials, nil
	}
	if len(brought) > 0 { // replace the project's
		if own, err = v.brought(p, brought); err != nil {
			return nil, err
		}
	}
	var late []provider.Credential
	add := func(c provider.Credential) {
		if _, cool := v.board.Cooling(p.Name, c.ID(), w.Now); cool {
			late = append(late, c)
		} else {
			list = append(list, c)
		}
	}
	for _, c := range own { // an account may have zero retention although the provider does not
		switch {
		case w.Options.ZeroData && !keepsNothing(c):
		case len(brought) > 0: // the request decides
			list = append(list, c)
		default:
			add(c)
		}
	}
	if fallback {
		for _, c := range p.Credentials {
			if !w.Options.ZeroData || p.ZeroRetention || o.Endpoint.ZeroRetention || keepsNothing(c) {
				add(c)
			}
		}
	}
	list = append(list, late...)
	if len(list) == 0 && fallback && !p.NeedsCredential {
		list = append(list, nil)
	}
	return list, nil
}

// brought returns the credentials that a request brings for a provider.
func (v *View) brought(p *provider.Provider, all []json.RawMessage) (list []provider.Credential, err *hub.Error) {
	if v.Custom == nil {
		return nil, &hub.Error{Kind: hub.BadRequest, Param: "providerOptions.gateway.byok", Message: "this gateway takes no credentials in requests"}
	}
	if p.OperatorOnly {
		return nil, &hub.Error{Kind: hub.Forbidden, Code: "byok", Param: "providerOptions.gateway.byok",
			Message: "requests bring no credentials for " + p.Name + ", which is a server of the operator's own; the operator can allow it with byok: true"}
	}
	for _, raw := range all {
		c, bad := v.Custom(p, raw)
		if bad != nil {
			return nil, hub.AsError(bad)
		}
		list = append(list, c)
	}
	return list, nil
}

// rank is the sort key of a candidate; lower is earlier.
type rank struct {
	rested bool // its circuit is open, or all its credentials cool down
	order  int
	own    bool
	sticky bool
	metric float64
	at     int
}

// arrange orders candidates and returns the reason in words.
func (v *View) arrange(list []Candidate, w *Wants) string {
	if len(list) == 1 {
		return "one provider"
	}
	sticky := v.sessions.Get(w.Session)
	ranks := make(map[*Offer]rank, len(list))
	for i, c := range list {
		r := rank{at: i, order: len(w.Options.Order), own: c.own, rested: !c.Health.Ready(w.Now) || v.allCooling(&list[i], w.Now)}
		if j := slices.Index(w.Options.Order, c.Provider.Name); j >= 0 {
			r.order = j
		}
		r.sticky = sticky == endpoint.Key{Provider: c.Provider.Name, Model: c.Endpoint.Model}
		r.metric = w.metric(&list[i])
		ranks[c.Offer] = r
	}
	slices.SortStableFunc(list, func(a, b Candidate) int {
		x, y := ranks[a.Offer], ranks[b.Offer]
		return cmp.Or(last(x.rested, y.rested), cmp.Compare(x.order, y.order), last(!x.own, !y.own), last(!x.sticky, !y.sticky), cmp.Compare(x.metric, y.metric), cmp.Compare(x.at, y.at))
	})
	switch {
	case len(w.Options.Order) > 0:
		return "providers of order first, then the rest; those that fail lately last"
	case w.Options.Sort != "":
		return "by " + w.Options.Sort + "; those that fail lately last"
	}
	return "the session's provider first, then by success and time to the first token; those that fail lately last"
}

func last(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

func (v *View) allCooling(c *Candidate, now time.Time) bool {
	for _, cr := range c.Credentials {
		if cr == nil {
			return false
		}
		if _, cool := v.board.Cooling(c.Provider.Name, cr.ID(), now); !cool {
			return false
		}
	}
	return true
}

// metric returns the value by which candidates are sorted: dollars for a million input
// plus a million output tokens, milliseconds, tokens per second (negative: more is
// better), or a combined score of success and latency, rounded so that the catalogue's
// order decides among similar ones.
func (w *Wants) metric(c *Candidate) float64 {
	h := c.Health.State(w.Now)
	switch w.Options.Sort {
	case "cost":
		if c.Endpoint.Price == nil {
			return 1e18 // unknown values come last
		}
		return c.Endpoint.Price.Input.Dollars() + c.Endpoint.Price.Output.Dollars()
	case "ttft":
		if h.FirstToken == 0 {
			return 1e18
		}
		return float64(h.FirstToken)
	case "tps":
		return -h.Throughput
	}
	score := 0.0
	if h.State == "degraded" {
		score += 1
	}
	if h.Success > 0 && h.Success < 0.5 {
		score += 2
	}
	return score
}

// Allows reports whether a pattern in a key's scope matches a model: "openai/gpt-5", or
// "anthropic/*", or "*".
func Allows(patterns []string, model string) bool {
	if len(patterns) == 0 {
		return true
	}
	return slices.ContainsFunc(patterns, func(p string) bool {
		if prefix, ok := strings.CutSuffix(p, "*"); ok {
			return strings.HasPrefix(model, prefix)
		}
		return p == model
	})
}
