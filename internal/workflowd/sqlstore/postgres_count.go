package sqlstore

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cayhq/cay/internal/history"
)

// pgCount is the number of examined runs of a status that have the attributes.
type pgCount struct {
	Status history.Status
	Count  int
	Looked int
}

// Count implements workflowd.Store.
func (p *Postgres) Count(ctx context.Context, q history.Query) (history.Counts, error) {
	with := new(condition)
	c, from, err := p.runCondition(ctx, q, with)
	if err != nil {
		return nil, err
	}
	counts := noCounts(q)
	if from.with != "" || q.Key != "" || q.Parent != "" {
		return counts, p.countFew(ctx, c, from, counts)
	}
	var each []string
	var args []any
	for status := range counts {
		each = append(each, "(SELECT ?::text, count(*) FILTER (WHERE "+with.sql()+"), count(*) FROM (SELECT attributes FROM cay.runs WHERE "+c.sql()+
			" AND status = ? ORDER BY created_at DESC, id DESC LIMIT "+strconv.Itoa(countMost+1)+") u)")
		args = slices.Concat(args, []any{string(status)}, with.args, c.args, []any{string(status)})
	}
	all, err := collect(ctx, p, pgx.RowToStructByPos[pgCount], numbered(strings.Join(each, " UNION ALL ")), args...)
	for _, n := range all {
		counts[n.Status] = counted(n.Count, n.Looked > countMost)
	}
	return counts, err
}

// countFew counts the runs of a query that selects few runs, or the children of one run.
func (p *Postgres) countFew(ctx context.Context, c *condition, from pgFrom, counts history.Counts) error {
	all, err := collect(ctx, p, pgx.RowToStructByPos[pgCount], numbered(from.with+"SELECT status, count(*), 0 FROM (SELECT status FROM "+from.table+" r WHERE "+c.sql()+
		" LIMIT "+strconv.Itoa(countMost+1)+") u GROUP BY status"), slices.Concat(from.args, c.args)...)
	looked := 0
	for _, n := range all {
		looked += n.Count
		if _, asked := counts[n.Status]; asked {
			counts[n.Status] = counted(n.Count, false)
		}
	}
	if looked > countMost {
		for status, n := range counts {
			counts[status] = counted(n.Count, true)
		}
	}
	return err
}
