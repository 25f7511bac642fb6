package ledger

import (
	"context"
	"log/slog"
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

// keeper does background work when the gateway is idle: it moves records from the journal
// to the table of requests, makes idle budgets release their held amounts, and deletes
// old records and ids.
type keeper struct {
	memory    *memory
	store     store
	writer    *writer
	log       *slog.Logger
	now       func() time.Time
	retention time.Duration      // of records; 0: forever
	cancel    context.CancelFunc // ends the goroutine
	done      chan struct{}      // closed when the goroutine has ended
}

// run is the keeper goroutine, which runs background work when the gateway is idle.
func (k *keeper) run(ctx context.Context) {
	defer close(k.done)
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
		recorded = k.rest(ctx, recorded)
		if now := k.now(); now.Sub(pruned) >= pruneEvery {
			pruned = now
			if err := k.prune(ctx); err != nil && ctx.Err() == nil {
				k.log.ErrorContext(ctx, "what is too old was not deleted", "error", err)
			}
		}
	}
}

// rest runs one round of background work, and returns the number of records recorded so
// far.
func (k *keeper) rest(ctx context.Context, before int64) int64 {
	k.memory.sweep()
	s := k.memory.Stats()
	var err error
	switch {
	case s.Journal > maxJournal:
		err = k.writer.fold(ctx, maxJournal*9/10)
	case s.Journal > 0 && s.Recorded-before < fewRecords:
		err = k.writer.fold(ctx, 0)
	}
	if err != nil && ctx.Err() == nil {
		k.log.ErrorContext(ctx, "records were not brought to the table of requests; they are safe in the journal", "error", err)
	}
	return s.Recorded
}

// prune deletes expired records in small batches.
func (k *keeper) prune(ctx context.Context) error {
	now := k.now()
	for {
		n, err := k.store.pruneKept(ctx, now.Add(-keptFor), maxKept)
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
	}
	if k.retention <= 0 {
		return nil
	}
	if err := k.writer.flush(ctx, true); err != nil {
		return err
	}
	for {
		n, err := k.store.pruneRequests(ctx, now.Add(-k.retention))
		if err != nil || n == 0 {
			return err
		}
	}
}
