// Package clock is the engine's source of time. Tests use their own clocks.
package clock

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Clock tells the time, and calls functions at a time.
type Clock interface {
	// Now returns the wall clock. It may jump, and is only displayed.
	Now() time.Time
	// Mono returns the time since some moment in the host's boot. It never jumps and is
	// the same for all processes until the host restarts.
	Mono() time.Duration
	// Boot identifies the host's boot to which Mono belongs.
	Boot() string
	// At calls f in its own goroutine when Mono reaches at, or at once if it has already.
	At(at time.Duration, f func()) Timer
}

// Timer is a pending call. *time.Timer implements it.
type Timer interface {
	// Stop cancels the call, and reports whether it did so in time.
	Stop() bool
}

type systemClock struct {
	boot   string
	start  time.Time     // with Go's monotonic reading
	offset time.Duration // CLOCK_MONOTONIC at start
}

// System returns the host's clock.
func System() (Clock, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("read boot id: %w", err)
	}
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return nil, fmt.Errorf("read monotonic clock: %w", err)
	}
	return &systemClock{
		boot: strings.TrimSpace(string(boot)), start: time.Now(), offset: time.Duration(ts.Nano()),
	}, nil
}

func (c *systemClock) Now() time.Time      { return time.Now() }
func (c *systemClock) Mono() time.Duration { return c.offset + time.Since(c.start) }
func (c *systemClock) Boot() string        { return c.boot }

func (c *systemClock) At(at time.Duration, f func()) Timer {
	return time.AfterFunc(max(at-c.Mono(), 0), f)
}

// Stop stops a timer and sets it to nil. A nil timer is allowed.
func Stop(t *Timer) {
	if *t != nil {
		(*t).Stop()
		*t = nil
	}
}
