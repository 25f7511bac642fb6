// Package ledger knows who may call, how much callers may spend, and how much they have
// spent: keys, budgets, rates and the records of requests.
//
// A call is admitted before the gateway contacts a provider, with its maximum cost, and
// is settled once, however it ends. Admitted amounts that are not yet settled count as
// spent. After a crash, amounts reserved for calls whose end is unknown count as spent,
// too. For each budget these are the running calls, the calls settled in the last 100 ms,
// and 1/100 of the limit. The API shows this amount as unsettled.
//
// So a budget's spending in a period, as far as providers report it, exceeds the limit
// only by the amounts by which calls cost more than they were admitted with, regardless
// of the number of callers and of when the process dies.
//
// The package knows no wire format, no provider and no price.
package ledger

import (
	"context"
	"net/http"

	"github.com/cayhq/cay/gateway"
)

// Caller is the account that a call is charged to.
type Caller struct {
	TeamID, ProjectID string
	KeyID             string       // the id of Key, or of a token of the daemon
	Key               *gateway.Key // nil for a token
	User              string       // the caller's end user, if it names one
	Tags              []string     // the key's and the request's
}

// Need is the most that a call may take.
type Need struct {
	Cost gateway.Money
	// Spent is the cost of failed attempts. Spent is added to Cost, also when the next
	// attempt is paid for with the caller's own provider key.
	Spent gateway.Money
	// Unpriced says that the call may cost more than Cost, because a price is unknown.
	Unpriced bool
	Why      string // names the part of the call that has no price
	BYOK     bool
	Tokens   int64 // of input and output
	// Arrival is the slot that the request already has from Arrive; nil if it has none.
	// Admit takes it over.
	Arrival *Arrival
}

// Ledger is the interface that the engine uses.
type Ledger interface {
	// Authenticate returns the Caller that a secret belongs to, without User and with the
	// key's Tags. Errors: *hub.Error of the kind Unauthenticated.
	Authenticate(ctx context.Context, secret string) (*Caller, error)
	// Admit lets a call begin, or returns why not: BudgetExceeded, RateLimited with
	// RetryAfter, Forbidden (an unpriced model), Overloaded if records cannot be kept.
	// Errors: *hub.Error.
	Admit(ctx context.Context, c *Caller, n Need) (Hold, error)
}

// Hold is an admitted call.
type Hold interface {
	// Raise changes the most that the call may take, for example when the call goes to
	// another model. Errors: the same as Admit's; after an error the hold is unchanged.
	Raise(ctx context.Context, n Need) error
	// Limits sets the x-ratelimit-* headers of the answer.
	Limits(head http.Header)
	// Settle ends the hold with the record of the request; the record's Cost is the
	// amount spent. Settle must be called exactly once; it does not wait for the disk,
	// and does not retain r.
	Settle(r *gateway.Request)
}
