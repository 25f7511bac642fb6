package workflowd

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
)

// Bounds of feeds.
const (
	// maxWatches bounds who watches the runs of a project, maxAllWatches all of them.
	maxWatches    = 64
	maxAllWatches = 1024
	// changesAhead is how many runs a watch may not have reported the changes of.
	changesAhead = 1024
	// changesPace is the least time between what a watch reports at one time and the
	// next: of a run it reports at most five changes a second. againPace is that between
	// two that ask for a list to be read again.
	changesPace = 200 * time.Millisecond
	againPace   = time.Second
)

// errWatchClosed is what is read from a watch after it was closed.
var errWatchClosed = cay.Errorf(cay.Canceled, "the watch is closed")

// feed tells those who watch lists of runs how these change. Lanes call it when they
// have committed something. While nobody watches that is all they do.
type feed struct {
	count atomic.Int32 // of watches

	mu      sync.Mutex                        // guards what follows, and what watches say it guards
	watches map[string]map[*runWatch]struct{} // by project
	closed  bool
}

func (f *feed) init() {
	f.watches = make(map[string]map[*runWatch]struct{})
}

// watched reports whether anybody watches.
func (f *feed) watched() bool { return f.count.Load() > 0 }

// moved says what of a run has changed that a query may ask for.
type moved struct{ isNew, status, attributes bool }

// movedBy returns what events have changed of a run.
func movedBy(events []history.Event) (m moved) {
	for i := range events {
		switch events[i].Type {
		case history.RunCreated:
			m.isNew = true
		case history.RunStarted, history.RunCompleted, history.RunFailed, history.RunCancelled:
			m.status = true
		case history.AttrSet:
			m.attributes = true
		}
	}
	return m
}

// eachLocked calls do for those who watch the runs of a project.
func (f *feed) eachLocked(project string, do func(w *runWatch)) {
	for w := range f.watches[project] {
		do(w)
	}
	if project != "" {
		for w := range f.watches[""] { // they see all projects
			do(w)
		}
	}
}

// publish tells what was committed of a run.
func (f *feed) publish(r *liveRun, events []history.Event) {
	row := r.log.Run
	f.changed(&row, movedBy(events))
	if r.hooks {
		f.hooks(row.Project)
	}
}

// unlist has it told that an ended run is there no more: by its lane, so that it
// comes after what that has committed.
func (e *Engine) unlist(r *history.Run) {
	if e.feed.watched() {
		e.laneOf(r.ID, r.Root).post(func() { e.feed.deleted(r.Project, r.ID) })
	}
}

// relist has it told, in the same way, that an ended run is not what it was.
func (e *Engine) relist(r *history.Run) {
	if e.feed.watched() {
		e.laneOf(r.ID, r.Root).post(func() { e.feed.changed(r, moved{}) })
	}
}

// changed tells that a run is new, or not what it was. Nobody writes to r any more.
func (f *feed) changed(r *history.Run, m moved) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.eachLocked(r.Project, func(w *runWatch) { w.offerLocked(r, m) })
}

// deleted tells that a run is there no more.
func (f *feed) deleted(project, id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.eachLocked(project, func(w *runWatch) { w.addLocked(history.Change{Type: history.Deleted, ID: id}) })
}

// hooks tells that the live hooks of a project are not those they were.
func (f *feed) hooks(project string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.eachLocked(project, func(w *runWatch) {
		w.hooks.asked = true
		w.wakeLocked()
	})
}

// schedules tells that schedules of a project, or of any (""), are not what they were.
func (f *feed) schedules(project string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	tell := func(w *runWatch) {
		w.schedules.asked = true
		w.wakeLocked()
	}
	if project != "" {
		f.eachLocked(project, tell)
		return
	}
	for _, watches := range f.watches {
		for w := range watches {
			tell(w)
		}
	}
}

// miss tells that something has changed that is not known.
func (f *feed) miss() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, watches := range f.watches {
		for w := range watches {
			w.missLocked()
		}
	}
}

func (f *feed) add(w *runWatch) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return errClosed
	}
	if len(f.watches[w.query.Project]) >= maxWatches || f.count.Load() >= maxAllWatches {
		return cay.Errorf(cay.QuotaExceeded, "%d watch the runs of the project already", len(f.watches[w.query.Project])).WithHint("close some")
	}
	if f.watches[w.query.Project] == nil {
		f.watches[w.query.Project] = make(map[*runWatch]struct{})
	}
	f.watches[w.query.Project][w] = struct{}{}
	f.count.Add(1)
	return nil
}

// close ends all watches, and those that are to come.
func (f *feed) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for _, watches := range f.watches {
		for w := range watches {
			w.endLocked(errClosed)
		}
	}
}
