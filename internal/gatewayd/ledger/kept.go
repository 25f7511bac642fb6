package ledger

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"sync"
	"time"
)

// Objects that providers keep under an id (answers, files, containers) belong to the
// gateway's account with the provider, which many projects share. The ledger records
// which project owns each id, so that no project can use another's objects. It stores a
// hash of the id for as long as providers keep the object.

const (
	// keptFor is how long the owner of an id is stored: OpenAI keeps answers for 30 days.
	keptFor = 31 * 24 * time.Hour
	// maxKept is the maximum number of stored ids; the oldest are deleted first.
	maxKept = 2_000_000
	// maxPending is the maximum number of ids that wait for the disk.
	maxPending = 100_000
	// keptGroup is the number of ids per transaction.
	keptGroup = 1000
)

// Kept is the owner of an id, and its size.
type Kept struct {
	TeamID, ProjectID string
	// Tokens is how many tokens a prompt grows by when it continues the object.
	Tokens int64
}

type keptRow struct {
	Kept
	at time.Time
}

// keptIDs knows the owners of ids that providers keep, and queues the ids that are not
// yet on disk.
type keptIDs struct {
	store store
	log   *slog.Logger
	now   func() time.Time

	mu      sync.Mutex // guards the following fields; taken with no other lock held
	pending map[[32]byte]keptRow
	writing bool
	closed  bool
	lost    int64 // ids dropped because pending was full
	done    sync.WaitGroup
}

func hashOf(provider, id string) [32]byte { return sha256.Sum256([]byte(provider + "\x00" + id)) }

// Keep records that c owns the ids that a provider keeps. Keep does not wait for the
// disk, but Whose finds the ids at once.
func (k *keptIDs) Keep(c *Caller, provider string, tokens int64, all []string) {
	row := keptRow{Kept{c.TeamID, c.ProjectID, tokens}, k.now()}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.pending == nil {
		k.pending = make(map[[32]byte]keptRow)
	}
	for _, id := range all {
		if len(k.pending) >= maxPending {
			k.lost++
			continue
		}
		h := hashOf(provider, id)
		if known, ok := k.pending[h]; !ok || known.TeamID == c.TeamID && known.ProjectID == c.ProjectID {
			k.pending[h] = row
		}
	}
	if !k.writing && !k.closed {
		k.writing = true
		k.done.Add(1)
		go k.write()
	}
}

// close waits until all pending ids are written. Ids added later are not written.
func (k *keptIDs) close() {
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	k.done.Wait()
}

// Whose returns the owner of a provider's id, nil if the id is unknown.
func (k *keptIDs) Whose(ctx context.Context, provider, id string) (*Kept, error) {
	h := hashOf(provider, id)
	k.mu.Lock()
	row, ok := k.pending[h]
	k.mu.Unlock()
	if ok {
		return &row.Kept, nil
	}
	kept, err := k.store.kept(ctx, h)
	if err != nil {
		return nil, overloaded(err)
	}
	return kept, nil
}

// write writes pending ids until the queue is empty. Ids that cannot be written stay
// in memory until the process ends.
func (k *keptIDs) write() {
	defer k.done.Done()
	ctx := context.Background()
	for {
		group := make(map[[32]byte]keptRow)
		k.mu.Lock()
		for h, row := range k.pending {
			if group[h] = row; len(group) == keptGroup {
				break
			}
		}
		if lost := k.lost; lost > 0 {
			k.lost = 0
			k.log.Warn("too many ids of providers wait for the disk; those who have made them cannot use them", "ids", lost)
		}
		if len(group) == 0 {
			k.writing = false
			k.mu.Unlock()
			return
		}
		k.mu.Unlock()
		err := k.store.keep(ctx, group)
		k.mu.Lock()
		if err != nil {
			k.writing = false // the next Keep tries again
			k.mu.Unlock()
			k.log.Error("whose ids of providers are could not be written", "error", err)
			return
		}
		for h, row := range group {
			if k.pending[h] == row {
				delete(k.pending, h)
			}
		}
		k.mu.Unlock()
	}
}
