package queue

import (
	"cmp"
	"container/heap"
	"fmt"
	"math"
	"slices"
	"time"
)

const (
	// window is how far ahead messages are loaded, and loadLead how long before they are
	// due.
	window   = time.Hour
	loadLead = time.Minute
)

type laneKey struct{ project, deployment string }

// lane is one deployment in memory: its app and its next messages. Queue.mu guards it.
type lane struct {
	q   *Queue
	key laneKey
	dep Deployment
	// changed is Queue.changes after the last change of dep.
	changed int

	items map[string]*item // messages in memory, by id
	soon  itemHeap         // messages that are not due yet
	ready levels           // due messages
	outside

	loading bool  // the lane is being loaded, or waits for that
	loadAt  int64 // not loaded before this time: the last load has failed
	loads   int   // number of failed loads
	reads   int   // number of loads that have begun; see item.after

	inFlight int
	process  int // counts the registered processes of the app
	// before are earlier addresses that still accepted connections when they were
	// replaced, the newest last.
	before []Deployment

	held    bool // no app answers
	probing bool // the probe is running
	probeAt int64
	probes  int

	ringed bool
	at     int64 // when the lane needs attention; its key in Queue.clock
	index  int   // index in Queue.clock; -1: not there
}

// outside is when messages are due that are not in memory, at the earliest.
type outside struct {
	next   int64 // of all
	urgent int64 // of those with a priority above 0
}

// item is a message in memory.
type item struct {
	id, run  string
	due      int64
	size     int
	priority int
	receipt  string // receipt of a lease that may or may not have been stored
	state    itemState
	index    int // index in lane.soon
	after    int // lane.reads when it was put there: what an earlier load read is older
}

// entry returns the item's message with another due time.
func (it *item) entry(due int64) Entry {
	return Entry{ID: it.id, Run: it.run, Size: it.size, Due: due, Priority: it.priority}
}

type itemState int

const (
	itemSoon itemState = iota
	itemReady
	itemInFlight
	itemGone // dropped while it was in lane.ready
)

func (it *item) waiting() bool { return it.state == itemSoon || it.state == itemReady }

// levels are the due messages by priority.
type levels struct {
	by     map[int]*rounds // none is empty
	n      int             // without dropped items
	urgent int             // of these, the ones with a priority above 0
}

func (v *levels) push(it *item) {
	if v.by == nil {
		v.by = make(map[int]*rounds)
	}
	r := v.by[it.priority]
	if r == nil {
		r = new(rounds)
		v.by[it.priority] = r
	}
	r.push(it)
	v.count(it, 1)
}

func (v *levels) count(it *item, by int) {
	v.n += by
	if it.priority > 0 {
		v.urgent += by
	}
}

// pop returns the next item of the highest level, nil if there is none.
func (v *levels) pop() *item {
	if v.n == 0 {
		return nil
	}
	highest := -1
	for priority := range v.by {
		highest = max(highest, priority)
	}
	it := v.by[highest].pop()
	v.removed(it)
	return it
}

// drop forgets an item, which stays in its round.
func (v *levels) drop(it *item) {
	v.by[it.priority].n--
	v.removed(it)
}

func (v *levels) removed(it *item) {
	v.count(it, -1)
	if v.by[it.priority].n == 0 {
		delete(v.by, it.priority)
	}
}

// last returns the item that is to be delivered last, nil if there is none.
func (v *levels) last() *item {
	if v.n == 0 {
		return nil
	}
	lowest := MaxPriority
	for priority := range v.by {
		lowest = min(lowest, priority)
	}
	return v.by[lowest].last()
}

// rounds are the due messages of a level: in the order in which they became due within a
// run, and taking turns among runs.
type rounds struct {
	runs map[string]*round
	turn []*round
	n    int // without dropped items
}

type round struct {
	run   string
	items []*item
}

func (r *rounds) push(it *item) {
	if r.runs == nil {
		r.runs = make(map[string]*round)
	}
	b := r.runs[it.run]
	if b == nil {
		b = &round{run: it.run}
		r.runs[it.run] = b
		r.turn = append(r.turn, b)
	}
	b.items = append(b.items, it)
	it.state = itemReady
	r.n++
}

// pop returns the next item, nil if there is none.
func (r *rounds) pop() *item {
	for len(r.turn) > 0 {
		b := r.turn[0]
		r.turn[0] = nil
		r.turn = r.turn[1:]
		it := b.items[0]
		b.items[0] = nil
		if b.items = b.items[1:]; len(b.items) > 0 {
			r.turn = append(r.turn, b)
		} else {
			delete(r.runs, b.run)
		}
		if it.state != itemGone {
			r.n--
			return it
		}
	}
	return nil
}

// last returns the last item of the last run in turn, and removes dropped items behind it.
func (r *rounds) last() *item {
	for len(r.turn) > 0 {
		b := r.turn[len(r.turn)-1]
		for n := len(b.items); n > 0; n-- {
			if it := b.items[n-1]; it.state != itemGone {
				return it
			}
			b.items[n-1] = nil
			b.items = b.items[:n-1]
		}
		r.turn[len(r.turn)-1] = nil
		r.turn = r.turn[:len(r.turn)-1]
		delete(r.runs, b.run)
	}
	return nil
}

type itemHeap []*item

func (h itemHeap) Len() int           { return len(h) }
func (h itemHeap) Less(i, j int) bool { return h[i].due < h[j].due }
func (h itemHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *itemHeap) Push(x any) {
	it := x.(*item)
	it.index = len(*h)
	*h = append(*h, it)
}
func (h *itemHeap) Pop() any {
	old := *h
	it := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return it
}

type laneHeap []*lane

func (h laneHeap) Len() int           { return len(h) }
func (h laneHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h laneHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *laneHeap) Push(x any) {
	l := x.(*lane)
	l.index = len(*h)
	*h = append(*h, l)
}
func (h *laneHeap) Pop() any {
	old := *h
	l := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	l.index = -1
	return l
}

// laneLocked returns the lane of a deployment. A new lane has no address: its deployment
// will register, or only has messages.
func (q *Queue) laneLocked(project, deployment string) *lane {
	key := laneKey{project, deployment}
	l := q.lanes[key]
	if l == nil {
		l = &lane{
			q: q, key: key, dep: Deployment{Project: project, ID: deployment},
			items: make(map[string]*item), outside: outside{math.MaxInt64, math.MaxInt64}, index: -1, at: math.MaxInt64,
		}
		q.lanes[key] = l
	}
	return l
}

func (q *Queue) forgetLocked(l *lane) {
	if l.index >= 0 {
		heap.Remove(&q.clock, l.index)
	}
	q.ring = slices.DeleteFunc(q.ring, func(o *lane) bool { return o == l })
	delete(q.lanes, l.key)
}

// meetLocked sets the lane's row of the deployment.
func (l *lane) meetLocked(d Deployment) {
	l.dep = d
	l.held = d.URL != "" && d.Error != ""
}

// whyLocked returns why the lane's messages are held, for people; "" if they are not
// held.
func (l *lane) whyLocked() string {
	switch {
	case l.dep.URL == "":
		return fmt.Sprintf("no app has registered for deployment %s", l.key.deployment)
	case l.held:
		return l.dep.Error
	}
	return ""
}

// countLocked returns the number of waiting messages in memory.
func (l *lane) countLocked() int { return len(l.soon) + l.ready.n }

// addLocked adds a stored message to memory, or records that there is one.
func (l *lane) addLocked(e Entry) {
	it := l.items[e.ID]
	switch {
	case it == nil:
	case it.waiting() && (e.Due < it.due || e.Priority != it.priority):
		// The due time is never moved back, because e may be older than the item. The
		// lease decides.
		e.Due = min(e.Due, it.due)
		l.dropLocked(it)
	default:
		return
	}
	now := l.q.now()
	if e.Due > now+window.Milliseconds() || l.countLocked() >= l.q.cfg.Loaded && !l.evictLocked(&e, now) {
		l.outsideLocked(e.Due, e.Priority > 0)
		l.q.tickLocked(l)
		return
	}
	l.putLocked(&item{id: e.ID, run: e.Run, due: e.Due, size: e.Size, priority: e.Priority}, now)
}

// outsideLocked records that a message is not in memory; urgent tells whether it has a
// priority above 0.
func (l *lane) outsideLocked(due int64, urgent bool) {
	l.next = min(l.next, due)
	if urgent {
		l.urgent = min(l.urgent, due)
	}
}

// anyLocked records that the store may have any messages.
func (l *lane) anyLocked(now int64) { l.outsideLocked(now, true) }

// lastLocked returns the message in memory that is due last; nil if all are due now.
func (l *lane) lastLocked() *item {
	if len(l.soon) == 0 {
		return nil
	}
	return slices.MaxFunc(l.soon, func(a, b *item) int { return cmp.Compare(a.due, b.due) })
}

// soon reports whether a message is due within the time for loading.
func soon(due, now int64) bool { return due <= now+loadLead.Milliseconds() }

// evictLocked makes room in memory for a message: it removes the message that is due last,
// if that is later, so that messages that wait for their time take no room from those that
// are due before them; or else a due message of a lower level, if the message is due soon.
// A message of a higher level that is due soon stays.
func (l *lane) evictLocked(e *Entry, now int64) bool {
	last := l.lastLocked()
	if last == nil || last.due <= e.Due || last.priority > e.Priority && soon(last.due, now) {
		last = l.ready.last()
		if last == nil || last.priority >= e.Priority || !soon(e.Due, now) {
			return false
		}
	}
	l.dropLocked(last)
	l.outsideLocked(last.due, last.priority > 0)
	return true
}

// putLocked makes an item wait or ready, by its due time.
func (l *lane) putLocked(it *item, now int64) {
	l.items[it.id] = it
	it.after = l.reads
	if it.due > now {
		it.state = itemSoon
		heap.Push(&l.soon, it)
	} else {
		l.ready.push(it)
		l.q.readyLocked(l)
	}
	l.q.tickLocked(l)
}

// dropLocked removes a message from memory.
func (l *lane) dropLocked(it *item) {
	switch it.state {
	case itemSoon:
		heap.Remove(&l.soon, it.index)
	case itemReady:
		l.ready.drop(it)
	}
	it.state = itemGone
	delete(l.items, it.id)
}

// wantsLoadLocked reports whether the lane loads messages, and when: if memory has room, or
// holds messages that have to make room for the stored ones.
func (l *lane) wantsLoadLocked() (at int64, ok bool) {
	if l.loading || l.next == math.MaxInt64 {
		return 0, false
	}
	most, last := l.q.cfg.Loaded/2, int64(0)
	if l.countLocked() <= most {
		last = math.MaxInt64
	} else if it := l.lastLocked(); it != nil && (it.priority == 0 || !soon(it.due, l.q.now())) {
		last = it.due
	}
	next := l.next
	if l.ready.n > most || last <= next {
		// The level counts, if it is not full.
		next = l.urgent
		if next == math.MaxInt64 || l.ready.urgent > most || last <= next && l.ready.n == l.ready.urgent {
			return 0, false
		}
	}
	return max(next-loadLead.Milliseconds(), l.loadAt), true
}

// servesLocked reports whether a message of the lane can be delivered now.
func (l *lane) servesLocked(now int64) bool {
	if l.ready.n == 0 || l.dep.URL == "" || l.inFlight >= l.q.cfg.InFlight {
		return false
	}
	return !l.held || !l.probing && now >= l.probeAt
}

// readyLocked puts a lane in line if it has a message to deliver.
func (q *Queue) readyLocked(l *lane) {
	if !l.ringed && l.servesLocked(q.now()) {
		l.ringed = true
		q.ring = append(q.ring, l)
	}
}

// tickLocked sets when a lane needs attention.
func (q *Queue) tickLocked(l *lane) {
	at := int64(math.MaxInt64)
	if len(l.soon) > 0 {
		at = l.soon[0].due
	}
	if load, ok := l.wantsLoadLocked(); ok {
		at = min(at, load)
	}
	if l.held && !l.probing && !l.ringed && l.ready.n > 0 && l.dep.URL != "" && l.inFlight < q.cfg.InFlight {
		at = min(at, l.probeAt)
	}
	l.at = at
	switch {
	case at == math.MaxInt64 && l.index >= 0:
		heap.Remove(&q.clock, l.index)
	case at == math.MaxInt64:
	case l.index >= 0:
		heap.Fix(&q.clock, l.index)
	default:
		heap.Push(&q.clock, l)
	}
}

// advanceLocked does the due work of a lane.
func (q *Queue) advanceLocked(l *lane, now int64) {
	for len(l.soon) > 0 && l.soon[0].due <= now {
		l.ready.push(heap.Pop(&l.soon).(*item))
	}
	if at, ok := l.wantsLoadLocked(); ok && at <= now {
		l.loading = true
		q.toLoad = append(q.toLoad, l)
		select {
		case q.loadable <- struct{}{}:
		default:
		}
	}
	q.readyLocked(l)
	q.tickLocked(l)
}

// load reads messages that are due soon, lane by lane.
func (q *Queue) load() {
	for {
		select {
		case <-q.ctx.Done():
			return
		case <-q.loadable:
		}
		for l := q.nextLoad(); l != nil && q.ctx.Err() == nil; l = q.nextLoad() {
			q.loadLane(l)
			q.poke()
		}
	}
}

func (q *Queue) nextLoad() *lane {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.toLoad) == 0 {
		return nil
	}
	l := q.toLoad[0]
	q.toLoad = q.toLoad[1:]
	return l
}

func (q *Queue) loadLane(l *lane) {
	now := q.now()
	q.mu.Lock()
	before := l.outside
	l.outside = outside{math.MaxInt64, math.MaxInt64} // messages stored from here on lower it
	l.reads++
	limit := q.cfg.Loaded + len(l.items)
	q.mu.Unlock()
	entries, rest, err := q.store.Pending(q.ctx, l.key.project, l.key.deployment, now+window.Milliseconds(), limit)
	if err != nil && q.ctx.Err() == nil {
		q.log.Warn("cannot read messages, will try again", "deployment", l.key.deployment, "error", err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	l.loading = false
	if err != nil {
		l.next, l.urgent = min(l.next, before.next), min(l.urgent, before.urgent)
		l.loadAt = q.now() + doubled(firstProbe, l.loads, lastProbe).Milliseconds()
		l.loads++
	} else {
		l.next, l.urgent = min(l.next, rest.Urgent, rest.Other), min(l.urgent, rest.Urgent)
		l.loads, l.loadAt = 0, 0
		for _, e := range entries {
			// The read may not have seen a change whose entry is in memory already.
			if it := l.items[e.ID]; it == nil || it.after < l.reads {
				l.addLocked(e)
			}
		}
	}
	q.tickLocked(l)
}

// doubled returns first, doubled n times, but not more than most.
func doubled(first time.Duration, n int, most time.Duration) time.Duration {
	if n > 20 {
		return most
	}
	return min(first<<n, most)
}
