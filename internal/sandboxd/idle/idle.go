// Package idle is the clock that ends a sandbox nobody uses. A command that runs is use;
// who is connected is not.
package idle

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay/internal/sandboxd/clock"
)

// Sandbox is what is watched. It is never called with a Watch's lock held.
type Sandbox interface {
	// Running reports whether it runs: one that is paused, or ending, is not idle.
	Running() bool
	// AwaitCommands waits until no command runs, and reports whether one did, or
	// perhaps did.
	AwaitCommands() (waited bool)
	// Hold keeps it from being paused, and from getting another idle timeout, until it
	// is released; not ok: it is ending.
	Hold() (release func(), ok bool)
	// Idle ends it, which was idle for that long. It is held.
	Idle(after time.Duration)
}

// Watch watches one sandbox. Its timer is not moved by each activity: when it fires the
// Watch looks how long the last one is ago.
type Watch struct {
	clock      clock.Clock
	background func(func()) bool
	sandbox    Sandbox

	last     atomic.Int64 // activity, by Clock.Mono
	busy     atomic.Int32 // uses that last
	checking atomic.Bool  // which sets the timer again

	mu      sync.Mutex    // guards what follows
	after   time.Duration // 0: it is never idle
	timer   clock.Timer   // nil: not set
	stopped bool
}

// New returns a Watch that has no timeout and whose timer is not set. Checks are made by
// background, which may refuse to.
func New(c clock.Clock, background func(func()) bool, s Sandbox) *Watch {
	return &Watch{clock: c, background: background, sandbox: s}
}

// Touch notes a use: a call, bytes that move.
func (w *Watch) Touch() { w.last.Store(int64(w.clock.Mono())) }

// Enter notes a use that lasts until Leave.
func (w *Watch) Enter() {
	w.busy.Add(1)
	w.Touch()
}

// Leave ends what Enter began.
func (w *Watch) Leave() {
	w.busy.Add(-1)
	w.Touch()
}

// Set sets the timeout, 0 for none. The timer is set anew by Arm.
func (w *Watch) Set(after time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.after = after
}

// Arm sets the timer, to atLeast from now. It is called when the sandbox runs.
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
// timer again. It costs the sandbox nothing if it was used anyhow; else the exit of a
// command that runs is waited for.
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

// decide reports whether the sandbox, which is held, is to end, and sets the timer again
// if it is not.
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
