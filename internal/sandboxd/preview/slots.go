package preview

import "sync"

// slots bounds the visits under way, of one holder (a label, a team) and of all,
// so that nobody can take more than a share.
type slots struct {
	each, total int

	mu    sync.Mutex // guards what follows
	taken int
	held  map[string]int // without zeros
}

func newSlots(each, total int) *slots {
	return &slots{each: each, total: total, held: make(map[string]int)}
}

// take reports whether there was a slot, which release gives back.
func (s *slots) take(holder string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken >= s.total || s.held[holder] >= s.each {
		return false
	}
	s.taken++
	s.held[holder]++
	return true
}

func (s *slots) release(holder string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
	if s.held[holder]--; s.held[holder] == 0 {
		delete(s.held, holder)
	}
}
