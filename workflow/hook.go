package workflow

import (
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
)

// HookHandle is a hook of a workflow: other programs send it values, with ResumeHook and
// the hook's token. Values are queued, in order, until the code receives them. The hook
// lives until it is disposed of or the run ends, and a run does not end before its code
// could receive all values. When the run is continued as new, a hook whose token the code
// has chosen moves to the next run: a NewHook of the same token there gets the values
// that were not received.
type HookHandle[T any] struct {
	x     *execution
	op    *op
	token string
}

// HookConflictError reports that another run has the token of a new hook.
type HookConflictError struct {
	Token string `json:"token"`
	Run   string `json:"run"` // id of the run that has the token
}

func (e *HookConflictError) Error() string {
	return fmt.Sprintf("run %s has a hook of the token %q", e.Run, e.Token)
}

// HookOption changes a hook.
type HookOption interface{ applyHook(*hookOptions) }

type hookOptions struct{ metadata any }

type hookOption func(*hookOptions)

func (o hookOption) applyHook(h *hookOptions) { o(h) }

// Metadata is stored with a hook, to tell the resuming program the hook's purpose. It is
// encoded like other values.
func Metadata(v any) HookOption { return hookOption(func(h *hookOptions) { h.metadata = v }) }

// errDisposed is returned by a disposed hook that has no values left.
var errDisposed = cay.Errorf(cay.Conflict, "the hook has been disposed of")

const maxToken = 512

// NewHook makes a hook, and returns when it can be resumed. A token of the caller's
// choice, such as "approve:" and the order's number, can be computed by other programs;
// and since no two live hooks have the same token, it ensures that only one run at a time
// handles that order. An empty token is replaced by a random one, which cannot be
// guessed.
//
// Errors: *HookConflictError if a run has a live hook of that token; invalid for a
// token of more than 512 bytes; ErrCancelled or ErrTimeout.
func NewHook[T any](ctx Context, token string, opts ...HookOption) (*HookHandle[T], error) {
	var h hookOptions
	for _, opt := range opts {
		opt.applyHook(&h)
	}
	f := ctx.flow()
	var metadata []byte
	if h.metadata != nil {
		var err error
		if metadata, err = f.x.payloads.encode(h.metadata); err != nil {
			return nil, fmt.Errorf("metadata of the hook: %w", err)
		}
	}
	chosen := token != ""
	if !chosen {
		token = rand.Text()
	}
	o, err := f.newHook("hook", &Event{Type: history.HookCreated, Token: token, Payload: metadata}, chosen)
	if err != nil {
		return nil, err
	}
	return &HookHandle[T]{x: f.x, op: o, token: o.hook.token}, nil
}

// newHook makes a hook; chosen means that the hook moves to the next run when the run is
// continued as new.
func (f *flow) newHook(name string, created *Event, chosen bool) (*op, error) {
	x := f.x
	x.use()
	if len(created.Token) > maxToken {
		return nil, cay.Errorf(cay.Invalid, "the hook's token is longer than %d bytes", maxToken)
	}
	if err := f.cancel.cause(); err != nil {
		return nil, err
	}
	p := new(promise)
	o := x.ask(f, kindHook, name, p)
	o.event = created
	if o.hook == nil {
		o.hook = new(hookState)
	}
	o.hook.chosen = chosen
	if e := o.outcome; e != nil { // the hook had a conflict
		o.outcome = nil
		o.applyHook(x, e)
	} else if o.hook.created {
		x.settle(o, nil)
	}
	if err := x.waitFor(f, p); err != nil {
		o.hook.discard(x, o)
		return nil, err
	}
	return o, p.err
}

// hookState is the state of a hook in the log.
type hookState struct {
	token    string
	created  bool
	inbox    []received // values that were sent and not received yet
	chosen   bool       // the code chose the token
	looks    int        // how often the code looked at the hook while it had a value
	waiters  waitList
	unwanted bool // the code has disposed of the hook
	leaving  bool // effects returned hook_disposed
	gone     bool // the log has hook_disposed
}

// look counts a look of the code at the hook; see showAll.
func (h *hookState) look() {
	if len(h.inbox) > 0 {
		h.looks++
	}
}

// received is a value that was sent to a hook.
type received struct {
	payload []byte
	key     string // idempotency key of the call, or ""
}

func (o *op) applyHook(x *execution, e *Event) {
	if o.hook == nil {
		o.hook = new(hookState)
	}
	h := o.hook
	switch e.Type {
	case history.HookCreated:
		h.created, h.token = true, e.Token
		h.inbox = append(x.inherit(e.Token), h.inbox...)
		if h.unwanted { // the code has not waited for the hook
			x.queue(o)
		}
		x.settleAsked(o, nil)
	case history.HookConflict:
		if !o.asked {
			o.outcome = e
			return
		}
		x.finish(o)
		x.settle(o, &HookConflictError{Token: e.Token, Run: e.Reason})
	case history.HookReceived:
		if !h.unwanted {
			h.inbox = append(h.inbox, received{e.Payload, e.Key})
			h.waiters.wake()
		}
	case history.HookDisposed:
		h.gone = true
		x.finish(o)
		h.waiters.wake()
	}
}

func (x *execution) settleAsked(o *op, err error) {
	if o.asked {
		x.settle(o, err)
	}
}

// discard disposes of the hook.
func (h *hookState) discard(x *execution, o *op) {
	if h.unwanted || x.closing {
		return
	}
	h.unwanted = true
	o.settled = true
	h.inbox = nil
	h.waiters.wake()
	x.queue(o)
}

func (o *op) giveHook(x *execution, eff *effects) {
	h := o.hook
	switch {
	case !o.recorded && !o.given && !h.unwanted:
		o.giveEvent(x, eff, *o.event)
	case h.unwanted && h.created && !h.leaving && !h.gone:
		h.leaving = true
		x.engage(o)
		eff.appends = append(eff.appends, Event{Type: history.HookDisposed, ID: o.id})
	}
}

// Token returns the token by which the hook is resumed.
func (h *HookHandle[T]) Token() string { return h.token }

// Receive waits for the next value that is sent to the hook, at most for the timeout if
// there is one; with a timeout of 0 it only returns a value that has arrived already.
// Errors: ErrTimeout; ErrCancelled; conflict if the hook has been disposed of; invalid if
// the value does not fit T; the value is consumed.
func (h *HookHandle[T]) Receive(ctx Context, timeout ...time.Duration) (T, error) {
	var zero T
	f := ctx.flow()
	x := f.x
	x.use()
	var timer *promise
	for !h.ready() {
		if err := f.cancel.cause(); err != nil {
			x.abandon(timer)
			return zero, err
		}
		if len(timeout) == 0 {
			x.park(f.cancel, "waits for the hook "+h.op.id, h.op.id, &h.op.hook.waiters)
			continue
		}
		if timer == nil {
			if timeout[0] <= 0 {
				return zero, ErrTimeout
			}
			timer = x.timer(f, "receive", timeout[0])
		}
		if timer.done {
			if timer.err != nil {
				return zero, timer.err
			}
			return zero, ErrTimeout
		}
		x.park(f.cancel, "waits for the hook "+h.op.id, h.op.id, &h.op.hook.waiters, &timer.waiters)
	}
	x.abandon(timer)
	return h.take(x)
}

// All iterates over the values that are sent to the hook. It ends when the hook is
// disposed of, and after ErrCancelled or ErrTimeout of ctx; a value that does not fit T
// yields an error, but does not end the iteration.
func (h *HookHandle[T]) All(ctx Context) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for {
			v, err := h.Receive(ctx)
			if errors.Is(err, errDisposed) {
				return
			}
			if !yield(v, err) || ctx.Err() != nil {
				return
			}
		}
	}
}

// Dispose releases the token before the run ends. Values that were not received are lost.
// Calling it again does nothing.
func (h *HookHandle[T]) Dispose(ctx Context) {
	x := ctx.flow().x
	x.use()
	h.op.hook.discard(x, h.op)
}

func (h *HookHandle[T]) ready() bool {
	s := h.op.hook
	s.look()
	return len(s.inbox) > 0 || s.unwanted || s.gone
}

func (h *HookHandle[T]) take(x *execution) (T, error) {
	var v T
	s := h.op.hook
	if len(s.inbox) == 0 {
		return v, errDisposed
	}
	env := s.inbox[0].payload
	s.inbox[0] = received{}
	s.inbox = s.inbox[1:]
	if err := x.payloads.decode(env, fromOutside{&v}); err != nil {
		return *new(T), fmt.Errorf("what was sent to the hook: %w", err)
	}
	return v, nil
}

func (h *HookHandle[T]) waiting() *waitList { return &h.op.hook.waiters }
func (h *HookHandle[T]) once() bool         { return false }

func (h *HookHandle[T]) over() bool {
	s := h.op.hook
	s.look()
	return len(s.inbox) == 0 && (s.unwanted || s.gone)
}
