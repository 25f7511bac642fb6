package admission

import "time"

// Window remembers the starts of the last period.
type Window struct {
	at    []time.Time // a ring buffer
	first int
}

// Wait returns how long until one more run may start.
func (w *Window) Wait(rate int, period time.Duration, now time.Time) time.Duration {
	if rate <= 0 || len(w.at) < rate {
		return 0
	}
	// The next start is allowed when this start has left the period.
	oldest := w.at[(w.first+len(w.at)-rate)%len(w.at)]
	return max(0, oldest.Add(period).Sub(now))
}

// Add records a start; it remembers at most rate starts.
func (w *Window) Add(rate int, now time.Time) {
	if rate <= 0 {
		return
	}
	if len(w.at) != rate && w.first != 0 {
		w.at, w.first = append(append([]time.Time(nil), w.at[w.first:]...), w.at[:w.first]...), 0
	}
	if len(w.at) < rate {
		w.at = append(w.at, now)
		return
	}
	if len(w.at) > rate {
		w.at = append([]time.Time(nil), w.at[len(w.at)-rate:]...)
	}
	w.at[w.first] = now
	w.first = (w.first + 1) % len(w.at)
}
