package workflow

import "slices"

// Source can be waited for with a Selector: a *Future or a *HookHandle.
type Source[T any] interface {
	// ready reports whether take would return at once.
	ready() bool
	take(x *execution) (T, error)
	waiting() *waitList
	// once reports whether the source has a single value; over reports whether it will
	// have no more values.
	once() bool
	over() bool
}

var (
	_ Source[int] = (*Future[int])(nil)
	_ Source[int] = (*HookHandle[int])(nil)
)

func (f *Future[T]) ready() bool                  { return f.done }
func (f *Future[T]) take(x *execution) (T, error) { return f.settled(x) }
func (f *Future[T]) waiting() *waitList           { return &f.waiters }
func (f *Future[T]) once() bool                   { return true }
func (f *Future[T]) over() bool                   { return false }

// Selector waits for the first of several events: of futures, timers (After) and hooks.
type Selector struct {
	x     *execution
	cases []selectCase
}

type selectCase struct {
	ready   func() bool
	run     func()
	waiting *waitList
	once    bool
	over    func() bool
}

// NewSelector returns a Selector without sources.
func NewSelector(ctx Context) *Selector {
	x := ctx.flow().x
	x.use()
	return &Selector{x: x}
}

// Add makes s call fn with the values of a source. A future is removed after its call; a
// hook stays until it is disposed of.
func Add[T any](s *Selector, src Source[T], fn func(T, error)) *Selector {
	s.cases = append(s.cases, selectCase{
		ready:   src.ready,
		run:     func() { fn(src.take(s.x)) },
		waiting: src.waiting(),
		once:    src.once(),
		over:    src.over,
	})
	return s
}

// Len returns the number of remaining sources.
func (s *Selector) Len() int {
	n := 0
	for _, c := range s.cases {
		if !c.over() {
			n++
		}
	}
	return n
}

// Select waits until a source has a value, and calls its function; if several have one,
// the source that was added first wins. Errors: ErrCancelled or ErrTimeout if ctx ends
// before; invalid if no source is left.
func (s *Selector) Select(ctx Context) error {
	f := ctx.flow()
	f.x.use()
	for {
		s.cases = slices.DeleteFunc(s.cases, func(c selectCase) bool { return c.over() })
		if len(s.cases) == 0 {
			return errNone
		}
		lists := make([]*waitList, len(s.cases))
		for i, c := range s.cases {
			if c.ready() {
				if c.once {
					s.cases = slices.Delete(s.cases, i, i+1)
				}
				c.run()
				return nil
			}
			lists[i] = c.waiting
		}
		if err := f.cancel.cause(); err != nil {
			return err
		}
		f.x.park(f.cancel, "waits in a Selector", "", lists...)
	}
}
