package sandboxd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/clock"
	"github.com/cayhq/cay/internal/sandboxd/store"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/sandbox"
)

const (
	// teardownTimeout bounds one attempt to destroy a machine.
	teardownTimeout = 30 * time.Second
	// retryEnd is the delay before an end that could not be recorded is retried.
	retryEnd = 5 * time.Second
)

// stoppedError returns the error for callers of a sandbox that has ended.
func stoppedError(ref string, reason sandbox.Reason, message string) *cay.Error {
	text := fmt.Sprintf("sandbox %q no longer runs", ref)
	if reason != "" {
		text += fmt.Sprintf(" (%s)", reason)
	}
	if message != "" {
		text += ": " + message
	}
	return cay.Errorf(cay.Stopped, "%s", text)
}

// stop stops a sandbox and returns when nothing of it runs. If the sandbox is stopping
// already, stop waits for that. The work continues when ctx ends.
func (e *Engine) stop(ctx context.Context, m *session, why store.End) error {
	if isClosed(m.created) && m.createErr == nil && m.inst != nil && m.why.Load() == nil && isClosed(m.inst.Done()) {
		e.died(ctx, m) // record the machine's own end first, so that its reason wins over the stop's
	}
	begun, err := e.store.BeginStop(ctx, m.sandboxID, m.sessionID(), why, e.now())
	if err != nil {
		return err
	}
	if begun {
		m.why.Store(&why)
		e.at("stopping")
	} else if why.Deleting {
		if err := e.store.MarkDeleting(ctx, m.sandboxID, why.KeepSnapshots); err != nil {
			return err
		}
		if was := m.why.Load(); was != nil && !was.Deleting {
			deleted := *was
			deleted.Deleting = true
			m.why.CompareAndSwap(was, &deleted)
		}
	}
	// Cancels the calls into the guest and a creation under way, which then cleans up by
	// itself.
	m.detach(stoppedError(m.sandboxID, why.Reason, why.Message))
	err = e.awaitEnd(ctx, m)
	if err != nil && why.Deleting && !begun && ctx.Err() == nil {
		err = e.awaitEnd(ctx, m) // the previous attempt may have failed to save files that a deletion does not need
	}
	return err
}

// attempt is one attempt to end a machine. All callers that wait for the end share it,
// however many there are and whether or not they leave.
type attempt struct {
	done chan struct{}
	err  error // set before done is closed
}

// awaitEnd makes an attempt to end a machine whose row is stopping, or waits for the
// attempt under way.
func (e *Engine) awaitEnd(ctx context.Context, m *session) error {
	m.mu.Lock()
	a := m.ending
	first := a == nil
	if first {
		a = &attempt{done: make(chan struct{})}
		m.ending = a
	}
	m.mu.Unlock()
	if first {
		work := func() {
			<-m.created
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardownTimeout)
			defer cancel()
			a.err = e.finish(ctx, m)
			m.mu.Lock()
			m.ending = nil
			m.mu.Unlock()
			close(a.done)
		}
		if !e.background(work) {
			work() // not in the background: Close waits for its callers itself
		}
	}
	select {
	case <-a.done:
		return a.err
	case <-ctx.Done():
		return wire.ContextError(ctx)
	}
}

// finish frees everything that a machine holds and records its end. Its row is stopping,
// or m.failure says how the machine failed. finish may be called again: after a failed
// attempt the machine is stuck, and the next attempt continues where that one stopped.
func (e *Engine) finish(ctx context.Context, m *session) (err error) {
	m.finishing.Lock()
	defer m.finishing.Unlock()
	if isClosed(m.gone) {
		return nil
	}
	defer func() { m.stuck.Store(err != nil) }()

	var reason sandbox.Reason
	if f := m.failure.Load(); f != nil {
		// Has no effect if a stop was recorded first.
		failed, err := e.store.Fail(ctx, m.sandboxID, *f, e.now())
		if err != nil && m.inst != nil {
			// The database may stay full for long. Destroy the machine, which is of no
			// use any more.
			return errors.Join(err, m.inst.Destroy(ctx))
		}
		if err != nil {
			return err
		}
		if failed {
			e.at("failed")
		}
		reason = f.Reason
	}
	if why := m.why.Load(); why != nil {
		reason = why.Reason
	}
	if why := m.why.Load(); why != nil && m.failure.Load() == nil && m.hasRun() {
		if err := e.saveAtEnd(ctx, m, *why); err != nil {
			return fmt.Errorf("save sandbox %s: %w", m.sandboxID, err)
		}
		// The save may have used up most of the timeout of ctx.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), teardownTimeout)
		defer cancel()
	}
	if m.inst != nil {
		e.lastSample(ctx, m)
		if err := m.inst.Destroy(ctx); err != nil {
			return fmt.Errorf("end machine of sandbox %s: %w", m.sandboxID, err)
		}
		e.at("destroyed")
	}
	e.endFlows(ctx, m, io.EOF)
	m.free()
	kept := m.archiveOf()
	if err := e.store.Ended(ctx, m.sandboxID, m.sessionID(), m.meter.Total(), kept, e.now()); err != nil {
		return fmt.Errorf("record end of sandbox %s: %w", m.sandboxID, err)
	}
	e.at("ended")
	if kept.Bytes > 0 || m.why.Load() != nil {
		e.freeCommands() // the session's own blob, or blobs that it pushed out
	}
	e.drop(m)
	close(m.gone)
	if why := m.why.Load(); why != nil && why.Deleting {
		e.freeSnapshots() // the deleted sandbox does not need its newest snapshot any more
	}
	if reason != sandbox.ReasonStartFailed && reason != "" && m.inst != nil {
		e.cfg.Metrics.Ended(reason)
	}
	if reason != "" { // no reason: the sandbox is hibernated, which was logged
		e.log.InfoContext(ctx, "sandbox ended", "sandbox", m.sandboxID, "reason", reason)
	}
	return nil
}

// watch waits for a machine to exit by itself.
func (e *Engine) watch(m *session) {
	select {
	case <-m.ctx.Done(): // the machine is being stopped or detached
		return
	case <-m.inst.Done():
	}
	if m.ctx.Err() != nil {
		return
	}
	e.at("seen dead")
	e.died(e.ctx, m)
}

// died records the end of a machine that exited by itself, and cleans up.
func (e *Engine) died(ctx context.Context, m *session) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardownTimeout)
	defer cancel()
	x := m.inst.Exit()
	switch x.Reason {
	case sandbox.ReasonOOM, sandbox.ReasonCrashed, sandbox.ReasonExited:
	default:
		x.Reason, x.Message = sandbox.ReasonCrashed, cmp.Or(x.Message, "the machine ended")
	}
	m.failure.Store(&store.Failure{From: sandbox.Running, Reason: x.Reason, Message: x.Message})
	m.detach(stoppedError(m.sandboxID, x.Reason, x.Message))
	if err := e.finish(ctx, m); err != nil {
		e.log.ErrorContext(ctx, "sandbox that ended was not cleaned up yet", "sandbox", m.sandboxID, "error", err)
	}
}

// armDeadlineLocked sets the timer of the sandbox's timeout.
func (e *Engine) armDeadlineLocked(m *session) {
	clock.Stop(&m.deadline)
	if m.status == sandbox.Running || m.status == sandbox.Paused {
		m.deadline = e.clock.At(m.started+m.timeout, func() { e.background(func() { e.expire(m) }) })
	}
}

// expire stops a sandbox whose timeout has passed.
func (e *Engine) expire(m *session) {
	if m.lock(e.ctx) != nil {
		return // the session is ending already
	}
	m.mu.Lock()
	timeout := m.timeout
	due := e.clock.Mono()-m.started >= timeout
	if !due {
		e.armDeadlineLocked(m) // the timeout was extended meanwhile
	}
	m.mu.Unlock()
	if due {
		e.stopAfterCheck(m, store.End{Reason: sandbox.ReasonTimeout, Message: fmt.Sprintf("its timeout of %v passed", timeout)})
	}
	m.unlock()
}

// stopAfterCheck stops a sandbox because of a condition that the caller checked with m.op
// held. The stop is retried while the database cannot record it.
func (e *Engine) stopAfterCheck(m *session, why store.End) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(e.ctx), teardownTimeout)
	defer cancel()
	err := e.stop(ctx, m, why)
	if err == nil {
		return
	}
	e.log.Error("sandbox was not stopped yet", "sandbox", m.sandboxID, "reason", why.Reason, "error", err)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.status == sandbox.Running || m.status == sandbox.Paused {
		clock.Stop(&m.deadline)
		m.deadline = e.clock.At(e.clock.Mono()+retryEnd, func() { e.background(func() { e.expire(m) }) })
		m.armIdleLocked(retryEnd)
	}
}
