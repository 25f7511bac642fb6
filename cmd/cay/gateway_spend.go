package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay/gateway"
)

type gatewaySpendOptions struct {
	filter usageFilter
	by     []string
	times  bool
	csv    csvFlag
}

var spendGroups = []string{"day", "hour", "model", "provider", "key", "project", "user", "session", "tag", "surface", "credential", "status"}

func newGatewaySpend(a *app) *cobra.Command {
	var o gatewaySpendOptions
	c := &cobra.Command{
		Use: "spend", Short: "Show what requests have cost",
		Long: `Add up requests: how many there were, their tokens and what they have cost, with a
row for each group. A request with several tags counts for each of them. Requests
whose price is unknown are counted, and not in the cost. FAILED are those that no
provider answered in the end, REFUSED those the gateway let nobody see, and CANCELLED
those whose client left. --latency adds how long half, and 95 of 100, of those that
succeeded took at most.`,
		Example: `  cay gateway spend --by model --since 7d
  cay gateway spend --by model --session wrun_01M80KF21V5AFMKEEETZBEN7WR
  cay gateway spend --by day,key --since 2026-11-01 --csv > november.csv`,
		Args: none, ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.Flags().StringSliceVar(&o.by, "by", []string{"day"}, "what rows are for: "+strings.Join(spendGroups, ", "))
	c.Flags().BoolVar(&o.times, "latency", false, "show how long requests took")
	o.filter.register(c, " (default the last 30 days)")
	o.csv.register(c)
	mustComplete(c, "by", spendGroups...)
	return a.verb(c, func(ctx context.Context, _ []string) error { return o.run(ctx, a) })
}

func (o *gatewaySpendOptions) run(ctx context.Context, a *app) error {
	if err := o.csv.check(a); err != nil {
		return err
	}
	rows, err := gatewayClient(a).Spend(ctx, gateway.SpendParams{
		Since: o.filter.since.time, Until: o.filter.until.time, By: o.by, ProjectID: o.filter.project, KeyID: o.filter.key,
		User: o.filter.user, Session: o.filter.session, Tag: o.filter.tag, Model: o.filter.model, Provider: o.filter.providers, Latency: o.times,
	})
	if err != nil {
		return err
	}
	if o.csv.on {
		return writeCSV(a.stdout, o.rows(rows))
	}
	return a.show(rows, func(w io.Writer) { o.table(w, rows) })
}

// latencyOf returns the latency of a row's requests; all zero if none
// succeeded.
func latencyOf(s *gateway.Spend) gateway.Latency {
	if s.Latency == nil {
		return gateway.Latency{}
	}
	return *s.Latency
}

// rows are a report as comma-separated values, exact.
func (o *gatewaySpendOptions) rows(all []gateway.Spend) [][]string {
	head := append([]string{}, o.by...)
	out := [][]string{append(head, "requests", "failed", "cancelled", "refused", "unpriced", "cost", "market_cost", "input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens", "estimated")}
	if o.times {
		out[0] = append(out[0], "p50_ms", "p95_ms", "first_token_p50_ms", "first_token_p95_ms")
	}
	for _, s := range all {
		var row []string
		for _, by := range o.by {
			row = append(row, s.Group[by])
		}
		row = append(row, fmt.Sprint(s.Requests), fmt.Sprint(s.Failed), fmt.Sprint(s.Cancelled), fmt.Sprint(s.Refused), fmt.Sprint(s.Unpriced), s.Cost.String(), s.MarketCost.String(),
			fmt.Sprint(s.Tokens.Input), fmt.Sprint(s.Tokens.CacheRead), fmt.Sprint(s.Tokens.CacheWrite), fmt.Sprint(s.Tokens.Output), fmt.Sprint(s.Tokens.Reasoning), fmt.Sprint(s.Tokens.Estimated))
		if o.times {
			l := latencyOf(&s)
			row = append(row, fmt.Sprint(l.P50), fmt.Sprint(l.P95), fmt.Sprint(l.FirstTokenP50), fmt.Sprint(l.FirstTokenP95))
		}
		out = append(out, row)
	}
	return out
}

func (o *gatewaySpendOptions) table(w io.Writer, all []gateway.Spend) {
	var head []string
	for _, by := range o.by {
		head = append(head, strings.ToUpper(by))
	}
	head = append(head, "REQUESTS", "FAILED", "REFUSED", "CANCELLED", "UNPRICED", "IN", "OUT", "COST", "LIST PRICE")
	if o.times {
		head = append(head, "P50", "P95", "FIRST P50", "FIRST P95")
	}
	t := newTable(head...)
	add := func(group []string, s *gateway.Spend) {
		row := append(group, fmt.Sprint(s.Requests), numberText(s.Failed), numberText(s.Refused), numberText(s.Cancelled), numberText(s.Unpriced),
			fmt.Sprint(s.Tokens.Input), fmt.Sprint(s.Tokens.Output), dollars(s.Cost), dollars(s.MarketCost))
		if o.times {
			l := latencyOf(s)
			row = append(row, millisText(l.P50), millisText(l.P95), millisText(l.FirstTokenP50), millisText(l.FirstTokenP95))
		}
		t.row(row...)
	}
	var sum gateway.Spend
	for _, s := range all {
		var group []string
		for _, by := range o.by {
			group = append(group, s.Group[by])
		}
		add(group, &s)
		sum.Requests, sum.Failed, sum.Unpriced = sum.Requests+s.Requests, sum.Failed+s.Failed, sum.Unpriced+s.Unpriced
		sum.Refused, sum.Cancelled = sum.Refused+s.Refused, sum.Cancelled+s.Cancelled
		sum.Tokens.Input, sum.Tokens.Output = sum.Tokens.Input+s.Tokens.Input, sum.Tokens.Output+s.Tokens.Output
		sum.Cost, sum.MarketCost = sum.Cost.Plus(s.Cost), sum.MarketCost.Plus(s.MarketCost)
	}
	// With tags a request may count more than once.
	if len(all) > 1 && !strings.Contains(strings.Join(o.by, ","), "tag") {
		total := make([]string, len(o.by))
		total[0] = "total"
		add(total, &sum)
	}
	t.print(w)
}
