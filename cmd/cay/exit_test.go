package main

import (
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// Two equal signals in quick succession count as one, whoever receives them; two different
// signals count as two.
func TestInterrupts_Repeated(t *testing.T) {
	const term, intr = syscall.SIGTERM, syscall.SIGINT
	type sent struct {
		after  time.Duration // since the one before
		signal syscall.Signal
	}
	for name, c := range map[string]struct {
		sent []sent
		want []syscall.Signal
	}{
		"once":                     {[]sent{{0, term}}, []syscall.Signal{term}},
		"timeout's two":            {[]sent{{0, term}, {0, term}}, []syscall.Signal{term}},
		"just within":              {[]sent{{0, intr}, {repeatWindow - 1, intr}}, []syscall.Signal{intr}},
		"the user's second":        {[]sent{{0, intr}, {repeatWindow, intr}}, []syscall.Signal{intr, intr}},
		"held down":                {[]sent{{0, intr}, {60 * time.Millisecond, intr}, {60 * time.Millisecond, intr}}, []syscall.Signal{intr, intr}},
		"another":                  {[]sent{{0, intr}, {0, term}}, []syscall.Signal{intr, term}},
		"another and a copy of it": {[]sent{{0, intr}, {0, term}, {0, term}}, []syscall.Signal{intr, term}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var first, got []syscall.Signal
				i := newInterrupts(func(s syscall.Signal) { first = append(first, s) })
				release := i.take(func(s syscall.Signal) { got = append(got, s) })
				for n, s := range c.sent {
					time.Sleep(s.after)
					i.ch <- s.signal
					synctest.Wait()
					if n == 0 && len(c.want) == 1 {
						release() // copies reach nobody, not even the next in charge
					}
				}
				close(i.ch)
				<-i.done
				if !slices.Equal(got, c.want) || len(first) > 0 {
					t.Errorf("handled %v, and %v after release; want %v", got, first, c.want)
				}
			})
		})
	}
}
