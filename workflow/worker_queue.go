package workflow

import "sync"

// stepQueue bounds the attempts of steps that are executed at one time. Those that
// wait go in turns, one of each run, so that a run with ten thousand steps does
// not keep others from going on.
type stepQueue struct {
	pool pool

	mu      sync.Mutex // guards what follows
	free    int
	turns   []*liveRun // that have waiting attempts; each has its queued field
	stopped bool       // nothing is begun any more
}

func newStepQueue(n int) *stepQueue { return &stepQueue{free: n} }

// push has an attempt executed, now or when it is its turn.
func (q *stepQueue) push(t *attempt) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.stopped:
	case q.free > 0:
		q.free--
		q.pool.start(t)
	default:
		if len(t.live.queued) == 0 {
			q.turns = append(q.turns, t.live)
		}
		t.live.queued = append(t.live.queued, t)
	}
}

// run implements task: it executes an attempt, and then others that wait.
func (t *attempt) run() {
	q := t.live.a.w.steps
	defer func() {
		if t != nil { // the step has ended its goroutine: what waits gets another
			if t = q.next(); t != nil {
				q.pool.start(t)
			}
		}
	}()
	for t != nil {
		t.execute()
		t = q.next()
	}
}

// next returns the attempt whose turn it is, nil if none waits.
func (q *stepQueue) next() *attempt {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.turns) == 0 || q.stopped {
		q.free++
		return nil
	}
	r := q.turns[0]
	q.turns[0] = nil
	q.turns = q.turns[1:]
	t := r.queued[0]
	r.queued[0] = nil
	r.queued = r.queued[1:]
	if len(r.queued) > 0 {
		q.turns = append(q.turns, r)
	} else {
		r.queued = nil
	}
	return t
}

// forget takes back what waits of a run.
func (q *stepQueue) forget(r *liveRun) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(r.queued) == 0 {
		return
	}
	r.queued = nil
	for i, other := range q.turns {
		if other == r {
			q.turns = append(q.turns[:i], q.turns[i+1:]...)
			return
		}
	}
}

// close keeps further attempts from beginning. q.pool.all is done when those that
// have begun have ended.
func (q *stepQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stopped = true
	q.pool.close()
	for _, r := range q.turns {
		r.queued = nil
	}
	q.turns = nil
}
