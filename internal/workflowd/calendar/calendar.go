// Package calendar computes when a schedule of five fields is due by the clock of a time
// zone, including days with a clock change.
package calendar

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/cayhq/cay"
)

// calendar computes when a schedule of five fields is due, by the clock of a time zone.
// The library parses the fields. Its own Next, like those of its forks, skips runs on
// days with a clock change, so this package has its own rules for such days:
//
//   - a time that is skipped is due at the first moment after,
//   - a time that comes twice is due once, the first time,
//   - but a schedule for every hour is due as often as its minutes come.
type calendar struct{ *cron.SpecSchedule }

// starBit is the bit that the library sets for a field that is "*".
const starBit = 1 << 63

// farthest is the maximum number of days until a schedule is due: from 29 February 2096
// to the next leap day it is 8 years.
const farthest = 8*366 + 1

// Parse parses a schedule of five fields, or "@every <duration>", and returns it with the
// location of its zone. Errors: invalid.
func Parse(spec, zone string) (cron.Schedule, *time.Location, error) {
	at, err := time.LoadLocation(zone)
	if err != nil {
		return nil, nil, cay.Errorf(cay.Invalid, "time zone %q is not known", zone)
	}
	if strings.Contains(spec, "TZ=") {
		return nil, nil, cay.Errorf(cay.Invalid, "the zone of a schedule is a field of its own")
	}
	fields := strings.Fields(spec)
	if len(fields) == 5 {
		fields[4] = weekdays(fields[4])
	}
	schedule, err := cron.ParseStandard(strings.Join(fields, " "))
	if err != nil {
		return nil, nil, cay.Errorf(cay.Invalid, "schedule %q cannot be read: %w", spec, err)
	}
	if of, ok := schedule.(*cron.SpecSchedule); ok {
		schedule = calendar{of}
	}
	return schedule, at, nil
}

// weekdays rewrites a field of weekdays 1 to 7 or with names so that Sunday is 0, as the
// library needs it.
func weekdays(field string) string {
	parts := strings.Split(field, ",")
	for i, part := range parts {
		days, step, stepped := strings.Cut(part, "/")
		first, last, isRange := strings.Cut(days, "-")
		from, ok := weekday(first)
		switch {
		case !isRange && first == "7":
			parts[i] = "0"
		case isRange && ok && from > 0 && (last == "7" || strings.EqualFold(last, "sun")):
			by, err := strconv.Atoi(step)
			if !stepped {
				by = 1
			} else if err != nil || by <= 0 {
				continue // the library reports the error
			}
			var list []string
			for day := from; day <= 7; day += by {
				list = append(list, strconv.Itoa(day%7))
			}
			parts[i] = strings.Join(list, ",")
		case isRange && first == "0" && last == "7" && !stepped:
			parts[i] = "0-6"
		}
	}
	return strings.Join(parts, ",")
}

func weekday(s string) (int, bool) {
	if i := slices.Index([]string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}, strings.ToLower(s)); i >= 0 {
		return i, true
	}
	n, err := strconv.Atoi(s)
	return n, err == nil && n >= 0 && n <= 7
}

// Next returns the first time after t at which the schedule is due, by the clock of t's
// location; zero if it is never due.
func (c calendar) Next(t time.Time) time.Time {
	if c.Hour&starBit != 0 {
		return c.nextMinute(t)
	}
	// A time zone may skip a whole day, like Samoa in 2011.
	for day := -1; day <= farthest; day++ {
		date := time.Date(t.Year(), t.Month(), t.Day()+day, 0, 0, 0, 0, time.UTC)
		if !c.has(date) {
			continue
		}
		for hour := range 24 {
			for minute := range 60 {
				if c.Hour&(1<<hour) == 0 || c.Minute&(1<<minute) == 0 {
					continue
				}
				if due := onClock(date, hour, minute, t.Location()); due.After(t) {
					return due
				}
			}
		}
	}
	return time.Time{}
}

// nextMinute is Next for a schedule of every hour.
func (c calendar) nextMinute(t time.Time) time.Time {
	next := t.Add(time.Minute - time.Duration(t.Second())*time.Second - time.Duration(t.Nanosecond()))
	for end := t.AddDate(0, 0, farthest); next.Before(end); {
		switch {
		case !c.has(next):
			next = next.Add(time.Duration(60-next.Minute()) * time.Minute)
		case c.Minute&(1<<next.Minute()) != 0:
			return next
		default:
			next = next.Add(time.Minute)
		}
	}
	return time.Time{}
}

// has reports whether the schedule includes the day of t. As in cron, if day of the month
// and day of the week are both given, either is enough.
func (c calendar) has(t time.Time) bool {
	if c.Month&(1<<t.Month()) == 0 {
		return false
	}
	ofMonth, ofWeek := c.Dom&(1<<t.Day()) != 0, c.Dow&(1<<t.Weekday()) != 0
	if c.Dom&starBit != 0 || c.Dow&starBit != 0 {
		return ofMonth && ofWeek
	}
	return ofMonth || ofWeek
}

// onClock returns the first moment at which the clock of a time zone shows a time of a
// day. If the clock skips that time, onClock returns the moment of the change.
func onClock(day time.Time, hour, minute int, at *time.Location) time.Time {
	wall := func(t time.Time) time.Time {
		return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), 0, 0, time.UTC)
	}
	want := time.Date(day.Year(), day.Month(), day.Day(), hour, minute, 0, 0, time.UTC)
	t := time.Date(day.Year(), day.Month(), day.Day(), hour, minute, 0, 0, at)
	since, until := t.ZoneBounds()
	switch shown := wall(t); {
	case shown.After(want):
		return since
	case shown.Before(want):
		return until
	case since.IsZero():
		return t
	}
	// If the clock was set back at that moment, it may have shown the time before.
	_, now := t.Zone()
	_, before := since.Add(-1).Zone()
	if earlier := t.Add(-time.Duration(before-now) * time.Second); earlier.Before(since) && wall(earlier).Equal(want) {
		return earlier
	}
	return t
}
