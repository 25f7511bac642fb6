package capture

// slack is how many bytes beyond Rules.Max are collected, so that a match that crosses
// the cut is found whole.
const slack = 4 << 10

// Tee collects the beginning of a body while the body is being sent. It is not safe for
// concurrent use.
type Tee struct {
	s    *Store
	max  int
	body []byte
	size int64
	lost bool // the memory limit was reached
}

// Tee returns a Tee for a call. The caller must end it with Offer or Discard.
func (s *Store) Tee(r *Rules) *Tee { return &Tee{s: s, max: int(r.Max) + slack} }

// Write collects the next bytes. It never fails and never waits.
func (t *Tee) Write(p []byte) {
	t.size += int64(len(p))
	n := min(len(p), t.max-len(t.body))
	switch {
	case n <= 0 || t.lost:
	case !t.s.reserve(n):
		t.Discard()
		t.lost = true
	default:
		t.body = append(t.body, p[:n]...)
	}
}

// Discard releases the collected bytes.
func (t *Tee) Discard() {
	t.s.release(len(t.body))
	t.body = nil
}
