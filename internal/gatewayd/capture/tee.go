package capture

// slack is how much more than Rules.Max is looked at, so that what is to be taken
// out is found whole where a body is cut.
const slack = 4 << 10

// Tee collects the beginning of a body as it is sent. It is not safe for concurrent
// use.
type Tee struct {
	s    *Store
	max  int
	body []byte
	size int64
	lost bool // there was no room
}

// Tee returns one for a call. End it with Offer, or Discard.
func (s *Store) Tee(r *Rules) *Tee { return &Tee{s: s, max: int(r.Max) + slack} }

// Write takes the next bytes. It never fails and never waits.
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

// Discard gives back what was collected.
func (t *Tee) Discard() {
	t.s.release(len(t.body))
	t.body = nil
}
