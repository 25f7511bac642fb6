package ledger

import (
	"time"

	"github.com/cayhq/cay/gateway"
)

// periodStart returns when the period that t is in began: the zero time for
// Never.
func periodStart(p gateway.Period, t time.Time) time.Time {
	y, m, d := t.UTC().Date()
	day := time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
	switch p {
	case gateway.Daily:
		return day
	case gateway.Weekly:
		return day.AddDate(0, 0, -int(day.Weekday()+6)%7)
	case gateway.Monthly:
		return time.Date(y, m, 1, 0, 0, 0, 0, time.UTC)
	}
	return time.Time{}
}

// periodEnd returns when the period that t is in ends, nil for Never.
func periodEnd(p gateway.Period, t time.Time) *time.Time {
	start := periodStart(p, t)
	switch p {
	case gateway.Daily:
		start = start.AddDate(0, 0, 1)
	case gateway.Weekly:
		start = start.AddDate(0, 0, 7)
	case gateway.Monthly:
		start = start.AddDate(0, 1, 0)
	default:
		return nil
	}
	return &start
}
