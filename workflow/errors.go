package workflow

import (
	"fmt"
	"time"

	"github.com/cayhq/cay"
)

// FatalError makes a step fail without further attempts; see Fatal.
type FatalError struct{ Err error }

// Fatal marks an error of a step as final: the step is not tried again. A workflow that
// returns Fatal(err) fails as if it had returned err. Fatal(nil) is nil.
func Fatal(err error) error {
	if err == nil {
		return nil
	}
	return &FatalError{Err: err}
}

func (e *FatalError) Error() string { return e.Err.Error() }
func (e *FatalError) Unwrap() error { return e.Err }

// RetryableError says when a step is to be tried again; see Retryable.
type RetryableError struct {
	Err   error
	After time.Duration
}

// Retryable makes the next attempt of a step begin after the given time instead of the
// RetryPolicy's: for example when a service answers that its caller should retry later.
// It counts as an attempt. Retryable(nil, after) is nil.
func Retryable(err error, after time.Duration) error {
	if err == nil {
		return nil
	}
	return &RetryableError{Err: err, After: after}
}

func (e *RetryableError) Error() string { return e.Err.Error() }
func (e *RetryableError) Unwrap() error { return e.Err }

// StepError is the error of a step that failed for good.
type StepError struct {
	Step     string `json:"step"`     // its name
	ID       string `json:"id"`       // the step's id in the log
	Attempts int    `json:"attempts"` // number of attempts
	Err      error  `json:"-"`        // the error of the last attempt
}

func (e *StepError) Error() string {
	if e.Attempts > 1 {
		return fmt.Sprintf("step %s failed after %d attempts: %v", e.Step, e.Attempts, e.Err)
	}
	return fmt.Sprintf("step %s failed: %v", e.Step, e.Err)
}

func (e *StepError) Unwrap() error { return e.Err }

// PanicError is a panic of a step, or of a workflow's own code. A step that panics is
// retried, as after any other error.
type PanicError struct {
	Value string `json:"value"`
	Stack string `json:"stack"`
}

func (e *PanicError) Error() string { return "panic: " + e.Value }

// RunFailedError is the result of a run that failed.
type RunFailedError struct {
	Run      string `json:"run"` // id
	Workflow string `json:"workflow"`
	// Code is the class of the error: USER_ERROR for the workflow's own error, or
	// REPLAY_DIVERGENCE, MAX_EVENTS_EXCEEDED, POISONED (see ErrPoisoned), RUNTIME_ERROR,
	// CORRUPTED_EVENT_LOG. Logs of older releases have MAX_DELIVERIES_EXCEEDED.
	Code string `json:"code"`
	// Cause is the error, read back from the log: see RecordedError.
	Cause error `json:"-"`
}

func (e *RunFailedError) Error() string {
	return fmt.Sprintf("workflow %s failed: %v", e.Workflow, e.Cause)
}

func (e *RunFailedError) Unwrap() error { return e.Cause }

// RunCancelledError is the result of a run that was cancelled. errors.Is matches it with
// ErrCancelled.
type RunCancelledError struct {
	Run      string `json:"run"` // id
	Workflow string `json:"workflow"`
	Reason   string `json:"reason"`
}

func (e *RunCancelledError) Error() string {
	if e.Reason == "" {
		return fmt.Sprintf("workflow %s was cancelled", e.Workflow)
	}
	return fmt.Sprintf("workflow %s was cancelled: %s", e.Workflow, e.Reason)
}

// Is matches ErrCancelled, and a *cay.Error of code canceled.
func (e *RunCancelledError) Is(target error) bool {
	if target == ErrCancelled {
		return true
	}
	t, ok := target.(*cay.Error)
	return ok && t.Code == cay.Canceled && t.Message == ""
}
