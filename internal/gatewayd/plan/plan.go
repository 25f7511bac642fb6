package plan

import (
	"context"
	"fmt"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
	"github.com/cayhq/cay/internal/gatewayd/request"
)

// Plan says which models a call tries, in order.
type Plan struct {
	Models    []string
	Rewritten string // the requested model, if a rule asks for another one
}

// Plan makes the plan of a request by rules, guards and the key's scope. Rules change the
// request's options and its output limit, guards its payload.
func (v *View) Plan(ctx context.Context, caller *ledger.Caller, rq *request.Request) (p Plan, err *hub.Error) {
	name := rq.Model
	if v.Route != nil {
		preset, err := v.Route(caller, name)
		if err != nil {
			return p, hub.AsError(err)
		}
		if preset.Model != "" && preset.Model != name {
			p.Rewritten, name = name, preset.Model
		}
		applyPreset(&rq.Options, preset)
	}
	if len(rq.Options.Models) > 15 {
		return p, request.WrongOption("models", "at most 15 models")
	}
	p.Models = append(make([]string, 0, 16), name)
	for _, other := range rq.Options.Models { // rules and guards apply to all models
		if v.Route != nil {
			preset, err := v.Route(caller, other)
			if err != nil {
				return p, hub.AsError(err)
			}
			if preset.Model != "" {
				other = preset.Model
			}
		}
		if rq.Payload, err = v.Guard(ctx, caller, other, rq.Payload); err != nil {
			return p, err
		}
		p.Models = append(p.Models, other)
	}
	if key := caller.Key; key != nil {
		if most := key.MaxOutputTokens; most > 0 {
			if rq.MaxOutput > most {
				return p, &hub.Error{Kind: hub.Forbidden, Code: "max_output_tokens", Message: fmt.Sprintf("this key may ask for at most %d output tokens, not %d", most, rq.MaxOutput)}
			}
			if rq.MaxOutput == 0 {
				rq.MaxOutput = most
			}
		}
	}
	rq.Payload, err = v.Guard(ctx, caller, name, rq.Payload)
	return p, err
}

// applyPreset applies the operator's preset for a model to the options. Options of the request
// take precedence, except where the preset restricts them.
func applyPreset(o *request.Options, p Preset) {
	if len(o.Models) == 0 {
		o.Models = p.Models
	}
	if len(o.Order) == 0 {
		o.Order = p.Order
	}
	if len(p.Only) > 0 {
		if o.Only == nil {
			o.Only = p.Only
		} else {
			o.Only = intersect(o.Only, p.Only)
		}
	}
	if o.Sort == "" {
		o.Sort = p.Sort
	}
	o.ZeroData = o.ZeroData || p.ZeroData
	o.NoTraining = o.NoTraining || p.NoTraining
	o.AutoCache = o.AutoCache || p.AutoCache
	o.Has = append(o.Has, p.Has...)
	if o.Tier == "" {
		o.Tier = p.ServiceTier
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
