package sandboxd

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/clock"
)

const (
	// deletedLifetime is how long the row of a deleted snapshot is kept.
	deletedLifetime = 30 * 24 * time.Hour
	// openPatience is how long after its start an engine keeps snapshots that expired
	// before the start: a host that has just booted may have the wrong time.
	openPatience = 10 * time.Minute
	// longestPause is the maximal interval between passes while any snapshot can expire:
	// the engine is not notified when the wall clock is set, or when a sandbox stops
	// needing a snapshot.
	longestPause = time.Hour
	// retryPause is the delay before a failed pass is retried.
	retryPause = time.Minute
)

// janitor wakes the goroutine that expires, deletes and checks snapshots. Each pass of
// that goroutine is called a pass; it runs on request, and when the next snapshot
// expires.
type janitor struct {
	wake  chan struct{} // one token: run a pass
	dirty atomic.Bool   // there may be files without a row
	clock *clock.Steady // by this clock snapshots expire
}

func (k *janitor) wakeUp() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// freeSnapshots removes, in the background, the files of deleted snapshots and, after
// SnapshotGrace, files that never got a row.
func (e *Engine) freeSnapshots() {
	e.janitor.dirty.Store(true)
	e.janitor.wakeUp()
}

// snapshotMade applies the retention of a sandbox that has a new snapshot, in the
// background.
func (e *Engine) snapshotMade(sandboxID string) {
	e.background(func() {
		n, err := e.store.Retain(e.ctx, sandboxID, e.janitor.clock.Now(), e.now())
		if n > 0 {
			e.at("snapshots-thinned")
		}
		switch {
		case err != nil && e.ctx.Err() == nil:
			e.log.Error("snapshots were not thinned out", "sandbox", sandboxID, "error", err)
		case n > 0:
			e.log.Info("snapshots thinned out", "sandbox", sandboxID, "deleted", n)
		}
		e.janitor.wakeUp() // the new snapshot may be the first to expire
	})
}

// runJanitor runs passes until the engine closes.
func (e *Engine) runJanitor() {
	k := janitorPasses{Engine: e, clock: e.janitor.clock, dirty: true}
	k.opened, k.openedAt = e.clock.Mono(), k.clock.Now()
	var timer clock.Timer
	for {
		next, err := k.tidy(e.ctx)
		if err != nil && e.ctx.Err() == nil {
			e.log.Error("snapshots were not looked after", "error", err)
			next = e.clock.Mono() + retryPause
		}
		if next > 0 {
			timer = e.clock.At(next, e.janitor.wakeUp)
		}
		select {
		case <-e.ctx.Done():
			clock.Stop(&timer)
			return
		case <-e.janitor.wake:
			clock.Stop(&timer)
		}
	}
}

// janitorPasses is the state that runJanitor holds from one pass to the next.
type janitorPasses struct {
	*Engine
	clock    *clock.Steady
	opened   time.Duration // Clock.Mono when runJanitor began
	openedAt time.Time     // the same as wall clock time
	// The first sweep runs at once. A further sweep runs SnapshotGrace later, as well as
	// SnapshotGrace after files may have been left without a row.
	swept   bool
	dirty   bool          // a further sweep is to be scheduled
	sweepAt time.Duration // Clock.Mono of the next sweep; 0: none
}

// tidy runs one pass, and returns the Clock.Mono of the next one; 0 if none is needed.
func (k *janitorPasses) tidy(ctx context.Context) (next time.Duration, err error) {
	now, mono := k.clock.Now(), k.Engine.clock.Mono()
	after := k.openedAt // snapshots that expired before the start are kept for openPatience
	if mono-k.opened >= openPatience {
		after = time.Time{}
	}
	expired, err := k.store.ExpireSnapshots(ctx, after, now, k.now())
	if err != nil {
		return 0, err
	}
	if expired > 0 {
		k.log.InfoContext(ctx, "snapshots expired", "count", expired)
	}
	if err := k.removeFiles(ctx); err != nil {
		return 0, err
	}
	if !k.swept || k.sweepAt != 0 && mono >= k.sweepAt {
		if err := k.sweep(ctx); err != nil {
			return 0, err
		}
		k.swept, k.sweepAt = true, 0
	}
	k.dirty = k.janitor.dirty.Swap(false) || k.dirty
	if k.dirty && k.sweepAt == 0 {
		k.dirty, k.sweepAt = false, mono+k.cfg.Limits.SnapshotGrace
	}
	if err := k.each(ctx, k.store.MemoryLeft, k.dropMemory); err != nil {
		return 0, err
	}
	if err := k.freePrograms(ctx); err != nil {
		return 0, err
	}
	if err := k.store.ForgetSnapshots(ctx, now.Add(-deletedLifetime)); err != nil {
		return 0, err
	}
	n, bytes, err := k.store.CountSnapshots(ctx)
	if err != nil {
		return 0, err
	}
	k.cfg.Metrics.Snapshots(n, bytes)
	next, err = k.next(ctx, now, mono)
	k.at("snapshots-kept")
	return next, err
}

// next returns the time of the next pass.
func (k *janitorPasses) next(ctx context.Context, now time.Time, mono time.Duration) (time.Duration, error) {
	dates, err := k.store.SnapshotDates(ctx, now)
	if err != nil {
		return 0, err
	}
	var times []time.Duration
	if dates.Expiring {
		times = append(times, mono+longestPause)
		if settled := k.opened + openPatience; mono < settled {
			times = append(times, settled)
		}
	}
	if !dates.Expiry.IsZero() {
		times = append(times, k.clock.At(dates.Expiry))
	}
	if !dates.Deleted.IsZero() {
		times = append(times, k.clock.At(dates.Deleted.Add(deletedLifetime)))
	}
	if k.sweepAt != 0 {
		times = append(times, k.sweepAt)
	}
	if len(times) == 0 {
		return 0, nil
	}
	return max(slices.Min(times), mono+1), nil
}

// removeFiles removes the files of deleted snapshots. Files that are being read remain,
// without a name, until they are closed.
func (k *janitorPasses) removeFiles(ctx context.Context) error {
	return k.each(ctx, k.store.LeftSnapshots, k.removeSnapshot)
}

// each calls do for every snapshot of a list.
func (k *janitorPasses) each(ctx context.Context, list func(ctx context.Context, last string, limit int) ([]string, error),
	do func(ctx context.Context, id string) error) error {
	const batch = 100
	for last := ""; ; {
		ids, err := list(ctx, last, batch)
		if err != nil {
			return err
		}
		for _, id := range ids {
			if err := do(ctx, id); err != nil {
				return err
			}
			last = id
		}
		if len(ids) < batch {
			return nil
		}
	}
}

// dropMemory removes the memory of a former hibernation that is now a snapshot of files.
// It may be called again. Damaged snapshots keep their memory.
func (k *janitorPasses) dropMemory(ctx context.Context, id string) error {
	m, err := k.cfg.Snapshots.DropMemory(ctx, id)
	switch code := cay.CodeOf(err); {
	case code == cay.NotFound: // sweep marks the snapshot as missing
		return nil
	case code == cay.Conflict:
		k.log.ErrorContext(ctx, "the memory of a damaged snapshot was not dropped", "snapshot", id, "error", err)
		return nil
	case err != nil:
		return fmt.Errorf("drop the memory of snapshot %s: %w", id, err)
	}
	k.at("memory-dropped")
	return k.store.MemoryDropped(ctx, id, m.Size())
}

// removeSnapshot removes the files of a deleted snapshot. It may be called again.
func (e *Engine) removeSnapshot(ctx context.Context, id string) error {
	if err := e.cfg.Snapshots.Delete(ctx, id); err != nil && cay.CodeOf(err) != cay.NotFound {
		return fmt.Errorf("remove the files of snapshot %s: %w", id, err)
	}
	e.at("snapshot-removed")
	return e.store.SnapshotRemoved(ctx, id)
}

// sweep compares rows with files: files without a row are removed if they are older than
// SnapshotGrace, and rows without files are marked.
func (k *janitorPasses) sweep(ctx context.Context) error {
	kept, err := k.store.StoredSnapshots(ctx)
	if err != nil {
		return err
	}
	live := make(map[string]bool, len(kept))
	for id := range kept {
		live[id] = true
	}
	report, err := k.cfg.Snapshots.Collect(ctx, live, k.cfg.Limits.SnapshotGrace)
	if err != nil {
		return fmt.Errorf("collect snapshots: %w", err)
	}
	if report.Bytes > 0 || len(report.Removed) > 0 {
		k.log.InfoContext(ctx, "files that no snapshot has were removed", "snapshots", report.Removed, "bytes", report.Bytes)
	}
	for _, id := range report.Missing {
		delete(live, id)
		if lost, err := k.store.SetStored(ctx, id, false); err != nil {
			return err
		} else if lost {
			k.log.ErrorContext(ctx, "the files of a snapshot are missing", "snapshot", id)
		}
	}
	for id := range live {
		if kept[id] {
			continue
		}
		if _, err := k.store.SetStored(ctx, id, true); err != nil {
			return err
		}
		k.log.InfoContext(ctx, "the files of a snapshot are back", "snapshot", id)
	}
	return nil
}

// keptByRows decides when programs may be removed that no row needs: not while memory is
// being saved, because the Runtime stores programs before the engine writes the row that
// needs them.
type keptByRows struct {
	mu     sync.Mutex // guards what follows; held while programs are removed
	saves  int        // of memory, under way
	missed bool       // a removal was put off
}

// savingMemory is called before memory is saved, and returns the function to be called
// when the row is there or there will be none.
func (e *Engine) savingMemory() (end func()) {
	k := &e.programs
	k.mu.Lock()
	k.saves++
	k.mu.Unlock()
	return func() {
		k.mu.Lock()
		k.saves--
		missed := k.missed && k.saves == 0
		if missed {
			k.missed = false
		}
		k.mu.Unlock()
		if missed {
			e.janitor.wakeUp()
		}
	}
}

// freePrograms removes the programs that no saved memory needs, and no machine.
func (e *Engine) freePrograms(ctx context.Context) error {
	if e.cfg.Programs == nil {
		return nil
	}
	k := &e.programs
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.saves > 0 {
		k.missed = true
		return nil
	}
	needed, err := e.store.NeededPrograms(ctx)
	if err != nil {
		return err
	}
	removed, err := e.cfg.Programs.Collect(ctx, needed)
	if len(removed) > 0 {
		e.log.InfoContext(ctx, "programs that no saved memory needs were removed", "programs", removed)
		e.at("programs-removed")
	}
	if err != nil {
		return fmt.Errorf("remove programs: %w", err)
	}
	return nil
}

// checkSnapshotQuota reports whether a team may store more bytes of snapshots, hibernated
// sandboxes and drives. It applies to requested saves. The save at the stop of a
// persistent sandbox is never refused, but counts. Errors: quota_exceeded.
func (e *Engine) checkSnapshotQuota(ctx context.Context, team string, more int64) error {
	quota, err := e.cfg.Accounts.Quota(ctx, team)
	if err != nil {
		return fmt.Errorf("read quota: %w", err)
	}
	return e.store.CheckSnapshotBytes(ctx, quota, team, more)
}
