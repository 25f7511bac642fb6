package gatewayd

import (
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// saw records the result of a tap.
func (x *exchange) saw(s *hub.Seen) {
	x.outputBytes, x.kept = s.OutputBytes, s.Kept
	x.sawUsage(s.Usage, s.Response, s.Finish, s.Complete)
}

// sawUsage records the usage and the result of a finished answer.
func (x *exchange) sawUsage(u *hub.Usage, r hub.Response, f hub.Finish, complete bool) {
	x.usage, x.estimated = u, false
	if u != nil {
		u.Fill()
	}
	if u == nil || u.Input == nil || u.Output == nil || !complete {
		x.estimate(complete)
	}
	x.record.ResponseID = r.ID
	x.keep(r, x.kept)
	x.finishReason = string(f.Reason)
}

// estimate fills in counts that the provider did not send, because the stream broke off
// before them, or the provider does not count. A token is estimated as 4 bytes.
func (x *exchange) estimate(complete bool) {
	u, rq := hub.Usage{}, &x.cl.rq
	if x.usage != nil {
		u = *x.usage
	}
	input, guess := int64(len(rq.Raw)+3)/4, (x.outputBytes+3)/4+x.unseen
	if x.serving { // capped at the call's maximum
		most, mostOut := mostOf(rq, x.o.offer, x.asked)
		if guess = min(guess, mostOut); rq.Refers() { // a client that leaves early must not pay less
			input = most
		}
		input = min(input, most)
	}
	if u.Input == nil {
		u.Input, u.NoCache = &input, nil
		x.estimated = true
	}
	if u.Output == nil || !complete && *u.Output < guess {
		u.Output, u.Text = &guess, nil
		x.estimated = true
	}
	u.Fill()
	x.usage = &u
}

// outputTokens returns the number of output tokens that the provider has counted, 0 if it
// has not.
func (x *exchange) outputTokens() int64 {
	if x.usage == nil || x.estimated {
		return 0
	}
	return hub.Count(x.usage.Output)
}
