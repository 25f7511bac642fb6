package workflowd

import (
	"time"

	"github.com/cayhq/cay/internal/history"
)

// Metrics is told what an engine does. Its methods must not block, and are called
// concurrently.
type Metrics interface {
	// Committed reports a group that was stored, or could not be.
	Committed(events int, took time.Duration, err error)
	RunCreated(project, workflow string)
	RunEnded(project, workflow string, status history.Status, took time.Duration)
	// RunAssigned reports that a worker got a run, and how long it stood in line.
	RunAssigned(project, workflow string, recovered bool, waited time.Duration)
	// TimerFired reports how late a timer was.
	TimerFired(late time.Duration)
}

type noMetrics struct{}

func (noMetrics) Committed(int, time.Duration, error)                    {}
func (noMetrics) RunCreated(string, string)                              {}
func (noMetrics) RunEnded(string, string, history.Status, time.Duration) {}
func (noMetrics) RunAssigned(string, string, bool, time.Duration)        {}
func (noMetrics) TimerFired(time.Duration)                               {}

// Stats are what an engine has in memory.
type Stats struct {
	Live     int // runs in memory
	InLine   int // runs that need a worker
	Timers   int // of the next hour
	Sessions int
	Queued   int // ops that wait to be committed
}

// Stats returns what the engine has in memory just now.
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
