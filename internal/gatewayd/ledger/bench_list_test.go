package ledger

import (
	"fmt"
	"testing"
	"time"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/db/dbtest"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// BenchmarkListRequests measures the queries that the inspector's pages make.
// docs/inspector.md has the numbers.
func BenchmarkListRequests(b *testing.B) {
	for _, n := range []int{10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { benchmarkList(b, n) })
	}
}

func benchmarkList(b *testing.B, n int) {
	d := dbtest.Open(b)
	book, err := Open(b.Context(), d, Options{Queue: 2048})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := book.Close(); err != nil {
			b.Error(err)
		}
	})
	ctx := b.Context()
	begin := time.Now().Add(-7 * 24 * time.Hour)
	step := 7 * 24 * time.Hour / time.Duration(n)
	cost := gateway.Dollar / 1000
	for i := range n {
		c := &Caller{TeamID: "t", ProjectID: fmt.Sprint("p", i%4)}
		h, err := book.Admit(ctx, c, Need{Cost: cost, Tokens: 160})
		for kindOf(err) == hub.Overloaded {
			if err = book.writer.flush(ctx, false); err == nil {
				h, err = book.Admit(ctx, c, Need{Cost: cost, Tokens: 160})
			}
		}
		if err != nil {
			b.Fatal(err)
		}
		at := begin.Add(time.Duration(i) * step)
		r := &gateway.Request{
			ID: NewID(), CreatedAt: at, TeamID: c.TeamID, ProjectID: c.ProjectID, KeyID: fmt.Sprint("key", i%50), User: fmt.Sprint("user", i%1000),
			Surface: "chatcompletions", Kind: "language", Model: fmt.Sprint("openai/gpt-", i%20), Served: fmt.Sprint("openai/gpt-", i%20), Provider: "openai",
			Status: gateway.Succeeded, HTTPStatus: 200, FinishReason: "stop", Tokens: gateway.Tokens{Input: 120, Output: 40},
			Cost: &cost, MarketCost: &cost, Latency: 12.5, BytesIn: 500, BytesOut: 700,
			Attempts: []gateway.Attempt{{Model: "openai/gpt-5", Provider: "openai", ProviderModel: "gpt-5", StartedAt: at, Latency: 12, Status: 200, OK: true}},
		}
		if i%500 == 0 {
			r.Tags = []string{"rare"}
		}
		if i%100 == 3 {
			r.Status, r.HTTPStatus = gateway.Failed, 500
		}
		h.Settle(r)
	}
	if err := book.writer.flush(ctx, false); err != nil {
		b.Fatal(err)
	}
	first, err := book.Requests(ctx, "t", "", gateway.RequestFilter{Limit: 1000})
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name string
		f    gateway.RequestFilter
		want int
	}{
		{"First", gateway.RequestFilter{}, 50},
		{"Later", gateway.RequestFilter{Cursor: first.Next}, 50},
		{"Hour", gateway.RequestFilter{Since: begin.Add(24 * time.Hour), Until: begin.Add(25 * time.Hour)}, 50},
		{"Project", gateway.RequestFilter{ProjectID: "p1"}, 50},
		{"Key", gateway.RequestFilter{KeyID: "key7"}, 50},
		{"User", gateway.RequestFilter{User: "user7"}, min(50, n/1000)},
		{"Failed", gateway.RequestFilter{Status: gateway.Failed}, 50},
		{"Model", gateway.RequestFilter{Model: "openai/gpt-3"}, 50},
		{"Tag", gateway.RequestFilter{Tag: "rare"}, min(50, n/500)},
		{"NoSuchUser", gateway.RequestFilter{User: "nobody"}, 0},
		{"NoSuchTag", gateway.RequestFilter{Tag: "none"}, 0},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				page, err := book.Requests(ctx, "t", "", c.f)
				if err != nil {
					b.Fatal(err)
				}
				if len(page.Items) != c.want {
					b.Fatalf("%d requests, want %d", len(page.Items), c.want)
				}
			}
		})
	}
	for name, p := range map[string]gateway.SpendParams{
		"SpendByDay":   {},
		"SpendByModel": {By: []string{"model"}},
		"SpendLatency": {By: []string{"hour"}, Since: time.Now().Add(-24 * time.Hour), Latency: true},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := book.Spend(ctx, "t", "", p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
