package gatewayd

import (
	"math"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/asks"
	"github.com/cayhq/cay/internal/gatewayd/catalog"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
)

// defaultOutput is the number of output tokens reserved if neither the request nor the
// catalogue has a limit.
const defaultOutput = 16 << 10

// needOf estimates the maximum cost of a call: 1 token per 3 bytes of the request, at
// most the model's context, at the highest price of a prompt token, plus the requested
// output limit, or the model's. An English token has 4 bytes or more. The tokens that a
// provider's own tools add to the prompt are unknown before the call.
//
// Requested options come from the client's request and from asked, which is nil before
// the provider's request exists.
func (v *view) needOf(rq *request, o *offer, asked *asks.Asks) ledger.Need {
	n := ledger.Need{Unpriced: o.endpoint.Price == nil}
	input, output := mostOf(rq, o, asked)
	n.Tokens = input + output
	if p := o.endpoint.Price; p != nil {
		n.Cost = catalog.MostOf(p, input, output, rq.tier())
		if asked != nil {
			n.Cost = max(n.Cost, catalog.MostOf(p, input, output, asked.Tier), catalog.MostOf(p, input, output, asked.Speed))
		}
		n.Cost = n.Cost.Plus(mostMedia(rq, p, asked))
	}
	if asked != nil {
		v.addTools(&n, asked, o, input)
	}
	return n
}

// soundTokens is the maximum number of tokens per second of sound.
const soundTokens = 20

// mostOf returns the maximum numbers of input and output tokens of a call.
func mostOf(rq *request, o *offer, asked *asks.Asks) (input, output int64) {
	input = int64(len(rq.raw))/3 + 16
	if rq.rt.kind == kindTranscription {
		input = min(input, rq.soundSeconds()*soundTokens)
	}
	if limit := orDefault(o.endpoint.Context, o.model.Context); limit > 0 {
		input = min(input, limit)
	}
	if rq.refers() { // to turns that the provider has
		if before := asked.Turns(); before >= 0 {
			return min(input+before+before/8, orDefault(orDefault(o.endpoint.Context, o.model.Context), math.MaxInt64)), mostOut(rq, o, asked)
		}
		input = orDefault(orDefault(o.endpoint.Context, o.model.Context), max(input, defaultContext))
	}
	return input, mostOut(rq, o, asked)
}

// mostOut returns the maximum number of output tokens of a call.
func mostOut(rq *request, o *offer, asked *asks.Asks) (output int64) {
	if p := o.endpoint.Price; rq.rt.kind == kindLanguage || p != nil && p.Output > 0 {
		output = rq.maxOutput
		if asked != nil {
			output = max(output, asked.Output)
		}
		if rq.rt.kind == kindImage {
			output = rq.perImage()
		}
		output = orDefault(output, orDefault(o.target.MaxOutput, defaultOutput))
	}
	n := max(1, rq.copies)
	if asked != nil {
		n = max(n, asked.Copies)
	}
	return output * min(n, maxCopies)
}

// maxCopies is the maximum number of answers that the estimate assumes, and
// maxImageTokens the number of tokens of an image: OpenAI's largest in the best quality.
const (
	maxCopies      = 128
	maxImageTokens = 6240
)

// defaultContext is the number of tokens assumed for a conversation that the request only
// names, if the model's context is unknown.
const defaultContext = 128 << 10

// refers reports whether the request continues a conversation, or uses a prompt, that the
// provider keeps.
func (rq *request) refers() bool {
	if rq.rt.name != formatResponses {
		return false
	}
	for _, name := range [...]string{"previous_response_id", "conversation", "prompt"} {
		if raw := rq.obj.Get(name); raw != nil && string(raw) != "null" {
			return true
		}
	}
	return false
}

// tier returns the requested service tier, "" if there is none.
func (rq *request) tier() string {
	if raw := rq.obj.Get("service_tier"); len(raw) > 2 && raw[0] == '"' {
		return clip(gjson.ParseBytes(raw).Str)
	}
	return rq.opts.tier
}
