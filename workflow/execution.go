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

// executionConfig is what an execution is made from.
type executionConfig struct {
	definition *definition
	run        RunInfo
	payloads   payloads
	// logger is what Context.Logger writes to, when the run is not being replayed;
	// nil for nowhere.
	logger *slog.Logger
	tell   func(what any) // to who observes the run; nil if nobody does
	// recovered is Assignment.Recovered.
	recovered bool
	// early are values of hooks that the code is shown before their place in the log:
	// see replay.
	early []earlyValue
	// old says that the log was ended by a version that did not show values early.
	old bool
}

// payloads turns values into the envelopes of one run, and back. Errors keep type
// name, message, code and causes on the way.
type payloads interface {
	encode(v any) ([]byte, error)
	decode(envelope []byte, v any) error
	encodeError(err error) []byte
	decodeError(envelope []byte) error
	// forRun returns what does the same for another run: each has its own key.
	forRun(id string) payloads
}

// effects are what an execution wants done, after it was fed.
//
// The worker first appends appends (and done, or next with done), in one Append,
// then starts children, then steps; and it does nothing of this if diverged is set.
type effects struct {
	appends []Event
	// steps are to be executed, each once per call: an attempt that ends with
	// step_retrying comes again, as the next attempt, when that event has been fed.
	steps []*stepCall
	// cancels are ids of steps given out whose contexts are to be cancelled. The code
	// has gone on without them: what becomes of them is recorded if the run has not
	// ended by then, and read by nobody.
	cancels  []string
	children []*childCall
	// next is the run that continues this one; it comes with done, and both are
	// committed together.
	next *NewRun
	// done is the last event of the run: run_completed, run_failed or run_cancelled.
	done *Event
	// idle says that the run waits for nothing but timers, hooks, children and
	// retries of steps that are not due yet: it may be released.
	idle     bool
	diverged *DivergenceError
}

// stepCall is one attempt of a step, to be executed.
type stepCall struct {
	id, name string
	// attempt is this one's number, from 1, and failures how many of those before it
	// ended in an error. Only these count for opts.maxRetries: what became of the
	// others nobody knows, because their worker stopped or died.
	attempt   int
	failures  int
	notBefore time.Time // zero for now
	input     []byte    // an envelope; nil if created
	opts      stepOptions
	tx        bool // invoke gets a Tx
	record    bool // step_started is to be committed before invoke is called
	created   bool // the step is in the log: events need no Name and Input
	// invoke runs the user's function, and encodes what it returns. ctx carries a
	// stepEnv. tx is nil unless tx is set above. Panics are the caller's to recover.
	invoke func(ctx context.Context, tx Tx) (result []byte, err error)
}

// childCall is a run to be started for this one. If it can never be started (its
// input is too large, too many wait), the worker appends started and a child_ended
// of the same id with Code "failed" and the error.
type childCall struct {
	id      string
	run     NewRun
	started Event // child_started, to be committed with it
}

// lost is how many earlier attempts ended with their worker.
func (c *stepCall) lost() int { return c.attempt - 1 - c.failures }

// execution is the code of one run, as it goes: fed with the events of the run's
// log, in their order, it runs until every branch waits for further ones, and says
// what it wants done. Whether an event was committed just now or years ago makes no
// difference: to replay a run is to feed a new execution with the whole log.
//
// It is pure: no timers, no I/O, nothing that happens between calls. It is not safe
// for concurrent use, but need not always be used from the same goroutine.
//
// Events are taken one at a time, and after each the branches it woke run, one
// after the other, until all wait again. So what the code has seen when it does
// something is a prefix of the log, however the events were batched, and a replay
// sees the same one at the same place.
type execution struct {
	executionConfig

	root     *canceller
	ops      map[string]*op // by id: what was asked for or is in the log, and may still have events
	open     opList         // steps and waits that the code waits for, in the order it asked
	unasked  int            // ops that are in the log but were not asked for
	fresh    []*op          // asked for, or to be tried again, and not yet given out
	pruneAt  int            // how long fresh is to become before it is pruned
	asked    int            // how often the code has asked since the last event
	cancels  []string
	busy     int // ops given out whose outcome is not in the log yet
	versions map[string]*version
	locals   map[any]any // by *Local

	branches  branchList             // that have not ended
	ready     []*branch              // to be run, in the order they were woken
	current   atomic.Pointer[branch] // that runs; nil between
	stuck     []*branch              // ended by runtime.Goexit, which goes on when they are closed
	locating  bool                   // branches say where they wait
	closing   bool
	fed       bool // once at least
	caughtUp  bool // with the log it was given: what comes now is new
	replaying bool
	log       *slog.Logger

	now        int64 // of the last event
	slot       int64
	startedAt  int64
	input      []byte
	attributes map[string]string
	cancelled  bool // cancel_requested is in the log
	reason     string

	carried map[string]*carriedHook // hooks of the run this one continues, by token

	shown    int64 // slot of the last event that the code was shown before it returned
	missed   int64 // slot of a value that it was not shown: see replay; 0 if there is none
	returned bool  // the function has: out and err are what
	out      any
	err      error
	given    bool   // effects.done was
	ended    *Event // the log's last, if it is terminal
	diverged *DivergenceError
}

func newExecution(c executionConfig) *execution {
	return &execution{
		executionConfig: c,
		root:            new(canceller),
		ops:             make(map[string]*op),
		pruneAt:         minPrune,
	}
}

// feed takes events in, runs the code, and returns what it wants done.
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

// scan notes which ids the log has, before the code sees any of it: what the code
// asks for is recorded already, or not.
func (x *execution) scan(events []Event) {
	for i := range events {
		e := &events[i]
		if e.ID == "" || e.Type == history.RunCreated { // whose ID is that of the parent's call
			continue
		}
		if o := x.ops[e.ID]; o != nil {
			o.ends = o.ends || e.Type == history.StepCompleted || e.Type == history.StepFailed
			continue
		}
		k, ok := kindOf(e.ID)
		if !ok || (e.Type == history.AttrSet) != (k == kindAttr) {
			continue // of an event of another kind that names a step
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

// apply takes one event in. The branches it wakes do not run yet.
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

// setAttributes replaces the map: others may hold it.
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

// end notes how the workflow's function ended.
func (x *execution) end(err error) {
	x.returned, x.err = true, err
}

// collect returns what the code wants done since it was last called.
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

// conclude says how the run ends, once.
func (x *execution) conclude(eff *effects) {
	if x.given {
		return
	}
	x.given = true
	done := x.ending(eff)
	done.Attempt = int(x.shown)
	eff.done = &done
}

// ending returns the event that ends the run as its function has.
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

// close ends every branch, as runtime.Goexit does: deferred functions of the
// workflow's code run, and what they ask for is not done.
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

// use panics if workflow code is not running: a Context was used where it is not good.
func (x *execution) use() *branch {
	b := x.current.Load()
	if b == nil {
		panic("workflow: a Context is used outside of the function it was given to: in a step, in a goroutine, or after the function returned")
	}
	return b
}

// time is what the code sees as now.
func (x *execution) time() time.Time { return time.UnixMilli(x.now).UTC() }

// logger returns the run's logger, which is silent while the run is replayed.
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

// replayHandler drops what has been logged before.
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
