package workflow

import (
	"cmp"
	"slices"
	"time"

	"github.com/cayhq/cay/internal/history"
)

// suspect reports whether the run may have killed its earlier workers. The engine gives a
// worker one such run at a time.
func (r *liveRun) suspect() bool { return r.info.Recoveries >= history.SuspectAfter }

// leastLostFirst sorts steps by the number of their lost attempts.
func leastLostFirst(steps []*stepCall) {
	slices.SortStableFunc(steps, func(a, b *stepCall) int { return cmp.Compare(a.lost(), b.lost()) })
}

// lineup makes the steps of a suspect run begin one after the other, if earlier attempts
// of the steps were lost with their worker: when the process dies again, the log says
// that one of the steps had begun, and not the others. It is guarded by liveRun.mu.
type lineup struct {
	current *attempt
	timer   *time.Timer // lets the next attempt begin although current goes on
	waiting []*attempt
}

// lineupTurn is how long a step keeps the next ones from beginning. The time is bounded
// because the step may wait for one of them. It doubles with each attempt that the step
// has lost.
const (
	lineupTurn    = 10 * time.Second
	maxLineupTurn = time.Hour
)

// joinLocked adds an attempt, and reports whether the attempt may begin at once.
func (l *lineup) joinLocked(t *attempt) bool {
	if l.current != nil {
		l.waiting = append(l.waiting, t)
		return false
	}
	l.beginLocked(t)
	return true
}

func (l *lineup) beginLocked(t *attempt) {
	l.current = t
	turn := min(lineupTurn<<min(t.call.lost(), 10), maxLineupTurn)
	l.timer = time.AfterFunc(turn, func() {
		r := t.live
		r.mu.Lock()
		next := l.leaveLocked(t)
		r.mu.Unlock()
		if next != nil {
			next.due()
		}
	})
}

// leaveLocked ends the attempt's turn. It returns the attempt to begin next, or nil.
func (l *lineup) leaveLocked(t *attempt) *attempt {
	if l.current != t {
		return nil
	}
	l.current = nil
	l.timer.Stop()
	for len(l.waiting) > 0 {
		next := l.waiting[0]
		l.waiting = l.waiting[1:]
		if !next.entered { // otherwise it was cancelled
			l.beginLocked(next)
			return next
		}
	}
	return nil
}

// stopLocked ends the lineup together with its run.
func (l *lineup) stopLocked() {
	if l.current != nil {
		l.timer.Stop()
	}
	*l = lineup{}
}
