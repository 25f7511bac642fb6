package workflowd

import (
	"sync"

	"github.com/cayhq/cay"
)

// What other processes that share the database have done to runs, for those who
// watch lists here. They say which runs, and not what: that is read, of a few at a
// time. If there are more, watches are told that they have missed something.

// learnAhead is how many runs are read for the watches at one time; changesPace later
// the next are.
const learnAhead = 64

type elsewhere struct {
	wake chan struct{} // has a token when there is something below

	mu   sync.Mutex // guards what follows
	runs map[string]struct{}
	all  bool // more than runs
}

func (o *elsewhere) init() {
	o.wake = make(chan struct{}, 1)
	o.runs = make(map[string]struct{})
}

// changedElsewhere tells those who follow a run, or all ("" for any), that there is
// something in the store, and those who watch lists.
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

// learnLoop tells watches what others did, until the engine ends.
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
			e.feed.miss() // whose it was is not known any more
		case err != nil:
			e.feed.miss()
			return // who reads the lists is told that the database does not answer
		default:
			// It may have done anything since it was last seen.
			e.feed.changed(r, moved{status: true, attributes: true})
			e.feed.hooks(r.Project)
		}
	}
}
