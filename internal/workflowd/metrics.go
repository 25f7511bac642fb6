package workflowd

import (
	"time"

	"github.com/cayhq/cay/internal/history"
)

// Metrics receives an engine's measurements. Its methods must not block, and are called
// concurrently.
type Metrics interface {
	// Committed reports a group that was stored, or failed.
	Committed(events int, took time.Duration, err error)
	RunCreated(project, workflow string)
	RunEnded(project, workflow string, status history.Status, took time.Duration)
	// RunAssigned reports that a worker got a run, and how long the run waited in line.
	RunAssigned(project, workflow string, recovered bool, waited time.Duration)
	// TimerFired reports how late a timer fired.
	TimerFired(late time.Duration)
}

type noMetrics struct{}

func (noMetrics) Committed(int, time.Duration, error)                    {}
func (noMetrics) RunCreated(string, string)                              {}
func (noMetrics) RunEnded(string, string, history.Status, time.Duration) {}
func (noMetrics) RunAssigned(string, string, bool, time.Duration)        {}
func (noMetrics) TimerFired(time.Duration)                               {}

// Stats are the sizes of an engine's data in memory.
type Stats struct {
	Live     int // runs in memory
	InLine   int // runs that need a worker
	Timers   int // timers of the next hour
	Sessions int
	Queued   int // ops that wait to be committed
}

// Stats returns the current sizes of the engine's data in memory.
func (e *Engine) Stats() Stats {
	s := Stats{InLine: e.dispatch.pending(), Timers: e.timers.len()}
	e.live.Range(func(any, any) bool { s.Live++; return true })
	e.mu.Lock()
	s.Sessions = len(e.sessions)
	e.mu.Unlock()
	for _, l := range e.lanes {
		l.mu.Lock()
		s.Queued += len(l.queue)
		l.mu.Unlock()
	}
	return s
}
