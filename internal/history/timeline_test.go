package history_test

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/cayhq/cay/internal/history"
)

func TestNewTimeline(t *testing.T) {
	t.Parallel()
	var events []history.Event
	add := func(at int64, e history.Event) {
		e.At, e.Slot = at, int64(len(events)+1)
		events = append(events, e)
	}
	in, out, fault := []byte("json1"), []byte("json2"), []byte("jsone")
	add(100, history.Event{Type: history.RunCreated, ID: "child_of.1", Attributes: map[string]string{"a": "b"}})
	add(101, history.Event{Type: history.RunStarted})
	add(120, history.Event{Type: history.StepCompleted, ID: "s1", Name: "one", Input: in, Payload: out, Attempt: 1, StartedAt: 105})
	add(130, history.Event{Type: history.StepStarted, ID: "s2", Name: "two", Input: in, Attempt: 1, StartedAt: 121})
	add(140, history.Event{Type: history.HookCreated, ID: "h1", Token: "t", Webhook: true, Payload: in})
	add(150, history.Event{Type: history.HookConflict, ID: "h2", Token: "u", Reason: "wrun_x"})
	add(160, history.Event{Type: history.StepRetrying, ID: "s2", Payload: fault, Code: "x", Attempt: 1, Until: 200})
	add(170, history.Event{Type: history.HookReceived, ID: "h1", Payload: out, Key: "k"})
	add(200, history.Event{Type: history.StepStarted, ID: "s2", Attempt: 2})
	add(300, history.Event{Type: history.StepStarted, ID: "s2", Attempt: 3}) // the worker died in between
	add(310, history.Event{Type: history.StepFailed, ID: "s2", Payload: fault, Code: "y", Attempt: 3})
	add(320, history.Event{Type: history.WaitCreated, ID: "w1", Until: 500})
	add(330, history.Event{Type: history.ChildStarted, ID: "c1", Name: "refund", Token: "wrun_c"})
	add(340, history.Event{Type: history.VersionMarked, ID: "v1", Attempt: 2})
	add(350, history.Event{Type: history.AttrSet, ID: "s2", Attributes: map[string]string{"a": ""}})
	add(360, history.Event{Type: history.StepStarted, ID: "s3", Name: "three", Attempt: 1})
	add(370, history.Event{Type: history.ChildEnded, ID: "c1", Code: "failed", Payload: fault})
	add(380, history.Event{Type: history.HookDisposed, ID: "h1"})
	add(400, history.Event{Type: history.RunFailed, Code: history.CodeUser})
	add(410, history.Event{Type: history.StepCompleted, ID: "s3", Payload: out, Attempt: 1})

	got := history.NewTimeline(history.Run{ID: "wrun_1"}, events)
	want := []history.Span{
		{
			Kind: history.SpanStep, ID: "s1", Name: "one", Status: history.SpanCompleted, Slot: 3, BeginsAt: 105, EndsAt: 120, Input: in, Output: out,
			Attempts: []history.StepAttempt{{Number: 1, Status: history.SpanCompleted, StartedAt: 105, EndedAt: 120}},
		},
		{
			Kind: history.SpanStep, ID: "s2", Name: "two", Status: history.SpanFailed, Slot: 4, BeginsAt: 121, EndsAt: 310, Input: in, Error: fault, Code: "y",
			Attempts: []history.StepAttempt{
				{Number: 1, Status: history.SpanFailed, StartedAt: 121, EndedAt: 160, Error: fault, Code: "x"},
				{Number: 2, Status: history.SpanAbandoned, StartedAt: 200, EndedAt: 300},
				{Number: 3, Status: history.SpanFailed, StartedAt: 300, EndedAt: 310, Error: fault, Code: "y"},
			},
		},
		{
			Kind: history.SpanHook, ID: "h1", Status: history.SpanDisposed, Slot: 5, BeginsAt: 140, EndsAt: 380, Token: "t", Webhook: true, Metadata: in,
			Received: []history.HookReceipt{{Slot: 8, At: 170, Key: "k", Payload: out}},
		},
		{Kind: history.SpanHook, ID: "h2", Status: history.SpanConflict, Slot: 6, BeginsAt: 150, EndsAt: 150, Token: "u", Run: "wrun_x"},
		{Kind: history.SpanWait, ID: "w1", Status: history.SpanAbandoned, Slot: 12, BeginsAt: 320, EndsAt: 400, Until: 500},
		{Kind: history.SpanChild, ID: "c1", Name: "refund", Status: "failed", Slot: 13, BeginsAt: 330, EndsAt: 370, Run: "wrun_c", Error: fault},
		{Kind: history.SpanVersion, ID: "v1", Status: history.SpanMarked, Slot: 14, BeginsAt: 340, EndsAt: 340, Version: 2},
		{
			Kind: history.SpanStep, ID: "s3", Name: "three", Status: history.SpanCompleted, Slot: 16, BeginsAt: 360, EndsAt: 410, Output: out,
			Attempts: []history.StepAttempt{{Number: 1, Status: history.SpanCompleted, StartedAt: 360, EndedAt: 410}},
		},
	}
	if len(got.Spans) != len(want) {
		t.Fatalf("%d spans, want %d", len(got.Spans), len(want))
	}
	for i := range want {
		if !reflect.DeepEqual(got.Spans[i], want[i]) {
			t.Errorf("got  %+v\nwant %+v", got.Spans[i], want[i])
		}
	}
	var marks []history.Type
	for _, m := range got.Marks {
		marks = append(marks, m.Type)
	}
	if !reflect.DeepEqual(marks, []history.Type{history.RunCreated, history.RunStarted, history.AttrSet, history.RunFailed}) ||
		got.Marks[0].Step != "" || got.Marks[2].Step != "s2" {
		t.Errorf("marks %+v", got.Marks)
	}
	if b, err := json.Marshal(got); err != nil || len(b) == 0 {
		t.Error(err)
	}
	// In the timeline of the first events of a log, open entities are open.
	part := history.NewTimeline(history.Run{}, events[:7])
	if s := part.Spans[1]; s.Status != history.SpanPending || s.Until != 200 || s.EndsAt != 0 || string(s.Error) != "jsone" {
		t.Errorf("a step that is to be tried again: %+v", s)
	}
	if s := part.Spans[2]; s.Status != history.SpanOpen || s.EndsAt != 0 {
		t.Errorf("a live hook: %+v", s)
	}
}

func TestType_Text(t *testing.T) {
	t.Parallel()
	for i := range 256 {
		typ := history.Type(i)
		b, err := typ.MarshalText()
		if err != nil {
			continue
		}
		var got history.Type
		if err := got.UnmarshalText(b); err != nil || got != typ || typ.String() != string(b) {
			t.Errorf("%d: %q, %d, %v", i, b, got, err)
		}
	}
	if err := new(history.Type).UnmarshalText([]byte("run_exploded")); err == nil {
		t.Error("a type that does not exist was read")
	}
}
