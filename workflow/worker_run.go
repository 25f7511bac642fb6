package workflow

import (
	"container/list"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
)

// attachment is one connection of a worker, with the runs that the worker got over it.
//
// The engine calls its Assign, Deliver and Revoke, which only put their arguments into a
// run's mailbox. Lock order: liveRun.mu, attachment.mu, stepQueue.mu.
type attachment struct {
	w       *Worker
	base    context.Context
	ready   chan struct{} // closed when session is set: runs may be assigned before
	session Session
	end     context.CancelCauseFunc
	frozen  atomic.Bool // no workflow code runs any more

	mu     sync.Mutex // guards the fields below
	runs   map[string]*liveRun
	idle   list.List // of *liveRun, the longest idle first
	sweep  *time.Timer
	closed bool // park does nothing any more

	flows pool // goroutines that run workflow code
}

var _ Runner = (*attachment)(nil)

func newAttachment(w *Worker, base context.Context) *attachment {
	return &attachment{w: w, base: base, ready: make(chan struct{}), runs: make(map[string]*liveRun)}
}

// begin starts the attachment. s is nil if the attachment will be closed next.
func (a *attachment) begin(s Session, end context.CancelCauseFunc) {
	a.session, a.end = s, end
	close(a.ready)
}

// call is a function as a task.
type call func()

func (f call) run() { f() }

// Assign implements Runner.
func (a *attachment) Assign(as Assignment) {
	def := a.w.defs[as.Run.Workflow]
	if def == nil {
		a.w.log.Warn("worker was given a run of a workflow it does not have", "run", as.Run.ID, "workflow", as.Run.Workflow)
		a.flows.start(call(func() {
			if <-a.ready; a.session != nil {
				a.session.Release(as.Run.ID, as.Lease, as.Run.Events)
			}
		}))
		return
	}
	r := &liveRun{
		a: a, id: as.Run.ID, lease: as.Lease, info: as.Run, def: def, recovered: as.Recovered,
		payloads: a.w.client.values.forRun(as.Run.ID), attempts: make(map[string]*attempt),
	}
	a.mu.Lock()
	old := a.runs[r.id]
	a.runs[r.id] = r
	a.mu.Unlock()
	if old != nil {
		old.drop(errLeaseLost)
	}
	r.deliver(as.Events)
}

// Deliver implements Runner.
func (a *attachment) Deliver(run string, lease uint64, events []Event) {
	a.mu.Lock()
	r := a.runs[run]
	if r != nil {
		a.unparkLocked(r)
	}
	a.mu.Unlock()
	if r != nil && r.lease == lease {
		r.deliver(events)
	}
}

// Revoke implements Runner.
func (a *attachment) Revoke(run string, lease uint64) {
	if r := a.run(run); r != nil && r.lease == lease {
		r.drop(errLeaseLost)
	}
}

func (a *attachment) run(id string) *liveRun {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.runs[id]
}

// remove removes a run.
func (a *attachment) remove(r *liveRun) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unparkLocked(r)
	if a.runs[r.id] == r {
		delete(a.runs, r.id)
	}
}

// park records that a run has become idle: the run is dropped when it stays idle, or when
// there are too many idle runs.
func (a *attachment) park(r *liveRun) {
	a.mu.Lock()
	if r.parked != nil || a.runs[r.id] != r {
		a.mu.Unlock()
		return
	}
	r.idleSince = time.Now()
	r.parked = a.idle.PushBack(r)
	if a.sweep == nil && !a.closed {
		a.sweep = time.AfterFunc(a.w.config.IdleTimeout, a.evictIdle)
	}
	var oldest *liveRun
	if limit := a.w.config.MaxRuns; len(a.runs) > limit-limit/10 {
		oldest = a.idle.Front().Value.(*liveRun)
		a.unparkLocked(oldest)
	}
	a.mu.Unlock()
	if oldest != nil {
		oldest.evict()
	}
}

func (a *attachment) unparkLocked(r *liveRun) {
	if r.parked != nil {
		a.idle.Remove(r.parked)
		r.parked = nil
	}
}

// evictIdle drops the runs that have been idle for longer than the timeout.
func (a *attachment) evictIdle() {
	timeout := a.w.config.IdleTimeout
	for {
		a.mu.Lock()
		front := a.idle.Front()
		if front == nil || a.closed {
			a.sweep = nil
			a.mu.Unlock()
			return
		}
		r := front.Value.(*liveRun)
		if left := timeout - time.Since(r.idleSince); left > 0 {
			a.sweep = time.AfterFunc(left, a.evictIdle)
			a.mu.Unlock()
			return
		}
		a.unparkLocked(r)
		a.mu.Unlock()
		r.evict()
	}
}

// drain ends the attachment in good order: results of steps that end within the stop
// timeout are recorded.
func (a *attachment) drain() {
	w := a.w
	a.frozen.Store(true)
	w.steps.close()
	if !waitFor(&w.steps.pool.all, w.config.StopTimeout) {
		w.end(errStopping)
		waitFor(&w.steps.pool.all, w.config.StopTimeout) // keepAttached reports steps that are still running
	}
	if err := a.session.Close(); err != nil {
		w.log.Warn("worker gave its runs back, with an error", "error", err)
	}
	a.close(errStopping)
}

// maxHeldRuns bounds WorkerInfo.HeldRuns.
const maxHeldRuns = 10_000

// abandon ends the attachment after its connection was lost. It returns the attachment's
// runs.
func (a *attachment) abandon() (runs []string) {
	a.mu.Lock()
	for id := range a.runs {
		if runs = append(runs, id); len(runs) == maxHeldRuns {
			break
		}
	}
	a.mu.Unlock()
	if err := a.session.Close(); err != nil {
		a.w.log.Debug("close of a lost connection", "error", err)
	}
	a.close(errLeaseLost)
	return runs
}

// close drops all runs and waits for their code.
func (a *attachment) close(cause error) {
	a.mu.Lock()
	runs := make([]*liveRun, 0, len(a.runs))
	for _, r := range a.runs {
		runs = append(runs, r)
	}
	a.frozen.Store(true)
	if a.sweep != nil {
		a.sweep.Stop()
	}
	a.mu.Unlock()
	for _, r := range runs {
		r.drop(cause)
	}
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.flows.close()
	if !waitFor(&a.flows.all, a.w.config.StopTimeout) {
		a.w.log.Warn("code of a workflow does not end: it blocks on something that is not its Context")
	}
	a.end(cause)
}

// waitFor waits for a group and reports whether the group was done in time.
func waitFor(g *sync.WaitGroup, timeout time.Duration) bool {
	done := make(chan struct{})
	go func() {
		g.Wait()
		close(done)
	}()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// liveRun is a run that the worker has: its code, and the mailbox that feeds the code. At
// most one goroutine at a time, in run, touches the code.
type liveRun struct {
	a         *attachment
	id        string
	lease     uint64
	def       *definition
	payloads  payloads
	recovered bool

	// Only run uses these fields.
	info      RunInfo
	x         *execution
	slot      int64   // slot of the last event fed
	waiting   bool    // the code waits only for timers, hooks and children
	log       []Event // all fed events, for VerifyReplay
	unclaimed bool    // the log does not fit the code: no more events are fed
	flagged   bool    // the run has the attribute divergedAttribute

	mu        sync.Mutex // guards the fields below
	mailbox   []Event
	working   bool   // run is running
	gone      bool   // the worker no longer has the run
	end       *Event // the terminal event of the log, until the Observer was told
	resyncing bool   // the run will be released and assigned again
	attempts  map[string]*attempt
	lineup    lineup
	executing int // attempts that are executing, or wait for their turn
	inflight  int // undecided appends

	queued []*attempt // guarded by stepQueue.mu

	parked    *list.Element // guarded by attachment.mu, as idleSince is
	idleSince time.Time
}

// deliver puts events into the mailbox.
func (r *liveRun) deliver(events []Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone {
		return
	}
	r.mailbox = append(r.mailbox, events...)
	if end := endOf(events); end != nil {
		r.end = end // the engine takes the run back a moment later
	}
	r.wakeLocked()
}

func (r *liveRun) wakeLocked() {
	if !r.working && r.a.flows.start(r) {
		r.working = true
	}
}

// restLocked checks again whether the run is idle, after an append or attempt has ended:
// its events are often delivered and fed before the append or attempt counts as over.
func (r *liveRun) restLocked() {
	if !r.working && !r.gone && r.waiting && r.executing == 0 && r.inflight == 0 {
		r.wakeLocked() // run parks it: not here, because the engine's writer may be the caller
	}
}

// run implements task: it feeds the code from the mailbox until the mailbox is empty.
func (r *liveRun) run() {
	<-r.a.ready
	if r.a.session == nil {
		return
	}
	defer r.watch()()
	for {
		r.mu.Lock()
		if end := r.end; end != nil {
			r.end = nil
			r.mu.Unlock()
			r.ended(end)
			continue
		}
		if r.gone {
			r.working = false
			r.mu.Unlock()
			if r.x != nil {
				r.x.close()
			}
			return
		}
		events := r.mailbox
		r.mailbox = nil
		if len(events) == 0 || r.a.frozen.Load() {
			r.working = false
			idle := r.waiting && r.executing == 0 && r.inflight == 0
			r.mu.Unlock()
			switch {
			case !idle:
			case r.suspect():
				r.evict() // it has no work in progress, so other runs can use its place
			default:
				r.a.park(r)
			}
			return
		}
		r.mu.Unlock()
		r.feed(events)
	}
}

// blockedAfter is how long workflow code may run before the worker logs that it seems to
// block.
const blockedAfter = 10 * time.Second

func (r *liveRun) watch() (stop func() bool) {
	return time.AfterFunc(blockedAfter, func() {
		r.a.w.log.Warn("code of a workflow has not come to wait: it computes for long, or blocks on something that is not its Context",
			"run", r.id, "workflow", r.info.Workflow, "for", blockedAfter)
	}).Stop
}

// feed feeds the code with new events, and carries out the effects.
func (r *liveRun) feed(events []Event) {
	w := r.a.w
	last := &events[len(events)-1]
	r.slot = last.Slot
	if r.unclaimed {
		return
	}
	first := r.x == nil
	begun := time.Time{}
	if first {
		begun = time.Now()
		_, r.flagged = r.info.Attributes[divergedAttribute]
		if justBegun(events) {
			w.config.Observer.RunStarted(&r.info)
		}
	}
	if w.config.VerifyReplay {
		r.log = append(r.log, events...)
	}
	var eff effects
	if first {
		r.x, eff = replay(executionConfig{
			definition: r.def, run: r.info, payloads: r.payloads, logger: w.config.Logger, recovered: r.recovered, emit: r.emit(),
		}, events)
	} else {
		eff = r.x.feed(events)
	}
	if first && !justBegun(events) {
		w.config.Observer.RunReplayed(&r.info, len(events), time.Since(begun))
	}
	if eff.diverged != nil {
		r.diverge(eff.diverged)
		return
	}
	if r.flagged {
		r.flagged = false
		r.appendOne(Event{Type: history.AttrSet, Attributes: map[string]string{divergedAttribute: ""}}, nil)
	}
	r.waiting = eff.idle
	if eff.done != nil && w.config.VerifyReplay && !r.unshown(eff.done) {
		r.verify(&eff)
	}
	r.effect(&eff)
}

// unshown reports whether the engine will refuse an end, because the log has values that
// the code was not shown.
func (r *liveRun) unshown(end *Event) bool {
	return slices.ContainsFunc(r.log, func(e Event) bool { return e.Type == history.HookReceived && e.Slot > int64(end.Attempt) })
}

// justBegun reports whether a log has only the events of a new run: its creation, hooks
// inherited from the continued run, its start, and perhaps a request to end.
func justBegun(log []Event) bool {
	started := slices.IndexFunc(log, func(e Event) bool { return e.Type == history.RunStarted })
	return started >= 0 && !slices.ContainsFunc(log[started+1:], func(e Event) bool { return e.Type != history.CancelRequested })
}

// verify replays a run that is about to end, and fails the run if the replay differs.
func (r *liveRun) verify(eff *effects) {
	again := replayed(executionConfig{definition: r.def, run: r.info, payloads: r.payloads}, r.log)
	err := error(nil)
	if again.diverged != nil {
		err = again.diverged
	} else {
		err = sameEnd(&r.a.w.client.values, r.id, eff.done, again.done)
	}
	if err != nil {
		eff.done = &Event{Type: history.RunFailed, Code: history.CodeDivergence, Payload: r.payloads.encodeError(err)}
		eff.next = nil
	}
}

// endOf returns the event that ends a run, nil if there is none.
func endOf(events []Event) *Event {
	for i := len(events) - 1; i >= 0; i-- {
		if endsRun(events[i].Type) {
			return &events[i]
		}
	}
	return nil
}

// effect carries out the code's effects.
func (r *liveRun) effect(eff *effects) {
	appends := eff.appends
	if eff.done != nil && eff.next == nil {
		appends = append(appends, *eff.done)
	}
	if len(appends) > 0 {
		r.append(appends, r.failIf)
	}
	if eff.next != nil {
		r.startRun(*eff.next, *eff.done, r.failIf)
	}
	for _, c := range eff.children {
		r.startRun(c.run, c.started, func(err error) {
			if err != nil { // the child can never be started
				ended := Event{Type: history.ChildEnded, ID: c.id, Code: string(StatusFailed), Payload: r.payloads.encodeError(err)}
				r.append([]Event{c.started, ended}, r.failIf)
			}
		})
	}
	for _, id := range eff.cancels {
		r.cancelStep(id)
	}
	if r.suspect() {
		leastLostFirst(eff.steps)
	}
	for _, s := range eff.steps {
		r.startStep(s)
	}
}

// failIf ends the run if a value can never be stored.
func (r *liveRun) failIf(err error) {
	if err == nil {
		return
	}
	r.appendOne(Event{Type: history.RunFailed, Code: history.CodeRuntime, Payload: r.payloads.encodeError(err)}, func(err error) {
		if err != nil {
			r.resync(err)
		}
	})
}

// append appends events to the log; it retries while the store is unavailable. done,
// which may be nil, gets nil, or the error if the events can never be stored. done is not
// called if the worker has lost the run: the next worker handles the log then.
func (r *liveRun) append(events []Event, done func(error)) {
	(&commit{r: r, events: events, done: done}).begin()
}

// appendOne is append for one event.
func (r *liveRun) appendOne(e Event, done func(error)) {
	c := &commit{r: r, one: [1]Event{e}, done: done}
	c.events = c.one[:]
	c.begin()
}

// startRun is append for the start of another run, together with this run's event about
// it.
func (r *liveRun) startRun(p NewRun, started Event, done func(error)) {
	c := &commit{r: r, one: [1]Event{started}, start: &p, done: done}
	c.events = c.one[:]
	c.begin()
}

const (
	commitRetryFirst = 50 * time.Millisecond
	commitRetryMax   = 5 * time.Second
)

// commit is a pending append of a run.
type commit struct {
	r      *liveRun
	events []Event
	one    [1]Event // backing array of events in the usual case
	start  *NewRun  // the run that is started with the events, or nil
	done   func(error)
	wait   time.Duration // wait before the next try
}

func (c *commit) begin() {
	r := c.r
	r.mu.Lock()
	if r.gone {
		r.mu.Unlock()
		return
	}
	r.inflight++
	r.mu.Unlock()
	c.try()
}

func (c *commit) try() {
	for i := range c.events {
		c.events[i].Slot, c.events[i].At = 0, 0
	}
	if c.start != nil {
		c.r.a.session.StartRun(c.r.id, c.r.lease, *c.start, c.events[0], c.decided)
	} else {
		c.r.a.session.Append(c.r.id, c.r.lease, c.events, c.decided)
	}
}

func (c *commit) decided(err error) {
	r := c.r
	switch cay.CodeOf(err) {
	case cay.Unavailable, cay.NoSpace, cay.DeadlineExceeded:
		// A retry only costs time. If the first try was stored after all, the retry gets
		// a conflict, and the log has the events.
		if !r.alive() {
			return
		}
		c.wait = min(max(c.wait*2, commitRetryFirst), commitRetryMax)
		time.AfterFunc(jitter(c.wait, 0.2), func() {
			if r.alive() {
				c.try()
			}
		})
	case "", cay.TooLarge, cay.Invalid, cay.NotSupported, cay.QuotaExceeded:
		r.mu.Lock()
		r.inflight--
		r.restLocked()
		gone := r.gone
		r.mu.Unlock()
		switch {
		case gone || c.done == nil:
		case err == nil:
			c.done(nil)
		default:
			// done will append, and the engine's writer must not wait for that.
			r.a.flows.start(call(func() { c.done(err) }))
		}
	default:
		r.resync(err)
	}
}

func (r *liveRun) alive() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.gone
}

// resync releases the run, so that it is assigned again with its whole log: the engine's
// state of the run differs from the worker's. Often an event that explains the difference
// arrives a moment later, for example when the run has just been cancelled. So resync
// waits a little, and longer each time.
func (r *liveRun) resync(err error) {
	r.mu.Lock()
	if r.gone || r.resyncing {
		r.mu.Unlock()
		return
	}
	r.resyncing = true
	r.mu.Unlock()
	n := r.a.w.strays.resynced(r.id)
	r.a.w.log.Debug("run is to be assigned anew", "run", r.id, "times", n, "error", err)
	time.AfterFunc(backoff(resyncFirst, resyncMax, n), r.giveBack)
}

const (
	resyncFirst = 50 * time.Millisecond
	resyncMax   = time.Minute
)

// giveBack releases the run as if the worker had seen no event, so that the run is
// assigned again at once, to any worker that accepts it.
func (r *liveRun) giveBack() {
	if r.alive() {
		r.drop(errLeaseLost)
		r.a.session.Release(r.id, r.lease, 0)
	}
}

// ended tells the Observer that the end of the run is in its log, and removes the run.
func (r *liveRun) ended(end *Event) {
	w := r.a.w
	w.strays.forget(r.id)
	r.info.CompletedAt = end.At
	switch end.Type {
	case history.RunCompleted:
		r.info.Status = StatusCompleted
		w.config.Observer.RunEnded(&r.info, nil)
	case history.RunFailed:
		r.info.Status, r.info.ErrorCode = StatusFailed, end.Code
		w.config.Observer.RunEnded(&r.info, &RunFailedError{Run: r.id, Workflow: r.info.Workflow, Code: end.Code, Cause: r.payloads.decodeError(end.Payload)})
	case history.RunCancelled:
		r.info.Status = StatusCancelled
		w.config.Observer.RunEnded(&r.info, &RunCancelledError{Run: r.id, Workflow: r.info.Workflow, Reason: end.Reason})
	}
	r.drop(ErrCancelled)
}

// drop removes the run: the contexts of its steps end with the cause, and its code is
// unwound.
func (r *liveRun) drop(cause error) {
	r.mu.Lock()
	attempts, dropped := r.dropLocked()
	r.mu.Unlock()
	if dropped {
		r.forget(attempts, cause)
	}
}

func (r *liveRun) dropLocked() (attempts []*attempt, dropped bool) {
	if r.gone {
		return nil, false
	}
	r.gone = true
	r.mailbox = nil
	r.lineup.stopLocked()
	for _, t := range r.attempts {
		attempts = append(attempts, t)
	}
	r.wakeLocked() // unwinds the code
	return attempts, true
}

func (r *liveRun) forget(attempts []*attempt, cause error) {
	r.a.remove(r)
	r.a.w.steps.forget(r)
	for _, t := range attempts {
		t.cancel(cause)
	}
}

// evict drops the run if it is idle.
func (r *liveRun) evict() {
	r.mu.Lock()
	if r.gone || r.working || len(r.mailbox) > 0 || r.executing > 0 || r.inflight > 0 || !r.waiting {
		r.mu.Unlock()
		return // it parks again when it is idle
	}
	slot := r.slot
	attempts, _ := r.dropLocked()
	r.mu.Unlock()
	r.forget(attempts, errLeaseLost)
	r.a.session.Release(r.id, r.lease, slot)
	r.a.w.config.Observer.RunDropped(&r.info)
}

// divergedAttribute is the attribute of a run whose log does not fit the code.
const divergedAttribute = "$diverged"

const (
	// divergenceTries is how often a run is replayed before its policy decides.
	divergenceTries = 3
	divergenceFirst = time.Second
	divergenceMax   = 10 * time.Minute
)

// diverge stops the execution of a run whose log does not fit its code, and later
// releases the run: a worker whose code fits may be available then.
func (r *liveRun) diverge(err *DivergenceError) {
	w := r.a.w
	r.unclaimed, r.waiting = true, false
	r.x.close()
	n := w.strays.diverged(r.id)
	w.config.Observer.RunDiverged(&r.info, err)
	w.log.Error("run does not fit the code of this worker", "run", r.id, "workflow", r.info.Workflow, "times", n, "error", err)
	if n >= divergenceTries && w.config.Divergence == DivergenceFails {
		r.appendOne(Event{Type: history.RunFailed, Code: history.CodeDivergence, Payload: r.payloads.encodeError(err)}, r.failIf)
		return
	}
	if n == divergenceTries && !r.flagged {
		words := cut(err.Error(), 200)
		r.appendOne(Event{Type: history.AttrSet, Attributes: map[string]string{divergedAttribute: words}}, func(err error) {
			if err != nil {
				w.log.Warn("run that does not fit its code cannot be marked", "run", r.id, "error", err)
			}
		})
	}
	time.AfterFunc(backoff(divergenceFirst, divergenceMax, n), r.giveBack)
}

// strays counts the errors of each run during the worker's life. It forgets some when
// there are too many.
type strays struct {
	mu     sync.Mutex // guards counts
	counts map[string]strayCount
}

type strayCount struct{ resyncs, divergences int }

const maxStrays = 10000

func newStrays() *strays { return &strays{counts: make(map[string]strayCount)} }

func (s *strays) update(run string, f func(*strayCount)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, known := s.counts[run]
	if !known && len(s.counts) >= maxStrays {
		for other := range s.counts {
			delete(s.counts, other)
			break
		}
	}
	f(&c)
	s.counts[run] = c
}

func (s *strays) resynced(run string) (n int) {
	s.update(run, func(c *strayCount) { c.resyncs++; n = c.resyncs })
	return n
}

func (s *strays) diverged(run string) (n int) {
	s.update(run, func(c *strayCount) { c.divergences++; n = c.divergences })
	return n
}

func (s *strays) forget(run string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.counts, run)
}

// emit returns the function that passes the values of Emit to the Observer.
func (r *liveRun) emit() func(any) {
	observer := r.a.w.config.Observer
	if _, nobody := observer.(NoObserver); nobody {
		return nil
	}
	return func(value any) { observer.RunEmitted(&r.info, value) }
}
