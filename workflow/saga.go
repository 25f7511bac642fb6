package workflow

import (
	"errors"
	"fmt"
)

// Saga undoes what a workflow has done when it fails: after each step that changes
// something, the workflow adds what undoes it.
//
//	saga := workflow.NewSaga(ctx)
//	defer saga.Guard(&err) // err is the function's named result
//	...
//	payment, err := charge.Run(ctx, card)
//	if err != nil {
//		return err
//	}
//	saga.Add("refund", func(ctx workflow.Context) error {
//		_, err := refund.Run(ctx, payment)
//		return err
//	})
type Saga struct {
	f    *flow
	undo []compensation
}

type compensation struct {
	name string
	fn   func(Context) error
}

// NewSaga returns a Saga with nothing to undo. What undoes gets a Context that does
// not end when ctx does: a run that was cancelled is undone too.
func NewSaga(ctx Context) *Saga {
	f := ctx.flow()
	f.x.use()
	return &Saga{f: f.under(new(canceller))}
}

// Add adds what undoes the last step. The name is a scope of what fn asks for; it
// panics if it is one that Step would not take.
func (s *Saga) Add(name string, fn func(Context) error) {
	mustName("Saga.Add", name)
	s.undo = append(s.undo, compensation{name: name, fn: fn})
}

// Compensate undoes what was added, the last first, and forgets it. One that fails
// does not keep the others from being run: the error joins theirs.
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

// Guard is to be deferred: it compensates if *err is not nil, or the function
// panics, and adds to *err what went wrong at that. A function that ends with
// ContinueAsNew has not failed; the next run has its own Saga.
func (s *Saga) Guard(err *error) {
	if s.f.x.closing {
		return // the worker lets go of the run: it has not failed
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
