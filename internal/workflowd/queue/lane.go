package queue

import (
	"container/heap"
	"fmt"
	"math"
	"slices"
	"time"
)

const (
	// window is how far ahead messages are loaded, and loadLead how long before they are due.
	window   = time.Hour
	loadLead = time.Minute
)

type laneKey struct{ project, deployment string }

// lane is one deployment in memory: its app and its next messages. Queue.mu guards it.
type lane struct {
	q   *Queue
	key laneKey
	dep Deployment

	items map[string]*item // messages in memory, by id
	soon  itemHeap         // those that are not due yet
	ready rounds           // those that are
	next  int64            // no message that is not in memory is due before

	loading bool  // it is being loaded, or in line for that
	loadAt  int64 // not loaded before: that has failed
	loads   int   // times that it failed

	inFlight int
	process  int // counts the processes of the app that have registered

	held    bool // no app answers
	probing bool // the one message that is tried is under way
	probeAt int64
	probes  int

	ringed bool
	at     int64 // when something is to be done; its place in Queue.clock
	index  int   // in Queue.clock; -1: it is not there
}

// item is a message in memory.
type item struct {
	id, run string
	due     int64
	size    int
	receipt string // of a lease of which it is not known whether it was stored
	state   itemState
	index   int // in lane.soon
}

type itemState int

const (
	itemSoon itemState = iota
	itemReady
	itemInFlight
	itemGone // dropped while it was ready
)

func (it *item) waiting() bool { return it.state == itemSoon || it.state == itemReady }

// rounds are items that are due: those of each run in the order in which they became
// due, the runs in turn.
type rounds struct {
	runs map[string]*round
	turn []*round
	n    int // without those that are gone
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

// pop returns the next item; nil if there is none.
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

// laneLocked returns the lane of a deployment. One that is new has no address: it will
// register, or has only messages.
func (q *Queue) laneLocked(project, deployment string) *lane {
	key := laneKey{project, deployment}
	l := q.lanes[key]
	if l == nil {
		l = &lane{
			q: q, key: key, dep: Deployment{Project: project, ID: deployment},
			items: make(map[string]*item), next: math.MaxInt64, index: -1, at: math.MaxInt64,
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

// meetLocked takes up the row of the deployment.
func (l *lane) meetLocked(d Deployment) {
	l.dep = d
	l.held = d.URL != "" && d.Error != ""
}

// whyLocked is why the lane's messages are held, for people; "" if they are not.
func (l *lane) whyLocked() string {
	switch {
	case l.dep.URL == "":
		return fmt.Sprintf("no app has registered for deployment %s", l.key.deployment)
	case l.held:
		return l.dep.Error
	}
	return ""
}

// countLocked is how many messages wait in memory.
func (l *lane) countLocked() int { return len(l.soon) + l.ready.n }

// addLocked takes up a message that is stored, or notes that it is there.
func (l *lane) addLocked(e Entry) {
	it := l.items[e.ID]
	switch {
	case it == nil:
	case it.waiting() && e.Due < it.due:
		// Never later: e may be older than the item. The lease decides.
		l.dropLocked(it)
	default:
		return
	}
	now := l.q.now()
	if e.Due > now+window.Milliseconds() || l.countLocked() >= l.q.cfg.Loaded {
		l.next = min(l.next, e.Due)
		l.q.tickLocked(l)
		return
	}
	l.putLocked(&item{id: e.ID, run: e.Run, due: e.Due, size: e.Size}, now)
}

// putLocked has an item wait, or be delivered.
func (l *lane) putLocked(it *item, now int64) {
	l.items[it.id] = it
	if it.due > now {
		it.state = itemSoon
		heap.Push(&l.soon, it)
	} else {
		l.ready.push(it)
		l.q.readyLocked(l)
	}
	l.q.tickLocked(l)
}

// dropLocked forgets a message.
func (l *lane) dropLocked(it *item) {
	switch it.state {
	case itemSoon:
		heap.Remove(&l.soon, it.index)
	case itemReady:
		l.ready.n--
	}
	it.state = itemGone
	delete(l.items, it.id)
}

// wantsLoadLocked reports whether messages are to be loaded, and when.
func (l *lane) wantsLoadLocked() (at int64, ok bool) {
	if l.loading || l.next == math.MaxInt64 || l.countLocked() > l.q.cfg.Loaded/2 {
		return 0, false
	}
	return max(l.next-loadLead.Milliseconds(), l.loadAt), true
}

// servesLocked reports whether a message of the lane can be delivered now.
func (l *lane) servesLocked(now int64) bool {
	if l.ready.n == 0 || l.dep.URL == "" || l.inFlight >= l.q.cfg.InFlight {
		return false
	}
	return !l.held || !l.probing && now >= l.probeAt
}

// readyLocked puts a lane in line if it has something to deliver.
func (q *Queue) readyLocked(l *lane) {
	if !l.ringed && l.servesLocked(q.now()) {
		l.ringed = true
		q.ring = append(q.ring, l)
	}
}

// tickLocked sets when something is to be done for a lane.
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

// advanceLocked does what is to be done for a lane now.
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

// load reads messages that are due soon, one lane after the other.
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
	before := l.next
	l.next = math.MaxInt64 // what is stored from here on lowers it
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
		l.next = min(l.next, before)
		l.loadAt = q.now() + doubled(firstProbe, l.loads, lastProbe).Milliseconds()
		l.loads++
	} else {
		l.next = min(l.next, rest)
		l.loads, l.loadAt = 0, 0
		for _, e := range entries {
			l.addLocked(e)
		}
	}
	q.tickLocked(l)
}

// doubled is first, doubled n times, at most most.
func doubled(first time.Duration, n int, most time.Duration) time.Duration {
	if n > 20 {
		return most
	}
	return min(first<<n, most)
}
