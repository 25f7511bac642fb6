package messages

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
	"pgregory.net/rapid"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/seedtest"
)

// plain is a model with all features of the format except output formats.
var plain = &hub.Target{Provider: "anthropic", Model: "claude-3-opus-20240229", MaxOutput: 4096}

func readCall(t testing.TB, body string) *hub.Call {
	t.Helper()
	c, err := New().ReadCall(http.Header{}, []byte(body))
	if err != nil {
		t.Fatalf("ReadCall(%s): %v", body, err)
	}
	return c
}

func writeCall(t testing.TB, c *hub.Call, target *hub.Target) (gjson.Result, []hub.Warning) {
	t.Helper()
	out, warnings, err := New().WriteCall(c, target)
	if err != nil {
		t.Fatalf("WriteCall: %v", err)
	}
	if !json.Valid(out.Body) {
		t.Fatalf("WriteCall wrote what is not JSON: %s", out.Body)
	}
	return gjson.ParseBytes(out.Body), warnings
}

// expect compares a member of a body, as compact JSON.
func expect(t *testing.T, body gjson.Result, path, want string) {
	t.Helper()
	if got := body.Get(path).Raw; got != want {
		t.Errorf("%s = %s, want %s", path, got, want)
	}
}

func text(role hub.Role, texts ...string) hub.Message {
	m := hub.Message{Role: role}
	for _, s := range texts {
		m.Parts = append(m.Parts, hub.Part{Kind: hub.TextPart, Text: s})
	}
	return m
}

func features(warnings []hub.Warning) string {
	var names []string
	for _, w := range warnings {
		names = append(names, w.Feature)
	}
	return strings.Join(names, " ")
}

func TestReadCall(t *testing.T) {
	t.Parallel()
	c := readCall(t, `{
		"model": "claude-sonnet-4-5-20250929", "max_tokens": 1000, "stream": true, "temperature": 0.5, "top_p": 0.9, "top_k": 40,
		"stop_sequences": ["END"], "metadata": {"user_id": "u1"}, "service_tier": "standard_only",
		"cache_control": {"type": "ephemeral"},
		"thinking": {"type": "enabled", "budget_tokens": 2000},
		"output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
		"tool_choice": {"type": "any", "disable_parallel_tool_use": true},
		"system": [{"type": "text", "text": "attribution"}, {"type": "text", "text": "You are.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
		"tools": [
			{"name": "f", "description": "d", "input_schema": {"type": "object"}, "strict": true, "cache_control": {"type": "ephemeral"}},
			{"type": "web_search_20250305", "name": "web_search", "max_uses": 3, "user_location": {"type": "approximate", "city": "Bonn"}}
		],
		"messages": [
			{"role": "user", "content": "hi"},
			{"role": "assistant", "content": [
				{"type": "thinking", "thinking": "hm", "signature": "sig"},
				{"type": "redacted_thinking", "data": "enc"},
				{"type": "text", "text": "I call."},
				{"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"b": 1, "a": 2}},
				{"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}},
				{"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{"type": "web_search_result", "url": "u", "encrypted_content": "e"}]}
			]},
			{"role": "user", "content": [
				{"type": "text", "text": "before"},
				{"type": "tool_result", "tool_use_id": "toolu_1", "is_error": true, "content": [{"type": "text", "text": "no"}, {"type": "text", "text": "way"}]},
				{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aW1n"}},
				{"type": "document", "source": {"type": "url", "url": "https://a.example/x.pdf"}, "title": "X", "citations": {"enabled": true}}
			]},
			{"role": "system", "content": "be brief"}
		]
	}`)
	if *c.MaxOutputTokens != 1000 || !c.Stream || *c.Temperature != 0.5 || *c.TopP != 0.9 || *c.TopK != 40 || !slices.Equal(c.StopSequences, []string{"END"}) || c.User != "u1" || c.ServiceTier != "standard_only" {
		t.Errorf("settings: %+v", c)
	}
	if *c.ThinkingBudget != 2000 || c.Effort != "" || c.ToolChoice.Mode != hub.ToolRequired || *c.ParallelTools {
		t.Errorf("thinking and choice: %+v", c)
	}
	if string(c.Format.Schema) != `{"type": "object"}` {
		t.Errorf("format: %+v", c.Format)
	}
	if len(c.Warnings) != 0 {
		t.Errorf("warnings: %v", c.Warnings)
	}
	if c.Tools[0].Name != "f" || !*c.Tools[0].Strict || c.Tools[0].Options["anthropic"]["cacheControl"] == nil {
		t.Errorf("tool: %+v", c.Tools[0])
	}
	if w := c.Tools[1]; w.ProviderID != "anthropic.web_search_20250305" || string(w.Args) != `{"maxUses":3,"userLocation":{"type":"approximate","city":"Bonn"}}` {
		t.Errorf("provider tool: %+v %s", w, w.Args)
	}
	roles := ""
	for _, m := range c.Prompt {
		roles += string(m.Role) + " "
	}
	if roles != "system user assistant tool user system " {
		t.Fatalf("roles: %s", roles)
	}
	if s := c.Prompt[0].Parts; s[0].Text != "attribution" || s[0].Options != nil || string(s[1].Options["anthropic"]["cacheControl"]) != `{"type": "ephemeral", "ttl": "1h"}` {
		t.Errorf("system: %+v", s)
	}
	a := c.Prompt[2].Parts
	if a[0].Options.String("anthropic", "signature") != "sig" || a[1].Options.String("anthropic", "redactedData") != "enc" || a[3].Call.Input != `{"b": 1, "a": 2}` || !a[4].Call.ProviderExecuted || a[5].Result.Name != "web_search" {
		t.Errorf("assistant: %+v", a)
	}
	if r := c.Prompt[3].Parts[0].Result; r.Name != "f" || r.Output.Kind != hub.OutputErrorText || r.Output.Text != "no\nway" {
		t.Errorf("result: %+v", r)
	}
	u := c.Prompt[4].Parts
	if u[0].Text != "before" || string(u[1].File.Data) != "img" || u[2].File.URL != "https://a.example/x.pdf" || u[2].File.MediaType != "application/pdf" || u[2].File.Name != "X" {
		t.Errorf("user: %+v", u)
	}
}

// Both API versions are decoded alike; sampling parameters are dropped with a warning if
// the model refuses them.
func TestWriteCall_SamplingIsDroppedWithAWarning(t *testing.T) {
	t.Parallel()
	c := readCall(t, `{"max_tokens": 100, "temperature": 0.5, "top_p": 0.9, "top_k": 4, "messages": [{"role": "user", "content": "hi"}]}`)
	for _, target := range []*hub.Target{
		{Provider: "anthropic", Model: "claude-opus-4-8"},
		{Provider: "anthropic", Model: "claude-3-opus-20240229", Quirks: map[string]bool{QuirkVersion2026: true}},
	} {
		out, warnings, err := New().WriteCall(c, target)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"temperature", "top_p", "top_k"} {
			if gjson.GetBytes(out.Body, name).Exists() {
				t.Errorf("%s: %s was written", target.Model, name)
			}
		}
		if features(warnings) != "temperature topP topK" {
			t.Errorf("%s: warnings %v", target.Model, warnings)
		}
		want := Version20230601
		if target.Is(QuirkVersion2026) {
			want = Version20261021
		}
		if got := out.Head.Get("Anthropic-Version"); got != want || out.Path != "/messages" {
			t.Errorf("%s: version %q, path %s", target.Model, got, out.Path)
		}
	}
	body, warnings := writeCall(t, c, plain)
	if len(warnings) != 0 {
		t.Error(warnings)
	}
	expect(t, body, "temperature", "0.5")
	expect(t, body, "top_p", "0.9")
	expect(t, body, "top_k", "4")
}

func TestReadCall_Errors(t *testing.T) {
	t.Parallel()
	user := func(block string) string {
		return `{"messages":[{"role":"user","content":[` + block + `]}]}`
	}
	for body, param := range map[string]string{
		`{`:                                                         "",
		`[]`:                                                        "",
		`{"messages":"x"}`:                                          "messages",
		`{}`:                                                        "messages",
		`{"messages":[],"max_tokens":0}`:                            "max_tokens",
		`{"messages":[],"max_tokens":1.5}`:                          "max_tokens",
		`{"messages":[],"max_tokens":"many"}`:                       "max_tokens",
		`{"messages":[],"temperature":"hot"}`:                       "temperature",
		`{"messages":[],"stream":1}`:                                "stream",
		`{"messages":[],"stop_sequences":"x"}`:                      "stop_sequences",
		`{"messages":[],"stop_sequences":[1]}`:                      "stop_sequences.0",
		`{"messages":[],"thinking":{"type":"hard"}}`:                "thinking.type",
		`{"messages":[],"thinking":{"type":"enabled"}}`:             "thinking.budget_tokens",
		`{"messages":[],"tool_choice":{"type":"all"}}`:              "tool_choice.type",
		`{"messages":[],"tool_choice":{"type":"tool"}}`:             "tool_choice.name",
		`{"messages":[],"tools":[{"input_schema":{}}]}`:             "tools.0.name",
		`{"messages":[],"tools":[{"name":"f","input_schema":1}]}`:   "tools.0.input_schema",
		`{"messages":[],"output_config":{"format":{"type":"xml"}}}`: "output_config.format.type",
		`{"messages":[],"output_config":{"format":{"type":"json_schema"}}}`:                      "output_config.format.schema",
		`{"messages":[],"system":[{"type":"image"}]}`:                                            "system.0.type",
		`{"messages":[{"role":"tool","content":"x"}]}`:                                           "messages.0.role",
		`{"messages":[{"role":"user"}]}`:                                                         "messages.0.content",
		user(`1`):                                                                                "messages.0.content.0",
		user(`{"text":"x"}`):                                                                     "messages.0.content.0.type",
		user(`{"type":"text"}`):                                                                  "messages.0.content.0.text",
		user(`{"type":"image","source":{"type":"base64","data":"!"}}`):                           "messages.0.content.0.source.data",
		user(`{"type":"image","source":{"type":"url","url":"file:///etc/passwd"}}`):              "messages.0.content.0.source.url",
		user(`{"type":"image","source":{"type":"tape"}}`):                                        "messages.0.content.0.source.type",
		user(`{"type":"tool_result","content":"x"}`):                                             "messages.0.content.0.tool_use_id",
		user(`{"type":"tool_result","tool_use_id":"a","content":[{"type":"tool_result"}]}`):      "messages.0.content.0.content.0.type",
		`{"messages":[{"role":"assistant","content":[{"type":"tool_use","name":"f"}]}]}`:         "messages.0.content.0.id",
		`{"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"","name":"f"}]}]}`: "messages.0.content.0.id",
	} {
		_, err := New().ReadCall(http.Header{}, []byte(body))
		var e *hub.Error
		if !errors.As(err, &e) || e.Kind != hub.BadRequest || e.Param != param || !strings.Contains(e.Message, param) {
			t.Errorf("ReadCall(%s): %+v, want an error of %q", body, err, param)
		}
	}
}

func TestReadCall_UnknownMembersWarn(t *testing.T) {
	t.Parallel()
	c := readCall(t, `{"messages":[{"role":"user","content":"x"}],"new_beta":1,"metadata":{"x":1},"mcp_servers":[{"name":"m","authorization_token":"t"}],
		"context_management":{"edits":[{"type":"clear_tool_uses_20250919","clear_at_least":{"type":"input_tokens","value":1}}]},"tools":[{"name":"f","x":1}],"output_config":{"y":1}}`)
	if got := features(c.Warnings); got != "new_beta metadata.x mcp_servers context_management tools.f.x output_config.y" {
		t.Errorf("warnings: %s", got)
	}
	// Anthropic itself gets the members that only it knows.
	body, _ := writeCall(t, c, anthropic)
	expect(t, body, "mcp_servers", `[{"name":"m","authorization_token":"t"}]`)
	expect(t, body, "context_management.edits.0.clear_at_least", `{"type":"input_tokens","value":1}`)
	out, _, _ := New().WriteCall(c, anthropic)
	if got := out.Head.Get("Anthropic-Beta"); got != "context-management-2025-06-27,mcp-client-2025-04-04" {
		t.Errorf("betas: %s", got)
	}
}

func TestWriteCall_MergesAndOrders(t *testing.T) {
	t.Parallel()
	call := func(id string) hub.Part {
		return hub.Part{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: id, Name: "f", Input: ""}}
	}
	result := func(id, s string) hub.Message {
		return hub.Message{Role: hub.ToolRole, Parts: []hub.Part{{Kind: hub.ToolResultPart, Result: &hub.ToolResult{CallID: id, Name: "f", Output: hub.ToolOutput{Kind: hub.OutputText, Text: s}}}}}
	}
	c := &hub.Call{Prompt: []hub.Message{
		text(hub.System, "one"), text(hub.System, "two"),
		text(hub.User, "a", ""), text(hub.User, "b"),
		{Role: hub.Assistant, Parts: []hub.Part{call("x:1"), call("y")}},
		text(hub.User, "wait"),
		result("x:1", "r1"), result("y", "r2"),
		text(hub.System, "hurry"),
		text(hub.Assistant, "So: \n"),
	}}
	body, warnings := writeCall(t, c, plain)
	expect(t, body, "system", `[{"type":"text","text":"one"},{"type":"text","text":"two"}]`)
	expect(t, body, "messages.0", `{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}`)
	expect(t, body, "messages.1.content", `[{"type":"tool_use","id":"x_1","name":"f","input":{}},{"type":"tool_use","id":"y","name":"f","input":{}}]`)
	expect(t, body, "messages.2.content", `[{"type":"tool_result","tool_use_id":"x_1","content":"r1"},{"type":"tool_result","tool_use_id":"y","content":"r2"},{"type":"text","text":"wait"},{"type":"text","text":"<system>\nhurry\n</system>"}]`)
	expect(t, body, "messages.3.content", `[{"type":"text","text":"So:"}]`)
	expect(t, body, "max_tokens", "4096")
	if features(warnings) != "prompt" {
		t.Errorf("warnings: %v", warnings)
	}
	body, warnings = writeCall(t, c, &hub.Target{Provider: "a", Model: "claude-fable-5", MaxOutput: 128000, Quirks: map[string]bool{QuirkMidSystem: true}})
	expect(t, body, "messages.3", `{"role":"system","content":[{"type":"text","text":"hurry"}]}`)
	expect(t, body, "max_tokens", "128000")
	if len(warnings) != 0 {
		t.Errorf("warnings: %v", warnings)
	}
	_, warnings = writeCall(t, c, &hub.Target{Provider: "a", Model: "other"})
	if features(warnings) != "maxOutputTokens prompt" {
		t.Errorf("warnings: %v", warnings)
	}
}

func TestWriteCall_Files(t *testing.T) {
	t.Parallel()
	write := func(f hub.File, target *hub.Target) (string, error) {
		c := &hub.Call{Prompt: []hub.Message{{Role: hub.User, Parts: []hub.Part{{Kind: hub.FilePart, File: &f}}}}}
		out, _, err := New().WriteCall(c, target)
		if err != nil {
			return "", err
		}
		return gjson.GetBytes(out.Body, "messages.0.content.0").Raw, nil
	}
	png := []byte("\x89PNG\x0d\x0a\x1a\x0a")
	for want, f := range map[string]hub.File{
		`{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBORw0KGgo="}}`:          {MediaType: "image/*", Data: png},
		`{"type":"image","source":{"type":"base64","media_type":"image/jpeg","data":"aQ=="}}`:                 {MediaType: "image/jpg", Data: []byte("i")},
		`{"type":"image","source":{"type":"url","url":"https://a.example/i"}}`:                                {MediaType: "image/*", URL: "https://a.example/i"},
		`{"type":"document","source":{"type":"url","url":"https://a.example/i"},"title":"T"}`:                 {MediaType: "application/pdf", URL: "https://a.example/i", Name: "T"},
		`{"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"JVBERg=="}}`:     {MediaType: "application/pdf", Data: []byte("%PDF")},
		`{"type":"document","source":{"type":"text","media_type":"text/plain","data":"a,b"},"title":"x.csv"}`: {MediaType: "text/csv", Data: []byte("a,b"), Name: "x.csv"},
		`{"type":"document","source":{"type":"text","media_type":"text/plain","data":"t"}}`:                   {MediaType: "text/plain", Text: "t"},
		`{"type":"document","source":{"type":"file","file_id":"file_1"}}`:                                     {MediaType: "application/pdf", Reference: map[string]string{"anthropic": "file_1"}},
	} {
		if got, err := write(f, plain); err != nil || got != want {
			t.Errorf("%+v: %s, %v; want %s", f, got, err, want)
		}
	}
	for _, f := range []hub.File{
		{MediaType: "audio/wav", Data: []byte("x")}, {MediaType: "image/tiff", Data: []byte("x")}, {MediaType: "text/plain", URL: "https://a.example/x"},
		{MediaType: "image/png", Reference: map[string]string{"openai": "file"}},
	} {
		var e *hub.Error
		if _, err := write(f, plain); !errors.As(err, &e) || e.Kind != hub.BadRequest {
			t.Errorf("%+v: %v", f, err)
		}
	}
	var e *hub.Error
	if _, err := write(hub.File{MediaType: "image/png", URL: "https://a.example"}, &hub.Target{Quirks: map[string]bool{QuirkNoURLs: true}}); !errors.As(err, &e) || e.Kind != hub.BadRequest {
		t.Errorf("a URL: %v", err)
	}
}

func TestWriteCall_Tools(t *testing.T) {
	t.Parallel()
	yes, no := true, false
	c := &hub.Call{
		Prompt: []hub.Message{text(hub.User, "hi")},
		Tools: []hub.Tool{
			{Name: "f", Strict: &yes},
			{Name: "search", ProviderID: "anthropic.web_search_20250305", Args: json.RawMessage(`{"maxUses":2}`)},
			{Name: "tool_search_tool_bm25", ProviderID: "anthropic.tool_search_bm25_20251119"},
		},
		ToolChoice: hub.ToolChoice{Mode: hub.ToolNamed, Tool: "f"}, ParallelTools: &no,
	}
	out, warnings, err := New().WriteCall(c, anthropic)
	if err != nil {
		t.Fatal(err)
	}
	body := gjson.ParseBytes(out.Body)
	expect(t, body, "tools.0", `{"name":"f","input_schema":{"type":"object","properties":{},"additionalProperties":false},"strict":true}`)
	expect(t, body, "tools.1", `{"type":"web_search_20250305","name":"web_search","max_uses":2}`)
	expect(t, body, "tools.2", `{"type":"tool_search_tool_bm25_20251119","name":"tool_search_tool_bm25"}`)
	expect(t, body, "tool_choice", `{"type":"tool","name":"f","disable_parallel_tool_use":true}`)
	if out.Head.Get("Anthropic-Beta") != "advanced-tool-use-2025-11-20" || features(warnings) != "tools.search" {
		t.Errorf("%v %v", out.Head, warnings)
	}
	// The answer contains the caller's name of the tool.
	target := *anthropic
	target.Call = c
	r, err := New().ReadResult(&target, []byte(`{"type":"message","content":[{"type":"server_tool_use","id":"s","name":"web_search","input":{}},{"type":"web_search_tool_result","tool_use_id":"s","content":[]}]}`))
	if err != nil || r.Content[0].Call.Name != "search" || r.Content[1].Result.Name != "search" {
		t.Errorf("%+v, %v", r, err)
	}
	for _, tool := range []hub.Tool{{Name: "a.b"}, {Name: ""}, {Name: "s", ProviderID: "openai.web_search"}, {Name: "f", InputSchema: json.RawMessage("[]")}} {
		c := &hub.Call{Prompt: c.Prompt, Tools: []hub.Tool{tool}}
		var e *hub.Error
		if _, _, err := New().WriteCall(c, anthropic); !errors.As(err, &e) || e.Kind != hub.BadRequest || e.Param != "tools" {
			t.Errorf("%+v: %v", tool, err)
		}
	}
	for choice, want := range map[hub.ToolMode]string{hub.ToolDefault: "", hub.ToolAuto: `{"type":"auto"}`, hub.ToolNone: `{"type":"none"}`, hub.ToolRequired: `{"type":"any"}`} {
		body, _ := writeCall(t, &hub.Call{Prompt: c.Prompt, Tools: c.Tools[:1], ToolChoice: hub.ToolChoice{Mode: choice}}, anthropic)
		expect(t, body, "tool_choice", want)
	}
}

func TestWriteCall_Thinking(t *testing.T) {
	t.Parallel()
	prompt := []hub.Message{text(hub.User, "hi")}
	temperature := 0.5
	c := &hub.Call{
		Prompt: prompt, Effort: hub.EffortMedium, MaxOutputTokens: hub.N(10000), Sampling: hub.Sampling{Temperature: &temperature},
		Tools: []hub.Tool{{Name: "f"}}, ToolChoice: hub.ToolChoice{Mode: hub.ToolRequired},
	}
	body, warnings := writeCall(t, c, anthropic)
	expect(t, body, "thinking", `{"type":"enabled","budget_tokens":3000}`)
	expect(t, body, "tool_choice", `{"type":"auto"}`)
	expect(t, body, "temperature", "")
	if features(warnings) != "temperature toolChoice" {
		t.Errorf("warnings: %v", warnings)
	}
	body, _ = writeCall(t, c, &hub.Target{Model: "claude-opus-4-7", MaxOutput: 128000})
	expect(t, body, "thinking", `{"type":"adaptive"}`)
	expect(t, body, "output_config", `{"effort":"medium"}`)

	var options hub.Options // as the AI SDK says it
	options.SetRaw("anthropic", "thinking", json.RawMessage(`{"type":"enabled","budgetTokens":2048}`))
	body, _ = writeCall(t, &hub.Call{Prompt: prompt, Options: options}, anthropic)
	expect(t, body, "thinking", `{"type":"enabled","budget_tokens":2048}`)

	// Thinking cannot continue after tool calls without signed reasoning.
	loop := append(slices.Clone(prompt),
		hub.Message{Role: hub.Assistant, Parts: []hub.Part{{Kind: hub.ReasoningPart, Text: "foreign"}, {Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: "a", Name: "f"}}}},
		hub.Message{Role: hub.ToolRole, Parts: []hub.Part{{Kind: hub.ToolResultPart, Result: &hub.ToolResult{CallID: "a", Output: hub.ToolOutput{Kind: hub.OutputText, Text: "r"}}}}})
	body, warnings = writeCall(t, &hub.Call{Prompt: loop, Effort: hub.EffortHigh, Tools: c.Tools}, anthropic)
	expect(t, body, "thinking", "")
	expect(t, body, "messages.1.content.0.type", `"tool_use"`)
	if features(warnings) != "reasoning reasoning" {
		t.Errorf("warnings: %v", warnings)
	}
}

func TestWriteCall_Format(t *testing.T) {
	t.Parallel()
	c := &hub.Call{
		Prompt: []hub.Message{text(hub.User, "hi")}, Effort: hub.EffortHigh,
		Format: &hub.Format{Schema: json.RawMessage(`{"type":"object","properties":{"b":{"type":"string"},"a":{"type":"string"}}}`)},
	}
	body, warnings := writeCall(t, c, anthropic)
	expect(t, body, "output_config.format", `{"type":"json_schema","schema":{"type":"object","properties":{"b":{"type":"string"},"a":{"type":"string"}},"additionalProperties":false}}`)
	expect(t, body, "tools", "")
	if len(warnings) != 0 {
		t.Errorf("warnings: %v", warnings)
	}
	body, warnings = writeCall(t, c, &hub.Target{Model: "claude-opus-4-1-20250805", MaxOutput: 32000})
	expect(t, body, "tools.0.name", `"`+hub.AnswerTool+`"`)
	expect(t, body, "tools.0.input_schema", string(c.Format.Schema))
	expect(t, body, "tool_choice", `{"type":"tool","name":"`+hub.AnswerTool+`","disable_parallel_tool_use":true}`)
	expect(t, body, "thinking", "")
	if features(warnings) != "reasoning" {
		t.Errorf("warnings: %v", warnings)
	}
	c.Tools = []hub.Tool{{Name: "f"}}
	body, _ = writeCall(t, c, &hub.Target{Model: "claude-opus-4-1-20250805", MaxOutput: 32000})
	expect(t, body, "tool_choice", `{"type":"any","disable_parallel_tool_use":true}`)
}

func TestWriteCall_CacheMarks(t *testing.T) {
	t.Parallel()
	var mark hub.Options
	mark.SetRaw("anthropic", "cacheControl", json.RawMessage(`{"type":"ephemeral"}`))
	marked := func(role hub.Role, s string) hub.Message {
		m := text(role, s)
		m.Parts[0].Options = mark
		return m
	}
	c := &hub.Call{Tools: []hub.Tool{{Name: "f", Options: mark}}}
	c.Prompt = append(c.Prompt, marked(hub.System, "s"), marked(hub.User, "1"), text(hub.Assistant, "2"), marked(hub.User, "3"))
	last := text(hub.Assistant, "4", "5")
	last.Options = mark // options of the message apply to its last part
	c.Prompt = append(c.Prompt, last)
	body, warnings := writeCall(t, c, plain)
	for path, want := range map[string]string{
		"tools.0.cache_control": "", "system.0.cache_control": `{"type":"ephemeral"}`, "messages.0.content.0.cache_control": `{"type":"ephemeral"}`,
		"messages.1.content.0.cache_control": "", "messages.2.content.0.cache_control": `{"type":"ephemeral"}`,
		"messages.3.content.0.cache_control": "", "messages.3.content.1.cache_control": `{"type":"ephemeral"}`,
	} {
		expect(t, body, path, want)
	}
	if features(warnings) != "cacheControl" {
		t.Errorf("warnings: %v", warnings)
	}
	c.Tools = nil
	if _, warnings := writeCall(t, c, plain); len(warnings) != 0 {
		t.Errorf("four markers: %v", warnings)
	}
}

// Signatures of all providers come back from a client that returns answers unchanged.
func TestSignatures_RoundTrip(t *testing.T) {
	t.Parallel()
	option := func(provider, name, value string) hub.Options {
		var o hub.Options
		o.Set(provider, name, value)
		return o
	}
	content := []hub.Part{
		{Kind: hub.ReasoningPart, Text: "a", Options: option("anthropic", "signature", "sig+/=")},
		{Kind: hub.ReasoningPart, Options: option("anthropic", "redactedData", "enc")},
		{Kind: hub.ReasoningPart, Text: "b", Options: option("openai", "reasoningEncryptedContent", "gAAA")},
		{Kind: hub.ReasoningPart, Text: "c", Options: option("bedrock", "signature", "bed")},
		{Kind: hub.ReasoningPart, Text: "d", Options: option("google", "thoughtSignature", "goo")},
		{Kind: hub.TextPart, Text: "text"},
		{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: "call_1", Name: "f", Input: `{"a":1}`}, Options: option("google", "thoughtSignature", "tool")},
		{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: "call_2", Name: "g", Input: `{}`}},
	}
	r := &hub.Result{Content: content, Finish: hub.Finish{Reason: hub.ToolCalls}}
	check := func(form string, blocks gjson.Result) {
		t.Helper()
		id := blocks.Get("6.id").Str
		body := fmt.Sprintf(`{"messages":[{"role":"user","content":"x"},{"role":"assistant","content":%s},{"role":"user","content":[{"type":"tool_result","tool_use_id":%q,"content":"r"}]}]}`, blocks.Raw, id)
		c := readCall(t, body)
		if !reflect.DeepEqual(c.Prompt[1].Parts, content) {
			t.Errorf("%s: it came back as %+v, want %+v", form, c.Prompt[1].Parts, content)
		}
		if res := c.Prompt[2].Parts[0].Result; res.CallID != "call_1" || res.Name != "f" {
			t.Errorf("%s: result %+v", form, res)
		}
	}
	body, err := New().WriteResult(hub.Answer{ID: "gen_1"}, r)
	if err != nil {
		t.Fatal(err)
	}
	if s := gjson.GetBytes(body, "content.2.signature").Str; !strings.HasPrefix(s, "cay1.openai.") {
		t.Errorf("a foreign signature is %q", s)
	}
	check("whole", gjson.GetBytes(body, "content"))
	w := New().NewWriter(hub.Answer{ID: "gen_1"})
	var stream []byte
	events := r.Events()
	for i := range events {
		stream = w.Append(stream, &events[i])
	}
	check("streamed", accumulate(t, stream).Get("content"))
}

// accumulate collects a stream like Anthropic's SDKs, and checks the order of events as
// strictly.
func accumulate(t *testing.T, stream []byte) gjson.Result {
	t.Helper()
	var message map[string]any
	content := []map[string]any{}
	inputs := map[int]string{}
	open := map[int]bool{}
	ended := false
	for frame := range strings.SplitSeq(strings.TrimSuffix(string(stream), "\n\n"), "\n\n") {
		name, data, ok := strings.Cut(frame, "\ndata: ")
		name, named := strings.CutPrefix(name, "event: ")
		var e struct {
			Type         string
			Message      map[string]any
			Index        int
			ContentBlock map[string]any `json:"content_block"`
			Delta        map[string]any
			Usage        map[string]any
		}
		if !ok || !named || json.Unmarshal([]byte(data), &e) != nil || e.Type != name || ended {
			t.Fatalf("event %q", frame)
		}
		if (e.Type == "message_start") != (message == nil) && e.Type != "ping" {
			t.Fatalf("%s out of order", e.Type)
		}
		switch e.Type {
		case "message_start":
			message = e.Message
		case "content_block_start":
			if e.Index != len(content) {
				t.Fatalf("block %d after %d", e.Index, len(content))
			}
			content = append(content, e.ContentBlock)
			open[e.Index] = true
		case "content_block_delta":
			if !open[e.Index] {
				t.Fatalf("delta of block %d", e.Index)
			}
			b := content[e.Index]
			switch e.Delta["type"] {
			case "text_delta":
				b["text"] = b["text"].(string) + e.Delta["text"].(string)
			case "thinking_delta":
				b["thinking"] = b["thinking"].(string) + e.Delta["thinking"].(string)
			case "compaction_delta":
				b["content"] = b["content"].(string) + e.Delta["content"].(string)
			case "signature_delta":
				b["signature"] = e.Delta["signature"]
			case "input_json_delta":
				inputs[e.Index] += e.Delta["partial_json"].(string)
			case "citations_delta":
				list, _ := b["citations"].([]any)
				b["citations"] = append(list, e.Delta["citation"])
			default:
				t.Fatalf("delta %v", e.Delta)
			}
		case "content_block_stop":
			if !open[e.Index] {
				t.Fatalf("stop of block %d", e.Index)
			}
			delete(open, e.Index)
			if input, ok := inputs[e.Index]; ok {
				content[e.Index]["input"] = json.RawMessage(input)
			}
		case "message_delta":
			if len(open) > 0 {
				t.Fatalf("message_delta before the end of blocks %v", open)
			}
			message["stop_reason"], message["usage"] = e.Delta["stop_reason"], e.Usage
			message["stop_sequence"] = e.Delta["stop_sequence"]
		case "message_stop":
			ended = true
		case "ping":
		default:
			t.Fatalf("event %s", e.Type)
		}
	}
	if !ended {
		t.Fatal("no message_stop")
	}
	message["content"] = content
	raw, err := hub.Encode(message)
	if err != nil {
		t.Fatal(err)
	}
	return gjson.ParseBytes(raw)
}

// aCall generates a call that the format can express completely.
func aCall(rt *rapid.T) *hub.Call {
	word := rapid.StringMatching(`[a-zA-Zé<>&" ]{0,12}[a-z]`)
	name := rapid.StringMatching(`[a-zA-Z0-9_-]{1,12}`)
	optional := func(label string) bool { return rapid.Bool().Draw(rt, label) }
	marks := 4
	options := func() hub.Options {
		var o hub.Options
		if marks > 0 && rapid.IntRange(0, 9).Draw(rt, "mark") == 0 {
			marks--
			o.SetRaw(self, "cacheControl", json.RawMessage(`{"type":"ephemeral"}`))
		}
		return o
	}
	file := func() hub.Part {
		f := rapid.SampledFrom([]hub.File{
			{MediaType: "image/png", Data: []byte("img")}, {MediaType: "image/*", URL: "https://a.example/i"},
			{MediaType: "application/pdf", Data: []byte("%PDF"), Name: "x"}, {MediaType: "application/pdf", URL: "http://a.example/p"},
			{MediaType: "text/plain", Text: "text"}, {MediaType: "image/*", Reference: map[string]string{self: "file_1"}},
		}).Draw(rt, "file")
		if f.Reference != nil { // an image's media type does not travel, and tells it from a document
			f.MediaType = "application/pdf"
		}
		return hub.Part{Kind: hub.FilePart, File: &f, Options: options()}
	}
	textPart := func() hub.Part {
		return hub.Part{Kind: hub.TextPart, Text: word.Draw(rt, "text"), Options: options()}
	}
	c := &hub.Call{Stream: optional("stream")}
	if optional("max") {
		c.MaxOutputTokens = hub.N(rapid.Int64Range(1, 4096).Draw(rt, "maxTokens"))
	} else {
		c.MaxOutputTokens = hub.N(4096)
	}
	if optional("temperature") {
		v := rapid.Float64Range(0, 1).Draw(rt, "t")
		c.Temperature = &v
	}
	if optional("topK") {
		v := float64(rapid.IntRange(0, 500).Draw(rt, "k"))
		c.TopK = &v
	}
	if optional("stop") {
		c.StopSequences = rapid.SliceOfN(word, 1, 3).Draw(rt, "stops")
	}
	if optional("user") {
		c.User = word.Draw(rt, "user id")
	}
	for range rapid.IntRange(0, 3).Draw(rt, "tools") {
		t := hub.Tool{Name: name.Draw(rt, "tool"), Description: word.Draw(rt, "description"), InputSchema: json.RawMessage(`{"type":"object","properties":{"z":{},"a":{}}}`), Options: options()}
		if optional("provider tool") {
			t = hub.Tool{Name: "web_search", ProviderID: "anthropic.web_search_20250305", Args: json.RawMessage(`{"maxUses":3}`), Options: options()}
		}
		c.Tools = append(c.Tools, t)
	}
	if len(c.Tools) > 0 {
		c.ToolChoice = rapid.SampledFrom([]hub.ToolChoice{{}, {Mode: hub.ToolAuto}, {Mode: hub.ToolNone}, {Mode: hub.ToolRequired}, {Mode: hub.ToolNamed, Tool: c.Tools[0].Name}}).Draw(rt, "choice")
		if c.ToolChoice.Mode != "" && c.ToolChoice.Mode != hub.ToolNone && optional("parallel") {
			no := false
			c.ParallelTools = &no
		}
	}
	if optional("system") {
		m := hub.Message{Role: hub.System}
		for range rapid.IntRange(1, 2).Draw(rt, "systems") {
			m.Parts = append(m.Parts, textPart())
		}
		c.Prompt = append(c.Prompt, m)
	}
	var calls []*hub.ToolCall
	id := 0
	for turn := range rapid.IntRange(1, 5).Draw(rt, "turns") {
		if turn%2 == 0 {
			if len(calls) > 0 {
				m := hub.Message{Role: hub.ToolRole}
				for _, call := range calls {
					p := hub.Part{Kind: hub.ToolResultPart, Options: options(), Result: &hub.ToolResult{CallID: call.ID, Name: call.Name}}
					o := &p.Result.Output
					switch rapid.IntRange(0, 2).Draw(rt, "output") {
					case 0:
						o.Kind, o.Text = hub.OutputText, word.Draw(rt, "output text")
					case 1:
						o.Kind, o.Text = hub.OutputErrorText, word.Draw(rt, "error")
					case 2:
						o.Kind, o.Content = hub.OutputContent, []hub.Part{textPart(), file()}
					}
					m.Parts = append(m.Parts, p)
				}
				c.Prompt = append(c.Prompt, m)
			}
			if len(calls) == 0 || optional("says") {
				m := hub.Message{Role: hub.User, Parts: []hub.Part{textPart()}}
				if optional("has file") {
					m.Parts = append(m.Parts, file())
				}
				c.Prompt = append(c.Prompt, m)
			}
			continue
		}
		calls = nil
		m := hub.Message{Role: hub.Assistant}
		if optional("thinks") {
			p := hub.Part{Kind: hub.ReasoningPart, Text: word.Draw(rt, "thought")}
			p.Options.Set(self, "signature", word.Draw(rt, "signature"))
			m.Parts = append(m.Parts, p)
		}
		m.Parts = append(m.Parts, textPart())
		for range rapid.IntRange(0, 2).Draw(rt, "calls") {
			id++
			call := &hub.ToolCall{ID: fmt.Sprintf("call_%d", id), Name: name.Draw(rt, "called"), Input: `{"a":[1,"<&>"]}`}
			calls = append(calls, call)
			m.Parts = append(m.Parts, hub.Part{Kind: hub.ToolCallPart, Call: call, Options: options()})
		}
		c.Prompt = append(c.Prompt, m)
	}
	return c
}

// The request for a provider decodes to the client's call.
func TestCall_RoundTrip(t *testing.T) {
	t.Parallel()
	seedtest.Check(t, func(rt *rapid.T) {
		c := aCall(rt)
		out, warnings, err := New().WriteCall(c, plain)
		if err != nil {
			rt.Fatal(err)
		}
		if len(warnings) > 0 {
			rt.Fatalf("warnings: %v", warnings)
		}
		again, err := New().ReadCall(http.Header{}, out.Body)
		if err != nil {
			rt.Fatalf("%v: %s", err, out.Body)
		}
		if !reflect.DeepEqual(again, c) {
			got, _ := json.Marshal(again)
			want, _ := json.Marshal(c)
			rt.Fatalf("%s", differ(string(got), string(want)))
		}
		second, _, err := New().WriteCall(again, plain)
		if err != nil || string(second.Body) != string(out.Body) { // prompts are cached by their bytes
			rt.Fatalf("written again it differs: %v", err)
		}
	})
}

func TestCount(t *testing.T) {
	t.Parallel()
	c := readCall(t, `{"system":"s","thinking":{"type":"enabled","budget_tokens":2000},"temperature":1,"metadata":{"user_id":"u"},"stream":true,"tools":[{"name":"f","input_schema":{"type":"object"}}],"messages":[{"role":"user","content":"hi"}]}`)
	out, _, err := New().WriteCount(c, anthropic)
	if err != nil || out.Path != "/messages/count_tokens" {
		t.Fatalf("%+v, %v", out, err)
	}
	want := `{"model":"claude-sonnet-4-5-20250929","tools":[{"name":"f","input_schema":{"type":"object"}}],"system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}],"thinking":{"type":"enabled","budget_tokens":2000}}`
	if string(out.Body) != want {
		t.Errorf("body %s\nwant %s", out.Body, want)
	}
	if n, err := New().ReadCount(anthropic, []byte(`{"input_tokens":14}`)); n != 14 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	for _, body := range []string{``, `{}`, `{"input_tokens":-1}`, `{"input_tokens":"x"}`, `{"input_tokens":1`} {
		if _, err := New().ReadCount(anthropic, []byte(body)); err == nil {
			t.Errorf("ReadCount(%s) is no error", body)
		}
	}
	if got := string(New().WriteCounted(7)); got != `{"input_tokens":7}` {
		t.Error(got)
	}
}

func TestEstimateTokens(t *testing.T) {
	t.Parallel()
	english := strings.Repeat("The quick brown fox jumps over the lazy dog. ", 100) // some 1,000 tokens
	for _, c := range []struct {
		call     hub.Call
		from, to int64
	}{
		{hub.Call{}, 0, 0},
		{hub.Call{Prompt: []hub.Message{text(hub.User, english)}}, 900, 1300},
		{hub.Call{Prompt: []hub.Message{text(hub.User, strings.Repeat("日本語", 100))}}, 140, 400},
		{hub.Call{Prompt: []hub.Message{{Role: hub.User, Parts: []hub.Part{{Kind: hub.FilePart, File: &hub.File{MediaType: "image/png", Data: make([]byte, 1<<20)}}}}}}, 1600, 1700},
		{hub.Call{Tools: []hub.Tool{{Name: "f", Description: english}}}, 1200, 1700},
		{hub.Call{Prompt: []hub.Message{{Role: hub.ToolRole, Parts: []hub.Part{{Kind: hub.ToolResultPart, Result: &hub.ToolResult{Output: hub.ToolOutput{Kind: hub.OutputText, Text: english}}}}}}}, 900, 1300},
	} {
		if got := EstimateTokens(&c.call); got < c.from || got > c.to {
			t.Errorf("%d tokens, want %d to %d", got, c.from, c.to)
		}
	}
}

func FuzzReadCall(f *testing.F) {
	f.Add([]byte(`{"system":"s","tools":[{"name":"f","input_schema":{"type":"object"}}],"messages":[{"role":"user","content":[{"type":"text","text":"hi"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"aQ=="}}]},{"role":"assistant","content":[{"type":"thinking","thinking":"x","signature":"y"},{"type":"tool_use","id":"a","name":"f","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"r"}]}]}`))
	f.Add([]byte(`{"messages":[{"role":"assistant","content":[{"type":"web_search_tool_result","tool_use_id":"a","content":[]},{"type":"mcp_tool_use","id":"b","name":"m","server_name":"s","input":{}},{"type":"mcp_tool_result","tool_use_id":"b","content":"x"},{"type":"compaction","content":"c"},{"type":"new","x":1}]}],"thinking":{"type":"adaptive"},"output_config":{"format":{"type":"json_schema","schema":{}}}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		c, err := New().ReadCall(http.Header{}, body)
		if err != nil {
			var e *hub.Error
			if !errors.As(err, &e) || e.Kind != hub.BadRequest {
				t.Fatalf("%T %v", err, err)
			}
			return
		}
		for _, target := range []*hub.Target{plain, anthropic, {Model: "claude-fable-5"}} {
			out, _, err := New().WriteCall(c, target)
			if err != nil {
				continue
			}
			if !json.Valid(out.Body) {
				t.Fatalf("written: %s", out.Body)
			}
			if _, err := New().ReadCall(http.Header{}, out.Body); err != nil {
				t.Fatalf("what was written is not read: %v: %s", err, out.Body)
			}
		}
		EstimateTokens(c)
	})
}

// For any call, roles alternate, tool results come first, and every result has the id of
// its call.
func TestWriteCall_Properties(t *testing.T) {
	t.Parallel()
	seedtest.Check(t, func(rt *rapid.T) {
		c := &hub.Call{}
		id := rapid.StringMatching(`[a-z:|_.]{1,40}`)
		var ids []string
		for range rapid.IntRange(1, 8).Draw(rt, "messages") {
			switch rapid.IntRange(0, 4).Draw(rt, "role") {
			case 0:
				c.Prompt = append(c.Prompt, text(hub.User, rapid.StringN(0, 5, 20).Draw(rt, "text")))
			case 1:
				c.Prompt = append(c.Prompt, text(hub.System, "s"))
			case 2:
				next := fmt.Sprintf("%s%d", id.Draw(rt, "id"), len(ids))
				ids = append(ids, next)
				call := &hub.ToolCall{ID: next, Name: "f", Input: rapid.SampledFrom([]string{"", "{}", "[1", `{"a":1}`, "3"}).Draw(rt, "input")}
				c.Prompt = append(c.Prompt, hub.Message{Role: hub.Assistant, Parts: []hub.Part{{Kind: hub.ToolCallPart, Call: call}}})
			case 3:
				if len(ids) > 0 {
					r := &hub.ToolResult{CallID: ids[len(ids)-1], Name: "f", Output: hub.ToolOutput{Kind: hub.OutputText, Text: rapid.String().Draw(rt, "output")}}
					c.Prompt = append(c.Prompt, hub.Message{Role: hub.ToolRole, Parts: []hub.Part{{Kind: hub.ToolResultPart, Result: r}}})
				}
			case 4:
				c.Prompt = append(c.Prompt, text(hub.Assistant, "answer "))
			}
		}
		before := fmt.Sprintf("%+v", c.Prompt)
		out, _, err := New().WriteCall(c, plain)
		if err != nil {
			var e *hub.Error
			if !errors.As(err, &e) || e.Kind != hub.BadRequest {
				rt.Fatalf("%v", err)
			}
			return
		}
		if fmt.Sprintf("%+v", c.Prompt) != before {
			rt.Fatal("the call was changed")
		}
		role, called := "", map[string]bool{}
		for _, m := range gjson.GetBytes(out.Body, "messages").Array() {
			if m.Get("role").Str == role || len(m.Get("content").Array()) == 0 {
				rt.Fatalf("messages: %s", out.Body)
			}
			role = m.Get("role").Str
			others := false
			for _, b := range m.Get("content").Array() {
				switch b.Get("type").Str {
				case "tool_use":
					if !b.Get("input").IsObject() || called[b.Get("id").Str] {
						rt.Fatalf("a call: %s", b.Raw)
					}
					called[b.Get("id").Str] = true
				case "tool_result":
					if others || role != "user" || !called[b.Get("tool_use_id").Str] {
						rt.Fatalf("a result out of place: %s", out.Body)
					}
					continue
				}
				others = true
			}
		}
	})
}

// Claude Code's tool references become text for other providers, and stay unchanged for
// Anthropic.
func TestReadCall_ToolReference(t *testing.T) {
	t.Parallel()
	c := readCall(t, `{"messages":[{"role":"user","content":"x"},{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"ToolSearch","input":{}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":"tool_reference","tool_name":"Grep"}]},
		{"type":"search_result","source":"s","title":"T","content":[{"type":"text","text":"found"}],"citations":{"enabled":true},"cache_control":{"type":"ephemeral"}}]}]}`)
	found := c.Prompt[2].Parts[0].Result.Output.Content[0]
	if found.Kind != hub.TextPart || found.Text != "The tool Grep was found and can be called." {
		t.Errorf("%+v", found)
	}
	if s := c.Prompt[3].Parts[0]; s.Kind != hub.TextPart || s.Text != "T (s)\nfound" {
		t.Errorf("%+v", s)
	}
	body, warnings := writeCall(t, c, plain)
	expect(t, body, "messages.2.content.0.content", `[{"type":"tool_reference","tool_name":"Grep"}]`)
	expect(t, body, "messages.2.content.1", `{"type":"search_result","cache_control":{"type":"ephemeral"},"source":"s","title":"T","content":[{"type":"text","text":"found"}],"citations":{"enabled":true}}`)
	if len(warnings) > 0 {
		t.Error(warnings)
	}
}

// An empty user message is dropped with a warning, and the conversation still begins with
// the user.
func TestWriteCall_EmptyMessage(t *testing.T) {
	t.Parallel()
	c := &hub.Call{Prompt: []hub.Message{text(hub.User, ""), text(hub.Assistant, "a"), text(hub.User, "b"), text(hub.User, "")}}
	out, warnings, err := New().WriteCall(c, anthropic)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, gjson.ParseBytes(out.Body), "messages", `[{"role":"user","content":[{"type":"text","text":"(empty message)"}]},{"role":"assistant","content":[{"type":"text","text":"a"}]},{"role":"user","content":[{"type":"text","text":"b"}]}]`)
	if features(warnings) != "prompt prompt prompt" || !strings.Contains(warnings[0].Message, "message 0") {
		t.Errorf("%v", warnings)
	}
}
