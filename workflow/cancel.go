package workflow

import (
	"errors"
	"time"
)

// Why a wait of a workflow ended early. errors.Is finds both errors in errors that wrap
// them, and in errors read from a log.
var (
	// ErrCancelled is returned by every wait when the run, or the Context of the wait,
	// has been cancelled.
	ErrCancelled = errors.New("cancelled")
	// ErrTimeout is returned by every wait when the time of WithTimeout is over, and by
	// Receive when no value came in time.
	ErrTimeout = errors.New("timed out")
)

// ErrMaxEvents is returned by every wait when the log of the run has 90 % of the events
// that it may have: see MaxEvents. The run can still clean up, under WithoutCancel as
// after a cancellation, or continue as new.
var ErrMaxEvents = errors.New("the log of the run is nearly full")

// ErrPoisoned is found by errors.Is in the error of a step that was given up because its
// process died at every attempt, and in the error of a run whose own code kills its
// process. The engine gives up after 13 deaths without progress; in the last 6 of them
// the process executed nothing else.
var ErrPoisoned = errors.New("ended its process each time it was tried")

// CancelFunc ends a Context early. Calling it again does nothing.
type CancelFunc func()

// WithCancel returns a Context that ends when cancel is called, or ctx ends. Waits under
// it then return ErrCancelled, and the contexts of its steps are cancelled; the results
// of these steps are recorded, but not waited for. When a run is cancelled, the Context
// of its function is cancelled in this way; the function may clean up under
// WithoutCancel.
func WithCancel(ctx Context) (Context, CancelFunc) {
	f := ctx.flow()
	c := &canceller{parent: f.cancel}
	return f.under(c), func() { f.x.callCancel(c) }
}

// WithTimeout returns a Context that ends after d, with ErrTimeout, or when cancel is
// called, with ErrCancelled. The engine keeps the time: it goes on while no process runs.
func WithTimeout(ctx Context, d time.Duration) (Context, CancelFunc) {
	f := ctx.flow()
	c := &canceller{parent: f.cancel}
	if d <= 0 {
		f.x.use()
		c.err = ErrTimeout
		return f.under(c), func() {}
	}
	timer := f.x.timer(f, "timeout", d)
	if timer.done {
		if timer.err == nil {
			c.err = ErrTimeout
		}
		return f.under(c), func() {}
	}
	timer.waiters.add(&deadline{x: f.x, cancel: c, timer: timer})
	return f.under(c), func() {
		f.x.callCancel(c)
		f.x.abandon(timer)
	}
}

// WithoutCancel returns a Context that does not end when ctx does: for the clean-up after
// a cancellation.
func WithoutCancel(ctx Context) Context {
	return ctx.flow().under(new(canceller))
}

// canceller ends the ops that were asked for under it.
type canceller struct {
	parent *canceller
	err    error // nil while the canceller itself has not ended
}

// cause returns why everything under c has ended, nil if it has not.
func (c *canceller) cause() error {
	for ; c != nil; c = c.parent {
		if c.err != nil {
			return c.err
		}
	}
	return nil
}

// deadline ends a canceller when a timer fires.
type deadline struct {
	x      *execution
	cancel *canceller
	timer  *promise
}

func (d *deadline) wake() {
	if d.timer.err == nil { // else ctx itself has ended
		d.x.cancel(d.cancel, ErrTimeout)
	}
}

func (f *flow) under(c *canceller) *flow { return &flow{x: f.x, scope: f.scope, cancel: c} }

// callCancel is cancel called by the workflow's code.
func (x *execution) callCancel(c *canceller) {
	x.use()
	if !x.closing {
		x.cancel(c, ErrCancelled)
	}
}

// cancel ends the ops that the code waits for under c, in the order in which the code
// asked for them.
func (x *execution) cancel(c *canceller, err error) {
	if c.cause() != nil {
		return
	}
	c.err = err
	for o := x.open.first; o != nil; {
		next := o.next
		if cause := o.under.cause(); cause != nil {
			if o.kind == kindStep && o.tried > o.attempt {
				x.cancels = append(x.cancels, o.id)
				x.rest(o)
			}
			x.settle(o, cause)
		}
		o = next
	}
	for b := x.branches.first; b != nil; b = b.next {
		if b.under.cause() != nil {
			b.wake()
		}
	}
}

// abandon ends a timer that no branch waits for any more.
func (x *execution) abandon(p *promise) {
	if p != nil && p.op != nil && !p.op.settled {
		p.op.settled = true
		x.open.remove(p.op)
	}
}
