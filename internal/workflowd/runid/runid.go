// Package runid makes the ids of runs.
package runid

import (
	"crypto/rand"
	"encoding/binary"
	"sync"
)

// Source makes ids of runs: "wrun_" and a ULID. The ids of one process ascend, also
// within a millisecond and when the clock goes back, so that lists show runs in the order
// of their starts.
type Source struct {
	mu     sync.Mutex // guards the fields below
	last   int64      // Unix milliseconds
	high   uint16     // high and low are the random part, of 80 bits
	low    uint64
	source [14]byte
}

const ulidDigits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

// Next returns a new id. now is in Unix milliseconds.
func (u *Source) Next(now int64) string {
	u.mu.Lock()
	rand.Read(u.source[:])
	if now > u.last {
		// The top bit is left for carries.
		u.last, u.high, u.low = now, binary.BigEndian.Uint16(u.source[:])>>1, binary.BigEndian.Uint64(u.source[2:])
	} else {
		// A random increment, so that an id cannot be guessed from the previous one.
		low := u.low + 1 + uint64(binary.BigEndian.Uint32(u.source[10:]))<<16
		if low < u.low {
			u.high++
		}
		u.low = low
	}
	ms, high, low := uint64(u.last), uint64(u.high), u.low
	u.mu.Unlock()

	id := [31]byte{'w', 'r', 'u', 'n', '_'}
	for i := 14; i >= 5; i-- {
		id[i] = ulidDigits[ms&31]
		ms >>= 5
	}
	for i := 30; i >= 15; i-- {
		id[i] = ulidDigits[low&31]
		low = low>>5 | high<<59
		high >>= 5
	}
	return string(id[:])
}
