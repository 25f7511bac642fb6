package workflow

import (
	"context"
	"slices"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
)

// op is something the workflow's code asked for, or that the log says it once did:
// a step, wait, hook, child, version or change of attributes.
type op struct {
	kind kind
	id   string
	name string
	slot int64 // of the first event about it
	typ  history.Type

	asked    bool // by the code, in this execution
	recorded bool // the log has it
	given    bool // it was given out in effects
	queued   bool // it is in execution.fresh
	busy     bool // given out, and the log does not say yet what became of it
	settled  bool // the code does not wait for it any more
	ends     bool // a step whose end is in what the execution was fed, perhaps further on

	// under is what ends it early. prev and next are others the code waits for.
	under      *canceller
	listed     bool
	prev, next *op

	// promise is what the code waits for: the end of a step or wait, that a hook or a
	// child is there.
	promise *promise
	// outcome is the event that ends it, if that was fed before the code asked.
	outcome *Event

	event    *Event // that makes it: of a wait, hook, version or change of attributes
	attempt  int    // of a step: the last that was recorded; of a version: which
	tried    int    // the last attempt of a step that was given out
	failures int    // attempts of a step that ended in an error
	until    int64  // when a step may be tried again
	step     *stepSpec
	hook     *hookState
	child    *childState
}

// stepSpec is what it takes to execute a step.
type stepSpec struct {
	opts   *stepOptions // not to be changed
	tx     bool
	input  []byte
	invoke func(ctx context.Context, tx Tx) ([]byte, error)
}

// opList are ops in the order the code asked for them.
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

// counts reports whether the code must ask for an op that the log has. Attributes
// are left to it: nothing depends on them.
func (o *op) counts() bool { return o.kind != kindAttr }

// outlives reports whether an op is still done when the function has returned.
func (o *op) outlives() bool { return o.kind == kindAttr }

// ask returns the op of the next occurrence of a name in f's scope. If the log has
// it already, what is known of it is there.
func (x *execution) ask(f *flow, k kind, name string, p *promise) *op {
	return x.askFor(k, f.scope.next(k, name), name, f.cancel, p)
}

// maxAsked bounds what the code asks for before it waits: more is a loop that has no
// end.
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

// queue has an op given out when all branches wait.
func (x *execution) queue(o *op) {
	if !o.queued {
		o.queued = true
		x.fresh = append(x.fresh, o)
	}
}

// prune drops from fresh what the log has given the code since: in a long replay,
// nearly everything.
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

// await is for ops that end early with their canceller.
func (x *execution) await(o *op) {
	if e := o.outcome; e != nil {
		o.outcome = nil
		o.conclude(x, e)
		return
	}
	x.open.add(o)
}

// record notes that the log has an op.
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

// finish forgets an op that the code has asked for and the log is done with.
func (x *execution) finish(o *op) {
	x.rest(o)
	if o.asked {
		delete(x.ops, o.id)
	}
}

// apply takes in an event about the op.
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

// conclude gives the code what a step or wait ended with.
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

// give adds to eff what is to be done for the op.
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
