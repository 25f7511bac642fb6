package workflowd

import (
	"context"
	"slices"
	"time"

	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/workflow"
)

// runWatch is a watch of a list of runs. It queues copies of the changed runs, so that a
// read of changes does not read the store.
type runWatch struct {
	feed  *feed
	query history.Query
	ready bool          // Ready was reported; only ReadChanges uses it
	wake  chan struct{} // has capacity 1

	// The feed's mu guards the fields below.
	queue     []history.Change // in the order of the runs' first changes
	place     map[string]int   // index in queue, by run
	next      time.Time        // queue is not reported earlier
	missed    again
	hooks     again
	schedules again
	ended     error
}

var _ workflow.ChangeReader = (*runWatch)(nil)

// again is a pending change that asks the reader to read a list again.
type again struct {
	asked bool
	next  time.Time // it is not reported earlier
}

// take reports whether the change is due now. If it is due later, take moves wake forward
// to that time.
func (a *again) take(now time.Time, wake *time.Time) bool {
	if !a.asked {
		return false
	}
	if now.Before(a.next) {
		bringForward(wake, a.next)
		return false
	}
	a.asked, a.next = false, now.Add(againPace)
	return true
}

// bringForward sets wake to t if t is earlier. Zero means never.
func bringForward(wake *time.Time, t time.Time) {
	if wake.IsZero() || t.Before(*wake) {
		*wake = t
	}
}

func newWatch(f *feed, q history.Query) *runWatch {
	return &runWatch{feed: f, query: q, wake: make(chan struct{}, 1), place: make(map[string]int)}
}

// WatchRuns implements workflow.Backend.
func (b *backend) WatchRuns(_ context.Context, q workflow.Query) (workflow.ChangeReader, error) {
	w := newWatch(&b.e.feed, b.query(q))
	if err := w.feed.add(w); err != nil {
		return nil, err
	}
	return w, nil
}

// selects reports whether the query selects a run apart from its status and attributes
// (may), and whether it selects it with them (does).
func (w *runWatch) selects(r *history.Run) (may, does bool) {
	q := &w.query
	switch {
	case q.Workflow != "" && r.Workflow != q.Workflow,
		q.Key != "" && r.Key != q.Key,
		q.Parent != "" && r.Parent != q.Parent,
		q.Since != 0 && r.CreatedAt < q.Since,
		q.Until != 0 && r.CreatedAt >= q.Until:
		return false, false
	case len(q.Statuses) > 0 && !slices.Contains(q.Statuses, r.Status):
		return true, false
	}
	for _, name := range q.HasAttributes {
		if _, has := r.Attributes[name]; !has {
			return true, false
		}
	}
	for name, value := range q.Attributes {
		if got, has := r.Attributes[name]; !has || got != value {
			return true, false
		}
	}
	return true, true
}

// leaves reports whether a run that has moved may have been in the list before.
func (w *runWatch) leaves(m moved) bool {
	if m.isNew {
		return false
	}
	// A run that has ended keeps its status.
	lasts := !slices.Contains(w.query.Statuses, history.Pending) && !slices.Contains(w.query.Statuses, history.Running)
	return m.status && len(w.query.Statuses) > 0 && !lasts ||
		m.attributes && len(w.query.Attributes)+len(w.query.HasAttributes) > 0
}

func (w *runWatch) offerLocked(r *history.Run, m moved) {
	_, waits := w.place[r.ID]
	switch may, does := w.selects(r); {
	case does:
		w.addLocked(history.Change{Type: history.Changed, ID: r.ID, Run: r})
	case may && (waits || w.leaves(m)):
		w.addLocked(history.Change{Type: history.Deleted, ID: r.ID})
	}
}

// addLocked queues a change; it replaces an unreported change of the same run.
func (w *runWatch) addLocked(c history.Change) {
	if w.missed.asked || w.ended != nil {
		return // the reader reads the list after this
	}
	if at, ok := w.place[c.ID]; ok {
		w.queue[at] = c
		return // the reader is awake already
	}
	if len(w.queue) >= changesAhead {
		w.missLocked()
		return
	}
	w.place[c.ID] = len(w.queue)
	w.queue = append(w.queue, c)
	w.wakeLocked()
}

// missLocked makes the reader read the lists again: queued changes are not needed then.
func (w *runWatch) missLocked() {
	w.queue, w.missed.asked = nil, true
	w.hooks.asked, w.schedules.asked = false, false
	clear(w.place)
	w.wakeLocked()
}

func (w *runWatch) wakeLocked() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// endLocked ends the watch and frees its place. Ending twice is fine.
func (w *runWatch) endLocked(why error) {
	if w.ended != nil {
		return
	}
	w.ended, w.queue = why, nil
	f, project := w.feed, w.query.Project
	delete(f.watches[project], w)
	if len(f.watches[project]) == 0 {
		delete(f.watches, project)
	}
	f.count.Add(-1)
	w.wakeLocked()
}

// take returns the changes to report now, or the time of the next look; a zero time means
// never.
func (w *runWatch) take(now time.Time) (changes []history.Change, wake time.Time, err error) {
	w.feed.mu.Lock()
	defer w.feed.mu.Unlock()
	if w.ended != nil {
		return nil, wake, w.ended
	}
	if w.missed.take(now, &wake) {
		changes = append(changes, history.Change{Type: history.Missed})
	}
	if len(w.queue) > 0 {
		if now.Before(w.next) {
			bringForward(&wake, w.next)
		} else {
			changes = append(changes, w.queue...)
			w.queue, w.next = nil, now.Add(changesPace)
			clear(w.place)
		}
	}
	if w.hooks.take(now, &wake) {
		changes = append(changes, history.Change{Type: history.HooksChanged})
	}
	if w.schedules.take(now, &wake) {
		changes = append(changes, history.Change{Type: history.SchedulesChanged})
	}
	return changes, wake, nil
}

// ReadChanges implements workflow.ChangeReader.
func (w *runWatch) ReadChanges(ctx context.Context) ([]workflow.RunChange, error) {
	if !w.ready {
		w.ready = true
		return []workflow.RunChange{{Type: history.Ready}}, nil
	}
	for {
		changes, wake, err := w.take(time.Now())
		if err != nil || len(changes) > 0 {
			return changes, err
		}
		if err := w.await(ctx, wake); err != nil {
			return nil, err
		}
	}
}

// await waits until there may be changes to report, or until a time; a zero time means
// never.
func (w *runWatch) await(ctx context.Context, until time.Time) error {
	var due <-chan time.Time
	if !until.IsZero() {
		t := time.NewTimer(time.Until(until))
		defer t.Stop()
		due = t.C
	}
	select {
	case <-ctx.Done():
		return wire.ContextError(ctx)
	case <-w.wake:
	case <-due:
	}
	return nil
}

// Close implements workflow.ChangeReader.
func (w *runWatch) Close() error {
	w.feed.mu.Lock()
	defer w.feed.mu.Unlock()
	w.endLocked(errWatchClosed)
	return nil
}
