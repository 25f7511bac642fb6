package gatewayd

import (
	"net/http"
	"time"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/cache"
	"github.com/cayhq/cay/internal/gatewayd/plan"
)

// variants are request headers that change the answer.
var variants = []string{"Anthropic-Version", "Anthropic-Beta", "Openai-Beta"}

// replayed replays a cached answer, if the key uses the cache and has a matching entry, and
// reports whether it did, which r then says. Otherwise the answer is recorded for the cache.
func (cl *client) replayed(v *plan.View, p *plan.Plan, r *gateway.Request) bool {
	key := cl.caller.Key
	if v.Cache == nil || key == nil || key.Cache <= 0 || len(cl.rq.Options.BYOK) > 0 || cl.rq.Token != "" {
		return false
	}
	name := p.Models[0]
	if m := v.Model(name); m != nil {
		if name = m.ID; !plan.Allows(key.Models, name) {
			return false
		}
	}
	q := cache.Question{Caller: cl.caller, Surface: cl.rq.Route.Pattern, Version: cl.rq.Version, Model: name, Stream: cl.rq.Stream, Body: cl.rq.Raw}
	for _, h := range variants {
		q.Variant += cl.rq.HTTP.Header.Get(h) + "\n"
	}
	k, err := q.Key()
	if err != nil { // a member twice, somewhere within
		return false
	}
	entry := v.Cache.Get(k)
	if entry == nil {
		cl.out.record = v.Cache.Record(k, min(time.Duration(key.Cache), cache.MaxTTL))
		cl.out.w.Header().Set(cache.Header, cache.Miss)
		return false
	}
	h := cl.out.w.Header()
	h.Set(cache.Header, cache.Hit)
	for name, values := range entry.Head {
		h[name] = values
	}
	zero := gateway.Money(0)
	r.Cached, r.Served, r.Provider, r.Cost, r.FinishReason = true, entry.Record.Served, entry.Record.Provider, &zero, entry.Record.FinishReason
	cl.out.whole(http.StatusOK, entry.Head.Get("Content-Type"), entry.Body)
	return true
}
