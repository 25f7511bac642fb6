package gatewayd

import (
	"net/http"
	"time"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/cache"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// variants are request headers that change the answer.
var variants = []string{"Anthropic-Version", "Anthropic-Beta", "Openai-Beta"}

// again replays a cached answer, if the key uses the cache and has a matching entry, and
// reports whether it did. Otherwise the answer is recorded for the cache.
func (c *call) again() bool {
	key := c.caller.Key
	if c.v.Cache == nil || key == nil || key.Cache <= 0 || len(c.opts.byok) > 0 || c.own != "" {
		return false
	}
	name := c.fallbacks[0]
	if m := c.v.model(name); m != nil {
		if name = m.ID; !allows(key.Models, name) {
			return false
		}
	}
	q := cache.Question{Caller: c.caller, Surface: c.rt.pattern, Version: c.version, Model: name, Stream: c.stream, Body: c.body}
	for _, h := range variants {
		q.Variant += c.r.Header.Get(h) + "\n"
	}
	k, err := q.Key()
	if err != nil { // a member twice, somewhere within
		return false
	}
	entry := c.v.Cache.Get(k)
	if entry == nil {
		c.out.record = c.v.Cache.Record(k, min(time.Duration(key.Cache), cache.MaxTTL))
		c.out.w.Header().Set(cache.Header, cache.Miss)
		return false
	}
	h := c.out.w.Header()
	h.Set(cache.Header, cache.Hit)
	for name, values := range entry.Head {
		h[name] = values
	}
	zero := gateway.Money(0)
	r := &c.record
	r.Cached, r.Served, r.Provider, r.Cost, r.FinishReason = true, entry.Record.Served, entry.Record.Provider, &zero, entry.Record.FinishReason
	c.out.whole(http.StatusOK, entry.Head.Get("Content-Type"), entry.Body)
	return true
}

// guard applies the guards to the request, and may change the request.
func (c *call) guard(model string) *hub.Error {
	if c.v.Guards == nil {
		return nil
	}
	if c.parts != nil {
		return c.guardForm(model)
	}
	body, err := c.v.Guards.Request(c.ctx, c.caller, model, c.body)
	if err != nil {
		return asError(err)
	}
	if len(body) == len(c.body) && len(body) > 0 && &body[0] == &c.body[0] {
		return nil
	}
	o, err := scan(body)
	if err != nil {
		return asError(err)
	}
	c.body, c.obj = body, o
	return nil
}

// buffers reports whether a stream must be complete before it is sent, because guards
// check answers.
func (c *call) buffers() bool { return c.stream && c.v.Guards.GuardsAnswers() }

// guarded applies the guards to a whole answer and returns the answer to send.
func (c *call) guarded(body []byte) ([]byte, *hub.Error) {
	if !c.v.Guards.GuardsAnswers() {
		return body, nil
	}
	body, err := c.v.Guards.Answer(c.ctx, c.caller, c.fallbacks[0], body)
	if err != nil {
		e := *asError(err)
		e.Kind = hub.Forbidden // no other provider is tried
		return nil, &e
	}
	return body, nil
}
