package gatewayd

import (
	"net/http"
	"slices"

	"github.com/cayhq/cay/internal/gatewayd/gemini"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
	"github.com/cayhq/cay/internal/gatewayd/messages"
	"github.com/cayhq/cay/internal/gatewayd/plan"
	"github.com/cayhq/cay/internal/gatewayd/provider"
)

// countTokens serves POST /v1/messages/count_tokens with a provider that speaks
// Anthropic's or Gemini's format, else with the gateway's estimate. Counting costs
// nothing, so budgets do not apply; the key's rates do, and the call has a record.
func (c *call) countTokens() *hub.Error {
	if err := c.prepared(); err != nil {
		return err
	}
	if err := c.admitted(ledger.Need{}); err != nil {
		return err
	}
	if err := c.try(c.countBy); err != nil && (len(c.trail.attempts) == 0 || err.Kind == hub.BadRequest) {
		return err
	} else if err == nil {
		return nil
	}
	return c.estimateTokens() // no provider could count: an estimate is better than nothing
}

// countBy asks a provider to count, or estimates if the provider cannot count.
func (c *call) countBy(o *plan.Candidate, cred provider.Credential) *hub.Error {
	up := c.e.upstreams[formatMessages]
	target := o.TargetFor(cred)
	switch {
	case slices.Contains(o.Provider.Formats, formatGemini) && c.e.upstreams[formatGemini] != nil:
		return c.countByGemini(o, cred, target)
	case !slices.Contains(o.Provider.Formats, formatMessages), up == nil, target.Is(messages.QuirkBedrock):
		return c.estimateTokens()
	}
	out, _ := outgoing(&c.rq, target, c.caller.Key)
	x := c.begin(o, cred, nil, false)
	resp, err := x.send(out, up, false)
	if err == nil {
		var body []byte
		if body, err = x.readAll(resp); err == nil {
			c.record.Served, c.record.Provider = o.Model.ID, o.Provider.Name
			c.out.whole(http.StatusOK, "application/json", body)
		}
		_ = resp.Body.Close()
	}
	c.ended(x, err)
	return err
}

// estimateTokens answers with an estimate.
func (cl *client) estimateTokens() *hub.Error {
	if err := cl.decode(); err != nil {
		return err
	}
	counter := messages.New()
	cl.out.whole(http.StatusOK, "application/json", counter.WriteCounted(messages.EstimateTokens(cl.doc.Call)))
	return nil
}

// countByGemini counts with a Gemini provider for an Anthropic client.
func (c *call) countByGemini(o *plan.Candidate, cred provider.Credential, target *hub.Target) *hub.Error {
	f, up := gemini.New(), c.e.upstreams[formatGemini]
	if err := c.decode(); err != nil {
		return err
	}
	asked, err := c.doc.WithFiles(c.ctx, c.e.fetcher, fetches(o, up))
	if err != nil {
		return err
	}
	out, _, bad := f.WriteCount(asked, target)
	if bad != nil {
		return hub.AsError(bad)
	}
	x := c.begin(o, cred, nil, false)
	body, err := x.ask(out, up)
	if err == nil {
		var n int64
		if n, bad = f.ReadCount(target, body); bad != nil {
			err = x.from(bad)
		} else {
			c.record.Served, c.record.Provider = o.Model.ID, o.Provider.Name
			c.out.whole(http.StatusOK, "application/json", messages.New().WriteCounted(n))
		}
	}
	c.ended(x, err)
	return err
}
