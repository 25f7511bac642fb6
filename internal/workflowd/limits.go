package workflowd

import (
	"context"
	"time"

	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/workflow"
)

// Ages of what is known about how many runs other processes run.
const (
	freshCensus = time.Second
	censusWhile = 250 * time.Millisecond // how often it is looked up while runs wait for it
	censusPage  = 1000
)

// limiter holds starts of one workflow, or of one group of it, to what its
// definition allows. The dispatcher's mu guards it.
type limiter struct {
	running  int // runs that have started and not ended, and those about to start
	starting int // of them, about to start
	starts   window

	counted  time.Time // when running was last right; zero if never
	counting bool
	ended    int // while it is being counted
}

// window remembers the starts of the last period.
type window struct {
	at    []time.Time // a ring
	first int
}

// wait returns how long until one more may start.
func (w *window) wait(rate int, period time.Duration, now time.Time) time.Duration {
	if rate <= 0 || len(w.at) < rate {
		return 0
	}
	// The start that has to be out of the period for another to fit in.
	oldest := w.at[(w.first+len(w.at)-rate)%len(w.at)]
	return max(0, oldest.Add(period).Sub(now))
}

// add notes a start; no more than rate are remembered.
func (w *window) add(rate int, now time.Time) {
	if rate <= 0 {
		return
	}
	if len(w.at) != rate && w.first != 0 {
		w.at, w.first = append(append([]time.Time(nil), w.at[w.first:]...), w.at[:w.first]...), 0
	}
	if len(w.at) < rate {
		w.at = append(w.at, now)
		return
	}
	if len(w.at) > rate {
		w.at = append([]time.Time(nil), w.at[len(w.at)-rate:]...)
	}
	w.at[w.first] = now
	w.first = (w.first + 1) % len(w.at)
}

// limited reports whether a definition limits starts at all, and whether by group.
func limited(d *workflow.DefinitionInfo) (all, groups bool) {
	return d.MaxRunning > 0 || d.Rate > 0, d.MaxRunningPerGroup > 0 || d.RatePerGroup > 0
}

// Why a start has to wait.
type hold int

const (
	free    hold = iota
	full         // until a run ends
	rated        // for a time
	unknown      // until runs were counted
)

// check says whether one more may start, and if not for how long at most it has
// to wait, if that is known.
func (l *limiter) check(most, rate int, period time.Duration, now time.Time, shared bool) (hold, time.Duration) {
	if most > 0 {
		if l.counted.IsZero() || shared && now.Sub(l.counted) > freshCensus {
			return unknown, 0
		}
		if l.running >= most {
			if shared {
				return unknown, 0 // runs of others end, and nobody says so
			}
			return full, 0
		}
	}
	if wait := l.starts.wait(rate, period, now); wait > 0 {
		return rated, wait
	}
	return free, 0
}

// census counts the running runs of a workflow, or a group of it, for its limiter.
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

// countRunning counts the runs of a workflow and group that have started and not
// ended, over all processes.
func (e *Engine) countRunning(ctx context.Context, name line, group string) (int, error) {
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
			// A project of "" selects all.
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
