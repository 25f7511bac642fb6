package workflow

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
)

const (
	// slowStep is how long a step runs before its start is recorded. A faster step is
	// recorded as a single event.
	slowStep = 200 * time.Millisecond
	// lateWords is how long a function may take after its timeout to return an error that
	// says why. After that its attempt has ended without it, and the next attempt may
	// begin.
	lateWords = 100 * time.Millisecond
)

var errExited error = cay.Errorf(cay.Internal, "the step ended its goroutine")

// attempt is one execution of a step.
type attempt struct {
	live *liveRun
	call *stepCall

	entered bool // in the queue now or before; guarded by liveRun.mu

	mu        sync.Mutex // guards the fields below
	timer     *time.Timer
	begun     bool
	finished  bool
	recorded  bool // the step is in the log
	late      bool // its function runs on after its timeout
	startedAt time.Time
	end       context.CancelCauseFunc // cancels its context, once it has begun
	cause     error                   // why it was cancelled
	slow      *time.Timer             // fires to record its start
	meta      StepMetadata

	// The values in its context. Only execute uses these fields.
	env   stepEnv
	sinks streamSinks
}

// startStep executes an attempt when it is due.
func (r *liveRun) startStep(call *stepCall) {
	t := &attempt{live: r, call: call, recorded: call.created, meta: StepMetadata{
		RunID: r.id, StepID: call.id, Name: call.name, Attempt: call.attempt, IdempotencyKey: r.id + "/" + call.id,
	}}
	r.mu.Lock()
	if r.gone {
		r.mu.Unlock()
		return
	}
	r.attempts[call.id] = t
	var wait time.Duration
	if !call.notBefore.IsZero() {
		wait = time.Until(call.notBefore)
	}
	if wait > 0 {
		t.mu.Lock()
		t.timer = time.AfterFunc(wait, t.due)
		t.mu.Unlock()
		r.mu.Unlock()
		return
	}
	if r.suspect() && call.lost() > 0 && !r.lineup.joinLocked(t) {
		r.mu.Unlock()
		return
	}
	r.mu.Unlock()
	t.due()
}

// due is called when the attempt is due.
func (t *attempt) due() {
	r := t.live
	r.mu.Lock()
	if r.gone || t.entered {
		r.mu.Unlock()
		return
	}
	t.entered = true
	r.executing++
	r.mu.Unlock()
	t.enter()
}

// leave records that the attempt is over.
func (t *attempt) leave() {
	r := t.live
	r.mu.Lock()
	if r.attempts[t.call.id] == t {
		delete(r.attempts, t.call.id)
	}
	r.executing--
	next := r.lineup.leaveLocked(t)
	r.restLocked()
	r.mu.Unlock()
	if next != nil {
		next.due()
	}
}

// enter puts the attempt into the queue. If call.record is set, it first records the
// start, so that the start is known even if the attempt kills its process.
func (t *attempt) enter() {
	if !t.call.record {
		t.live.a.w.steps.push(t)
		return
	}
	started := t.event(history.StepStarted)
	started.StartedAt = time.Now().UnixMilli()
	t.live.appendOne(started, func(err error) {
		if err != nil {
			t.finish(nil, Fatal(err))
			return
		}
		t.mu.Lock()
		t.recorded = true
		t.mu.Unlock()
		t.live.a.w.steps.push(t)
	})
}

// event returns an event of the attempt.
func (t *attempt) event(typ history.Type) Event {
	e := Event{Type: typ, ID: t.call.id, Attempt: t.call.attempt}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.startedAt.IsZero() {
		e.StartedAt = t.startedAt.UnixMilli()
	}
	if !t.recorded {
		e.Name, e.Input = t.call.name, t.call.input
	}
	return e
}

// cancel ends the attempt's context, or keeps the attempt from beginning.
func (t *attempt) cancel(cause error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer != nil {
		t.timer.Stop()
	}
	if t.cause == nil {
		t.cause = cause
	}
	if t.end != nil {
		t.end(cause)
	}
}

// cancelStep cancels the attempt of a step that the code has given up.
func (r *liveRun) cancelStep(id string) {
	r.mu.Lock()
	t := r.attempts[id]
	r.mu.Unlock()
	if t == nil {
		return
	}
	t.cancel(ErrCancelled)
	t.due() // an attempt that waits for its time fails now
}

// execute executes the attempt and records the outcome.
func (t *attempt) execute() {
	r, call := t.live, t.call
	w := r.a.w
	ctx, end := context.WithCancelCause(r.a.base)
	defer end(nil)
	t.mu.Lock()
	if t.begun || t.finished {
		t.mu.Unlock()
		return
	}
	t.begun, t.startedAt, t.end = true, time.Now(), end
	if t.cause != nil {
		cause := t.cause
		t.mu.Unlock()
		t.finish(nil, cause)
		return
	}
	if !call.record {
		t.slow = time.AfterFunc(slowStep, t.recordStart)
	}
	t.mu.Unlock()

	t.env = stepEnv{meta: t.meta, payloads: r.payloads, streams: &t.sinks, setAttributes: t.setAttributes, writeStream: t.writeStream, readStream: t.readStream}
	t.sinks.write, t.sinks.sealed = t.writeStream, r.payloads
	if d := call.opts.timeout; d > 0 {
		late := &overdueError{cay.Errorf(cay.DeadlineExceeded, "attempt %d took longer than its timeout of %s: %w", call.attempt, d, context.DeadlineExceeded)}
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, d, late)
		defer stop()
		defer t.giveUpAfter(ctx, late)()
	}
	if d := call.opts.heartbeat; d > 0 {
		silent := &overdueError{cay.Errorf(cay.DeadlineExceeded, "attempt %d gave no sign of life for %s: %w", call.attempt, d, context.DeadlineExceeded)}
		timer := time.AfterFunc(d, func() { end(silent) })
		defer timer.Stop()
		t.env.beat = func() { timer.Reset(d) }
		defer t.giveUpAfter(ctx, silent)()
	}
	ctx = w.config.Observer.StepStarted(withStepEnv(ctx, &t.env), &r.info, t.meta)

	// This error stays if the step ends its goroutine, for example with t.Fatal, so that
	// the run does not wait for ever.
	err := errExited
	var result []byte
	defer func() {
		if err == nil && !call.tx {
			err = overdue(ctx)
		}
		if flushErr := t.sinks.flush(); err == nil {
			err = flushErr
		}
		if cause := context.Cause(ctx); cause != nil && err != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
			if err = overdue(ctx); err == nil {
				err = cause
			}
		}
		switch {
		case call.tx && err == nil: // transact has recorded the success
			t.observe(ctx, nil)
		case t.settle():
			if err != nil && !call.tx {
				t.countLate(result)
			}
			t.observe(ctx, err)
			t.record(result, err)
		case !call.tx:
			t.countLate(result)
		}
	}()
	if call.tx {
		err = t.transact(ctx)
	} else {
		result, err = t.invoke(ctx, nil)
	}
}

// invoke calls the step's function. A panic becomes an error.
func (t *attempt) invoke(ctx context.Context, tx Tx) (result []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &PanicError{Value: cut(fmt.Sprint(p), maxErrorWords), Stack: cut(string(debug.Stack()), maxErrorWords)}
		}
	}()
	return t.call.invoke(ctx, tx)
}

// transact executes the attempt of a transactional step, and records its success
// in the same transaction.
func (t *attempt) transact(ctx context.Context) error {
	var stepErr error
	err := t.live.a.session.Transact(ctx, t.live.id, t.live.lease, func(inTx context.Context, tx Tx) (Event, error) {
		var result []byte
		result, stepErr = t.invoke(inTx, tx)
		if stepErr == nil {
			if stepErr = overdue(ctx); stepErr != nil {
				t.countLate(result)
			}
		}
		if stepErr != nil {
			return Event{}, stepErr // the error rolls the step's writes back
		}
		e := t.event(history.StepCompleted)
		e.Payload = result
		return e, nil
	})
	switch {
	case stepErr != nil:
		return stepErr
	case err == nil:
		if t.settle() {
			t.leave()
		}
		return nil
	case errors.Is(err, &cay.Error{Code: cay.NotSupported}), errors.Is(err, &cay.Error{Code: cay.TooLarge}):
		return Fatal(err)
	case errors.Is(err, &cay.Error{Code: cay.Conflict}):
		t.live.resync(err)
	}
	return err
}

// setAttributes sets attributes of the run for a step.
func (t *attempt) setAttributes(ctx context.Context, attributes map[string]string) error {
	if err := t.over(); err != nil {
		return err
	}
	decided := make(chan error, 1)
	t.live.appendOne(Event{Type: history.AttrSet, ID: t.call.id, Attributes: attributes}, func(err error) { decided <- err })
	select {
	case err := <-decided:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// writeStream writes to a stream of the run for a step, as long as the worker has the
// run.
func (t *attempt) writeStream(ctx context.Context, stream string, chunks [][]byte, closeIt bool) error {
	if err := t.over(); err != nil {
		return err
	}
	decided := make(chan error, 1)
	t.live.a.session.WriteStream(t.live.id, t.live.lease, stream, chunks, closeIt, func(err error) { decided <- err })
	select {
	case err := <-decided:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// over returns the error for a function that goes on after the end of its attempt, nil
// before the end.
func (t *attempt) over() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.late {
		return nil
	}
	return cay.Errorf(cay.Conflict, "attempt %d of step %s has ended: its time is over", t.call.attempt, t.call.name)
}

// readStream reads the newest chunks of a stream of the run for a step.
func (t *attempt) readStream(ctx context.Context, stream string, n int) ([]Chunk, error) {
	return lastChunks(ctx, t.live.a.w.client.backend, t.live.id, stream, n)
}

// overdueError is the cause of a context that ended because of the attempt's timeout.
type overdueError struct{ err *cay.Error }

func (e *overdueError) Error() string { return e.err.Error() }
func (e *overdueError) Unwrap() error { return e.err }

// overdue returns the timeout error of the attempt with a context, nil if the attempt has
// not timed out.
func overdue(ctx context.Context) error {
	var late *overdueError
	if errors.As(context.Cause(ctx), &late) {
		return late.err
	}
	return nil
}

// countLate counts a result that arrived after the end of its attempt, and that is
// dropped. Errors are not counted, because the failure is recorded.
func (t *attempt) countLate(result []byte) {
	if result == nil {
		return
	}
	w := t.live.a.w
	w.late.Add(1)
	w.log.Warn("step returned a result after its attempt had ended; it is not recorded",
		"run", t.live.id, "step", t.call.id, "attempt", t.call.attempt, "took", time.Since(t.startedAt))
}

// giveUpAfter fails the attempt if its function goes on after its context has ended
// because of cause. The function keeps its place in the queue.
func (t *attempt) giveUpAfter(ctx context.Context, cause *overdueError) (stop func()) {
	var mu sync.Mutex
	var timer *time.Timer
	stopped := false
	unhook := context.AfterFunc(ctx, func() {
		mu.Lock()
		defer mu.Unlock()
		if !stopped && context.Cause(ctx) == error(cause) {
			timer = time.AfterFunc(lateWords, func() {
				if !t.settle() {
					return
				}
				t.mu.Lock()
				t.late = true
				t.mu.Unlock()
				t.observe(ctx, cause.err)
				t.record(nil, cause.err)
			})
		}
	})
	return func() {
		unhook()
		mu.Lock()
		defer mu.Unlock()
		stopped = true
		if timer != nil {
			timer.Stop()
		}
	}
}

// recordStart records that the attempt has begun, because it takes long.
func (t *attempt) recordStart() {
	e := t.event(history.StepStarted)
	t.mu.Lock()
	finished := t.finished
	t.mu.Unlock()
	if finished {
		return
	}
	// If the append fails or comes too late, the end of the attempt has all the
	// information.
	t.live.appendHint([]Event{e}, func() {
		t.mu.Lock()
		t.recorded = true
		t.mu.Unlock()
	})
}

// appendHint appends events that may be lost.
func (r *liveRun) appendHint(events []Event, done func()) {
	r.mu.Lock()
	if r.gone {
		r.mu.Unlock()
		return
	}
	r.inflight++
	r.mu.Unlock()
	r.a.session.Append(r.id, r.lease, events, func(err error) {
		r.mu.Lock()
		r.inflight--
		r.restLocked()
		r.mu.Unlock()
		if err == nil {
			done()
		}
	})
}

// settle marks the attempt as finished, and reports whether this call was the first.
func (t *attempt) settle() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.finished {
		return false
	}
	t.finished = true
	if t.slow != nil {
		t.slow.Stop()
	}
	return true
}

// finish records the outcome of the attempt, unless it was recorded before.
func (t *attempt) finish(result []byte, err error) {
	if t.settle() {
		t.record(result, err)
	}
}

// record records the outcome of the attempt.
func (t *attempt) record(result []byte, err error) {
	// The append begins before the attempt counts as over, so that the run does not look
	// idle in between.
	defer t.leave()
	t.mu.Lock()
	cause := t.cause
	t.mu.Unlock()
	if err != nil && (cause == errLeaseLost || t.live.a.base.Err() != nil) {
		return // the worker is ending, so the attempt runs again elsewhere
	}
	var e Event
	switch retryAt, again := t.retry(err); {
	case err == nil:
		e = t.event(history.StepCompleted)
		e.Payload = result
	case again:
		e = t.event(history.StepRetrying)
		e.Payload = t.live.payloads.encodeError(err)
		e.Until = retryAt.Add(time.Millisecond - 1).UnixMilli() // rounded up, so that the retry is not early
	default:
		e = t.event(history.StepFailed)
		e.Payload = t.live.payloads.encodeError(err)
	}
	t.live.appendOne(e, func(err error) {
		if err != nil {
			t.refuse(err)
		}
	})
}

// refuse records that the result of the step cannot be stored.
func (t *attempt) refuse(err error) {
	e := t.event(history.StepFailed)
	e.Payload = t.live.payloads.encodeError(err)
	if errors.Is(err, &cay.Error{Code: cay.TooLarge}) && len(e.Input) > maxInputKept {
		e.Input = nil // the input may be too large
	}
	t.live.appendOne(e, t.live.failIf)
}

const maxInputKept = 64 << 10

// retry returns whether and when a step is retried after an attempt that ended with err.
func (t *attempt) retry(err error) (time.Time, bool) {
	opts := &t.call.opts
	var fatal *FatalError
	switch {
	case err == nil, errors.As(err, &fatal):
		return time.Time{}, false
	case opts.maxRetries >= 0 && t.call.failures >= opts.maxRetries:
		return time.Time{}, false
	}
	t.mu.Lock()
	cause := t.cause
	t.mu.Unlock()
	if cause != nil {
		return time.Time{}, false
	}
	wait := opts.retry.after(t.call.failures + 1)
	var when *RetryableError
	if errors.As(err, &when) {
		wait = max(when.After, 0)
	}
	return time.Now().Add(wait), true
}

// after returns the wait after an attempt.
func (p RetryPolicy) after(attempt int) time.Duration {
	wait := float64(p.Initial) * math.Pow(p.Multiplier, float64(attempt-1))
	return jitter(time.Duration(min(wait, float64(p.Max))), p.Jitter)
}

// observe tells the Observer the outcome of the attempt.
func (t *attempt) observe(ctx context.Context, err error) {
	w := t.live.a.w
	if _, nobody := w.config.Observer.(NoObserver); nobody {
		return
	}
	o := StepOutcome{StepMetadata: t.meta, StartedAt: t.startedAt, Duration: time.Since(t.startedAt), Err: err}
	if at, again := t.retry(err); again {
		o.RetryAt = at
	}
	w.config.Observer.StepEnded(ctx, &t.live.info, o)
}

// jitter varies d by up to the given fraction, in both directions.
func jitter(d time.Duration, part float64) time.Duration {
	return d + time.Duration(float64(d)*part*(2*rand.Float64()-1))
}

// backoff returns the wait after the nth failure.
func backoff(first, most time.Duration, n int) time.Duration {
	wait := first
	for i := 1; i < n && wait < most; i++ {
		wait *= 2
	}
	return jitter(min(wait, most), 0.2)
}
