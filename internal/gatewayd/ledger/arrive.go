package ledger

import (
	"fmt"
	"time"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Arrival is a request of a key whose body nobody has read yet. It has a place
// among those that the key may have under way, and counts for its requests a
// minute. nil is that of a caller without rates.
type Arrival struct {
	book *Book
	key  *key
	here bool // it still has its place; guarded by Book.mu
}

// Arrive takes a place for a request of c before its body is read, so that a key
// that is at its rates costs no more than headers. Admit takes the place over when
// the Arrival is in its Need; else Leave gives it up. Errors: *hub.Error of the
// kinds RateLimited and Unauthenticated.
func (b *Book) Arrive(c *Caller) (*Arrival, error) {
	if c.Key == nil {
		return nil, nil
	}
	k := b.keys.byID(c.KeyID)
	if k == nil {
		return nil, unknownKey()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	err := k.arrive(now)
	if wait := k.rates.tokens.wait(1); err == nil && wait > 0 {
		err = k.limited(wait, "has used the %d tokens it may use in a minute", k.k.TokensPerMinute)
	}
	if err != nil {
		b.stats.Refused++
		return nil, err
	}
	k.rates.running++
	k.rates.requests.take(1)
	return &Arrival{book: b, key: k, here: true}, nil
}

// Leave gives the place up, unless Admit has taken it over. The request stays
// counted in its minute: what was read of it was work.
func (a *Arrival) Leave() { a.leave(0) }

// Forgive is Leave for a request that is not to count, as one that was answered
// without a provider.
func (a *Arrival) Forgive() { a.leave(1) }

func (a *Arrival) leave(requests int64) {
	if a == nil {
		return
	}
	a.book.mu.Lock()
	defer a.book.mu.Unlock()
	if a.here {
		a.here = false
		a.key.rates.running--
		a.key.rates.requests.take(-requests)
	}
}

// arrive says whether the key may have another request at all. Called with Book.mu
// held.
func (k *key) arrive(now time.Time) error {
	k.fill(now)
	if most := k.k.Concurrency; most > 0 && k.rates.running >= most {
		// Nobody knows when one of them ends.
		return k.limited(time.Second, "has %d requests under way, as many as it may have", k.rates.running)
	}
	if wait := k.rates.requests.wait(1); wait > 0 {
		return k.limited(wait, "has made the %d requests it may make in a minute", k.k.RequestsPerMinute)
	}
	return nil
}

func (k *key) limited(wait time.Duration, format string, args ...any) error {
	return &hub.Error{
		Kind: hub.RateLimited, Code: "rate_limit_exceeded", RetryAfter: wait,
		Message: fmt.Sprintf("the key %s %s", k.k.ID, fmt.Sprintf(format, args...)),
	}
}
