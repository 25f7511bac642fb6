package workflow

import (
	"context"
	"time"
)

// Observer receives reports of a Worker's actions, for traces and metrics; workflow/trace
// implements it. The worker calls the methods synchronously, so they must be quick and
// must not block. Calls for one run come in order, calls for different runs concurrently.
type Observer interface {
	// RunStarted is called when a run's code begins, but not on replay.
	RunStarted(run *RunInfo)
	// RunReplayed is called when a run's code was replayed, after a restart or because
	// the run had been asleep.
	RunReplayed(run *RunInfo, events int, took time.Duration)
	// RunDropped is called when the worker has released a run because it was idle.
	RunDropped(run *RunInfo)
	// RunEnded is called when the end of a run is recorded. err is nil, or the error that
	// Result returns.
	RunEnded(run *RunInfo, err error)
	// RunDiverged is called each time a run's log does not fit the worker's code.
	RunDiverged(run *RunInfo, err *DivergenceError)
	// StepStarted is called before an attempt of a step. The step gets the returned
	// context.
	StepStarted(ctx context.Context, run *RunInfo, step StepMetadata) context.Context
	// StepEnded is called after the attempt with its context, before it is recorded.
	StepEnded(ctx context.Context, run *RunInfo, step StepOutcome)
	// RunEmitted is called with the values that a run's code passes to Emit.
	RunEmitted(run *RunInfo, value any)
}

// Emit passes a value from the run's code to the worker's Observer: for example, the end
// of a part of the work that forms a span. On replay Emit does nothing; but a call just
// before a crash may be repeated after it.
func Emit(ctx Context, value any) {
	x := ctx.flow().x
	x.use()
	if x.emit != nil && !x.replaying && !x.closing {
		x.emit(value)
	}
}

// StepOutcome is the outcome of an attempt of a step.
type StepOutcome struct {
	StepMetadata
	StartedAt time.Time
	Duration  time.Duration
	Err       error // nil if it succeeded
	// RetryAt is the time of the next attempt; zero if there is none.
	RetryAt time.Time
}

// NoObserver observes nothing. Embed it to implement only some methods of Observer, and
// to stay compatible when methods are added.
type NoObserver struct{}

// The methods of Observer, without effect.
func (NoObserver) RunStarted(*RunInfo)                      {}
func (NoObserver) RunReplayed(*RunInfo, int, time.Duration) {}
func (NoObserver) RunDropped(*RunInfo)                      {}
func (NoObserver) RunEnded(*RunInfo, error)                 {}
func (NoObserver) RunDiverged(*RunInfo, *DivergenceError)   {}
func (NoObserver) StepStarted(ctx context.Context, _ *RunInfo, _ StepMetadata) context.Context {
	return ctx
}
func (NoObserver) StepEnded(context.Context, *RunInfo, StepOutcome) {}
func (NoObserver) RunEmitted(*RunInfo, any)                         {}

var _ Observer = NoObserver{}
