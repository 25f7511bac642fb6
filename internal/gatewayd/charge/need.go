package charge

import (
	"cmp"
	"math"

	"github.com/cayhq/cay/internal/gatewayd/asks"
	"github.com/cayhq/cay/internal/gatewayd/catalog"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
	"github.com/cayhq/cay/internal/gatewayd/plan"
	"github.com/cayhq/cay/internal/gatewayd/request"
)

// defaultOutput is the number of output tokens reserved if neither the request nor the
// catalogue has a limit.
const defaultOutput = 16 << 10

// Need estimates the maximum cost of a call: 1 token per 3 bytes of the request, at
// most the model's context, at the highest price of a prompt token, plus the requested
// output limit, or the model's. An English token has 4 bytes or more. The tokens that a
// provider's own tools add to the prompt are unknown before the call.
//
// Requested options come from the client's request and from asked, which is nil before
// the provider's request exists.
func Need(v *plan.View, rq *request.Request, o *plan.Offer, asked *asks.Asks) ledger.Need {
	n := ledger.Need{Unpriced: o.Endpoint.Price == nil}
	input, output := mostOf(rq, o, asked)
	n.Tokens = input + output
	if p := o.Endpoint.Price; p != nil {
		n.Cost = catalog.MostOf(p, input, output, rq.Tier())
		if asked != nil {
			n.Cost = max(n.Cost, catalog.MostOf(p, input, output, asked.Tier), catalog.MostOf(p, input, output, asked.Speed))
		}
		n.Cost = n.Cost.Plus(mostMedia(rq, p, asked))
	}
	if asked != nil {
		addTools(v, &n, asked, o, input)
	}
	return n
}

// soundTokens is the maximum number of tokens per second of sound.
const soundTokens = 20

// mostOf returns the maximum numbers of input and output tokens of a call.
func mostOf(rq *request.Request, o *plan.Offer, asked *asks.Asks) (input, output int64) {
	input = int64(len(rq.Raw))/3 + 16
	if rq.Route.Kind == request.KindTranscription {
		input = min(input, rq.SoundSeconds()*soundTokens)
	}
	if limit := cmp.Or(o.Endpoint.Context, o.Model.Context); limit > 0 {
		input = min(input, limit)
	}
	if rq.Refers() { // to turns that the provider has
		if before := asked.Turns(); before >= 0 {
			return min(input+before+before/8, cmp.Or(cmp.Or(o.Endpoint.Context, o.Model.Context), math.MaxInt64)), mostOut(rq, o, asked)
		}
		input = cmp.Or(cmp.Or(o.Endpoint.Context, o.Model.Context), max(input, defaultContext))
	}
	return input, mostOut(rq, o, asked)
}

// mostOut returns the maximum number of output tokens of a call.
func mostOut(rq *request.Request, o *plan.Offer, asked *asks.Asks) (output int64) {
	if p := o.Endpoint.Price; rq.Route.Kind == request.KindLanguage || p != nil && p.Output > 0 {
		output = rq.MaxOutput
		if asked != nil {
			output = max(output, asked.Output)
		}
		if rq.Route.Kind == request.KindImage {
			output = rq.PerImage()
		}
		output = cmp.Or(output, cmp.Or(o.Target.MaxOutput, defaultOutput))
	}
	n := max(1, rq.Copies)
	if asked != nil {
		n = max(n, asked.Copies)
	}
	return output * min(n, MaxCopies)
}

// MaxCopies is the maximum number of answers that the estimate assumes.
const MaxCopies = 128

// defaultContext is the number of tokens assumed for a conversation that the request only
// names, if the model's context is unknown.
const defaultContext = 128 << 10
