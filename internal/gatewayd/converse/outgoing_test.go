package converse

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
	"pgregory.net/rapid"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/seedtest"
)

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

func features(warnings []hub.Warning) string {
	var names []string
	for _, w := range warnings {
		names = append(names, w.Feature)
	}
	return strings.Join(names, " ")
}

func text(role hub.Role, texts ...string) hub.Message {
	m := hub.Message{Role: role}
	for _, s := range texts {
		m.Parts = append(m.Parts, hub.Part{Kind: hub.TextPart, Text: s})
	}
	return m
}

func option(provider, name string, value any) hub.Options {
	var o hub.Options
	o.Set(provider, name, value)
	return o
}

func call(id, input string) hub.Part {
	return hub.Part{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: id, Name: "f", Input: input}}
}

func result(id string, o hub.ToolOutput) hub.Message {
	return hub.Message{Role: hub.ToolRole, Parts: []hub.Part{{Kind: hub.ToolResultPart, Result: &hub.ToolResult{CallID: id, Name: "f", Output: o}}}}
}

var (
	nova  = &hub.Target{Provider: "bedrock", Model: "eu.amazon.nova-2-lite-v1:0"}
	llama = &hub.Target{Provider: "bedrock", Model: "meta.llama3-1-70b-instruct-v1:0"}
	opus5 = &hub.Target{Provider: "bedrock", Model: "global.anthropic.claude-opus-5", MaxOutput: 128000}
	old   = &hub.Target{Provider: "bedrock", Model: "anthropic.claude-3-5-sonnet-20240620-v1:0", MaxOutput: 8192}
)

func TestWriteCall_Path(t *testing.T) {
	t.Parallel()
	for model, want := range map[string]string{
		"anthropic.claude-3-5-sonnet-20240620-v1:0":                     "/model/anthropic.claude-3-5-sonnet-20240620-v1%3A0/converse",
		"arn:aws:bedrock:eu-west-1:1:application-inference-profile/a b": "/model/arn%3Aaws%3Abedrock%3Aeu-west-1%3A1%3Aapplication-inference-profile%2Fa%20b/converse",
	} {
		c := &hub.Call{Prompt: []hub.Message{text(hub.User, "hi")}}
		out, _, err := New().WriteCall(c, &hub.Target{Model: model})
		if err != nil || out.Path != want {
			t.Errorf("%s: %+v, %v; want %s", model, out, err, want)
		}
		c.Stream = true
		out, _, err = New().WriteCall(c, &hub.Target{Model: model})
		if err != nil || out.Path != want+"-stream" || out.Head.Get("Accept") != "application/vnd.amazon.eventstream" {
			t.Errorf("%s: %+v, %v", model, out, err)
		}
	}
}

func TestWriteCall_Conversation(t *testing.T) {
	t.Parallel()
	c := &hub.Call{
		Prompt: []hub.Message{
			text(hub.System, "one"), text(hub.System, "two"),
			text(hub.User, "a", " "), text(hub.User, "b"),
			{Role: hub.Assistant, Parts: []hub.Part{
				{Kind: hub.ReasoningPart, Text: "hm", Options: option("bedrock", "signature", "s1")},
				{Kind: hub.ReasoningPart, Text: "hm", Options: option("anthropic", "signature", "s2")},
				{Kind: hub.ReasoningPart, Options: option("bedrock", "redactedData", "cmVk")},
				{Kind: hub.ReasoningPart, Text: "foreign", Options: option("openai", "itemId", "x")},
				call("x:1", `{"a":1}`), call("y", ""), call("z", "[1"), call(strings.Repeat("l", 65), "{}"),
			}},
			text(hub.User, "wait"),
			result("x:1", hub.ToolOutput{Kind: hub.OutputText, Text: "r1"}),
			result("y", hub.ToolOutput{Kind: hub.OutputJSON, JSON: json.RawMessage(`{"r":2}`)}),
			result("z", hub.ToolOutput{Kind: hub.OutputErrorJSON, JSON: json.RawMessage(`[3]`)}),
			result(strings.Repeat("l", 65), hub.ToolOutput{Kind: hub.OutputContent, Content: []hub.Part{
				{Kind: hub.TextPart, Text: "r4"}, {Kind: hub.FilePart, File: &hub.File{MediaType: "image/png", Data: []byte("img")}},
			}}),
			text(hub.System, "hurry"),
			text(hub.Assistant, "So: "),
		},
		Tools:         []hub.Tool{{Name: "f", Description: "d", InputSchema: json.RawMessage(`{"type":"object","properties":{"z":{},"a":{}}}`)}, {Name: "g"}},
		StopSequences: []string{"END"}, MaxOutputTokens: hub.N(100),
	}
	body, warnings := writeCall(t, c, claudeModel)
	expect(t, body, "system", `[{"text":"one"},{"text":"two"}]`)
	expect(t, body, "messages.0", `{"role":"user","content":[{"text":"a"},{"text":"b"}]}`)
	long := "call_" + body.Get("messages.1.content.6.toolUse.toolUseId").Str[len("call_"):]
	expect(t, body, "messages.1.content", `[{"reasoningContent":{"reasoningText":{"text":"hm","signature":"s1"}}},{"reasoningContent":{"reasoningText":{"text":"hm","signature":"s2"}}},`+
		`{"reasoningContent":{"redactedContent":"cmVk"}},{"toolUse":{"toolUseId":"x_1","name":"f","input":{"a":1}}},{"toolUse":{"toolUseId":"y","name":"f","input":{}}},`+
		`{"toolUse":{"toolUseId":"z","name":"f","input":{"invalid_input":"[1"}}},{"toolUse":{"toolUseId":"`+long+`","name":"f","input":{}}}]`)
	expect(t, body, "messages.2.content", `[{"toolResult":{"toolUseId":"x_1","content":[{"text":"r1"}]}},{"toolResult":{"toolUseId":"y","content":[{"json":{"r":2}}]}},`+
		`{"toolResult":{"toolUseId":"z","content":[{"text":"[3]"}],"status":"error"}},`+
		`{"toolResult":{"toolUseId":"`+long+`","content":[{"text":"r4"},{"image":{"format":"png","source":{"bytes":"aW1n"}}}]}},{"text":"wait"},{"text":"<system>\nhurry\n</system>"}]`)
	expect(t, body, "messages.3.content", `[{"text":"So:"}]`)
	expect(t, body, "inferenceConfig", `{"maxTokens":100,"stopSequences":["END"]}`)
	expect(t, body, "toolConfig", `{"tools":[{"toolSpec":{"name":"f","description":"d","inputSchema":{"json":{"type":"object","properties":{"z":{},"a":{}}}}}},{"toolSpec":{"name":"g","inputSchema":{"json":{"type":"object","properties":{}}}}}]}`)
	if features(warnings) != "reasoning prompt" {
		t.Errorf("warnings: %v", warnings)
	}
	if len(long) > 64 {
		t.Errorf("an id of %d characters", len(long))
	}
}

func TestWriteCall_Files(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		file hub.File
		want string // empty for an error
	}{
		{hub.File{MediaType: "image/*", Data: []byte("\x89PNG\x0d\x0a\x1a\x0a")}, `{"image":{"format":"png","source":{"bytes":"iVBORw0KGgo="}}}`},
		{hub.File{MediaType: "application/pdf", Data: []byte("%PDF"), Name: "My report_2.v1.pdf"}, `{"document":{"format":"pdf","name":"My report 2","source":{"bytes":"JVBERg=="}}}`},
		{hub.File{MediaType: "text/csv", Data: []byte("a,b")}, `{"document":{"format":"csv","name":"document-1","source":{"bytes":"YSxi"}}}`},
		{hub.File{MediaType: "application/json", Data: []byte("{}")}, `{"document":{"format":"txt","name":"document-1","source":{"bytes":"e30="}}}`},
		{hub.File{MediaType: "text/plain", Text: "t"}, `{"document":{"format":"txt","name":"document-1","source":{"bytes":"dA=="}}}`},
		{hub.File{MediaType: "video/mp4", Reference: map[string]string{"bedrock": "s3://b/v.mp4"}}, `{"video":{"format":"mp4","source":{"s3Location":{"uri":"s3://b/v.mp4"}}}}`},
		{hub.File{MediaType: "image/png", URL: "https://a.example"}, ""},
		{hub.File{MediaType: "image/png", Reference: map[string]string{"openai": "f"}}, ""},
		{hub.File{MediaType: "audio/wav", Data: []byte("x")}, ""},
	} {
		call := &hub.Call{Prompt: []hub.Message{{Role: hub.User, Parts: []hub.Part{{Kind: hub.FilePart, File: &c.file}}}}}
		out, _, err := New().WriteCall(call, nova)
		var e *hub.Error
		switch {
		case c.want == "":
			if !errors.As(err, &e) || e.Kind != hub.BadRequest || e.Param != "prompt" {
				t.Errorf("%+v: %v", c.file, err)
			}
		case err != nil || gjson.GetBytes(out.Body, "messages.0.content.0").Raw != c.want:
			t.Errorf("%+v: %s, %v; want %s", c.file, out.Body, err, c.want)
		}
	}
}

func TestWriteCall_ToolChoice(t *testing.T) {
	t.Parallel()
	no := false
	prompt := []hub.Message{text(hub.User, "hi")}
	used := append(prompt, hub.Message{Role: hub.Assistant, Parts: []hub.Part{call("a", "{}")}}, result("a", hub.ToolOutput{Kind: hub.OutputText, Text: "r"}))
	tools := []hub.Tool{{Name: "f"}}
	for name, c := range map[string]struct {
		call          hub.Call
		target        *hub.Target
		choice, extra string
		tools         int64
		warnings      string
	}{
		"default":                 {hub.Call{Prompt: prompt, Tools: tools}, llama, "", "", 1, ""},
		"auto":                    {hub.Call{Prompt: prompt, Tools: tools, ToolChoice: hub.ToolChoice{Mode: hub.ToolAuto}}, llama, `{"auto":{}}`, "", 1, ""},
		"required":                {hub.Call{Prompt: prompt, Tools: tools, ToolChoice: hub.ToolChoice{Mode: hub.ToolRequired}}, llama, `{"any":{}}`, "", 1, ""},
		"named":                   {hub.Call{Prompt: prompt, Tools: tools, ToolChoice: hub.ToolChoice{Mode: hub.ToolNamed, Tool: "f"}}, llama, `{"tool":{"name":"f"}}`, "", 1, ""},
		"none":                    {hub.Call{Prompt: prompt, Tools: tools, ToolChoice: hub.ToolChoice{Mode: hub.ToolNone}}, llama, "", "", 0, ""},
		"none, but they are used": {hub.Call{Prompt: used, Tools: tools, ToolChoice: hub.ToolChoice{Mode: hub.ToolNone}}, llama, "", "", 1, "toolChoice"},
		"used, but not given":     {hub.Call{Prompt: used}, llama, "", "", 1, "tools"},
		"one at a time":           {hub.Call{Prompt: prompt, Tools: tools, ParallelTools: &no}, claudeModel, "", `{"disable_parallel_tool_use":true,"type":"auto"}`, 1, ""},
		"one at a time, named":    {hub.Call{Prompt: prompt, Tools: tools, ParallelTools: &no, ToolChoice: hub.ToolChoice{Mode: hub.ToolNamed, Tool: "f"}}, claudeModel, "", `{"disable_parallel_tool_use":true,"name":"f","type":"tool"}`, 1, ""},
		"one at a time elsewhere": {hub.Call{Prompt: prompt, Tools: tools, ParallelTools: &no}, llama, "", "", 1, "parallelTools"},
		"required while thinking": {hub.Call{Prompt: prompt, Tools: tools, Effort: hub.EffortLow, ToolChoice: hub.ToolChoice{Mode: hub.ToolRequired}}, claudeModel, "", "", 1, "toolChoice"},
	} {
		body, warnings := writeCall(t, &c.call, c.target)
		if got := body.Get("toolConfig.toolChoice").Raw; got != c.choice {
			t.Errorf("%s: choice %s", name, got)
		}
		if got := body.Get("additionalModelRequestFields.tool_choice").Raw; got != c.extra {
			t.Errorf("%s: extra %s", name, got)
		}
		if got := body.Get("toolConfig.tools.#").Int(); got != c.tools || features(warnings) != c.warnings {
			t.Errorf("%s: %d tools, %v", name, got, warnings)
		}
	}
	for _, tool := range []hub.Tool{{Name: "a.b"}, {Name: strings.Repeat("a", 65)}, {Name: "w", ProviderID: "anthropic.web_search_20250305"}, {Name: "f", InputSchema: json.RawMessage("1")}} {
		var e *hub.Error
		if _, _, err := New().WriteCall(&hub.Call{Prompt: prompt, Tools: []hub.Tool{tool}}, llama); !errors.As(err, &e) || e.Kind != hub.BadRequest || e.Param != "tools" {
			t.Errorf("%+v: %v", tool, err)
		}
	}
}

func TestWriteCall_Thinking(t *testing.T) {
	t.Parallel()
	prompt := []hub.Message{text(hub.User, "hi")}
	temperature, k := 0.5, 40.0
	c := hub.Call{Prompt: prompt, Effort: hub.EffortMedium, MaxOutputTokens: hub.N(10000), Sampling: hub.Sampling{Temperature: &temperature, TopK: &k}}
	for _, test := range []struct {
		target   *hub.Target
		more     string
		sampling string
		warnings string
	}{
		{claudeModel, `{"thinking":{"type":"enabled","budget_tokens":3000}}`, "", "temperature topK"},
		{opus5, `{"output_config":{"effort":"medium"},"thinking":{"type":"adaptive"}}`, "", "temperature topK"},
		{&hub.Target{Model: "openai.gpt-oss-120b-1:0"}, `{"reasoning_effort":"medium"}`, "0.5", "topK"},
		{nova, `{"inferenceConfig":{"topK":40},"reasoningConfig":{"maxReasoningEffort":"medium","type":"enabled"}}`, "0.5", ""},
		{llama, "", "0.5", "reasoning topK"},
		{&hub.Target{Model: old.Model}, `{"top_k":40}`, "0.5", "reasoning"},
	} {
		body, warnings := writeCall(t, &c, test.target)
		expect(t, body, "additionalModelRequestFields", test.more)
		expect(t, body, "inferenceConfig.temperature", test.sampling)
		if features(warnings) != test.warnings {
			t.Errorf("%s: %v", test.target.Model, warnings)
		}
	}
	own := hub.Call{Prompt: prompt, Options: option("bedrock", "reasoningConfig", map[string]any{"type": "enabled", "budgetTokens": 2000})}
	body, _ := writeCall(t, &own, claudeModel)
	expect(t, body, "additionalModelRequestFields.thinking", `{"type":"enabled","budget_tokens":2000}`)
	expect(t, body, "inferenceConfig.maxTokens", "64000")
}

func TestWriteCall_Format(t *testing.T) {
	t.Parallel()
	c := &hub.Call{Prompt: []hub.Message{text(hub.User, "hi")}, Effort: hub.EffortLow, Format: &hub.Format{Schema: json.RawMessage(`{"type":"object","properties":{"a":{"type":"integer","minimum":1}}}`)}}
	body, warnings := writeCall(t, c, &hub.Target{Provider: "bedrock", Model: "anthropic.claude-opus-4-6-v1:0", MaxOutput: 128000})
	expect(t, body, "additionalModelRequestFields.output_config", `{"effort":"low","format":{"schema":{"type":"object","properties":{"a":{"type":"integer","description":"{minimum: 1}"}},"additionalProperties":false},"type":"json_schema"}}`)
	expect(t, body, "toolConfig", "")
	if features(warnings) != "responseFormat" {
		t.Error(warnings)
	}
	// Bedrock refuses output_config.format for newer models.
	body, _ = writeCall(t, c, opus5)
	expect(t, body, "additionalModelRequestFields.output_config", "")
	expect(t, body, "toolConfig.toolChoice", `{"tool":{"name":"`+hub.AnswerTool+`"}}`)
	c.Format.Schema = json.RawMessage(`{"type":"object"}`)
	body, warnings = writeCall(t, c, claudeModel)
	expect(t, body, "toolConfig.toolChoice", `{"tool":{"name":"`+hub.AnswerTool+`"}}`)
	expect(t, body, "toolConfig.tools.0.toolSpec.inputSchema.json", `{"type":"object"}`)
	if features(warnings) != "reasoning" {
		t.Error(warnings)
	}
	c.Tools = []hub.Tool{{Name: "f"}}
	body, _ = writeCall(t, c, llama)
	expect(t, body, "toolConfig.toolChoice", `{"any":{}}`)
	c.Format.Schema = json.RawMessage(`{"type":"array"}`)
	var e *hub.Error
	if _, _, err := New().WriteCall(c, llama); !errors.As(err, &e) || e.Kind != hub.BadRequest {
		t.Errorf("%v", err)
	}
}

func TestWriteCall_CachePoints(t *testing.T) {
	t.Parallel()
	anthropicMark := option("anthropic", "cacheControl", map[string]string{"type": "ephemeral", "ttl": "1h"})
	ownMark := option("bedrock", "cachePoint", map[string]string{"type": "default"})
	c := &hub.Call{
		Tools: []hub.Tool{{Name: "f", Options: ownMark}},
		Prompt: []hub.Message{
			{Role: hub.System, Parts: []hub.Part{{Kind: hub.TextPart, Text: "s", Options: anthropicMark}, {Kind: hub.TextPart, Text: "t"}}},
			{Role: hub.User, Parts: []hub.Part{{Kind: hub.TextPart, Text: "u"}}, Options: ownMark},
		},
	}
	body, warnings := writeCall(t, c, claudeModel)
	expect(t, body, "toolConfig.tools.1", `{"cachePoint":{"type":"default"}}`)
	expect(t, body, "system", `[{"text":"s"},{"cachePoint":{"type":"default","ttl":"1h"}},{"text":"t"}]`)
	expect(t, body, "messages.0.content", `[{"text":"u"},{"cachePoint":{"type":"default"}}]`)
	if len(warnings) > 0 {
		t.Error(warnings)
	}
	body, warnings = writeCall(t, c, llama)
	if strings.Contains(body.Raw, "cachePoint") || features(warnings) != "cachePoint cachePoint cachePoint" {
		t.Errorf("%s %v", body.Raw, warnings)
	}
	for range 3 {
		c.Prompt = append(c.Prompt, hub.Message{Role: hub.User, Parts: []hub.Part{{Kind: hub.TextPart, Text: "x", Options: ownMark}}})
	}
	body, warnings = writeCall(t, c, claudeModel)
	if strings.Count(body.Raw, "cachePoint") != 4 || features(warnings) != "cachePoint cachePoint" {
		t.Errorf("%s %v", body.Raw, warnings)
	}
}

func TestWriteCall_Options(t *testing.T) {
	t.Parallel()
	var o hub.Options
	o.Set("bedrock", "guardrailConfig", map[string]string{"guardrailIdentifier": "g"})
	o.Set("bedrock", "additionalModelRequestFields", map[string]int{"x": 1})
	o.Set("bedrock", "anthropicBeta", []string{"b"})
	o.Set("bedrock", "unheard", 1)
	p := 0.1
	c := &hub.Call{Prompt: []hub.Message{text(hub.User, "hi")}, Options: o, ServiceTier: "flex", User: "u", Sampling: hub.Sampling{PresencePenalty: &p, FrequencyPenalty: &p, Seed: hub.N(1)}}
	body, warnings := writeCall(t, c, old)
	expect(t, body, "guardrailConfig", `{"guardrailIdentifier":"g"}`)
	expect(t, body, "serviceTier", `{"type":"flex"}`)
	expect(t, body, "additionalModelRequestFields", `{"anthropic_beta":["b"],"x":1}`)
	expect(t, body, "additionalModelResponseFieldPaths", `["/stop_sequence"]`)
	if features(warnings) != "presencePenalty frequencyPenalty seed user providerOptions.bedrock.unheard" {
		t.Error(warnings)
	}
	var e *hub.Error
	if _, _, err := New().WriteCall(&hub.Call{Prompt: []hub.Message{text(hub.System, "s")}}, old); !errors.As(err, &e) || e.Kind != hub.BadRequest {
		t.Errorf("no message: %v", err)
	}
}

// For any call, roles alternate, tool results come first, and every call has its result
// under the same id.
func TestWriteCall_Properties(t *testing.T) {
	t.Parallel()
	seedtest.Check(t, func(rt *rapid.T) {
		c := &hub.Call{}
		id := rapid.StringMatching(`[a-z:|_]{1,80}`)
		var ids []string
		for range rapid.IntRange(1, 8).Draw(rt, "messages") {
			switch rapid.IntRange(0, 3).Draw(rt, "role") {
			case 0:
				c.Prompt = append(c.Prompt, text(hub.User, rapid.StringN(0, 5, 20).Draw(rt, "text")))
			case 1:
				c.Prompt = append(c.Prompt, text(hub.System, "s"))
			case 2:
				next := fmt.Sprintf("%s%d", id.Draw(rt, "id"), len(ids))
				ids = append(ids, next)
				c.Prompt = append(c.Prompt, hub.Message{Role: hub.Assistant, Parts: []hub.Part{call(next, "{}")}})
			case 3:
				if len(ids) > 0 {
					c.Prompt = append(c.Prompt, result(ids[len(ids)-1], hub.ToolOutput{Kind: hub.OutputText, Text: rapid.String().Draw(rt, "output")}))
				}
			}
		}
		before := fmt.Sprintf("%+v", c.Prompt)
		out, _, err := New().WriteCall(c, claudeModel)
		if err != nil {
			var e *hub.Error
			if !errors.As(err, &e) {
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
				if u := b.Get("toolUse.toolUseId").Str; u != "" {
					if called[u] || len(u) > 64 {
						rt.Fatalf("the id %s: %s", u, out.Body)
					}
					called[u] = true
				}
				if r := b.Get("toolResult"); r.Exists() {
					if others || !called[r.Get("toolUseId").Str] {
						rt.Fatalf("a result out of place: %s", out.Body)
					}
				} else {
					others = true
				}
			}
		}
		again, _, err := New().WriteCall(c, claudeModel)
		if err != nil || !reflect.DeepEqual(again, out) {
			rt.Fatal("written twice it differs")
		}
	})
}

// An empty user message is dropped with a warning, and the conversation still begins with
// the user.
func TestWriteCall_EmptyMessage(t *testing.T) {
	t.Parallel()
	c := &hub.Call{Prompt: []hub.Message{text(hub.User, ""), text(hub.Assistant, "a"), text(hub.User, "b"), text(hub.User, "")}}
	body, warnings := writeCall(t, c, claudeModel)
	expect(t, body, "messages", `[{"role":"user","content":[{"text":"(empty message)"}]},{"role":"assistant","content":[{"text":"a"}]},{"role":"user","content":[{"text":"b"}]}]`)
	if features(warnings) != "prompt prompt prompt" {
		t.Errorf("%v", warnings)
	}
}
