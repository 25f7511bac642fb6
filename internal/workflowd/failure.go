package workflowd

import (
	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
)

// failed undoes a group that was not stored, or may not have been. It retries the ops of
// workers, so that a full disk or an unreachable database costs them time and no work;
// all other callers get the error.
func (l *lane) failed(err error) {
	g := &l.group
	code := cay.CodeOf(err)
	if l.failures == 0 {
		l.e.log.Error("cannot store events, will try again", "error", err)
	}
	l.failures++
	if code == cay.Conflict && l.e.owner != nil {
		l.drop()
		l.e.lose()
		return
	}
	unsure := code != cay.NoSpace
	for _, r := range g.touched {
		l.rollBack(r, unsure)
	}
	for _, o := range g.ops {
		if o.holds {
			l.unhold(o.on, unsure)
		}
	}
	var retry []*op
	for _, o := range g.ops {
		switch {
		case o.session == nil || o.on == nil || len(o.events) == 0:
			o.finish(err)
		case unsure:
			o.unsure = true
			o.on.waiting = append(o.on.waiting, o)
		default:
			retry = append(retry, o)
		}
	}
	l.again = append(retry, l.again...)
	for _, r := range g.touched {
		l.unload(r)
	}
	g.reset()
	// The other ops of this lane depend on the same disk or database.
	l.e.sleep(min(firstRetry<<min(l.failures, 10), lastRetry/2))
}

// rollBack returns a run to its state before the group. If unsure, the log has to be read
// before the run is used again.
func (l *lane) rollBack(r *liveRun, unsure bool) {
	isNew, want := r.isNew, r.want && !r.isNew
	recovered := false
	if a := r.assign; a != nil {
		l.e.dispatch.giveBack(a.session, a.ticket)
		want, recovered = !isNew, a.ticket.recovered
	}
	switch {
	case r.log == nil:
	case isNew:
		r.log, r.known, r.whole = nil, nil, false
		r.owner.Store(nil)
	default:
		r.log.Revert(r.mark)
	}
	r.resetGroup()
	if unsure {
		l.doubt(r)
	} else if want && r.log != nil {
		t := ticketOf(&r.log.Run)
		t.recovered = recovered
		l.e.dispatch.enqueueLater(t)
	}
}

// doubt makes the lane read a run's log again.
func (l *lane) doubt(r *liveRun) {
	r.doubt = true
	r.hide()
	l.read(r)
}

// resolved resumes a run whose stored state was unknown. log is nil if the run does not
// exist.
func (l *lane) resolved(r *liveRun, log *history.Log, events []history.Event) {
	r.doubt = false
	waiting := r.waiting
	r.waiting = nil
	had := int64(0)
	if r.log != nil {
		had = r.log.Run.Events
	}
	stored := log != nil && log.Run.Events > had
	if log != nil {
		r.log, r.asleep = log, !log.Run.Kind.External()
		r.readOrigin(&events[0])
		if r.session == nil {
			r.known, r.whole = events[:had:had], true
		}
		r.mark = r.log.Mark()
		r.isNew = had == 0
		r.fresh = events[had:]
		r.want, r.hooks = !r.ended(), true
		l.publish(r, false)
	}
	for _, o := range waiting {
		switch {
		case o.run != r.id:
			l.unpark(o, r, notFound(log, r.id))
		case o.unsure && stored:
			o.finish(nil)
		case log == nil && (o.create == nil || o.create.run.ID != r.id):
			o.finish(notFound(nil, r.id))
		default:
			o.unsure = false
			l.admit(o)
		}
	}
}

// passes reports whether an error is temporary: the store is unreachable, or full.
func passes(err error) bool {
	code := cay.CodeOf(err)
	return (code == cay.NoSpace || code == cay.Unavailable) && err != errClosed
}

func notFound(log *history.Log, run string) error {
	if log != nil {
		return nil
	}
	return cay.Errorf(cay.NotFound, "run %q not found", run)
}
