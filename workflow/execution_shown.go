package workflow

import (
	"cmp"
	"slices"
	"strings"

	"github.com/cayhq/cay/internal/history"
)

// A run may end only when its code was shown every value that its hooks have accepted.
// The event that ends a run says how much of the log the code was shown; the engine
// refuses the event if a hook has accepted a value since. The function has returned by
// then, so the worker replays it. In the replay, the event after which the function had
// returned brings the value as well. Code that looks for the value finds it, and goes on;
// other code returns as before. If the log has more such values, replay repeats this for
// each of them. Since every replay of a log does the same, the code's decisions do not
// depend on when, or how often, the engine refused an end.

// earlyValue is a hook_received at a slot, which the code is shown together with an
// earlier event. Lists of them are in the order of both.
type earlyValue struct{ with, slot int64 }

// replay runs new code with a log, from its first event on.
func replay(c executionConfig, events []Event) (*execution, effects) {
	x, eff := replayOnce(c, events)
	for x.missed != 0 {
		if y, eff := x.showAll(c, events); y != nil {
			x.close()
			return y, eff
		}
		c.early = append(c.early, earlyValue{with: x.slot, slot: x.missed})
		x.close()
		x, eff = replayOnce(c, events)
	}
	return x, eff
}

func replayOnce(c executionConfig, events []Event) (*execution, effects) {
	x := newExecution(c)
	return x, x.feed(events)
}

// showAll replays the log once more and shows the code all values that x missed, at
// once. It returns nil if the code looked at any of them: code that looks may go on after
// the first value, and then sees the others at their places. For code that does not look,
// the result is the result of a replay for each value, at the cost of a single replay.
// Callers that send faster than a run can end would otherwise delay the end for long.
func (x *execution) showAll(c executionConfig, events []Event) (*execution, effects) {
	c.early = slices.Clone(c.early)
	shown := len(c.early)
	for i := range events {
		if e := &events[i]; e.Type == history.HookReceived && e.Slot > x.shown {
			c.early = append(c.early, earlyValue{with: x.slot, slot: e.Slot})
		}
	}
	if len(c.early)-shown < 2 {
		return nil, effects{}
	}
	y, eff := replayOnce(c, events)
	if y.missed != 0 || y.diverged != nil || y.returnedAt != x.returnedAt || y.looks() != x.looks() {
		y.close()
		return nil, effects{}
	}
	return y, eff
}

// looks counts how often the code looked at a hook that had a value.
func (x *execution) looks() (n int) {
	for _, o := range x.ops {
		if o.hook != nil {
			n += o.hook.looks
		}
	}
	return n
}

// isEarly reports whether the code was shown an event early.
func (x *execution) isEarly(e *Event) bool {
	if len(x.early) == 0 || e.Type != history.HookReceived {
		return false
	}
	_, is := slices.BinarySearchFunc(x.early, e.Slot, func(v earlyValue, slot int64) int { return cmp.Compare(v.slot, slot) })
	if is {
		x.slot = e.Slot
	}
	return is
}

// showEarly shows the code the values that come together with an event.
func (x *execution) showEarly(with *Event, log []Event) {
	first, _ := slices.BinarySearchFunc(x.early, with.Slot, func(v earlyValue, slot int64) int { return cmp.Compare(v.with, slot) })
	for _, v := range x.early[first:] {
		if v.with != with.Slot {
			break
		}
		e := &log[v.slot-log[0].Slot]
		if o := x.ops[e.ID]; o != nil {
			o.apply(x, e)
		} else {
			x.carry(e)
		}
	}
}

// misses records the last event that the code was shown, if its function returned after
// the first of events. It reports whether the remaining events of a replayed log have a
// value that the code was not shown.
func (x *execution) misses(events []Event) bool {
	if !x.returned || x.shown != 0 {
		return false
	}
	x.returnedAt, x.shown = x.slot, x.slot
	if n := len(x.early); n > 0 {
		x.shown = max(x.shown, x.early[n-1].slot)
	}
	if x.fed || x.old {
		return false // for new values the engine refuses the end
	}
	for i := range events[1:] {
		if e := &events[1+i]; e.Type == history.HookReceived && e.Slot > x.shown {
			x.missed = e.Slot
			return true
		}
	}
	return false
}

// carriedHook is a hook that the run inherited from the run it continues: its token and
// the values sent to it, until the code makes a hook of that token.
type carriedHook struct {
	id       string
	metadata []byte
	inbox    []received
}

// carry applies an event about a hook that the code has not made.
func (x *execution) carry(e *Event) {
	if !strings.HasPrefix(e.ID, history.CarriedPrefix) {
		return
	}
	switch e.Type {
	case history.HookCreated:
		if x.carried == nil {
			x.carried = make(map[string]*carriedHook)
		}
		x.carried[e.Token] = &carriedHook{id: e.ID, metadata: e.Payload}
	case history.HookReceived:
		for _, c := range x.carried { // there are few
			if c.id == e.ID {
				c.inbox = append(c.inbox, received{e.Payload, e.Key})
			}
		}
	}
}

// inherit returns the values sent to a token before the code made a hook of it.
func (x *execution) inherit(token string) []received {
	c := x.carried[token]
	if c == nil {
		return nil
	}
	delete(x.carried, token)
	return c.inbox
}

// heirlooms returns the hooks for the run that continues this one: each live hook whose
// token the code has chosen, with the values that the code has not received.
func (x *execution) heirlooms() []NewHookState {
	var all []NewHookState
	for token, c := range x.carried {
		all = append(all, NewHookState{Token: token, Metadata: c.metadata, Values: values(c.inbox)})
	}
	for _, o := range x.ops {
		if h := o.hook; h != nil && h.chosen && h.created && !h.unwanted && !h.gone {
			all = append(all, NewHookState{Token: h.token, Metadata: o.event.Payload, Values: values(h.inbox)})
		}
	}
	slices.SortFunc(all, func(a, b NewHookState) int { return cmp.Compare(a.Token, b.Token) })
	return all
}

func values(inbox []received) (all []HookValue) {
	for _, v := range inbox {
		all = append(all, HookValue{Payload: v.payload, Key: v.key})
	}
	return all
}
