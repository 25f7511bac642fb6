package hub

import (
	"strings"
	"testing"
)

func TestChecker_Rules(t *testing.T) {
	t.Parallel()
	call := func(id, name, input string) Event {
		return Event{Kind: Whole, Part: &Part{Kind: ToolCallPart, Call: &ToolCall{ID: id, Name: name, Input: input}}}
	}
	start, done := Event{Kind: Start}, Event{Kind: Finished, Finish: Finish{Reason: Stop}}
	for _, test := range []struct {
		name   string
		events []Event
		err    string // error of the last event; empty if all are valid
	}{
		{"text", []Event{start, {Kind: TextStart, ID: "1"}, {Kind: TextDelta, ID: "1", Delta: "a"}, {Kind: TextEnd, ID: "1"}, done}, ""},
		{"blocks overlap", []Event{start, {Kind: TextStart, ID: "1"}, {Kind: ReasoningStart, ID: "2"}, {Kind: TextEnd, ID: "1"}, {Kind: ReasoningEnd, ID: "2"}, done}, ""},
		{"call without its input before", []Event{start, call("c", "f", "{}"), done}, ""},
		{"call after its input", []Event{start, {Kind: InputStart, ID: "c"}, {Kind: InputDelta, ID: "c", Delta: "{"}, {Kind: InputDelta, ID: "c", Delta: "}"}, {Kind: InputEnd, ID: "c"}, call("c", "f", "{}"), done}, ""},
		{"empty input becomes {}", []Event{start, {Kind: InputStart, ID: "c"}, {Kind: InputEnd, ID: "c"}, call("c", "f", "{}"), done}, ""},
		{"failure at once", []Event{{Kind: Failure, Err: &Error{Kind: Internal}}}, ""},
		{"failure with open blocks", []Event{start, {Kind: TextStart, ID: "1"}, {Kind: Failure, Err: &Error{Kind: Internal}}}, ""},
		{"pings and raw events", []Event{start, {Kind: Ping}, {Kind: Raw}, done}, ""},

		{"no start", []Event{{Kind: TextStart, ID: "1"}}, "one start"},
		{"two starts", []Event{start, start}, "one start"},
		{"after the end", []Event{start, done, {Kind: Ping}}, "after the end"},
		{"after a failure", []Event{{Kind: Failure, Err: &Error{Kind: Internal}}, start}, "after the end"},
		{"block without ID", []Event{start, {Kind: TextStart}}, "has no ID"},
		{"block opens twice", []Event{start, {Kind: TextStart, ID: "1"}, {Kind: TextStart, ID: "1"}}, "opens twice"},
		{"block opens again", []Event{start, {Kind: TextStart, ID: "1"}, {Kind: TextEnd, ID: "1"}, {Kind: ReasoningStart, ID: "1"}}, "opens twice"},
		{"delta before its block", []Event{start, {Kind: TextDelta, ID: "1"}}, "not open"},
		{"delta of another kind", []Event{start, {Kind: TextStart, ID: "1"}, {Kind: ReasoningDelta, ID: "1"}}, "not open"},
		{"delta after its block", []Event{start, {Kind: InputStart, ID: "1"}, {Kind: InputEnd, ID: "1"}, {Kind: InputDelta, ID: "1"}}, "not open"},
		{"end without its block", []Event{start, {Kind: TextEnd, ID: "1"}}, "not open"},
		{"end of another kind", []Event{start, {Kind: ReasoningStart, ID: "1"}, {Kind: TextEnd, ID: "1"}}, "not open"},
		{"ends twice", []Event{start, {Kind: TextStart, ID: "1"}, {Kind: TextEnd, ID: "1"}, {Kind: TextEnd, ID: "1"}}, "not open"},
		{"whole without part", []Event{start, {Kind: Whole}}, "without its part"},
		{"call without id", []Event{start, call("", "f", "{}")}, "without id or name"},
		{"call without name", []Event{start, call("c", "", "{}")}, "without id or name"},
		{"call before the end of its input", []Event{start, {Kind: InputStart, ID: "c"}, call("c", "f", "{}")}, "before the end of its input"},
		{"call twice", []Event{start, call("c", "f", "{}"), call("c", "f", "{}")}, "twice"},
		{"call with other input", []Event{start, {Kind: InputStart, ID: "c"}, {Kind: InputDelta, ID: "c", Delta: "{}"}, {Kind: InputEnd, ID: "c"}, call("c", "f", `{"a":1}`)}, "which came as"},
		{"open blocks at the end", []Event{start, {Kind: TextStart, ID: "1"}, done}, "open blocks"},
		{"input without its call", []Event{start, {Kind: InputStart, ID: "c"}, {Kind: InputEnd, ID: "c"}, done}, "not followed by its call"},
		{"end without reason", []Event{start, {Kind: Finished}}, "without a reason"},
		{"failure without error", []Event{start, {Kind: Failure}}, "without an error"},
		{"failure without kind", []Event{start, {Kind: Failure, Err: &Error{}}}, "without an error"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var c Checker
			var err error
			for i := range test.events {
				if err != nil {
					t.Fatalf("event %d of %d: %v", i-1, len(test.events), err)
				}
				err = c.Add(&test.events[i])
			}
			switch {
			case test.err == "" && err != nil:
				t.Errorf("%v", err)
			case test.err == "" && c.End() != nil:
				t.Errorf("End: %v", c.End())
			case test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)):
				t.Errorf("error %v, want one with %q", err, test.err)
			}
		})
	}
}

func TestChecker_End(t *testing.T) {
	t.Parallel()
	var c Checker
	if c.End() == nil {
		t.Error("a stream without events has an end")
	}
	if err := c.Add(&Event{Kind: Start}); err != nil || c.End() == nil {
		t.Errorf("a stream of a start has an end (%v)", err)
	}
}
