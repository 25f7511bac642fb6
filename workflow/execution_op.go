package workflow

import (
	"context"
	"slices"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
)

// op is a request of the workflow's code, or one that the log says the code has made: a
// step, wait, hook, child, version or change of attributes.
type op struct {
	kind kind
	id   string
	name string
	slot int64 // slot of the first event about the op
	typ  history.Type

	asked    bool // the code has asked for the op in this execution
	recorded bool // the log has the op
	given    bool // effects returned the op
	queued   bool // the op is in execution.fresh
	busy     bool // effects returned the op, and the log has no outcome yet
	settled  bool // the code no longer waits for the op
	ends     bool // a step whose end is in the fed events, perhaps further on

	// under is the canceller that ends the op early. prev and next link the ops that the
	// code waits for.
	under      *canceller
	listed     bool
	prev, next *op

	// promise is what the code waits for: the end of a step or wait, or the creation of a
	// hook or child.
	promise *promise
	// outcome is the event that ends the op, if it was fed before the code asked for the
	// op.
	outcome *Event

	event    *Event // the event that creates a wait, hook, version or change of attributes
	attempt  int    // step: the last recorded attempt; version: its number
	tried    int    // the last attempt of a step that effects returned
	failures int    // attempts of a step that ended in an error
	until    int64  // when a step may be retried
	step     *stepSpec
	hook     *hookState
	child    *childState
}

// stepSpec has the data for executing a step.
type stepSpec struct {
	opts   *stepOptions // read-only
	tx     bool
	input  []byte
	invoke func(ctx context.Context, tx Tx) ([]byte, error)
}

// opList is a list of ops in the order in which the code asked for them.
type opList struct{ first, last *op }

func (l *opList) add(o *op) {
	o.listed = true
	o.prev = l.last
	if l.last == nil {
		l.first = o
	} else {
		l.last.next = o
	}
	l.last = o
}

func (l *opList) remove(o *op) {
	if !o.listed {
		return
	}
	o.listed = false
	if o.prev == nil {
		l.first = o.next
	} else {
		o.prev.next = o.next
	}
	if o.next == nil {
		l.last = o.prev
	} else {
		o.next.prev = o.prev
	}
	o.prev, o.next = nil, nil
}

// counts reports whether the code must ask for an op that the log has. Changes of
// attributes are exempt, because nothing depends on them.
func (o *op) counts() bool { return o.kind != kindAttr }

// outlives reports whether an op is still carried out after the function has returned.
func (o *op) outlives() bool { return o.kind == kindAttr }

// ask returns the op for the next occurrence of a name in f's scope. If the log has the
// op already, it is returned with its recorded state.
func (x *execution) ask(f *flow, k kind, name string, p *promise) *op {
	return x.askFor(k, f.scope.next(k, name), name, f.cancel, p)
}

// maxAsked bounds the ops that the code asks for without waiting: more is taken for an
// endless loop.
const maxAsked = 100_000

func (x *execution) askFor(k kind, id, name string, under *canceller, p *promise) *op {
	if x.asked++; x.asked > maxAsked {
		panic(cay.Errorf(cay.QuotaExceeded, "the workflow asks for more than %d things without waiting for one", maxAsked))
	}
	o := x.ops[id]
	if o == nil {
		o = &op{kind: k, id: id}
		x.ops[id] = o
	} else if o.counts() {
		x.unasked--
	}
	o.asked, o.name, o.under, o.promise = true, name, under, p
	if p != nil {
		p.op = o
	}
	x.queue(o)
	return o
}

// queue marks an op to be returned in effects when all branches wait.
func (x *execution) queue(o *op) {
	if !o.queued {
		o.queued = true
		x.fresh = append(x.fresh, o)
	}
}

// prune drops ops from fresh that the log has completed since: in a long replay, nearly
// all.
func (x *execution) prune() {
	if len(x.fresh) < x.pruneAt {
		return
	}
	x.fresh = slices.DeleteFunc(x.fresh, func(o *op) bool {
		o.queued = o.kind == kindHook || !o.settled && (o.kind == kindStep || !o.recorded)
		return !o.queued
	})
	x.pruneAt = max(minPrune, 2*len(x.fresh))
}

const minPrune = 256

// await adds an op to those that end early with their canceller, or concludes it if its
// outcome was fed already.
func (x *execution) await(o *op) {
	if e := o.outcome; e != nil {
		o.outcome = nil
		o.conclude(x, e)
		return
	}
	x.open.add(o)
}

// record marks an op as recorded in the log.
func (x *execution) record(o *op) {
	o.recorded = true
	if o.kind != kindStep {
		x.rest(o)
	}
}

func (x *execution) rest(o *op) {
	if o.busy {
		o.busy = false
		x.busy--
	}
}

// finish forgets an op that the code has asked for and that gets no more events from the
// log.
func (x *execution) finish(o *op) {
	x.rest(o)
	if o.asked {
		delete(x.ops, o.id)
	}
}

// apply applies an event about the op.
func (o *op) apply(x *execution, e *Event) {
	switch e.Type {
	case history.StepCreated:
		x.record(o)
	case history.StepStarted:
		x.record(o)
		o.attempt = max(o.attempt, e.Attempt)
	case history.StepRetrying:
		x.record(o)
		x.rest(o)
		o.attempt, o.until = max(o.attempt, e.Attempt), e.Until
		o.failures++
		if o.asked && !o.settled {
			x.queue(o)
		}
	case history.WaitCreated:
		x.record(o)
	case history.VersionMarked:
		x.record(o)
		x.settleAsked(o, nil)
	case history.StepCompleted, history.StepFailed, history.WaitCompleted:
		x.record(o)
		if !o.asked {
			o.outcome = e
			return
		}
		o.conclude(x, e)
	case history.HookCreated, history.HookConflict, history.HookReceived, history.HookDisposed:
		x.record(o)
		o.applyHook(x, e)
	case history.ChildStarted, history.ChildEnded:
		x.record(o)
		o.applyChild(x, e)
	}
}

// conclude passes the outcome of a step or wait to the code.
func (o *op) conclude(x *execution, e *Event) {
	x.finish(o)
	if o.settled {
		return
	}
	switch e.Type {
	case history.StepCompleted:
		o.promise.payload = e.Payload
		x.settle(o, nil)
	case history.StepFailed:
		x.settle(o, &StepError{Step: o.name, ID: o.id, Attempts: max(e.Attempt, o.attempt, 1), Err: x.payloads.decodeError(e.Payload)})
	case history.WaitCompleted:
		x.settle(o, nil)
	}
}

// settle ends the code's wait for an op.
func (x *execution) settle(o *op, err error) {
	if o.settled {
		return
	}
	o.settled = true
	x.open.remove(o)
	if o.promise != nil {
		o.promise.resolve(err)
	}
}

// give adds the actions for the op to eff.
func (o *op) give(x *execution, eff *effects) {
	switch o.kind {
	case kindStep:
		o.giveStep(x, eff)
	case kindWait, kindAttr, kindVersion:
		if !o.recorded && !o.given && !o.settled {
			o.giveEvent(x, eff, *o.event)
		}
	case kindHook:
		o.giveHook(x, eff)
	case kindChild:
		if !o.recorded && !o.given {
			o.given = true
			x.engage(o)
			eff.children = append(eff.children, o.child.call(o))
		}
	}
}

func (o *op) giveEvent(x *execution, eff *effects, e Event) {
	o.given = true
	x.engage(o)
	e.ID = o.id
	eff.appends = append(eff.appends, e)
}

func (x *execution) engage(o *op) {
	if !o.busy {
		o.busy = true
		x.busy++
	}
}

func (o *op) giveStep(x *execution, eff *effects) {
	attempt := o.attempt + 1
	if o.settled || o.tried >= attempt {
		return
	}
	o.tried = attempt
	s := o.step
	call := &stepCall{
		id: o.id, name: o.name, attempt: attempt, failures: o.failures, opts: *s.opts, tx: s.tx, invoke: s.invoke,
		created: o.recorded,
		record:  attempt > 1 || x.recovered && !x.caughtUp,
	}
	if !o.recorded {
		call.input = s.input
	}
	if o.until > x.now {
		call.notBefore = time.UnixMilli(o.until)
	} else {
		x.engage(o)
	}
	eff.steps = append(eff.steps, call)
}
