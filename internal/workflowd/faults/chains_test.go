package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/workflow"
)

// TestChains cancels runs that constantly continue as new runs, and parents of such runs.
// Each chain ends, at whatever moment the cancellation came.
func TestChains(t *testing.T) {
	t.Parallel()
	each(t, opening{}, func(t *testing.T, s site, c *workflow.Client) {
		ctx, cancel := context.WithTimeout(t.Context(), childLife)
		defer cancel()
		went := make(chan int)
		// Each run of the chain does one step, which tells the test while the test listens.
		step := workflow.Step("walk", func(ctx context.Context, n int) (int, error) {
			select {
			case went <- n:
			case <-time.After(time.Millisecond): // the test no longer listens
			case <-ctx.Done():
			}
			return n + 1, nil
		})
		var walk *workflow.Definition[int, int]
		walk = workflow.Define("walk", func(ctx workflow.Context, n int) (int, error) {
			n, err := step.Run(ctx, n)
			if err != nil {
				return 0, err
			}
			return 0, walk.ContinueAsNew(ctx, n)
		})
		parent := workflow.Define("parent", func(ctx workflow.Context, _ int) (int, error) {
			child, err := walk.StartChild(ctx, 0)
			if err != nil {
				return 0, err
			}
			return child.Result(ctx)
		})
		serve(t, c, walk, parent)
		for i := range rounds(t, 24, 400) {
			d, of := walk, "chain"
			if i%3 == 0 {
				d, of = parent, "parent"
			}
			run, err := d.Start(ctx, c, 0, workflow.RunRetention(time.Hour))
			if err != nil {
				t.Fatal(err)
			}
			for range 1 + i%5 {
				select {
				case <-went:
				case <-ctx.Done():
					t.Fatal("the chain stands still")
				}
			}
			force := i%2 == 0
			where := fmt.Sprintf("round %d, %s, force %t", i, of, force)
			if err := run.Cancel(ctx, workflow.CancelParams{Reason: where, Force: force}); err != nil {
				_, why := run.Result(ctx)
				t.Fatalf("%s: %v; the run: %v", where, err, why)
			}
			var cancelled *workflow.RunCancelledError
			if _, err := run.Result(ctx); !errors.As(err, &cancelled) {
				t.Fatalf("%s: the result is %v", where, err)
			}
			untilQuiet(ctx, t, c, where)
		}
	})
}

// untilQuiet waits until no run is live.
func untilQuiet(ctx context.Context, t *testing.T, c *workflow.Client, where string) {
	t.Helper()
	for {
		page, err := c.List(ctx, workflow.Query{Statuses: []workflow.Status{workflow.StatusPending, workflow.StatusRunning}})
		if err != nil {
			t.Fatalf("%s: %v", where, err)
		}
		if len(page.Items) == 0 {
			return
		}
	}
}

// TestScheduleClocks simulates the days with clock changes, with a clock that also jumps
// forward and back: each time of a schedule starts one run.
func TestScheduleClocks(t *testing.T) {
	t.Parallel()
	for _, database := range databases {
		for spec, tt := range map[string]struct{ begin, want string }{
			"30 2 * * *":          {"2030-03-31T01:00", "2030-03-31T03:00+02 2030-04-01T02:30+02"},
			"0 3 * * *":           {"2030-03-31T01:00", "2030-03-31T03:00+02 2030-04-01T03:00+02"},
			"30 2 * * 7":          {"2030-10-27T01:00", "2030-10-27T02:30+02"},
			"*/20 2 26-28 10 *":   {"2030-10-27T01:00", "2030-10-27T02:00+02 2030-10-27T02:20+02 2030-10-27T02:40+02 2030-10-28T02:00+01 2030-10-28T02:20+01 2030-10-28T02:40+01"},
			"30 2 28-29,31 3,4 *": {"2030-03-31T01:00", "2030-03-31T03:00+02"},
		} {
			t.Run(database+"/"+strings.ReplaceAll(spec, "/", "|"), func(t *testing.T) {
				t.Parallel()
				if got := startedFor(t, newSite(t, database), spec, tt.begin, 27*time.Hour); got != tt.want {
					t.Errorf("started for %s\nwant        %s", got, tt.want)
				}
			})
		}
	}
}

// startedFor moves the clock from begin in Oslo, ten minutes at a time, and returns the
// times for which a schedule has started runs.
func startedFor(t *testing.T, s site, spec, begin string, long time.Duration) string {
	t.Helper()
	oslo, err := time.LoadLocation("Europe/Oslo")
	if err != nil {
		t.Fatal(err)
	}
	from, err := time.ParseInLocation("2006-01-02T15:04", begin, oslo)
	if err != nil {
		t.Fatal(err)
	}
	var now clock
	now.jump(time.Until(from))
	c, err := s.open(t.Context(), opening{now: now.now, log: logTo(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	put := func(id, spec string) {
		t.Helper()
		if _, err := c.PutSchedule(t.Context(), "scheduled", workflow.ScheduleParams{ID: id, Cron: spec, Zone: "Europe/Oslo", Overlap: true}, 1); err != nil {
			t.Fatal(err)
		}
	}
	put("spec", spec)
	for range long / (10 * time.Minute) {
		now.jump(15 * time.Minute)
		put("other", "0 0 1 1 *") // makes the engine check the clock
		caughtUp(t, c, "spec", now.now)
		now.jump(-5 * time.Minute)
		put("other", "0 0 1 1 *")
	}
	page, err := c.List(t.Context(), workflow.Query{Schedule: "spec"})
	if err != nil {
		t.Fatal(err)
	}
	var times []string
	for _, r := range page.Items {
		ms, err := strconv.ParseInt(r.Key[strings.LastIndexByte(r.Key, ':')+1:], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		times = append(times, time.UnixMilli(ms).In(oslo).Format("2006-01-02T15:04Z07"))
	}
	slices.Sort(times)
	return strings.Join(times, " ")
}

// caughtUp waits until a schedule is due later than now.
func caughtUp(t *testing.T, c *workflow.Client, id string, now func() time.Time) {
	t.Helper()
	for {
		all, err := c.Schedules(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(all, func(s workflow.Schedule) bool { return s.ID == id && s.NextAt > now().UnixMilli() }) {
			return
		}
	}
}
