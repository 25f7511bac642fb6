package workflowd

import (
	"context"
	"slices"
	"time"

	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/workflow"
)

// runWatch is somebody's interest in a list of runs. It has the runs as they were
// when they changed, so that nothing is read for it.
type runWatch struct {
	feed  *feed
	query history.Query
	ready bool          // has been told so; ReadChanges's alone
	wake  chan struct{} // has room for one

	// The feed's mu guards what follows.
	queue     []history.Change // in the order of their first changes
	place     map[string]int   // in queue, by run
	next      time.Time        // queue is not reported sooner
	missed    again
	hooks     again
	schedules again
	ended     error
}

var _ workflow.ChangeReader = (*runWatch)(nil)

// again is a change that asks for a list to be read again.
type again struct {
	asked bool
	next  time.Time // it is not reported sooner
}

// take reports whether the change is to be reported now. If that is to be later, it
// brings wake forward to then.
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

// bringForward makes wake t if that is earlier. Zero is never.
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

// selects reports whether a run is one that the query selects as long as its status
// and its attributes fit, and whether they do.
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
	// What has ended stays as it ended.
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

// addLocked has a change be reported, instead of an earlier one of the run that was
// not yet.
func (w *runWatch) addLocked(c history.Change) {
	if w.missed.asked || w.ended != nil {
		return // the list is read after this
	}
	if at, ok := w.place[c.ID]; ok {
		w.queue[at] = c
		return // and who reads knows that there is something
	}
	if len(w.queue) >= changesAhead {
		w.missLocked()
		return
	}
	w.place[c.ID] = len(w.queue)
	w.queue = append(w.queue, c)
	w.wakeLocked()
}

// missLocked has the reader look into the lists: nothing else needs to be reported.
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

// endLocked gives up the watch's place. Ending twice is fine.
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

// take returns what is to be reported now, or when to look again if nobody wakes;
// zero is never.
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

// await returns when there may be something to report, or the time has come; zero
// never does.
func (w *runWatch) await(ctx context.Context, until time.Time) error {
	var due <-chan time.Time
	if !until.IsZero() {
		t := time.NewTimer(time.Until(until))
		defer t.Stop()
		due = t.C
	}
	select {
	case <-ctx.Done():
		return contextError(ctx)
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
