package workflowd

import (
	"context"
	"time"

	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd/admission"
	"github.com/cayhq/cay/workflow"
)

// How old counts of other processes' runs may be.
const (
	freshCensus = time.Second
	censusWhile = 250 * time.Millisecond // how often the count is repeated while runs wait for it
	censusPage  = 1000
)

// limiter enforces the limits that a definition sets on one workflow's starts, or on one
// group's. The dispatcher's mu guards it.
type limiter struct {
	running  int // runs that have started and not ended, and runs about to start
	starting int // the runs of running that are about to start
	starts   admission.Window

	counted  time.Time // when running was last exact; zero if never
	counting bool
	ended    int // ends during the count
}

// limited reports whether a definition limits starts at all, and whether it limits
// groups.
func limited(d *workflow.DefinitionInfo) (all, groups bool) {
	return d.MaxRunning > 0 || d.Rate > 0, d.MaxRunningPerGroup > 0 || d.RatePerGroup > 0
}

// hold is why a start has to wait.
type hold int

const (
	free    hold = iota
	full         // until a run ends
	rated        // until a time
	unknown      // until runs have been counted
)

// check reports whether one more run may start; if not, it returns the reason and the
// longest wait, 0 if unknown.
func (l *limiter) check(most, rate int, period time.Duration, now time.Time, shared bool) (hold, time.Duration) {
	if most > 0 {
		if l.counted.IsZero() || shared && now.Sub(l.counted) > freshCensus {
			return unknown, 0
		}
		if l.running >= most {
			if shared {
				return unknown, 0 // other processes do not report the ends of their runs
			}
			return full, 0
		}
	}
	if wait := l.starts.Wait(rate, period, now); wait > 0 {
		return rated, wait
	}
	return free, 0
}

// census counts the running runs of a workflow, or of a group of it, for its limiter.
func (e *Engine) census(w *workflowQueue, group string, l *limiter) {
	n, err := e.countRunning(e.ctx, w.name, group)
	d := &e.dispatch
	d.mu.Lock()
	l.counting = false
	if err == nil {
		l.running = max(0, n-l.ended) + l.starting
		l.counted = time.Now()
	} else if e.ctx.Err() == nil {
		e.log.Warn("cannot count running runs, will try again", "workflow", w.name.workflow, "error", err)
	}
	full := w.def.MaxRunning > 0 && l == &w.limiter && l.running >= w.def.MaxRunning ||
		group != "" && w.def.MaxRunningPerGroup > 0 && l.running >= w.def.MaxRunningPerGroup
	if err != nil || e.owner != nil && full {
		d.wakeLocked(censusWhile)
		d.mu.Unlock()
		return
	}
	d.mu.Unlock()
	d.pump()
}

// countRunning counts the runs of a workflow and group that have started and not ended,
// in all processes.
func (e *Engine) countRunning(ctx context.Context, name workflowName, group string) (int, error) {
	if e.owner != nil {
		return e.owner.Running(ctx, name.project, name.workflow, group)
	}
	n, q := 0, history.Query{
		Project: name.project, Workflow: name.workflow, Statuses: []history.Status{history.Running}, Limit: censusPage,
	}
	for {
		page, err := e.store.Runs(ctx, q)
		if err != nil {
			return 0, err
		}
		for i := range page.Items {
			// The query with project "" selects all projects.
			if r := &page.Items[i]; r.Project == name.project && (group == "" || r.Group == group) {
				n++
			}
		}
		if page.Cursor == "" {
			return n, nil
		}
		q.Cursor = page.Cursor
	}
}
