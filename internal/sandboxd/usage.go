package sandboxd

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/sandbox"
)

const (
	// samplePeriod is the interval at which usage is recorded; a crash loses at most this
	// much.
	samplePeriod = 30 * time.Second
	// guestPatience bounds a quick call into a guest.
	guestPatience = 5 * time.Second
	// fanOut is how many machines are handled concurrently.
	fanOut = 16
)

// refresh reads a machine's counters.
func (e *Engine) refresh(ctx context.Context, m *session) (machine.Stats, error) {
	return m.meter.Read(ctx, m.inst, e.clock.Mono)
}

// lastSample reads the counters of a machine that is about to end. If that fails, the
// previous values stay.
func (e *Engine) lastSample(ctx context.Context, m *session) {
	if _, err := e.refresh(ctx, m); err != nil {
		e.log.DebugContext(ctx, "last counters of a sandbox could not be read", "sandbox", m.sandboxID, "error", err)
	}
	m.meter.Last(e.clock.Mono())
}

// armSampler schedules the next recording of usage and retry of stuck ends.
func (e *Engine) armSampler() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	e.sampler = e.clock.At(e.clock.Mono()+samplePeriod, func() {
		e.background(func() {
			sessions := e.all()
			e.unstick(sessions)
			e.recoverLeftover()
			e.sample(e.ctx, sessions)
			if err := e.store.PruneLabels(e.ctx, e.now()); err != nil && e.ctx.Err() == nil {
				e.log.Warn("labels of removed ports were not forgotten", "error", err)
			}
			e.armSampler()
		})
	})
}

// sample reads the counters of all machines and records those that changed.
func (e *Engine) sample(ctx context.Context, sessions []*session) {
	e.refreshAll(ctx, sessions, 0)
	changed := make(map[string]sandbox.Usage)
	for _, m := range sessions {
		if u, ok := m.meter.Unsaved(); ok && m.state() != sandbox.Pending {
			changed[m.sandboxID] = u
		}
	}
	if len(changed) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardownTimeout)
	defer cancel()
	if err := e.store.SaveUsage(ctx, changed); err != nil {
		e.log.ErrorContext(ctx, "usage was not recorded", "error", err)
		return
	}
	for _, m := range sessions {
		if u, ok := changed[m.sandboxID]; ok {
			m.meter.Saved(u)
		}
	}
}

// refreshAll reads the counters of machines whose last reading is older than age.
func (e *Engine) refreshAll(ctx context.Context, sessions []*session, age time.Duration) {
	var g errgroup.Group
	g.SetLimit(fanOut)
	for _, m := range sessions {
		status := m.state()
		if (status == sandbox.Running || status == sandbox.Paused) && m.meter.Age(e.clock.Mono()) >= age {
			g.Go(func() error {
				if _, err := e.refresh(ctx, m); err != nil && m.ctx.Err() == nil && !errors.Is(err, context.Canceled) {
					e.log.DebugContext(ctx, "counters of a sandbox could not be read", "sandbox", m.sandboxID, "error", err)
				}
				return nil
			})
		}
	}
	_ = g.Wait() // the functions return nil
}

// unstick retries the end of machines whose end failed.
func (e *Engine) unstick(sessions []*session) {
	var g errgroup.Group
	g.SetLimit(fanOut)
	for _, m := range sessions {
		if m.stuck.Load() {
			g.Go(func() error {
				ctx, cancel := context.WithTimeout(context.WithoutCancel(e.ctx), teardownTimeout)
				defer cancel()
				if err := e.awaitEnd(ctx, m); err != nil { // a save may take longer
					e.log.Error("sandbox is still not cleaned up", "sandbox", m.sandboxID, "error", err)
				}
				return nil
			})
		}
	}
	_ = g.Wait() // the functions return nil
}

// checkCounts compares the counters for quotas with the rows, and mends counters that
// differ: a database restored or edited by hand may have any.
func (e *Engine) checkCounts() {
	mended, err := e.store.CheckCounts(e.ctx)
	for _, m := range mended {
		e.log.Error("a counter for quotas was wrong", "counter", m)
	}
	if err != nil && e.ctx.Err() == nil {
		e.log.Error("counters for quotas were not checked", "error", err)
	}
	e.at("counts-checked")
}
