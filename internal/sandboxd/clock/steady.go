package clock

import (
	"sync"
	"time"
)

// Steady is the wall clock for actions that cannot be undone, such as deleting expired
// snapshots. It follows a wall clock that is set back at once, because expiry then only
// comes later. It follows a wall clock that jumps forward only after the clock has kept
// running from there for believeAfter: an operator who set it wrong has that long to
// correct it. The first reading is always believed.
type Steady struct {
	clock Clock

	mu     sync.Mutex
	offset time.Duration // from Mono to the time since 1970; 0: not read yet
	ahead  time.Duration // the offset after a jump forward; 0: no jump
	since  time.Duration // Mono when the jump was first seen
}

// NewSteady returns a Steady over c.
func NewSteady(c Clock) *Steady { return &Steady{clock: c} }

const (
	believeAfter = 2 * time.Hour
	// jumpTolerance is the largest change that is not treated as a jump.
	jumpTolerance = time.Minute
)

// Now returns the current time.
func (s *Steady) Now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	mono := s.clock.Mono()
	offset := time.Duration(s.clock.Now().UnixNano()) - mono
	switch {
	case s.offset == 0 || offset <= s.offset+jumpTolerance:
		s.offset, s.ahead = offset, 0
	case s.ahead == 0 || (offset-s.ahead).Abs() > jumpTolerance:
		s.ahead, s.since = offset, mono
	case mono-s.since >= believeAfter:
		s.offset, s.ahead = offset, 0
	}
	return time.Unix(0, int64(s.offset+mono)).UTC()
}

// At returns the Clock.Mono at which this clock will reach t.
func (s *Steady) At(t time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Duration(t.UnixNano()) - s.offset
}
