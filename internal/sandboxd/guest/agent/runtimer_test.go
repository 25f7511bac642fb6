package agent

import (
	"testing"
	"testing/synctest"
	"time"
)

// The clock jumps, as after a machine was paused.
func TestRunTimer(t *testing.T) {
	for name, test := range map[string]struct {
		after         time.Duration
		jumpAt, jump  time.Duration // how far the clock jumps after jumpAt of running time
		earliest, end time.Duration // when the timer is due, in running time
	}{
		"nothing":        {time.Minute, 0, 0, time.Minute, time.Minute},
		"short":          {100 * time.Millisecond, 0, 0, 100 * time.Millisecond, 100 * time.Millisecond},
		"a day":          {time.Minute, 30 * time.Second, 24 * time.Hour, time.Minute, time.Minute + 1200*time.Millisecond},
		"at the start":   {time.Minute, 1, time.Hour, time.Minute, time.Minute + 1200*time.Millisecond},
		"in the last":    {time.Minute, time.Minute - time.Millisecond, time.Hour, time.Minute, time.Minute + 1200*time.Millisecond},
		"of a short one": {250 * time.Millisecond, 200 * time.Millisecond, time.Hour, 250 * time.Millisecond, 350 * time.Millisecond},
		"of a long one":  {24 * time.Hour, time.Hour, 48 * time.Hour, 24 * time.Hour, 24*time.Hour + maxStep},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				due := make(chan struct{})
				newRunTimer(test.after, func() { close(due) }, func() time.Time {
					now := time.Now()
					if ran := now.Sub(begun); test.jump > 0 && ran >= test.jumpAt {
						return now.Add(test.jump)
					}
					return now
				})
				<-due
				if ran := time.Since(begun); ran < test.earliest || ran > test.end {
					t.Errorf("due after %v, want %v to %v", ran, test.earliest, test.end)
				}
			})
		})
	}
}

// Timeouts still work on a machine whose timers are all very late.
func TestRunTimer_Starved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var jumps time.Duration
		due := make(chan struct{})
		newRunTimer(10*time.Second, func() { close(due) }, func() time.Time {
			jumps += time.Hour
			return time.Now().Add(jumps)
		})
		begun := time.Now()
		<-due
		if ran := time.Since(begun); ran > 20*time.Second {
			t.Errorf("due after %v", ran)
		}
	})
}

func TestRunTimer_Stop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		timer := afterRunning(time.Second, func() { t.Error("called") })
		time.Sleep(500 * time.Millisecond)
		timer.Stop()
		time.Sleep(time.Minute)
	})
}
