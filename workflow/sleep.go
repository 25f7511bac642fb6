package workflow

import (
	"math"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
)

// Sleep waits for d. The engine keeps the time: no code runs meanwhile, and no process of
// the program is needed. Errors: ErrCancelled or ErrTimeout if ctx ends before.
func Sleep(ctx Context, d time.Duration) error {
	f := ctx.flow()
	f.x.use()
	if err := f.cancel.cause(); err != nil || d <= 0 {
		return err
	}
	p := f.x.timer(f, "sleep", d)
	if err := f.x.waitFor(f, p); err != nil {
		return err
	}
	return p.err
}

// SleepUntil waits until a time. Errors: the errors of Sleep; invalid for a time after
// the year 9999, which logs cannot show.
func SleepUntil(ctx Context, t time.Time) error {
	f := ctx.flow()
	f.x.use()
	if t.UTC().Year() > lastYear {
		return cay.Errorf(cay.Invalid, "a run cannot sleep until %s: the last year is %d", t.UTC().Format(time.RFC3339), lastYear)
	}
	if err := f.cancel.cause(); err != nil || !t.After(f.x.time()) {
		return err
	}
	p := new(promise)
	f.x.waitUntil(f, "sleep", t.Add(time.Millisecond-1).UnixMilli(), p) // rounded up, so that the wait is not too short
	if err := f.x.waitFor(f, p); err != nil {
		return err
	}
	return p.err
}

const lastYear = 9999

// After returns a future that is resolved after d with the time: a timer to race against
// other futures.
func After(ctx Context, d time.Duration) *Future[time.Time] {
	f := ctx.flow()
	x := f.x
	x.use()
	p := new(Future[time.Time])
	if err := f.cancel.cause(); err != nil || d <= 0 {
		p.value = x.time()
		p.resolve(err)
		return p
	}
	p.value = x.time().Add(d)
	x.wait(f, "after", d, &p.promise)
	return p
}

// timer starts a timer.
func (x *execution) timer(f *flow, name string, d time.Duration) *promise {
	p := new(promise)
	x.wait(f, name, d, p)
	return p
}

// wait starts a wait with a name that resolves p.
func (x *execution) wait(f *flow, name string, d time.Duration, p *promise) {
	x.waitUntil(f, name, x.later(d), p)
}

// waitUntil starts a wait until a time in Unix milliseconds.
func (x *execution) waitUntil(f *flow, name string, until int64, p *promise) {
	if x.closing {
		return
	}
	o := x.ask(f, kindWait, name, p)
	o.event = &Event{Type: history.WaitCreated, Until: until}
	x.await(o)
}

// later returns the time d from now, in Unix milliseconds, rounded up.
func (x *execution) later(d time.Duration) int64 {
	ms := int64((d + time.Millisecond - 1) / time.Millisecond)
	if d > math.MaxInt64-time.Millisecond {
		ms = int64(d / time.Millisecond)
	}
	return x.now + ms
}
