package ledger

import (
	"fmt"
	"time"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Arrival is a request of a key whose body has not been read yet. An Arrival counts
// against the key's concurrency limit and its requests per minute. A nil Arrival belongs
// to a caller without rate limits.
type Arrival struct {
	memory *memory
	key    *key
	here   bool // it still has its place; guarded by memory.mu
}

// Arrive takes a concurrency slot for a request of c before the body is read, so that the
// gateway reads only the headers of requests of a key that has reached its rates. Admit
// takes over the slot if Need.Arrival is set; otherwise the caller must call Leave.
// Errors: *hub.Error of the kinds RateLimited and Unauthenticated.
func (m *memory) Arrive(c *Caller) (*Arrival, error) {
	if c.Key == nil {
		return nil, nil
	}
	k := m.keys.byID(c.KeyID)
	if k == nil {
		return nil, unknownKey()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	err := k.arrive(now)
	if wait := k.rates.tokens.wait(1); err == nil && wait > 0 {
		err = k.limited(wait, "has used the %d tokens it may use in a minute", k.k.TokensPerMinute)
	}
	if err != nil {
		m.stats.Refused++
		return nil, err
	}
	k.rates.running++
	k.rates.requests.take(1)
	return &Arrival{memory: m, key: k, here: true}, nil
}

// Leave releases the slot, unless Admit has taken it over. The request stays counted in
// its minute, because the gateway has spent work on reading it.
func (a *Arrival) Leave() { a.leave(0) }

// Forgive is Leave for a request that does not count against the rate, such as a request
// that was answered without a provider.
func (a *Arrival) Forgive() { a.leave(1) }

func (a *Arrival) leave(requests int64) {
	if a == nil {
		return
	}
	a.memory.mu.Lock()
	defer a.memory.mu.Unlock()
	if a.here {
		a.here = false
		a.key.rates.running--
		a.key.rates.requests.take(-requests)
	}
}

// arrive checks the key's concurrency and rates for one more request. Called with memory.mu
// held.
func (k *key) arrive(now time.Time) error {
	k.fill(now)
	if most := k.k.Concurrency; most > 0 && k.rates.running >= most {
		// The end of the running requests is unknown, so RetryAfter is 1 second.
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
