package workflow

import (
	"errors"
	"fmt"
)

// Saga undoes the effects of a workflow that fails: after each step that changes
// something, the workflow adds a function that undoes the change.
type Saga struct {
	f    *flow
	undo []compensation
}

type compensation struct {
	name string
	fn   func(Context) error
}

// NewSaga returns a Saga with nothing to undo. The added functions get a Context that
// does not end when ctx does, so that they also run after a cancellation.
func NewSaga(ctx Context) *Saga {
	f := ctx.flow()
	f.x.use()
	return &Saga{f: f.under(new(canceller))}
}

// Add adds a function that undoes the last step. The name is the scope of fn's calls; Add
// panics on a name that Step would not accept.
func (s *Saga) Add(name string, fn func(Context) error) {
	mustName("Saga.Add", name)
	s.undo = append(s.undo, compensation{name: name, fn: fn})
}

// Compensate runs the added functions, the last first, and removes them. If one fails,
// the others run nevertheless, and the returned error joins all errors.
func (s *Saga) Compensate() error {
	x := s.f.x
	x.use()
	var errs []error
	for len(s.undo) > 0 {
		c := s.undo[len(s.undo)-1]
		s.undo = s.undo[:len(s.undo)-1]
		if err := s.call(c); err != nil {
			errs = append(errs, fmt.Errorf("undo %s: %w", c.name, err))
		}
	}
	return errors.Join(errs...)
}

func (s *Saga) call(c compensation) error {
	return c.fn(&flow{x: s.f.x, scope: s.f.scope.child(c.name), cancel: s.f.cancel})
}

// Guard is meant to be deferred: it calls Compensate if *err is not nil, or the function
// panics, and joins errors of Compensate to *err. A function that ends with ContinueAsNew
// has not failed; the next run has its own Saga.
func (s *Saga) Guard(err *error) {
	if s.f.x.closing {
		return // the worker drops the run, which has not failed
	}
	p := recover()
	if p == nil && (*err == nil || isContinue(*err)) {
		return
	}
	undone := s.Compensate()
	if p != nil {
		if undone != nil {
			s.f.Logger().Error("a workflow that panicked could not be undone", "error", undone)
		}
		panic(p)
	}
	if undone != nil {
		*err = errors.Join(*err, undone)
	}
}
