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
	// maxWatches bounds the watches of a project's runs, maxAllWatches the watches of all
	// projects.
	maxWatches    = 64
	maxAllWatches = 1024
	// changesAhead bounds the changed runs that a watch has not reported yet.
	changesAhead = 1024
	// changesPace is the minimum time between two reports of a watch: each run is
	// reported at most five times a second. againPace is the minimum time between two
	// requests to read a list again.
	changesPace = 200 * time.Millisecond
	againPace   = time.Second
)

// errWatchClosed is returned by reads of a closed watch.
var errWatchClosed = cay.Errorf(cay.Canceled, "the watch is closed")

// feed reports changes of lists of runs to watches. Lanes call it after each commit;
// without watches these calls return at once.
type feed struct {
	count atomic.Int32 // number of watches

	mu      sync.Mutex                        // guards the fields below, and fields of watches that say so
	watches map[string]map[*runWatch]struct{} // by project
	closed  bool
}

func (f *feed) init() {
	f.watches = make(map[string]map[*runWatch]struct{})
}

// watched reports whether there is any watch.
func (f *feed) watched() bool { return f.count.Load() > 0 }

// moved is the set of a run's properties that have changed and that a query may select
// by.
type moved struct{ isNew, status, attributes bool }

// movedBy returns the properties that events have changed.
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

// eachLocked calls do for each watch of the runs of a project.
func (f *feed) eachLocked(project string, do func(w *runWatch)) {
	for w := range f.watches[project] {
		do(w)
	}
	if project != "" {
		for w := range f.watches[""] { // watches of all projects
			do(w)
		}
	}
}

// publish reports the committed changes of a run.
func (f *feed) publish(r *liveRun, events []history.Event) {
	row := r.log.Run
	f.changed(&row, movedBy(events))
	if r.hooks {
		f.hooks(row.Project)
	}
}

// unlist reports that an ended run was deleted. The run's lane reports it, so that the
// report comes after the lane's earlier commits.
func (e *Engine) unlist(r *history.Run) {
	if e.feed.watched() {
		e.laneOf(r.ID, r.Root).post(func() { e.feed.deleted(r.Project, r.ID) })
	}
}

// relist reports that an ended run has changed. The run's lane reports it, as in unlist.
func (e *Engine) relist(r *history.Run) {
	if e.feed.watched() {
		e.laneOf(r.ID, r.Root).post(func() { e.feed.changed(r, moved{}) })
	}
}

// changed reports that a run is new or has changed. r must not be written to any more.
func (f *feed) changed(r *history.Run, m moved) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.eachLocked(r.Project, func(w *runWatch) { w.offerLocked(r, m) })
}

// deleted reports that a run was deleted.
func (f *feed) deleted(project, id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.eachLocked(project, func(w *runWatch) { w.addLocked(history.Change{Type: history.Deleted, ID: id}) })
}

// hooks reports that the live hooks of a project have changed.
func (f *feed) hooks(project string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.eachLocked(project, func(w *runWatch) {
		w.hooks.asked = true
		w.wakeLocked()
	})
}

// schedules reports that schedules of a project, or of any project (""), have changed.
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

// miss reports that an unknown change may have happened.
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

// close ends all watches, and makes new ones fail.
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
