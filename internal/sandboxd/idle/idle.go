// Package idle ends sandboxes that are not used. A running command is use; a mere
// connection is not.
package idle

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay/internal/sandboxd/clock"
)

// Sandbox is the watched sandbox. No method is called with a Watch's lock held.
type Sandbox interface {
	// Running reports whether the sandbox runs. A paused or ending sandbox is not idle.
	Running() bool
	// AwaitCommands waits until no command runs, and reports whether a command ran, or
	// may have run.
	AwaitCommands() (waited bool)
	// Hold keeps the sandbox from being paused, and its idle timeout from being changed,
	// until release. ok is false if the sandbox is ending.
	Hold() (release func(), ok bool)
	// Idle ends the sandbox after it was idle for that long. The caller holds it.
	Idle(after time.Duration)
}

// Watch watches one sandbox. An activity does not move its timer: when the timer fires,
// the Watch checks the time of the last activity.
type Watch struct {
	clock      clock.Clock
	background func(func()) bool
	sandbox    Sandbox

	last     atomic.Int64 // the last activity, by Clock.Mono
	busy     atomic.Int32 // uses between Enter and Leave
	checking atomic.Bool  // a check is under way, and will set the timer again

	mu      sync.Mutex    // guards the fields below
	after   time.Duration // 0: no idle timeout
	timer   clock.Timer   // nil: not set
	stopped bool
}

// New returns a Watch without a timeout, whose timer is not set. background runs the
// checks, and may refuse to.
func New(c clock.Clock, background func(func()) bool, s Sandbox) *Watch {
	return &Watch{clock: c, background: background, sandbox: s}
}

// Touch records an activity: a call, or transferred bytes.
func (w *Watch) Touch() { w.last.Store(int64(w.clock.Mono())) }

// Enter begins a use that lasts until Leave.
func (w *Watch) Enter() {
	w.busy.Add(1)
	w.Touch()
}

// Leave ends a use that Enter began.
func (w *Watch) Leave() {
	w.busy.Add(-1)
	w.Touch()
}

// Set sets the timeout, 0 for none. The caller then calls Arm to set the timer.
func (w *Watch) Set(after time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.after = after
}

// Arm sets the timer, to fire no earlier than atLeast from now. The caller calls it when
// the sandbox runs.
func (w *Watch) Arm(atLeast time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.armLocked(atLeast)
}

func (w *Watch) armLocked(atLeast time.Duration) {
	clock.Stop(&w.timer)
	if w.after == 0 || w.stopped {
		return
	}
	at := max(time.Duration(w.last.Load())+w.after, w.clock.Mono()+atLeast)
	w.timer = w.clock.At(at, func() { w.background(w.check) })
}

// Disarm stops the timer, until Arm.
func (w *Watch) Disarm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clock.Stop(&w.timer)
}

// Stop stops the timer for good.
func (w *Watch) Stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	clock.Stop(&w.timer)
}

// check ends the sandbox if it has been idle for its timeout, and otherwise sets the
// timer again. It calls the guest only if the sandbox was not used: then it waits for
// running commands to exit.
func (w *Watch) check() {
	if !w.checking.CompareAndSwap(false, true) {
		return
	}
	w.mu.Lock()
	after := w.after
	w.mu.Unlock()
	if after > 0 && w.busy.Load() == 0 && w.sandbox.Running() && w.unused() >= after && w.sandbox.AwaitCommands() {
		w.Touch()
	}
	release, ok := w.sandbox.Hold()
	if !ok {
		return
	}
	defer release()
	if after, due := w.decide(w.sandbox.Running()); due {
		w.sandbox.Idle(after)
	}
}

// decide reports whether the held sandbox is to end, and otherwise sets the timer again.
func (w *Watch) decide(running bool) (after time.Duration, due bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.checking.Store(false)
	busy := w.busy.Load() > 0
	if w.after != 0 && running && !busy && w.unused() >= w.after {
		return w.after, true
	}
	if busy {
		w.Touch()
	}
	if running {
		w.armLocked(0)
	}
	return 0, false
}

func (w *Watch) unused() time.Duration { return w.clock.Mono() - time.Duration(w.last.Load()) }
