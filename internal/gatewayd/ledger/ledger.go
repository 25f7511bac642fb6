// Package ledger knows who may call, how much they may spend, and what was spent:
// keys, budgets, rates and the records of requests.
//
// A call is admitted before any provider hears of it, with the most it can cost,
// and settled once, however it ended. What was admitted and not settled counts as
// spent. So does, after a crash, what was set aside for calls of which nobody
// knows how they ended: of each budget what was under way, what was settled in the
// last tenth of a second, and a hundredth of the limit. It is shown as unsettled.
//
// So what a budget has spent in a period, as far as providers tell, exceeds its
// limit by no more than calls have cost beyond what they were admitted with, and
// by that alone, however many callers there are and whenever the process dies.
//
// The package knows no wire format and no provider; what things cost, others say.
package ledger

import (
	"context"
	"net/http"

	"github.com/cayhq/cay/gateway"
)

// Caller is on whose account a call goes.
type Caller struct {
	TeamID, ProjectID string
	KeyID             string       // of Key, or of a token of the daemon's
	Key               *gateway.Key // nil for a token
	User              string       // the caller's end user, if it names one
	Tags              []string     // the key's and the request's
}

// Need is what a call may take at most.
type Need struct {
	Cost gateway.Money
	// Spent is what attempts have cost that came to nothing. It comes on top of Cost,
	// whoever pays for what is tried next.
	Spent gateway.Money
	// Unpriced calls cost more than Cost, nobody knows what.
	Unpriced bool
	Why      string // in words, what it is that has no price
	BYOK     bool
	Tokens   int64 // of input and output
	// Arrival is the place the request already has among those of its key; nil:
	// none. Admit takes it over.
	Arrival *Arrival
}

// Ledger is what the engine asks of this package.
type Ledger interface {
	// Authenticate returns the Caller of a secret, without User and with the key's
	// Tags. Errors: *hub.Error of the kind Unauthenticated.
	Authenticate(ctx context.Context, secret string) (*Caller, error)
	// Admit lets a call begin, or says why not: BudgetExceeded, RateLimited with
	// RetryAfter, Forbidden (an unpriced model), Overloaded if records cannot be
	// kept. Errors: *hub.Error.
	Admit(ctx context.Context, c *Caller, n Need) (Hold, error)
}

// Hold is a call that was admitted.
type Hold interface {
	// Raise changes what the call may take at most, as when it goes to another model.
	// Errors: as for Admit; the hold is then as it was.
	Raise(ctx context.Context, n Need) error
	// Limits sets the x-ratelimit-* headers of the answer.
	Limits(head http.Header)
	// Settle ends the hold with the record of the request, whose Cost is what was
	// spent. Exactly one call; it does not wait for the disk, and keeps nothing of r.
	Settle(r *gateway.Request)
}
