package gatewayd_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/db/dbtest"
	"github.com/cayhq/cay/internal/gatewayd"
	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
	"github.com/cayhq/cay/internal/seedtest"
)

// Clients leave at random times, in calls of all kinds, with and without Provider.Finish:
// the spent amount equals the sum of the records' costs, no amount stays reserved, and
// the budget is not exceeded.
func TestLost_Budget(t *testing.T) {
	t.Parallel()
	d := dbtest.Open(t)
	book, err := ledger.Open(context.Background(), d, ledger.Options{Accounts: holding{}})
	checktest.OK(t, err)
	t.Cleanup(func() { checktest.OK(t, book.Close()) })
	w := newWorld(t, func(_ *world, cfg *gatewayd.Config) { cfg.Ledger = book })
	slow := gatewaytest.Answer{Reply: gatewaytest.Reply{Text: strings.Repeat("Slowly now. ", 20)}, Pace: time.Millisecond}
	hang := gatewaytest.Answer{Fault: gatewaytest.Fault{Kind: gatewaytest.HangInHead}}
	stops := gatewaytest.Answer{Reply: slow.Reply, Fault: gatewaytest.Fault{Kind: gatewaytest.HangInStream, After: 3}}
	for name, a := range map[string]gatewaytest.Answer{"slow": slow, "hang": hang, "stops": stops} {
		w.up.On(name, a)
	}
	var models []string
	for _, d := range dialects[:3] {
		cut, ended := w.provider("cut-"+d.name, d.name, w.up.URL), finishing(w.provider("finish-"+d.name, d.name, w.up.URL))
		cut.FirstByte, cut.Idle, ended.FirstByte, ended.Idle = 300*time.Millisecond, 300*time.Millisecond, 300*time.Millisecond, 300*time.Millisecond
		w.add(cut, ended)
		for _, p := range []string{cut.Name, ended.Name} {
			for _, how := range []string{"text", "slow", "hang", "stops"} {
				w.model("lab/"+p+"-"+how, p+":"+how)
				models = append(models, "lab/"+p+"-"+how)
			}
		}
	}
	w.model("lab/certain", gatewaytest.Chat+":certain")
	w.up.On("certain", hang)
	key, err := book.CreateKey(t.Context(), account.DefaultTeam, gateway.CreateKeyParams{ProjectID: account.DefaultProject})
	checktest.OK(t, err)
	const limit = gateway.Dollar / 25 // some calls at a time
	id := gateway.BudgetID{Scope: gateway.ScopeKey, Ref: key.ID}
	_, err = book.SetBudget(t.Context(), account.DefaultTeam, id, gateway.BudgetParams{Limit: limit})
	checktest.OK(t, err)

	// At least one client leaves while its provider is working.
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	certain := w.request(ctx, dialects[0], "lab/certain", false)
	certain.Header.Set("Authorization", "Bearer "+key.Secret)
	left := make(chan struct{})
	go func() {
		defer close(left)
		if resp, err := w.client.Do(certain); err == nil {
			resp.Body.Close()
		}
	}()
	w.up.Await(t, "certain", 1)
	leave()
	<-left

	seed := seedtest.Seed(t)
	var all sync.WaitGroup
	for i := range uint64(8) {
		all.Go(func() {
			random := rand.New(rand.NewPCG(seed, i))
			for range 12 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.IntN(20_000))*time.Microsecond)
				r := w.request(ctx, dialects[random.IntN(3)], models[random.IntN(len(models))], random.IntN(2) == 0)
				r.Header.Set("Authorization", "Bearer "+key.Secret)
				resp, err := w.client.Do(r)
				if err == nil {
					_, _ = io.Copy(io.Discard, resp.Body) // until the stream breaks off
					resp.Body.Close()
				}
				cancel()
			}
		})
	}
	all.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w.engine.Close(ctx) // when all have ended
	page, err := book.Requests(t.Context(), account.DefaultTeam, "", gateway.RequestFilter{Limit: 1000})
	checktest.OK(t, err)
	var sum gateway.Money
	how := map[string]int{}
	for _, r := range page.Items {
		if r.Cost == nil {
			t.Errorf("%s: %s has no cost", r.ID, r.Status)
			continue
		}
		sum += *r.Cost
		how[fmt.Sprint(r.Status, " ", *r.Cost > 0)]++
	}
	t.Logf("seed %d: %v", seed, how)
	b, err := book.GetBudget(t.Context(), account.DefaultTeam, id)
	checktest.OK(t, err)
	if b.Spent != sum || b.Held != 0 || b.Spent > limit || b.Unsettled != 0 {
		t.Errorf("spent %v, the records cost %v, held %v, unsettled %v, limit %v; %v", b.Spent, sum, b.Held, b.Unsettled, limit, how)
	}
	if how["cancelled true"] == 0 {
		t.Errorf("nobody left and paid: %v", how)
	}
}
