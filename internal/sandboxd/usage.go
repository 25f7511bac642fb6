package sandboxd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cayhq/cay/sandbox"
)

const (
	// samplePeriod is how often usage is recorded; a crash loses at most that.
	samplePeriod = 30 * time.Second
	// statsPatience bounds one reading of a machine's counters.
	statsPatience = 2 * time.Second
	// guestPatience bounds a small question to a guest.
	guestPatience = 5 * time.Second
	// fanOut is how many machines are asked at one time.
	fanOut = 16
)

// refresh reads a machine's counters.
func (e *Engine) refresh(ctx context.Context, m *session) (InstanceStats, error) {
	ctx, cancel := context.WithTimeout(ctx, statsPatience)
	defer cancel()
	st, err := m.inst.Stats(ctx)
	if err != nil {
		return st, fmt.Errorf("read counters: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	u := &m.usage
	u.ActiveCPU = truncateMS(time.Duration(grow(u.ActiveCPU, st.CPU, m.base.ActiveCPU)))
	u.IngressBytes = grow(u.IngressBytes, st.IngressBytes, m.base.IngressBytes)
	u.EgressBytes = grow(u.EgressBytes, st.EgressBytes, m.base.EgressBytes)
	u.MemoryPeak = max(u.MemoryPeak, st.MemoryPeak)
	m.sampled = e.clock.Mono()
	if m.started != 0 { // else it never ran
		u.WallTime = truncateMS(m.sampled - m.started)
	}
	return st, nil
}

// grow returns a counter's new total. base is what was recorded when the
// machine was adopted: a counter of the machine's that is behind it has begun
// anew since, and is added to it. A total never falls.
func grow[T ~int64](total, counter, base T) T {
	if counter < base {
		counter += base
	}
	return max(total, counter)
}

// lastSample reads the counters of a machine about to end. What cannot be read
// any more stays as it was.
func (e *Engine) lastSample(ctx context.Context, m *session) {
	if _, err := e.refresh(ctx, m); err != nil {
		e.log.DebugContext(ctx, "last counters of a sandbox could not be read", "sandbox", m.sandboxID, "error", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.started != 0 {
		m.usage.WallTime = truncateMS(e.clock.Mono() - m.started)
	}
}

// armSampler has usage recorded, and stuck ends tried again, a while from now.
func (e *Engine) armSampler() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	e.sampler = e.clock.At(e.clock.Mono()+samplePeriod, func() {
		e.background(func() {
			machines := e.all()
			e.unstick(machines)
			e.recoverLeftover()
			e.sample(e.ctx, machines)
			if err := e.store.PruneLabels(e.ctx, e.now()); err != nil && e.ctx.Err() == nil {
				e.log.Warn("labels of removed ports were not forgotten", "error", err)
			}
			e.armSampler()
		})
	})
}

// sample reads the counters of all machines and records those that changed.
func (e *Engine) sample(ctx context.Context, machines []*session) {
	e.refreshAll(ctx, machines, 0)
	usage := make(map[string]sandbox.Usage)
	for _, m := range machines {
		m.mu.Lock()
		if m.status != sandbox.Pending && m.usage != m.saved {
			usage[m.sandboxID] = m.usage
		}
		m.mu.Unlock()
	}
	if len(usage) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardownTimeout)
	defer cancel()
	if err := e.store.SaveUsage(ctx, usage); err != nil {
		e.log.ErrorContext(ctx, "usage was not recorded", "error", err)
		return
	}
	for _, m := range machines {
		m.mu.Lock()
		if u, ok := usage[m.sandboxID]; ok {
			m.saved = u
		}
		m.mu.Unlock()
	}
}

// refreshAll reads the counters of machines whose last reading is older than age.
func (e *Engine) refreshAll(ctx context.Context, machines []*session, age time.Duration) {
	var g errgroup.Group
	g.SetLimit(fanOut)
	for _, m := range machines {
		m.mu.Lock()
		due := (m.status == sandbox.Running || m.status == sandbox.Paused) && e.clock.Mono()-m.sampled >= age
		m.mu.Unlock()
		if due {
			g.Go(func() error {
				if _, err := e.refresh(ctx, m); err != nil && m.ctx.Err() == nil && !errors.Is(err, context.Canceled) {
					e.log.DebugContext(ctx, "counters of a sandbox could not be read", "sandbox", m.sandboxID, "error", err)
				}
				return nil
			})
		}
	}
	_ = g.Wait() // its functions return nil
}

// unstick tries again to end machines whose end failed.
func (e *Engine) unstick(machines []*session) {
	var g errgroup.Group
	g.SetLimit(fanOut)
	for _, m := range machines {
		if m.stuck.Load() {
			g.Go(func() error {
				ctx, cancel := context.WithTimeout(context.WithoutCancel(e.ctx), teardownTimeout)
				defer cancel()
				if err := e.awaitEnd(ctx, m); err != nil { // a save may go on for longer
					e.log.Error("sandbox is still not cleaned up", "sandbox", m.sandboxID, "error", err)
				}
				return nil
			})
		}
	}
	_ = g.Wait() // its functions return nil
}
