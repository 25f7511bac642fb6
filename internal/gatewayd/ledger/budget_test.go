package ledger

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

func TestBudget_EachScope(t *testing.T) {
	t.Parallel()
	for i, id := range []gateway.BudgetID{
		{Scope: gateway.ScopeTeam, Ref: "team"},
		{Scope: gateway.ScopeTeam},
		{Scope: gateway.ScopeProject, Ref: "prj"},
		{Scope: gateway.ScopeProject},
		{Scope: gateway.ScopeKey, Ref: "tok"},
		{Scope: gateway.ScopeKey},
		{Scope: gateway.ScopeUser, Ref: "alice"},
		{Scope: gateway.ScopeUser},
		{Scope: gateway.ScopeTag, Ref: "b"},
		{Scope: gateway.ScopeTag},
	} {
		t.Run(fmt.Sprint(i, id), func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			f.budget(id.Scope, id.Ref, gateway.BudgetParams{Limit: 10 * cent})
			c := caller("a", "b", "b")
			h := f.admit(c, cost(6*cent))
			e := wantKind(t, second(f.Admit(t.Context(), c, cost(5*cent))), hub.BudgetExceeded)
			for _, says := range []string{string(id.Scope), "$0.06", "$0.1 ", "$0.05", "2026-11-19T00:00:00Z"} {
				if !strings.Contains(e.Message, says) {
					t.Errorf("%q does not say %q", e.Message, says)
				}
			}
			h.Settle(request(c, 2*cent))
			f.admit(c, cost(8*cent)).Settle(request(c, 8*cent))
			wantKind(t, second(f.Admit(t.Context(), c, cost(1))), hub.BudgetExceeded)
			f.admit(c, cost(0)).Settle(request(c, 0)) // calls that cost nothing are not refused
			// Other spenders have budgets of their own, or no budget.
			other := &Caller{TeamID: "other", ProjectID: "p2", KeyID: "k2", User: "bob", Tags: []string{"z"}}
			f.admit(other, cost(10*cent)).Settle(request(other, 10*cent))
		})
	}
}

func second[A any](_ A, err error) error { return err }

func TestBudget_OwnBeforeDefault(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.budget(gateway.ScopeUser, "", gateway.BudgetParams{Limit: cent})
	f.budget(gateway.ScopeUser, "alice", gateway.BudgetParams{Limit: 10 * cent})
	f.admit(caller(), cost(5*cent)).Settle(request(caller(), 5*cent))
	f.spent(gateway.ScopeUser, "alice", 5*cent, 0)
	bob := caller()
	bob.User = "bob"
	f.admit(bob, cost(cent)).Settle(request(bob, cent))
	f.spent(gateway.ScopeUser, "bob", cent, 0)
	wantKind(t, second(f.Admit(t.Context(), bob, cost(1))), hub.BudgetExceeded)
	// Without a budget of her own alice has the default, and she has already spent more
	// than its limit.
	checktest.OK(t, f.DeleteBudget(t.Context(), "team", gateway.BudgetID{Scope: gateway.ScopeUser, Ref: "alice"}))
	wantKind(t, second(f.Admit(t.Context(), caller(), cost(1))), hub.BudgetExceeded)
	f.spent(gateway.ScopeUser, "alice", 5*cent, 0)
	checktest.OK(t, f.DeleteBudget(t.Context(), "team", gateway.BudgetID{Scope: gateway.ScopeUser}))
	f.admit(caller(), cost(gateway.Dollar)).Settle(request(caller(), gateway.Dollar))
	_, err := f.GetBudget(t.Context(), "team", gateway.BudgetID{Scope: gateway.ScopeUser, Ref: "alice"})
	checktest.Code(t, err, cay.NotFound)
	// A new budget starts at 0, also after a restart.
	f.budget(gateway.ScopeUser, "alice", gateway.BudgetParams{Limit: cent})
	f.spent(gateway.ScopeUser, "alice", 0, 0)
	f.reopen()
	f.spent(gateway.ScopeUser, "alice", 0, 0)
}

func TestBudget_Replaced(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.budget(gateway.ScopeProject, "prj", gateway.BudgetParams{Limit: cent})
	f.admit(caller(), cost(cent)).Settle(request(caller(), cent))
	wantKind(t, second(f.Admit(t.Context(), caller(), cost(1))), hub.BudgetExceeded)
	f.budget(gateway.ScopeProject, "prj", gateway.BudgetParams{Limit: 3 * cent, Period: gateway.Monthly})
	f.admit(caller(), cost(2*cent)).Settle(request(caller(), 2*cent))
	f.clock.add(24 * time.Hour) // the day is over, the month is not
	wantKind(t, second(f.Admit(t.Context(), caller(), cost(1))), hub.BudgetExceeded)
	f.budget(gateway.ScopeProject, "prj", gateway.BudgetParams{Limit: cent, Period: gateway.Monthly})
	if b := f.spent(gateway.ScopeProject, "prj", 3*cent, 0); b.Limit != cent || b.Period != gateway.Monthly {
		t.Errorf("it is %+v", b)
	}
}

func TestBudget_Periods(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		period       gateway.Period
		before, next string // the last moment of the period, and the first of the next
	}{
		{gateway.Daily, "2026-11-18T23:59:59Z", "2026-11-19T00:00:00Z"},
		{gateway.Weekly, "2026-11-22T23:59:59Z", "2026-11-23T00:00:00Z"},
		{gateway.Monthly, "2026-11-30T23:59:59Z", "2026-12-01T00:00:00Z"},
	} {
		t.Run(string(tt.period), func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			f.budget(gateway.ScopeTeam, "team", gateway.BudgetParams{Limit: 10 * cent, Period: tt.period})
			set := f.clock.Now()
			h := f.admit(caller(), cost(4*cent))
			f.admit(caller(), cost(6*cent)).Settle(request(caller(), 6*cent))
			f.clock.set(tt.before)
			wantKind(t, second(f.Admit(t.Context(), caller(), cost(1))), hub.BudgetExceeded)
			if b := f.spent(gateway.ScopeTeam, "team", 6*cent, 4*cent); !b.Since.Equal(set) || b.ResetAt == nil || b.ResetAt.Format(time.RFC3339) != tt.next {
				t.Errorf("it counts from %v to %v", b.Since, b.ResetAt)
			}
			f.clock.set(tt.next)
			if b := f.spent(gateway.ScopeTeam, "team", 0, 4*cent); b.Since.Format(time.RFC3339) != tt.next {
				t.Errorf("it counts from %v", b.Since)
			}
			// Calls that are under way when a period ends count in the next period.
			wantKind(t, second(f.Admit(t.Context(), caller(), cost(7*cent))), hub.BudgetExceeded)
			f.admit(caller(), cost(6*cent)).Settle(request(caller(), 6*cent))
			h.Settle(request(caller(), 3*cent))
			f.spent(gateway.ScopeTeam, "team", 9*cent, 0)
			// A clock that goes back does not restore the old period's budget.
			f.clock.set(tt.before)
			wantKind(t, second(f.Admit(t.Context(), caller(), cost(2*cent))), hub.BudgetExceeded)
			f.spent(gateway.ScopeTeam, "team", 9*cent, 0)
			f.reopen()
			f.spent(gateway.ScopeTeam, "team", 9*cent, 0)
		})
	}
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		f := setup(t)
		f.budget(gateway.ScopeTeam, "team", gateway.BudgetParams{Limit: cent, Period: gateway.Never})
		f.admit(caller(), cost(cent)).Settle(request(caller(), cent))
		f.clock.add(10 * 365 * 24 * time.Hour)
		if b := f.spent(gateway.ScopeTeam, "team", cent, 0); b.ResetAt != nil {
			t.Errorf("it begins anew at %v", b.ResetAt)
		}
		f.reopen()
		wantKind(t, second(f.Admit(t.Context(), caller(), cost(1))), hub.BudgetExceeded)
	})
}

// The first call of a period waits until the database knows the new period, so that a
// crash cannot count the call's held amount in the old period.
func TestBudget_PeriodIsDurable(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.budget(gateway.ScopeTeam, "team", gateway.BudgetParams{Limit: gateway.Dollar})
	f.admit(caller(), cost(cent)).Settle(request(caller(), cent))
	f.clock.add(24 * time.Hour)
	h := f.admit(caller(), cost(cent))
	sp, err := f.store.spending(t.Context(), spender{"team", gateway.ScopeTeam, "team"})
	checktest.OK(t, err)
	if want := newClock("2026-11-19T00:00:00Z").now; !sp.since.Equal(want) || sp.held < cent || sp.held > 2*cent {
		t.Errorf("the database has %+v; want a period from %v and 1 to 2 cents held", sp, want)
	}
	h.Settle(request(caller(), cent))
}

func TestBudget_Unpriced(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.budget(gateway.ScopeTeam, "team", gateway.BudgetParams{Limit: cent, AllowUnpriced: true})
	r := request(caller(), 0)
	r.Cost, r.MarketCost = nil, nil
	f.admit(caller(), Need{Unpriced: true}).Settle(r)
	f.spent(gateway.ScopeTeam, "team", 0, 0)
	// The known part of the price is reserved all the same.
	wantKind(t, second(f.Admit(t.Context(), caller(), Need{Unpriced: true, Cost: gateway.Dollar})), hub.BudgetExceeded)
	f.budget(gateway.ScopeKey, "tok", gateway.BudgetParams{Limit: cent})
	wantKind(t, second(f.Admit(t.Context(), caller(), Need{Unpriced: true})), hub.Forbidden)
	h := f.admit(caller(), cost(cent))
	wantKind(t, h.Raise(t.Context(), Need{Unpriced: true}), hub.Forbidden)
	f.spent(gateway.ScopeKey, "tok", 0, cent)
	h.Settle(request(caller(), cent))
}

func TestBudget_BYOK(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.budget(gateway.ScopeTeam, "team", gateway.BudgetParams{Limit: 10 * cent})
	f.budget(gateway.ScopeKey, "tok", gateway.BudgetParams{Limit: 10 * cent, IncludeBYOK: true})
	need := Need{Cost: 6 * cent, BYOK: true}
	h := f.admit(caller(), need)
	f.spent(gateway.ScopeTeam, "team", 0, 0)
	f.spent(gateway.ScopeKey, "tok", 0, 6*cent)
	wantKind(t, second(f.Admit(t.Context(), caller(), need)), hub.BudgetExceeded)
	r := request(caller(), 0)
	market := 4 * cent
	r.BYOK, r.MarketCost = true, &market
	h.Settle(r)
	f.spent(gateway.ScopeTeam, "team", 0, 0)
	f.spent(gateway.ScopeKey, "tok", 4*cent, 0)
	// The call started with the caller's own provider key, and continued with the
	// gateway's.
	h = f.admit(caller(), need)
	checktest.OK(t, h.Raise(t.Context(), cost(5*cent)))
	f.spent(gateway.ScopeTeam, "team", 0, 5*cent)
	h.Settle(request(caller(), 5*cent))
	f.spent(gateway.ScopeTeam, "team", 5*cent, 0)
	f.spent(gateway.ScopeKey, "tok", 9*cent, 0)
}

func TestHold_Raise(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.budget(gateway.ScopeTeam, "team", gateway.BudgetParams{Limit: 10 * cent})
	f.budget(gateway.ScopeKey, "tok", gateway.BudgetParams{Limit: 5 * cent})
	h := f.admit(caller(), cost(2*cent))
	checktest.OK(t, h.Raise(t.Context(), cost(4*cent)))
	f.spent(gateway.ScopeTeam, "team", 0, 4*cent)
	wantKind(t, h.Raise(t.Context(), cost(6*cent)), hub.BudgetExceeded)
	f.spent(gateway.ScopeTeam, "team", 0, 4*cent) // unchanged in all budgets
	f.spent(gateway.ScopeKey, "tok", 0, 4*cent)
	checktest.OK(t, h.Raise(t.Context(), cost(cent)))
	f.spent(gateway.ScopeKey, "tok", 0, cent)
	h.Settle(request(caller(), cent))
	f.spent(gateway.ScopeKey, "tok", cent, 0)
}

func TestBudget_Alerts(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.budget(gateway.ScopeTeam, "team", gateway.BudgetParams{Limit: 10 * cent, AlertAt: []int{50, 80, 100}})
	spend := func(m gateway.Money, alerts int64) {
		t.Helper()
		f.admit(caller(), cost(m)).Settle(request(caller(), m))
		checktest.OK(t, f.writer.flush(t.Context(), false))
		if got := f.Stats().Alerts; got != alerts {
			t.Errorf("%d alerts after %s more, want %d", got, m, alerts)
		}
	}
	spend(4*cent, 0)
	spend(cent, 1) // 50
	spend(cent, 1)
	f.reopen()
	spend(cent, 0) // not again
	spend(3*cent, 1)
	f.clock.add(24 * time.Hour)
	spend(cent, 1)
	spend(8*cent, 2) // 50 and 80 percent at once send one alert
}

func TestBudget_ManyCallers(t *testing.T) {
	t.Parallel()
	const callers, calls = 256, 40
	f := setup(t, func(o *Options) { o.Logger = nil })
	limits := map[gateway.BudgetID]gateway.Money{
		{Scope: gateway.ScopeTeam, Ref: "team"}:   400 * cent,
		{Scope: gateway.ScopeProject, Ref: "prj"}: 300 * cent,
		{Scope: gateway.ScopeKey, Ref: "k1"}:      50 * cent,
		{Scope: gateway.ScopeKey, Ref: "k2"}:      1,
		{Scope: gateway.ScopeUser, Ref: "u1"}:     77*cent + 1,
		{Scope: gateway.ScopeTag, Ref: "t1"}:      20 * cent,
	}
	for id, limit := range limits {
		f.budget(id.Scope, id.Ref, gateway.BudgetParams{Limit: limit, Period: gateway.Never})
	}
	var mu sync.Mutex
	settled := map[gateway.BudgetID]gateway.Money{}
	excess := map[gateway.BudgetID]gateway.Money{} // by how much calls exceeded their admitted cost
	var admitted, refused atomic.Int64
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(i)))
			for range calls {
				c := &Caller{TeamID: "team", ProjectID: "prj", KeyID: fmt.Sprint("k", random.IntN(4)), User: fmt.Sprint("u", random.IntN(3)), Tags: []string{fmt.Sprint("t", random.IntN(8))}}
				need := gateway.Money(random.Int64N(int64(2 * cent)))
				h, err := f.Admit(t.Context(), c, cost(need))
				if err != nil {
					var e *hub.Error
					if !errors.As(err, &e) || e.Kind != hub.BudgetExceeded {
						t.Error(err)
						return
					}
					refused.Add(1)
					continue
				}
				admitted.Add(1)
				is := gateway.Money(random.Int64N(int64(need) + 1))
				if random.IntN(20) == 0 {
					is = need + need/10 // the estimate was wrong
				}
				mu.Lock()
				for id := range limits {
					if id.Ref == "team" || id.Ref == "prj" || id.Ref == c.KeyID || id.Ref == c.User || id.Ref == c.Tags[0] {
						settled[id] += is
						excess[id] += max(0, is-need)
					}
				}
				mu.Unlock()
				h.Settle(request(c, is))
			}
		})
	}
	wg.Wait()
	t.Logf("%d calls admitted, %d refused, %d commits", admitted.Load(), refused.Load(), f.Stats().Commits)
	if refused.Load() < 1000 {
		t.Error("the budgets were hardly reached")
	}
	for id, limit := range limits {
		if settled[id] > limit+excess[id] {
			t.Errorf("%s %s has spent %s of %s, with %s over the estimates", id.Scope, id.Ref, settled[id], limit, excess[id])
		}
		f.spent(id.Scope, id.Ref, settled[id], 0)
	}
	spent, err := f.Spend(t.Context(), "team", "", gateway.SpendParams{By: []string{"project"}, Since: time.Unix(0, 0)})
	checktest.OK(t, err)
	if len(spent) != 1 || spent[0].Requests != admitted.Load() || spent[0].Cost != settled[gateway.BudgetID{Scope: gateway.ScopeTeam, Ref: "team"}] {
		t.Errorf("the records say %+v", spent)
	}
	// Unused amounts can be spent after the restart.
	f.reopen()
	for id, limit := range limits {
		if b := f.spent(id.Scope, id.Ref, settled[id], 0); b.Unsettled != 0 || b.Limit != limit {
			t.Errorf("after a restart it is %+v", b)
		}
	}
}

// A budget is used up to the last unit if estimates are right.
func TestBudget_ToTheLast(t *testing.T) {
	t.Parallel()
	f := setup(t, func(o *Options) { o.Logger = nil })
	f.budget(gateway.ScopeTeam, "team", gateway.BudgetParams{Limit: 1000})
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for {
				h, err := f.Admit(t.Context(), caller(), cost(7))
				if err != nil {
					return
				}
				admitted.Add(1)
				h.Settle(request(caller(), 7))
			}
		})
	}
	wg.Wait()
	if got := admitted.Load(); got != 1000/7 {
		t.Errorf("%d calls of 7 were admitted by a budget of 1000", got)
	}
	f.spent(gateway.ScopeTeam, "team", 1000/7*7, 0)
}

// An idle budget holds nothing in the database.
func TestBudget_IdleGivesBack(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.budget(gateway.ScopeTeam, "team", gateway.BudgetParams{Limit: gateway.Dollar})
	f.admit(caller(), cost(cent)).Settle(request(caller(), cent))
	checktest.OK(t, f.writer.flush(t.Context(), false))
	held := func() gateway.Money {
		sp, err := f.store.spending(t.Context(), spender{"team", gateway.ScopeTeam, "team"})
		checktest.OK(t, err)
		return sp.held
	}
	if got := held(); got != cent { // a hundredth of the limit
		t.Errorf("%s is held after the call", got)
	}
	f.clock.add(time.Minute)
	f.sweep()
	checktest.OK(t, f.writer.flush(t.Context(), false))
	if got := held(); got != 0 {
		t.Errorf("%s is held after a minute", got)
	}
	f.admit(caller(), cost(99*cent)).Settle(request(caller(), 0))
}

func TestBudgets_ListAndLimits(t *testing.T) {
	t.Parallel()
	f := setup(t)
	ctx := t.Context()
	for _, id := range []gateway.BudgetID{{Scope: gateway.ScopeTag, Ref: "x"}, {Scope: gateway.ScopeTeam}, {Scope: gateway.ScopeUser}, {Scope: gateway.ScopeUser, Ref: "b"}, {Scope: gateway.ScopeUser, Ref: "a"}, {Scope: gateway.ScopeKey, Ref: "k"}} {
		f.budget(id.Scope, id.Ref, gateway.BudgetParams{Limit: cent})
	}
	list := func(team string, all bool, limit int) (got string) {
		for cursor := ""; ; {
			page, err := f.ListBudgets(ctx, team, all, limit, cursor)
			checktest.OK(t, err)
			for _, b := range page.Items {
				got += fmt.Sprintf("%s/%s ", b.Scope, b.Ref)
			}
			if cursor = page.Next; cursor == "" {
				return got
			}
		}
	}
	for _, limit := range []int{1, 2, 100} {
		if got := list("team", true, limit); got != "team/ key/k user/ user/a user/b tag/x " {
			t.Errorf("pages of %d: %s", limit, got)
		}
	}
	if got := list("team", false, 10); got != "key/k user/ user/a user/b tag/x " {
		t.Errorf("who is no admin sees %s", got)
	}
	if got := list("other", false, 10); got != "" {
		t.Errorf("another team sees %s", got)
	}
	for _, cursor := range []string{"x", "e30", "!"} {
		_, err := f.ListBudgets(ctx, "team", true, 10, cursor)
		checktest.Code(t, err, cay.Invalid)
	}
	checktest.Code(t, f.DeleteBudget(ctx, "team", gateway.BudgetID{Scope: gateway.ScopeUser, Ref: "c"}), cay.NotFound)
	checktest.Code(t, f.DeleteBudget(ctx, "other", gateway.BudgetID{Scope: gateway.ScopeUser, Ref: "a"}), cay.NotFound)
	f.reopen()
	if got := list("team", true, 100); got != "team/ key/k user/ user/a user/b tag/x " {
		t.Errorf("after a restart: %s", got)
	}
}

func TestCredits(t *testing.T) {
	t.Parallel()
	f := setup(t)
	if _, _, ok, err := f.Credits(t.Context(), caller()); ok || err != nil {
		t.Fatalf("without a budget: %v, %v", ok, err)
	}
	f.budget(gateway.ScopeTeam, "team", gateway.BudgetParams{Limit: 10 * cent})
	f.budget(gateway.ScopeUser, "", gateway.BudgetParams{Limit: 8 * cent})
	f.admit(caller(), cost(3*cent)).Settle(request(caller(), 3*cent))
	h := f.admit(caller(), cost(2*cent))
	left, spent, ok, err := f.Credits(t.Context(), caller())
	if left != 3*cent || spent != 3*cent || !ok || err != nil {
		t.Errorf("%s left, %s spent, %v, %v", left, spent, ok, err)
	}
	h.Settle(request(caller(), 0))
}

var _ api.Authenticator = tokens{}
