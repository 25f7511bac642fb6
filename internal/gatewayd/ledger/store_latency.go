package ledger

import (
	"context"
	"fmt"
	"strings"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/db"
)

// Times are in microseconds; NULL means unknown.
var latencyMigrations = []db.Migration{
	{Name: "times of requests", SQL: `
		ALTER TABLE gateway_requests ADD COLUMN latency INTEGER;
		ALTER TABLE gateway_requests ADD COLUMN first_token INTEGER;
		UPDATE gateway_requests SET
			latency = nullif(CAST(json_extract(record, '$.latency_ms') * 1000 AS INTEGER), 0),
			first_token = nullif(CAST(json_extract(record, '$.first_token_ms') * 1000 AS INTEGER), 0);`},
}

// latencies fills in the latency percentiles of each row by nearest rank, so that each
// number is the latency of an actual request.
func (s store) latencies(ctx context.Context, r *report, all []gateway.Spend) error {
	byGroup := make(map[string]*gateway.Spend, len(all))
	for i := range all {
		byGroup[r.key(all[i].Group)] = &all[i]
	}
	names := make([]string, len(r.columns))
	list := ""
	for i, c := range r.columns {
		names[i] = fmt.Sprintf("g%d", i)
		list += c + " AS " + names[i] + ", "
	}
	over, group := strings.Join(r.columns, ", "), strings.Join(names, ", ")
	rows, err := s.db.Query(ctx, `WITH t AS (SELECT `+list+`r.latency AS l, r.first_token AS f,
				row_number() OVER (PARTITION BY `+over+` ORDER BY r.latency) AS ln, count(*) OVER (PARTITION BY `+over+`) AS lc,
				row_number() OVER (PARTITION BY `+over+` ORDER BY r.first_token NULLS LAST) AS fn, count(r.first_token) OVER (PARTITION BY `+over+`) AS fc
			FROM `+r.from+` WHERE `+r.sel.where.String()+` AND r.status = 'succeeded' AND r.latency IS NOT NULL)
		SELECT `+group+`, max(CASE WHEN ln = (lc * 50 + 99) / 100 THEN l END), max(CASE WHEN ln = (lc * 95 + 99) / 100 THEN l END),
			coalesce(max(CASE WHEN fn = (fc * 50 + 99) / 100 THEN f END), 0), coalesce(max(CASE WHEN fn = (fc * 95 + 99) / 100 THEN f END), 0)
		FROM t GROUP BY `+group, r.sel.args...)
	if err != nil {
		return fmt.Errorf("work out how long requests took: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		of := make(map[string]string, len(r.by))
		values, dest := r.values()
		var p50, p95, first50, first95 int64
		if err := rows.Scan(append(dest, &p50, &p95, &first50, &first95)...); err != nil {
			return fmt.Errorf("work out how long requests took: %w", db.Error(err))
		}
		for _, v := range values {
			of[v.by] = v.text
		}
		if row := byGroup[r.key(of)]; row != nil {
			row.Latency = &gateway.Latency{P50: ofMicros(p50), P95: ofMicros(p95), FirstTokenP50: ofMicros(first50), FirstTokenP95: ofMicros(first95)}
		}
	}
	return db.Error(rows.Err())
}

func ofMicros(n int64) gateway.Millis { return gateway.Millis(float64(n) / 1000) }
