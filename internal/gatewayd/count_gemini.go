package gatewayd

import (
	"net/http"

	"github.com/cayhq/cay/internal/gatewayd/gemini"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/messages"
	"github.com/cayhq/cay/internal/gatewayd/provider"
)

// countByGemini counts with a Gemini provider for an Anthropic client.
func (c *call) countByGemini(o *candidate, cred provider.Credential, target *hub.Target) *hub.Error {
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
			c.record.Served, c.record.Provider = o.model.ID, o.provider.Name
			c.out.whole(http.StatusOK, "application/json", messages.New().WriteCounted(n))
		}
	}
	c.ended(x, err)
	return err
}
