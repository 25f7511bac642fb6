package workflow

import (
	"context"
	"time"
)

// Observer is told what a Worker does, for traces and metrics: workflow/trace is
// one. Its methods are called by what they tell of, so they must be quick and must
// not block; they are called concurrently, those of one run in order.
type Observer interface {
	// RunStarted is called when a run's code begins, and not when it is replayed.
	RunStarted(run *RunInfo)
	// RunReplayed is called when a run's code was brought back to where it was, after
	// a restart or because it had been asleep.
	RunReplayed(run *RunInfo, events int, took time.Duration)
	// RunDropped is called when the worker has given a run back because it was idle.
	RunDropped(run *RunInfo)
	// RunEnded is called when the end of a run is recorded. err is nil, or what Result
	// returns.
	RunEnded(run *RunInfo, err error)
	// RunDiverged is called each time a run does not fit the worker's code.
	RunDiverged(run *RunInfo, err *DivergenceError)
	// StepStarted is called before an attempt of a step, which gets the context it
	// returns.
	StepStarted(ctx context.Context, run *RunInfo, step StepMetadata) context.Context
	// StepEnded is called after the attempt with its context, before it is recorded.
	StepEnded(ctx context.Context, run *RunInfo, step StepOutcome)
	// Told is called with what a run's code tells: see Tell.
	Told(run *RunInfo, what any)
}

// Tell tells the worker's Observer something of what the run's code does, which the
// Observer has to know: that a part of the work has ended, say, that makes a span.
// Nothing is told when the code is replayed; but what it told just before a crash it
// may tell again.
func Tell(ctx Context, what any) {
	x := ctx.flow().x
	x.use()
	if x.tell != nil && !x.replaying && !x.closing {
		x.tell(what)
	}
}

// StepOutcome is how an attempt of a step ended.
type StepOutcome struct {
	StepMetadata
	StartedAt time.Time
	Took      time.Duration
	Err       error // nil if it succeeded
	// RetryAt is when it is tried again; zero if it is not.
	RetryAt time.Time
}

// NoObserver observes nothing. Embed it to implement only a part of Observer, and
// what is added to it later.
type NoObserver struct{}

// The methods of Observer, each of which does nothing.
func (NoObserver) RunStarted(*RunInfo)                      {}
func (NoObserver) RunReplayed(*RunInfo, int, time.Duration) {}
func (NoObserver) RunDropped(*RunInfo)                      {}
func (NoObserver) RunEnded(*RunInfo, error)                 {}
func (NoObserver) RunDiverged(*RunInfo, *DivergenceError)   {}
func (NoObserver) StepStarted(ctx context.Context, _ *RunInfo, _ StepMetadata) context.Context {
	return ctx
}
func (NoObserver) StepEnded(context.Context, *RunInfo, StepOutcome) {}
func (NoObserver) Told(*RunInfo, any)                               {}

var _ Observer = NoObserver{}
