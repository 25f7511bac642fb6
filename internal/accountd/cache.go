package accountd

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay/internal/api"
)

const (
	cacheTTL = 30 * time.Second
	cacheMax = 4096 // entries
)

// cached is the cached state of a live token.
type cached struct {
	principal api.Principal
	expires   *time.Time
	until     time.Time
	// minute of the newest use handed to uses, as minutes since 1970.
	minute atomic.Int64
}

// cache remembers tokens that were looked up. Unknown secrets are not cached,
// so that guessing cannot displace real ones.
type cache struct {
	mu      sync.Mutex
	entries map[hash]*cached // at most cacheMax
	// generation counts removals. A lookup that began before a removal must not
	// put its result into the cache.
	generation uint64
}

func (c *cache) init() { c.entries = make(map[hash]*cached) }

// get returns the entry of h, nil if there is none, and the generation to pass
// to put.
func (c *cache) get(h hash, now time.Time) (*cached, uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[h]
	if e != nil && !now.Before(e.until) {
		delete(c.entries, h)
		e = nil
	}
	return e, c.generation
}

// put adds an entry that was read after get returned generation.
func (c *cache) put(h hash, e *cached, generation uint64, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.generation != generation {
		return
	}
	if len(c.entries) >= cacheMax {
		for old := range c.entries { // any one: the order of a map is random
			delete(c.entries, old)
			break
		}
	}
	e.until = now.Add(cacheTTL)
	c.entries[h] = e
}

// drop removes all entries of a token: it may have several secrets.
func (c *cache) drop(tokenID string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.entries, func(_ hash, e *cached) bool { return e.principal.TokenID == tokenID })
	c.generation++
}

func (c *cache) purge() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.entries)
	c.generation++
}
