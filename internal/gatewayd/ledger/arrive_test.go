package ledger

import (
	"testing"
	"time"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// A request takes its slot before its body is read, and takes only one slot.
func TestArrive_Concurrency(t *testing.T) {
	t.Parallel()
	f := setup(t)
	_, c := f.key(gateway.CreateKeyParams{KeyScope: gateway.KeyScope{Concurrency: 2}})
	arrive := func() *Arrival {
		t.Helper()
		a, err := f.Arrive(c)
		checktest.OK(t, err)
		return a
	}
	first, second := arrive(), arrive()
	wantKind(t, failed(f.Arrive(c)), hub.RateLimited)
	need := cost(0)
	need.Arrival = first
	h := f.admit(c, need)
	first.Leave() // no effect: Admit has taken over the slot
	wantKind(t, failed(f.Arrive(c)), hub.RateLimited)
	second.Leave()
	second.Leave()
	third := arrive()
	wantKind(t, failed(f.Arrive(c)), hub.RateLimited)
	h.Settle(request(c, 0))
	third.Leave()
	arrive()
	arrive()
	wantKind(t, failed(f.Arrive(c)), hub.RateLimited)
}

func failed(_ *Arrival, err error) error { return err }

// A request that was read counts in its minute, however it ends; a forgiven request does
// not count, and an admitted request counts once.
func TestArrive_Requests(t *testing.T) {
	t.Parallel()
	f := setup(t)
	_, c := f.key(gateway.CreateKeyParams{KeyScope: gateway.KeyScope{RequestsPerMinute: 3}})
	for range 10 {
		a, err := f.Arrive(c)
		checktest.OK(t, err)
		a.Forgive()
	}
	for range 2 {
		a, err := f.Arrive(c)
		checktest.OK(t, err)
		need := cost(0)
		need.Arrival = a
		f.admit(c, need).Settle(request(c, 0))
	}
	a, err := f.Arrive(c)
	checktest.OK(t, err)
	a.Leave()
	if e := wantKind(t, failed(f.Arrive(c)), hub.RateLimited); e.RetryAfter != 20*time.Second {
		t.Errorf("retry after %s", e.RetryAfter)
	}
}

// Tokens that are used up refuse the next request before it is read.
func TestArrive_Tokens(t *testing.T) {
	t.Parallel()
	f := setup(t)
	_, c := f.key(gateway.CreateKeyParams{KeyScope: gateway.KeyScope{TokensPerMinute: 100}})
	f.admit(c, Need{Tokens: 100})
	wantKind(t, failed(f.Arrive(c)), hub.RateLimited)
}

// Callers without a key have no rates; keys that were deleted have no calls.
func TestArrive_Nobody(t *testing.T) {
	t.Parallel()
	f := setup(t)
	a, err := f.Arrive(caller())
	checktest.OK(t, err)
	a.Leave()
	a.Forgive()
	k, c := f.key(gateway.CreateKeyParams{})
	checktest.OK(t, f.DeleteKey(t.Context(), "team", "", k.ID))
	wantKind(t, failed(f.Arrive(c)), hub.Unauthenticated)
}
