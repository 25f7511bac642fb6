package responses

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/seedtest"
)

func user(parts ...hub.Part) hub.Message { return hub.Message{Role: hub.User, Parts: parts} }

func textPart(s string) hub.Part { return hub.Part{Kind: hub.TextPart, Text: s} }

func writeCall(t *testing.T, c *hub.Call, target *hub.Target) (map[string]json.RawMessage, []string) {
	t.Helper()
	out, warnings, err := New().WriteCall(c, target)
	if err != nil {
		t.Fatal(err)
	}
	if out.Path != "/responses" {
		t.Errorf("path %s", out.Path)
	}
	var body map[string]json.RawMessage
	if err := json.Unmarshal(out.Body, &body); err != nil {
		t.Fatal(err)
	}
	var features []string
	for _, w := range warnings {
		features = append(features, w.Feature)
	}
	return body, features
}

func TestWriteCall_settings(t *testing.T) {
	t.Parallel()
	temperature, tokens, no := 0.5, int64(100), false
	c := &hub.Call{
		Prompt:          []hub.Message{{Role: hub.System, Parts: []hub.Part{textPart("be")}}, user(textPart("hi"))},
		MaxOutputTokens: &tokens, Sampling: hub.Sampling{Temperature: &temperature, TopK: &temperature, Seed: &tokens}, StopSequences: []string{"x"},
		Format: &hub.Format{Schema: json.RawMessage(`{"type":"object"}`)}, Effort: hub.EffortMax, ParallelTools: &no, Stream: true, User: "u", ServiceTier: "priority",
		Tools: []hub.Tool{
			{Name: "f", Description: "d", InputSchema: json.RawMessage(`{"type":"object"}`)},
			{Name: "search", ProviderID: "openai.web_search", Args: json.RawMessage(`{"searchContextSize":"low","filters":{"allowedDomains":["a"]}}`)},
			{Name: "code", ProviderID: "openai.code_interpreter", Args: json.RawMessage(`{"container":{"fileIds":["x"]}}`)},
		},
		ToolChoice: hub.ToolChoice{Mode: hub.ToolNamed, Tool: "search"},
	}
	c.Options.Set("openai", "reasoningSummary", "auto")
	c.Options.Set("openai", "textVerbosity", "low")
	c.Options.Set("openai", "promptCacheKey", "k")
	c.Options.Set("openai", "unheardOf", 1)
	c.Options.Set("anthropic", "thinking", 1)
	body, warned := writeCall(t, c, openai)
	for name, want := range map[string]string{
		"model": `"gpt-5.1"`, "store": "false", "stream": "true", "max_output_tokens": "100", "user": `"u"`, "service_tier": `"priority"`,
		"reasoning": `{"effort":"xhigh","summary":"auto"}`, "parallel_tool_calls": "false", "prompt_cache_key": `"k"`,
		"include":     `["reasoning.encrypted_content","web_search_call.action.sources","code_interpreter_call.outputs"]`,
		"text":        `{"format":{"name":"response","schema":{"type":"object"},"type":"json_schema"},"verbosity":"low"}`,
		"tool_choice": `{"type":"web_search"}`,
		"tools": `[{"description":"d","name":"f","parameters":{"type":"object"},"strict":false,"type":"function"},` +
			`{"filters":{"allowed_domains":["a"]},"search_context_size":"low","type":"web_search"},{"container":{"file_ids":["x"],"type":"auto"},"type":"code_interpreter"}]`,
		"input":       `[{"content":"be","role":"developer"},{"content":[{"text":"hi","type":"input_text"}],"role":"user"}]`,
		"temperature": "", "top_p": "",
	} {
		if got := string(body[name]); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	if got := strings.Join(warned, " "); got != "topK stopSequences seed reasoning temperature providerOptions.openai.unheardOf" {
		t.Errorf("warnings: %s", got)
	}
	// A model without reasoning has nothing to encrypt, and accepts a temperature.
	c.Tools, c.ToolChoice, c.Effort = nil, hub.ToolChoice{}, ""
	body, _ = writeCall(t, c, &hub.Target{Provider: "openai", Model: "gpt-4.1", Quirks: map[string]bool{QuirkSystemRole: true}})
	if body["include"] != nil || string(body["temperature"]) != "0.5" || !strings.Contains(string(body["input"]), `"role":"system"`) {
		t.Errorf("%s %s %s", body["include"], body["temperature"], body["input"])
	}
}

func TestThinks(t *testing.T) {
	t.Parallel()
	for model, want := range map[string]bool{
		"o1": true, "o3-mini": true, "o4-mini-deep-research": true, "gpt-5": true, "gpt-5.1-codex": true, "gpt-5-chat-latest": false, "gpt-10": true,
		"gpt-4o": false, "gpt-4.1": false, "gpt-3.5-turbo": false, "openai/gpt-oss-120b": true, "codex-mini-latest": true, "omni": false, "": false, "grok-4": false,
	} {
		if thinks(model) != want {
			t.Errorf("thinks(%q) is %v", model, !want)
		}
	}
	if !encrypts("grok-4") || encrypts("grok-4-fast-non-reasoning") {
		t.Error("encrypts of grok")
	}
}

func TestWriteCall_refused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		call hub.Call
		want string
	}{
		{hub.Call{Tools: []hub.Tool{{Name: "s", ProviderID: "anthropic.web_search_20250305"}}}, "anthropic.web_search_20250305"},
		{hub.Call{Prompt: []hub.Message{user(hub.Part{Kind: hub.FilePart, File: &hub.File{MediaType: "audio/wav", Data: []byte("x")}})}}, "audio/wav"},
		{hub.Call{Prompt: []hub.Message{user(hub.Part{Kind: hub.FilePart, File: &hub.File{MediaType: "image/png", Reference: map[string]string{"google": "f"}}})}}, "another provider"},
	} {
		_, _, err := New().WriteCall(&c.call, openai)
		var e *hub.Error
		if !errors.As(err, &e) || e.Kind != hub.BadRequest || !strings.Contains(e.Message, c.want) {
			t.Errorf("%v, want an invalid request about %s", err, c.want)
		}
	}
}

// TestWriteCall_conversation sends every recorded answer back; the written items must
// equal the received ones: reasoning before its call, with the same ids.
func TestWriteCall_conversation(t *testing.T) {
	t.Parallel()
	for _, f := range fixtures(t) {
		if f.Whole == nil {
			continue
		}
		t.Run(f.Name, func(t *testing.T) {
			t.Parallel()
			r, err := New().ReadResult(target(f), f.Whole)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := writeCall(t, &hub.Call{Prompt: []hub.Message{{Role: hub.Assistant, Parts: r.Content}}}, target(f))
			var input, output []map[string]any
			if err := json.Unmarshal(body["input"], &input); err != nil {
				t.Fatal(err)
			}
			var resp struct{ Output []map[string]any }
			if err := json.Unmarshal(f.Whole, &resp); err != nil {
				t.Fatal(err)
			}
			kept := true
			for _, it := range resp.Output {
				if it["type"] == "reasoning" && it["encrypted_content"] == nil {
					kept = false // it cannot be sent back, so the following item is sent without its id
					continue
				}
				output = append(output, it)
			}
			if len(input) != len(output) {
				t.Fatalf("%d items went back of %d: %s", len(input), len(output), body["input"])
			}
			for i, want := range output {
				got := input[i]
				switch want["type"] {
				case "message":
					if !kept && got["id"] != nil {
						t.Errorf("the message kept its id %v without the reasoning before it", got["id"])
					}
					if len(got["content"].([]any)) != len(want["content"].([]any)) || got["phase"] != want["phase"] {
						t.Errorf("message %v, want %v", got, want)
					}
				case "function_call":
					for _, name := range []string{"call_id", "name", "arguments", "caller", "namespace"} {
						if !reflect.DeepEqual(got[name], want[name]) {
							t.Errorf("%s is %v, want %v", name, got[name], want[name])
						}
					}
					if kept && got["id"] != want["id"] || !kept && got["id"] != nil {
						t.Errorf("id %v of %v, kept: %v", got["id"], want["id"], kept)
					}
				case "reasoning":
					for _, name := range []string{"id", "encrypted_content", "summary"} {
						if !reflect.DeepEqual(got[name], want[name]) {
							t.Errorf("%s is %v, want %v", name, got[name], want[name])
						}
					}
				default:
					if !reflect.DeepEqual(got, want) {
						t.Errorf("item %v, want %v", got, want)
					}
				}
			}
		})
	}
}

// TestWriteCall_foreign sends a conversation begun with another provider.
func TestWriteCall_foreign(t *testing.T) {
	t.Parallel()
	var signed hub.Options
	signed.Set("anthropic", "signature", "s")
	body, warned := writeCall(t, &hub.Call{Prompt: []hub.Message{
		{Role: hub.Assistant, Parts: []hub.Part{
			{Kind: hub.ReasoningPart, Text: "so", Options: signed},
			{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: "srv", Name: "web_search", Input: `{"q":1}`, ProviderExecuted: true}},
			{Kind: hub.ToolResultPart, Result: &hub.ToolResult{CallID: "srv", Name: "web_search", ProviderExecuted: true, Output: hub.ToolOutput{Kind: hub.OutputJSON, JSON: json.RawMessage(`[1]`)}}},
			{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: "lost", Name: "fetch", Input: `{}`, ProviderExecuted: true}},
			textPart("found"),
			{Kind: hub.FilePart, File: &hub.File{MediaType: "image/png", Data: []byte("png")}},
		}},
		{Role: hub.ToolRole, Parts: []hub.Part{{Kind: hub.ToolResultPart, Result: &hub.ToolResult{CallID: "c", Output: hub.ToolOutput{Kind: hub.OutputContent, Content: []hub.Part{
			textPart("see"), {Kind: hub.FilePart, File: &hub.File{MediaType: "image/*", URL: "https://i"}}, {Kind: hub.FilePart, File: &hub.File{MediaType: "application/pdf", Data: []byte("pdf")}},
		}}}}}},
	}}, openai)
	want := `[{"arguments":"{\"q\":1}","call_id":"srv","name":"web_search","type":"function_call"},{"call_id":"srv","output":"[1]","type":"function_call_output"},` +
		`{"content":[{"text":"found","type":"output_text"}],"role":"assistant","type":"message"},` +
		`{"call_id":"c","output":[{"text":"see","type":"input_text"},{"image_url":"https://i","type":"input_image"},{"file_data":"data:application/pdf;base64,cGRm","filename":"file.pdf","type":"input_file"}],"type":"function_call_output"},` +
		`{"content":[{"image_url":"data:image/png;base64,cG5n","type":"input_image"}],"role":"user"}]`
	if got := string(body["input"]); got != want {
		t.Errorf(" got %s\nwant %s", got, want)
	}
	if got := strings.Join(warned, " "); got != "reasoning tools.web_search file tools.fetch" {
		t.Errorf("warnings: %s", got)
	}
}

// TestWriteCall_toolOutputs sends results of client-run tools that are no functions.
func TestWriteCall_toolOutputs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ item, output, want string }{
		{`{"type":"local_shell_call","id":"l","call_id":"c","action":{}}`, `{"output":"a"}`, `{"call_id":"c","output":"a","type":"local_shell_call_output"}`},
		{`{"type":"shell_call","id":"l","call_id":"c","action":{}}`, `{"output":[{"stdout":"a","stderr":"","outcome":{"type":"exit","exitCode":1}}]}`,
			`{"call_id":"c","output":[{"outcome":{"exit_code":1,"type":"exit"},"stderr":"","stdout":"a"}],"type":"shell_call_output"}`},
		{`{"type":"apply_patch_call","id":"l","call_id":"c","operation":{}}`, `{"status":"completed","output":"ok"}`, `{"call_id":"c","output":"ok","status":"completed","type":"apply_patch_call_output"}`},
		{`{"type":"tool_search_call","id":"l","call_id":"c","execution":"client","arguments":{}}`, `{"tools":[]}`, `{"call_id":"c","execution":"client","status":"completed","tools":[],"type":"tool_search_output"}`},
	} {
		p := hub.Part{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: "c", Name: "x", Input: "{}"}}
		p.Options.SetRaw(optProvider, optItem, json.RawMessage(c.item))
		body, _ := writeCall(t, &hub.Call{Prompt: []hub.Message{
			{Role: hub.Assistant, Parts: []hub.Part{p}},
			{Role: hub.ToolRole, Parts: []hub.Part{{Kind: hub.ToolResultPart, Result: &hub.ToolResult{CallID: "c", Output: hub.ToolOutput{Kind: hub.OutputJSON, JSON: json.RawMessage(c.output)}}}}},
		}}, openai)
		if got, want := string(body["input"]), "["+c.item+","+c.want+"]"; got != want {
			t.Errorf(" got %s\nwant %s", got, want)
		}
	}
}

// TestToolNames checks that hosted tools have the client's names.
func TestToolNames(t *testing.T) {
	t.Parallel()
	f := gatewaytest.Named(t, "openai/responses-openai-web-search-tool.1")
	target := *openai
	target.Call = &hub.Call{Tools: []hub.Tool{{Name: "find", ProviderID: "openai.web_search"}}}
	r, err := New().ReadResult(&target, f.Whole)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, p := range r.Content {
		if p.Kind == hub.ToolCallPart {
			if n++; p.Call.Name != "find" {
				t.Errorf("the tool is called %s", p.Call.Name)
			}
		}
	}
	if n == 0 {
		t.Error("no calls")
	}
}

// TestRequests checks the property that a written call is read back unchanged.
func TestRequests(t *testing.T) {
	t.Parallel()
	seedtest.Check(t, func(t *rapid.T) {
		c := &hub.Call{Prompt: drawPrompt(t), Stream: rapid.Bool().Draw(t, "stream"), Effort: rapid.SampledFrom([]hub.Effort{"", "low", "high"}).Draw(t, "effort")}
		if rapid.Bool().Draw(t, "limit") {
			c.MaxOutputTokens = hub.N(rapid.Int64Range(1, 1e6).Draw(t, "tokens"))
		}
		if rapid.Bool().Draw(t, "format") {
			c.Format = &hub.Format{Schema: json.RawMessage(`{"type":"object"}`), Name: "n", Description: rapid.String().Draw(t, "description")}
		}
		if rapid.Bool().Draw(t, "tool") {
			strict := rapid.Bool().Draw(t, "strict")
			c.Tools = []hub.Tool{{Name: "f", Description: rapid.String().Draw(t, "d"), InputSchema: json.RawMessage(`{"type":"object","properties":{},"additionalProperties":false}`), Strict: &strict}}
			c.ToolChoice = hub.ToolChoice{Mode: hub.ToolNamed, Tool: "f"}
		}
		before := string(hub.MustEncode(c))
		out, warnings, err := New().WriteCall(c, openai)
		if err != nil || len(warnings) > 0 {
			t.Fatal(err, warnings)
		}
		if string(hub.MustEncode(c)) != before {
			t.Fatal("WriteCall changed the call")
		}
		back, err := New().ReadCall(nil, out.Body)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(hub.MustEncode(back)); got != before {
			t.Fatalf(" got %s\nwant %s", got, before)
		}
	})
}

func drawPrompt(t *rapid.T) []hub.Message {
	text := rapid.StringMatching(`[a-zA-Z<>&"\\ äß😀]{1,12}`)
	prompt := []hub.Message{user(textPart(text.Draw(t, "first")))}
	for i := range rapid.IntRange(0, 3).Draw(t, "turns") {
		var parts []hub.Part
		id := string(rune('a' + i))
		if rapid.Bool().Draw(t, "reasoning") {
			p := hub.Part{Kind: hub.ReasoningPart, Text: text.Draw(t, "thought")}
			p.Options.Set(optProvider, optItemID, "rs_"+id)
			p.Options.Set(optProvider, optEncrypted, text.Draw(t, "encrypted"))
			parts = append(parts, p)
		}
		if rapid.Bool().Draw(t, "said") {
			p := textPart(text.Draw(t, "text"))
			p.Options.Set(optProvider, optItemID, "msg_"+id)
			if rapid.Bool().Draw(t, "refusal") {
				p.Options.Set(optProvider, optRefusal, true)
			}
			parts = append(parts, p)
		}
		call := hub.Part{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: "call_" + id, Name: "f", Input: string(hub.MustEncode(object{"a": text.Draw(t, "input")}))}}
		call.Options.Set(optProvider, optItemID, "fc_"+id)
		parts = append(parts, call)
		out := hub.ToolOutput{Kind: hub.OutputText, Text: text.Draw(t, "output")}
		if rapid.Bool().Draw(t, "content") {
			out = hub.ToolOutput{Kind: hub.OutputContent, Content: []hub.Part{textPart("x"), {Kind: hub.FilePart, File: &hub.File{MediaType: "image/png", Data: []byte(text.Draw(t, "image"))}}}}
		}
		prompt = append(prompt,
			hub.Message{Role: hub.Assistant, Parts: parts},
			hub.Message{Role: hub.ToolRole, Parts: []hub.Part{{Kind: hub.ToolResultPart, Result: &hub.ToolResult{CallID: "call_" + id, Name: "f", Output: out}}}})
	}
	return prompt
}
