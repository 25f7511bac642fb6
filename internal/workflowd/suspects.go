package workflowd

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/cayhq/cay/internal/history"
)

// A run that is active when its process dies may have killed the process. So
// Run.Recoveries counts the tries of a run after a death, since the run last made
// progress. The commit before a try adds it to the count; the commit after a try that
// ends in good order takes it off again: see pardon.
//
//	Recoveries  0..2   tried beside all others
//	            3..5   one such run at a time in a cell, beside runs that are no suspects
//	            6..11  with nothing else in the cell
//	            12     the step that was under way fails as POISONED; the run itself, if
//	                   none was
//
// So runs that were only beside the guilty run make progress in their turns, and the
// guilty run is left. A turn ends with progress, with sleep, or when its time is over,
// because a suspect may wait for another one. The suspect then goes on beside others,
// and its try is taken off the count. The worker of a suspect run begins the steps of
// that run one after the other.

// A worker that only lost its connection, or whose daemon died, reports when it
// reconnects which runs it had: these runs have killed nothing, and their next try is not
// charged. If another worker has such a run by then, that try is taken off the count.

// maxHeldRuns is how many runs a worker may report as survived.
const maxHeldRuns = 10_000

// aloneAfter is how many recoveries it takes until a run is tried alone in a cell.
const aloneAfter = 6

// maxTurn bounds Config.Turn as it doubles.
const maxTurn = time.Hour

// outlived reports, once, whether the worker that had a run has reported that it lives.
func (d *dispatcher) outlived(project, run string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.survived[run]
	if s == nil || s.project != project {
		return false
	}
	delete(d.survived, run)
	return true
}

// absolve pardons the runs that a worker has survived and that some session has: another
// worker's session, or the worker's own previous one, whose loss the engine has not
// noticed yet.
func (l *lane) absolve(s *session) {
	for _, id := range s.info.HeldRuns {
		if r := l.runs[id]; r != nil && r.session != nil && !r.held && r.log.Run.Project == s.project {
			l.pardon(r)
		}
	}
	l.commit()
}

// cell is a unit of failure: a process with its workers. The dispatcher's mu guards it.
type cell struct {
	load int // runs that its workers have or are about to get
	// turn is the id of the suspect that has its turn in the cell, or "". alone means
	// that the cell has no other run, and clock ends the turn.
	turn  string
	alone bool
	clock *time.Timer
}

// closed reports whether the cell takes no runs for a while.
func (c *cell) closed() bool { return c.alone }

// endTurn ends a run's turn, if the run has the turn.
func (c *cell) endTurn(run string) {
	if c.turn != run || run == "" {
		return
	}
	if c.clock != nil {
		c.clock.Stop()
	}
	c.turn, c.alone, c.clock = "", false, nil
}

func (s *session) loadLocked(n int) {
	s.load += n
	s.cell.load += n
}

// suspect reports whether the run is tried apart from other suspects.
func (t *ticket) suspect() bool { return t.recoveries >= history.SuspectAfter }

// bySuspicion sorts runs that need an empty cell before others, because cells are empty
// after a death only, and runs with few recoveries before those with many.
func bySuspicion(a, b *ticket) int {
	rank := func(t *ticket) int {
		if t.recoveries >= aloneAfter {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.recoveries, b.recoveries), cmp.Compare(a.created, b.created), cmp.Compare(a.number, b.number))
}

// suspectsLocked gives suspects to cells in which no suspect is being tried.
func (d *dispatcher) suspectsLocked() []grant {
	if len(d.suspects) == 0 || d.closed {
		return nil
	}
	var grants []grant
	now := time.Now()
	d.suspects = slices.DeleteFunc(d.suspects, func(t *ticket) bool {
		s := d.turnLocked(t, now)
		if s == nil {
			return false
		}
		delete(d.waiting, t.run)
		grants = append(grants, grant{t, s})
		return true
	})
	return grants
}

// turnLocked gives a suspect its turn at a worker. It returns nil if no worker can take
// the run now. A suspect waits for an empty cell for as long as Config.Turn, since a busy
// cell may never be empty. After that time its try is not charged.
func (d *dispatcher) turnLocked(t *ticket, now time.Time) *session {
	var best *session
	for _, s := range d.queueLocked(t.workflow).serves {
		if s.cell.turn == "" && s.load < s.info.MaxRuns && s.accepts(t.build) && (best == nil || s.cell.load < best.cell.load) {
			best = s
		}
	}
	if best == nil {
		return nil
	}
	t.alone = t.recoveries >= aloneAfter && best.cell.load == 0
	if t.recoveries >= aloneAfter && !t.alone {
		if wait := d.e.cfg.Turn - now.Sub(t.queued); wait > 0 {
			d.wakeLocked(wait)
			return nil
		}
	}
	best.cell.turn, best.cell.alone = t.run, t.alone
	best.loadLocked(1)
	t.granted = true
	return best
}

// strandedLocked removes the suspects whose workflow no worker of this process has.
func (d *dispatcher) strandedLocked() (stranded []*ticket) {
	d.suspects = slices.DeleteFunc(d.suspects, func(t *ticket) bool {
		if slices.ContainsFunc(d.queueLocked(t.workflow).serves, func(s *session) bool { return s.accepts(t.build) }) {
			return false
		}
		stranded = append(stranded, t)
		return true
	})
	return stranded
}

// turnOver lets other runs join a run in its cell.
func (d *dispatcher) turnOver(s *session, run string) {
	if s == nil {
		return
	}
	d.mu.Lock()
	s.cell.endTurn(run)
	d.mu.Unlock()
	d.pump()
}

// beginTurn bounds the turn of a suspect that was given to its worker.
func (l *lane) beginTurn(r *liveRun) {
	r.turn = true
	s, lease, run := r.session, r.lease, r.id
	turn := l.e.cfg.Turn
	if o, ok := r.log.MostLost(); ok {
		turn = min(turn<<min(max(0, o.Lost-history.SuspectAfter), 20), maxTurn)
	}
	clock := time.AfterFunc(turn, func() {
		l.pushNow(&op{run: run, owned: true, decide: func(r *liveRun, o *op) error {
			if r.session == s && r.lease == lease && r.turn {
				r.turn = false
				l.pardon(r)
				l.e.dispatch.turnOver(s, run)
			}
			return nil
		}})
	})
	d := &l.e.dispatch
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.cell.turn == run {
		s.cell.clock = clock
	}
}

// pardon takes the current try of a run off the count, because it ends in good order, or
// because the run's turn is over.
func (l *lane) pardon(r *liveRun) {
	if !r.charged || r.log.Run.Recoveries == 0 {
		return
	}
	l.touch(r)
	r.charged, r.row = false, true
	r.log.Run.Recoveries--
}

// progress sets the count of a run to 0, unless a step that has lost attempts is still
// under way. It reports whether it did.
func (r *liveRun) progress() bool {
	if _, lost := r.log.MostLost(); lost {
		return false
	}
	r.log.Run.Recoveries = 0
	return true
}

// poisoned returns the step_failed of the step that was running when the process died, or
// run_failed if no step was. It sets the count of the run to 0.
func (l *lane) poisoned(r *liveRun) history.Event {
	deaths := r.log.Run.Recoveries
	r.log.Run.Recoveries, r.row = 0, true
	say := fmt.Sprintf("ended its process each of the %d times it was tried, in the last ones with nothing else beside it", deaths+1)
	step, ok := r.log.MostLost()
	if !ok {
		return history.Event{Type: history.RunFailed, Code: history.CodePoisoned, Payload: poisonedBy("the code of the run, outside of steps, " + say)}
	}
	return history.Event{Type: history.StepFailed, ID: step.ID, Attempt: step.Attempt, Code: history.CodePoisoned, Payload: poisonedBy("the step " + say)}
}
