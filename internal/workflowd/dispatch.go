package workflowd

import (
	"container/heap"
	"slices"
	"sync"
	"time"

	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/workflow"
)

// workflowName names the runs of one workflow of a project.
type workflowName struct{ project, workflow string }

// ticket is the place in line of a run that needs a worker, to start or to go on.
type ticket struct {
	run, root string
	workflow  workflowName
	group     string
	build     string
	priority  int
	created   int64
	number    uint64 // in order of arrival
	started   bool   // the run goes on: limits do not hold it up
	external  bool   // the run's runtime asks for no worker
	recovered bool
	// recoveries are the run's Recoveries; alone means that the run has its cell to
	// itself.
	recoveries int
	alone      bool
	granted    bool // a worker has room reserved for the run; see giveBack
	queued     time.Time
	index      int // index in its heap
}

// before reports whether t is served before o.
func (t *ticket) before(o *ticket) bool {
	if t.priority != o.priority {
		return t.priority > o.priority
	}
	if t.created != o.created {
		return t.created < o.created
	}
	return t.number < o.number
}

// tickets is a heap; the next ticket to serve comes first.
type tickets []*ticket

func (h tickets) Len() int           { return len(h) }
func (h tickets) Less(i, j int) bool { return h[i].before(h[j]) }
func (h tickets) Swap(i, j int)      { h[i], h[j] = h[j], h[i]; h[i].index, h[j].index = i, j }
func (h *tickets) Push(x any)        { t := x.(*ticket); t.index = len(*h); *h = append(*h, t) }
func (h *tickets) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return t
}

// dispatcher holds the workers and the line of runs that need one. Lanes may call every
// method; none blocks.
type dispatcher struct {
	e *Engine

	mu        sync.Mutex // guards the fields below
	workflows map[workflowName]*workflowQueue
	waiting   map[string]*ticket  // by run
	suspects  []*ticket           // the waiting tickets that are in no workflow's queue
	survived  map[string]*session // by run: the live worker that had the run; see suspects.go
	here      cell                // the cell of this process
	numbers   uint64
	timer     *time.Timer // pumps when a rate limit allows the next start
	timerAt   time.Time   // zero if timer is not set
	closed    bool
}

// workflowQueue is the line of the runs of one workflow.
type workflowQueue struct {
	name    workflowName
	def     workflow.DefinitionInfo // as the most recently attached worker declared it
	serves  []*session
	limiter limiter
	groups  map[string]*limiter
	builds  map[string]*buildQueue
	byGroup bool // starts are kept apart by group, because there are limits by group
}

// buildQueue holds the tickets pinned to one build, or to none.
type buildQueue struct {
	goOn   tickets
	groups map[string]*groupQueue
	open   groupHeap     // groups whose own limits let their first run start
	rated  []*groupQueue // groups that wait for a rate limit
}

// groupQueue holds the runs of one group that are to start.
type groupQueue struct {
	name    string
	tickets tickets
	index   int // index in open, -1 if not in open
	rated   bool
}

// groupHeap is ordered by the first ticket of each group.
type groupHeap []*groupQueue

func (h groupHeap) Len() int           { return len(h) }
func (h groupHeap) Less(i, j int) bool { return h[i].tickets[0].before(h[j].tickets[0]) }
func (h groupHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i]; h[i].index, h[j].index = i, j }
func (h *groupHeap) Push(x any)        { g := x.(*groupQueue); g.index = len(*h); *h = append(*h, g) }
func (h *groupHeap) Pop() any {
	old := *h
	g := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	g.index = -1
	return g
}

func (d *dispatcher) init(e *Engine) {
	d.e = e
	d.workflows = make(map[workflowName]*workflowQueue)
	d.waiting = make(map[string]*ticket)
	d.survived = make(map[string]*session)
}

// close makes pump do nothing from now on.
func (d *dispatcher) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	if d.timer != nil {
		d.timer.Stop()
	}
}

func (d *dispatcher) queueLocked(l workflowName) *workflowQueue {
	w := d.workflows[l]
	if w == nil {
		w = &workflowQueue{name: l, groups: make(map[string]*limiter), builds: make(map[string]*buildQueue)}
		d.workflows[l] = w
	}
	return w
}

func (w *workflowQueue) build(name string) *buildQueue {
	b := w.builds[name]
	if b == nil {
		b = &buildQueue{groups: make(map[string]*groupQueue)}
		w.builds[name] = b
	}
	return b
}

// group returns the limiter of a group, nil if groups are not limited.
func (w *workflowQueue) group(name string) *limiter {
	if !w.byGroup || name == "" {
		return nil
	}
	g := w.groups[name]
	if g == nil {
		g = new(limiter)
		w.groups[name] = g
	}
	return g
}

// attach adds a worker and gives it runs.
func (d *dispatcher) attach(s *session) {
	d.mu.Lock()
	if s.isOver() { // the session ended in between, and was removed before it was added
		d.mu.Unlock()
		return
	}
	for i := range s.info.Definitions {
		def := &s.info.Definitions[i]
		w := d.queueLocked(workflowName{s.project, def.Name})
		w.serves = append(w.serves, s)
		w.define(def)
	}
	for _, run := range s.info.HeldRuns {
		d.survived[run] = s
	}
	d.mu.Unlock()
	d.pump()
}

// define takes over a worker's definition of a workflow.
func (w *workflowQueue) define(def *workflow.DefinitionInfo) {
	w.def = *def
	_, byGroup := limited(def)
	if byGroup == w.byGroup {
		return
	}
	w.byGroup = byGroup
	for _, b := range w.builds {
		var all tickets
		for _, g := range b.groups {
			all = append(all, g.tickets...)
		}
		b.groups, b.open, b.rated = make(map[string]*groupQueue), nil, nil
		for _, t := range all {
			w.pushStart(b, t)
		}
	}
}

// remove removes a worker: it gets no more runs.
func (d *dispatcher) remove(s *session) {
	var orphans []*ticket
	d.mu.Lock()
	for _, run := range s.info.HeldRuns {
		if d.survived[run] == s {
			delete(d.survived, run)
		}
	}
	for i := range s.info.Definitions {
		w := d.queueLocked(workflowName{s.project, s.info.Definitions[i].Name})
		w.serves = slices.DeleteFunc(w.serves, func(o *session) bool { return o == s })
		if d.e.owner == nil {
			continue
		}
		for build, b := range w.builds {
			if slices.ContainsFunc(w.serves, func(o *session) bool { return o.accepts(build) }) {
				continue
			}
			orphans = append(orphans, b.goOn...)
			for _, g := range b.groups {
				orphans = append(orphans, g.tickets...)
			}
			delete(w.builds, build)
		}
	}
	if d.e.owner != nil {
		orphans = append(orphans, d.strandedLocked()...)
	}
	for _, t := range orphans {
		delete(d.waiting, t.run)
	}
	d.mu.Unlock()
	for _, t := range orphans {
		d.e.handOver(t)
	}
}

// clear empties the line.
func (d *dispatcher) clear() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.waiting)
	d.suspects = nil
	for _, w := range d.workflows {
		clear(w.builds)
		clear(w.groups)
		w.limiter = limiter{starts: w.limiter.starts}
	}
}

// room returns the free capacity of the workers minus the length of the line.
func (d *dispatcher) room() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	seen := make(map[*session]bool)
	room := -len(d.waiting)
	for _, w := range d.workflows {
		for _, s := range w.serves {
			if !seen[s] && !s.cell.closed() {
				seen[s] = true
				room += s.info.MaxRuns - s.load
			}
		}
	}
	return room
}

// definition returns the known definition of a workflow.
func (d *dispatcher) definition(l workflowName) workflow.DefinitionInfo {
	d.mu.Lock()
	defer d.mu.Unlock()
	if w := d.workflows[l]; w != nil {
		return w.def
	}
	return workflow.DefinitionInfo{}
}

// declared reports whether a worker declares a workflow.
func (d *dispatcher) declared(l workflowName) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.workflows[l]
	return w != nil && len(w.serves) > 0
}

// maxEvents returns the maximum length of a run's log.
func (d *dispatcher) maxEvents(l workflowName) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if w := d.workflows[l]; w != nil && w.def.MaxEvents > 0 {
		return w.def.MaxEvents
	}
	return defaultMaxEvents
}

// pending returns the number of runs in line.
func (d *dispatcher) pending() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.waiting)
}

// waits reports whether a run is in line.
func (d *dispatcher) waits(run string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.waiting[run] != nil
}

// serves reports whether a worker can execute the run, with room or without.
func (d *dispatcher) serves(t *ticket) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.workflows[t.workflow]
	return w != nil && slices.ContainsFunc(w.serves, func(s *session) bool { return s.accepts(t.build) })
}

// reserve returns a worker that has room for a run, if no other run is before it in line.
func (d *dispatcher) reserve(t *ticket) *session {
	if t.external {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.queueLocked(t.workflow)
	if len(w.serves) == 0 || t.suspect() {
		return nil
	}
	t.queued = time.Now()
	if b := w.builds[t.build]; b != nil && (len(b.goOn) > 0 || !t.started && len(b.open) > 0) {
		return nil
	}
	if !t.started {
		if why, _ := d.holdLocked(w, w.group(t.group), t.group, t.queued); why != free {
			return nil
		}
	}
	return d.grantLocked(w, t, t.queued)
}

// holdLocked returns the limit that keeps runs of a workflow, and of a group of it, from
// starting. If g is nil it checks the workflow's own limits only.
func (d *dispatcher) holdLocked(w *workflowQueue, g *limiter, group string, now time.Time) (hold, time.Duration) {
	shared := d.e.owner != nil
	why, wait := w.limiter.check(w.def.MaxRunning, w.def.Rate, w.def.RatePeriod, now, shared)
	if why == unknown {
		d.countLocked(w, "", &w.limiter)
	}
	if why != free || g == nil {
		return why, wait
	}
	why, wait = g.check(w.def.MaxRunningPerGroup, w.def.RatePerGroup, w.def.RatePeriod, now, shared)
	if why == unknown {
		d.countLocked(w, group, g)
	}
	return why, wait
}

// countLocked starts a census of running runs.
func (d *dispatcher) countLocked(w *workflowQueue, group string, l *limiter) {
	if l.counting || d.closed {
		return
	}
	if now := time.Now(); !l.counted.IsZero() && now.Sub(l.counted) < censusWhile {
		d.wakeLocked(censusWhile)
		return
	}
	l.counting, l.ended = true, 0
	d.e.spawn(func() { d.e.census(w, group, l) })
}

// grantLocked reserves room for a run at a worker, if any has room, and counts the run.
func (d *dispatcher) grantLocked(w *workflowQueue, t *ticket, now time.Time) *session {
	var best *session
	for _, s := range w.serves {
		if s.load < s.info.MaxRuns && !s.cell.closed() && s.accepts(t.build) && (best == nil || s.load < best.load) {
			best = s
		}
	}
	if best == nil {
		return nil
	}
	best.loadLocked(1)
	t.granted = true
	if !t.started {
		w.limiter.running++
		w.limiter.starting++
		w.limiter.starts.Add(w.def.Rate, now)
		if g := w.group(t.group); g != nil {
			g.running++
			g.starting++
			g.starts.Add(w.def.RatePerGroup, now)
		}
	}
	return best
}

// accepts reports whether the worker can execute runs pinned to a build.
func (s *session) accepts(build string) bool {
	return build == "" || build == s.info.Build || slices.Contains(s.info.Accept, build)
}

// given records that a granted run is with its worker.
func (d *dispatcher) given(t *ticket) {
	if t.started {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.queueLocked(t.workflow)
	w.limiter.starting--
	if g := w.group(t.group); g != nil {
		g.starting--
	}
}

// giveBack undoes an unused grant, once.
func (d *dispatcher) giveBack(s *session, t *ticket) {
	d.mu.Lock()
	if !t.granted {
		d.mu.Unlock()
		return
	}
	t.granted = false
	s.loadLocked(-1)
	s.cell.endTurn(t.run)
	if !t.started {
		w := d.queueLocked(t.workflow)
		w.limiter.starting--
		if g := w.group(t.group); g != nil {
			g.starting--
		}
		d.endedLocked(w, t.group, false)
	}
	d.mu.Unlock()
	d.pump()
}

// free records that a worker no longer has a run, and has room for another.
func (d *dispatcher) free(s *session, run string) {
	d.mu.Lock()
	s.loadLocked(-1)
	s.cell.endTurn(run)
	idle := len(d.waiting) == 0
	d.mu.Unlock()
	if !idle {
		d.pump()
	}
	d.e.mayClaim()
}

// ended records the end of a run that had started.
func (d *dispatcher) ended(l workflowName, group string) {
	d.mu.Lock()
	d.endedLocked(d.queueLocked(l), group, true)
	idle := len(d.waiting) == 0
	d.mu.Unlock()
	if !idle {
		d.pump()
	}
}

// endedLocked counts the end of a run; counted means that a census may have counted the
// run.
func (d *dispatcher) endedLocked(w *workflowQueue, group string, counted bool) {
	w.limiter.end(counted)
	g := w.groups[group]
	if g == nil {
		return
	}
	g.end(counted)
	for _, b := range w.builds {
		if q := b.groups[group]; q != nil {
			b.reopen(q)
			return
		}
	}
	if w.def.RatePerGroup <= 0 && g.running == 0 && !g.counting {
		delete(w.groups, group)
	}
}

func (l *limiter) end(counted bool) {
	l.running = max(0, l.running-1)
	if l.counting && counted {
		l.ended++
	}
}

// reopen returns a group with runs in line to the heap of open groups.
func (b *buildQueue) reopen(g *groupQueue) {
	switch {
	case len(g.tickets) == 0:
		if g.index >= 0 {
			heap.Remove(&b.open, g.index)
		}
		delete(b.groups, g.name)
	case g.index < 0:
		heap.Push(&b.open, g)
	default:
		heap.Fix(&b.open, g.index)
	}
}

// pushStart adds a run that is to start to the line.
func (w *workflowQueue) pushStart(b *buildQueue, t *ticket) {
	name := ""
	if w.byGroup {
		name = t.group
	}
	g := b.groups[name]
	if g == nil {
		g = &groupQueue{name: name, index: -1}
		b.groups[name] = g
	}
	heap.Push(&g.tickets, t)
	if !g.rated {
		b.reopen(g)
	}
}

// enqueue adds a run to the line, at most once.
func (d *dispatcher) enqueue(t *ticket) {
	d.mu.Lock()
	if d.closed || t.external || d.waiting[t.run] != nil {
		d.mu.Unlock()
		return
	}
	w := d.queueLocked(t.workflow)
	if d.e.owner != nil && !slices.ContainsFunc(w.serves, func(s *session) bool { return s.accepts(t.build) }) {
		d.mu.Unlock()
		d.e.handOver(t)
		return
	}
	d.numbers++
	t.queued, t.granted, t.number = time.Now(), false, d.numbers
	d.waiting[t.run] = t
	switch {
	case t.suspect():
		at, _ := slices.BinarySearchFunc(d.suspects, t, bySuspicion)
		d.suspects = slices.Insert(d.suspects, at, t)
	case t.started:
		heap.Push(&w.build(t.build).goOn, t)
	default:
		w.pushStart(w.build(t.build), t)
	}
	d.mu.Unlock()
	d.pumpOne(t.workflow)
}

// enqueueLater adds a run to the line after a wait for the store.
func (d *dispatcher) enqueueLater(t *ticket) {
	d.e.spawn(func() {
		if d.e.sleep(firstRetry) {
			d.enqueue(t)
		}
	})
}

// grant is a run for which a worker has reserved room.
type grant struct {
	ticket  *ticket
	session *session
}

// pump gives runs to workers until there are no more runs or no more room.
func (d *dispatcher) pump() {
	d.mu.Lock()
	grants := d.suspectsLocked()
	for _, w := range d.workflows {
		grants = d.pumpLocked(w, grants)
	}
	d.mu.Unlock()
	d.assign(grants)
}

// pumpOne is pump for the runs of one workflow.
func (d *dispatcher) pumpOne(l workflowName) {
	d.mu.Lock()
	grants := d.pumpLocked(d.queueLocked(l), d.suspectsLocked())
	d.mu.Unlock()
	d.assign(grants)
}

func (d *dispatcher) assign(grants []grant) {
	for _, g := range grants {
		d.e.assign(g.ticket, g.session)
	}
}

func (d *dispatcher) pumpLocked(w *workflowQueue, grants []grant) []grant {
	if d.closed || len(w.serves) == 0 {
		return grants
	}
	now := time.Now()
	for name, b := range w.builds {
		for len(b.goOn) > 0 {
			s := d.grantLocked(w, b.goOn[0], now)
			if s == nil {
				break
			}
			t := heap.Pop(&b.goOn).(*ticket)
			delete(d.waiting, t.run)
			grants = append(grants, grant{t, s})
		}
		grants = d.startLocked(w, b, now, grants)
		if len(b.goOn) == 0 && len(b.groups) == 0 {
			delete(w.builds, name)
		}
	}
	return grants
}

// startLocked grants room to the runs that limits allow to start.
func (d *dispatcher) startLocked(w *workflowQueue, b *buildQueue, now time.Time, grants []grant) []grant {
	b.rated = slices.DeleteFunc(b.rated, func(g *groupQueue) bool {
		g.rated = false
		b.reopen(g)
		return true
	})
	for len(b.open) > 0 {
		if why, wait := d.holdLocked(w, nil, "", now); why != free {
			if why == rated {
				d.wakeLocked(wait)
			}
			return grants
		}
		g := b.open[0]
		t := g.tickets[0]
		if limits := w.group(t.group); limits != nil {
			if why, wait := d.holdLocked(w, limits, t.group, now); why != free {
				heap.Pop(&b.open)
				if why != full {
					g.rated = true
					b.rated = append(b.rated, g)
				}
				if why == rated {
					d.wakeLocked(wait)
				}
				continue
			}
		}
		s := d.grantLocked(w, t, now)
		if s == nil {
			return grants
		}
		heap.Pop(&g.tickets)
		b.reopen(g)
		delete(d.waiting, t.run)
		grants = append(grants, grant{t, s})
	}
	return grants
}

// wakeLocked makes the dispatcher pump after a time, or earlier.
func (d *dispatcher) wakeLocked(wait time.Duration) {
	if d.closed {
		return
	}
	at := time.Now().Add(wait)
	if !d.timerAt.IsZero() && !at.Before(d.timerAt) {
		return
	}
	d.timerAt = at
	if d.timer != nil {
		d.timer.Reset(wait)
		return
	}
	d.timer = time.AfterFunc(wait, func() {
		d.mu.Lock()
		d.timerAt = time.Time{}
		d.mu.Unlock()
		d.pump()
	})
}

// assign asks a run's lane to give the run to a worker that has room for it.
func (e *Engine) assign(t *ticket, s *session) {
	l := e.laneOf(t.run, t.root)
	// A lane that has ended assigns nothing: the run is in line again when the engine
	// reopens.
	l.pushNow(&op{
		run:    t.run,
		owned:  true,
		decide: func(r *liveRun, o *op) error { return l.assign(r, o, t, s) },
		done: func(err error) {
			if err != nil {
				e.dispatch.giveBack(s, t)
			}
			if err == errElsewhere || passes(err) { // the run was claimed again before the lane had let go of it
				e.dispatch.enqueueLater(t)
			}
		},
	})
}

// assign gives a run to a worker, if the run still needs one.
func (l *lane) assign(r *liveRun, o *op, t *ticket, s *session) error {
	e := l.e
	if r.ended() || r.session != nil || r.assign != nil {
		e.dispatch.giveBack(s, t)
		return nil
	}
	if !r.whole {
		r.waiting = append(r.waiting, o)
		l.read(r)
		return errParked
	}
	died := t.recovered && !e.dispatch.outlived(r.log.Run.Project, t.run)
	switch {
	case r.log.Run.Status == history.Pending:
		l.touch(r)
		l.start(r, s, t)
		return nil
	case died && r.log.Run.Recoveries >= e.cfg.MaxRecoveries:
		e.dispatch.giveBack(s, t)
		l.touch(r)
		o.events = []history.Event{l.poisoned(r)}
		return nil
	}
	l.touch(r)
	charged := died && (t.alone || r.log.Run.Recoveries < aloneAfter)
	if charged {
		r.log.Run.Recoveries++
		r.row = true
	}
	r.assign = &assignment{session: s, ticket: t, charged: charged}
	return nil
}
