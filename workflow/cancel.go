package workflow

import (
	"errors"
	"time"
)

// Why something in a workflow ended early. Both are found by errors.Is in errors
// that wrap them, and in those that come back from a log.
var (
	// ErrCancelled is what everything that waits returns when the run, or the
	// Context it was given, has been cancelled.
	ErrCancelled = errors.New("cancelled")
	// ErrTimeout is what everything that waits returns when the time of WithTimeout
	// is over, and what Receive returns when nothing came in time.
	ErrTimeout = errors.New("timed out")
)

// ErrMaxEvents is what everything that waits returns when the log of the run has
// nine tenths of the events it may have: see MaxEvents. The run can still undo what it
// did, under WithoutCancel as after a cancellation, or continue as new.
var ErrMaxEvents = errors.New("the log of the run is nearly full")

// ErrPoisoned is found by errors.Is in the error of a step that was given up because
// its process ended each time it was tried, and in that of a run whose own code does
// that. The engine gives it up after 13 deaths without progress; in the last 6 of
// them nothing else ran in the process.
var ErrPoisoned = errors.New("ended its process each time it was tried")

// CancelFunc ends a Context before its time. Calling it again does nothing.
type CancelFunc func()

// WithCancel returns a Context that ends when cancel is called, or ctx ends. What
// waits under it then returns ErrCancelled, and the contexts of its steps are
// cancelled; what they still return is recorded, but not waited for. When a run is
// cancelled, that is what happens to the Context of its function, which may clean
// up under WithoutCancel.
func WithCancel(ctx Context) (Context, CancelFunc) {
	f := ctx.flow()
	c := &canceller{parent: f.cancel}
	return f.under(c), func() { f.x.callCancel(c) }
}

// WithTimeout returns a Context that ends after d, with ErrTimeout, or when cancel
// is called, with ErrCancelled. The time is kept by the engine: it goes on while no
// process runs.
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

// WithoutCancel returns a Context that does not end when ctx does: for what is to
// be undone after a cancellation.
func WithoutCancel(ctx Context) Context {
	return ctx.flow().under(new(canceller))
}

// canceller ends what was asked for under it.
type canceller struct {
	parent *canceller
	err    error // nil while it has not ended itself
}

// cause is why everything under c has ended, nil if it has not.
func (c *canceller) cause() error {
	for ; c != nil; c = c.parent {
		if c.err != nil {
			return c.err
		}
	}
	return nil
}

// deadline ends a canceller when its timer does.
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

// callCancel is cancel by the workflow's code.
func (x *execution) callCancel(c *canceller) {
	x.use()
	if !x.closing {
		x.cancel(c, ErrCancelled)
	}
}

// cancel ends what the code waits for under c, in the order it asked.
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

// abandon is for timers nobody waits for any more.
func (x *execution) abandon(p *promise) {
	if p != nil && p.op != nil && !p.op.settled {
		p.op.settled = true
		x.open.remove(p.op)
	}
}
