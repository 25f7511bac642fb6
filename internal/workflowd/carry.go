package workflowd

import (
	"fmt"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/workflow"
)

// A token that a run's code has chosen follows the run when it is continued as new:
// in the commit that ends the old run and creates the new one, the new run gets a hook
// of that token, with the values that were not received. Such a hook is called carried,
// and its id has a prefix that no id of a worker has. When the new run's code makes a
// hook of the token, the hook of the code takes the place of the carried one.

// carriedEvents are the events that give the hooks of the continued run to the new run.
func carriedEvents(hooks []workflow.NewHookState) []history.Event {
	var events []history.Event
	for i, h := range hooks {
		id := fmt.Sprint(history.CarriedPrefix, i+1)
		events = append(events, history.Event{Type: history.HookCreated, ID: id, Token: h.Token, Payload: h.Metadata})
		for _, v := range h.Values {
			events = append(events, history.Event{Type: history.HookReceived, ID: id, Payload: v.Payload, Key: v.Key})
		}
	}
	return events
}

// checkCarried refuses hooks that the continued run does not have. Errors: conflict.
func checkCarried(from *liveRun, c *creation, continues bool) error {
	for i := range c.carried {
		ev := &c.carried[i]
		if ev.Type != history.HookCreated {
			continue
		}
		if _, ok := from.log.LiveHook(ev.Token); !ok || !continues {
			return cay.Errorf(cay.Conflict, "run %s cannot begin with the hook %q: run %s, which it continues, has none", c.run.ID, ev.Token, from.id)
		}
	}
	return nil
}

// maxCarriedKeys is how many idempotency keys of received values a run inherits from the
// run it continues.
const maxCarriedKeys = 500

// giveKeys gives carried hooks the keys of values that were received already, so that a
// repeated send of such a value is recognised.
func giveKeys(from *liveRun, carried []history.Event) {
	keys := from.log.Keys(maxCarriedKeys)
	for i := range carried {
		if ev := &carried[i]; ev.Type == history.HookReceived {
			for _, of := range keys {
				delete(of, ev.Key) // carried with its value
			}
		}
	}
	for i := range carried {
		if ev := &carried[i]; ev.Type == history.HookCreated {
			ev.Attributes = keys[ev.Token]
		}
	}
}

// carryTo begins the log of a run with the hooks of the run it continues.
func (l *lane) carryTo(r *liveRun, events []history.Event) {
	for _, ev := range events {
		ev.At = l.e.now()
		if _, err := r.log.Apply(&ev); err != nil {
			panic("workflowd: a new run cannot have a hook: " + err.Error())
		}
		r.fresh = append(r.fresh, ev)
		r.hooks = true
		l.group.bytes += eventSize(&ev)
	}
}

// carries returns the carried hook that the hook of an event replaces.
func (r *liveRun) carries(ev *history.Event) (history.Open, bool) {
	if ev.Type != history.HookCreated || r.log.Run.Previous == "" {
		return history.Open{}, false
	}
	o, ok := r.log.LiveHook(ev.Token)
	return o, ok && strings.HasPrefix(o.ID, history.CarriedPrefix) && o.ID != ev.ID
}

// adopt appends the disposal of a carried hook and the creation of the hook that replaces
// it. The token is free for it: no other run can have the token.
func (l *lane) adopt(r *liveRun, carried history.Open, ev *history.Event) error {
	gone := history.Event{Type: history.HookDisposed, ID: carried.ID, At: ev.At}
	for _, ev := range []*history.Event{&gone, ev} {
		if _, err := r.log.Apply(ev); err != nil {
			return err
		}
		r.fresh = append(r.fresh, *ev)
		r.hooks = true
		l.group.bytes += eventSize(ev)
		l.note(r, ev)
	}
	return nil
}
