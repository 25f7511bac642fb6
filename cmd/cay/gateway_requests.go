package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
)

// usageFilter are the flags that select requests.
type usageFilter struct {
	since, until                                       whenFlag
	project, key, user, session, tag, model, providers string
}

func (f *usageFilter) register(c *cobra.Command, since string) {
	fl := c.Flags()
	fl.Var(&f.since, "since", "only those since then"+since)
	fl.Var(&f.until, "until", "only those before then")
	fl.StringVar(&f.project, "project", "", "only those of this project, by id")
	fl.StringVar(&f.key, "key", "", "only those of this key, or token, by id")
	fl.StringVar(&f.user, "user", "", "only those of this user")
	fl.StringVar(&f.session, "session", "", "only those of this session, such as a run of a workflow")
	fl.StringVar(&f.tag, "tag", "", "only those with this tag")
	fl.StringVar(&f.model, "model", "", "only those of this model, as asked for or as it answered")
	fl.StringVar(&f.providers, "provider", "", "only those this provider answered")
}

type gatewayRequestsOptions struct {
	filter     usageFilter
	status     string
	limit      int
	all, quiet bool
	follow     bool
	body       bool
	csv        csvFlag
}

var requestStatuses = []string{string(gateway.Succeeded), string(gateway.Failed), string(gateway.Cancelled), string(gateway.Refused)}

func newGatewayRequests(a *app) *cobra.Command {
	var o gatewayRequestsOptions
	c := &cobra.Command{
		Use: "requests [ID]", Aliases: []string{"request"}, Short: "List requests, or show one",
		Long: `List requests to the gateway, newest first, or show the one with a generation id. A
request is there as soon as it has ended. With --follow, show those that end from now
on, until it is interrupted; with --json as a line each.`,
		Example: `  cay gateway requests --since 24h --status failed
  cay gateway requests --key gk_... --all --csv > requests.csv
  cay gateway requests --follow --status failed
  cay gateway requests gen_01KAJ...
  cay gateway requests gen_01KAJ... --body`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage(cmd, "it takes at most one id")
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	o.filter.register(c, "")
	fl := c.Flags()
	fl.StringVar(&o.status, "status", "", "only those that ended so: "+strings.Join(requestStatuses, ", "))
	fl.IntVar(&o.limit, "limit", 50, "how many at most")
	fl.BoolVarP(&o.all, "all", "a", false, "all of them")
	fl.BoolVarP(&o.quiet, "quiet", "q", false, "print ids only")
	fl.BoolVar(&o.body, "body", false, "show what was kept of the bodies of the request with the id")
	fl.BoolVarP(&o.follow, "follow", "f", false, "show requests as they end")
	o.csv.register(c)
	for _, name := range []string{"since", "until", "limit", "all", "csv"} {
		c.MarkFlagsMutuallyExclusive("follow", name)
	}
	mustComplete(c, "status", requestStatuses...)
	return a.verb(c, func(ctx context.Context, args []string) error {
		switch {
		case len(args) == 1 && o.follow:
			return usage(c, "--follow takes no id")
		case o.body && len(args) == 0:
			return usage(c, "--body takes the id of a request")
		case o.body:
			return showBody(ctx, a, args[0])
		case len(args) == 1:
			return o.get(ctx, a, args[0])
		case o.follow:
			return o.watch(ctx, a)
		}
		return o.list(ctx, a)
	})
}

func (o *gatewayRequestsOptions) list(ctx context.Context, a *app) error {
	if err := o.csv.check(a); err != nil {
		return err
	}
	if o.limit < 1 {
		return &exitError{exitUsage, cay.Errorf(cay.Invalid, "--limit is %d; it must be at least 1", o.limit)}
	}
	f, err := o.selected()
	if err != nil {
		return err
	}
	all, more := []gateway.Request{}, true
	for more && (o.all || len(all) < o.limit) {
		f.Limit = 1000
		if !o.all {
			f.Limit = min(f.Limit, o.limit-len(all))
		}
		page, err := gatewayClient(a).ListRequests(ctx, f)
		if err != nil {
			return err
		}
		all = append(all, page.Items...)
		f.Cursor, more = page.Next, page.Next != ""
	}
	if o.csv.on {
		a.note(!more, "there are more; --all prints them")
		return writeCSV(a.stdout, requestRows(all))
	}
	err = a.show(all, func(w io.Writer) {
		if o.quiet {
			for _, r := range all {
				fmt.Fprintln(w, r.ID)
			}
			return
		}
		t := newTable("ID", "STARTED", "MODEL", "PROVIDER", "STATUS", "IN", "OUT", "COST", "FIRST", "TOOK")
		for _, r := range all {
			t.row(r.ID, agoText(r.CreatedAt), servedText(&r), r.Provider, requestStatus(&r), fmt.Sprint(r.Tokens.Input), fmt.Sprint(r.Tokens.Output),
				dollarsOr(r.Cost, "unknown"), millisText(r.FirstToken), millisText(r.Latency))
		}
		t.print(w)
	})
	a.note(!more || a.json || o.quiet, "there are more; --all shows them")
	return err
}

// selected returns the filter of the flags.
func (o *gatewayRequestsOptions) selected() (gateway.RequestFilter, error) {
	f := gateway.RequestFilter{
		Since: o.filter.since.time, Until: o.filter.until.time, ProjectID: o.filter.project, KeyID: o.filter.key, User: o.filter.user, Tag: o.filter.tag,
		Model: o.filter.model, Provider: o.filter.providers, Session: o.filter.session, Status: gateway.RequestStatus(o.status),
	}
	if o.status != "" && !slices.Contains(requestStatuses, o.status) {
		return f, &exitError{exitUsage, cay.Errorf(cay.Invalid, "--status %q is not one of %s", o.status, strings.Join(requestStatuses, ", "))}
	}
	return f, nil
}

// showBody prints the kept bodies of a request.
func showBody(ctx context.Context, a *app, id string) error {
	b, err := gatewayClient(a).GetRequestBody(ctx, id)
	if err != nil {
		return err
	}
	return a.show(b, func(w io.Writer) {
		for _, part := range []struct {
			name string
			body *gateway.Body
		}{{"request", b.Request}, {"answer", b.Answer}} {
			if part.body == nil {
				continue
			}
			about := fmt.Sprintf("%d bytes", part.body.Size)
			if part.body.Cut {
				about += ", of which this is the beginning"
			}
			if part.body.Assembled {
				about += ", its texts put together"
			}
			if part.body.Omitted != "" {
				about += ", not kept: " + part.body.Omitted
			}
			fmt.Fprintf(w, "== %s, %s, %s\n", part.name, clean(part.body.ContentType), about)
			for line := range strings.Lines(part.body.Text) {
				fmt.Fprintln(w, clean(strings.TrimRight(line, "\r\n")))
			}
		}
	})
}

// watch prints requests as they end, until ctx does.
func (o *gatewayRequestsOptions) watch(ctx context.Context, a *app) error {
	f, err := o.selected()
	if err != nil {
		return err
	}
	a.note(a.json || o.quiet, "requests are shown as they end; interrupt to stop")
	lines := json.NewEncoder(a.stdout)
	for r, err := range gatewayClient(a).FollowRequests(ctx, f, "") {
		switch {
		case err != nil && ctx.Err() != nil:
			return nil // as was asked for
		case err != nil:
			return err
		case a.json:
			err = lines.Encode(r)
		case o.quiet:
			_, err = fmt.Fprintln(a.stdout, r.ID)
		default: // in columns that fit most
			_, err = fmt.Fprintf(a.stdout, "%s  %s  %-28s  %-12s  %-24s  %7d in  %6d out  %-10s  %s\n", r.ID, r.CreatedAt.Local().Format(time.TimeOnly),
				clean(servedText(&r)), clean(r.Provider), clean(requestStatus(&r)), r.Tokens.Input, r.Tokens.Output, dollarsOr(r.Cost, "unknown"), millisText(r.Latency))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func servedText(r *gateway.Request) string {
	if r.Served != "" {
		return r.Served
	}
	return r.Model
}

// requestStatus is how a request ended, for people.
func requestStatus(r *gateway.Request) string {
	switch {
	case r.Cached:
		return string(r.Status) + " (cached)"
	case r.ErrorKind != "":
		return fmt.Sprintf("%s (%s)", r.Status, r.ErrorKind)
	}
	return string(r.Status)
}

// requestRows are requests as comma-separated values, exact.
func requestRows(all []gateway.Request) [][]string {
	rows := [][]string{{
		"id", "created_at", "team_id", "project_id", "key_id", "user", "tags", "session", "surface", "kind", "model", "served", "provider", "byok", "streamed", "cached",
		"status", "http_status", "error_kind", "error", "finish_reason", "input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens", "estimated",
		"cost", "market_cost", "latency_ms", "first_token_ms", "bytes_in", "bytes_out", "attempts",
	}}
	for _, r := range all {
		rows = append(rows, []string{
			r.ID, r.CreatedAt.UTC().Format(time.RFC3339Nano), r.TeamID, r.ProjectID, r.KeyID, r.User, strings.Join(r.Tags, " "), r.Session, r.Surface, r.Kind, r.Model, r.Served, r.Provider,
			fmt.Sprint(r.BYOK), fmt.Sprint(r.Streamed), fmt.Sprint(r.Cached), string(r.Status), fmt.Sprint(r.HTTPStatus), r.ErrorKind, r.Error, r.FinishReason,
			fmt.Sprint(r.Tokens.Input), fmt.Sprint(r.Tokens.CacheRead), fmt.Sprint(r.Tokens.CacheWrite), fmt.Sprint(r.Tokens.Output), fmt.Sprint(r.Tokens.Reasoning), fmt.Sprint(r.Tokens.Estimated),
			exactOr(r.Cost), exactOr(r.MarketCost), fmt.Sprint(r.Latency), fmt.Sprint(r.FirstToken), fmt.Sprint(r.BytesIn), fmt.Sprint(r.BytesOut), fmt.Sprint(len(r.Attempts)),
		})
	}
	return rows
}

func (o *gatewayRequestsOptions) get(ctx context.Context, a *app, id string) error {
	if err := o.csv.check(a); err != nil {
		return err
	}
	r, err := gatewayClient(a).GetRequest(ctx, id)
	if err != nil {
		return err
	}
	if o.csv.on {
		return writeCSV(a.stdout, requestRows([]gateway.Request{*r}))
	}
	return a.show(r, func(w io.Writer) { showRequest(w, r) })
}

func showRequest(w io.Writer, r *gateway.Request) {
	tokens := fmt.Sprintf("%d in", r.Tokens.Input)
	for _, part := range []struct {
		n    int64
		what string
	}{{r.Tokens.CacheRead, "from cache"}, {r.Tokens.CacheWrite, "to cache"}} {
		if part.n > 0 {
			tokens += fmt.Sprintf(" (%d %s)", part.n, part.what)
		}
	}
	tokens += fmt.Sprintf(", %d out", r.Tokens.Output)
	if r.Tokens.Reasoning > 0 {
		tokens += fmt.Sprintf(" (%d reasoning)", r.Tokens.Reasoning)
	}
	if r.Tokens.Estimated {
		tokens += ", estimated"
	}
	cost := "unknown"
	if r.Cost != nil {
		cost = "$" + r.Cost.String()
		if r.MarketCost != nil && *r.MarketCost != *r.Cost {
			cost += ", $" + r.MarketCost.String() + " by the list"
		}
	}
	asked := ""
	if r.Model != servedText(r) {
		asked = r.Model
	}
	fields(w,
		"id", r.ID, "started", r.CreatedAt.UTC().Format(time.RFC3339), "status", requestStatus(r), "error", r.Error, "finish", r.FinishReason,
		"model", servedText(r), "asked for", asked, "provider", r.Provider, "surface", r.Surface, "project", r.ProjectID, "key", r.KeyID, "user", r.User,
		"tags", strings.Join(r.Tags, ", "), "session", r.Session, "deployment", r.Deployment, "app", r.App,
		"tokens", tokens, "cost", cost, "first token", millisText(r.FirstToken), "took", millisText(r.Latency),
	)
	if len(r.Attempts) == 0 {
		return
	}
	fmt.Fprintln(w)
	t := newTable("ATTEMPT", "PROVIDER", "MODEL", "STATUS", "TOOK", "ERROR")
	for i, at := range r.Attempts {
		status := "ok"
		if !at.OK {
			status = "failed"
		}
		if at.Status != 0 {
			status += fmt.Sprintf(" (%d)", at.Status)
		}
		t.row(fmt.Sprint(i+1), at.Provider, at.ProviderModel, status, millisText(at.Latency), at.Error)
	}
	t.print(w)
}
