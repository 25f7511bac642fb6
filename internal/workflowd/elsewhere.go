package workflowd

import (
	"sync"

	"github.com/cayhq/cay"
)

// Watches of lists in this process must also report changes that other processes make to
// runs in the shared database. Notices name the changed runs, not the changes, so the
// engine reads the runs, a few at a time. If too many runs have changed, watches are told
// that they missed changes.

// learnAhead is how many runs are read for the watches at a time; the next batch is read
// changesPace later.
const learnAhead = 64

type elsewhere struct {
	wake chan struct{} // holds a token when the fields below have changed

	mu   sync.Mutex // guards the fields below
	runs map[string]struct{}
	all  bool // too many runs to name them
}

func (o *elsewhere) init() {
	o.wake = make(chan struct{}, 1)
	o.runs = make(map[string]struct{})
}

// changedElsewhere wakes the followers of a run, or of all runs (""), to read the store,
// and the watches of lists.
func (e *Engine) changedElsewhere(run string) {
	e.hub.changed(run)
	if !e.feed.watched() {
		return
	}
	o := &e.elsewhere
	o.mu.Lock()
	if run == "" || len(o.runs) >= learnAhead {
		o.all = true
	} else {
		o.runs[run] = struct{}{}
	}
	o.mu.Unlock()
	token(o.wake)
}

// learnLoop passes changes by other processes to the watches, until the engine ends.
func (e *Engine) learnLoop() {
	for {
		select {
		case <-e.ctx.Done():
			return
		case <-e.elsewhere.wake:
		}
		e.learn()
		if !e.sleep(changesPace) {
			return
		}
	}
}

func (e *Engine) learn() {
	o := &e.elsewhere
	o.mu.Lock()
	runs, all := o.runs, o.all
	o.runs, o.all = make(map[string]struct{}), false
	o.mu.Unlock()
	if all {
		e.feed.miss()
		return
	}
	for id := range runs {
		r, err := e.store.Run(e.ctx, id)
		switch {
		case cay.CodeOf(err) == cay.NotFound:
			e.feed.miss() // the project of a deleted run is unknown
		case err != nil:
			e.feed.miss()
			return // readers of the lists get the error of the database themselves
		default:
			// Any field may have changed since the run was last read.
			e.feed.changed(r, moved{status: true, attributes: true})
			e.feed.hooks(r.Project)
		}
	}
}
