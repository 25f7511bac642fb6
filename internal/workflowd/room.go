package workflowd

import (
	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
)

// The log of a run may have DefinitionInfo.MaxEvents. At 90 % of that the engine appends
// limit_reached, which ends everything that the run's code waits for. The code may then
// undo what it has done. For that the log may grow to twice the number, because most
// steps have one other step that undoes them. A run whose log is longer fails. Calls from
// outside are refused long before the limit, so that only the run's own code can reach
// it.

// tooLong decides about a worker's op if the run's log has many events.
func (l *lane) tooLong(r *liveRun, o *op) error {
	if o.session == nil || len(o.events) == 0 || ends(&o.events[len(o.events)-1]) {
		return nil
	}
	most := int64(l.e.dispatch.maxEvents(r.workflowName()))
	n := r.log.Run.Events + int64(len(o.events))
	switch {
	case n <= most-most/10:
		return nil
	case !r.log.Limited():
		if o.events[0].Type != history.LimitReached {
			o.events = append([]history.Event{{Type: history.LimitReached}}, o.events...)
		}
		return nil
	case n <= 2*most:
		return nil
	}
	l.pushNow(&op{run: r.id, events: []history.Event{{Type: history.RunFailed, Code: history.CodeMaxEvents,
		Payload: failure("the run's log has %d events, and may have %d, or twice that to undo what was done: continue as a new run before that", r.log.Run.Events, most)}}})
	return cay.Errorf(cay.Conflict, "run %s has as many events as it may", r.id)
}

// crowded refuses requests from outside with quota_exceeded: every request if the log has
// 80 % of its maximum number of events, and a hook's value also if values are 25 % of
// that maximum.
func (e *Engine) crowded(r *liveRun, typ history.Type) error {
	most := int64(e.dispatch.maxEvents(r.workflowName()))
	switch {
	case typ == history.HookReceived && r.log.Values() >= max(most/4, 1):
		return cay.Errorf(cay.QuotaExceeded, "hooks of run %s have received %d values, as many as they may until it is continued as a new run", r.id, r.log.Values())
	case r.log.Run.Events >= max(most-most/5, 1):
		return cay.Errorf(cay.QuotaExceeded, "the log of run %s has %d of the %d events it may have: it takes nothing more from outside", r.id, r.log.Run.Events, most)
	}
	return nil
}
