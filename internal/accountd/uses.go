package accountd

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	usesQueue        = 1024
	usesWriteTimeout = 10 * time.Second
)

// use records that a token was used in a minute.
type use struct {
	id string
	at time.Time
}

// uses writes LastUsedAt of tokens outside of requests. If the queue is full,
// the use is recorded at the token's next use.
type uses struct {
	store store
	log   *slog.Logger
	queue chan use
	done  chan struct{} // closed when the writer has ended

	mu      sync.Mutex
	started bool
	stopped bool
}

func (u *uses) init(s store, log *slog.Logger) {
	u.store, u.log = s, log
	u.queue = make(chan use, usesQueue)
	u.done = make(chan struct{})
}

func (u *uses) start() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.started || u.stopped {
		return
	}
	u.started = true
	go u.write()
}

func (u *uses) stop() {
	u.mu.Lock()
	wait := u.started
	if !u.stopped {
		u.stopped = true
		close(u.queue)
	}
	u.mu.Unlock()
	if wait {
		<-u.done
	}
}

// note records a use, once a minute for each token.
func (u *uses) note(c *cached, now time.Time) {
	minute := now.Unix() / 60
	before := c.minute.Load()
	if before == minute || !c.minute.CompareAndSwap(before, minute) {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.stopped {
		return
	}
	select {
	case u.queue <- use{c.principal.TokenID, time.Unix(minute*60, 0)}:
	default:
		c.minute.Store(before)
	}
}

// write writes the uses that were queued during the last write as one
// transaction, until stop closes the queue.
func (u *uses) write() {
	defer close(u.done)
	for first := range u.queue {
		batch := []use{first}
		for more := true; more && len(batch) < usesQueue; {
			select {
			case next, open := <-u.queue:
				if more = open; open {
					batch = append(batch, next)
				}
			default:
				more = false
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), usesWriteTimeout)
		if err := u.store.recordUses(ctx, batch); err != nil {
			u.log.ErrorContext(ctx, "recording the use of tokens failed", "tokens", len(batch), "error", err)
		}
		cancel()
	}
}
