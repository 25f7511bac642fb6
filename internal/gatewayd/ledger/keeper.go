package ledger

import (
	"context"
	"time"
)

const (
	// tick is how often the keeper checks whether the gateway is idle enough to move
	// records from the journal to the table of requests. It is idle if fewer than
	// fewRecords were recorded since the last tick.
	tick       = time.Second
	fewRecords = 1000
	// maxJournal is the number of journal records above which the keeper moves records
	// even if the gateway is busy.
	maxJournal = 200_000
	// idleAfter is how long a budget must be unused before it releases its held amount,
	// and maxAccounts is the number of unused balances kept in memory.
	idleAfter   = 10 * time.Second
	maxAccounts = 50_000
	// pruneEvery is the interval at which expired records and ids are deleted.
	pruneEvery = 10 * time.Minute
)

// keep is the keeper goroutine, which runs background work when the gateway is idle.
func (b *Book) keep(ctx context.Context) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	var recorded int64
	var pruned time.Time
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		recorded = b.rest(ctx, recorded)
		if now := b.now(); now.Sub(pruned) >= pruneEvery {
			pruned = now
			if err := b.prune(ctx); err != nil && ctx.Err() == nil {
				b.log.ErrorContext(ctx, "what is too old was not deleted", "error", err)
			}
		}
	}
}

// rest runs one round of background work, and returns the number of records recorded so
// far.
func (b *Book) rest(ctx context.Context, before int64) int64 {
	b.sweep()
	s := b.Stats()
	var err error
	switch {
	case s.Journal > maxJournal:
		err = b.fold(ctx, maxJournal*9/10)
	case s.Journal > 0 && s.Recorded-before < fewRecords:
		err = b.fold(ctx, 0)
	}
	if err != nil && ctx.Err() == nil {
		b.log.ErrorContext(ctx, "records were not brought to the table of requests; they are safe in the journal", "error", err)
	}
	return s.Recorded
}

// sweep makes idle balances release their held amounts, and drops idle balances from
// memory if there are too many.
func (b *Book) sweep() {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	for _, t := range b.teams {
		for i := range t.scopes {
			s := &t.scopes[i]
			for ref, a := range s.balances {
				switch {
				case a.users > 0 || now.Sub(a.touched) < idleAfter || a.dirty || a.committing:
				case a.leased > 0:
					b.markLocked(a)
					signal(b.lazy)
				case b.balances > maxAccounts:
					delete(s.balances, ref)
					b.balances--
				}
			}
		}
	}
}

// fold moves records from the journal to the table of requests until at most left remain.
func (b *Book) fold(ctx context.Context, left int) error {
	for {
		n, err := b.store.fold(ctx)
		if err != nil {
			return err
		}
		b.mu.Lock()
		b.stats.Journal -= n
		enough := n == 0 || b.stats.Journal <= left
		b.mu.Unlock()
		if enough {
			return nil
		}
	}
}

// prune deletes expired records in small batches.
func (b *Book) prune(ctx context.Context) error {
	now := b.now()
	for {
		n, err := b.store.pruneKept(ctx, now.Add(-keptFor), maxKept)
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
	}
	if b.opts.Retention <= 0 {
		return nil
	}
	if err := b.flush(ctx, true); err != nil {
		return err
	}
	for {
		n, err := b.store.pruneRequests(ctx, now.Add(-b.opts.Retention))
		if err != nil || n == 0 {
			return err
		}
	}
}
