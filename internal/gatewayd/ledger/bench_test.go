package ledger

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/db/dbtest"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// kindOf returns the kind of an error of a Ledger, "" for nil.
func kindOf(err error) hub.ErrorKind {
	var e *hub.Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return ""
}

func cpuTime() time.Duration {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r) // fails for a bad argument only
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// BenchmarkBook_AdmitSettle measures the CPU time of one call in the book, until its
// record is durable: 256 callers with 1 key or 256 keys, with budgets of team, project
// and key, and rates.
func BenchmarkBook_AdmitSettle(b *testing.B) {
	b.Run("OneKey", func(b *testing.B) { benchmarkAdmitSettle(b, 1) })
	b.Run("ManyKeys", func(b *testing.B) { benchmarkAdmitSettle(b, 256) })
}

func benchmarkAdmitSettle(b *testing.B, keys int) {
	d := dbtest.Open(b)
	book, err := Open(b.Context(), d, Options{Queue: 2048})
	if err != nil {
		b.Fatal(err)
	}
	ctx := context.Background()
	limit := gateway.BudgetParams{Limit: 100_000 * gateway.Dollar, Period: gateway.Monthly}
	for _, id := range []gateway.BudgetID{{Scope: gateway.ScopeTeam, Ref: "t"}, {Scope: gateway.ScopeProject}, {Scope: gateway.ScopeKey}} {
		if _, err := book.SetBudget(ctx, "t", id, limit); err != nil {
			b.Fatal(err)
		}
	}
	const callers = 256
	secrets := make([]string, keys)
	for i := range secrets {
		k, err := book.CreateKey(ctx, "t", gateway.CreateKeyParams{ProjectID: "p", KeyScope: gateway.KeyScope{RequestsPerMinute: 1e9, TokensPerMinute: 1e12, Concurrency: 1000}})
		if err != nil {
			b.Fatal(err)
		}
		secrets[i] = k.Secret
	}
	cost, now := gateway.Dollar/1000, time.Now()
	b.ReportAllocs()
	b.ResetTimer()
	before := cpuTime()
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for range b.N / callers {
				c, err := book.Authenticate(ctx, secrets[i%keys])
				if err != nil {
					b.Error(err)
					return
				}
				h, err := book.Admit(ctx, c, Need{Cost: 3 * cost, Tokens: 4000})
				for kindOf(err) == hub.Overloaded { // without a provider's delay the queue may be full
					if err = book.writer.flush(ctx, false); err == nil {
						h, err = book.Admit(ctx, c, Need{Cost: 3 * cost, Tokens: 4000})
					}
				}
				if err != nil {
					b.Error(err)
					return
				}
				h.Settle(&gateway.Request{
					ID: NewID(), CreatedAt: now, TeamID: c.TeamID, ProjectID: c.ProjectID, KeyID: c.KeyID, Surface: "chatcompletions", Kind: "language",
					Model: "openai/gpt-5", Served: "openai/gpt-5", Provider: "openai", Status: gateway.Succeeded, HTTPStatus: 200, FinishReason: "stop",
					Tokens: gateway.Tokens{Input: 120, Output: 40}, Cost: &cost, MarketCost: &cost, Latency: 12.5, BytesIn: 500, BytesOut: 700,
					Attempts: []gateway.Attempt{{Model: "openai/gpt-5", Provider: "openai", ProviderModel: "gpt-5", StartedAt: now, Latency: 12, Status: 200, OK: true, ResponseID: "chatcmpl-0123456789"}},
				})
			}
		})
	}
	wg.Wait()
	if err := book.writer.flush(ctx, false); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(cpuTime()-before)/float64(b.N), "cpu-ns/op")
	b.ReportMetric(float64(b.N)/float64(max(1, book.Stats().Commits)), "calls/commit")
	b.StopTimer()
	if err := book.Close(); err != nil {
		b.Fatal(err)
	}
}
