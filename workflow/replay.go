package workflow

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd/protocol"
)

// History is a run with its whole log: the input of a replay. Its JSON form is that of
// runs and events in the daemon's API.
type History struct {
	Run    RunInfo
	Events []Event
}

type historyJSON struct {
	Run    *protocol.Run     `json:"run"`
	Events []*protocol.Event `json:"events"`
}

// MarshalJSON implements json.Marshaler.
func (h *History) MarshalJSON() ([]byte, error) {
	j := historyJSON{Run: protocol.RunOf(&h.Run)}
	for i := range h.Events {
		j.Events = append(j.Events, protocol.EventOf(&h.Events[i]))
	}
	return json.Marshal(&j)
}

// UnmarshalJSON implements json.Unmarshaler.
func (h *History) UnmarshalJSON(b []byte) error {
	var j historyJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	if j.Run == nil {
		return cay.Errorf(cay.Invalid, "history has no run")
	}
	*h = History{Run: *j.Run.Run()}
	for _, e := range j.Events {
		if e == nil {
			return cay.Errorf(cay.Invalid, "history has an event that is null")
		}
		h.Events = append(h.Events, e.Event())
	}
	return nil
}

// History returns a run with its whole log, to be kept in a file and given to
// Replay, or workflowtest.Replay. Errors: not_found.
func (c *Client) History(ctx context.Context, id string) (*History, error) {
	info, err := c.backend.GetRun(ctx, id)
	if err != nil {
		return nil, err
	}
	h := &History{Run: *info}
	for {
		events, err := c.backend.Events(ctx, id, int64(len(h.Events))+1, maxEventPage)
		if err != nil {
			return nil, err
		}
		h.Events = append(h.Events, events...)
		if len(events) < maxEventPage {
			return h, nil
		}
	}
}

const maxEventPage = 1000

// Replay reports whether the code of a workflow fits the history of a run: it runs the
// code like a worker that goes on with the run, executes nothing, and returns nil if the
// code makes the calls of the log and ends as the log does. Otherwise it returns a
// *DivergenceError with the differences. o must be the options with which the run's
// values were stored. Errors: not_found (no definition has the run's workflow), invalid.
func Replay(h *History, o ClientOptions, definitions ...Workflow) error {
	var def *definition
	for _, d := range definitions {
		if d.Name() == h.Run.Workflow {
			def = d.definition()
		}
	}
	if def == nil {
		return cay.Errorf(cay.NotFound, "workflow %q of run %s is not among the definitions", h.Run.Workflow, h.Run.ID)
	}
	if len(h.Events) == 0 || h.Events[0].Type != history.RunCreated {
		return cay.Errorf(cay.Invalid, "the history of run %s does not begin with its creation", h.Run.ID)
	}
	events, end := h.Events, (*Event)(nil)
	for i := range events {
		if endsRun(events[i].Type) {
			// Later events are results of steps that the code did not wait for.
			events, end = events[:i], &events[i]
			break
		}
	}
	values := envelopes{codec: o.Codec, keys: o.Keys}
	eff := replayed(executionConfig{
		definition: def, run: h.Run, payloads: values.forRun(h.Run.ID), old: end != nil && end.Attempt == 0,
	}, events)
	if eff.diverged != nil {
		return eff.diverged
	}
	if end == nil || endedFromOutside(end, events) {
		return nil
	}
	return sameEnd(&values, h.Run.ID, end, eff.done)
}

// replayed returns the effects of new code after a log.
func replayed(c executionConfig, events []Event) effects {
	x, eff := replay(c, events)
	x.close()
	return eff
}

// endedFromOutside reports whether the run was ended without its code.
func endedFromOutside(end *Event, before []Event) bool {
	switch end.Type {
	case history.RunFailed:
		return end.Code != history.CodeUser
	case history.RunCancelled:
		for i := range before {
			if before[i].Type == history.CancelRequested {
				return false
			}
		}
		return true
	}
	return false
}

// sameEnd compares the end of a run in its log with the end of its code on replay.
func sameEnd(values *envelopes, run string, logged, replayed *Event) error {
	if replayed == nil {
		return cay.Errorf(cay.Invalid, "run %s ended with %s, but on replay its code still waits for something", run, logged.Type)
	}
	if logged.Type != replayed.Type {
		return cay.Errorf(cay.Invalid, "run %s ended with %s, but on replay its code ends with %s", run, logged.Type, describeEnd(values, replayed))
	}
	if logged.Type != history.RunCompleted || len(logged.Payload) == 0 {
		return nil // messages of errors may change
	}
	kind, a, err := values.open(logged.Payload)
	if err != nil {
		return err
	}
	_, b, err := values.open(replayed.Payload)
	if err != nil {
		return err
	}
	if !bytes.Equal(a, b) && !(kind == envelopeJSON && sameJSON(a, b)) {
		return cay.Errorf(cay.Invalid, "run %s returned %s, but on replay its code returns %s", run, cut(string(a), 200), cut(string(b), 200))
	}
	return nil
}

// sameJSON reports whether two texts are the same JSON: a history that was in a file may
// be formatted differently.
func sameJSON(a, b []byte) bool {
	var values [2]any
	for i, text := range [][]byte{a, b} {
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		if d.Decode(&values[i]) != nil {
			return false
		}
	}
	return reflect.DeepEqual(values[0], values[1])
}

func describeEnd(values *envelopes, e *Event) string {
	if e.Type == history.RunFailed {
		return fmt.Sprintf("%s: %v", e.Type, values.decodeError(e.Payload))
	}
	return e.Type.String()
}
