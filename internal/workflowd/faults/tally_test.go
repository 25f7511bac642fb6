package faults

import (
	"context"
	"sync"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/workflowd"
)

// tally is a Store that counts its commits, so that tests can wait for a number of them.
type tally struct {
	workflowd.Store

	mu      sync.Mutex // guards the fields below
	counts  counts
	changed chan struct{} // closed, and replaced, at each commit
}

// counts of commits.
type counts struct {
	made    int
	refused int // because the disk was full
}

func newTally() *tally { return &tally{changed: make(chan struct{})} }

func (c *tally) wrap(s workflowd.Store) workflowd.Store {
	c.Store = s
	return c
}

func (c *tally) count(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		c.counts.made++
	case cay.CodeOf(err) == cay.NoSpace:
		c.counts.refused++
	}
	close(c.changed)
	c.changed = make(chan struct{})
	return err
}

// until waits until enough returns true for the counts.
func (c *tally) until(ctx context.Context, enough func(counts) bool) error {
	for {
		c.mu.Lock()
		now, changed := c.counts, c.changed
		c.mu.Unlock()
		if enough(now) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// made waits for n more commits.
func (c *tally) made(ctx context.Context, n int) error {
	c.mu.Lock()
	n += c.counts.made
	c.mu.Unlock()
	return c.until(ctx, func(now counts) bool { return now.made >= n })
}

func (c *tally) Commit(ctx context.Context, g *workflowd.Group) error {
	return c.count(c.Store.Commit(ctx, g))
}

func (c *tally) Transact(ctx context.Context, g *workflowd.Group, do func(tx workflowd.Tx) error) error {
	return c.count(c.Store.Transact(ctx, g, do))
}
