package workflowd_test

import (
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/workflow"
)

// dues returns the next n due times of a schedule after a time, in its zone.
func dues(t *testing.T, spec, zone, after string, n int) []time.Time {
	t.Helper()
	at, err := time.LoadLocation(zone)
	if err != nil {
		t.Fatal(err)
	}
	now, err := time.ParseInLocation("2006-01-02T15:04", after, at)
	if err != nil {
		t.Fatal(err)
	}
	var all []time.Time
	for range n {
		ms, err := workflowd.NextAfter(&history.Schedule{Cron: spec, Zone: zone}, now)
		if err != nil {
			t.Fatalf("%s: %v", spec, err)
		}
		if ms == 0 {
			break
		}
		now = time.UnixMilli(ms).In(at)
		all = append(all, now)
	}
	return all
}

func TestCron(t *testing.T) {
	t.Parallel()
	const oslo = "Europe/Oslo"
	for _, tt := range []struct{ name, spec, zone, after, want string }{
		{"skipped", "30 2 * * *", oslo, "2026-03-28T00:00", "2026-03-28T02:30+01 2026-03-29T03:00+02 2026-03-30T02:30+02"},
		{"skipped, few days", "30 2 28-29 3 *", oslo, "2026-03-27T12:00", "2026-03-28T02:30+01 2026-03-29T03:00+02 2027-03-28T03:00+02"},
		{"skipped, several", "*/20 2 * * *", oslo, "2026-03-29T00:00", "2026-03-29T03:00+02 2026-03-30T02:00+02"},
		{"skipped, and the moment after", "30 2,3 * * *", oslo, "2026-03-29T00:00", "2026-03-29T03:00+02 2026-03-29T03:30+02"},
		{"skipped, the first moment as well", "0 2,3 * * *", oslo, "2026-03-29T00:00", "2026-03-29T03:00+02 2026-03-30T02:00+02"},
		{"at the moment of the change", "0 3 * * *", oslo, "2026-03-29T00:00", "2026-03-29T03:00+02"},
		{"doubled", "30 2 * * *", oslo, "2026-10-24T12:00", "2026-10-25T02:30+02 2026-10-26T02:30+01"},
		{"doubled, several", "*/30 2-3 * * *", oslo, "2026-10-25T00:00", "2026-10-25T02:00+02 2026-10-25T02:30+02 2026-10-25T03:00+01"},
		{"hourly, skipped", "15 * * * *", oslo, "2026-03-29T01:00", "2026-03-29T01:15+01 2026-03-29T03:15+02"},
		{"hourly, doubled", "15 * * * *", oslo, "2026-10-25T01:30", "2026-10-25T02:15+02 2026-10-25T02:15+01 2026-10-25T03:15+01"},
		{"@hourly, doubled", "@hourly", oslo, "2026-10-25T01:30", "2026-10-25T02:00+02 2026-10-25T02:00+01"},
		{"midnight skipped", "0 0 * * *", "America/Sao_Paulo", "2018-11-03T12:00", "2018-11-04T01:00-02 2018-11-05T00:00-02"},
		{"midnight doubled", "30 23 * * *", "America/Sao_Paulo", "2018-02-17T12:00", "2018-02-17T23:30-02 2018-02-18T23:30-03"},
		{"a day skipped", "0 12 30 12 *", "Pacific/Apia", "2011-12-29T13:00", "2011-12-31T00:00+14 2012-12-30T12:00+14"},
		{"half an hour skipped", "15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00", "2026-10-04T02:30+11 2026-10-05T02:15+11"},
		{"Sunday as 7", "0 3 * * 7", "UTC", "2026-01-01T00:00", "2026-01-04T03:00Z 2026-01-11T03:00Z"},
		{"Sunday as 0", "0 3 * * 0", "UTC", "2026-01-01T00:00", "2026-01-04T03:00Z"},
		{"Friday to 7", "0 3 * * 5-7", "UTC", "2026-01-01T00:00", "2026-01-02T03:00Z 2026-01-03T03:00Z 2026-01-04T03:00Z 2026-01-09T03:00Z"},
		{"Friday to Sunday", "0 3 * * fri-Sun", "UTC", "2026-01-03T04:00", "2026-01-04T03:00Z 2026-01-09T03:00Z"},
		{"every second day to 7", "0 3 * * 1-7/2", "UTC", "2026-01-01T04:00", "2026-01-02T03:00Z 2026-01-04T03:00Z 2026-01-05T03:00Z"},
		{"all days", "0 3 * * 0-7", "UTC", "2026-01-01T04:00", "2026-01-02T03:00Z"},
		{"among others", "0 3 * * 3,7", "UTC", "2026-01-01T04:00", "2026-01-04T03:00Z 2026-01-07T03:00Z"},
		{"a day of the month or the week", "0 3 13 * 5", "UTC", "2026-01-01T00:00", "2026-01-02T03:00Z 2026-01-09T03:00Z 2026-01-13T03:00Z"},
		{"leap years", "0 0 29 2 *", "UTC", "2096-03-01T00:00", "2104-02-29T00:00Z"},
		{"every minute", "* * * * *", "UTC", "2026-12-31T23:59", "2027-01-01T00:00Z"},
		{"every", "@every 90m", oslo, "2026-10-25T01:30", "2026-10-25T02:00+01"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			want := strings.Fields(tt.want)
			var got []string
			for _, due := range dues(t, tt.spec, tt.zone, tt.after, len(want)) {
				got = append(got, due.Format("2006-01-02T15:04Z07"))
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("got  %s\nwant %s", strings.Join(got, " "), tt.want)
			}
		})
	}
}

// A time of day is due once a day on days with clock changes too, except on a day that
// the calendar skips.
func TestCron_OnceADay(t *testing.T) {
	t.Parallel()
	for _, zone := range []string{"Europe/Oslo", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Africa/Casablanca", "America/Santiago", "Asia/Gaza"} {
		for _, spec := range []string{"30 2 * * *", "0 0 * * *", "59 23 * * *", "15 1 * * *", "0 3 * * *"} {
			const days = 366
			all := dues(t, spec, zone, "2026-01-01T00:00", days)
			for i, due := range all {
				if i > 0 && due.YearDay() != all[i-1].YearDay()+1 && due.YearDay() != 1 {
					t.Errorf("%s in %s: %s follows %s", spec, zone, due, all[i-1])
				}
			}
			if len(all) != days {
				t.Errorf("%s in %s: due %d times", spec, zone, len(all))
			}
		}
	}
}

// Malformed schedules and schedules without a due time are refused.
func TestCron_Refused(t *testing.T) {
	onChains(t, func(c *chains) {
		for spec, why := range map[string]string{
			"0 0 30 2 *": "never comes", "0 0 31 4,6,9,11 *": "never comes", "* * 30 2 *": "never comes",
			"0 0 * * 8": "8", "0 0 * * 7-8": "8", "0 0 * * 6-5": "6", "60 * * * *": "60", "* * *": "5", "0 0 * * 1-7/0": "0",
		} {
			_, err := c.PutSchedule(c.Context(), workflow.Schedule{ID: "s", Workflow: "w", Cron: spec, Zone: "Europe/Oslo"})
			if cay.CodeOf(err) != cay.Invalid || !strings.Contains(err.Error(), spec) || !strings.Contains(err.Error(), why) {
				c.Errorf("%s: %v", spec, err)
			}
		}
		if _, err := c.PutSchedule(c.Context(), workflow.Schedule{ID: "s", Workflow: "w", Cron: "0 0 29 2 *"}); err != nil {
			c.Fatal(err)
		}
		never := "0 0 30 2 *"
		if _, err := c.UpdateSchedule(c.Context(), "s", workflow.ScheduleUpdate{Cron: &never}); cay.CodeOf(err) != cay.Invalid {
			c.Errorf("changed to what never comes: %v", err)
		}
	})
}
