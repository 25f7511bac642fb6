// Package usage computes totals from the counters of machines. Totals never decrease, and
// continue from those that an earlier daemon recorded.
package usage

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/sandbox"
)

// patience bounds one reading of a machine's counters.
const patience = 2 * time.Second

// Source reads a machine's counters. machine.Instance implements it.
type Source interface {
	Stats(ctx context.Context) (machine.Stats, error)
}

// Meter computes the usage of one session. Times are a monotonic clock's. The zero value
// is for a session that has not run.
type Meter struct {
	mu      sync.Mutex
	total   sandbox.Usage // as last read
	base    sandbox.Usage // as recorded when the session began, or was adopted
	saved   sandbox.Usage // as last recorded
	started time.Duration // 0: the session has not run
	read    time.Duration // when the counters were last read
}

// Begin continues from the recorded usage of the session, which has been running since
// started.
func (m *Meter) Begin(started time.Duration, recorded sandbox.Usage) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.started = started
	m.total, m.base, m.saved = recorded, recorded, recorded
}

// Read reads a machine's counters. If that fails, the totals stay.
func (m *Meter) Read(ctx context.Context, s Source, now func() time.Duration) (machine.Stats, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	st, err := s.Stats(ctx)
	if err != nil {
		return st, fmt.Errorf("read counters: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	u := &m.total
	u.ActiveCPU = Millis(time.Duration(grow(u.ActiveCPU, st.CPU, m.base.ActiveCPU)))
	u.IngressBytes = grow(u.IngressBytes, st.IngressBytes, m.base.IngressBytes)
	u.EgressBytes = grow(u.EgressBytes, st.EgressBytes, m.base.EgressBytes)
	u.MemoryPeak = max(u.MemoryPeak, st.MemoryPeak)
	m.read = now()
	m.wallLocked(m.read)
	return st, nil
}

// grow returns a counter's new total. base is the total when the machine was adopted: a
// machine's counter below base has restarted at zero since, and is added to base. A total
// never decreases.
func grow[T ~int64](total, counter, base T) T {
	if counter < base {
		counter += base
	}
	return max(total, counter)
}

func (m *Meter) wallLocked(now time.Duration) {
	if m.started != 0 {
		m.total.WallTime = Millis(now - m.started)
	}
}

// Millis returns a duration in whole milliseconds, as it is recorded.
func Millis(d time.Duration) sandbox.Duration { return sandbox.Duration(d.Truncate(time.Millisecond)) }

// Last records the run time of a session whose counters are not read any more.
func (m *Meter) Last(now time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wallLocked(now)
}

// Total returns the totals as last read.
func (m *Meter) Total() sandbox.Usage {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.total
}

// At returns Total with the wall time up to now.
func (m *Meter) At(now time.Duration) sandbox.Usage {
	m.mu.Lock()
	defer m.mu.Unlock()
	u := m.total
	if m.started != 0 {
		u.WallTime = Millis(now - m.started)
	}
	return u
}

// Age returns the time since the counters were read.
func (m *Meter) Age(now time.Duration) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return now - m.read
}

// Unsaved returns the totals as last read; ok is false if they equal those last recorded.
func (m *Meter) Unsaved() (u sandbox.Usage, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.total, m.total != m.saved
}

// Saved marks u as recorded.
func (m *Meter) Saved(u sandbox.Usage) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.saved = u
}
