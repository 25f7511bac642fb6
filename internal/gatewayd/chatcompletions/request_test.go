package chatcompletions

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

func readCall(t *testing.T, body string) *hub.Call {
	t.Helper()
	c, err := New().ReadCall(nil, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// ask returns a request of one message with additional members.
func ask(members string) string {
	return `{"model":"m","messages":[{"role":"user","content":"x"}]` + members + `}`
}

func raw(s string) json.RawMessage { return json.RawMessage(s) }

func ptr[T any](v T) *T { return &v }

func TestReadCall_Members(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		members string
		want    hub.Call // without the prompt
	}{
		{``, hub.Call{}},
		{`,"temperature":0.5,"top_p":null,"seed":3,"stop":"a","stream":true`, hub.Call{Sampling: hub.Sampling{Temperature: ptr(0.5), Seed: ptr(int64(3))}, StopSequences: []string{"a"}, Stream: true}},
		{`,"max_completion_tokens":7,"max_tokens":5`, hub.Call{MaxOutputTokens: ptr(int64(7))}},
		{`,"max_tokens":5,"max_completion_tokens":7`, hub.Call{MaxOutputTokens: ptr(int64(7))}},
		{`,"max_tokens":5.0,"stop":["a","b"],"n":1`, hub.Call{MaxOutputTokens: ptr(int64(5)), StopSequences: []string{"a", "b"}}},
		{`,"stream_options":{"include_usage":true}`, hub.Call{Options: hub.Options{own: {"includeUsage": raw("true")}}}},
		{`,"reasoning_effort":"high"`, hub.Call{Effort: hub.EffortHigh}},
		{`,"reasoning":{"effort":"xhigh","exclude":true}`, hub.Call{Effort: hub.EffortXHigh, HideReasoning: true}},
		{`,"reasoning":{"max_tokens":2000}`, hub.Call{ThinkingBudget: ptr(int64(2000))}},
		{`,"reasoning":{"enabled":true}`, hub.Call{Effort: hub.EffortMedium}},
		{`,"reasoning":{"enabled":false,"max_tokens":5}`, hub.Call{Effort: hub.EffortNone}},
		{`,"thinking":{"type":"enabled","budget_tokens":9}`, hub.Call{ThinkingBudget: ptr(int64(9))}},
		{`,"thinking":{"type":"disabled"}`, hub.Call{Effort: hub.EffortNone}},
		{`,"response_format":{"type":"text"}`, hub.Call{}},
		{`,"response_format":{"type":"json_object"}`, hub.Call{Format: &hub.Format{}}},
		{`,"response_format":{"type":"json_schema","json_schema":{"name":"a","strict":true,"schema":{"type":"object"}}}`, hub.Call{Format: &hub.Format{Name: "a", Strict: ptr(true), Schema: raw(`{"type":"object"}`)}}},
		{`,"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"required","parallel_tool_calls":false`, hub.Call{
			Tools: []hub.Tool{{Name: "f", InputSchema: raw(noParameters)}}, ToolChoice: hub.ToolChoice{Mode: hub.ToolRequired}, ParallelTools: ptr(false),
		}},
		{`,"tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}],"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[{"type":"function","function":{"name":"g"}}]}}`, hub.Call{
			Tools: []hub.Tool{{Name: "g", InputSchema: raw(noParameters)}}, ToolChoice: hub.ToolChoice{Mode: hub.ToolRequired},
		}},
		{`,"tools":[{"type":"provider","id":"anthropic.web_search_20250305","args":{"maxUses":2}}]`, hub.Call{Tools: []hub.Tool{{Name: "web_search_20250305", ProviderID: "anthropic.web_search_20250305", Args: raw(`{"maxUses":2}`)}}}},
		{`,"logprobs":true,"top_logprobs":4,"logit_bias":{"1":2},"store":false,"prompt_cache_key":"k"`, hub.Call{
			Members: []hub.Member{{Name: "logprobs", Provider: "openai", Option: "logprobs"}, {Name: "top_logprobs", Provider: "openai", Option: "logprobs"}, {Name: "logit_bias", Provider: "openai", Option: "logitBias"}, {Name: "prompt_cache_key", Provider: "openai", Option: "promptCacheKey"}},
			Options: hub.Options{"openai": {"logprobs": raw("4"), "logitBias": raw(`{"1":2}`), "store": raw("false"), "promptCacheKey": raw(`"k"`)}},
		}},
		{`,"providerOptions":{"gateway":{"order":["a"]},"anthropic":{"effort":"low"}}`, hub.Call{Options: hub.Options{"anthropic": {"effort": raw(`"low"`)}}}},
		{`,"modalities":["text","image"]`, hub.Call{
			Members: []hub.Member{{Name: "modalities", Provider: "google", Option: "responseModalities"}}, Options: hub.Options{"google": {"responseModalities": raw(`["TEXT","IMAGE"]`)}},
		}},
		{`,"service_tier":"auto","user":"ann"`, hub.Call{User: "ann"}},
		{`,"models":["a"],"web_search_options":{},"min_p":0.1`, hub.Call{Warnings: []hub.Warning{{Kind: hub.WarnUnsupported, Feature: "web_search_options", Message: unknownMember}, {Kind: hub.WarnUnsupported, Feature: "min_p", Message: unknownMember}}}},
	} {
		got := readCall(t, ask(tt.members))
		got.Prompt = nil
		for name := range got.Options[own] {
			if strings.HasPrefix(name, keptMember) {
				delete(got.Options[own], name)
			}
		}
		if len(got.Options[own]) == 0 {
			delete(got.Options, own)
		}
		if len(got.Options) == 0 {
			got.Options = nil
		}
		if show(got) != show(tt.want) {
			t.Errorf("%s is\n%s\nwant\n%s", tt.members, show(got), show(tt.want))
		}
	}
}

func TestReadCall_Messages(t *testing.T) {
	t.Parallel()
	text := func(s string) hub.Part { return hub.Part{Kind: hub.TextPart, Text: s} }
	cached := hub.Options{"anthropic": {"cacheControl": raw(`{"type":"ephemeral"}`)}}
	for _, tt := range []struct {
		messages string
		want     []hub.Message
	}{
		{`{"role":"developer","content":"a"},{"role":"user","content":[{"type":"text","text":"b","cache_control":{"type":"ephemeral"}}]}`, []hub.Message{
			{Role: hub.System, Parts: []hub.Part{text("a")}},
			{Role: hub.User, Parts: []hub.Part{{Kind: hub.TextPart, Text: "b", Options: cached}}},
		}},
		{`{"role":"user","content":"b","cache_control":{"type":"ephemeral"}}`, []hub.Message{{Role: hub.User, Parts: []hub.Part{text("b")}, Options: cached}}},
		{`{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,aGk=","detail":"low"}},{"type":"image_url","image_url":"https://e.com/a.png"},{"type":"file","file":{"filename":"a.pdf","file_data":"data:application/pdf;base64,aGk"}},{"type":"file","file":{"filename":"a.csv","file_data":"aGk="}},{"type":"file","file":{"file_id":"file-1"}},{"type":"input_audio","input_audio":{"data":"aGk=","format":"mp3"}},{"type":"video_url","video_url":{"url":"https://e.com/a.mp4"}}]}`, []hub.Message{{Role: hub.User, Parts: []hub.Part{
			{Kind: hub.FilePart, File: &hub.File{MediaType: "image/png", Data: []byte("hi")}, Options: hub.Options{"openai": {"imageDetail": raw(`"low"`)}}},
			{Kind: hub.FilePart, File: &hub.File{MediaType: "image/*", URL: "https://e.com/a.png"}},
			{Kind: hub.FilePart, File: &hub.File{MediaType: "application/pdf", Name: "a.pdf", Data: []byte("hi")}},
			{Kind: hub.FilePart, File: &hub.File{MediaType: "text/csv", Name: "a.csv", Data: []byte("hi")}},
			{Kind: hub.FilePart, File: &hub.File{MediaType: "application/pdf", Reference: map[string]string{"openai": "file-1"}}},
			{Kind: hub.FilePart, File: &hub.File{MediaType: "audio/mpeg", Data: []byte("hi")}},
			{Kind: hub.FilePart, File: &hub.File{MediaType: "video/*", URL: "https://e.com/a.mp4"}},
		}}}},
		{`{"role":"assistant","content":null,"refusal":"no"},{"role":"assistant","content":[{"type":"text","text":"a"},{"type":"refusal","refusal":"b"}]}`, []hub.Message{
			{Role: hub.Assistant, Parts: []hub.Part{{Kind: hub.TextPart, Text: "no", Options: hub.Options{"openai": {"refusal": raw("true")}}}}},
			{Role: hub.Assistant, Parts: []hub.Part{text("a"), {Kind: hub.TextPart, Text: "b", Options: hub.Options{"openai": {"refusal": raw("true")}}}}},
		}},
		{`{"role":"assistant","content":"","reasoning_content":"hm","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":""}},{"id":"2","function":{"name":"g","arguments":{"a":1}}}]},{"role":"tool","tool_call_id":"2","content":"r"},{"role":"tool","tool_call_id":"1","content":[{"type":"text","text":"s"},{"type":"image_url","image_url":{"url":"data:image/png;base64,aGk="}}]}`, []hub.Message{
			{Role: hub.Assistant, Parts: []hub.Part{
				{Kind: hub.ReasoningPart, Text: "hm"},
				{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: "1", Name: "f", Input: "{}"}}, {Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: "2", Name: "g", Input: `{"a":1}`}},
			}},
			{Role: hub.ToolRole, Parts: []hub.Part{
				{Kind: hub.ToolResultPart, Result: &hub.ToolResult{CallID: "2", Name: "g", Output: hub.ToolOutput{Kind: hub.OutputText, Text: "r"}}},
				{Kind: hub.ToolResultPart, Result: &hub.ToolResult{CallID: "1", Name: "f", Output: hub.ToolOutput{Kind: hub.OutputContent, Content: []hub.Part{text("s"), {Kind: hub.FilePart, File: &hub.File{MediaType: "image/png", Data: []byte("hi")}}}}}},
			}},
		}},
		{`{"role":"assistant","content":[{"type":"thinking","thinking":[{"type":"text","text":"hm"}]},{"type":"text","text":"a"}]}`, []hub.Message{{Role: hub.Assistant, Parts: []hub.Part{{Kind: hub.ReasoningPart, Text: "hm"}, text("a")}}}},
	} {
		got := readCall(t, `{"messages":[`+tt.messages+`]}`)
		if show(got.Prompt) != show(tt.want) {
			t.Errorf("%s is\n%s\nwant\n%s", tt.messages, show(got.Prompt), show(tt.want))
		}
	}
}

// A signature packed into a call's id is unpacked, and the result still finds its call.
func TestReadCall_PackedIDs(t *testing.T) {
	t.Parallel()
	o := hub.Options{"google": {"thoughtSignature": raw(`"S"`)}}
	id := hub.PackID("call_1", o)
	c := readCall(t, `{"messages":[{"role":"assistant","tool_calls":[{"id":"`+id+`","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"`+id+`","content":"r"}]}`)
	call, result := c.Prompt[0].Parts[0], c.Prompt[1].Parts[0].Result
	if call.Call.ID != "call_1" || show(call.Options) != show(o) || result.CallID != "call_1" || result.Name != "f" {
		t.Errorf("%s", show(c))
	}
}

func TestReadCall_Errors(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{ // the param, and words of the message
		``:                               "/JSON object",
		`[]`:                             "/JSON object",
		strings.Repeat(`{"a":`, 600):     "/JSON object",
		`{}`:                             "messages/is missing",
		`{"messages":[]}`:                "messages/is empty",
		`{"messages":{}}`:                "messages/must be a list",
		`{"messages":[1]}`:               "messages[0]/must be an object",
		`{"messages":[{"role":"bot"}]}`:  `messages[0].role/"bot"`,
		`{"messages":[{"role":"user"}]}`: "messages[0].content/must be a string or a list",
		`{"messages":[{"role":"user","content":[{"type":"hologram"}]}]}`:                                                `messages[0].content[0].type/"hologram"`,
		`{"messages":[{"role":"system","content":[{"type":"image_url"}]}]}`:                                             `messages[0].content[0].type/"image_url"`,
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"file:///etc/passwd"}}]}]}`:      "messages[0].content[0].image_url.url/http:, https: or data:",
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,!"}}]}]}`: "messages[0].content[0].image_url.url/base64",
		`{"messages":[{"role":"user","content":[{"type":"file","file":{}}]}]}`:                                          "messages[0].content[0].file/file_data or file_id",
		`{"messages":[{"role":"tool","tool_call_id":"x","content":"r"}]}`:                                               `messages[0].tool_call_id/"x"`,
		`{"messages":[{"role":"assistant","tool_calls":[{"id":"1","type":"custom"}]}]}`:                                 `messages[0].tool_calls[0].custom.name/string`,
		`{"messages":[{"role":"assistant","audio":{"id":"a"}}]}`:                                                        "messages[0].audio/cannot be translated",
		ask(`,"n":2`):                                       "n/must be 1",
		ask(`,"temperature":"hot"`):                         "temperature/must be a number",
		ask(`,"max_tokens":1.5`):                            "max_tokens/whole number",
		ask(`,"max_tokens":0`):                              "max_tokens/max_tokens is 0; it must be 1 or more",
		ask(`,"max_completion_tokens":-1`):                  "max_completion_tokens/is -1",
		ask(`,"stop":[1]`):                                  "stop[0]/must be a string",
		ask(`,"modalities":["text","audio"]`):               `modalities/"audio"`,
		ask(`,"functions":[]`):                              "functions/use tools",
		ask(`,"tools":[{"type":"custom"}]`):                 `tools[0].custom.name/string`,
		ask(`,"tool_choice":"maybe"`):                       `tool_choice/"maybe"`,
		ask(`,"response_format":{"type":"xml"}`):            `response_format.type/"xml"`,
		ask(`,"reasoning":{"effort":"low","max_tokens":1}`): "reasoning/both",
		ask(`,"providerOptions":{"openai":1}`):              "providerOptions.openai/must be an object",
	} {
		_, err := New().ReadCall(nil, []byte(body))
		var e *hub.Error
		param, words, _ := strings.Cut(want, "/")
		if !errors.As(err, &e) || e.Kind != hub.BadRequest || e.Param != param || !strings.Contains(e.Message, words) {
			t.Errorf("%.80s: %v, want %s", body, err, want)
		}
	}
}

func FuzzReadCall(f *testing.F) {
	f.Add([]byte(ask(`,"tools":[{"type":"function","function":{"name":"f"}}],"reasoning":{"effort":"low"},"stop":["a"]`)))
	f.Add([]byte(`{"messages":[{"role":"assistant","content":"","reasoning_details":[{"type":"reasoning.text","text":"a","signature":"s","index":0}],"tool_calls":[{"id":"1","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"1","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,aGk="}}]}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		c, err := New().ReadCall(nil, body)
		if err != nil {
			var e *hub.Error
			if !errors.As(err, &e) || e.Kind != hub.BadRequest || e.Message == "" || c != nil {
				t.Fatalf("%v, %+v", c, err)
			}
			return
		}
		for _, target := range []*hub.Target{client, {Provider: "mistral", Quirks: Known("mistral")}, {Provider: "openai", Model: "gpt-5", Quirks: Known("openai")}} {
			New().Passes(target, body)
			out, _, err := New().WriteCall(c, target)
			if err == nil && !json.Valid(out.Body) {
				t.Fatalf("written as %s", out.Body)
			}
		}
	})
}

func FuzzReader(f *testing.F) {
	for _, s := range []string{
		chunks(`{"content":"<think>a"}`, `{"reasoning":"b","reasoning_details":[{"type":"reasoning.encrypted","data":"x","id":"y","index":1}]}`, stopped, done),
		chunks(`{"tool_calls":[{"index":0,"id":"1","function":{"name":"f","arguments":"{"}}]}`, `{"tool_calls":[{"index":0,"function":{"arguments":"}"}}]}`, stopped),
		`{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":9,"completion_tokens_details":{"reasoning_tokens":6}}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		target := &hub.Target{Provider: "p", Quirks: map[string]bool{ThinkTags: true}}
		_, events, _ := stream(t, target, strings.NewReader(string(body)))
		w := New().NewWriter(answerTo(nil))
		var out []byte
		for i := range events {
			out = w.Append(out, &events[i])
		}
		stream(t, client, strings.NewReader(string(out)))
		if r, err := New().ReadResult(target, body); err == nil {
			rewrite(t, r)
		}
		tap := New().Tap(target, true)
		tap.Write(body)
		tap.End()
	})
}
