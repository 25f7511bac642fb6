package ledger

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// tokens authenticates a daemon's tokens by their secrets.
type tokens map[string]api.Principal

func (ts tokens) Authenticate(_ context.Context, secret string) (api.Principal, error) {
	if secret == "broken" {
		return api.Principal{}, errors.New("a secret detail")
	}
	p, ok := ts[secret]
	if !ok {
		return p, cay.Errorf(cay.Unauthenticated, "the token is not valid")
	}
	return p, nil
}

func (f *fixture) key(p gateway.CreateKeyParams) (*gateway.Key, *Caller) {
	f.t.Helper()
	if p.ProjectID == "" {
		p.ProjectID = "prj"
	}
	k, err := f.CreateKey(f.t.Context(), "team", p)
	checktest.OK(f.t, err)
	c, err := f.Authenticate(f.t.Context(), k.Secret)
	checktest.OK(f.t, err)
	return k, c
}

func TestAuthenticate(t *testing.T) {
	t.Parallel()
	f := setup(t, func(o *Options) {
		o.Accounts = tokens{"admin": {TokenID: "tok_a", TeamID: account.DefaultTeam, Admin: true}, "bound": {TokenID: "tok_b", TeamID: "t", ProjectID: "p"}, "wide": {TokenID: "tok_c", TeamID: "t"}}
	})
	ctx := t.Context()
	expires := f.clock.Now().Add(time.Hour)
	k, c := f.key(gateway.CreateKeyParams{Name: "ci", Tags: []string{"x"}, ExpiresAt: &expires, KeyScope: gateway.KeyScope{Models: []string{"a/*"}}})
	if !IsSecret(k.Secret) || !strings.HasPrefix(k.Secret, k.Prefix) || len(k.Prefix) != 10 {
		t.Errorf("secret %q, prefix %q", k.Secret, k.Prefix)
	}
	if c.TeamID != "team" || c.ProjectID != "prj" || c.KeyID != k.ID || c.Key == nil || c.Key.Models[0] != "a/*" || fmt.Sprint(c.Tags) != "[x]" || c.User != "" {
		t.Errorf("the caller is %+v", c)
	}
	// A tag that one request appends must not appear in another Caller.
	_ = append(c.Tags, "mine")
	again, err := f.Authenticate(ctx, k.Secret)
	checktest.OK(t, err)
	if fmt.Sprint(again.Tags) != "[x]" || again.Key.Secret != "" {
		t.Errorf("the caller is %+v", again)
	}
	for secret, want := range map[string]string{"admin": "team_default prj_default tok_a", "bound": "t p tok_b", "wide": "t  tok_c"} {
		c, err := f.Authenticate(ctx, secret)
		checktest.OK(t, err)
		if got := c.TeamID + " " + c.ProjectID + " " + c.KeyID; got != want || c.Key != nil {
			t.Errorf("%s: %s, want %s", secret, got, want)
		}
	}
	for _, secret := range []string{"", "x", "cgk_", k.Secret + "x", k.Secret[:46], "cgk_" + strings.Repeat("A", 43), strings.Repeat("x", 47)} {
		wantKind(t, second(f.Authenticate(ctx, secret)), hub.Unauthenticated)
	}
	if e := wantKind(t, second(f.Authenticate(ctx, "broken")), hub.Overloaded); strings.Contains(e.Message, "detail") {
		t.Errorf("the client is told %q", e.Message)
	}
	f.clock.add(time.Hour)
	if e := wantKind(t, second(f.Authenticate(ctx, k.Secret)), hub.Unauthenticated); !strings.Contains(e.Message, "expired") {
		t.Errorf("the client is told %q", e.Message)
	}
	never := time.Time{}
	_, err = f.UpdateKey(ctx, "team", "", k.ID, gateway.UpdateKeyParams{ExpiresAt: &never})
	checktest.OK(t, err)
	second(f.Authenticate(ctx, k.Secret))
}

func TestKeys_Change(t *testing.T) {
	t.Parallel()
	f := setup(t)
	ctx := t.Context()
	k, old := f.key(gateway.CreateKeyParams{Name: "ci", Budget: &gateway.BudgetParams{Limit: cent, Period: gateway.Daily}})
	if k.Budget == nil || k.Budget.Limit != cent || k.Budget.Ref != k.ID {
		t.Errorf("its budget is %+v", k.Budget)
	}
	yes, name := true, "new"
	got, err := f.UpdateKey(ctx, "team", "", k.ID, gateway.UpdateKeyParams{Name: &name, Disabled: &yes, Scope: &gateway.KeyScope{Concurrency: 1}, Tags: &[]string{"t"}})
	checktest.OK(t, err)
	if got.Name != "new" || !got.Disabled || got.Concurrency != 1 || fmt.Sprint(got.Tags) != "[t]" || got.Secret != "" || got.Budget == nil {
		t.Errorf("changed to %+v", got)
	}
	wantKind(t, second(f.Authenticate(ctx, k.Secret)), hub.Unauthenticated)
	f.reopen()
	wantKind(t, second(f.Authenticate(ctx, k.Secret)), hub.Unauthenticated)
	got, err = f.GetKey(ctx, "team", "prj", k.ID)
	checktest.OK(t, err)
	if got.Name != "new" || got.Concurrency != 1 || got.LastUsedAt != nil || got.Budget == nil || !got.CreatedAt.Equal(k.CreatedAt) {
		t.Errorf("after a restart it is %+v", got)
	}
	no := false
	_, err = f.UpdateKey(ctx, "team", "", k.ID, gateway.UpdateKeyParams{Disabled: &no})
	checktest.OK(t, err)
	c, err := f.Authenticate(ctx, k.Secret)
	checktest.OK(t, err)
	f.admit(c, cost(cent)).Settle(request(c, cent))
	wantKind(t, second(f.Admit(ctx, c, cost(1))), hub.BudgetExceeded)
	got, err = f.GetKey(ctx, "team", "prj", k.ID)
	checktest.OK(t, err)
	if got.LastUsedAt == nil || got.LastUsedAt.Format(time.RFC3339) != "2026-11-18T12:00:00Z" || got.Budget.Spent != cent {
		t.Errorf("after use it is %+v, budget %+v", got, got.Budget)
	}
	for _, reach := range [][2]string{{"other", ""}, {"team", "other"}} {
		_, err = f.GetKey(ctx, reach[0], reach[1], k.ID)
		checktest.Code(t, err, cay.NotFound)
		_, err = f.UpdateKey(ctx, reach[0], reach[1], k.ID, gateway.UpdateKeyParams{})
		checktest.Code(t, err, cay.NotFound)
		checktest.Code(t, f.DeleteKey(ctx, reach[0], reach[1], k.ID), cay.NotFound)
	}
	checktest.OK(t, f.DeleteKey(ctx, "team", "prj", k.ID))
	wantKind(t, second(f.Authenticate(ctx, k.Secret)), hub.Unauthenticated)
	wantKind(t, second(f.Admit(ctx, old, cost(0))), hub.Unauthenticated) // it was let in, and then deleted
	_, err = f.GetBudget(ctx, "team", gateway.BudgetID{Scope: gateway.ScopeKey, Ref: k.ID})
	checktest.Code(t, err, cay.NotFound)
	checktest.Code(t, f.DeleteKey(ctx, "team", "", k.ID), cay.NotFound)
}

func TestKeys_List(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for i := range 5 {
		if i > 1 {
			f.clock.add(time.Second)
		}
		f.key(gateway.CreateKeyParams{Name: fmt.Sprint(i), ProjectID: []string{"prj", "two"}[i%2]})
	}
	list := func(project string, limit int) (got string) {
		for cursor := ""; ; {
			page, err := f.ListKeys(t.Context(), "team", project, limit, cursor)
			checktest.OK(t, err)
			for _, k := range page.Items {
				got += k.Name
			}
			if cursor = page.Next; cursor == "" {
				return got
			}
			got += "|"
		}
	}
	if got := list("two", 1); got != "3|1" {
		t.Error(got)
	}
	if got := list("", 100); got != "43201" && got != "43210" { // the first two keys may have the same creation time
		t.Error(got)
	}
	if got := strings.ReplaceAll(list("", 2), "|", ""); got != list("", 100) {
		t.Error(got)
	}
	for _, cursor := range []string{"x", "e30"} {
		_, err := f.ListKeys(t.Context(), "team", "", 10, cursor)
		checktest.Code(t, err, cay.Invalid)
	}
}

func TestRates(t *testing.T) {
	t.Parallel()
	f := setup(t)
	_, c := f.key(gateway.CreateKeyParams{KeyScope: gateway.KeyScope{RequestsPerMinute: 3, TokensPerMinute: 1000}})
	done := func(tokens int64) *gateway.Request {
		r := request(c, 0)
		r.Tokens = gateway.Tokens{Input: tokens / 2, Output: tokens - tokens/2}
		return r
	}
	h := f.admit(c, Need{Tokens: 600})
	head := http.Header{}
	h.Limits(head)
	want := "map[X-Ratelimit-Limit-Requests:[3] X-Ratelimit-Limit-Tokens:[1000] X-Ratelimit-Remaining-Requests:[2] X-Ratelimit-Remaining-Tokens:[400] X-Ratelimit-Reset-Requests:[20s] X-Ratelimit-Reset-Tokens:[36s]]"
	if got := fmt.Sprint(head); got != want {
		t.Errorf("headers are %s\nwant %s", got, want)
	}
	e := wantKind(t, second(f.Admit(t.Context(), c, Need{Tokens: 500})), hub.RateLimited)
	if e.RetryAfter != 6*time.Second || !strings.Contains(e.Message, "1000 tokens") {
		t.Errorf("%q, wait %v", e.Message, e.RetryAfter)
	}
	h.Settle(done(100)) // fewer tokens than reserved
	f.admit(c, Need{Tokens: 900}).Settle(done(900))
	f.admit(c, Need{}).Settle(done(0))
	e = wantKind(t, second(f.Admit(t.Context(), c, Need{})), hub.RateLimited)
	if e.RetryAfter != 20*time.Second || !strings.Contains(e.Message, "3 requests") {
		t.Errorf("%q, wait %v", e.Message, e.RetryAfter)
	}
	f.clock.add(e.RetryAfter - time.Millisecond)
	wantKind(t, second(f.Admit(t.Context(), c, Need{})), hub.RateLimited)
	f.clock.add(time.Millisecond)
	f.admit(c, Need{}).Settle(done(1000)) // more tokens than reserved; 333 were left
	f.clock.add(20 * time.Second)
	e = wantKind(t, second(f.Admit(t.Context(), c, Need{})), hub.RateLimited)
	if e.RetryAfter < 19*time.Second || e.RetryAfter > 21*time.Second {
		t.Errorf("wait %v for what was taken too much", e.RetryAfter)
	}
	// A request for more than a minute's tokens waits until the bucket is full.
	e = wantKind(t, second(f.Admit(t.Context(), c, Need{Tokens: 5000})), hub.RateLimited)
	if e.RetryAfter < 79*time.Second || e.RetryAfter > 81*time.Second {
		t.Errorf("wait %v for all", e.RetryAfter)
	}
	f.clock.add(2 * time.Minute)
	f.admit(c, Need{Tokens: 5000}).Settle(done(1000))
	f.clock.add(-time.Hour) // takes nothing, and gives nothing
	f.admit(c, Need{}).Settle(done(0))
	f.admit(c, Need{}).Settle(done(0))
	wantKind(t, second(f.Admit(t.Context(), c, Need{})), hub.RateLimited)
}

func TestRates_Concurrency(t *testing.T) {
	t.Parallel()
	f := setup(t)
	k, c := f.key(gateway.CreateKeyParams{KeyScope: gateway.KeyScope{Concurrency: 2}, Budget: &gateway.BudgetParams{Limit: cent, Period: gateway.Daily}})
	h := f.admit(c, Need{})
	other := f.admit(c, Need{})
	e := wantKind(t, second(f.Admit(t.Context(), c, Need{})), hub.RateLimited)
	if e.RetryAfter == 0 || !strings.Contains(e.Message, "2 requests under way") {
		t.Errorf("%q, wait %v", e.Message, e.RetryAfter)
	}
	h.Settle(request(c, 0))
	// A call that the budget refuses does not count as under way.
	wantKind(t, second(f.Admit(t.Context(), c, cost(2*cent))), hub.BudgetExceeded)
	h = f.admit(c, Need{})
	// A changed limit applies at once, also to running calls.
	_, err := f.UpdateKey(t.Context(), "team", "", k.ID, gateway.UpdateKeyParams{Scope: &gateway.KeyScope{Concurrency: 3}})
	checktest.OK(t, err)
	c, err = f.Authenticate(t.Context(), k.Secret)
	checktest.OK(t, err)
	third := f.admit(c, Need{})
	wantKind(t, second(f.Admit(t.Context(), c, Need{})), hub.RateLimited)
	for _, h := range []Hold{h, other, third} {
		h.Settle(request(c, 0))
	}
	f.admit(c, Need{}).Settle(request(c, 0))
}

// A key's last use is never before its creation.
func TestKey_UsedAfterItWasMade(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.clock.add(46 * time.Second)
	k, err := f.CreateKey(t.Context(), "team", gateway.CreateKeyParams{ProjectID: "prj"})
	checktest.OK(t, err)
	c, err := f.Authenticate(t.Context(), k.Secret)
	checktest.OK(t, err)
	for i, after := range []time.Duration{0, time.Second, 30 * time.Second} { // in the same minute, and the next
		f.clock.add(after)
		f.admit(c, cost(0)).Settle(request(c, 0))
		got, err := f.GetKey(t.Context(), "team", "prj", k.ID)
		checktest.OK(t, err)
		if got.LastUsedAt == nil || got.LastUsedAt.Before(k.CreatedAt) || f.clock.Now().Sub(*got.LastUsedAt) > time.Minute {
			t.Errorf("%d: made at %s, used at %v; it is %s", i, k.CreatedAt, got.LastUsedAt, f.clock.Now())
		}
	}
}
