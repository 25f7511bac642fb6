package workflow

import (
	"errors"
	"strconv"

	"github.com/cayhq/cay"
)

// Future is the future value of a step, a branch, an inline child or a timer. Any number
// of branches may wait for it, repeatedly.
type Future[T any] struct {
	promise
	value T
}

// promise is the part of a Future that does not depend on its type.
type promise struct {
	op      *op    // nil for a branch
	name    string // name of a branch
	done    bool
	err     error
	payload []byte // an envelope, until it is decoded
	waiters waitList
}

func (p *promise) resolve(err error) {
	if !p.done {
		p.done, p.err = true, err
		p.waiters.wake()
	}
}

// waitFor returns when p is resolved, or with an error if f ends before.
func (x *execution) waitFor(f *flow, p *promise) error {
	for !p.done {
		if err := f.cancel.cause(); err != nil {
			return err
		}
		what, id := p.label()
		x.park(f.cancel, what, id, &p.waiters)
	}
	return nil
}

func (p *promise) label() (what, id string) {
	if p.op != nil {
		return "waits for " + p.op.id, p.op.id
	}
	return "waits for the branch " + p.name, ""
}

// Get waits for the value. Errors: the error of the step (a *StepError), branch or child;
// ErrCancelled or ErrTimeout if ctx ends before the value is available.
func (f *Future[T]) Get(ctx Context) (T, error) {
	fl := ctx.flow()
	fl.x.use()
	if err := fl.x.waitFor(fl, &f.promise); err != nil {
		var zero T
		return zero, err
	}
	return f.settled(fl.x)
}

// Done reports whether Get would return at once.
func (f *Future[T]) Done() bool { return f.done }

// settled returns the value of a completed future.
func (f *Future[T]) settled(x *execution) (T, error) {
	if f.payload != nil {
		env := f.payload
		f.payload = nil
		if err := x.payloads.decode(env, &f.value); err != nil {
			f.err = err
		}
	}
	if f.err != nil {
		var zero T
		return zero, f.err
	}
	return f.value, nil
}

// Go runs fn as a branch of the workflow's code, concurrently with the code after the
// call. Branches take turns: each runs until it waits, so they share variables without
// locks. The branch begins when the calling branch waits. When the workflow's function
// returns, branches that still wait end at that point.
//
// fn gets a Context of its own, and must use that one: it numbers the branch's calls. A
// panic of fn is the future's error, a *PanicError.
func Go[T any](ctx Context, fn func(Context) (T, error)) *Future[T] {
	return goIn(ctx.flow(), "go", fn)
}

// goIn runs fn as a branch in a scope with the given name.
func goIn[T any](f *flow, name string, fn func(Context) (T, error)) *Future[T] {
	f.x.use()
	s := f.scope.child(name)
	p := &Future[T]{promise: promise{name: s.path[:len(s.path)-1]}}
	if f.x.closing {
		return p
	}
	sub := &flow{x: f.x, scope: s, cancel: f.cancel}
	f.x.spawn(p.name, func() (err error) {
		p.value, err = fn(sub)
		return err
	}, p.resolve)
	return p
}

// All waits for all values, and returns them in the order of fs; when one fails, All
// returns its error at once. The other futures go on.
func All[T any](ctx Context, fs ...*Future[T]) ([]T, error) {
	f := ctx.flow()
	if err := f.x.gather(f, promisesOf(fs), untilError); err != nil {
		return nil, err
	}
	out := make([]T, len(fs))
	var first error
	for i, p := range fs {
		v, err := p.peek(f.x)
		if err != nil && first == nil {
			first = err
		}
		out[i] = v
	}
	if first != nil {
		return nil, first
	}
	return out, nil
}

// Settled is the outcome of one future.
type Settled[T any] struct {
	Value T
	Err   error
}

// AllSettled waits until each future has a value or an error. The error is ErrCancelled
// or ErrTimeout if ctx ends before.
func AllSettled[T any](ctx Context, fs ...*Future[T]) ([]Settled[T], error) {
	f := ctx.flow()
	if err := f.x.gather(f, promisesOf(fs), untilAll); err != nil {
		return nil, err
	}
	out := make([]Settled[T], len(fs))
	for i, p := range fs {
		out[i].Value, out[i].Err = p.settled(f.x)
	}
	return out, nil
}

// Race waits for the first future that has a value or an error, and returns its outcome
// and index; if ctx ends before, the index is -1. The other futures go on.
func Race[T any](ctx Context, fs ...*Future[T]) (T, int, error) {
	var zero T
	f := ctx.flow()
	if len(fs) == 0 {
		return zero, -1, errNone
	}
	if err := f.x.gather(f, promisesOf(fs), untilOne); err != nil {
		return zero, -1, err
	}
	for i, p := range fs {
		if p.done {
			v, err := p.settled(f.x)
			return v, i, err
		}
	}
	panic("workflow: a race without a winner")
}

// Any waits for the first future that has a value, and returns the value and the index.
// If all fail, the index is -1 and the error joins their errors.
func Any[T any](ctx Context, fs ...*Future[T]) (T, int, error) {
	var zero T
	f := ctx.flow()
	if len(fs) == 0 {
		return zero, -1, errNone
	}
	if err := f.x.gather(f, promisesOf(fs), untilValue); err != nil {
		return zero, -1, err
	}
	var errs []error
	for i, p := range fs {
		if !p.done {
			continue
		}
		v, err := p.settled(f.x)
		if err == nil {
			return v, i, nil
		}
		errs = append(errs, err)
	}
	return zero, -1, errors.Join(errs...)
}

var errNone = cay.Errorf(cay.Invalid, "there is nothing to wait for")

// peek is settled for a future that may not be completed.
func (f *Future[T]) peek(x *execution) (T, error) {
	if !f.done {
		var zero T
		return zero, nil
	}
	return f.settled(x)
}

func promisesOf[T any](fs []*Future[T]) []*promise {
	ps := make([]*promise, len(fs))
	for i, f := range fs {
		ps[i] = &f.promise
	}
	return ps
}

// until is the condition on which gather returns.
type until uint8

const (
	untilAll   until = iota // all are done
	untilError              // all are done, or one has failed
	untilValue              // all are done, or one has a value
	untilOne                // one is done
)

// gather waits until enough of ps are done. It examines each promise once, however many
// there are.
func (x *execution) gather(f *flow, ps []*promise, u until) error {
	x.use()
	g := &gathering{until: u}
	for _, p := range ps {
		if p.done {
			g.count(p)
		} else {
			g.left++
		}
	}
	if g.enough || g.left == 0 {
		return nil
	}
	for _, p := range ps {
		if !p.done {
			p.waiters.add(&gathered{gathering: g, promise: p})
		}
	}
	defer g.leave(ps)
	for !g.enough && g.left > 0 {
		if err := f.cancel.cause(); err != nil {
			return err
		}
		x.park(f.cancel, "waits for "+strconv.Itoa(g.left)+" of "+strconv.Itoa(len(ps))+" futures", "", &g.waiters)
	}
	return nil
}

type gathering struct {
	until   until
	left    int
	enough  bool
	waiters waitList
}

func (g *gathering) count(p *promise) {
	switch g.until {
	case untilError:
		g.enough = g.enough || p.err != nil
	case untilValue:
		g.enough = g.enough || p.err == nil
	case untilOne:
		g.enough = true
	}
}

// leave removes g from the promises that are not done: a loop may gather the same
// promises again and again.
func (g *gathering) leave(ps []*promise) {
	for _, p := range ps {
		if !p.done {
			p.waiters.remove(func(w waiter) bool {
				other, ok := w.(*gathered)
				return ok && other.gathering == g
			})
		}
	}
}

// gathered is one promise of a gathering.
type gathered struct {
	*gathering
	promise *promise
}

func (g *gathered) wake() {
	g.left--
	g.count(g.promise)
	if g.enough || g.left == 0 {
		g.waiters.wake()
	}
}
