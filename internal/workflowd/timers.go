package workflowd

import (
	"container/heap"
	"slices"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
)

// Bounds of what timers keep in memory.
const (
	timerWindow = time.Hour
	maxTimers   = 100_000
	ringPage    = 1000
	// maxNap bounds how long a jump of the wall clock goes unnoticed.
	maxNap = 10 * time.Second
)

// timers wakes runs. It knows those that are due within the next hour; the rest
// is in the store.
type timers struct {
	e    *Engine
	wake chan struct{}

	mu    sync.Mutex // guards what follows
	heap  dueHeap
	until int64 // all that are due before are in heap
}

type dueHeap []Due

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].At < h[j].At }
func (h dueHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *dueHeap) Push(x any)        { *h = append(*h, x.(Due)) }
func (h *dueHeap) Pop() any {
	old := *h
	d := old[len(old)-1]
	old[len(old)-1] = Due{}
	*h = old[:len(old)-1]
	return d
}

func (t *timers) init(e *Engine) {
	t.e = e
	t.wake = make(chan struct{}, 1)
}

// add notes a timer that was just stored.
func (t *timers) add(d Due) {
	t.mu.Lock()
	if d.At >= t.until {
		t.mu.Unlock()
		return
	}
	heap.Push(&t.heap, d)
	first := t.heap[0] == d
	t.mu.Unlock()
	if first {
		t.poke()
	}
}

// len is how many timers are in memory.
func (t *timers) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.heap)
}

// reload has the timers of the next hour be read again: there are new runs.
func (t *timers) reload() {
	t.mu.Lock()
	t.until = 0
	t.mu.Unlock()
	t.poke()
}

// clear forgets all timers.
func (t *timers) clear() {
	t.mu.Lock()
	t.heap, t.until = nil, 0
	t.mu.Unlock()
	t.poke()
}

func (t *timers) poke() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// loop fires timers until the engine ends.
func (t *timers) loop() {
	nap := time.NewTimer(0)
	defer nap.Stop()
	wait := firstRetry
	for {
		select {
		case <-t.e.ctx.Done():
			return
		case <-nap.C:
		case <-t.wake:
		}
		next := maxNap
		if err := t.refill(); err != nil {
			t.e.log.Warn("cannot read timers, will try again", "error", err)
			next, wait = wait, min(2*wait, lastRetry)
		} else {
			wait = firstRetry
			next = t.fire()
		}
		nap.Reset(next)
	}
}

// refill reads the timers of the next hour when half of the last one is over.
func (t *timers) refill() error {
	now := t.e.now()
	t.mu.Lock()
	enough := t.until-now > timerWindow.Milliseconds()/2 || (len(t.heap) > 0 && t.until > now && len(t.heap) > maxTimers/2)
	if enough {
		t.mu.Unlock()
		return nil
	}
	// What is stored from here on is added to the heap besides.
	until := now + timerWindow.Milliseconds()
	before := t.until
	t.until = until
	t.mu.Unlock()

	due, err := t.e.store.Due(t.e.ctx, time.UnixMilli(until), maxTimers)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		t.until = before
		return err
	}
	if len(due) == maxTimers {
		t.until = due[len(due)-1].At
	}
	have := make(map[Due]struct{}, len(due))
	merged := make(dueHeap, 0, len(due)+len(t.heap))
	for _, list := range [][]Due{due, t.heap} {
		for _, d := range list {
			if _, dup := have[d]; !dup && (d.At < t.until || len(due) == maxTimers && d.At == t.until) {
				have[d] = struct{}{}
				merged = append(merged, d)
			}
		}
	}
	t.heap = merged
	heap.Init(&t.heap)
	return nil
}

// fire wakes what is due, and returns how long until the next.
func (t *timers) fire() time.Duration {
	now := t.e.now()
	var due []Due
	t.mu.Lock()
	for len(t.heap) > 0 && t.heap[0].At <= now {
		due = append(due, heap.Pop(&t.heap).(Due))
	}
	next := maxNap
	if len(t.heap) > 0 {
		next = min(next, time.Duration(t.heap[0].At-now)*time.Millisecond)
	}
	t.mu.Unlock()
	t.e.ringAll(due, now)
	return next
}

// ringAll rings timers, those of runs that are this process's still.
func (e *Engine) ringAll(due []Due, now int64) {
	if e.owner != nil && len(due) > ringPage {
		for page := range slices.Chunk(due, ringPage) {
			e.ringAll(page, now)
		}
		return
	}
	if e.owner != nil && len(due) > 0 {
		ids := make([]string, 0, len(due))
		for _, d := range due {
			ids = append(ids, d.Run)
		}
		owned, err := e.owner.Take(e.ctx, ids)
		if err != nil {
			for _, d := range due {
				e.missed(d, err)
			}
			return
		}
		mine := make(map[string]bool, len(owned))
		for _, id := range owned {
			mine[id] = true
		}
		due = slices.DeleteFunc(due, func(d Due) bool { return !mine[d.Run] })
	}
	for _, d := range due {
		e.cfg.Metrics.TimerFired(time.Duration(now-d.At) * time.Millisecond)
		e.ring(d)
	}
}

// ring has a run's lane do what a timer is for.
func (e *Engine) ring(d Due) {
	l, err := e.route(e.ctx, d.Run)
	if err != nil {
		e.missed(d, err)
		return
	}
	o := &op{run: d.Run, owned: true, decide: func(r *liveRun, o *op) error { return l.ring(r, o, d) }}
	o.done = func(err error) {
		if err != nil {
			e.missed(d, err)
		}
	}
	if err := l.push(e.ctx, o); err != nil {
		e.missed(d, err)
	}
}

// missed puts a timer back that could not be fired, if there is still something
// to be done.
func (e *Engine) missed(d Due, err error) {
	switch {
	case err == errElsewhere, cay.CodeOf(err) == cay.NotFound, cay.CodeOf(err) == cay.Conflict:
		return // what it was for is gone
	}
	d.At = e.now() + firstRetry.Milliseconds()
	e.timers.add(d)
}

// ring does what a timer is for. Timers may ring early, late, twice, or in vain.
func (l *lane) ring(r *liveRun, o *op, d Due) error {
	now := l.e.now()
	row := &r.log.Run
	if row.Status.Terminal() {
		return nil
	}
	if d.ID == "" {
		if row.Status == history.Pending && row.NotBefore <= now {
			r.want = true
		}
		return nil
	}
	open, ok := r.log.Open(d.ID)
	if !ok {
		return nil
	}
	if open.Until > now {
		l.e.timers.add(Due{Run: r.id, ID: d.ID, At: open.Until})
		return nil
	}
	switch open.State {
	case history.WaitOpen:
		o.events = []history.Event{{Type: history.WaitCompleted, ID: d.ID}}
	case history.StepPending:
		r.want = r.session == nil && r.assign == nil
	}
	return nil
}
