package ledger

import (
	"context"
	"crypto/sha256"
	"sync"
	"time"
)

// What providers keep under an id (answers, files, containers) belongs to the account
// the gateway calls them with, which many projects share. So that none of them reaches
// what is another's, it is kept whose each id is: a hash of it, for as long as
// providers keep such things.

const (
	// keptFor is how long it is known whose an id is: OpenAI keeps answers 30 days.
	keptFor = 31 * 24 * time.Hour
	// maxKept is how many ids are known; the oldest go first.
	maxKept = 2_000_000
	// maxPending is how many may wait for the disk.
	maxPending = 100_000
	// keptGroup is how many are written at once.
	keptGroup = 1000
)

// Kept is what is known of an id.
type Kept struct {
	TeamID, ProjectID string
	// Tokens is how many going on with it adds to a prompt.
	Tokens int64
}

type keptRow struct {
	Kept
	at time.Time
}

// keptIDs are those that wait for the disk.
type keptIDs struct {
	mu      sync.Mutex // guards what follows
	pending map[[32]byte]keptRow
	writing bool
	closed  bool
	lost    int64 // for which there was no room
	done    sync.WaitGroup
}

func hashOf(provider, id string) [32]byte { return sha256.Sum256([]byte(provider + "\x00" + id)) }

// Keep notes that what a provider keeps under ids is c's. It does not wait for the
// disk, but who asks next knows of it.
func (b *Book) Keep(c *Caller, provider string, tokens int64, all []string) {
	row := keptRow{Kept{c.TeamID, c.ProjectID, tokens}, b.now()}
	b.ids.mu.Lock()
	defer b.ids.mu.Unlock()
	if b.ids.pending == nil {
		b.ids.pending = make(map[[32]byte]keptRow)
	}
	for _, id := range all {
		if len(b.ids.pending) >= maxPending {
			b.ids.lost++
			continue
		}
		h := hashOf(provider, id)
		if known, ok := b.ids.pending[h]; !ok || known.TeamID == c.TeamID && known.ProjectID == c.ProjectID {
			b.ids.pending[h] = row
		}
	}
	if !b.ids.writing && !b.ids.closed {
		b.ids.writing = true
		b.ids.done.Add(1)
		go b.writeIDs()
	}
}

// close waits until what is pending is written. What comes later is not.
func (k *keptIDs) close() {
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	k.done.Wait()
}

// Whose returns what is known of an id of a provider's, nil if nothing is.
func (b *Book) Whose(ctx context.Context, provider, id string) (*Kept, error) {
	h := hashOf(provider, id)
	b.ids.mu.Lock()
	row, ok := b.ids.pending[h]
	b.ids.mu.Unlock()
	if ok {
		return &row.Kept, nil
	}
	k, err := b.store.kept(ctx, h)
	if err != nil {
		return nil, overloaded(err)
	}
	return k, nil
}

// writeIDs writes what is pending, until nothing is. What cannot be written stays
// known until the process ends.
func (b *Book) writeIDs() {
	defer b.ids.done.Done()
	ctx := context.Background()
	for {
		group := make(map[[32]byte]keptRow)
		b.ids.mu.Lock()
		for h, row := range b.ids.pending {
			if group[h] = row; len(group) == keptGroup {
				break
			}
		}
		if lost := b.ids.lost; lost > 0 {
			b.ids.lost = 0
			b.log.Warn("too many ids of providers wait for the disk; those who have made them cannot use them", "ids", lost)
		}
		if len(group) == 0 {
			b.ids.writing = false
			b.ids.mu.Unlock()
			return
		}
		b.ids.mu.Unlock()
		err := b.store.keep(ctx, group)
		b.ids.mu.Lock()
		if err != nil {
			b.ids.writing = false // the next Keep tries again
			b.ids.mu.Unlock()
			b.log.Error("whose ids of providers are could not be written", "error", err)
			return
		}
		for h, row := range group {
			if b.ids.pending[h] == row {
				delete(b.ids.pending, h)
			}
		}
		b.ids.mu.Unlock()
	}
}
