package sandboxtest

import (
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/sandboxd/clock"
)

// Clock is a clock.Clock that a test moves.
type Clock struct {
	mu     sync.Mutex
	wall   time.Time
	mono   time.Duration
	boot   string
	timers map[*timer]struct{}
	armed  sync.Cond // uses mu; broadcast when a timer is added
}

var _ clock.Clock = (*Clock)(nil)

// NewClock returns a clock that stands still.
func NewClock() *Clock {
	c := &Clock{
		wall: time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC), mono: time.Hour, boot: "boot-1",
		timers: make(map[*timer]struct{}),
	}
	c.armed.L = &c.mu
	return c
}

type timer struct {
	c  *Clock
	at time.Duration
	f  func()
}

// Now implements clock.Clock.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wall
}

// Mono implements clock.Clock.
func (c *Clock) Mono() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mono
}

// Boot implements clock.Clock.
func (c *Clock) Boot() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.boot
}

// At implements clock.Clock.
func (c *Clock) At(at time.Duration, f func()) clock.Timer {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &timer{c, at, f}
	c.timers[t] = struct{}{}
	c.armed.Broadcast()
	c.fireLocked()
	return t
}

// Stop implements clock.Timer.
func (t *timer) Stop() bool {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	_, ok := t.c.timers[t]
	delete(t.c.timers, t)
	return ok
}

// Advance moves the time by d. Due timers are called in goroutines of their own.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mono += d
	c.wall = c.wall.Add(d)
	c.fireLocked()
}

// AwaitTimer waits until a timer is armed that is due in exactly d.
func (c *Clock) AwaitTimer(t testing.TB, d time.Duration) {
	t.Helper()
	late := false
	defer time.AfterFunc(time.Minute, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		late = true
		c.armed.Broadcast()
	}).Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		var due []time.Duration
		for timer := range c.timers {
			if timer.at == c.mono+d {
				return
			}
			due = append(due, timer.at-c.mono)
		}
		if late {
			t.Fatalf("no timer is due in %v, but in %v", d, due)
		}
		c.armed.Wait()
	}
}

// Jump sets the wall clock, while the monotonic time stays.
func (c *Clock) Jump(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall = c.wall.Add(d)
}

// Reboot starts a new boot, with a new monotonic time.
func (c *Clock) Reboot() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.boot += "'"
	c.mono = time.Minute
}

func (c *Clock) fireLocked() {
	for t := range c.timers {
		if t.at <= c.mono {
			delete(c.timers, t)
			go t.f()
		}
	}
}
