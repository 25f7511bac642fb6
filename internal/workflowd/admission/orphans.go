package admission

import (
	"context"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
)

const (
	// orphanAfter is how long after its creation a pending run without a message is an
	// orphan: the SDK creates a run and publishes its first message within seconds.
	orphanAfter = 10 * time.Minute
	sweepEvery  = 5 * time.Minute
)

// orphanReason is the reason of the cancellation of an orphan.
const orphanReason = "the process that started the run died before it had published the run's first message"

// Sweep cancels orphans until the engine ends: external runs that nobody will ever start,
// because the process that created them died in between. The caller of the SDK's start got an
// error or no answer, and may have started another run instead: so Sweep starts no orphan. Each run is looked at once: a run with a message keeps it
// until it has started.
func (d *Door) Sweep() {
	if d == nil {
		return
	}
	timer := time.NewTicker(sweepEvery)
	defer timer.Stop()
	for since := int64(0); ; {
		until := time.Now().Add(-orphanAfter).UnixMilli()
		switch err := d.sweep(d.ctx, since, until); {
		case err == nil:
			since = until
		case d.ctx.Err() == nil:
			d.cfg.Logger.Warn("cannot look for runs that were never started, will try again", "error", err)
		}
		select {
		case <-d.ctx.Done():
			return
		case <-timer.C:
		}
	}
}

// sweep cancels the orphans that were created between two times.
func (d *Door) sweep(ctx context.Context, since, until int64) error {
	q := history.Query{Statuses: []history.Status{history.Pending}, Since: since, Until: until, Ascending: true, Limit: pendingPage}
	for {
		page, err := d.cfg.Store.Runs(ctx, q)
		if err != nil {
			return err
		}
		for i := range page.Items {
			if r := &page.Items[i]; r.Kind.External() {
				if err := d.cancelOrphan(ctx, r); err != nil {
					return err
				}
			}
		}
		if page.Cursor == "" {
			return nil
		}
		q.Cursor = page.Cursor
	}
}

func (d *Door) cancelOrphan(ctx context.Context, r *history.Run) error {
	waiting, err := d.cfg.Messages.Messages(ctx, r.Project, r.ID, 1)
	if err != nil || len(waiting) > 0 {
		return err
	}
	switch err := d.cfg.Cancel(ctx, r.Project, r.ID, orphanReason); cay.CodeOf(err) {
	case "", cay.NotFound, cay.Conflict: // it has ended meanwhile
		return nil
	default:
		return err
	}
}
