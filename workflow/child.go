package workflow

import (
	"fmt"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
)

// Run runs the workflow inside this run, as a function: its steps and waits are recorded
// in this run's log, in a scope of their own.
func (d *Definition[In, Out]) Run(ctx Context, in In) (Out, error) {
	f := ctx.flow()
	f.x.use()
	s := f.scope.child(d.Name())
	s.inline = true
	return d.fn(&flow{x: f.x, scope: s, cancel: f.cancel}, in)
}

// Go is Run as a branch: see the function Go.
func (d *Definition[In, Out]) Go(ctx Context, in In) *Future[Out] {
	return goIn(ctx.flow(), d.Name(), func(ctx Context) (Out, error) {
		ctx.flow().scope.inline = true
		return d.fn(ctx, in)
	})
}

// Child is a run that a workflow has started with StartChild.
type Child[Out any] struct {
	// ID is the id of the run.
	ID string

	x  *execution
	op *op
}

// ChildOption changes how a child is started.
type ChildOption interface{ applyChild(*childParams) }

type childParams struct {
	run      NewRun
	detached bool
}

type childOption func(*childParams)

func (o childOption) applyChild(p *childParams) { o(p) }

// Detached lets a child go on when its parent is cancelled or fails. The parent cannot
// wait for the child: Result returns not_supported.
func Detached() ChildOption { return childOption(func(p *childParams) { p.detached = true }) }

// ChildGroup sets the group by which the child's workflow limits runs.
func ChildGroup(group string) ChildOption {
	return childOption(func(p *childParams) { p.run.Group = group })
}

// ChildPriority overrides the priority of the child's workflow.
func ChildPriority(n int) ChildOption {
	return childOption(func(p *childParams) { p.run.Priority = n })
}

// ChildAttributes are the child's initial attributes.
func ChildAttributes(attributes map[string]string) ChildOption {
	return childOption(func(p *childParams) { p.run.Attributes = attributes })
}

// StartChild starts the workflow as a run of its own, and returns when the start is
// recorded. The child has its own log, limits and entry in lists, and any worker that has
// the workflow executes it. When this run fails or is cancelled, the child is asked to
// cancel, unless it is Detached.
//
// Errors: the errors of Start if the child can never be started; ErrCancelled or
// ErrTimeout.
func (d *Definition[In, Out]) StartChild(ctx Context, in In, opts ...ChildOption) (*Child[Out], error) {
	f := ctx.flow()
	x := f.x
	x.use()
	if err := f.cancel.cause(); err != nil {
		return nil, err
	}
	p := new(promise)
	o := x.ask(f, kindChild, d.Name(), p)
	if o.child == nil {
		o.child = new(childState)
	}
	c := o.child
	if !o.recorded {
		params := childParams{run: NewRun{
			ID: derivedRunID(x.run.ID, o.id, x.time()), Workflow: d.Name(), Build: x.run.Build, Priority: d.def.info.Priority,
			Parent: x.run.ID, Root: x.run.Root, ParentCall: o.id,
		}}
		if params.run.Root == "" {
			params.run.Root = x.run.ID
		}
		for _, opt := range opts {
			opt.applyChild(&params)
		}
		if params.detached {
			params.run.ParentCall = ""
		}
		input, err := x.payloads.forRun(params.run.ID).encode(in)
		if err != nil {
			x.settle(o, nil)
			c.unwanted = true
			return nil, fmt.Errorf("input of workflow %s: %w", d.Name(), err)
		}
		params.run.Input = input
		c.run, c.detached = params.run, params.detached
	} else {
		for _, opt := range opts {
			var params childParams
			opt.applyChild(&params)
			c.detached = c.detached || params.detached
		}
	}
	o.startChild(x)
	if err := x.waitFor(f, p); err != nil {
		return nil, err
	}
	if p.err != nil {
		return nil, p.err
	}
	return &Child[Out]{ID: c.id, x: x, op: o}, nil
}

// childState is the state of a child in the log.
type childState struct {
	run      NewRun
	detached bool
	unwanted bool   // the child can never be started
	id       string // "" until it has been started
	ended    *Event
	waiters  waitList
}

func (o *op) applyChild(x *execution, e *Event) {
	if o.child == nil {
		o.child = new(childState)
	}
	c := o.child
	switch e.Type {
	case history.ChildStarted:
		c.id = e.Token
	case history.ChildEnded:
		c.ended = e
		x.finish(o)
		c.waiters.wake()
	}
	if o.asked {
		o.startChild(x)
	}
}

// startChild makes StartChild return, if the log allows it.
func (o *op) startChild(x *execution) {
	if o.child.id != "" {
		if o.child.ended != nil {
			x.finish(o)
		}
		x.settle(o, nil)
	}
}

func (c *childState) call(o *op) *childCall {
	return &childCall{
		id: o.id, run: c.run,
		started: Event{Type: history.ChildStarted, ID: o.id, Name: c.run.Workflow, Token: c.run.ID},
	}
}

// Result waits for the end of the child, and returns its result. Errors:
// *RunFailedError, *RunCancelledError; ErrCancelled or ErrTimeout if ctx ends
// before; not_supported for a child that is Detached.
func (c *Child[Out]) Result(ctx Context) (Out, error) {
	var out Out
	f := ctx.flow()
	x, s := f.x, c.op.child
	x.use()
	if s.detached {
		return out, cay.Errorf(cay.NotSupported, "child %s is detached: nobody is told how it ends", c.ID)
	}
	for s.ended == nil {
		if err := f.cancel.cause(); err != nil {
			return out, err
		}
		x.park(f.cancel, "waits for the child "+c.op.id, c.op.id, &s.waiters)
	}
	switch e, enc := s.ended, x.payloads.forRun(c.ID); history.Status(e.Code) {
	case history.Completed:
		if err := enc.decode(e.Payload, &out); err != nil {
			return *new(Out), fmt.Errorf("result of child %s: %w", c.ID, err)
		}
		return out, nil
	case history.Cancelled:
		return out, &RunCancelledError{Run: c.ID, Workflow: c.op.name, Reason: e.Reason}
	default:
		return out, &RunFailedError{Run: c.ID, Workflow: c.op.name, Code: history.CodeUser, Cause: enc.decodeError(e.Payload)}
	}
}

// continueError is the error by which a workflow's function asks for a run that continues
// its own.
type continueError struct{ run NewRun }

func (e *continueError) Error() string {
	return fmt.Sprintf("the run is continued by %s: return this error from the workflow's function", e.run.ID)
}

// ContinueAsNew ends this run as completed and starts another run in its place, with an
// empty log: for workflows that run for longer than a log should grow. The function must
// return the error that ContinueAsNew returns. Callers that wait for the result get the
// result of the last run of the chain, and requests to the first run go to the last run:
// see Run. Group, priority, attributes and RunRetention are carried over.
//
// Errors, instead of that error: invalid, too_large if the input cannot be stored;
// not_supported in an inline child.
func (d *Definition[In, Out]) ContinueAsNew(ctx Context, in In) error {
	f := ctx.flow()
	x := f.x
	x.use()
	if f.scope.inline {
		return cay.Errorf(cay.NotSupported, "workflow %s runs inside another one: only a run's own function can be continued as new", d.Name())
	}
	r := &x.run
	next := NewRun{
		ID: derivedRunID(r.ID, "next", x.time()), Workflow: d.Name(),
		Group: r.Group, Priority: r.Priority, Build: r.Build, Attributes: x.attributes,
		Parent: r.Parent, Root: r.Root, Previous: r.ID,
	}
	input, err := x.payloads.forRun(next.ID).encode(in)
	if err != nil {
		return fmt.Errorf("input of workflow %s: %w", d.Name(), err)
	}
	next.Input = input
	return &continueError{run: next}
}
