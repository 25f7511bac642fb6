package agent

import (
	"sync"
	"time"
)

// runTimer calls a function when the machine has run for a while. Time in which the
// machine was paused, or saved and restored, does not count: afterwards the clock has
// jumped, and every ordinary timer is due.
//
// A machine is not notified of a pause. So the timer runs in steps, and a step that took
// much longer than planned is not counted; but the step after it is counted, however long
// it took, so that the timers of a machine that gets too little CPU time are late but
// fire. A pause is recognized to within a step; the step is 1/50 of the time, at least
// minStep, and at most maxStep.
type runTimer struct {
	do  func()
	now func() time.Time

	mu      sync.Mutex // guards what follows
	timer   *time.Timer
	left    time.Duration
	step    time.Duration
	next    time.Duration // planned length of the current step
	begun   time.Time     // when it began
	excused bool          // the step before was not counted
	stopped bool
}

const (
	minStep = 100 * time.Millisecond
	maxStep = 5 * time.Second
)

// afterRunning calls do, in a new goroutine, when the machine has run for d.
func afterRunning(d time.Duration, do func()) *runTimer { return newRunTimer(d, do, time.Now) }

func newRunTimer(d time.Duration, do func(), now func() time.Time) *runTimer {
	t := &runTimer{do: do, now: now, left: d, step: min(max(d/50, minStep), maxStep)}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.begun, t.next = now(), min(t.step, d)
	t.timer = time.AfterFunc(t.next, t.fire)
	return t
}

// Stop keeps the function from being called, unless the call has begun.
func (t *runTimer) Stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopped = true
	t.timer.Stop()
}

func (t *runTimer) fire() {
	if t.advance() {
		t.do()
	}
}

// advance ends a step and begins the next. It reports whether the last step has ended.
func (t *runTimer) advance() (due bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped {
		return false
	}
	now := t.now()
	took := now.Sub(t.begun)
	late := took > t.next+t.step
	if !late || t.excused {
		t.left -= min(took, t.next+t.step)
	}
	t.excused = late && !t.excused
	if t.left <= 0 {
		return true
	}
	t.begun, t.next = now, min(t.step, t.left)
	t.timer.Reset(t.next)
	return false
}
