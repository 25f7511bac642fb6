package gatewayd

import (
	"net/http"
	"slices"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
	"github.com/cayhq/cay/internal/gatewayd/messages"
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
	if err := c.try(c.countBy); err != nil && (len(c.record.Attempts) == 0 || err.Kind == hub.BadRequest) {
		return err
	} else if err == nil {
		return nil
	}
	return c.countHere() // no provider could count: an estimate is better than nothing
}

// countBy asks a provider to count, or estimates if the provider cannot count.
func (c *call) countBy(o *candidate, cred provider.Credential, _ bool) *hub.Error {
	up := c.e.upstreams[formatMessages]
	target := o.targetFor(cred)
	switch {
	case slices.Contains(o.provider.Formats, formatGemini) && c.e.upstreams[formatGemini] != nil:
		return c.countByGemini(o, cred, target)
	case !slices.Contains(o.provider.Formats, formatMessages), up == nil, target.Is(messages.QuirkBedrock):
		return c.countHere()
	}
	out, _ := c.passed(target)
	a := c.begin(o, cred)
	resp, err := a.send(out, up, false)
	if err == nil {
		var body []byte
		if body, err = a.readAll(resp); err == nil {
			c.record.Served, c.record.Provider = o.model.ID, o.provider.Name
			c.out.whole(http.StatusOK, "application/json", body)
		}
		_ = resp.Body.Close()
	}
	a.end(err)
	return err
}

// countHere answers with an estimate.
func (c *call) countHere() *hub.Error {
	if err := c.decode(); err != nil {
		return err
	}
	counter := messages.New()
	c.out.whole(http.StatusOK, "application/json", counter.WriteCounted(messages.EstimateTokens(c.parsed)))
	return nil
}
