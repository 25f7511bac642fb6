package workflow

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cayhq/cay/internal/history"
)

// DivergenceError reports that a run's log does not fit the code that replays it: the
// code was changed under a run that had not ended, or the code is not deterministic.
// Nothing new is executed for such a run.
type DivergenceError struct {
	Run, Workflow string
	// Logged are the calls in the log that the code does not make, in the order of the
	// log.
	Logged []LoggedCall
	// Replayed are the code's calls that are not in the log, and the places where its
	// branches wait.
	Replayed []ReplayedCall
}

// LoggedCall is a step, hook, wait, child or version in the log.
type LoggedCall struct {
	Slot int64
	Type history.Type
	ID   string
	Name string
}

// ReplayedCall is a call or a wait of a workflow's code.
type ReplayedCall struct {
	ID string // "" for a wait for something without an id
	// Detail describes the call in words.
	Detail string
	// Position is the file and line of the code's call, "" if unknown.
	Position string
}

const maxDivergenceShown = 5

func (e *DivergenceError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "run %s of %q does not fit the code of this worker: the log has ", e.Run, e.Workflow)
	for i, l := range e.Logged {
		if i == maxDivergenceShown {
			fmt.Fprintf(&b, " and %d more", len(e.Logged)-i)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s %s (slot %d)", l.Type, l.ID, l.Slot)
	}
	if len(e.Logged) == 0 {
		b.WriteString("nothing of it")
	}
	b.WriteString("; the code ")
	for i, a := range e.Replayed {
		if i == maxDivergenceShown {
			fmt.Fprintf(&b, " and %d more", len(e.Replayed)-i)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(a.Detail)
		if a.Position != "" {
			b.WriteString(" at " + a.Position)
		}
	}
	return b.String()
}

// divergence compares the log with the calls of the code, after all known events were
// fed. It returns nil if they fit.
func (x *execution) divergence() *DivergenceError {
	if x.unasked > 0 {
		e := &DivergenceError{Run: x.run.ID, Workflow: x.run.Workflow}
		for _, o := range x.ops {
			if !o.asked && o.counts() {
				e.Logged = append(e.Logged, LoggedCall{Slot: o.slot, Type: o.typ, ID: o.id, Name: o.name})
			}
		}
		slices.SortFunc(e.Logged, func(a, b LoggedCall) int { return cmp.Compare(a.Slot, b.Slot) })
		e.Replayed = x.asks()
		return e
	}
	if x.ended == nil || x.given {
		return nil
	}
	// The log has ended, so the code must end in the same way.
	switch end := x.ended; {
	case end.Type == history.RunCompleted && (!x.returned || x.err != nil && !isContinue(x.err)),
		end.Type == history.RunFailed && end.Code == history.CodeUser && (!x.returned || x.err == nil):
		return &DivergenceError{
			Run: x.run.ID, Workflow: x.run.Workflow,
			Logged: []LoggedCall{{Slot: end.Slot, Type: end.Type}}, Replayed: x.asks(),
		}
	}
	return nil
}

func isContinue(err error) bool {
	var next *continueError
	return errors.As(err, &next)
}

// newerVersion returns the error for a run with a version of a change that the code does
// not know: the code is older than the run.
func (x *execution) newerVersion(o *op, known int) *DivergenceError {
	return &DivergenceError{
		Run: x.run.ID, Workflow: x.run.Workflow,
		Logged:   []LoggedCall{{Slot: o.slot, Type: history.VersionMarked, ID: o.id, Name: o.name}},
		Replayed: []ReplayedCall{{ID: o.id, Detail: fmt.Sprintf("knows versions of it up to %d only, not %d", known, o.attempt), Position: callerPosition()}},
	}
}

// asks lists the code's calls and waits at the end of the log.
func (x *execution) asks() []ReplayedCall {
	if x.returned {
		what := "returns"
		if x.err != nil {
			what = fmt.Sprintf("returns the error %q", cut(wordsOf(x.err), 200))
		}
		return []ReplayedCall{{Detail: what, Position: x.definition.position}}
	}
	var calls []ReplayedCall
	waited := make(map[string]bool)
	x.locate()
	for b := x.branches.first; b != nil; b = b.next {
		calls = append(calls, ReplayedCall{ID: b.id, Detail: b.what, Position: b.position})
		waited[b.id] = true
	}
	for _, o := range x.fresh {
		if !o.recorded && !o.settled && !waited[o.id] {
			calls = append(calls, ReplayedCall{ID: o.id, Detail: "asks for " + o.id})
		}
	}
	return calls
}
