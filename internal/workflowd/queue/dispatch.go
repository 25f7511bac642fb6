package queue

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// maxNap bounds how long a jump of the wall clock goes unnoticed.
	maxNap = 10 * time.Second
	// lastPause bounds the pause in leasing after errors of the store.
	lastPause = 5 * time.Second
	// handBack is how long a push may go on after its app has asked for a later delivery.
	handBack = 10 * time.Second
	// busyRetry is how long the queue waits when another process is leasing a message.
	busyRetry = 50 * time.Millisecond
	// probePatience is how long a probe may run before the app counts as working on the
	// message: addresses without an app mostly fail sooner.
	probePatience = time.Second
)

// flight is the delivery of one message, which is being leased or pushed.
type flight struct {
	lane    *lane
	item    *item
	lease   *Lease
	receipt string
	process int // the lane's process when the message was picked
	probe   bool

	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer // fires at the end of the lease
	// patience is the timer of probePatience; nil if the flight is no probe.
	patience *time.Timer

	// Guarded by Queue.mu:
	until        int64 // the end of the lease
	acknowledged bool
	scheduled    bool // the app has asked for a later delivery
	due          int64
	void         bool // the process that the message was pushed to is dead
	hastened     bool // Hasten was called during the delivery
}

var errLapsed = errors.New("the lease is over")

// dispatch delivers due messages until the queue ends.
func (q *Queue) dispatch() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-q.ctx.Done():
			return
		case <-timer.C:
		case <-q.wake:
		}
		timer.Reset(q.turn())
	}
}

// turn starts as many deliveries as the bounds allow, and returns how long to wait before
// the next turn.
func (q *Queue) turn() time.Duration {
	now := q.now()
	q.mu.Lock()
	for len(q.clock) > 0 && q.clock[0].at <= now {
		q.advanceLocked(q.clock[0], now)
	}
	picked := q.pickLocked(now)
	nap := maxNap
	if len(q.clock) > 0 {
		nap = min(nap, time.Duration(q.clock[0].at-now)*time.Millisecond)
	}
	if q.pauseUntil > now {
		nap = min(nap, time.Duration(q.pauseUntil-now)*time.Millisecond)
	}
	q.mu.Unlock()
	for _, f := range picked {
		ok := q.w.submit(op{
			add:  func(b *Batch) { b.Lease = append(b.Lease, f.lease) },
			size: f.item.size,
			done: func(err error) { q.leased(f, err) },
		})
		if !ok {
			break // the queue ends
		}
	}
	return nap
}

// pickLocked takes messages from the lanes in line, in turn.
func (q *Queue) pickLocked(now int64) (picked []*flight) {
	if q.pusher == nil || q.pauseUntil > now {
		return nil
	}
	for len(q.ring) > 0 && q.inFlight < q.cfg.InFlightAll && q.bytes < q.cfg.InFlightBytes {
		l := q.ring[0]
		q.ring[0] = nil
		q.ring = q.ring[1:]
		l.ringed = false
		if l.servesLocked(now) {
			if it := l.ready.pop(); it != nil {
				picked = append(picked, q.flyLocked(l, it, now))
			}
		}
		q.readyLocked(l)
		q.tickLocked(l)
	}
	return picked
}

func (q *Queue) flyLocked(l *lane, it *item, now int64) *flight {
	if it.receipt == "" {
		it.receipt = newReceipt(it.id)
	}
	it.state = itemInFlight
	until := now + q.cfg.Visibility.Milliseconds()
	f := &flight{
		lane: l, item: it, receipt: it.receipt, until: until, process: l.process, probe: l.held,
		lease: &Lease{ID: it.id, Receipt: it.receipt, Until: until},
	}
	f.ctx, f.cancel = context.WithCancelCause(q.ctx)
	l.probing = l.probing || f.probe
	q.inFlight++
	l.inFlight++
	q.bytes += int64(it.size)
	q.flights[it.id] = f
	return f
}

// flyAtOnce starts the delivery of a message that is about to be stored, if the message
// is due and no other is before it, so that one transaction stores and leases it. It
// returns nil if the message has to wait.
func (q *Queue) flyAtOnce(m *Message) *flight {
	now := q.now()
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.lanes[laneKey{m.Project, m.Deployment}]
	if l == nil || m.Due > now || q.pusher == nil || q.pauseUntil > now || len(q.ring) > 0 || q.inFlight >= q.cfg.InFlightAll ||
		q.bytes >= q.cfg.InFlightBytes || l.held || l.ready.n > 0 || l.dep.URL == "" || l.inFlight >= q.cfg.InFlight {
		return nil
	}
	it := &item{id: m.ID, run: m.Run, due: m.Due, size: len(m.Body), priority: m.Priority}
	l.items[it.id] = it
	return q.flyLocked(l, it, now)
}

// abandon ends the delivery of a message that could not be stored. The lane is loaded
// again, since the database may have stored the message and lost its answer.
func (q *Queue) abandon(f *flight) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.finishLocked(f, 0)
	f.lane.anyLocked(q.now())
	q.tickLocked(f.lane)
}

// leased continues a delivery after its lease was stored, or failed.
func (q *Queue) leased(f *flight, err error) {
	if err != nil {
		if q.ctx.Err() == nil {
			q.log.Warn("cannot lease messages, will try again", "error", err)
		}
		q.mu.Lock()
		q.pauseUntil = q.now() + doubled(firstProbe, q.pauses, lastPause).Milliseconds()
		q.pauses++
		q.endLocked(f)
		f.lane.putLocked(f.item, f.item.due) // keeps its receipt
		q.mu.Unlock()
		q.poke()
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pauses = 0
	if q.ctx.Err() != nil {
		return // the lease stays
	}
	if f.lease.Message == nil {
		// Another process is leasing the message, or the message was deleted.
		next := f.lease.Next
		if next != 0 {
			next = max(next, q.now()+busyRetry.Milliseconds())
		}
		q.finishLocked(f, next)
		return
	}
	to := f.lane.dep
	f.process = f.lane.process
	f.timer = time.AfterFunc(q.until(f.until), func() { q.lapsed(f) })
	if f.probe {
		f.patience = time.AfterFunc(probePatience, func() {
			q.mu.Lock()
			defer q.mu.Unlock()
			q.spokeLocked(f, false)
		})
	}
	pusher := q.pusher
	q.spawnLocked(func() { q.push(f, to, pusher) })
}

// spawnLocked starts a goroutine that Close waits for, unless the queue has ended.
func (q *Queue) spawnLocked(f func()) {
	if q.ctx.Err() == nil {
		q.tasks.Go(f)
	}
}

func (q *Queue) push(f *flight, to Deployment, pusher Pusher) {
	defer f.cancel(nil)
	defer f.timer.Stop()
	if f.patience != nil {
		defer f.patience.Stop()
	}
	m := *f.lease.Message
	f.lease.Message = nil // only the pusher uses the body
	started := q.cfg.Now()
	err := error(nil)
	if to.URL == "" {
		err = fmt.Errorf("%w: it has deregistered", ErrUnreachable)
	} else {
		err = pusher.Push(f.ctx, to, m)
	}
	if q.ctx.Err() != nil {
		return // the lease stays: the app may still work on it
	}
	var parked *ParkedError
	q.mu.Lock()
	if !errors.As(err, &parked) {
		q.reachedLocked(f, err)
	}
	s := q.verdictLocked(f, &m, err)
	if s == nil {
		due := int64(0)
		if !f.acknowledged {
			due = f.due
		}
		acknowledged := f.acknowledged
		q.finishLocked(f, due)
		q.mu.Unlock()
		if acknowledged {
			q.cfg.Metrics.MessageDelivered(m.Project, q.cfg.Now().Sub(started), m.Attempt)
		}
		return
	}
	q.mu.Unlock()
	for n := 0; ; n++ {
		err := q.w.write(q.ctx, 0, func(b *Batch) { b.Settle = append(b.Settle, s) })
		if err == nil {
			break
		}
		if q.ctx.Err() != nil {
			return
		}
		q.log.Warn("cannot store what became of a delivery, will try again", "message", m.ID, "error", err)
		if wait(q.ctx, doubled(firstProbe, n, lastPause)) != nil {
			return
		}
	}
	if s.LastError != "" && s.Next != 0 && !s.Uncounted {
		q.cfg.Metrics.MessageFailed(m.Project)
	}
	q.mu.Lock()
	q.finishLocked(f, s.Next)
	late := parked != nil && f.hastened && s.Due > q.now()
	q.mu.Unlock()
	if late { // Hasten was called after the verdict, and saw the lease
		if _, _, err := q.Hasten(q.ctx, m.Project, m.Run, m.Priority); err != nil && q.ctx.Err() == nil {
			q.log.Warn("cannot hasten the messages of a run", "run", m.Run, "error", err)
		}
	}
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// verdictLocked returns the Settle of a push that has returned; nil if calls of the app
// have settled the message already.
func (q *Queue) verdictLocked(f *flight, m *Message, err error) *Settle {
	if f.acknowledged || f.scheduled {
		return nil
	}
	now := q.now()
	s := &Settle{ID: m.ID, Receipt: f.receipt, Due: now}
	in := func(most time.Duration) { s.Due = now + backoff(m.ID, m.Attempt, most).Milliseconds() }
	var parked *ParkedError
	switch {
	case errors.As(err, &parked):
		s.Uncounted, s.LastError = true, parked.Reason
		if !f.hastened {
			s.Due += parkedFor.Milliseconds()
		}
	case f.void || errors.Is(err, ErrGone): // due now
	case errors.Is(err, ErrUnreachable):
		s.Uncounted = true
	case errors.Is(context.Cause(f.ctx), errLapsed):
		s.LastError = fmt.Sprintf("the app neither answered nor extended its lease for %s", q.cfg.Visibility)
	case errors.Is(err, ErrBroken):
		s.LastError = err.Error()
		if f.process == f.lane.process {
			in(lastBroken)
		} // otherwise the process that had the message is dead
	case err != nil:
		s.LastError = err.Error()
		in(lastRetry)
	default:
		s.LastError = "the app answered and did not acknowledge the message"
		in(lastRetry)
	}
	const most = 2000
	if len(s.LastError) > most {
		s.LastError = s.LastError[:most]
	}
	return s
}

// reachedLocked records whether an app answers for a deployment.
func (q *Queue) reachedLocked(f *flight, err error) {
	l := f.lane
	if f.probe {
		l.probing = false
	}
	if f.void || f.process != l.process {
		return // the push was to an earlier process
	}
	now := q.now()
	if !errors.Is(err, ErrUnreachable) {
		l.probes = 0
		if l.held {
			q.unholdLocked(l)
			q.putStateLocked(l)
		} else if now-l.dep.SeenAt >= seenEvery.Milliseconds() {
			l.dep.SeenAt = now
			q.putStateLocked(l)
		}
		return
	}
	if l.held && !f.probe {
		return // the push began before the last success
	}
	if !l.held {
		l.held = true
		q.log.Info("no app answers for a deployment: its messages are held", "deployment", l.key.deployment, "error", err)
		q.cfg.Metrics.DeploymentHeld(l.key.project, l.key.deployment, true)
	}
	q.fallBackLocked(l)
	l.probeAt = now + doubled(firstProbe, l.probes, lastProbe).Milliseconds()
	l.probes++
	if why := err.Error(); l.dep.Error != why {
		l.dep.Error = why
		q.putStateLocked(l)
	}
}

// spokeLocked resumes the deliveries of a held deployment while its probe is still
// running: the app has called the queue (sure), or has at least accepted the connection.
func (q *Queue) spokeLocked(f *flight, sure bool) {
	l := f.lane
	if !f.probe || !l.held || f.void || f.process != l.process || q.flights[f.item.id] != f {
		return
	}
	if sure {
		l.probes = 0
	}
	l.probing = false
	q.unholdLocked(l)
	q.putStateLocked(l)
	q.poke()
}

// unholdLocked resumes the deliveries of a deployment.
func (q *Queue) unholdLocked(l *lane) {
	if l.held {
		l.held = false
		q.log.Info("an app answers for a deployment again", "deployment", l.key.deployment)
		q.cfg.Metrics.DeploymentHeld(l.key.project, l.key.deployment, false)
	}
	l.dep.Error, l.probeAt = "", 0
	q.readyLocked(l)
	q.tickLocked(l)
}

// putStateLocked stores the state of a deployment's app. It ignores errors: the state is
// for people, and a failing store shows in other calls.
func (q *Queue) putStateLocked(l *lane) {
	r := &Register{Deployment: l.dep, Do: RegisterState}
	q.w.submit(op{
		add: func(b *Batch) { b.Register = append(b.Register, r) },
		done: func(err error) {
			if err != nil {
				q.log.Debug("cannot store the state of a deployment", "deployment", r.Deployment.ID, "error", err)
			}
		},
	})
}

// endLocked releases the resources of a delivery.
func (q *Queue) endLocked(f *flight) {
	if f.lane.probing && f.probe {
		f.lane.probing = false
	}
	if q.flights[f.item.id] == f {
		delete(q.flights, f.item.id)
	}
	f.cancel(nil)
	q.inFlight--
	f.lane.inFlight--
	q.bytes -= int64(f.item.size)
}

// finishLocked ends a delivery. The message is due again at due, or gone if due is 0.
func (q *Queue) finishLocked(f *flight, due int64) {
	q.endLocked(f)
	l, it := f.lane, f.item
	if l.items[it.id] == it {
		l.dropLocked(it)
	}
	if due != 0 {
		l.addLocked(it.entry(due))
	}
	q.readyLocked(l)
	q.tickLocked(l)
	q.poke()
}

// extendLocked applies an Extend of the app.
func (f *flight) extendLocked(q *Queue, x *Extend) {
	f.until = x.Due
	if x.Lease {
		return // the timer checks it when it fires
	}
	f.scheduled, f.due = true, x.Due
	f.until = max(x.Due, q.now()) + handBack.Milliseconds()
	f.timer.Reset(q.until(f.until))
}

// lapsed ends a push whose lease is over, unless another process has extended the lease.
func (q *Queue) lapsed(f *flight) {
	now := q.now()
	if q.store.Changes() != nil {
		e, err := q.store.Entry(q.ctx, f.item.id)
		if err == nil && e != nil && e.LeaseUntil > now {
			q.mu.Lock()
			f.until = max(f.until, e.LeaseUntil)
			q.mu.Unlock()
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.flights[f.item.id] != f {
		return
	}
	if f.until > now {
		f.timer.Reset(q.until(f.until))
		return
	}
	f.cancel(errLapsed)
}
