package workflow

import "sync"

// stepQueue bounds the concurrent attempts of steps. Runs with waiting attempts take
// turns, one attempt each, so that a run with ten thousand steps does not block other
// runs.
type stepQueue struct {
	pool pool

	mu      sync.Mutex // guards the fields below
	free    int
	turns   []*liveRun // runs that have waiting attempts, in their fields queued
	stopped bool       // no more attempts begin
}

func newStepQueue(n int) *stepQueue { return &stepQueue{free: n} }

// push executes an attempt, now or when its turn comes.
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

// run implements task: it executes an attempt, and then waiting ones.
func (t *attempt) run() {
	q := t.live.a.w.steps
	defer func() {
		if t != nil { // the step has ended this goroutine: the next attempt gets another
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

// next returns the attempt whose turn has come, nil if no attempt waits.
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

// forget removes the waiting attempts of a run.
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

// close keeps further attempts from beginning. q.pool.all is done when the running
// attempts have ended.
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
