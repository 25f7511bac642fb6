package ledger

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/db"
)

// maxSpendRows is the maximum number of rows of a report.
const maxSpendRows = 10_000

// groupings maps the fields that a report can group by to SQL expressions.
var groupings = map[string]string{
	"day":        `r.created_at / 86400000`,
	"hour":       `r.created_at / 3600000`,
	"model":      `r.model`,
	"provider":   `r.provider`,
	"key":        `r.key_id`,
	"project":    `r.project_id`,
	"user":       `r.user_id`,
	"session":    `r.session`,
	"surface":    `r.surface`,
	"status":     `r.status`,
	"credential": `CASE r.byok WHEN 0 THEN 'system' ELSE 'byok' END`,
	"tag":        `coalesce(g.tag, '')`,
}

// report is the query of a spend report.
type report struct {
	by      []string
	columns []string // for each of by
	from    string
	sel     *selection
}

func newReport(team, project string, p *gateway.SpendParams) *report {
	sel := selectRequests(team, project)
	sel.times(p.Since, p.Until)
	sel.equal("project_id", p.ProjectID)
	sel.equal("key_id", p.KeyID)
	sel.equal("user_id", p.User)
	sel.equal("session", p.Session)
	sel.equal("provider", p.Provider)
	sel.model(p.Model)
	sel.tags(append([]string{p.Tag}, p.Tags...)...)
	sel.indexed(&gateway.RequestFilter{User: p.User, Session: p.Session})
	r := &report{by: p.By, from: `gateway_requests r`, sel: sel}
	for _, by := range p.By {
		r.columns = append(r.columns, groupings[by])
		if by == "tag" {
			r.from += ` LEFT JOIN gateway_request_tags g ON g.request_id = r.id`
		}
	}
	return r
}

// values returns the group values of a row, and pointers to them for Scan.
func (r *report) values() (values []groupValue, dest []any) {
	values = make([]groupValue, len(r.by))
	dest = make([]any, 0, len(r.by)+14)
	for i := range values {
		values[i].by = r.by[i]
		dest = append(dest, &values[i])
	}
	return values, dest
}

// key returns a string that identifies a row.
func (r *report) key(group map[string]string) string {
	var b strings.Builder
	for _, by := range r.by {
		fmt.Fprintf(&b, "%q", group[by])
	}
	return b.String()
}

// spend adds up requests.
func (s store) spend(ctx context.Context, team, project string, p gateway.SpendParams) ([]gateway.Spend, error) {
	r := newReport(team, project, &p)
	all, err := s.sums(ctx, r)
	if err == nil && p.Latency {
		err = s.latencies(ctx, r, all)
	}
	return all, err
}

func (s store) sums(ctx context.Context, r *report) ([]gateway.Spend, error) {
	group := strings.Join(r.columns, ", ")
	rows, err := s.db.Query(ctx, `SELECT `+group+`, count(*), sum(r.status = 'failed'), sum(r.status = 'cancelled'), sum(r.status = 'refused'), sum(r.cost IS NULL),
			coalesce(sum(r.cost), 0), coalesce(sum(r.market_cost), 0), sum(r.input), sum(r.cache_read), sum(r.cache_write), sum(r.cache_write_1h), sum(r.output), sum(r.reasoning), max(r.estimated)
		FROM `+r.from+` WHERE `+r.sel.where.String()+` GROUP BY `+group+` ORDER BY `+group+` LIMIT ?`, append(r.sel.args[:len(r.sel.args):len(r.sel.args)], maxSpendRows+1)...)
	if err != nil {
		return nil, fmt.Errorf("add up requests: %w", err)
	}
	defer rows.Close()
	all := []gateway.Spend{}
	for rows.Next() {
		out := gateway.Spend{Group: make(map[string]string, len(r.by))}
		values, dest := r.values()
		t := &out.Tokens
		if err := rows.Scan(append(dest, &out.Requests, &out.Failed, &out.Cancelled, &out.Refused, &out.Unpriced, &out.Cost, &out.MarketCost,
			&t.Input, &t.CacheRead, &t.CacheWrite, &t.CacheWrite1h, &t.Output, &t.Reasoning, &t.Estimated)...); err != nil {
			return nil, fmt.Errorf("add up requests: %w", db.Error(err))
		}
		for _, v := range values {
			out.Group[v.by] = v.text
		}
		all = append(all, out)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("add up requests: %w", db.Error(err))
	}
	if len(all) > maxSpendRows {
		return nil, cay.Errorf(cay.Invalid, "the report by %s has more than %d rows", strings.Join(r.by, " and "), maxSpendRows).
			WithHint("ask for a shorter time, or for fewer groups")
	}
	return all, nil
}

// groupValue is the value of one group-by field of a row.
type groupValue struct{ by, text string }

// Scan implements sql.Scanner. Days and hours are numbers since 1970.
func (v *groupValue) Scan(src any) error {
	switch src := src.(type) {
	case int64:
		switch v.by {
		case "day":
			v.text = time.UnixMilli(src * 86_400_000).UTC().Format(time.DateOnly)
			return nil
		case "hour":
			v.text = time.UnixMilli(src * 3_600_000).UTC().Format("2006-01-02T15:04Z")
			return nil
		}
	case string:
		v.text = src
		return nil
	case []byte:
		v.text = string(src)
		return nil
	}
	return fmt.Errorf("%T is no value of %s", src, v.by)
}
