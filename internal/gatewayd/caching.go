package gatewayd

import (
	"context"
	"net/http"
	"time"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/cache"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
	"github.com/cayhq/cay/internal/gatewayd/request"
	"github.com/cayhq/cay/internal/gatewayd/scan"
)

// variants are request headers that change the answer.
var variants = []string{"Anthropic-Version", "Anthropic-Beta", "Openai-Beta"}

// replayed replays a cached answer, if the key uses the cache and has a matching entry, and
// reports whether it did, which r then says. Otherwise the answer is recorded for the cache.
func (cl *client) replayed(v *view, p *plan, r *gateway.Request) bool {
	key := cl.caller.Key
	if v.Cache == nil || key == nil || key.Cache <= 0 || len(cl.rq.Options.BYOK) > 0 || cl.rq.Token != "" {
		return false
	}
	name := p.models[0]
	if m := v.model(name); m != nil {
		if name = m.ID; !allows(key.Models, name) {
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

// guard applies the guards to a request for a model, and returns the payload to send,
// which they may have changed.
func (v *view) guard(ctx context.Context, caller *ledger.Caller, model string, p request.Payload) (request.Payload, *hub.Error) {
	if v.Guards == nil {
		return p, nil
	}
	if p.Parts != nil {
		return p, v.guardForm(ctx, caller, model, p)
	}
	raw, err := v.Guards.Request(ctx, caller, model, p.Raw)
	if err != nil {
		return p, hub.AsError(err)
	}
	if len(raw) == len(p.Raw) && len(raw) > 0 && &raw[0] == &p.Raw[0] {
		return p, nil
	}
	o, err := scan.Read(raw)
	if err != nil {
		return p, hub.AsError(err)
	}
	p.Raw, p.Object = raw, o
	return p, nil
}

// buffers reports whether a stream must be complete before it is sent, because guards
// check answers.
func (v *view) buffers(rq *request.Request) bool { return rq.Stream && v.Guards.GuardsAnswers() }

// guarded applies the guards to a whole answer of a model and returns the answer to send.
func (v *view) guarded(ctx context.Context, caller *ledger.Caller, model string, body []byte) ([]byte, *hub.Error) {
	if !v.Guards.GuardsAnswers() {
		return body, nil
	}
	body, err := v.Guards.Answer(ctx, caller, model, body)
	if err != nil {
		e := *hub.AsError(err)
		e.Kind = hub.Forbidden // no other provider is tried
		return nil, &e
	}
	return body, nil
}
