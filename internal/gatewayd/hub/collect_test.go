package hub

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"
)

// everything returns an answer with every kind of part.
func everything() *Result {
	signed := func(provider, name, value string) Options {
		var o Options
		o.Set(provider, name, value)
		return o
	}
	return &Result{
		Content: []Part{
			{Kind: ReasoningPart, Text: "Let me see.", Options: signed("anthropic", "signature", "s1")},
			{Kind: ReasoningPart, Options: signed("anthropic", "redactedData", "r1")},
			{Kind: TextPart, Text: "It is "},
			{Kind: TextPart, Text: "12 °C.", Options: signed("openai", "itemId", "msg_1")},
			{Kind: TextPart},
			{Kind: ToolCallPart, Call: &ToolCall{ID: "c1", Name: "weather", Input: `{"city":"Oslo"}`}, Options: signed("google", "thoughtSignature", "t1")},
			{Kind: ToolCallPart, Call: &ToolCall{ID: "c2", Name: "web_search", Input: `{}`, ProviderExecuted: true, Dynamic: true}},
			{Kind: ToolResultPart, Result: &ToolResult{CallID: "c2", Name: "web_search", ProviderExecuted: true, Output: ToolOutput{Kind: OutputJSON, JSON: json.RawMessage(`[]`)}}},
			{Kind: SourcePart, Source: &Source{ID: "s", URL: "https://example.com"}},
			{Kind: FilePart, File: &File{MediaType: "image/png", Data: []byte{1}}},
			{Kind: ReasoningFilePart, File: &File{MediaType: "image/png", Data: []byte{2}}},
			{Kind: ApprovalRequestPart, Approval: &Approval{ID: "a", CallID: "c2"}},
			{Kind: CustomPart, CustomKind: "openai.compaction", Custom: json.RawMessage(`{"a":1}`)},
		},
		Finish:   Finish{Reason: ToolCalls, Raw: "tool_use"},
		Usage:    &Usage{Input: N(3), Output: N(4)},
		Warnings: []Warning{{Kind: WarnUnsupported, Feature: "topK"}},
		Response: Response{ID: "msg_1", Model: "m-1", Created: time.Unix(1, 0).UTC()},
		Options:  signed("anthropic", "container", "x"),
	}
}

func TestResult_EventsAndBack(t *testing.T) {
	t.Parallel()
	want := everything()
	var check Checker
	var collector Collector
	for _, e := range want.Events() {
		if err := check.Add(&e); err != nil {
			t.Fatalf("event %+v: %v", e, err)
		}
		collector.Add(&e)
	}
	if err := check.End(); err != nil {
		t.Fatal(err)
	}
	got, failure := collector.Result()
	if failure != nil {
		t.Fatalf("failed: %v", failure)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestResult_Text(t *testing.T) {
	t.Parallel()
	r := everything()
	if got := r.Text(); got != "It is 12 °C." {
		t.Errorf("Text = %q", got)
	}
	if !r.HasToolCalls() {
		t.Error("HasToolCalls = false with a call for the caller")
	}
	r.Content = r.Content[6:] // drop the parts before the provider's own call
	if r.HasToolCalls() {
		t.Error("HasToolCalls = true for a call the provider runs")
	}
}

func TestCollector_BlocksInterleave(t *testing.T) {
	t.Parallel()
	var c Collector
	for _, e := range []Event{
		{Kind: Start, Warnings: []Warning{{Kind: WarnOther, Message: "w"}}},
		{Kind: Metadata, Response: Response{ID: "r"}},
		{Kind: ReasoningStart, ID: "1", Options: Options{"openai": {"itemId": json.RawMessage(`"a"`)}}},
		{Kind: TextStart, ID: "2"},
		{Kind: TextDelta, ID: "2", Delta: "x"},
		{Kind: ReasoningDelta, ID: "1", Delta: "p"},
		{Kind: Metadata, Response: Response{Model: "m"}},
		{Kind: TextDelta, ID: "2", Delta: "y"},
		{Kind: TextEnd, ID: "2"},
		{Kind: TextDelta, ID: "2", Delta: "late"},
		{Kind: ReasoningDelta, ID: "1", Delta: "q", Options: Options{"openai": {"itemId": json.RawMessage(`"b"`)}}},
		{Kind: ReasoningEnd, ID: "1", Options: Options{"openai": {"enc": json.RawMessage(`"e"`)}}},
		{Kind: TextStart, ID: "3"},
		{Kind: TextDelta, ID: "3", Delta: "cut"},
	} {
		c.Add(&e)
	}
	cut := &Error{Kind: UpstreamFailed, Message: "broke off"}
	c.Add(&Event{Kind: Failure, Err: cut})
	got, failure := c.Result()
	if failure != cut {
		t.Errorf("error = %v, want %v", failure, cut)
	}
	want := &Result{
		Content: []Part{
			{Kind: ReasoningPart, Text: "pq", Options: Options{"openai": {"itemId": json.RawMessage(`"b"`), "enc": json.RawMessage(`"e"`)}}},
			{Kind: TextPart, Text: "xy"},
			{Kind: TextPart, Text: "cut"},
		},
		Warnings: []Warning{{Kind: WarnOther, Message: "w"}},
		Response: Response{ID: "r", Model: "m"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// A Collector must not write into the Options of events, which belong to the Reader.
func TestCollector_CopiesOptions(t *testing.T) {
	t.Parallel()
	theirs := Options{"a": {"b": json.RawMessage("1")}}
	var c Collector
	c.Add(&Event{Kind: Start})
	c.Add(&Event{Kind: TextStart, ID: "1", Options: theirs})
	c.Add(&Event{Kind: TextEnd, ID: "1", Options: Options{"a": {"c": json.RawMessage("2")}}})
	if len(theirs["a"]) != 1 {
		t.Errorf("the event's options became %v", theirs)
	}
}
