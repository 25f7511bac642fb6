package backendtest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/workflow"
)

// watch follows a list of runs.
type watch struct {
	t      *testing.T
	reader workflow.ChangeReader
	list   func() []workflow.RunInfo // lists the runs that the query selects now

	runs  map[string]*workflow.RunInfo // as reported, or as listed after a missed change
	lines map[string]int               // number of changes by run
	seen  map[workflow.ChangeType]int
}

// follow watches the runs that a query selects. Changes after its return are reported.
func follow(t *testing.T, b Backend, q workflow.Query) *watch {
	t.Helper()
	r, err := b.WatchRuns(t.Context(), q)
	if err != nil {
		t.Fatalf("watch: %v", err)
	}
	t.Cleanup(func() { r.Close() })
	w := &watch{t: t, reader: r, runs: make(map[string]*workflow.RunInfo), lines: make(map[string]int), seen: make(map[workflow.ChangeType]int)}
	w.list = func() []workflow.RunInfo {
		page, err := b.ListRuns(t.Context(), q)
		if err != nil {
			t.Fatalf("list what was missed: %v", err)
		}
		return page.Items
	}
	w.until("it is ready", func() bool { return w.seen[workflow.ChangeReady] > 0 })
	if len(w.seen) != 1 {
		t.Errorf("with nothing changed there was %v", w.seen)
	}
	return w
}

// until reads changes until a condition holds.
func (w *watch) until(what string, holds func() bool) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	for !holds() {
		changes, err := w.reader.ReadChanges(ctx)
		if err != nil {
			w.t.Fatalf("until %s: %v; so far %v", what, err, w.seen)
		}
		for _, c := range changes {
			w.seen[c.Type]++
			w.lines[c.ID]++
			switch c.Type {
			case workflow.ChangeRun:
				if c.Run == nil || c.Run.ID != c.ID {
					w.t.Fatalf("a change of %q has %+v", c.ID, c.Run)
				}
				w.runs[c.ID] = c.Run
			case workflow.ChangeDeleted:
				delete(w.runs, c.ID)
			case workflow.ChangeMissed: // it may stand for any other change
				clear(w.runs)
				for _, r := range w.list() {
					w.runs[r.ID] = &r
				}
				w.seen[workflow.ChangeHooks]++
				w.seen[workflow.ChangeSchedules]++
			}
		}
	}
}

func testWatch(t *testing.T, b Backend) {
	all := follow(t, b, workflow.Query{})
	running := follow(t, b, workflow.Query{Statuses: []workflow.Status{workflow.StatusRunning}})
	refunds := follow(t, b, workflow.Query{Workflow: "refund", Statuses: []workflow.Status{workflow.StatusFailed, workflow.StatusCompleted}})
	agents := follow(t, b, workflow.Query{HasAttributes: []string{"$agent"}, Attributes: map[string]string{"a": "1"}})

	w := attach(t, b, "order", "refund")
	first := w.take(start(t, b, workflow.NewRun{Workflow: "order", Attributes: map[string]string{"a": "1"}}).ID)
	second := w.take(start(t, b, workflow.NewRun{Workflow: "refund"}).ID)
	both := func(x *watch) func() bool { return func() bool { return len(x.runs) == 2 } }
	all.until("both are there", both(all))
	running.until("both run", both(running))

	if _, err := b.SetAttributes(t.Context(), first.run, map[string]string{"$agent": "coder"}); err != nil {
		t.Fatal(err)
	}
	first.wait(history.AttrSet)
	agents.until("one has the attribute", func() bool { return agents.runs[first.run] != nil })
	if _, err := b.SetAttributes(t.Context(), first.run, map[string]string{"$agent": ""}); err != nil {
		t.Fatal(err)
	}
	first.wait(history.AttrSet)
	agents.until("it has it no more", func() bool { return len(agents.runs) == 0 })

	first.append(workflow.Event{Type: history.HookCreated, ID: "hook_hook.1", Token: "go"})
	all.until("there is a hook", func() bool { return all.seen[workflow.ChangeHooks] >= 1 })
	first.append(completed("out"))
	all.until("one has ended", func() bool { return all.runs[first.run].Status == workflow.StatusCompleted })
	all.until("its hook is gone", func() bool { return all.seen[workflow.ChangeHooks] >= 2 })
	running.until("it runs no more", func() bool { return running.runs[first.run] == nil })

	second.append(workflow.Event{Type: history.RunFailed, Payload: value("no")})
	refunds.until("the other one has failed", func() bool { return refunds.runs[second.run] != nil })
	running.until("neither runs", func() bool { return len(running.runs) == 0 })
	if got := refunds.lines[first.run] + agents.lines[second.run]; got != 0 || refunds.lines[second.run] != 1 && refunds.seen[workflow.ChangeMissed] == 0 {
		t.Errorf("%d lines about runs that were not asked for, %d about one that was", got, refunds.lines[second.run])
	}
	if err := b.DeleteRun(t.Context(), second.run); err != nil {
		t.Fatal(err)
	}
	all.until("it is deleted", func() bool { return all.runs[second.run] == nil })

	put := func(s workflow.Schedule) {
		if _, err := b.PutSchedule(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	put(workflow.Schedule{ID: "nightly", Workflow: "order", Cron: "0 3 * * *"})
	agents.until("there is a schedule", func() bool { return agents.seen[workflow.ChangeSchedules] >= 1 })
	if err := b.DeleteSchedule(t.Context(), "nightly"); err != nil {
		t.Fatal(err)
	}
	agents.until("there is none", func() bool { return agents.seen[workflow.ChangeSchedules] >= 2 })
	for name, x := range map[string]*watch{"all": all, "running": running, "refunds": refunds, "agents": agents} {
		// A process that shares its database reports one missed change at the start.
		if n := x.seen[workflow.ChangeMissed]; n > 1 {
			t.Errorf("%s missed something %d times", name, n)
		}
	}
}

// A run with many events is reported a few times a second; the last report has its final
// state.
func testWatchPace(t *testing.T, b Backend) {
	w := attach(t, b, "order")
	j := w.take(start(t, b, workflow.NewRun{Workflow: "order"}).ID)
	x := follow(t, b, workflow.Query{})
	type heard struct {
		lines int
		last  *workflow.RunInfo
		err   error
	}
	ended := make(chan heard, 1)
	go func() { // while the run goes on
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		var h heard
		for h.err == nil && (h.last == nil || !h.last.Status.Terminal()) {
			var changes []workflow.RunChange
			changes, h.err = x.reader.ReadChanges(ctx)
			for _, c := range changes {
				switch {
				case c.ID == j.run:
					h.lines, h.last = h.lines+1, c.Run
				case c.Type == workflow.ChangeMissed: // may replace the report of the run
					h.last, h.err = b.GetRun(ctx, j.run)
				}
			}
		}
		ended <- h
	}()
	began := time.Now()
	for i := range 300 {
		j.append(step(fmt.Sprint("step_a.", i+1), "x"))
	}
	j.append(completed("out"))
	h := <-ended
	took := time.Since(began)
	if h.err != nil || h.last.Events != j.slot || h.last.CompletedAt == 0 {
		t.Errorf("at last it was reported as %+v, %v; its last slot is %d", h.last, h.err, j.slot)
	}
	if most := int(took/(200*time.Millisecond)) + 2; h.lines > most {
		t.Errorf("%d lines about one run in %v, want at most %d", h.lines, took, most)
	}
}

func testCounts(t *testing.T, b Backend) {
	for i := range 5 {
		p := workflow.NewRun{Workflow: "order", Attributes: map[string]string{"n": fmt.Sprint(i % 2)}}
		if i == 3 {
			p.Workflow, p.Attributes["odd=%"] = "refund", "x"
		}
		run := start(t, b, p)
		if i < 2 {
			if _, err := b.CancelRun(t.Context(), run.ID, workflow.CancelParams{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, tt := range []struct {
		name               string
		q                  workflow.Query
		pending, cancelled int
	}{
		{"all", workflow.Query{}, 3, 2},
		{"workflow", workflow.Query{Workflow: "order"}, 2, 2},
		{"attribute", workflow.Query{Attributes: map[string]string{"n": "1"}}, 1, 1},
		{"has attribute", workflow.Query{HasAttributes: []string{"odd=%"}}, 1, 0},
		{"later", workflow.Query{Since: time.Now().Add(time.Hour).UnixMilli()}, 0, 0},
	} {
		got, err := b.CountRuns(t.Context(), tt.q)
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if len(got) != 5 || got[workflow.StatusPending].Count != tt.pending || got[workflow.StatusCancelled].Count != tt.cancelled ||
			got[workflow.StatusRunning] != (workflow.RunCount{}) {
			t.Errorf("%s: %v, want %d pending and %d cancelled", tt.name, got, tt.pending, tt.cancelled)
		}
		page, err := b.ListRuns(t.Context(), tt.q)
		if err != nil || len(page.Items) != tt.pending+tt.cancelled {
			t.Errorf("%s: %d are listed, %v", tt.name, len(page.Items), err)
		}
	}
	got, err := b.CountRuns(t.Context(), workflow.Query{Statuses: []workflow.Status{workflow.StatusPending}})
	if want := (workflow.RunCounts{workflow.StatusPending: {Count: 3}}); err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("of one status: %v, %v, want %v", got, err, want)
	}
	// CancelRuns takes the same filters.
	results, err := b.CancelRuns(t.Context(), workflow.Query{HasAttributes: []string{"odd=%"}}, workflow.CancelParams{})
	if err != nil || len(results) != 1 {
		t.Errorf("cancelled %v, %v", results, err)
	}
}

func testUpdateSchedule(t *testing.T, b Backend) {
	yes, no, cron, zone, bad := true, false, "30 4 * * *", "Europe/Berlin", "never"
	s, err := b.PutSchedule(t.Context(), workflow.Schedule{ID: "nightly", Workflow: "order", Cron: "0 3 * * *", Input: value("in"), Overlap: true})
	if err != nil {
		t.Fatal(err)
	}
	paused, err := b.UpdateSchedule(t.Context(), "nightly", workflow.ScheduleUpdate{Paused: &yes})
	if err != nil || !paused.Paused || !paused.Overlap || paused.Cron != s.Cron || string(paused.Input) != string(value("in")) || paused.CreatedAt != s.CreatedAt {
		t.Errorf("paused: %+v, %v", paused, err)
	}
	moved, err := b.UpdateSchedule(t.Context(), "nightly", workflow.ScheduleUpdate{Paused: &no, Overlap: &no, Cron: &cron, Zone: &zone})
	if err != nil || moved.Paused || moved.Overlap || moved.Cron != cron || moved.Zone != zone || moved.NextAt == s.NextAt || moved.NextAt < time.Now().UnixMilli() {
		t.Errorf("moved: %+v, %v", moved, err)
	}
	if same, err := b.UpdateSchedule(t.Context(), "nightly", workflow.ScheduleUpdate{}); err != nil || fmt.Sprint(*same) != fmt.Sprint(*moved) {
		t.Errorf("with nothing to change: %+v, %v, want %+v", same, err, moved)
	}
	_, err = b.UpdateSchedule(t.Context(), "nightly", workflow.ScheduleUpdate{Cron: &bad})
	checktest.Code(t, err, cay.Invalid, "a clock that cannot be read")
	_, err = b.UpdateSchedule(t.Context(), "none", workflow.ScheduleUpdate{Paused: &yes})
	checktest.Code(t, err, cay.NotFound, "one that is not there")
	all, err := b.ListSchedules(t.Context())
	if err != nil || len(all) != 1 || fmt.Sprint(all[0]) != fmt.Sprint(*moved) {
		t.Errorf("at last there is %+v, %v", all, err)
	}

	// A paused schedule starts no runs, and does not catch up later.
	w := attach(t, b, "tick")
	if _, err := b.PutSchedule(t.Context(), workflow.Schedule{ID: "often", Workflow: "tick", Cron: "@every 1s", Paused: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.UpdateSchedule(t.Context(), "often", workflow.ScheduleUpdate{Paused: &no}); err != nil {
		t.Fatal(err)
	}
	w.take("").append(completed("out"))
}
