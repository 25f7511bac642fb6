package workflow

import (
	"cmp"
	"slices"
	"time"

	"github.com/cayhq/cay/internal/history"
)

// suspect reports whether the run may be what ended its earlier workers. The engine
// gives a worker one such run at a time.
func (r *liveRun) suspect() bool { return r.info.Recoveries >= history.SuspectAfter }

// leastLostFirst sorts steps by how many of their attempts ended with a worker.
func leastLostFirst(steps []*stepCall) {
	slices.SortStableFunc(steps, func(a, b *stepCall) int { return cmp.Compare(a.lost(), b.lost()) })
}

// lineup has the steps of a suspect run begin one after the other, if earlier
// attempts of them ended with their worker: when the process dies again, the log
// says that one of them had begun, and not the others. It is guarded by liveRun.mu.
type lineup struct {
	current *attempt
	timer   *time.Timer // lets the next begin although current goes on
	waiting []*attempt
}

// lineupTurn is how long a step keeps those behind it from beginning: they may be
// what it waits for. The time doubles with each attempt the step has lost.
const (
	lineupTurn    = 10 * time.Second
	maxLineupTurn = time.Hour
)

// joinLocked adds an attempt, and reports whether it may begin at once.
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

// leaveLocked says that an attempt does not keep others from beginning any more. It
// returns the one that is to begin, or nil.
func (l *lineup) leaveLocked(t *attempt) *attempt {
	if l.current != t {
		return nil
	}
	l.current = nil
	l.timer.Stop()
	for len(l.waiting) > 0 {
		next := l.waiting[0]
		l.waiting = l.waiting[1:]
		if !next.entered { // else it was cancelled
			l.beginLocked(next)
			return next
		}
	}
	return nil
}

// stopLocked ends the lineup with its run.
func (l *lineup) stopLocked() {
	if l.current != nil {
		l.timer.Stop()
	}
	*l = lineup{}
}
