package sqlstore

import (
	"context"
	"database/sql"
	"strconv"
	"strings"

	"github.com/cayhq/cay/internal/history"
)

var (
	sqliteCountLimit = strconv.Itoa(countMost + 1)
	// sqliteOfStatus restricts to the status that is the last argument.
	sqliteOfStatus = " AND status = ? LIMIT " + sqliteCountLimit + ")"
)

// Count counts runs by status.
func (s *SQLite) Count(ctx context.Context, q history.Query) (history.Counts, error) {
	if err := s.fold(ctx); err != nil {
		return nil, err
	}
	c, err := s.runCondition(ctx, q)
	if err != nil {
		return nil, err
	}
	with := new(condition)
	few, err := s.whereAttributes(ctx, with, askedAttributes(q))
	switch {
	case err != nil:
		return nil, err
	case few || q.Key != "" || q.Parent != "":
		c.and(with.sql(), with.args...)
		return s.countFew(ctx, q, c)
	}
	return s.countIndexed(ctx, q, c, with)
}

// countIndexed counts with an index that covers all of c, the status and the order of
// time. The conditions of with are checked for each of the newest runs.
func (s *SQLite) countIndexed(ctx context.Context, q history.Query, c, with *condition) (history.Counts, error) {
	counts := noCounts(q)
	var each []string
	var args []any
	for status := range counts {
		args = append(args, string(status))
		if len(with.terms) == 0 {
			each = append(each, "SELECT ?, count(*), 0 FROM (SELECT 1 FROM workflow_runs WHERE "+c.sql()+sqliteOfStatus)
		} else {
			each = append(each, "SELECT ?, total(has), count(*) FROM (SELECT ("+with.sql()+") AS has FROM (SELECT n FROM workflow_runs WHERE "+
				c.sql()+" AND status = ? ORDER BY created_at DESC LIMIT "+sqliteCountLimit+"))")
			args = append(args, with.args...)
		}
		args = append(append(args, c.args...), string(status))
	}
	return counts, s.query(ctx, strings.Join(each, " UNION ALL "), args, func(rows *sql.Rows) error {
		var status history.Status
		var n float64
		var looked int
		err := rows.Scan(&status, &n, &looked)
		counts[status] = counted(int(n), looked > countMost)
		return err
	})
}

// countFew counts when c selects few runs, or the children of one run.
func (s *SQLite) countFew(ctx context.Context, q history.Query, c *condition) (history.Counts, error) {
	counts, looked := noCounts(q), 0
	err := s.query(ctx, "SELECT status, count(*) FROM (SELECT status FROM workflow_runs WHERE "+unordered(c)+" LIMIT "+sqliteCountLimit+") GROUP BY status", c.args,
		func(rows *sql.Rows) error {
			var status history.Status
			var n int
			err := rows.Scan(&status, &n)
			looked += n
			if _, asked := counts[status]; asked {
				counts[status] = counted(n, false)
			}
			return err
		})
	if looked > countMost {
		for status, n := range counts {
			counts[status] = counted(n.Count, true)
		}
	}
	return counts, err
}

// unordered returns a condition that selects few runs: examining those is cheaper than
// scanning all runs in the order of an index, which SQLite would prefer. A unary plus
// keeps SQLite from using that index.
func unordered(c *condition) string {
	terms := make([]string, len(c.terms))
	for i, term := range c.terms {
		if strings.HasPrefix(term, "project") || strings.HasPrefix(term, "workflow") {
			term = "+" + term
		}
		terms[i] = term
	}
	return (&condition{terms: terms}).sql()
}
