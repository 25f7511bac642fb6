package ledger

import (
	"crypto/rand"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
)

// ids generates the generation ids of this process.
var ids = struct {
	mu      sync.Mutex // guards the following fields
	last    uint64     // Unix milliseconds
	entropy *ulid.MonotonicEntropy
}{entropy: ulid.Monotonic(rand.Reader, 0)}

// NewID returns a generation id: "gen_" and a ULID. The ids of a process ascend, also
// within a millisecond and when the clock goes back.
func NewID() string {
	ids.mu.Lock()
	defer ids.mu.Unlock()
	ids.last = max(ids.last, ulid.Timestamp(time.Now()))
	id, err := ulid.New(ids.last, ids.entropy)
	for err != nil { // the random part has no room to ascend within this millisecond
		ids.last++
		id, err = ulid.New(ids.last, ids.entropy)
	}
	b := make([]byte, 4+ulid.EncodedSize)
	copy(b, "gen_")
	_ = id.MarshalTextTo(b[4:]) // fails only for another size
	return string(b)
}
