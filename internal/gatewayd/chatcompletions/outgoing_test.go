package chatcompletions

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

func text(s string) hub.Part { return hub.Part{Kind: hub.TextPart, Text: s} }

func say(role hub.Role, parts ...hub.Part) hub.Message { return hub.Message{Role: role, Parts: parts} }

func use(id, name, input string) hub.Part {
	return hub.Part{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: id, Name: name, Input: input}}
}

func result(id, name string, out hub.ToolOutput) hub.Part {
	return hub.Part{Kind: hub.ToolResultPart, Result: &hub.ToolResult{CallID: id, Name: name, Output: out}}
}

func mused(s string) hub.Part { return hub.Part{Kind: hub.ReasoningPart, Text: s} }

var (
	hello = []hub.Message{say(hub.User, text("hi"))}
	image = hub.Part{Kind: hub.FilePart, File: &hub.File{MediaType: "image/png", Data: []byte("hi")}}
	pdf   = hub.Part{Kind: hub.FilePart, File: &hub.File{MediaType: "application/pdf", Name: "a.pdf", Data: []byte("hi")}}
	// loop is a tool loop with reasoning before and after the user's last message.
	loop = []hub.Message{
		say(hub.User, text("a")), say(hub.Assistant, mused("old"), text("b")),
		say(hub.User, text("c")), say(hub.Assistant, mused("new"), use("toolu_01234567890", "f", "")),
		say(hub.ToolRole, result("toolu_01234567890", "f", hub.ToolOutput{Kind: hub.OutputText, Text: "r"})),
	}
	weather = hub.Tool{Name: "f", Description: "d", InputSchema: raw(`{"type":"object"}`), Strict: ptr(true)}
)

// members returns some members of a request, as JSON with sorted names.
func members(t *testing.T, body []byte, names ...string) string {
	t.Helper()
	var all map[string]json.RawMessage
	if err := json.Unmarshal(body, &all); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	for name := range all {
		if !slices.Contains(names, name) {
			delete(all, name)
		}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(all); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(b.String())
}

// Each kind of server gets the expected members, with the expected warnings.
func TestWriteCall(t *testing.T) {
	t.Parallel()
	short := hash("toolu_01234567890")[:9]
	for _, tt := range []struct {
		name, server, model string
		call                hub.Call
		members             string // to look at, separated by spaces
		want                string
		warnings            string // their features
	}{
		{"all there is", "", "m", hub.Call{Prompt: hello}, "model messages stream", `{"messages":[{"role":"user","content":"hi"}],"model":"m"}`, ""},
		{"stream", "", "m", hub.Call{Prompt: hello, Stream: true}, "stream stream_options", `{"stream":true,"stream_options":{"include_usage":true}}`, ""},
		{"stream", "mistral", "m", hub.Call{Prompt: hello, Stream: true}, "stream stream_options", `{"stream":true}`, ""},

		{"reasoning model", "openai", "gpt-5.1", hub.Call{Prompt: []hub.Message{say(hub.System, text("s")), say(hub.User, text("u"))}, MaxOutputTokens: hub.N(5), Sampling: hub.Sampling{Temperature: ptr(0.5), TopP: ptr(0.1), PresencePenalty: ptr(1.0), FrequencyPenalty: ptr(1.0), TopK: ptr(3.0)}, Effort: hub.EffortMax, Options: hub.Options{"openai": {"logprobs": raw("true"), "textVerbosity": raw(`"low"`)}}},
			"messages max_tokens max_completion_tokens temperature top_p top_k presence_penalty frequency_penalty reasoning_effort logprobs verbosity",
			`{"max_completion_tokens":5,"messages":[{"role":"developer","content":"s"},{"role":"user","content":"u"}],"reasoning_effort":"xhigh","verbosity":"low"}`,
			"temperature topP topK presencePenalty frequencyPenalty reasoning logprobs"},
		{"reasoning model that is not to", "openai", "gpt-5.1", hub.Call{Prompt: hello, Sampling: hub.Sampling{Temperature: ptr(0.5)}, Effort: hub.EffortNone}, "temperature reasoning_effort", `{"reasoning_effort":"none","temperature":0.5}`, ""},
		{"other model", "azure", "gpt-4o", hub.Call{Prompt: []hub.Message{say(hub.System, text("s"))}, MaxOutputTokens: hub.N(5), Sampling: hub.Sampling{Temperature: ptr(0.5)}, Effort: hub.EffortLow, Options: hub.Options{"openai": {"logprobs": raw("2")}}},
			"messages max_tokens max_completion_tokens temperature reasoning_effort logprobs top_logprobs", `{"logprobs":true,"max_tokens":5,"messages":[{"role":"system","content":"s"}],"temperature":0.5,"top_logprobs":2}`, "reasoning"},
		{"budget", "openai", "o3", hub.Call{Prompt: hello, ThinkingBudget: hub.N(9000)}, "reasoning_effort", `{"reasoning_effort":"medium"}`, "reasoning"},
		{"budget", "openrouter", "m", hub.Call{Prompt: hello, ThinkingBudget: hub.N(9000), HideReasoning: true, Sampling: hub.Sampling{TopK: ptr(4.0)}}, "reasoning reasoning_effort top_k", `{"reasoning":{"max_tokens":9000,"exclude":true},"top_k":4}`, ""},
		{"effort", "groq", "openai/gpt-oss-120b", hub.Call{Prompt: hello, Effort: hub.EffortMinimal}, "reasoning_effort", `{"reasoning_effort":"low"}`, "reasoning"},
		{"effort", "mistral", "m", hub.Call{Prompt: hello, Effort: hub.EffortHigh}, "reasoning_effort", `{}`, "reasoning"},
		{"effort", "xai", "grok-4", hub.Call{Prompt: hello, Effort: hub.EffortHigh, Sampling: hub.Sampling{PresencePenalty: ptr(1.0)}, StopSequences: []string{"a"}}, "reasoning_effort presence_penalty stop", `{}`, "presencePenalty stopSequences reasoning"},
		{"effort", "xai", "grok-3-mini", hub.Call{Prompt: hello, Effort: hub.EffortHigh}, "reasoning_effort", `{"reasoning_effort":"high"}`, ""},
		{"thinking", "deepseek", "deepseek-chat", hub.Call{Prompt: hello, Effort: hub.EffortHigh}, "thinking reasoning_effort", `{"thinking":{"type":"enabled"}}`, ""},
		{"thinking", "zhipu", "glm-5", hub.Call{Prompt: hello, Effort: hub.EffortNone}, "thinking reasoning_effort", `{"thinking":{"type":"disabled"}}`, ""},

		{"tool loop", "openai", "gpt-4o", hub.Call{Prompt: loop}, "messages", `{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"},{"role":"assistant","content":null,"tool_calls":[{"id":"toolu_01234567890","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"toolu_01234567890","content":"r"}]}`, ""},
		{"tool loop", "deepseek", "deepseek-reasoner", hub.Call{Prompt: loop}, "messages", `{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"},{"role":"assistant","content":"","reasoning_content":"new","tool_calls":[{"id":"toolu_01234567890","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"toolu_01234567890","content":"r"}]}`, ""},
		{"tool loop", "vllm", "m", hub.Call{Prompt: loop[:2]}, "messages", `{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b","reasoning_content":"old"}]}`, ""},
		{"tool loop", "openrouter", "m", hub.Call{Prompt: loop[:2]}, "messages", `{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b","reasoning_details":[{"type":"reasoning.text","text":"old","format":"unknown","index":0}]}]}`, ""},
		{"tool loop", "mistral", "m", hub.Call{Prompt: loop[3:]}, "messages", `{"messages":[{"role":"assistant","content":[{"type":"thinking","thinking":[{"type":"text","text":"new"}]}],"tool_calls":[{"id":"` + short + `","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"` + short + `","content":"r"}]}`, ""},
		{"long id", "openai", "m", hub.Call{Prompt: []hub.Message{say(hub.Assistant, use(strings.Repeat("x", 41), "f", "{}"))}}, "messages", `{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"call_` + hash(strings.Repeat("x", 41))[:24] + `","type":"function","function":{"name":"f","arguments":"{}"}}]}]}`, ""},
		{"signature", "google", "m", hub.Call{Prompt: []hub.Message{say(hub.Assistant, hub.Part{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: "1", Name: "f", Input: "{}"}, Options: hub.Options{"google": {"thoughtSignature": raw(`"S"`)}}})}}, "messages", `{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"},"extra_content":{"google":{"thought_signature":"S"}}}]}]}`, ""},
		{"signature", "cay", "m", hub.Call{Prompt: []hub.Message{say(hub.Assistant, hub.Part{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: "1", Name: "f", Input: "{}"}, Options: hub.Options{"google": {"thoughtSignature": raw(`"S"`)}}})}}, "messages", `{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"` + hub.PackID("1", hub.Options{"google": {"thoughtSignature": raw(`"S"`)}}) + `","type":"function","function":{"name":"f","arguments":"{}"}}]}]}`, ""},
		{"foreign signatures", "openrouter", "m", hub.Call{Prompt: []hub.Message{say(hub.Assistant, text("a"), hub.Part{Kind: hub.ReasoningPart, Text: "b", Options: hub.Options{"bedrock": {"signature": raw(`"S"`)}}})}}, "messages", `{"messages":[{"role":"assistant","content":"a"}]}`, "reasoning"},
		{"another's tools", "", "m", hub.Call{Prompt: []hub.Message{say(hub.Assistant, text("a"), hub.Part{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: "1", Name: "web_search", ProviderExecuted: true}})}}, "messages", `{"messages":[{"role":"assistant","content":"a"}]}`, "tools.web_search"},

		{"a turn of thoughts", "openai", "m", hub.Call{Prompt: []hub.Message{say(hub.User, text("a")), say(hub.Assistant, mused("old")), say(hub.User, text("b"))}}, "messages", `{"messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}]}`, ""},

		{"results", "", "m", hub.Call{Prompt: []hub.Message{say(hub.ToolRole,
			result("1", "f", hub.ToolOutput{Kind: hub.OutputJSON, JSON: raw(`{"a":[1]}`)}), result("2", "f", hub.ToolOutput{Kind: hub.OutputErrorText, Text: "e"}),
			result("3", "f", hub.ToolOutput{Kind: hub.OutputDenied, Text: "Because."}), result("4", "f", hub.ToolOutput{Kind: hub.OutputText}))}},
			"messages", `{"messages":[{"role":"tool","tool_call_id":"1","content":"{\"a\":[1]}"},{"role":"tool","tool_call_id":"2","content":"e"},{"role":"tool","tool_call_id":"3","content":"The tool was not run: its use was denied. Because."},{"role":"tool","tool_call_id":"4","content":""}]}`, ""},
		{"images in results", "", "m", hub.Call{Prompt: []hub.Message{
			say(hub.ToolRole, result("1", "f", hub.ToolOutput{Kind: hub.OutputContent, Content: []hub.Part{text("t"), image}}), result("2", "g", hub.ToolOutput{Kind: hub.OutputText, Text: "r"})),
			say(hub.ToolRole, result("3", "f", hub.ToolOutput{Kind: hub.OutputContent, Content: []hub.Part{image}})), say(hub.User, text("u")),
		}}, "messages", `{"messages":[{"role":"tool","tool_call_id":"1","content":[{"type":"text","text":"t"},{"type":"text","text":"[Files of this result are in the next message of the user.]"}]},{"role":"tool","tool_call_id":"2","content":"r"},{"role":"tool","tool_call_id":"3","content":"[Files of this result are in the next message of the user.]"},` +
			`{"role":"user","content":[{"type":"text","text":"Files of the result of tool call 1:"},{"type":"image_url","image_url":{"url":"data:image/png;base64,aGk="}},{"type":"text","text":"Files of the result of tool call 3:"},{"type":"image_url","image_url":{"url":"data:image/png;base64,aGk="}}]},{"role":"user","content":"u"}]}`, ""},

		{"files", "openai", "gpt-4o", hub.Call{Prompt: []hub.Message{say(hub.User, text("t"), image, pdf, hub.Part{Kind: hub.FilePart, File: &hub.File{MediaType: "application/pdf", Reference: map[string]string{"openai": "file-1"}}}, hub.Part{Kind: hub.FilePart, File: &hub.File{MediaType: "audio/mpeg", Data: []byte("hi")}}, hub.Part{Kind: hub.FilePart, File: &hub.File{MediaType: "text/csv", Data: []byte("a,b")}})}},
			"messages", `{"messages":[{"role":"user","content":[{"type":"text","text":"t"},{"type":"image_url","image_url":{"url":"data:image/png;base64,aGk="}},{"type":"file","file":{"file_data":"data:application/pdf;base64,aGk=","filename":"a.pdf"}},{"type":"file","file":{"file_id":"file-1"}},{"type":"input_audio","input_audio":{"data":"aGk=","format":"mp3"}},{"type":"text","text":"a,b"}]}]}`, ""},
		{"files", "mistral", "m", hub.Call{Prompt: []hub.Message{say(hub.User, pdf)}}, "messages", `{"messages":[{"role":"user","content":[{"type":"document_url","document_url":"data:application/pdf;base64,aGk=","document_name":"a.pdf"}]}]}`, ""},
		{"half a type", "", "m", hub.Call{Prompt: []hub.Message{say(hub.User, hub.Part{Kind: hub.FilePart, File: &hub.File{MediaType: "image/*", Data: []byte("GIF89a")}})}}, "messages", `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/gif;base64,R0lGODlh"}}]}]}`, ""},
		{"texts", "", "m", hub.Call{Prompt: []hub.Message{say(hub.User, text("a"), text("b"))}}, "messages", `{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}`, ""},
		{"texts", "deepseek", "m", hub.Call{Prompt: []hub.Message{say(hub.User, text("a"), text("b"))}}, "messages", `{"messages":[{"role":"user","content":"a\nb"}]}`, ""},
		{"cache markers", "openrouter", "m", hub.Call{Prompt: []hub.Message{{Role: hub.System, Parts: []hub.Part{text("a")}, Options: hub.Options{"anthropic": {"cacheControl": raw(`{"type":"ephemeral"}`)}}}}}, "messages", `{"messages":[{"role":"system","content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]}]}`, ""},
		{"cache markers", "openai", "gpt-4o", hub.Call{Prompt: []hub.Message{{Role: hub.System, Parts: []hub.Part{text("a")}, Options: hub.Options{"anthropic": {"cacheControl": raw(`{"type":"ephemeral"}`)}}}}}, "messages", `{"messages":[{"role":"system","content":"a"}]}`, ""},

		{"tools", "openai", "gpt-4o", hub.Call{Prompt: hello, Tools: []hub.Tool{weather, {Name: "g"}}, ToolChoice: hub.ToolChoice{Mode: hub.ToolNamed, Tool: "g"}, ParallelTools: ptr(false)}, "tools tool_choice parallel_tool_calls",
			`{"parallel_tool_calls":false,"tool_choice":{"type":"function","function":{"name":"g"}},"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"},"strict":false}},{"type":"function","function":{"name":"g","parameters":{"type":"object","properties":{}}}}]}`, "tools.f.inputSchema"},
		{"tools", "groq", "m", hub.Call{Prompt: hello, Tools: []hub.Tool{weather}, ToolChoice: hub.ToolChoice{Mode: hub.ToolRequired}}, "tools tool_choice", `{"tool_choice":"required","tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"}}}]}`, ""},
		{"tools", "mistral", "m", hub.Call{Prompt: hello, Tools: []hub.Tool{{Name: "g"}}, ToolChoice: hub.ToolChoice{Mode: hub.ToolRequired}, Sampling: hub.Sampling{Seed: ptr(int64(4))}, User: "ann"}, "tool_choice seed random_seed user", `{"random_seed":4,"tool_choice":"any"}`, "user"},
		{"choice without tools", "", "m", hub.Call{Prompt: hello, ToolChoice: hub.ToolChoice{Mode: hub.ToolAuto}, ParallelTools: ptr(true)}, "tools tool_choice parallel_tool_calls", `{}`, ""},

		{"JSON", "", "m", hub.Call{Prompt: hello, Format: &hub.Format{}}, "response_format", `{"response_format":{"type":"json_object"}}`, ""},
		{"a strict schema", "openai", "gpt-4o", hub.Call{Prompt: hello, Format: &hub.Format{Name: "my answer!", Schema: raw(`{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false}`)}}, "response_format",
			`{"response_format":{"type":"json_schema","json_schema":{"name":"my_answer_","schema":{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false},"strict":true}}}`, ""},
		{"a loose schema", "openai", "gpt-4o", hub.Call{Prompt: hello, Format: &hub.Format{Schema: raw(`{"type":"object","properties":{"a":{}}}`)}}, "response_format", `{"response_format":{"type":"json_schema","json_schema":{"name":"response","schema":{"type":"object","properties":{"a":{}}}}}}`, ""},
		{"a schema", "deepseek", "m", hub.Call{Prompt: hello, Format: &hub.Format{Schema: raw(`{"type":"object"}`)}}, "response_format messages", `{"messages":[{"role":"system","content":"Answer with JSON only, of this JSON Schema:\n{\"type\":\"object\"}"},{"role":"user","content":"hi"}],"response_format":{"type":"json_object"}}`, "responseFormat"},

		{"options", "my-server", "m", hub.Call{Prompt: hello, Sampling: hub.Sampling{Temperature: ptr(0.5)}, Options: hub.Options{"myServer": {"guided_json": raw(`{}`), "temperature": raw("1")}, "my-server": {"stream": raw("true"), "reasoningEffort": raw(`"low"`), "a\"b": raw("1")}, "other": {"x": raw("1")}}},
			"guided_json temperature stream reasoning_effort x", `{"guided_json":{},"reasoning_effort":"low","temperature":0.5}`, `providerOptions.my-server.a"b providerOptions.my-server.stream`},
	} {
		t.Run(tt.name+" "+tt.server, func(t *testing.T) {
			t.Parallel()
			target := &hub.Target{Provider: tt.server, Model: tt.model, Quirks: Known(tt.server)}
			before := show(tt.call)
			out, warnings, err := New().WriteCall(&tt.call, target)
			if err != nil {
				t.Fatal(err)
			}
			if got := members(t, out.Body, strings.Fields(tt.members)...); got != tt.want {
				t.Errorf("\n%s\nwant\n%s", got, tt.want)
			}
			var features []string
			for _, w := range warnings {
				features = append(features, w.Feature)
			}
			if got := strings.Join(features, " "); got != tt.warnings {
				t.Errorf("warnings of %q, want %q", got, tt.warnings)
			}
			if out.Path != "/chat/completions" || show(tt.call) != before {
				t.Errorf("path %s, or the call changed", out.Path)
			}
		})
	}
}

func TestWriteCall_Refuses(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		server string
		call   hub.Call
		words  string
	}{
		"a tool of a provider": {"openai", hub.Call{Prompt: hello, Tools: []hub.Tool{{Name: "web_search", ProviderID: "anthropic.web_search_20250305"}}}, "anthropic.web_search_20250305"},
		"a PDF":                {"groq", hub.Call{Prompt: []hub.Message{say(hub.User, pdf)}}, `"application/pdf"`},
		"a PDF by URL":         {"openai", hub.Call{Prompt: []hub.Message{say(hub.User, hub.Part{Kind: hub.FilePart, File: &hub.File{MediaType: "application/pdf", URL: "https://e.com/a.pdf"}})}}, "not by their URL"},
		"a video":              {"openai", hub.Call{Prompt: []hub.Message{say(hub.User, hub.Part{Kind: hub.FilePart, File: &hub.File{MediaType: "video/mp4", Data: []byte("x")}})}}, `"video/mp4"`},
		"a foreign reference":  {"openai", hub.Call{Prompt: []hub.Message{say(hub.User, hub.Part{Kind: hub.FilePart, File: &hub.File{MediaType: "application/pdf", Reference: map[string]string{"anthropic": "x"}}})}}, "does not know here"},
		"a file of the model":  {"openai", hub.Call{Prompt: []hub.Message{say(hub.Assistant, image)}}, "cannot be sent back"},
		"no tool to call":      {"openai", hub.Call{Prompt: hello, ToolChoice: hub.ToolChoice{Mode: hub.ToolRequired}}, "there are none"},
	} {
		_, _, err := New().WriteCall(&tt.call, &hub.Target{Provider: tt.server, Model: "gpt-4o", Quirks: Known(tt.server)})
		var e *hub.Error
		if !errors.As(err, &e) || e.Kind != hub.BadRequest || e.Param == "" || !strings.Contains(e.Message, tt.words) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestReasons(t *testing.T) {
	t.Parallel()
	for model, want := range map[string]bool{
		"o1": true, "o3-mini": true, "o4-mini-2025-04-16": true, "gpt-5": true, "gpt-5.1-codex": true, "openai/gpt-5-nano": true, "gpt-6": true, "gpt-10-mini": true, "codex-mini-latest": true,
		"gpt-4o": false, "gpt-4.1": false, "gpt-3.5-turbo": false, "gpt-35-turbo": false, "gpt-5-chat-latest": false, "chatgpt-4o-latest": false, "gpt-oss-120b": false, "omni": false, "": false,
	} {
		if reasons(model) != want {
			t.Errorf("reasons(%q) = %v", model, !want)
		}
	}
}

func TestStrict(t *testing.T) {
	t.Parallel()
	for schema, want := range map[string]bool{
		`{"type":"object","properties":{},"additionalProperties":false}`: true,
		`{"type":"object"}`: false,
		`{"type":["object","null"],"properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false}`:                                                 true,
		`{"type":"object","properties":{"a":{"type":"string"},"b":{}},"required":["a"],"additionalProperties":false}`:                                                   false,
		`{"type":"object","properties":{"a":{"type":"array","items":{"type":"object"}}},"required":["a"],"additionalProperties":false}`:                                 false,
		`{"type":"object","properties":{"a":{"anyOf":[{"type":"object"},{"type":"null"}]}},"required":["a"],"additionalProperties":false}`:                              false,
		`{"type":"object","properties":{"a":{"$ref":"#/$defs/b"}},"required":["a"],"additionalProperties":false,"$defs":{"b":{"type":"object","properties":{"c":{}}}}}`: false,
		`{"type":"object","properties":{"a":{"allOf":[{}]}},"required":["a"],"additionalProperties":false}`:                                                             false,
		`{"type":"object","properties":{"a":{"not":{}}},"required":["a"],"additionalProperties":false}`:                                                                 false,
	} {
		if strict([]byte(schema)) != want {
			t.Errorf("strict(%s) = %v", schema, !want)
		}
	}
}

// Every quirk of a known server is a documented quirk.
func TestKnown(t *testing.T) {
	t.Parallel()
	for server := range known {
		for q := range Known(server) {
			if !Quirks()[q] {
				t.Errorf("%s has the quirk %q, which there is not", server, q)
			}
		}
	}
	if Known("my-server") != nil {
		t.Error("an unknown server has quirks")
	}
}
