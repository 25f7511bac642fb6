package workflow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay/internal/history"
)

// executionConfig configures an execution.
type executionConfig struct {
	definition *definition
	run        RunInfo
	payloads   payloads
	// logger is the output of Context.Logger while the run is not being replayed; nil
	// discards it.
	logger *slog.Logger
	emit   func(value any) // passes a value to the run's observer; nil if there is none
	// recovered is Assignment.Recovered.
	recovered bool
	// early are values of hooks that the code gets before their place in the log: see
	// replay.
	early []earlyValue
	// old means that the log was ended by a release that did not show values early.
	old bool
}

// payloads encodes values into the envelopes of one run, and decodes them. Errors keep
// their type name, message, code and causes.
type payloads interface {
	encode(v any) ([]byte, error)
	decode(envelope []byte, v any) error
	encodeError(err error) []byte
	decodeError(envelope []byte) error
	// forRun returns the payloads of another run, which has its own key.
	forRun(id string) payloads
}

// effects are the actions that an execution asks for after it was fed.
//
// The worker first appends appends (and done, or next with done), in one Append, then
// starts children, then steps. If diverged is set, the worker carries out no effect.
type effects struct {
	appends []Event
	// steps are to be executed, each once per call: after an attempt that ends with
	// step_retrying, the next attempt is returned here when that event has been fed.
	steps []*stepCall
	// cancels are the ids of running steps whose contexts are to be cancelled. The code
	// has gone on without them: their outcome is recorded if the run has not ended by
	// then, and the code never reads it.
	cancels  []string
	children []*childCall
	// next is the run to start in place of the present run; next is set together with
	// done, and both are committed together.
	next *NewRun
	// done is the last event of the run: run_completed, run_failed or run_cancelled.
	done *Event
	// idle means that the run only waits for timers, hooks, children and retries of steps
	// that are not due yet: it may be released.
	idle     bool
	diverged *DivergenceError
}

// stepCall is one attempt of a step, to be executed.
type stepCall struct {
	id, name string
	// attempt is the number of this attempt, from 1, and failures the number of earlier
	// attempts that ended in an error. Only failures count for opts.maxRetries; the
	// outcome of the other attempts is unknown, because their worker stopped or died.
	attempt   int
	failures  int
	notBefore time.Time // zero for now
	input     []byte    // an envelope; nil if created
	opts      stepOptions
	tx        bool // invoke needs a Tx
	record    bool // step_started must be committed before invoke is called
	created   bool // the step is in the log already: events need no Name and Input
	// invoke runs the user's function, and encodes its result. ctx carries a stepEnv. tx
	// is nil unless the field tx is set. The caller must recover panics.
	invoke func(ctx context.Context, tx Tx) (result []byte, err error)
}

// childCall is a child run to start. If the child can never be started (its input is too
// large, too many runs wait), the worker appends started and a child_ended of the same id
// with Code "failed" and the error.
type childCall struct {
	id      string
	run     NewRun
	started Event // child_started, to be committed with the child
}

// lost returns how many earlier attempts ended with their worker.
func (c *stepCall) lost() int { return c.attempt - 1 - c.failures }

// execution is the running code of one run: it is fed with the events of the run's log,
// in order, runs until every branch waits for further events, and returns the actions
// that it asks for. Whether an event was committed just now or years ago makes no
// difference: a replay feeds a new execution with the whole log.
//
// It is pure: it has no timers, does no I/O, and does nothing between calls. It is not
// safe for concurrent use, but need not always be used from the same goroutine.
//
// feed applies one event at a time. After each event the branches that it woke run, one
// after the other, until all wait again. So the events that the code has seen before a
// call are a prefix of the log, however the events were batched, and a replay has the
// same prefix at the same call.
type execution struct {
	executionConfig

	root     *canceller
	ops      map[string]*op // by id: ops that the code asked for or the log has, and that may still get events
	open     opList         // steps and waits that the code waits for, in the order in which it asked
	unasked  int            // ops that the log has and the code has not asked for
	fresh    []*op          // ops that the code asked for, or that are to be retried, and that effects did not return yet
	pruneAt  int            // length at which fresh is pruned
	asked    int            // number of ops asked for since the last event
	cancels  []string
	busy     int // ops that effects returned and whose outcome is not in the log yet
	versions map[string]*version
	locals   map[any]any // by *Local

	branches  branchList             // branches that have not ended
	ready     []*branch              // branches to run, in the order in which they were woken
	current   atomic.Pointer[branch] // the running branch; nil between branches
	stuck     []*branch              // branches ended by runtime.Goexit, which completes when they are closed
	locating  bool                   // branches report where they wait
	closing   bool
	fed       bool // feed was called
	caughtUp  bool // the log was replayed: events from here on are new
	replaying bool
	log       *slog.Logger

	now        int64 // time of the last event
	slot       int64
	startedAt  int64
	input      []byte
	attributes map[string]string
	cancelled  bool // cancel_requested is in the log
	reason     string

	carried map[string]*carriedHook // hooks inherited from the continued run, by token

	returnedAt int64 // slot of the event after which the function returned; 0 before
	shown      int64 // slot of the last event that the code saw before it returned
	missed     int64 // slot of a value that the code did not see: see replay; 0 if there is none
	returned   bool  // the function has returned out and err
	out        any
	err        error
	given      bool   // effects.done was returned
	ended      *Event // the last event of the log, if it is terminal
	diverged   *DivergenceError
}

func newExecution(c executionConfig) *execution {
	return &execution{
		executionConfig: c,
		root:            new(canceller),
		ops:             make(map[string]*op),
		pruneAt:         minPrune,
	}
}

// feed applies events, runs the code, and returns the actions that it asks for.
func (x *execution) feed(events []Event) effects {
	if x.closing || x.diverged != nil {
		return effects{diverged: x.diverged}
	}
	x.scan(events)
	for i := range events {
		x.replaying = !x.fed && i < len(events)-1
		if !x.isEarly(&events[i]) {
			x.apply(&events[i])
		}
		x.showEarly(&events[i], events)
		x.asked = 0
		x.schedule()
		if x.misses(events[i:]) {
			return effects{}
		}
		x.prune()
		if x.diverged != nil {
			break
		}
	}
	x.replaying = false
	x.fed = true
	return x.collect()
}

// scan records which ids the log has, before the code sees any event, so that an op that
// the code asks for is known to be in the log or not.
func (x *execution) scan(events []Event) {
	for i := range events {
		e := &events[i]
		if e.ID == "" || e.Type == history.RunCreated { // the ID of run_created is that of the parent's call
			continue
		}
		if o := x.ops[e.ID]; o != nil {
			o.ends = o.ends || e.Type == history.StepCompleted || e.Type == history.StepFailed
			continue
		}
		k, ok := kindOf(e.ID)
		if !ok || (e.Type == history.AttrSet) != (k == kindAttr) {
			continue // events of other kinds that name a step
		}
		o := &op{kind: k, id: e.ID, name: e.Name, slot: e.Slot, typ: e.Type}
		o.ends = e.Type == history.StepCompleted || e.Type == history.StepFailed
		if k == kindVersion {
			o.attempt = e.Attempt
		}
		x.ops[e.ID] = o
		if o.counts() {
			x.unasked++
		}
	}
}

// apply applies one event. The branches that it wakes do not run yet.
func (x *execution) apply(e *Event) {
	x.now, x.slot = max(x.now, e.At), e.Slot
	switch e.Type {
	case history.RunCreated:
		x.input = e.Payload
		x.setAttributes(e.Attributes)
	case history.RunStarted:
		if x.startedAt == 0 {
			x.startedAt = e.At
			x.start()
		}
	case history.RunCompleted, history.RunFailed, history.RunCancelled:
		x.ended = e
	case history.CancelRequested:
		if !x.cancelled {
			x.cancelled, x.reason = true, e.Reason
			x.cancel(x.root, ErrCancelled)
		}
	case history.LimitReached:
		x.cancel(x.root, ErrMaxEvents)
	case history.AttrSet:
		x.setAttributes(e.Attributes)
		if o := x.ops[e.ID]; o != nil && o.kind == kindAttr {
			x.record(o)
			x.finish(o)
		}
	default:
		if o := x.ops[e.ID]; o != nil {
			o.apply(x, e)
		} else {
			x.carry(e)
		}
	}
}

// setAttributes replaces the map, because other code may hold the old one.
func (x *execution) setAttributes(change map[string]string) {
	if len(change) == 0 {
		return
	}
	m := make(map[string]string, len(x.attributes)+len(change))
	maps.Copy(m, x.attributes)
	for k, v := range change {
		if v == "" {
			delete(m, k)
		} else {
			m[k] = v
		}
	}
	x.attributes = m
}

// start runs the workflow's function in the first branch.
func (x *execution) start() {
	f := &flow{x: x, scope: new(scope), cancel: x.root}
	x.spawn("", func() error {
		out, err := x.definition.run(f, func(v any) error { return x.payloads.decode(x.input, v) })
		x.out = out
		return err
	}, x.end)
}

// end records how the workflow's function ended.
func (x *execution) end(err error) {
	x.returned, x.err = true, err
}

// collect returns the actions that the code has asked for since the last call.
func (x *execution) collect() effects {
	if x.diverged == nil {
		x.diverged = x.divergence()
	}
	if x.diverged != nil {
		return effects{diverged: x.diverged}
	}
	var eff effects
	for _, o := range x.fresh {
		o.queued = false
		if x.ended == nil && (!x.returned || o.outlives()) {
			o.give(x, &eff)
		}
	}
	clear(x.fresh)
	x.fresh = x.fresh[:0]
	eff.cancels, x.cancels = x.cancels, nil
	x.caughtUp = true
	switch {
	case x.ended != nil:
	case x.returned:
		x.conclude(&eff)
	default:
		eff.idle = x.busy == 0
	}
	return eff
}

// conclude adds the end of the run to eff, once.
func (x *execution) conclude(eff *effects) {
	if x.given {
		return
	}
	x.given = true
	done := x.ending(eff)
	done.Attempt = int(x.shown)
	eff.done = &done
}

// ending returns the event that ends the run, according to the function's result.
func (x *execution) ending(eff *effects) Event {
	var next *continueError
	err := x.err
	switch {
	case err == nil:
		out, encErr := x.payloads.encode(x.out)
		if encErr == nil {
			return Event{Type: history.RunCompleted, Payload: out}
		}
		err = fmt.Errorf("result of the workflow: %w", encErr)
	case errors.As(err, &next):
		next.run.Hooks = x.heirlooms()
		eff.next = &next.run
		return Event{Type: history.RunCompleted, Token: next.run.ID}
	case x.cancelled && errors.Is(err, ErrCancelled):
		return Event{Type: history.RunCancelled, Reason: x.reason}
	}
	code := history.CodeUser
	if errors.Is(err, ErrMaxEvents) {
		code = history.CodeMaxEvents
	}
	return Event{Type: history.RunFailed, Payload: x.payloads.encodeError(err), Code: code}
}

// close ends every branch, as runtime.Goexit does: deferred functions of the workflow's
// code run, and calls that they make have no effect.
func (x *execution) close() {
	if x.closing {
		return
	}
	x.closing = true
	x.ready = nil
	for b := x.branches.first; b != nil; b = x.branches.first {
		x.branches.remove(b)
		x.stop(b)
	}
	for _, b := range x.stuck {
		x.stop(b)
	}
	x.stuck = nil
}

// use panics if workflow code is not running: a Context was used where it is not valid.
func (x *execution) use() *branch {
	b := x.current.Load()
	if b == nil {
		panic("workflow: a Context is used outside of the function it was given to: in a step, in a goroutine, or after the function returned")
	}
	return b
}

// time returns the current time for the code.
func (x *execution) time() time.Time { return time.UnixMilli(x.now).UTC() }

// logTo returns the run's logger, which is silent while the run is replayed.
func (x *execution) logTo() *slog.Logger {
	if x.log == nil {
		l := x.logger
		if l == nil {
			l = slog.New(slog.DiscardHandler)
		}
		l = slog.New(&replayHandler{x: x, Handler: l.Handler()})
		x.log = l.With("workflow", x.run.Workflow, "run", x.run.ID)
	}
	return x.log
}

// replayHandler drops log records of code that is being replayed.
type replayHandler struct {
	x *execution
	slog.Handler
}

func (h *replayHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return !h.x.replaying && !h.x.closing && h.Handler.Enabled(ctx, l)
}

func (h *replayHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &replayHandler{x: h.x, Handler: h.Handler.WithAttrs(attrs)}
}

func (h *replayHandler) WithGroup(name string) slog.Handler {
	return &replayHandler{x: h.x, Handler: h.Handler.WithGroup(name)}
}
