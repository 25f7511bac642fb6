package history_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"runtime"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
)

// outcome is the outcome of an event.
type outcome string

const (
	stored   outcome = "stored"
	ignored  outcome = "ignored"
	conflict         = outcome(cay.Conflict)
	notFound         = outcome(cay.NotFound)
	invalid          = outcome(cay.Invalid)
)

func apply(l *history.Log, e history.Event) outcome {
	was := l.Run.Events
	ok, err := l.Apply(&e)
	switch {
	case err != nil:
		if ok || l.Run.Events != was {
			return "an error, and yet applied"
		}
		return outcome(cay.CodeOf(err))
	case !ok:
		return ignored
	case e.Slot != was+1 || l.Run.Events != e.Slot:
		return outcome(fmt.Sprintf("slot %d behind %d", e.Slot, was))
	}
	return stored
}

func of(t history.Type, id string) history.Event { return history.Event{Type: t, ID: id} }

func newLog(events ...history.Event) *history.Log {
	l := history.NewLog(history.Run{ID: "wrun_1"})
	for _, e := range append([]history.Event{{Type: history.RunCreated, Name: "w"}, {Type: history.RunStarted}}, events...) {
		if got := apply(l, e); got != stored {
			panic(fmt.Sprintf("%s: %s", e.Type, got))
		}
	}
	return l
}

// TestLog_Rules checks which events may follow which.
func TestLog_Rules(t *testing.T) {
	t.Parallel()
	step := func(typ history.Type) history.Event {
		return history.Event{Type: typ, ID: "s", Name: "charge", Input: []byte("json1"), Attempt: 1}
	}
	attempt := func(typ history.Type, n int) history.Event { return history.Event{Type: typ, ID: "s", Attempt: n} }
	received := func(id, key, payload string) history.Event {
		return history.Event{Type: history.HookReceived, ID: id, Key: key, Payload: []byte(payload)}
	}
	otherLog := newLog(history.Event{Type: history.HookCreated, ID: "h", Token: "t"}, received("h", "first", "1"), received("h", "second", "2"))
	type then struct {
		e    history.Event
		want outcome
	}
	for name, c := range map[string]struct {
		given []history.Event
		then  []then
	}{
		"Run": {nil, []then{
			{of(history.RunCreated, ""), conflict},
			{of(history.RunStarted, ""), ignored},
			{of(history.RunCompleted, ""), stored},
			{of(history.RunCompleted, ""), conflict},
			{of(history.RunFailed, ""), conflict},
			{of(history.RunCancelled, ""), conflict},
			{of(history.RunStarted, ""), conflict},
			{of(history.AttrSet, ""), conflict},
			{of(history.CancelRequested, ""), conflict},
			{of(history.WaitCreated, "w"), conflict},
			{of(history.Noop, ""), conflict},
		}},
		"Cancelled": {nil, []then{
			{of(history.CancelRequested, ""), stored},
			{of(history.CancelRequested, ""), ignored},
			{step(history.StepCompleted), stored},
			{of(history.RunCancelled, ""), stored},
			{of(history.RunCancelled, ""), ignored},
			{of(history.RunFailed, ""), conflict},
		}},
		"Slots": {nil, []then{
			{history.Event{Type: history.Noop, Slot: 2}, invalid},
			{history.Event{Type: history.Noop, Slot: 4}, invalid},
			{history.Event{Type: history.Noop, Slot: 3}, stored},
		}},
		"Unknown": {nil, []then{{of(99, "x"), invalid}, {of(history.WaitCreated, ""), invalid}}},
		"StepAtOnce": {nil, []then{
			{of(history.StepCompleted, "s"), notFound},
			{step(history.StepCompleted), stored},
			{step(history.StepCompleted), conflict},
			{step(history.StepFailed), conflict},
			{attempt(history.StepStarted, 2), conflict},
			{step(history.StepRetrying), conflict},
			{step(history.StepCreated), conflict},
		}},
		"StepByStep": {nil, []then{
			{step(history.StepCreated), stored},
			{step(history.StepCreated), conflict},
			{step(history.StepStarted), conflict}, // it would create the step
			{attempt(history.StepStarted, 1), stored},
			{attempt(history.StepStarted, 1), conflict},
			{attempt(history.StepRetrying, 1), stored},
			{attempt(history.StepStarted, 1), conflict},
			{attempt(history.StepStarted, 2), stored},
			{attempt(history.StepStarted, 3), stored}, // the worker of the second died
			{attempt(history.StepCompleted, 3), stored},
			{attempt(history.StepFailed, 3), conflict},
		}},
		"StepAfterEnd": {
			[]history.Event{
				{Type: history.StepStarted, ID: "runs", Name: "a", Attempt: 1},
				{Type: history.StepCreated, ID: "waits", Name: "a"},
				{Type: history.RunFailed},
			}, []then{
				{of(history.StepCompleted, "waits"), conflict},
				{of(history.StepStarted, "runs"), conflict},
				{of(history.StepRetrying, "runs"), conflict},
				{of(history.StepCompleted, "runs"), stored},
				{of(history.StepCompleted, "runs"), conflict},
				{step(history.StepCompleted), conflict},
			},
		},
		"Hook": {nil, []then{
			{received("h", "", "1"), notFound},
			{of(history.HookDisposed, "h"), notFound},
			{history.Event{Type: history.HookCreated, ID: "h", Token: "t"}, stored},
			{of(history.HookCreated, "h"), conflict},
			{of(history.HookConflict, "h"), conflict},
			{received("h", "", "1"), stored},
			{received("h", "", "1"), stored},
			{received("h", "k", "1"), stored},
			{received("h", "k", "1"), ignored},
			{received("h", "k", "2"), conflict},
			{of(history.HookCreated, "i"), stored},
			{received("i", "k", "1"), conflict},
			{of(history.HookDisposed, "h"), stored},
			{of(history.HookDisposed, "h"), conflict},
			{received("h", "", "1"), conflict},
			{of(history.HookConflict, "j"), stored},
			{received("j", "", "1"), conflict},
			{of(history.RunCompleted, ""), stored},
			{received("i", "", "1"), conflict},
		}},
		"HookAgain": {nil, []then{ // a hook of the same token continues the earlier one for senders
			{history.Event{Type: history.HookCreated, ID: "carried.1", Token: "t", Attributes: otherLog.Keys(1)["t"]}, stored},
			{received("carried.1", "first", "1"), stored}, // only one key was carried over
			{received("carried.1", "second", "2"), ignored},
			{received("carried.1", "second", "1"), conflict},
			{received("carried.1", "third", "3"), stored},
			{of(history.HookDisposed, "carried.1"), stored},
			{history.Event{Type: history.HookCreated, ID: "h", Token: "t", Attributes: map[string]string{"k": "of no worker"}}, stored},
			{received("h", "second", "2"), ignored},
			{received("h", "third", "3"), ignored},
			{received("h", "third", "2"), conflict},
			{received("h", "k", "3"), stored},
		}},
		"Wait": {nil, []then{
			{of(history.WaitCompleted, "w"), notFound},
			{of(history.WaitCreated, "w"), stored},
			{of(history.WaitCreated, "w"), conflict},
			{of(history.WaitCompleted, "w"), stored},
			{of(history.WaitCompleted, "w"), conflict},
			{of(history.HookDisposed, "w"), invalid},
			{of(history.StepCompleted, "w"), invalid},
		}},
		"Child": {nil, []then{
			{of(history.ChildEnded, "c"), notFound},
			{of(history.ChildStarted, "c"), stored},
			{of(history.ChildStarted, "c"), conflict},
			{of(history.ChildEnded, "c"), stored},
			{of(history.ChildEnded, "c"), conflict},
		}},
		"Version": {nil, []then{
			{of(history.VersionMarked, "v"), stored},
			{of(history.VersionMarked, "v"), conflict},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLog(c.given...)
			for i, s := range c.then {
				// Revert leaves no trace.
				before := describe(l)
				m := l.Mark()
				first := apply(l, s.e)
				l.Revert(m)
				if after := describe(l); !reflect.DeepEqual(before, after) {
					t.Errorf("%d, %s: undone, it is\n%+v\nwas\n%+v", i, s.e.Type, after, before)
				}
				if got := apply(l, s.e); got != s.want || got != first {
					t.Errorf("%d, %s: %s, and %s when tried before; want %s", i, s.e.Type, got, first, s.want)
				}
			}
		})
	}
	l := history.NewLog(history.Run{ID: "wrun_1"})
	if got := apply(l, of(history.RunStarted, "")); got != notFound {
		t.Errorf("a run that does not exist was started: %s", got)
	}
	apply(l, of(history.RunCreated, ""))
	if got := apply(l, of(history.RunCancelled, "")); got != stored || l.Run.Status != history.Cancelled {
		t.Errorf("a pending run was not cancelled: %s", got)
	}
}

type description struct {
	run    history.Run
	states map[string]history.State
	open   map[string]history.Open
}

func describe(l *history.Log) description {
	d := description{run: l.Run, states: map[string]history.State{}, open: map[string]history.Open{}}
	d.run.Attributes = maps.Clone(d.run.Attributes)
	for _, id := range []string{"s", "h", "i", "j", "w", "c", "v", "x", "runs", "waits"} {
		d.states[id] = l.State(id)
	}
	for o := range l.AllOpen() {
		d.open[o.ID] = o
	}
	return d
}

func TestLog_Run(t *testing.T) {
	t.Parallel()
	l := history.NewLog(history.Run{ID: "wrun_1", Key: "k"})
	for i, e := range []history.Event{
		{Type: history.RunCreated, Name: "w", Attributes: map[string]string{"a": "1"}},
		{Type: history.RunStarted},
		{Type: history.AttrSet, Attributes: map[string]string{"a": "", "b": "2"}},
		{Type: history.CancelRequested, Reason: "why"},
		{Type: history.RunFailed, Code: history.CodeUser},
	} {
		e.At = int64(100 + i)
		if i == 3 {
			e.At = 1 // the clock went back
		}
		if got := apply(l, e); got != stored {
			t.Fatal(e.Type, got)
		}
	}
	want := history.Run{
		ID: "wrun_1", Key: "k", Workflow: "w", Status: history.Failed, Attributes: map[string]string{"b": "2"},
		CreatedAt: 100, StartedAt: 101, CompletedAt: 104, UpdatedAt: 104, CancelRequested: true, CancelReason: "why",
		ErrorCode: history.CodeUser, Events: 5,
	}
	if !reflect.DeepEqual(l.Run, want) {
		t.Errorf("got  %+v\nwant %+v", l.Run, want)
	}
}

// TestLog_Mark reverts nested marks.
func TestLog_Mark(t *testing.T) {
	t.Parallel()
	l := newLog(of(history.HookCreated, "h"), of(history.WaitCreated, "w"))
	before := describe(l)
	outer := l.Mark()
	apply(l, history.Event{Type: history.AttrSet, Attributes: map[string]string{"a": "1"}})
	apply(l, history.Event{Type: history.HookReceived, ID: "h", Key: "k"})
	between := describe(l)
	inner := l.Mark()
	apply(l, of(history.RunCompleted, ""))
	l.Revert(inner)
	if got := describe(l); !reflect.DeepEqual(got, between) {
		t.Errorf("got %+v\nwant %+v", got, between)
	}
	inner = l.Mark()
	apply(l, of(history.WaitCompleted, "w"))
	l.Keep(inner)
	if l.State("w") != history.WaitDone {
		t.Error("what was kept is gone")
	}
	l.Revert(outer)
	if got := describe(l); !reflect.DeepEqual(got, before) {
		t.Errorf("got %+v\nwant %+v", got, before)
	}
	if got := apply(l, history.Event{Type: history.HookReceived, ID: "h", Key: "k", Payload: []byte("other")}); got != stored {
		t.Errorf("the key of a call that was undone: %s", got)
	}
}

func TestLoadLog(t *testing.T) {
	t.Parallel()
	l := history.NewLog(history.Run{ID: "wrun_1", Project: "p", Recoveries: 2, ExpiresAt: 9})
	var events []history.Event
	for i, typ := range []history.Type{history.RunCreated, history.RunStarted, history.HookCreated, history.WaitCreated, history.WaitCompleted, history.RunCompleted} {
		e := history.Event{Type: typ, ID: []string{"", "", "h", "w", "w", ""}[i], At: int64(i), Attributes: map[string]string{"a": "b"}}
		if _, err := l.Apply(&e); err != nil {
			t.Fatal(err)
		}
		events = append(events, e)
	}
	loaded, err := history.LoadLog(l.Run, events)
	if err != nil || !reflect.DeepEqual(describe(loaded), describe(l)) {
		t.Errorf("got %+v, %v\nwant %+v", describe(loaded), err, describe(l))
	}
	for name, broken := range map[string][]history.Event{
		"Hole":     append(append([]history.Event{}, events[:2]...), events[3:]...),
		"NoBegin":  events[1:],
		"Twice":    append(append([]history.Event{}, events...), history.Event{Slot: 7, Type: history.RunCreated}),
		"Nonsense": {events[0], {Slot: 2, Type: history.WaitCompleted, ID: "w"}},
		"Repeated": {events[0], events[1], {Slot: 3, Type: history.RunStarted}},
	} {
		if _, err := history.LoadLog(l.Run, broken); cay.CodeOf(err) != cay.Internal {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestLog_Memory bounds the memory of a long log's state.
func TestLog_Memory(t *testing.T) {
	const events = 25_000
	ids := make([]string, events)
	for i := range ids {
		ids[i] = fmt.Sprintf("step_charge.%d", i)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	l := newLog()
	for i := range events {
		if got := apply(l, history.Event{Type: history.StepCompleted, ID: ids[i], Name: "charge"}); got != stored {
			t.Fatal(got)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if size := int64(after.HeapAlloc) - int64(before.HeapAlloc); size > 2<<20 {
		t.Errorf("%d bytes for %d events", size, events)
	}
	runtime.KeepAlive(l)
	runtime.KeepAlive(ids)
}

// FuzzLog applies random events: a stored event must not lead to a state that LoadLog
// refuses.
func FuzzLog(f *testing.F) {
	f.Add(uint64(1), uint8(30))
	f.Fuzz(func(t *testing.T, seed uint64, n uint8) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		types := []history.Type{
			history.RunStarted, history.AttrSet, history.StepCreated, history.StepStarted, history.StepCompleted, history.StepFailed,
			history.StepRetrying, history.HookCreated, history.HookReceived, history.HookDisposed, history.HookConflict,
			history.WaitCreated, history.WaitCompleted, history.CancelRequested, history.VersionMarked, history.ChildStarted,
			history.ChildEnded, history.Noop, history.RunCreated, history.RunCompleted, history.RunFailed, history.RunCancelled,
		}
		l := newLog()
		events := []history.Event{{Slot: 1, Type: history.RunCreated, Name: "w"}, {Slot: 2, Type: history.RunStarted}}
		for range n {
			k := len(types)
			if rnd.IntN(4) > 0 {
				k -= 4 // runs that end at once cover little
			}
			e := history.Event{
				Type: types[rnd.IntN(k)], ID: fmt.Sprint("x", rnd.IntN(6)), At: rnd.Int64N(100), Attempt: rnd.IntN(4),
				Key: []string{"", "k"}[rnd.IntN(2)], Name: []string{"", "n"}[rnd.IntN(2)],
			}
			m := l.Mark()
			before := describe(l)
			ok, err := l.Apply(&e)
			if err != nil || !ok || rnd.IntN(3) == 0 {
				l.Revert(m)
				if got := describe(l); !reflect.DeepEqual(got, before) {
					t.Fatalf("%s undone: %+v, want %+v", e.Type, got, before)
				}
				continue
			}
			l.Keep(m)
			events = append(events, e)
		}
		loaded, err := history.LoadLog(l.Run, events)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := describe(loaded), describe(l); !reflect.DeepEqual(got, want) {
			t.Fatalf("got %+v\nwant %+v", got, want)
		}
	})
}

func BenchmarkLog_Apply(b *testing.B) {
	ids := make([]string, 25_000)
	for i := range ids {
		ids[i] = fmt.Sprintf("step_charge.%d", i)
	}
	var l *history.Log
	for i := range b.N {
		if i%len(ids) == 0 {
			l = newLog()
		}
		e := history.Event{Type: history.StepCompleted, ID: ids[i%len(ids)], Name: "charge"}
		if _, err := l.Apply(&e); err != nil {
			b.Fatal(err)
		}
	}
}
