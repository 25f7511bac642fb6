package gatewayd

import (
	"context"
	"fmt"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
)

// plan says which models a call tries, in order.
type plan struct {
	models    []string
	rewritten string // the requested model, if a rule asks for another one
}

// spender returns a copy of caller with the user and the tags of a request: the ledger's
// Caller must not change.
func (rq *request) spender(caller *ledger.Caller) *ledger.Caller {
	c := *caller
	c.User = rq.user()
	if len(rq.opts.tags) > 0 {
		c.Tags = append(append([]string(nil), c.Tags...), rq.opts.tags...)
	}
	return &c
}

// plan makes the plan of a request by rules, guards and the key's scope. Rules change the
// request's options and its output limit, guards its payload.
func (v *view) plan(ctx context.Context, caller *ledger.Caller, rq *request) (p plan, err *hub.Error) {
	name := rq.model
	if v.Route != nil {
		preset, err := v.Route(caller, name)
		if err != nil {
			return p, hub.AsError(err)
		}
		if preset.Model != "" && preset.Model != name {
			p.rewritten, name = name, preset.Model
		}
		rq.opts.apply(preset)
	}
	if len(rq.opts.models) > 15 {
		return p, wrongOption("models", "at most 15 models")
	}
	p.models = append(make([]string, 0, 16), name)
	for _, other := range rq.opts.models { // rules and guards apply to all models
		if v.Route != nil {
			preset, err := v.Route(caller, other)
			if err != nil {
				return p, hub.AsError(err)
			}
			if preset.Model != "" {
				other = preset.Model
			}
		}
		if rq.payload, err = v.guard(ctx, caller, other, rq.payload); err != nil {
			return p, err
		}
		p.models = append(p.models, other)
	}
	if key := caller.Key; key != nil {
		if most := key.MaxOutputTokens; most > 0 {
			if rq.maxOutput > most {
				return p, &hub.Error{Kind: hub.Forbidden, Code: "max_output_tokens", Message: fmt.Sprintf("this key may ask for at most %d output tokens, not %d", most, rq.maxOutput)}
			}
			if rq.maxOutput == 0 {
				rq.maxOutput = most
			}
		}
	}
	rq.payload, err = v.guard(ctx, caller, name, rq.payload)
	return p, err
}

// apply applies the operator's preset for a model to the options. Options of the request
// take precedence, except where the preset restricts them.
func (o *options) apply(p Preset) {
	if len(o.models) == 0 {
		o.models = p.Models
	}
	if len(o.order) == 0 {
		o.order = p.Order
	}
	if len(p.Only) > 0 {
		if o.only == nil {
			o.only = p.Only
		} else {
			o.only = intersect(o.only, p.Only)
		}
	}
	if o.sort == "" {
		o.sort = p.Sort
	}
	o.zeroData = o.zeroData || p.ZeroData
	o.noTraining = o.noTraining || p.NoTraining
	o.autoCache = o.autoCache || p.AutoCache
	o.has = append(o.has, p.Has...)
	if o.tier == "" {
		o.tier = p.ServiceTier
	}
}

func intersect(a, b []string) []string {
	both := []string{}
	for _, s := range a {
		for _, o := range b {
			if s == o {
				both = append(both, s)
				break
			}
		}
	}
	return both
}
