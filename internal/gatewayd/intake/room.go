package intake

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// freeBody is the size up to which a body takes no room: most bodies are smaller, and a
// connection itself uses about as much memory.
const freeBody = 64 << 10

// room bounds the memory of request bodies, from the first byte to the end of the call.
// Space is given in order of arrival, but no caller may have more than half: a caller
// with a hundred slow uploads leaves the other half to others.
type room struct {
	size int64
	wait time.Duration
	all  *semaphore.Weighted

	mu    sync.Mutex // guards taken
	taken map[string]int64
}

func newRoom(size int64, wait time.Duration) *room {
	return &room{size: size, wait: wait, all: semaphore.NewWeighted(size), taken: make(map[string]int64)}
}

// take takes n bytes for a caller, and waits for space up to Config.RoomTime. Errors:
// RateLimited if the caller has used its share, Overloaded if no space became free in
// time, Canceled.
func (r *room) take(ctx context.Context, caller string, n int64) *hub.Error {
	r.mu.Lock()
	has := r.taken[caller]
	if has > 0 && has+n > r.size/2 {
		r.mu.Unlock()
		return &hub.Error{
			Kind: hub.RateLimited, Code: "too_many_bytes", RetryAfter: time.Second,
			Message: fmt.Sprintf("the requests of this key that are under way have %d bytes, and all it may have at one time is %d; wait for some of them to end", has, r.size/2),
		}
	}
	r.taken[caller] = has + n
	r.mu.Unlock()
	if r.all.TryAcquire(n) {
		return nil
	}
	waits, cancel := context.WithTimeout(ctx, r.wait)
	defer cancel()
	if r.all.Acquire(waits, n) == nil {
		return nil
	}
	r.forget(caller, n)
	if ctx.Err() != nil {
		return hub.Left()
	}
	return &hub.Error{
		Kind: hub.Overloaded, Code: "no_room", RetryAfter: time.Second,
		Message: "the gateway has no room for another large request; try again",
	}
}

// give returns a caller's bytes.
func (r *room) give(caller string, n int64) {
	if n == 0 {
		return
	}
	r.forget(caller, n)
	r.all.Release(n)
}

func (r *room) forget(caller string, n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.taken[caller] -= n; r.taken[caller] == 0 {
		delete(r.taken, caller)
	}
}
