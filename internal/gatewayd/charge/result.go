package charge

import (
	"github.com/cayhq/cay/internal/gatewayd/asks"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/plan"
	"github.com/cayhq/cay/internal/gatewayd/request"
)

// Result is what a provider has answered to a request, as far as the cost depends on it.
type Result struct {
	Offer       *plan.Offer
	BYOK        bool       // the caller's own credential paid
	Asked       *asks.Asks // options that the provider was sent, nil if unknown
	Usage       *hub.Usage
	Estimated   bool  // the gateway has counted, and not the provider
	OutputBytes int64 // of the content that arrived
	Unseen      int64 // tokens that the provider may have generated but that did not arrive
	Images      int64 // images generated
	Seconds     int64 // seconds that were transcribed, if the provider counts them
}

// Estimate fills in counts that the provider did not send, because the stream broke off
// before them, or the provider does not count. A token is estimated as 4 bytes.
func (x *Result) Estimate(rq *request.Request, complete bool) {
	u := hub.Usage{}
	if x.Usage != nil {
		u = *x.Usage
	}
	input, guess := int64(len(rq.Raw)+3)/4, (x.OutputBytes+3)/4+x.Unseen
	if x.Offer != nil { // capped at the call's maximum
		most, mostOut := mostOf(rq, x.Offer, x.Asked)
		if guess = min(guess, mostOut); rq.Refers() { // a client that leaves early must not pay less
			input = most
		}
		input = min(input, most)
	}
	if u.Input == nil {
		u.Input, u.NoCache = &input, nil
		x.Estimated = true
	}
	if u.Output == nil || !complete && *u.Output < guess {
		u.Output, u.Text = &guess, nil
		x.Estimated = true
	}
	u.Fill()
	x.Usage = &u
}

// OutputTokens returns the number of output tokens that the provider has counted, 0 if it
// has not.
func (x *Result) OutputTokens() int64 {
	if x.Usage == nil || x.Estimated {
		return 0
	}
	return hub.Count(x.Usage.Output)
}
