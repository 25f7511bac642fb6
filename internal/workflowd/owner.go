package workflowd

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/wire"
)

// The engine's part in sharing a database with other processes. A lane only touches runs
// that this process owns: runs that it created, claimed or took. Handing a run over also
// goes through its lane, so that no event is appended to a run that is being handed over.

const (
	claimPage = 500
	inboxPage = 500
)

// errElsewhere is returned for an op on a run that this process does not own, or is about
// to give up.
var errElsewhere = errors.New("the run is not this process's")

// errLost is returned to callers after other processes have taken over this process's
// runs.
var errLost = cay.Errorf(cay.Unavailable, "the workflow engine lost its database for a time: try again")

// ownership is the engine's state as an owner of runs.
type ownership struct {
	mu       sync.Mutex     // guards the fields below
	leaving  []string       // runs to disown
	givenUp  []string       // runs being disowned
	inbox    map[int64]bool // messages in progress; true: finished since the inbox was last read
	starved  bool           // there may be runs to claim, but the workers had no room
	losing   bool           // all runs are being dropped
	renewed  time.Time
	wake     chan struct{} // leaving has runs
	claim    chan struct{} // there may be runs to claim
	register chan struct{} // the registration was lost
}

func (o *ownership) init() {
	o.inbox = make(map[int64]bool)
	o.wake, o.claim, o.register = make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1)
	o.renewed = time.Now()
}

func token(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// own starts the goroutines that a shared database needs. They run until the engine ends.
func (e *Engine) own() {
	e.spawn(e.renewLoop)
	e.spawn(e.noticeLoop)
	e.spawn(e.disownLoop)
	e.spawn(e.learnLoop)
}

// renewLoop renews the process's registration, or registers again.
func (e *Engine) renewLoop() {
	lease := e.owner.Lease()
	tick := time.NewTicker(lease / 3)
	defer tick.Stop()
	refresh := time.Now()
	for {
		select {
		case <-e.ctx.Done():
			return
		case <-e.ownership.register:
			e.registerAnew()
			continue
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(e.ctx, lease/3)
		began := time.Now()
		err := e.owner.Renew(ctx)
		cancel()
		e.ownership.mu.Lock()
		if err == nil {
			e.ownership.renewed = began
		}
		late := time.Since(e.ownership.renewed) > lease*2/3
		e.ownership.mu.Unlock()
		switch {
		case e.ctx.Err() != nil:
			return
		case cay.CodeOf(err) == cay.Conflict || late:
			e.log.Error("others may have taken over the runs of this process", "error", err)
			e.lose()
		case err != nil:
			e.log.Warn("cannot renew the lease", "error", err)
		}
		if time.Since(refresh) > refreshSchedules {
			refresh = time.Now()
			e.schedules.stale()
		}
	}
}

// lose drops all runs: other processes own them, or may own them.
func (e *Engine) lose() {
	e.ownership.mu.Lock()
	if e.ownership.losing {
		e.ownership.mu.Unlock()
		return
	}
	e.ownership.losing = true
	e.ownership.mu.Unlock()
	e.dispatch.clear()
	e.timers.clear()
	for _, l := range e.lanes {
		l.post(l.drop)
	}
	token(e.ownership.register)
}

// registerAnew registers again after the registration was lost.
func (e *Engine) registerAnew() {
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		// Before new runs are claimed, the lanes must have dropped their old ones.
		var lanes sync.WaitGroup
		for _, l := range e.lanes {
			lanes.Add(1)
			if !l.post(lanes.Done) {
				lanes.Done()
			}
		}
		lanes.Wait()
		began := time.Now()
		err := e.owner.Register(e.ctx)
		if err == nil {
			e.ownership.mu.Lock()
			e.ownership.losing, e.ownership.renewed = false, began
			e.ownership.leaving = nil
			e.ownership.mu.Unlock()
			e.log.Info("registered anew")
			e.changedElsewhere("") // no notices of the time without a registration
			token(e.ownership.claim)
			return
		}
		if !e.sleep(wait) {
			return
		}
		e.log.Warn("cannot register, will try again", "error", err)
	}
}

// drop drops all runs, ops and streams of a lane.
func (l *lane) drop() {
	g := &l.group
	for _, o := range g.ops {
		o.finish(errLost)
	}
	for _, r := range g.touched {
		if r.log != nil && !r.isNew {
			r.log.Revert(r.mark)
		}
		if a := r.assign; a != nil {
			l.e.dispatch.giveBack(a.session, a.ticket)
		}
		r.resetGroup()
	}
	l.publishStreams(errLost)
	g.reset()
	for _, o := range l.again {
		o.finish(errLost)
	}
	l.again = nil
	for _, r := range l.runs {
		if s := r.session; s != nil {
			l.detach(r)
			s.runner.Revoke(r.id, r.lease)
		}
		waiting := r.waiting
		r.waiting = nil
		for _, o := range waiting {
			o.finish(errLost)
		}
		l.forget(r)
	}
	clear(l.drowsy)
	clear(l.leaving)
	for key, s := range l.streams {
		for _, o := range s.waiting {
			o.finish(errLost)
		}
		s.waiting = nil
		delete(l.streams, key)
	}
}

// noticeLoop handles the notices of other processes.
func (e *Engine) noticeLoop() {
	notices := e.owner.Notices()
	for {
		var n Notice
		var ok bool
		select {
		case <-e.ctx.Done():
			return
		case <-e.ownership.claim:
			n, ok = Notice{Kind: NoticeClaim}, true
		case n, ok = <-notices:
		}
		if !ok {
			return
		}
		var err error
		switch n.Kind {
		case NoticeInbox:
			err = e.drainInbox()
		case NoticeClaim:
			err = e.claimRuns()
		case NoticeChanged:
			e.changedElsewhere(n.Run)
		case NoticeAsked:
			err = e.giveUp(n.Run)
		case NoticeSchedules:
			e.feed.schedules("")
		case NoticeAll:
			e.changedElsewhere("")
			err = errors.Join(e.drainInbox(), e.claimRuns())
		}
		if err != nil && e.ctx.Err() == nil {
			// The store checks again by itself and sends another notice.
			e.log.Warn("cannot do what another process asks for", "notice", string(n.Kind), "error", err)
		}
	}
}

// drainInbox carries out the messages of other processes.
func (e *Engine) drainInbox() error {
	for {
		// Messages that are finished by now are not in the inbox that is read next.
		e.ownership.mu.Lock()
		maps.DeleteFunc(e.ownership.inbox, func(_ int64, over bool) bool { return over })
		e.ownership.mu.Unlock()
		messages, err := e.owner.Inbox(e.ctx, inboxPage)
		if err != nil {
			return err
		}
		fresh := false
		for i := range messages {
			fresh = e.takeIn(&messages[i]) || fresh
		}
		if len(messages) < inboxPage || !fresh {
			return nil
		}
	}
}

// takeIn asks a run's lane to carry out a message. It reports false if the message is in
// progress, or was when the inbox was read: it may have been finished since.
func (e *Engine) takeIn(m *Message) bool {
	e.ownership.mu.Lock()
	_, under := e.ownership.inbox[m.ID]
	if !under {
		e.ownership.inbox[m.ID] = false
	}
	e.ownership.mu.Unlock()
	if under {
		return false
	}
	id := m.ID
	done := func(error) {
		e.ownership.mu.Lock()
		defer e.ownership.mu.Unlock()
		e.ownership.inbox[id] = true
	}
	o := &op{run: m.Run, message: id, owned: true, done: done, asked: m.Event.Type == history.HookReceived}
	var err error
	if o.events, o.blobs, err = e.shelve(m.Run, []history.Event{m.Event}); err != nil {
		e.log.Error("a message cannot be taken in", "run", m.Run, "error", err)
		o.events, o.verdict = nil, err
	}
	if token := m.Event.Token; o.asked && token != "" && len(o.events) > 0 {
		o.decide = func(r *liveRun, o *op) error { return e.receive(r, o, token) }
	}
	l, err := e.route(e.ctx, m.Run)
	if err != nil || !l.pushNow(o) {
		done(err)
	}
	return true
}

// receive decides about a hook's value that another process has accepted: which hook of
// the run has the token by now, and whether the log has room.
func (e *Engine) receive(r *liveRun, o *op, token string) error {
	live, ok := r.log.LiveHook(token)
	if !ok {
		return r.noHook()
	}
	if err := e.crowded(r, history.HookReceived); err != nil {
		return err
	}
	o.events = slices.Clone(o.events)
	o.events[0].ID, o.events[0].Token = live.ID, ""
	return nil
}

// send leaves a hook's value in the inbox of the run's owner, and waits until the owner
// has taken it in. Errors: not_found, quota_exceeded; after deadline_exceeded and
// canceled the owner may still take it in.
func (e *Engine) send(ctx context.Context, m Message) error {
	id, err := e.owner.Post(ctx, m)
	if err != nil {
		return err
	}
	looked := time.Now()
	for wait := time.Millisecond; ; wait = min(2*wait, maxVerdictWait) {
		v, err := e.owner.Verdict(ctx, id)
		switch {
		case cay.CodeOf(err) == cay.NotFound:
			return errNoHook
		case err != nil:
			return err
		case v != nil && v.Code == errNoHook.Code:
			return errNoHook
		case v != nil && v.Code != "":
			return cay.Errorf(v.Code, "%s", v.Why)
		case v != nil:
			return nil
		}
		if time.Since(looked) > verdictPatience { // the owner may have died
			looked = time.Now()
			if _, err := e.mine(ctx, m.Run); err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			return wire.ContextError(ctx)
		}
		if !e.sleep(wait) {
			return errClosed
		}
	}
}

// maxVerdictWait is the longest pause between two looks for a verdict; verdictPatience is
// how long send waits before it checks whether the run's owner is alive.
const (
	maxVerdictWait  = 50 * time.Millisecond
	verdictPatience = time.Second
)

// mayClaim wakes the claim loop, because workers have room for more runs.
func (e *Engine) mayClaim() {
	if e.owner == nil {
		return
	}
	e.ownership.mu.Lock()
	starved := e.ownership.starved
	e.ownership.starved = false
	e.ownership.mu.Unlock()
	if starved {
		token(e.ownership.claim)
	}
}

// claimRuns claims runs that no live process owns, as many as the workers have room for.
func (e *Engine) claimRuns() error {
	for {
		e.ownership.mu.Lock()
		room := e.dispatch.room()
		e.ownership.starved = room <= 0
		losing := e.ownership.losing
		e.ownership.mu.Unlock()
		if room <= 0 || losing {
			return nil
		}
		runs, err := e.owner.Claim(e.ctx, min(room, claimPage))
		if err != nil {
			return err
		}
		e.timers.reload() // the store does not return sleeping runs
		slices.SortStableFunc(runs, func(a, b history.Run) int { return cmp.Compare(a.Recoveries, b.Recoveries) })
		for i := range runs {
			e.takeOver(&runs[i])
		}
		if len(runs) == 0 {
			return nil
		}
	}
}

// serve tells the store which workflows this process has workers for.
func (e *Engine) serve() {
	if e.owner == nil {
		return
	}
	var all []Served
	e.mu.Lock()
	for s := range e.sessions {
		for i := range s.info.Definitions {
			for _, build := range append([]string{s.info.Build}, s.info.Accept...) {
				all = append(all, Served{Project: s.project, Workflow: s.info.Definitions[i].Name, Build: build})
			}
		}
	}
	e.mu.Unlock()
	slices.SortFunc(all, func(a, b Served) int {
		return cmpStrings(a.Project, b.Project, a.Workflow, b.Workflow, a.Build, b.Build)
	})
	e.owner.Serve(slices.Compact(all))
	token(e.ownership.claim)
}

// cmpStrings compares pairs of strings; the first pair that differs decides.
func cmpStrings(pairs ...string) int {
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i] != pairs[i+1] {
			if pairs[i] < pairs[i+1] {
				return -1
			}
			return 1
		}
	}
	return 0
}

// handOver gives up a run that this process has no worker for, so that other processes
// can claim it.
func (e *Engine) handOver(t *ticket) {
	l := e.laneOf(t.run, t.root)
	l.post(func() {
		l.commit()
		r := l.runs[t.run]
		if r != nil && (r.session != nil || r.assign != nil) {
			return // a worker has attached
		}
		if r != nil && (r.loading || r.inGroup || len(r.waiting) > 0) {
			e.dispatch.enqueueLater(t)
			return
		}
		l.leave(t.run)
	})
}

// leave gives up a run that no op is under way for.
func (l *lane) leave(run string) {
	if r := l.runs[run]; r != nil {
		l.forget(r)
	}
	l.forgetStreamsOf(run)
	delete(l.drowsy, run)
	l.leaving[run] = struct{}{}
	l.e.ownership.mu.Lock()
	l.e.ownership.leaving = append(l.e.ownership.leaving, run)
	l.e.ownership.mu.Unlock()
	token(l.e.ownership.wake)
}

// giveUp gives up an external run that another process has asked for. If something is
// under way for the run, that process has to ask again.
func (e *Engine) giveUp(run string) error {
	row, err := e.store.Run(e.ctx, run)
	if err != nil || !row.Kind.External() || row.Status.Terminal() {
		return err
	}
	l := e.laneOf(run, row.Root)
	l.post(func() {
		l.commit()
		if _, leaves := l.leaving[run]; !leaves && !l.busyWith(run) {
			l.leave(run)
		}
	})
	return nil
}

// busyWith reports whether the lane reads a run or one of its streams for an op.
func (l *lane) busyWith(run string) bool {
	if r := l.runs[run]; r != nil && r.needed() {
		return true
	}
	for key, s := range l.streams {
		if key.run == run && s.loading {
			return true
		}
	}
	return slices.ContainsFunc(l.again, func(o *op) bool { return o.run == run })
}

// wish is a wish of this process for an external run that another process owns.
type wish struct{ since, asked time.Time }

const (
	// wishPatience is how long a caller waits for a run of another process. The process
	// may be dead, in which case the run is free at the end of its lease.
	wishPatience = 15 * time.Second
	askEvery     = 200 * time.Millisecond
)

// ask asks for the run, unless that was done a moment ago, and waits a little. Errors:
// unavailable, the owner has not given up the run for wishPatience; those of ctx; closed.
func (w *wish) ask(ctx context.Context, e *Engine, run string) error {
	now := time.Now()
	if w.since.IsZero() {
		w.since = now
	}
	if now.Sub(w.since) > wishPatience {
		return cay.Errorf(cay.Unavailable, "run %s is another process's, which does not give it up", run)
	}
	if now.Sub(w.asked) >= askEvery {
		w.asked = now
		if err := e.owner.Ask(ctx, run); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return wire.ContextError(ctx)
	}
	if !e.sleep(firstRetry) {
		return errClosed
	}
	return nil
}

// disownLoop disowns runs, many at a time.
func (e *Engine) disownLoop() {
	wait := firstRetry
	for {
		select {
		case <-e.ctx.Done():
			return
		case <-e.ownership.wake:
		}
		e.ownership.mu.Lock()
		ids := e.ownership.leaving
		e.ownership.leaving, e.ownership.givenUp = nil, ids
		e.ownership.mu.Unlock()
		if len(ids) == 0 {
			continue
		}
		if err := e.owner.Disown(e.ctx, ids); err != nil {
			if e.ctx.Err() != nil {
				return
			}
			e.log.Warn("cannot give up runs, will try again", "error", err)
			e.ownership.mu.Lock()
			e.ownership.leaving = append(ids, e.ownership.leaving...)
			e.ownership.mu.Unlock()
			token(e.ownership.wake)
			if !e.sleep(wait) {
				return
			}
			wait = min(2*wait, lastRetry)
			continue
		}
		wait = firstRetry
		for _, l := range e.lanes {
			l.post(func() {
				for _, id := range ids {
					delete(l.leaving, id)
				}
			})
		}
		e.ownership.mu.Lock()
		e.ownership.givenUp = nil
		e.ownership.mu.Unlock()
	}
}

// leaves reports whether this process is giving up a run at the moment.
func (e *Engine) leaves(id string) bool {
	e.ownership.mu.Lock()
	defer e.ownership.mu.Unlock()
	return slices.Contains(e.ownership.leaving, id) || slices.Contains(e.ownership.givenUp, id)
}

// mine reports whether this process owns a run; it takes the run if no live process owns
// it.
func (e *Engine) mine(ctx context.Context, id string) (bool, error) {
	if _, ok := e.live.Load(id); ok || e.dispatch.waits(id) {
		return true, nil
	}
	owned, err := e.owner.Take(ctx, []string{id})
	if err != nil || len(owned) == 0 {
		return false, err
	}
	e.timers.reload()
	return true, nil
}

// tries is how often an op is tried on a run that keeps changing owners.
const tries = 10

// actShared is act for a database in which other processes may own the run.
func (b *backend) actShared(ctx context.Context, id string, decide func(r *liveRun, o *op) error) (*history.Run, error) {
	e := b.e
	var w wish
	for n := 0; n < tries; {
		// A run that is being given up has no owner in a moment. A message left for its
		// owner would wait for the next owner, possibly for ever. So wait until the run
		// has left, however long that takes.
		leaves := e.leaves(id)
		mine, err := e.mine(ctx, id)
		if err != nil {
			return nil, err
		}
		if !mine && !leaves {
			row, err := e.store.Run(ctx, id)
			if err != nil {
				return nil, err
			}
			if !row.Kind.External() || row.Status.Terminal() {
				break
			}
			if err := w.ask(ctx, e, id); err != nil {
				return nil, err
			}
			continue
		}
		if mine {
			after, err := b.actHere(ctx, id, decide)
			if err != errElsewhere {
				if err == nil && !after.Status.Terminal() {
					e.requeue(after)
				}
				return after, err
			}
		}
		if !leaves {
			n++
		} else if ctx.Err() != nil {
			return nil, wire.ContextError(ctx)
		}
		if !e.sleep(firstRetry) {
			break
		}
	}
	// Another process owns the run: decide on a copy of the run, and send the resulting
	// events as messages to the owner, which decides again when it reads them.
	log, known, err := e.readLog(ctx, id)
	if err != nil {
		return nil, err
	}
	r, o := &liveRun{id: id, log: log}, new(op)
	r.readOrigin(&known[0])
	if err := decide(r, o); err != nil {
		return nil, err
	}
	if log.Run.Kind.External() && len(o.events) > 0 {
		return nil, cay.Errorf(cay.Unavailable, "run %s is another process's", id)
	}
	events := slices.Clone(o.events)
	err = unshelve(events, func(name string) ([]byte, error) {
		for _, blob := range o.blobs {
			if blob.Name == name {
				return blob.Data, nil
			}
		}
		return nil, cay.Errorf(cay.Internal, "a payload of run %s is missing", id)
	})
	if err != nil {
		return nil, err
	}
	for i := range events {
		stored := o.events[i]
		stored.At = e.now()
		if is, err := log.Apply(&stored); err != nil {
			return nil, err
		} else if !is {
			continue
		}
		if events[i].Type == history.HookReceived {
			open, _ := log.Open(events[i].ID)
			events[i].Token = open.Token
			if err := e.send(ctx, Message{Run: id, Event: events[i]}); err != nil {
				return nil, err
			}
			continue
		}
		if _, err := e.owner.Post(ctx, Message{Run: id, Event: events[i]}); err != nil {
			return nil, err
		}
	}
	return &log.Run, nil
}

// requeue handles a run that was taken for one op: the run has to be in line for a worker,
// here or in another process.
func (e *Engine) requeue(r *history.Run) {
	if _, ok := e.live.Load(r.ID); ok {
		return
	}
	t := ticketOf(r)
	if !e.dispatch.serves(t) {
		e.dispatch.enqueue(t)
	}
}

// endElsewhere asks a child that another process may own to end.
func (e *Engine) endElsewhere(id, parent, reason string) error {
	b := &backend{e: e}
	_, err := e.onChain(e.ctx, id, func(id string) (*history.Run, error) {
		return b.actShared(e.ctx, id, func(r *liveRun, o *op) error { return cancelChild(r, o, parent, reason) })
	})
	return err
}
