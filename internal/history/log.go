package history

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/cayhq/cay"
)

// State is the state of a step, hook, wait, child or version in the log.
type State uint8

// The states of a run's entities. An id without an entity is Unused.
const (
	Unused State = iota
	StepPending
	StepRunning
	StepDone // completed or failed
	HookLive
	HookGone // disposed, or refused because of a conflict
	WaitOpen
	WaitDone
	ChildRunning
	ChildDone
	Marked // a marked version
)

// open reports whether the log still expects an event of the entity.
func (s State) open() bool {
	return s == StepPending || s == StepRunning || s == HookLive || s == WaitOpen || s == ChildRunning
}

// Open is an entity that has not ended: a step, a live hook, a wait, a child.
type Open struct {
	ID    string
	State State
	// Attempt is the number of the last recorded attempt of a step.
	Attempt int
	// Lost counts the earlier attempts of a step whose end is not in the log: their
	// workers stopped or died. An attempt that ends in an error sets it to 0.
	Lost int
	// Until is when a wait ends, or when a step may be tried again.
	Until int64
	Token string // token of a hook, or run id of a child
}

// Log is the state machine of one run: it decides which events may be appended to the
// run's log, and holds the state that follows from them. It does not hold the events. For
// an ended entity it keeps only the state, since a log may have many thousand
// entries. It is not safe for concurrent use.
type Log struct {
	// Run is the run as the events make it. The caller may change the fields that no
	// event sets (Key, Build, Recoveries, ...).
	Run Run

	states  map[string]State
	open    map[string]Open
	resumes map[string]resume // by the idempotency key of the call

	tally tally

	marked bool
	undo   []change
}

// tally holds the counts of a log.
type tally struct {
	received int64 // slot of the last hook_received
	values   int64 // number of values that hooks have received
	limited  bool
}

// resume is the remembered call of a hook with an idempotency key.
type resume struct {
	token  string // token of the hook
	digest string // digest of the payload
	slot   int64
}

// digest is a hash of a payload that is stable across processes.
func digest(payload []byte) string {
	sum := sha256.Sum256(payload)
	return hex.EncodeToString(sum[:12])
}

// Keys returns the latest n idempotency keys of values that hooks have received, by the
// token of the hook. Each map becomes the Attributes of the HookCreated with which the
// run that continues this one inherits the hook.
func (l *Log) Keys(n int) map[string]map[string]string {
	keys := slices.SortedFunc(maps.Keys(l.resumes), func(a, b string) int {
		return cmp.Or(cmp.Compare(l.resumes[b].slot, l.resumes[a].slot), cmp.Compare(a, b))
	})
	all := make(map[string]map[string]string)
	for _, key := range keys[:min(n, len(keys))] {
		r := l.resumes[key]
		if all[r.token] == nil {
			all[r.token] = make(map[string]string)
		}
		all[r.token][key] = r.digest
	}
	return all
}

// change holds the old values that Revert puts back to undo one event.
type change struct {
	id     string
	state  State
	open   Open
	resume string // a key that the event added
}

// NewLog returns the log of a run that has no events yet.
func NewLog(run Run) *Log {
	return &Log{Run: run, states: make(map[string]State), open: make(map[string]Open)}
}

// LoadLog returns the log of a run from all its events. Errors: internal, if no engine
// can have written them.
func LoadLog(run Run, events []Event) (*Log, error) {
	// Status and Events are derived from the events.
	base := run
	base.Status, base.Events = "", 0
	base.CreatedAt, base.StartedAt, base.CompletedAt, base.UpdatedAt = 0, 0, 0, 0
	base.CancelRequested, base.CancelReason, base.ErrorCode, base.Next = false, "", "", ""
	base.Attributes = nil
	l := NewLog(base)
	for i := range events {
		e := events[i] // Apply may write to it
		stored, err := l.Apply(&e)
		if err != nil {
			return nil, cay.Errorf(cay.Internal, "the log of run %s is damaged at slot %d: %s", run.ID, events[i].Slot, err.Error())
		}
		if !stored {
			return nil, cay.Errorf(cay.Internal, "the log of run %s is damaged: slot %d repeats what is so already", run.ID, events[i].Slot)
		}
	}
	if run.UpdatedAt > l.Run.UpdatedAt {
		l.Run.UpdatedAt = run.UpdatedAt
	}
	return l, nil
}

// State returns the state of the entity with an id, Unused if there is none.
func (l *Log) State(id string) State { return l.states[id] }

// Open returns the open entity with an id.
func (l *Log) Open(id string) (Open, bool) {
	o, ok := l.open[id]
	return o, ok
}

// AllOpen returns all open entities, in no order.
func (l *Log) AllOpen() iter.Seq[Open] { return maps.Values(l.open) }

// MostLost returns the running step that has lost the most attempts; at a tie, the step
// with the smallest id. It reports false if no running step has lost an attempt.
func (l *Log) MostLost() (Open, bool) {
	var most Open
	for _, o := range l.open {
		if o.State == StepRunning && (o.Lost > most.Lost || o.Lost == most.Lost && o.Lost > 0 && o.ID < most.ID) {
			most = o
		}
	}
	return most, most.Lost > 0
}

// Received returns the slot of the last value that a hook has received, 0 if there is
// none.
func (l *Log) Received() int64 { return l.tally.received }

// Values returns the number of values that hooks have received.
func (l *Log) Values() int64 { return l.tally.values }

// Limited reports whether the log has a limit_reached event.
func (l *Log) Limited() bool { return l.tally.limited }

// LiveHook returns the live hook of a token, false if the run has none.
func (l *Log) LiveHook(token string) (Open, bool) {
	for _, o := range l.open {
		if o.State == HookLive && o.Token == token {
			return o, true
		}
	}
	return Open{}, false
}

// Mark is a point that Revert returns to.
type Mark struct {
	undo  int
	run   Run
	tally tally
	// outer means that an earlier mark is still in use.
	outer bool
}

// Mark starts recording the changes that Apply makes. Recording ends with the Revert or
// Keep of the first mark; later marks nest.
func (l *Log) Mark() Mark {
	m := Mark{undo: len(l.undo), run: l.Run, tally: l.tally, outer: l.marked}
	l.marked = true
	return m
}

// Revert undoes all changes since m.
func (l *Log) Revert(m Mark) {
	for i := len(l.undo) - 1; i >= m.undo; i-- {
		c := &l.undo[i]
		if c.resume != "" {
			delete(l.resumes, c.resume)
			continue
		}
		if c.state == Unused {
			delete(l.states, c.id)
		} else {
			l.states[c.id] = c.state
		}
		if c.state.open() {
			l.open[c.id] = c.open
		} else {
			delete(l.open, c.id)
		}
	}
	l.Run, l.tally = m.run, m.tally
	l.forget(m)
}

// Keep makes all changes since m final.
func (l *Log) Keep(m Mark) {
	if !m.outer {
		l.forget(Mark{})
	}
}

func (l *Log) forget(m Mark) {
	clear(l.undo[m.undo:]) // they hold strings
	l.undo = l.undo[:m.undo]
	l.marked = m.outer
}

// Apply decides whether e may follow. If so, Apply gives e its slot, makes its time no
// earlier than the last event's, and applies it. An e that has a slot must have the next
// one. An e that asks for the present state is neither stored nor applied: starting a
// running run, cancelling a cancelled run, resuming a hook with a key and payload that
// were used before. Errors: conflict, not_found (no such step, hook, wait, child),
// invalid; the log is unchanged then.
func (l *Log) Apply(e *Event) (stored bool, err error) {
	r := &l.Run
	if e.Slot != 0 && e.Slot != r.Events+1 {
		return false, cay.Errorf(cay.Invalid, "slot %d cannot follow slot %d", e.Slot, r.Events)
	}
	if stored, err = l.check(e); err != nil || !stored {
		return false, err
	}
	r.Events++
	e.Slot = r.Events
	e.At = max(e.At, r.UpdatedAt)
	r.UpdatedAt = e.At
	l.apply(e)
	return true, nil
}

// check is the decision of Apply; it changes nothing.
func (l *Log) check(e *Event) (stored bool, err error) {
	r := &l.Run
	if r.Events == 0 {
		if e.Type != RunCreated {
			return false, cay.Errorf(cay.NotFound, "run %s does not exist", r.ID)
		}
		return true, nil
	}
	if r.Status.Terminal() {
		return l.checkEnded(e)
	}
	switch e.Type {
	case RunCreated:
		return false, cay.Errorf(cay.Conflict, "run %s exists already", r.ID)
	case RunStarted:
		return r.Status == Pending, nil
	case CancelRequested:
		return !r.CancelRequested, nil
	case LimitReached:
		return !l.tally.limited, nil
	case RunCompleted, RunFailed, RunCancelled, AttrSet, Noop:
		return true, nil
	}
	if e.ID == "" {
		return false, cay.Errorf(cay.Invalid, "an event of type %s needs an id", e.Type)
	}
	state := l.states[e.ID]
	switch e.Type {
	case StepCreated, HookCreated, HookConflict, WaitCreated, ChildStarted, VersionMarked:
		if state != Unused {
			return false, cay.Errorf(cay.Conflict, "%s exists already", e.ID)
		}
		return true, nil
	case StepStarted, StepRetrying, StepCompleted, StepFailed:
		return true, l.checkStep(e, state)
	case HookReceived:
		if err := expect(e, state, HookLive, HookGone); err != nil {
			return false, err
		}
		return l.checkResume(e)
	case HookDisposed:
		return true, expect(e, state, HookLive, HookGone)
	case WaitCompleted:
		return true, expect(e, state, WaitOpen, WaitDone)
	case ChildEnded:
		return true, expect(e, state, ChildRunning, ChildDone)
	}
	return false, cay.Errorf(cay.Invalid, "event type %d is unknown", uint8(e.Type))
}

// checkEnded is check for a run that has ended: it accepts only the results of steps that
// were already running.
func (l *Log) checkEnded(e *Event) (bool, error) {
	switch e.Type {
	case StepCompleted, StepFailed:
		if l.states[e.ID] == StepRunning {
			return true, nil
		}
	case RunCancelled:
		if l.Run.Status == Cancelled {
			return false, nil
		}
	}
	return false, cay.Errorf(cay.Conflict, "run %s has ended: it is %s", l.Run.ID, l.Run.Status)
}

func (l *Log) checkStep(e *Event, state State) error {
	switch state {
	case Unused:
		if e.Name == "" {
			return cay.Errorf(cay.NotFound, "there is no step %s", e.ID)
		}
		return nil
	case StepPending, StepRunning:
		if e.Type != StepStarted {
			return nil
		}
		if e.Input != nil {
			return cay.Errorf(cay.Conflict, "%s exists already", e.ID)
		}
		if last := l.open[e.ID].Attempt; e.Attempt != 0 && e.Attempt <= last {
			return cay.Errorf(cay.Conflict, "attempt %d of %s has been made", last, e.ID)
		}
		return nil
	case StepDone:
		return cay.Errorf(cay.Conflict, "%s has ended", e.ID)
	}
	return cay.Errorf(cay.Invalid, "%s is no step", e.ID)
}

// checkResume recognises a repeated call of a hook.
func (l *Log) checkResume(e *Event) (stored bool, err error) {
	if e.Key == "" {
		return true, nil
	}
	seen, ok := l.resumes[e.Key]
	switch {
	case !ok:
		return true, nil
	case seen.token != l.open[e.ID].Token || seen.digest != digest(e.Payload):
		return false, cay.Errorf(cay.Conflict, "the key %q was used with another payload", e.Key)
	}
	return false, nil
}

// expect returns nil if the entity is in the state the event needs.
func expect(e *Event, state, want, gone State) error {
	switch state {
	case want:
		return nil
	case gone:
		return cay.Errorf(cay.Conflict, "%s has ended", e.ID)
	case Unused:
		return cay.Errorf(cay.NotFound, "there is no %s", e.ID)
	}
	return cay.Errorf(cay.Invalid, "an event of type %s cannot be about %s", e.Type, e.ID)
}

// apply applies an event that check has allowed.
func (l *Log) apply(e *Event) {
	r := &l.Run
	switch e.Type {
	case RunCreated:
		r.Status, r.CreatedAt = Pending, e.At
		if e.Name != "" {
			r.Workflow = e.Name
		}
		l.setAttributes(e.Attributes)
	case RunStarted:
		r.Status, r.StartedAt = Running, e.At
	case RunCompleted:
		r.Next = e.Token
		l.end(Completed, e.At)
	case RunFailed:
		r.ErrorCode = e.Code
		l.end(Failed, e.At)
	case RunCancelled:
		if e.Reason != "" {
			r.CancelReason = e.Reason
		}
		l.end(Cancelled, e.At)
	case CancelRequested:
		r.CancelRequested, r.CancelReason = true, e.Reason
	case AttrSet:
		l.setAttributes(e.Attributes)

	case StepCreated:
		l.set(Open{ID: e.ID, State: StepPending})
	case StepStarted:
		if e.Attempt == 0 {
			e.Attempt = l.open[e.ID].Attempt + 1
		}
		lost := 0
		if was := l.open[e.ID]; was.State == StepRunning {
			lost = was.Lost + 1
		}
		l.set(Open{ID: e.ID, State: StepRunning, Attempt: e.Attempt, Lost: lost})
	case StepRetrying:
		l.set(Open{ID: e.ID, State: StepPending, Attempt: max(e.Attempt, l.open[e.ID].Attempt), Until: e.Until})
	case StepCompleted, StepFailed:
		l.set(Open{ID: e.ID, State: StepDone})
	case HookCreated:
		l.set(Open{ID: e.ID, State: HookLive, Token: e.Token})
		if strings.HasPrefix(e.ID, CarriedPrefix) {
			for key, digest := range e.Attributes {
				l.remember(key, resume{e.Token, digest, e.Slot})
			}
		}
	case HookReceived:
		l.tally.received, l.tally.values = e.Slot, l.tally.values+1
		if e.Key != "" {
			l.remember(e.Key, resume{l.open[e.ID].Token, digest(e.Payload), e.Slot})
		}
	case LimitReached:
		l.tally.limited = true
	case HookDisposed, HookConflict:
		l.set(Open{ID: e.ID, State: HookGone})
	case WaitCreated:
		l.set(Open{ID: e.ID, State: WaitOpen, Until: e.Until})
	case WaitCompleted:
		l.set(Open{ID: e.ID, State: WaitDone})
	case ChildStarted:
		l.set(Open{ID: e.ID, State: ChildRunning, Token: e.Token})
	case ChildEnded:
		l.set(Open{ID: e.ID, State: ChildDone})
	case VersionMarked:
		l.set(Open{ID: e.ID, State: Marked})
	}
}

func (l *Log) set(o Open) {
	if l.marked {
		l.undo = append(l.undo, change{id: o.ID, state: l.states[o.ID], open: l.open[o.ID]})
	}
	l.states[o.ID] = o.State
	if o.State.open() {
		l.open[o.ID] = o
	} else {
		delete(l.open, o.ID)
	}
}

// remember adds a new idempotency key.
func (l *Log) remember(key string, r resume) {
	if _, ok := l.resumes[key]; ok {
		return
	}
	if l.marked {
		l.undo = append(l.undo, change{resume: key})
	}
	if l.resumes == nil {
		l.resumes = make(map[string]resume)
	}
	l.resumes[key] = r
}

// end ends the run. Its hooks and waits end with it; running steps may still report their
// results.
func (l *Log) end(s Status, at int64) {
	l.Run.Status, l.Run.CompletedAt = s, at
	for id, o := range l.open {
		switch o.State {
		case HookLive:
			l.set(Open{ID: id, State: HookGone})
		case WaitOpen:
			l.set(Open{ID: id, State: WaitDone})
		case StepPending:
			l.set(Open{ID: id, State: StepDone})
		case ChildRunning:
			l.set(Open{ID: id, State: ChildDone})
		}
	}
}

// setAttributes changes attributes. It replaces the map, because other goroutines hold
// the old one.
func (l *Log) setAttributes(change map[string]string) {
	if len(change) == 0 {
		return
	}
	m := make(map[string]string, len(l.Run.Attributes)+len(change))
	maps.Copy(m, l.Run.Attributes)
	for k, v := range change {
		if v == "" {
			delete(m, k)
		} else {
			m[k] = v
		}
	}
	l.Run.Attributes = m
}
