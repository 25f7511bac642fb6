package gatewayd

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

// offer is a model at a configured provider.
type offer struct {
	model    *gateway.Model
	endpoint *gateway.Endpoint
	provider *provider.Provider
	target   *hub.Target
	health   *endpoint.Health
	urls     *addresses
}

// addresses caches the URLs of a few paths; there are more paths only if callers bring
// their own model names.
type addresses struct {
	byPath sync.Map // to *url.URL
	n      atomic.Int32
}

const maxAddresses = 16

// url returns the address of a path below the provider's base.
func (o *offer) url(path string) (*url.URL, error) {
	if u, ok := o.urls.byPath.Load(path); ok {
		return u.(*url.URL), nil
	}
	u, err := url.Parse(o.provider.URL(path))
	if err == nil && o.urls.n.Add(1) <= maxAddresses {
		o.urls.byPath.Store(path, u)
	}
	return u, err
}

// model returns the model with a name, nil if there is none. "provider/name" stands for a
// provider's model that the catalogue does not have, because self-hosted servers have
// models of their own.
func (v *view) model(name string) *gateway.Model {
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

// offersOf returns the offers of a model, in the catalogue's order.
func (e *Engine) offersOf(v *view, m *gateway.Model) []offer {
	if all, ok := v.offers.Load(m); ok {
		return all.([]offer)
	}
	var all []offer
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
		all = append(all, offer{
			model: m, endpoint: ep, provider: p, target: p.Target(ep.Model, most),
			health: e.board.Of(p.Name, ep.Model), urls: new(addresses),
		})
	}
	if v.Catalog.Lookup(m.ID) == m { // other models exist for one request only
		v.offers.Store(m, all)
	}
	return all
}

// candidate is an offer that a call may use, with the credentials to try.
type candidate struct {
	*offer
	credentials []provider.Credential // a single nil if the provider needs none
	own         bool                  // the first credential belongs to the caller's project
}

// wants are the conditions that select and order candidates.
type wants struct {
	caller  *ledger.Caller
	o       *request.Options
	now     time.Time
	session string
	input   int64 // estimated tokens
	kind    string
}

// candidates returns the candidates for a model, in order, and the reason for the order
// in words. If there are none, the error says why the last offers were excluded.
func (e *Engine) candidates(v *view, m *gateway.Model, w *wants) ([]candidate, string, *hub.Error) {
	all := e.offersOf(v, m)
	if len(all) == 0 {
		return nil, "", &hub.Error{Kind: hub.ModelNotFound, Code: "no_provider", Param: "model", Model: m.ID,
			Message: "no provider of " + m.ID + " is configured"}
	}
	list := make([]candidate, 0, len(all))
	var why *hub.Error   // why the last offer was excluded
	var keyless []string // providers without a credential
	for i := range all {
		o := &all[i]
		own, fallback := v.own(w.caller, o.provider.Name)
		if reason := w.against(o, own); reason != nil {
			why = reason
			continue
		}
		c := candidate{offer: o, own: len(own) > 0}
		var err *hub.Error
		if c.credentials, err = e.credentials(v, o, w, own, fallback); err != nil {
			return nil, "", err
		}
		if len(c.credentials) == 0 {
			keyless = append(keyless, o.provider.Name)
			why = &hub.Error{Kind: hub.ModelNotFound, Code: "no_credential", Param: "model", Model: m.ID,
				Message: m.ID + " is offered by " + strings.Join(keyless, " and ") + ", and the gateway has no key of theirs"}
			continue
		}
		list = append(list, c)
	}
	if len(list) == 0 {
		return nil, "", why
	}
	return list, e.arrange(list, w), nil
}

// own returns the own credentials of the caller's project for a provider, and whether the
// operator's may be tried after them.
func (v *view) own(c *ledger.Caller, providerName string) (list []provider.Credential, fallback bool) {
	if v.Own == nil || c.ProjectID == "" {
		return nil, true
	}
	return v.Own(c.ProjectID, providerName)
}

// against returns why an offer is excluded, nil if it is not. own are the project's
// credentials for the provider.
func (w *wants) against(o *offer, own []provider.Credential) *hub.Error {
	no := func(kind hub.ErrorKind, code, message string) *hub.Error {
		return &hub.Error{Kind: kind, Code: code, Param: "model", Model: o.model.ID, Message: message}
	}
	p, opt := o.provider, w.o
	switch {
	case opt.Only != nil && !slices.Contains(opt.Only, p.Name):
		return no(hub.BadRequest, "no_provider", "none of the providers in only offers "+o.model.ID)
	case w.caller.Key != nil && len(w.caller.Key.Providers) > 0 && !slices.Contains(w.caller.Key.Providers, p.Name):
		return no(hub.Forbidden, "provider_not_allowed", "this key may not use a provider of "+o.model.ID)
	case opt.ZeroData && !p.ZeroRetention && !o.endpoint.ZeroRetention && !slices.ContainsFunc(p.Credentials, keepsNothing) && !slices.ContainsFunc(own, keepsNothing) && len(opt.BYOK[p.Name]) == 0:
		return no(hub.BadRequest, "no_provider", "no provider of "+o.model.ID+" has agreed to keep nothing (zeroDataRetention)")
	case opt.NoTraining && !p.NoTraining && !o.endpoint.NoTraining:
		return no(hub.BadRequest, "no_provider", "no provider of "+o.model.ID+" has agreed not to train on prompts (disallowPromptTraining)")
	case !allowsCountry(opt.Headquarters, p.Country):
		return no(hub.BadRequest, "no_provider", "no provider of "+o.model.ID+" is where headquarters asks for")
	}
	for _, h := range opt.Has {
		if !hasAbility(o, h) {
			return no(hub.BadRequest, "no_provider", "no provider of "+o.model.ID+" has "+h)
		}
	}
	context := o.endpoint.Context
	if context == 0 {
		context = o.model.Context
	}
	// The estimate is coarse: only inputs far beyond the context are excluded here, and
	// the provider decides on the rest.
	if context > 0 && w.input > 4*context {
		return no(hub.BadRequest, "context_length_exceeded", "the prompt is far longer than the context of "+o.model.ID)
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

func hasAbility(o *offer, has string) bool {
	if q, ok := strings.CutPrefix(has, "!quantization:"); ok {
		return !strings.EqualFold(o.endpoint.Quantization, q)
	}
	if q, ok := strings.CutPrefix(has, "quantization:"); ok {
		return strings.EqualFold(o.endpoint.Quantization, q)
	}
	return slices.Contains(o.model.Abilities, has)
}

// credentials returns the credentials to try at an offer's provider: the request's, else
// the project's, followed by the operator's if fallback is set. Credentials in cool-down
// come last.
func (e *Engine) credentials(v *view, o *offer, w *wants, own []provider.Credential, fallback bool) (list []provider.Credential, err *hub.Error) {
	p := o.provider
	brought := w.o.BYOK[p.Name]
	if len(brought) == 0 && len(own) == 0 && len(p.Credentials) == 1 && !w.o.ZeroData { // as nearly always
		return p.Credentials, nil
	}
	if len(brought) > 0 { // replace the project's
		if own, err = v.brought(p, brought); err != nil {
			return nil, err
		}
	}
	var late []provider.Credential
	add := func(c provider.Credential) {
		if _, cool := e.board.Cooling(p.Name, c.ID(), w.now); cool {
			late = append(late, c)
		} else {
			list = append(list, c)
		}
	}
	for _, c := range own { // an account may have zero retention although the provider does not
		switch {
		case w.o.ZeroData && !keepsNothing(c):
		case len(brought) > 0: // the request decides
			list = append(list, c)
		default:
			add(c)
		}
	}
	if fallback {
		for _, c := range p.Credentials {
			if !w.o.ZeroData || p.ZeroRetention || o.endpoint.ZeroRetention || keepsNothing(c) {
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
func (v *view) brought(p *provider.Provider, all []json.RawMessage) (list []provider.Credential, err *hub.Error) {
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
func (e *Engine) arrange(list []candidate, w *wants) string {
	if len(list) == 1 {
		return "one provider"
	}
	sticky := e.sessions.Get(w.session)
	ranks := make(map[*offer]rank, len(list))
	for i, c := range list {
		r := rank{at: i, order: len(w.o.Order), own: c.own, rested: !c.health.Ready(w.now) || e.allCooling(&list[i], w.now)}
		if j := slices.Index(w.o.Order, c.provider.Name); j >= 0 {
			r.order = j
		}
		r.sticky = sticky == endpoint.Key{Provider: c.provider.Name, Model: c.endpoint.Model}
		r.metric = w.metric(&list[i])
		ranks[c.offer] = r
	}
	slices.SortStableFunc(list, func(a, b candidate) int {
		x, y := ranks[a.offer], ranks[b.offer]
		return cmp.Or(last(x.rested, y.rested), cmp.Compare(x.order, y.order), last(!x.own, !y.own), last(!x.sticky, !y.sticky), cmp.Compare(x.metric, y.metric), cmp.Compare(x.at, y.at))
	})
	switch {
	case len(w.o.Order) > 0:
		return "providers of order first, then the rest; those that fail lately last"
	case w.o.Sort != "":
		return "by " + w.o.Sort + "; those that fail lately last"
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

func (e *Engine) allCooling(c *candidate, now time.Time) bool {
	for _, cr := range c.credentials {
		if cr == nil {
			return false
		}
		if _, cool := e.board.Cooling(c.provider.Name, cr.ID(), now); !cool {
			return false
		}
	}
	return true
}

// metric returns the value by which candidates are sorted: dollars for a million input
// plus a million output tokens, milliseconds, tokens per second (negative: more is
// better), or a combined score of success and latency, rounded so that the catalogue's
// order decides among similar ones.
func (w *wants) metric(c *candidate) float64 {
	h := c.health.State(w.now)
	switch w.o.Sort {
	case "cost":
		if c.endpoint.Price == nil {
			return 1e18 // unknown values come last
		}
		return c.endpoint.Price.Input.Dollars() + c.endpoint.Price.Output.Dollars()
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

// allows reports whether a pattern in a key's scope matches a model: "openai/gpt-5", or
// "anthropic/*", or "*".
func allows(patterns []string, model string) bool {
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
