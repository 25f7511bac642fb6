package ledger

import (
	"context"
	"time"
)

const (
	// tick is how often it is looked whether there is time to bring records from
	// the journal to the table of requests. That is so if there were fewer than
	// fewRecords since the last time.
	tick       = time.Second
	fewRecords = 1000
	// maxJournal is how many records the journal may have before they are moved
	// whether there is time or not.
	maxJournal = 200_000
	// idleAfter is after how long a budget that nobody spends gives back what it
	// holds, and maxAccounts how many are kept in memory although nobody does.
	idleAfter   = 10 * time.Second
	maxAccounts = 50_000
	// pruneEvery is how often what is too old is deleted.
	pruneEvery = 10 * time.Minute
)

// keep is the goroutine that does what there is time for.
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

// rest does what there is time for, and returns how many records there are now.
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

// sweep has budgets that nobody spends give back what they hold, and forgets
// them if there are many.
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

// fold brings records from the journal to the table of requests until it has no
// more than left.
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

// prune deletes records that are too old, a few at a time.
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
