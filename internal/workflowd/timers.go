package workflowd

import (
	"container/heap"
	"slices"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
)

// Bounds of the timers in memory.
const (
	timerWindow = time.Hour
	maxTimers   = 100_000
	ringPage    = 1000
	// maxNap bounds how long a jump of the wall clock goes unnoticed.
	maxNap = 10 * time.Second
)

// timers wakes runs. It holds the timers that are due within the next hour; the others
// are in the store.
type timers struct {
	e    *Engine
	wake chan struct{}

	mu    sync.Mutex // guards the fields below
	heap  dueHeap
	until int64 // all timers due before this time are in heap
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

// add adds a timer that was just stored.
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

// len returns the number of timers in memory.
func (t *timers) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.heap)
}

// reload makes the loop read the timers of the next hour again, because runs were added.
func (t *timers) reload() {
	t.mu.Lock()
	t.until = 0
	t.mu.Unlock()
	t.poke()
}

// clear removes all timers.
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

// refill reads the timers of the next hour when half of the previous hour is over.
func (t *timers) refill() error {
	now := t.e.now()
	t.mu.Lock()
	enough := t.until-now > timerWindow.Milliseconds()/2 || (len(t.heap) > 0 && t.until > now && len(t.heap) > maxTimers/2)
	if enough {
		t.mu.Unlock()
		return nil
	}
	// Timers that are stored from here on are also added to the heap.
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

// fire fires the due timers, and returns how long to wait for the next.
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

// ringAll rings timers. In a shared database it rings only the timers of runs that this
// process still owns.
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

// ring asks a run's lane to carry out a timer.
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

// missed puts back a timer that could not be fired, if it is still needed.
func (e *Engine) missed(d Due, err error) {
	switch {
	case err == errElsewhere, cay.CodeOf(err) == cay.NotFound, cay.CodeOf(err) == cay.Conflict:
		return // the run no longer exists
	}
	d.At = e.now() + firstRetry.Milliseconds()
	e.timers.add(d)
}

// ring carries out a timer. Timers may ring early, late, twice, or in vain.
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
