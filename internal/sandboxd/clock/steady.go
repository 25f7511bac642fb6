package clock

import (
	"sync"
	"time"
)

// Steady is the wall clock for what cannot be undone, such as deleting what
// has expired. A wall clock that is set back is followed at once, which only
// makes things last longer. One that jumps forward is believed after it has gone
// on from there for believeAfter: somebody who sets it wrong has that long to set
// it right. The first time it is asked it believes.
type Steady struct {
	clock Clock

	mu     sync.Mutex
	offset time.Duration // from Mono to the time since 1970; 0: not asked yet
	ahead  time.Duration // the offset of a wall clock that has jumped forward; 0: it has not
	since  time.Duration // Mono when that was seen
}

// NewSteady returns one that believes c.
func NewSteady(c Clock) *Steady { return &Steady{clock: c} }

const (
	believeAfter = 2 * time.Hour
	// jumpTolerance is what does not count as a jump.
	jumpTolerance = time.Minute
)

// Now is the time by it.
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

// At returns when on Clock.Mono it will be t.
func (s *Steady) At(t time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Duration(t.UnixNano()) - s.offset
}
