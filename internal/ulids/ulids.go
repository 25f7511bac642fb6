// Package ulids makes ids that sort by the order in which a process made them.
package ulids

import (
	"crypto/rand"
	"sync"

	"github.com/oklog/ulid/v2"
)

// Source makes ids: a prefix and a ULID. The ids of a Source ascend, also within a
// millisecond and when the clock goes back. It is safe for concurrent use.
type Source struct {
	prefix string

	mu      sync.Mutex // guards the following fields
	last    uint64     // Unix milliseconds
	entropy *ulid.MonotonicEntropy
}

// increment bounds the random distance between two ids of a millisecond: 48 bits, so that
// an id cannot be guessed from the previous one.
const increment = 1<<48 - 1

// New returns a Source of ids with a prefix.
func New(prefix string) *Source {
	return &Source{prefix: prefix, entropy: ulid.Monotonic(rand.Reader, increment)}
}

// Next returns a new id. now is in Unix milliseconds.
func (s *Source) Next(now int64) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = max(s.last, uint64(now))
	id, err := ulid.New(s.last, s.entropy)
	for err != nil { // the random part has no room to ascend within this millisecond
		s.last++
		id, err = ulid.New(s.last, s.entropy)
	}
	b := make([]byte, len(s.prefix)+ulid.EncodedSize)
	copy(b, s.prefix)
	_ = id.MarshalTextTo(b[len(s.prefix):]) // fails only for another size
	return string(b)
}
