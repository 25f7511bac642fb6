package workflowd

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/workflow"
)

// Bounds of a group, and of the queue of the next.
const (
	maxGroupBytes = 4 << 20
	maxGroupOps   = 4096
	maxQueueBytes = 64 << 20 // of the queue
)

// lane is a writer: a goroutine that decides which events are appended to its runs,
// commits the events in groups, and then delivers them. While a group is being committed
// the next one gathers; nothing is ever delayed to make a group larger.
type lane struct {
	e *Engine

	mu     sync.Mutex // guards the fields below
	queue  []*op
	bytes  int        // approximate size of queue
	room   *sync.Cond // signalled when the queue was taken
	closed bool
	wake   chan struct{}

	// Only loop touches the fields below.
	runs  map[string]*liveRun
	again []*op // ops that had to wait; taken before the queue
	// drowsy are sleeping runs that the store does not know to be asleep yet.
	drowsy  map[string]struct{}
	streams map[streamKey]*stream
	leaving map[string]struct{} // runs that are being handed over to other processes
	kept    kept
	// failures counts consecutive groups that could not be stored.
	failures int
	group    group
}

// group is the group being gathered or committed.
type group struct {
	ops     []*op
	touched []*liveRun
	claims  []*Claim
	asking  []asking
	records Records
	streams []*stream // streams of records.Chunks
	bytes   int
	// freed are tokens released in this group: they can be claimed in the next group.
	freed map[string]bool
}

// asking is an op that depends on a claim.
type asking struct {
	claim *Claim
	op    *op
	run   *liveRun
	index int // index of hook_created in the run's events of this group; -1: the key of a creation
}

func newLane(e *Engine) *lane {
	l := &lane{e: e, wake: make(chan struct{}, 1), runs: make(map[string]*liveRun), drowsy: make(map[string]struct{}), streams: make(map[streamKey]*stream), leaving: make(map[string]struct{})}
	l.room = sync.NewCond(&l.mu)
	return l
}

// push adds an op to the queue. It waits while too much is queued. Errors: unavailable, the
// engine is closed; canceled.
func (l *lane) push(ctx context.Context, o *op) error {
	l.mu.Lock()
	if l.fullQueue() && !l.closed {
		stop := context.AfterFunc(ctx, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.room.Broadcast()
		})
		defer stop()
		for l.fullQueue() && !l.closed && ctx.Err() == nil {
			l.room.Wait()
		}
		if ctx.Err() != nil {
			l.mu.Unlock()
			return wire.ContextError(ctx)
		}
	}
	if l.closed {
		l.mu.Unlock()
		return errClosed
	}
	l.add(o)
	return nil
}

// fullQueue is called with mu held.
func (l *lane) fullQueue() bool {
	return len(l.queue) >= l.e.cfg.MaxQueue || l.bytes >= maxQueueBytes
}

// pushNow is push for ops of the engine itself: their number is bounded by their cause,
// and they must not wait. It reports false if the lane has ended.
func (l *lane) pushNow(o *op) bool {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return false
	}
	l.add(o)
	return true
}

// post makes the lane call f between two groups.
func (l *lane) post(f func()) bool { return l.pushNow(&op{control: f}) }

// add is called with mu held, and releases it.
func (l *lane) add(o *op) {
	l.queue = append(l.queue, o)
	l.bytes += o.bytes()
	first := len(l.queue) == 1
	l.mu.Unlock()
	if first {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
}

// close makes the lane commit the queued ops and end; the goroutine that runs loop waits
// for the end.
func (l *lane) close() {
	l.mu.Lock()
	l.closed = true
	l.room.Broadcast()
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *lane) loop() {
	// Two slices alternate as the queue; batch is the unread part of whole.
	var batch, whole, spare []*op
	for {
		l.mu.Lock()
		if len(batch) == 0 {
			batch, l.queue, l.bytes = l.queue, spare, 0
			whole, spare = batch, nil
			l.room.Broadcast()
		}
		closed := l.closed
		l.mu.Unlock()
		if len(batch) == 0 && len(l.again) == 0 {
			if closed {
				break
			}
			<-l.wake
			continue
		}
		n := l.gather(batch)
		l.commit()
		clear(batch[:n])
		if batch = batch[n:]; len(batch) == 0 {
			spare = whole[:0]
		}
	}
	l.flush()
	for _, r := range l.runs {
		for _, o := range r.waiting {
			o.finish(errClosed)
		}
		r.waiting = nil
	}
	for _, s := range l.streams {
		for _, o := range s.waiting {
			o.finish(errClosed)
		}
		s.waiting = nil
	}
}

// gather fills the group, first with ops that had to wait for another group or for a log,
// then from batch. It returns the number of ops taken from batch.
func (l *lane) gather(batch []*op) int {
	again := l.again
	l.again = nil
	for i, o := range again {
		if l.full() {
			l.again = append(l.again, again[i:]...)
			return 0
		}
		l.admit(o)
	}
	for i, o := range batch {
		if l.full() {
			return i
		}
		if o.control != nil {
			o.control()
		} else {
			l.admit(o)
		}
	}
	return len(batch)
}

// flush stores which runs are asleep, before the lane ends.
func (l *lane) flush() {
	if len(l.drowsy) == 0 {
		return
	}
	if _, err := l.store(true); err != nil {
		l.e.log.Warn("cannot store which runs sleep: they will be woken in vain", "error", err)
	}
}

func (l *lane) full() bool {
	return l.group.bytes >= maxGroupBytes || len(l.group.ops) >= maxGroupOps
}

// admit adds an op to the group, decides it at once, or makes it wait.
func (l *lane) admit(o *op) {
	if o.write != nil {
		l.admitWrite(o)
		return
	}
	r := l.runs[o.run]
	if r == nil {
		if o.session != nil {
			o.finish(notYours(o.run))
			return
		}
		if _, leaves := l.leaving[o.run]; leaves || l.e.owner != nil && !o.owned && o.create == nil {
			o.finish(errElsewhere)
			return
		}
		r = &liveRun{id: o.run, lane: l}
		l.runs[o.run] = r
		l.e.live.Store(o.run, r)
		if o.create == nil || o.create.run.ID != o.run || o.create.mayExist {
			r.waiting = append(r.waiting, o)
			l.read(r)
			return
		}
	}
	switch {
	case r.loading:
		r.waiting = append(r.waiting, o)
		return
	case r.sealed:
		l.again = append(l.again, o)
		return
	case r.log == nil && (o.create == nil || o.create.run.ID != r.id):
		o.finish(cay.Errorf(cay.NotFound, "run %q not found", o.run))
		return
	case o.session != nil && (o.session != r.session || o.lease != r.lease):
		o.finish(notYours(o.run))
		l.settle(r, o)
		return
	}
	switch err := l.apply(r, o); err {
	case errParked:
		return
	case errNextGroup:
		l.touch(r)
		r.sealed = true
		l.again = append(l.again, o)
		return
	case nil:
	case errUnshown:
		l.replayed(r, o)
	default:
		if o.message != 0 {
			l.refuse(r, o, err)
			break
		}
		o.finish(err)
		l.unload(r)
	}
	l.settle(r, o)
}

// refuse takes in a message that asks for a change that is not allowed, or no longer
// allowed.
func (l *lane) refuse(r *liveRun, o *op, err error) {
	l.e.log.Debug("a message was refused", "run", r.id, "error", err)
	l.passOn(r, o)
	o.events, o.blobs, o.verdict = nil, nil, err
	l.admitted(r, o)
}

// notYours is the error for a worker whose run was taken from it.
func notYours(run string) error {
	return cay.Errorf(cay.Conflict, "run %s is not assigned to this worker any more", run)
}

// touch starts recording the changes that a group makes to a run.
func (l *lane) touch(r *liveRun) {
	if r.inGroup {
		return
	}
	r.inGroup = true
	if r.log != nil {
		r.mark = r.log.Mark()
	}
	l.group.touched = append(l.group.touched, r)
}

// The errors by which apply says how to go on, as opposed to errors for the caller.
var (
	errNextGroup = errors.New("the op has to wait for the group under way")
	errParked    = errors.New("the op waits for another run to be read")
	errUnshown   = errors.New("the run's log has values that its code was not shown")
)

// apply applies an op to a run in memory. After an error the run is unchanged.
func (l *lane) apply(r *liveRun, o *op) error {
	if o.create != nil && o.create.run.ID == r.id {
		return l.applyCreation(r, o)
	}
	if o.decide != nil {
		if err := o.decide(r, o); err != nil {
			return err
		}
	}
	if unshown(r, o) {
		return errUnshown
	}
	if o.create != nil {
		return l.applyChild(r, o)
	}
	return l.applyEvents(r, o)
}

// unshown reports whether a worker's op ends a run although the log has values that the
// run's code was not shown.
func unshown(r *liveRun, o *op) bool {
	if o.session == nil || len(o.events) == 0 {
		return false
	}
	end := &o.events[len(o.events)-1]
	return ends(end) && end.Attempt > 0 && r.log.Received() > int64(end.Attempt)
}

// replayed refuses the end of a run and gives the run to a worker again, which replays
// the code with the values that the code was not shown.
func (l *lane) replayed(r *liveRun, o *op) {
	s, lease := r.session, r.lease
	l.touch(r)
	l.detach(r)
	r.want = true
	s.runner.Revoke(r.id, lease)
	o.finish(cay.Errorf(cay.Conflict, "%w: run %s is to be replayed", errUnshown, r.id))
}

// applyEvents applies an op that only appends events.
func (l *lane) applyEvents(r *liveRun, o *op) error {
	if err := l.tooLong(r, o); err != nil {
		return err
	}
	if r.waitsForEnd(o) {
		r.waiting = append(r.waiting, o)
		return errParked
	}
	if l.endChildren(r, o) {
		return errParked
	}
	parent, err := l.parentToTell(r, o)
	if err != nil {
		return err
	}
	if err := l.appendTo(r, o); err != nil {
		return err
	}
	l.tellParent(parent, r, o)
	l.admitted(r, o)
	return nil
}

// admitted records that an op is part of the group.
func (l *lane) admitted(r *liveRun, o *op) {
	g := &l.group
	l.touch(r)
	o.on = r
	g.ops = append(g.ops, o)
	g.records.Messages = append(g.records.Messages, o.messages...)
	switch {
	case o.asked:
		v := Verdict{ID: o.message, Code: cay.CodeOf(o.verdict)}
		if o.verdict != nil {
			v.Why = o.verdict.Error()
		}
		g.records.Verdicts = append(g.records.Verdicts, v)
	case o.message != 0:
		g.records.Inbox = append(g.records.Inbox, o.message)
	}
}

// appendTo appends an op's events to a run's log: all or none.
func (l *lane) appendTo(r *liveRun, o *op) error {
	if len(o.events) == 0 {
		return nil
	}
	l.touch(r)
	g := &l.group
	now := l.e.now()
	o.mark, o.had = r.log.Mark(), len(r.fresh)
	claims, asks := len(g.claims), len(g.asking)
	for i := range o.events {
		ev := o.events[i]
		ev.Slot = 0
		if ev.At == 0 || !r.log.Run.Kind.External() {
			ev.At = now
		}
		if carried, ok := r.carries(&ev); ok {
			if err := l.adopt(r, carried, &ev); err != nil {
				l.takeBack(r, o, claims, asks)
				return err
			}
			continue
		}
		if ev.Type == history.HookCreated && g.freed[claimKey(r.project(), ev.Token)] {
			l.takeBack(r, o, claims, asks)
			return errNextGroup
		}
		freed := l.frees(r, &ev)
		r.hooks = r.hooks || len(freed) > 0 || ev.Type == history.HookCreated
		stored, err := r.log.Apply(&ev)
		if err != nil {
			l.takeBack(r, o, claims, asks)
			return err
		}
		if !stored {
			continue
		}
		for _, token := range freed {
			if g.freed == nil {
				g.freed = make(map[string]bool)
			}
			g.freed[claimKey(r.project(), token)] = true
		}
		if ev.Type == history.HookCreated {
			c := &Claim{Project: r.project(), Token: ev.Token, Run: r.id, Hook: ev.ID}
			g.claims = append(g.claims, c)
			g.asking = append(g.asking, asking{claim: c, op: o, run: r, index: len(r.fresh)})
		}
		r.fresh = append(r.fresh, ev)
		g.bytes += eventSize(&ev)
		l.note(r, &ev)
	}
	delete(l.drowsy, r.id)
	r.log.Keep(o.mark)
	l.shelved(r, o.blobs)
	r.sealed = r.sealed || len(g.asking) > asks
	r.slumber = false
	return nil
}

// takeBack undoes an op's appends in the group.
func (l *lane) takeBack(r *liveRun, o *op, claims, asks int) {
	g := &l.group
	r.log.Revert(o.mark)
	clear(r.fresh[o.had:])
	r.fresh = r.fresh[:o.had]
	g.claims, g.asking = g.claims[:claims], g.asking[:asks]
}

// frees returns the tokens that an event releases.
func (l *lane) frees(r *liveRun, ev *history.Event) []string {
	switch ev.Type {
	case history.HookDisposed:
		if o, ok := r.log.Open(ev.ID); ok && o.State == history.HookLive {
			return []string{o.Token}
		}
	case history.RunCompleted, history.RunFailed, history.RunCancelled:
		var tokens []string
		for o := range r.log.AllOpen() {
			if o.State == history.HookLive {
				tokens = append(tokens, o.Token)
			}
		}
		return tokens
	}
	return nil
}

func claimKey(project, token string) string { return project + "\x00" + token }

// note updates the fields of a run's row that follow from an event and that the log does
// not set.
func (l *lane) note(r *liveRun, ev *history.Event) {
	switch ev.Type {
	case history.RunStarted, history.AttrSet, history.CancelRequested:
		r.row = true
	case history.RunCompleted, history.RunFailed, history.RunCancelled:
		r.row = true
		r.log.Run.ExpiresAt = l.e.expiry(r)
	case history.StepStarted, history.HookReceived, history.WaitCompleted, history.ChildEnded:
		return // an attempt that kills its worker is no progress, nor is an event from outside
	}
	if r.log.Run.Recoveries != 0 && r.assign == nil && r.progress() {
		r.row = true
	}
}

// commit stores the group, if it has anything to store, and delivers its events.
func (l *lane) commit() {
	g := &l.group
	if len(g.ops) == 0 && len(g.touched) == 0 && len(l.drowsy) < maxDrowsy {
		return
	}
	stored, err := l.store(false)
	l.publishStreams(err)
	if err != nil {
		l.failed(err)
		return
	}
	l.failures = 0
	for _, r := range g.touched {
		l.publish(r, stored)
	}
	if len(g.records.Messages) > 0 {
		l.e.cfg.Messages.Added(g.records.Messages)
	}
	for _, o := range g.ops {
		if o.show && o.on.log != nil {
			o.after = o.on.log.Run
		}
		o.finish(o.err)
	}
	for _, r := range g.touched {
		l.unload(r)
	}
	g.reset()
}

func (g *group) reset() {
	clear(g.ops)
	clear(g.touched)
	clear(g.claims)
	clear(g.asking)
	clear(g.streams)
	*g = group{streams: g.streams[:0], ops: g.ops[:0], touched: g.touched[:0], claims: g.claims[:0], asking: g.asking[:0]}
}

// maxDrowsy bounds the sleeping runs that the store does not know to be asleep.
const maxDrowsy = 1024

// store commits the group. Which runs fell asleep is stored with the next commit: until
// then a crash would only wake them in vain.
func (l *lane) store(flush bool) (stored bool, err error) {
	g := &l.group
	something := flush || len(l.drowsy) >= maxDrowsy ||
		len(g.claims) > 0 || len(g.records.Chunks) > 0 || len(g.records.Inbox) > 0 || len(g.records.Verdicts) > 0 || len(g.records.Post) > 0 || len(g.records.Messages) > 0
	for _, r := range g.touched {
		if something {
			break
		}
		something = len(r.fresh) > 0 || r.row || r.isNew
	}
	if !something {
		return false, nil
	}
	began, events := time.Now(), 0
	err = l.e.store.Commit(context.WithoutCancel(l.e.ctx), &Group{Claims: g.claims, Settle: func() Records {
		l.finishClaimed()
		rec := l.collect()
		for i := range rec.Logs {
			events += len(rec.Logs[i].Events)
		}
		return rec
	}})
	l.e.cfg.Metrics.Committed(events, time.Since(began), err)
	if err == nil {
		clear(l.drowsy)
	}
	return err == nil, err
}

// finishClaimed finishes the ops that depended on claims.
func (l *lane) finishClaimed() {
	for i := range l.group.asking {
		a := &l.group.asking[i]
		switch {
		case a.claim.Owner == "":
		case a.index < 0:
			l.lostKey(a)
		default:
			l.lostToken(a)
		}
	}
}

// lostToken replaces a hook_created whose token belongs to another hook by a
// hook_conflict. The op is the run's last op in this group.
func (l *lane) lostToken(a *asking) {
	l.redo(a.run, a.op, func(i int, ev *history.Event) {
		if a.op.had+i == a.index {
			*ev = history.Event{Type: history.HookConflict, ID: ev.ID, Token: ev.Token, Reason: a.claim.Owner}
		}
	})
}

// redo applies an op's events again, with changes.
func (l *lane) redo(r *liveRun, o *op, change func(i int, ev *history.Event)) {
	at := r.fresh[o.had].At
	events := append([]history.Event(nil), r.fresh[o.had:]...)
	r.log.Revert(o.mark)
	r.fresh = r.fresh[:o.had]
	mark := r.log.Mark()
	for i := range events {
		ev := &events[i]
		change(i, ev)
		ev.Slot, ev.At = 0, at
		if _, err := r.log.Apply(ev); err != nil {
			r.log.Revert(mark)
			r.fresh = r.fresh[:o.had]
			o.err = err
			return
		}
		r.fresh = append(r.fresh, *ev)
		l.note(r, ev)
	}
	r.log.Keep(mark)
}

// collect returns the records that the group stores.
func (l *lane) collect() Records {
	g := &l.group
	rec := g.records
	for _, r := range g.touched {
		if r.log == nil {
			continue
		}
		if len(r.fresh) > 0 {
			rec.Logs = append(rec.Logs, Log{Run: &r.log.Run, Events: r.fresh})
		}
		if r.isNew || r.row {
			rec.Runs = append(rec.Runs, r.log.Run)
		}
		if r.asleep && !r.slumber {
			delete(l.drowsy, r.id)
			rec.Awake = append(rec.Awake, r.id)
		} else if r.slumber && r.isNew {
			rec.Asleep = append(rec.Asleep, r.id)
		}
	}
	for id := range l.drowsy {
		rec.Asleep = append(rec.Asleep, id)
	}
	return rec
}

// publish delivers the committed events of a run.
func (l *lane) publish(r *liveRun, stored bool) {
	e := l.e
	if r.log == nil { // the creation was undone
		l.forget(r)
		return
	}
	r.log.Keep(r.mark)
	events, isNew, next := r.withBlobs(r.fresh), r.isNew, r.assign
	if e.feed.watched() && (len(events) > 0 || r.row) {
		e.feed.publish(r, events)
	}
	if stored {
		r.asleep = r.slumber
	}
	if r.turn && r.log.Run.Recoveries == 0 {
		r.turn = false
		e.dispatch.turnOver(r.session, r.id)
	}
	want := r.want || len(events) > 0 && !r.slumber
	r.resetGroup()

	row := &r.log.Run
	switch {
	case next != nil:
		l.give(r, next, events)
	case r.session != nil && len(events) > 0:
		r.session.runner.Deliver(r.id, r.lease, events)
	case r.whole:
		r.known = append(r.known, events...)
	}
	r.show()
	if row.Status.Terminal() {
		r.owner.Store(nil) // callers that begin to wait for the run's end now read the store
	}
	if len(events) > 0 {
		e.hub.publish(row, events)
	}
	if isNew {
		e.cfg.Metrics.RunCreated(row.Project, row.Workflow)
		if row.Status == history.Pending && row.NotBefore > row.UpdatedAt {
			e.timers.add(Due{Run: r.id, At: row.NotBefore})
		}
	}
	ended := false
	for i := range events {
		switch ev := &events[i]; ev.Type {
		case history.WaitCreated, history.StepRetrying:
			if ev.Until != 0 && !row.Kind.External() {
				e.timers.add(Due{Run: r.id, ID: ev.ID, At: ev.Until})
			}
		case history.RunCompleted, history.RunFailed, history.RunCancelled:
			ended = true
		}
	}
	if ended {
		l.end(r)
		return
	}
	if want && r.session == nil && !row.Status.Terminal() {
		l.wantWorker(r)
	}
}

// resetGroup resets a run's fields of the group.
func (r *liveRun) resetGroup() {
	r.inGroup, r.mark, r.fresh, r.isNew, r.row = false, history.Mark{}, nil, false, false
	r.sealed, r.slumber, r.want, r.assign, r.blobs, r.hooks = false, false, false, nil, nil, false
}

// give hands a run to a worker that has room for it.
func (l *lane) give(r *liveRun, a *assignment, events []history.Event) {
	log := append(r.known, events...)
	r.known, r.whole = nil, false
	delete(l.drowsy, r.id)
	r.session, r.lease = a.session, l.e.leases.Add(1)
	if !a.session.take(r) {
		r.session = nil
		l.e.dispatch.given(a.ticket)
		l.e.dispatch.free(a.session, r.id)
		t := ticketOf(&r.log.Run)
		t.recovered = a.ticket.recovered
		l.e.dispatch.enqueue(t)
		return
	}
	row := r.log.Run
	l.e.dispatch.given(a.ticket)
	r.charged = a.charged
	if a.ticket.suspect() {
		l.beginTurn(r)
	}
	l.e.cfg.Metrics.RunAssigned(row.Project, row.Workflow, a.ticket.recovered, time.Since(a.ticket.queued))
	a.session.runner.Assign(workflow.Assignment{Run: row, Lease: r.lease, Events: log, Recovered: a.ticket.recovered})
}

// end detaches and unloads a run that has ended.
func (l *lane) end(r *liveRun) {
	row := &r.log.Run
	if r.session != nil {
		s := r.session
		l.detach(r)
		s.runner.Revoke(r.id, r.lease)
	}
	if row.Kind.External() {
		l.e.door.Ended(row.Project, row.Workflow, r.id, row.StartedAt != 0)
	} else if row.StartedAt != 0 {
		l.e.dispatch.ended(r.workflowName(), row.Group)
	}
	if row.ExpiresAt < 0 {
		select {
		case l.e.strip <- struct{}{}:
		default:
		}
	}
	took := time.Duration(row.CompletedAt-row.CreatedAt) * time.Millisecond
	l.e.cfg.Metrics.RunEnded(row.Project, row.Workflow, row.Status, took)
}

// detach takes a run from its worker; the caller tells the worker if necessary.
func (l *lane) detach(r *liveRun) {
	s := r.session
	r.session, r.charged, r.turn = nil, false, false
	s.drop(r.id)
	l.e.dispatch.free(s, r.id)
}

// wantWorker finds a worker for a run, or puts the run in line.
func (l *lane) wantWorker(r *liveRun) {
	t := ticketOf(&r.log.Run)
	if r.whole && t.started {
		if s := l.e.dispatch.reserve(t); s != nil {
			l.give(r, &assignment{session: s, ticket: t}, nil)
			return
		}
	}
	l.e.dispatch.enqueue(t)
}

// forget drops a run from memory.
func (l *lane) forget(r *liveRun) {
	if l.runs[r.id] == r {
		delete(l.runs, r.id)
		l.e.live.Delete(r.id)
		l.kept.drop(r)
		r.hide()
		r.memo.drop()
		if l.e.owner != nil && r.log != nil && r.log.Run.Kind.External() {
			l.forgetStreamsOf(r.id)
		}
	}
}

// unload drops a run from memory if nothing needs it there.
func (l *lane) unload(r *liveRun) {
	if !r.needed() && !l.keep(r) {
		l.forget(r)
	}
}

// needed reports whether a run has a worker or is part of pending work.
func (r *liveRun) needed() bool {
	return r.session != nil || r.assign != nil || r.loading || r.inGroup || len(r.waiting) > 0
}
