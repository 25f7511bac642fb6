package workflowd

import (
	"context"
	"sync/atomic"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/workflow"
)

// Transact commits the changes that f makes in the engine's database together with the
// event that f returns. Meanwhile the run is held: its lane makes all other ops on it
// wait, and does not touch it.
func (s *session) Transact(ctx context.Context, run string, lease uint64, f func(ctx context.Context, tx workflow.Tx) (workflow.Event, error)) error {
	s.mu.Lock()
	if s.over {
		s.mu.Unlock()
		return notYours(run)
	}
	s.transactions.Add(1)
	s.mu.Unlock()
	defer s.transactions.Done()

	l := s.laneOf(run)
	r, err := s.hold(ctx, l, run, lease)
	if err != nil {
		return err
	}
	events, err := s.e.transact(ctx, r, f)
	freed := make(chan struct{})
	if !l.post(func() {
		l.endHold(r, events, err)
		close(freed)
	}) {
		return errClosed // cannot happen: lanes end after sessions
	}
	<-freed
	return err
}

// hold waits until a run is held. If it returns no error, the caller must release the
// run. While the run's log cannot be read, ctx or the end of the session ends the wait.
func (s *session) hold(ctx context.Context, l *lane, run string, lease uint64) (*liveRun, error) {
	var taken atomic.Bool // set by the lane, which holds the run, or by a caller that has given up
	decided := make(chan error, 1)
	o := &op{run: run, session: s, lease: lease, holds: true, done: func(err error) { decided <- err }}
	o.decide = func(r *liveRun, o *op) error {
		if r.inGroup {
			return errNextGroup
		}
		if !taken.CompareAndSwap(false, true) {
			return notYours(run) // the caller has given up
		}
		r.loading, r.held = true, true
		return nil
	}
	if err := l.push(ctx, o); err != nil {
		return nil, err
	}
	select {
	case err := <-decided:
		return o.on, err
	case <-ctx.Done():
		if taken.CompareAndSwap(false, true) {
			return nil, wire.ContextError(ctx)
		}
	case <-s.ending:
		if taken.CompareAndSwap(false, true) {
			return nil, notYours(run)
		}
	}
	err := <-decided // its group is being stored
	return o.on, err
}

// unhold ends the hold on a run whose group was not stored. Waiting ops resume between
// two groups, or after the log was read if it has to be.
func (l *lane) unhold(r *liveRun, unsure bool) {
	r.held = false
	if unsure {
		return
	}
	l.post(func() {
		r.loading = false
		l.goOn(r)
	})
}

// goOn resumes the ops that waited for a run.
func (l *lane) goOn(r *liveRun) {
	if l.runs[r.id] != r {
		return // the run was dropped meanwhile
	}
	waiting := r.waiting
	r.waiting = nil
	l.readmit(r, waiting)
	l.unload(r)
}

// transact runs the transaction on a held run. It returns the stored event.
func (e *Engine) transact(ctx context.Context, r *liveRun, f func(ctx context.Context, tx workflow.Tx) (workflow.Event, error)) (events []history.Event, err error) {
	mark := r.log.Mark()
	defer func() {
		if err != nil {
			r.log.Revert(mark)
		} else {
			r.log.Keep(mark)
		}
	}()
	var rec Records
	err = e.store.Transact(ctx, &Group{Settle: func() Records { return rec }}, func(tx Tx) error {
		ev, err := f(ctx, tx)
		if err != nil {
			return err
		}
		switch ev.Type {
		case history.StepCompleted, history.StepFailed, history.StepRetrying:
		default:
			return cay.Errorf(cay.Invalid, "a transaction of a step cannot append an event of type %s", ev.Type)
		}
		shelved, blobs, err := e.shelve(r.id, []history.Event{ev})
		if err != nil {
			return err
		}
		stored := &shelved[0]
		stored.Slot, stored.At = 0, e.now()
		if _, err := r.log.Apply(stored); err != nil {
			return err
		}
		ev.Slot, ev.At = stored.Slot, stored.At
		events = []history.Event{ev}
		rec = Records{Logs: []Log{{Run: &r.log.Run, Events: shelved}}, Blobs: blobs}
		if r.log.Run.Recoveries != 0 && r.progress() {
			rec.Runs = []history.Run{r.log.Run}
		}
		return nil
	})
	return events, err
}

// endHold ends the hold on a run: it delivers the committed events and resumes the waiting
// ops.
func (l *lane) endHold(r *liveRun, events []history.Event, err error) {
	r.loading, r.held = false, false
	switch {
	case l.runs[r.id] != r:
		return // the run was dropped meanwhile
	case err == nil:
		r.fresh, r.mark = events, r.log.Mark()
		l.publish(r, false)
		if most := int64(l.e.dispatch.maxEvents(r.workflowName())); r.log.Run.Events > most-most/10 && !r.log.Limited() {
			l.pushNow(&op{run: r.id, owned: true, events: []history.Event{{Type: history.LimitReached}}})
		}
	case cay.CodeOf(err) == cay.Unavailable:
		// The event may have been stored, so the log has to be read again.
		l.doubt(r)
	}
	l.goOn(r)
}
