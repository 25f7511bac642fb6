package preview

import "sync"

// slots bounds the visits under way, of one label and of all, so that visitors
// of one preview can take no more than its share.
type slots struct {
	perLabel, total int

	mu     sync.Mutex // guards what follows
	taken  int
	labels map[string]int // without zeros
}

func newSlots(perLabel, total int) *slots {
	return &slots{perLabel: perLabel, total: total, labels: make(map[string]int)}
}

// take reports whether there was a slot, which release gives back.
func (s *slots) take(label string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken >= s.total || s.labels[label] >= s.perLabel {
		return false
	}
	s.taken++
	s.labels[label]++
	return true
}

func (s *slots) release(label string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
	if s.labels[label]--; s.labels[label] == 0 {
		delete(s.labels, label)
	}
}
