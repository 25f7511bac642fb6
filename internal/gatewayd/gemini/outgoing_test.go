package gemini

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/seedtest"
)

func say(role hub.Role, parts ...hub.Part) hub.Message { return hub.Message{Role: role, Parts: parts} }

func text(s string) hub.Part { return hub.Part{Kind: hub.TextPart, Text: s} }

func call(id, name, input string) hub.Part {
	return hub.Part{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: id, Name: name, Input: input}}
}

func result(id string, o hub.ToolOutput) hub.Part {
	return hub.Part{Kind: hub.ToolResultPart, Result: &hub.ToolResult{CallID: id, Output: o}}
}

// written returns the body of a call, and the warnings.
func written(t *testing.T, c *hub.Call, target *hub.Target) (map[string]json.RawMessage, string) {
	t.Helper()
	out, warnings, err := New().WriteCall(c, target)
	if err != nil {
		t.Fatal(err)
	}
	var body map[string]json.RawMessage
	if err := json.Unmarshal(out.Body, &body); err != nil {
		t.Fatal(err)
	}
	var features []string
	for _, w := range warnings {
		features = append(features, w.Feature)
	}
	return body, strings.Join(features, " ")
}

func TestWriteCall_path(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		model  string
		stream bool
		want   string
	}{
		{"gemini-3-pro", false, "/models/gemini-3-pro:generateContent"},
		{"gemini-3-pro", true, "/models/gemini-3-pro:streamGenerateContent?alt=sse"},
		{"tunedModels/mine-1", false, "/tunedModels/mine-1:generateContent"},
		{"a?b#c", false, "/models/a%3Fb%23c:generateContent"},
		{"../../x", false, "/%2E%2E/%2E%2E/x:generateContent"},
	} {
		out, _, err := New().WriteCall(&hub.Call{Stream: c.stream}, &hub.Target{Model: c.model})
		if err != nil || out.Path != c.want {
			t.Errorf("%s: %s, %v", c.model, out.Path, err)
		}
	}
}

func TestWriteCall_settings(t *testing.T) {
	t.Parallel()
	half, tokens, no := 0.5, int64(100), false
	c := &hub.Call{
		Prompt:          []hub.Message{say(hub.System, text("be")), say(hub.User, text("hi")), say(hub.System, text("brief"))},
		MaxOutputTokens: &tokens, Sampling: hub.Sampling{Temperature: &half, TopP: &half, TopK: &half, PresencePenalty: &half, FrequencyPenalty: &half, Seed: &tokens},
		StopSequences: []string{"x"}, Format: &hub.Format{Schema: json.RawMessage(`{"$schema":"s","type":"object","properties":{"a":{"const":1}}}`)},
		Effort: hub.EffortHigh, ParallelTools: &no, User: "u", ServiceTier: "flex",
		Tools: []hub.Tool{
			{Name: "f", Description: "d", InputSchema: json.RawMessage(`{"type":"object","properties":{"a":{"oneOf":[{"type":"string"}]}}}`)},
			{Name: "s", ProviderID: "google.google_search"},
			{Name: "r", ProviderID: "google.vertex_rag_store", Args: json.RawMessage(`{"ragCorpus":"c","topK":3}`)},
		},
		ToolChoice: hub.ToolChoice{Mode: hub.ToolNamed, Tool: "f"},
	}
	c.Options.Set("google", "safetySettings", []int{})
	c.Options.Set("google", "responseModalities", []string{"TEXT"})
	c.Options.Set("google", "thinkingConfig", object{"includeThoughts": false})
	c.Options.Set("google", "unheardOf", 1)
	body, warned := written(t, c, third)
	for name, want := range map[string]string{
		"contents":          `[{"role":"user","parts":[{"text":"hi"}]}]`,
		"systemInstruction": `{"parts":[{"text":"be"},{"text":"brief"}]}`,
		"generationConfig": `{"frequencyPenalty":0.5,"maxOutputTokens":100,"presencePenalty":0.5,"responseJsonSchema":{"type":"object","properties":{"a":{"enum":[1]}}},` +
			`"responseMimeType":"application/json","responseModalities":["TEXT"],"seed":100,"stopSequences":["x"],"temperature":0.5,` +
			`"thinkingConfig":{"includeThoughts":false,"thinkingLevel":"high"},"topK":0.5,"topP":0.5}`,
		"tools": `[{"googleSearch":{}},{"retrieval":{"vertexRagStore":{"ragResources":[{"ragCorpus":"c"}],"similarityTopK":3}}},` +
			`{"functionDeclarations":[{"description":"d","name":"f","parametersJsonSchema":{"type":"object","properties":{"a":{"anyOf":[{"type":"string"}]}}}}]}]`,
		"toolConfig":     `{"functionCallingConfig":{"allowedFunctionNames":["f"],"mode":"ANY"}}`,
		"safetySettings": `[]`, "serviceTier": `"flex"`,
	} {
		if got := string(body[name]); got != want {
			t.Errorf("%s is\n%s, want\n%s", name, got, want)
		}
	}
	if warned != "parallelToolCalls user providerOptions.google.unheardOf system" {
		t.Errorf("warnings: %s", warned)
	}
	out, _, err := New().WriteCall(&hub.Call{ServiceTier: "priority"}, vertex)
	if err != nil || out.Head.Get("X-Vertex-AI-LLM-Shared-Request-Type") != "priority" || strings.Contains(string(out.Body), "priority") {
		t.Errorf("%v %s", out.Head, out.Body)
	}
}

func TestWriteCall_thinking(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		model  string
		effort hub.Effort
		budget int64
		want   string
		warned bool
	}{
		{"gemini-3-pro", hub.EffortNone, 0, `{"includeThoughts":true,"thinkingLevel":"low"}`, true},
		{"gemini-3-pro", hub.EffortMedium, 0, `{"includeThoughts":true,"thinkingLevel":"high"}`, true},
		{"gemini-3.1-pro-preview", hub.EffortMedium, 0, `{"includeThoughts":true,"thinkingLevel":"medium"}`, false},
		{"gemini-3-flash", hub.EffortMinimal, 0, `{"includeThoughts":true,"thinkingLevel":"minimal"}`, false},
		{"gemini-3-flash", hub.EffortMax, 0, `{"includeThoughts":true,"thinkingLevel":"high"}`, true},
		{"gemini-3-flash", "", 5, `{"includeThoughts":true,"thinkingBudget":5}`, false},
		{"gemini-2.5-pro", hub.EffortNone, 0, `{"includeThoughts":true,"thinkingBudget":128}`, true},
		{"gemini-2.5-pro", hub.EffortHigh, 0, `{"includeThoughts":true,"thinkingBudget":19660}`, false},
		{"gemini-2.5-pro", "", 1 << 20, `{"includeThoughts":true,"thinkingBudget":32768}`, true},
		{"gemini-2.5-flash", hub.EffortNone, 0, `{"includeThoughts":false,"thinkingBudget":0}`, false},
		{"gemini-2.5-flash-lite", hub.EffortMinimal, 0, `{"includeThoughts":true,"thinkingBudget":512}`, false},
		{"gemini-flash-latest", hub.EffortLow, 0, `{"includeThoughts":true,"thinkingBudget":2457}`, false},
		{"gemini-2.0-flash", hub.EffortLow, 0, ``, true},
		{"gemini-2.5-pro", "", 0, ``, false},
	} {
		q := &hub.Call{Effort: c.effort}
		if c.budget > 0 {
			q.ThinkingBudget = &c.budget
		}
		body, warned := written(t, q, &hub.Target{Provider: "google", Model: c.model})
		var g struct{ ThinkingConfig json.RawMessage }
		if len(body["generationConfig"]) > 0 {
			if err := json.Unmarshal(body["generationConfig"], &g); err != nil {
				t.Fatal(err)
			}
		}
		if string(g.ThinkingConfig) != c.want || (warned != "") != c.warned {
			t.Errorf("%s %s %d: %s, warned of %q", c.model, c.effort, c.budget, g.ThinkingConfig, warned)
		}
	}
}

// TestWriteCall_conversation writes a tool loop with Google's calls, with and without
// ids, and results of all kinds.
func TestWriteCall_conversation(t *testing.T) {
	t.Parallel()
	one, two := call("call_1", "f", `{"a":1}`), call("g2", "g", "")
	one.Options.Set("google", "thoughtSignature", "s")
	two.Options.Set("google", "id", "g2")
	image := hub.Part{Kind: hub.FilePart, File: &hub.File{MediaType: "image/png", Data: []byte("png")}}
	c := &hub.Call{Prompt: []hub.Message{
		say(hub.User, text("hi"), hub.Part{Kind: hub.FilePart, File: &hub.File{MediaType: "image/*", URL: "https://x/a.webp?b"}}, hub.Part{Kind: hub.FilePart, File: &hub.File{MediaType: "application/pdf", Data: []byte("pdf")}}),
		say(hub.Assistant, one, two, call("call_3", "h", `"no object"`)),
		say(hub.ToolRole, result("call_1", hub.ToolOutput{Kind: hub.OutputText, Text: "ok"}), result("g2", hub.ToolOutput{Kind: hub.OutputErrorJSON, JSON: json.RawMessage(`{"e":1}`)})),
		say(hub.ToolRole, result("call_3", hub.ToolOutput{Kind: hub.OutputContent, Content: []hub.Part{text("see"), image}})),
		say(hub.User, text("so?")),
	}}
	model := `{"role":"user","parts":[{"text":"hi"},{"fileData":{"fileUri":"https://x/a.webp?b","mimeType":"image/webp"}},{"inlineData":{"data":"cGRm","mimeType":"application/pdf"}}]},` +
		`{"role":"model","parts":[{"functionCall":{"args":{"a":1},"name":"f"},"thoughtSignature":"s"},{"functionCall":{"args":{},"id":"g2","name":"g"}},{"functionCall":{"args":{"input":"no object"},"name":"h"}}]},` +
		`{"role":"user","parts":[{"functionResponse":{"name":"f","response":{"output":"ok"}}},{"functionResponse":{"id":"g2","name":"g","response":{"error":{"e":1}}}},`
	for target, want := range map[*hub.Target]string{
		third:  "[" + model + `{"functionResponse":{"name":"h","parts":[{"inlineData":{"data":"cG5n","mimeType":"image/png"}}],"response":{"output":"see"}}},{"text":"so?"}]}]`,
		studio: "[" + model + `{"functionResponse":{"name":"h","response":{"output":"see"}}},{"inlineData":{"data":"cG5n","mimeType":"image/png"}},{"text":"so?"}]}]`,
	} {
		body, warned := written(t, c, target)
		if got := string(body["contents"]); got != want || warned != "" {
			t.Errorf("%s:\n got %s\nwant %s\nwarned of %s", target.Model, got, want, warned)
		}
	}
}

// TestWriteCall_foreign writes a conversation begun with another provider.
func TestWriteCall_foreign(t *testing.T) {
	t.Parallel()
	thought := hub.Part{Kind: hub.ReasoningPart, Text: "so"}
	thought.Options.Set("anthropic", "signature", "s")
	hosted := call("srv", "web_search", `{"q":1}`)
	hosted.Call.ProviderExecuted = true
	lost := call("lost", "fetch", `{}`)
	lost.Call.ProviderExecuted = true
	found := result("srv", hub.ToolOutput{Kind: hub.OutputJSON, JSON: json.RawMessage(`[1]`)})
	found.Result.ProviderExecuted = true
	c := &hub.Call{Prompt: []hub.Message{
		say(hub.Assistant, thought, hosted, found, lost, text("found"), call("c", "f", `{}`), call("d", "f", `{}`)),
		say(hub.ToolRole, result("c", hub.ToolOutput{Kind: hub.OutputDenied}), result("d", hub.ToolOutput{Kind: hub.OutputErrorText, Text: "oh"})),
	}}
	body, warned := written(t, c, third)
	want := `[{"role":"model","parts":[{"functionCall":{"args":{"q":1},"name":"web_search"},"thoughtSignature":"skip_thought_signature_validator"}]},` +
		`{"role":"user","parts":[{"functionResponse":{"name":"web_search","response":{"output":[1]}}}]},` +
		`{"role":"model","parts":[{"text":"found"},{"functionCall":{"args":{},"name":"f"},"thoughtSignature":"skip_thought_signature_validator"},{"functionCall":{"args":{},"name":"f"}}]},` +
		`{"role":"user","parts":[{"functionResponse":{"name":"f","response":{"error":"The tool was not run: it was denied."}}},{"functionResponse":{"name":"f","response":{"error":"oh"}}}]}]`
	if got := string(body["contents"]); got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
	if warned != "reasoning reasoning tools.web_search tools.fetch" {
		t.Errorf("warnings: %s", warned)
	}
	if body, _ := written(t, c, studio); strings.Contains(string(body["contents"]), "thoughtSignature") {
		t.Errorf("models before version 3 need no signature: %s", body["contents"])
	}
}

func TestWriteCall_gemma(t *testing.T) {
	t.Parallel()
	body, warned := written(t, &hub.Call{Prompt: []hub.Message{say(hub.System, text("be")), say(hub.User, text("hi"))}}, &hub.Target{Model: "gemma-3-27b-it"})
	if got := string(body["contents"]); got != `[{"role":"user","parts":[{"text":"be"},{"text":"hi"}]}]` || body["systemInstruction"] != nil || warned != "system" {
		t.Errorf("%s %s, warned of %s", got, body["systemInstruction"], warned)
	}
}

func TestWriteCall_refused(t *testing.T) {
	t.Parallel()
	openAPI := &hub.Target{Provider: "google", Model: "m", Quirks: map[string]bool{QuirkOpenAPISchema: true}}
	for _, c := range []struct {
		call   hub.Call
		target *hub.Target
		want   string
	}{
		{hub.Call{Tools: []hub.Tool{{ProviderID: "openai.web_search"}}}, studio, "the tool openai.web_search is not one that google has"},
		{hub.Call{Prompt: []hub.Message{say(hub.ToolRole, result("x", hub.ToolOutput{}))}}, studio, `the result of the tool call "x" has no tool name, and there is no such call before it`},
		{hub.Call{Prompt: []hub.Message{say(hub.User, hub.Part{Kind: hub.FilePart, File: &hub.File{Reference: map[string]string{"openai": "f"}}})}}, studio, "a file was uploaded to another provider than google"},
		{hub.Call{Tools: []hub.Tool{{Name: "f", InputSchema: json.RawMessage(`[]`)}}}, studio, "tools.f.inputSchema is not a JSON Schema, which is an object"},
		{hub.Call{Format: &hub.Format{Schema: json.RawMessage(`{"$ref":"#"}`)}}, openAPI, "responseFormat.schema refers to itself at #, which this model does not know"},
		{hub.Call{Format: &hub.Format{Schema: json.RawMessage(`{"$ref":"#/$defs/x"}`)}}, openAPI, "responseFormat.schema has the reference #/$defs/x, which is to nothing in it"},
	} {
		_, _, err := New().WriteCall(&c.call, c.target)
		var e *hub.Error
		if !errors.As(err, &e) || e.Kind != hub.BadRequest || e.Message != c.want {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

func TestOpenAPISchema(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, in, want string }{
		{"types", `{"$schema":"s","type":"object","additionalProperties":false,"required":["a"],"properties":{"a":{"type":"string","minLength":1},"b":{"type":["integer","null"]},"c":{"type":["string","number"]}}}`,
			`{"properties":{"a":{"minLength":1,"type":"STRING"},"b":{"nullable":true,"type":"INTEGER"},"c":{"anyOf":[{"type":"STRING"},{"type":"NUMBER"}]}},"required":["a"],"type":"OBJECT"}`},
		{"references", `{"type":"object","properties":{"a":{"$ref":"#/$defs/x~1y","description":"d"}},"$defs":{"x/y":{"type":"array","items":{"$ref":"#/$defs/z"}},"z":{"type":"boolean"}}}`,
			`{"properties":{"a":{"description":"d","items":{"type":"BOOLEAN"},"type":"ARRAY"}},"type":"OBJECT"}`},
		{"const and enum", `{"properties":{"a":{"const":"x"},"b":{"enum":["x",null]},"c":{"type":"integer","enum":[1,2],"description":"n."}}}`,
			`{"properties":{"a":{"enum":["x"],"type":"STRING"},"b":{"enum":["x"],"nullable":true,"type":"STRING"},"c":{"description":"n. One of: [1,2]","type":"INTEGER"}},"type":"OBJECT"}`},
		{"unions", `{"properties":{"a":{"anyOf":[{"type":"string"},{"type":"null"}]},"b":{"oneOf":[{"type":"string"},{"type":"object","properties":{}}]}}}`,
			`{"properties":{"a":{"nullable":true,"type":"STRING"},"b":{"anyOf":[{"type":"STRING"},{"properties":{},"type":"OBJECT"}]}},"type":"OBJECT"}`},
		{"allOf", `{"allOf":[{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]},{"$ref":"#/$defs/b"}],"$defs":{"b":{"properties":{"b":{"type":"number"}},"required":["b"]}}}`,
			`{"properties":{"a":{"type":"STRING"},"b":{"type":"NUMBER"}},"required":["a","b"],"type":"OBJECT"}`},
		{"allOf within allOf", `{"allOf":[{"allOf":[{"type":"object","properties":{"a":{"type":"string"}}}]}]}`, `{"properties":{"a":{"type":"STRING"}},"type":"OBJECT"}`},
		{"tuples", `{"type":"array","prefixItems":[{"type":"string"},{"type":"number"}]}`, `{"items":{"anyOf":[{"type":"STRING"},{"type":"NUMBER"}]},"type":"ARRAY"}`},
		{"nothing", ``, `{"properties":{},"type":"OBJECT"}`},
	} {
		got, err := new(callWriter).openAPISchema(json.RawMessage(c.in), "schema")
		if err != nil || string(got) != c.want {
			t.Errorf("%s:\n got %s, %v\nwant %s", c.name, got, err, c.want)
		}
	}
	// Each level contains the level below twice, which is 2^30 schemas.
	var defs []string
	for i := range 30 {
		defs = append(defs, fmt.Sprintf(`"d%d":{"properties":{"a":{"$ref":"#/$defs/d%d"},"b":{"$ref":"#/$defs/d%d"}}}`, i, i+1, i+1))
	}
	_, err := new(callWriter).openAPISchema(json.RawMessage(`{"$ref":"#/$defs/d0","$defs":{`+strings.Join(defs, ",")+`,"d30":{}}}`), "schema")
	if err == nil || !strings.Contains(err.Error(), "too large") {
		t.Errorf("%v, want that it is too large", err)
	}
	deep := strings.Repeat(`{"items":`, 1000) + `{}` + strings.Repeat(`}`, 1000)
	if _, err := new(callWriter).jsonSchema(json.RawMessage(deep), "schema"); err == nil {
		t.Error("a schema of a thousand levels was taken")
	}
}

func TestCount(t *testing.T) {
	t.Parallel()
	c := &hub.Call{Prompt: []hub.Message{say(hub.System, text("be")), say(hub.User, text("hi"))}, MaxOutputTokens: hub.N(5)}
	inside := `"contents":[{"role":"user","parts":[{"text":"hi"}]}]`
	for target, want := range map[*hub.Target]string{
		studio: `{"generateContentRequest":{` + inside + `,"model":"models/gemini-2.5-pro","systemInstruction":{"parts":[{"text":"be"}]}}}`,
		vertex: `{` + inside + `,"systemInstruction":{"parts":[{"text":"be"}]}}`,
	} {
		out, _, err := New().WriteCount(c, target)
		if err != nil || out.Path != "/models/"+target.Model+":countTokens" || string(out.Body) != want {
			t.Errorf("%s %s, %v", out.Path, out.Body, err)
		}
	}
	if n, err := New().ReadCount(studio, []byte(`{"totalTokens":31}`)); err != nil || n != 31 {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := New().ReadCount(studio, []byte(`{}`)); err == nil {
		t.Error("no count was taken for one")
	}
}

func TestEmbed(t *testing.T) {
	t.Parallel()
	c := &hub.EmbedCall{Values: []string{"a", "b"}, Dimensions: 5, User: "u"}
	c.Options.Set("google", "taskType", "CLUSTERING")
	c.Options.Set("google", "autoTruncate", true)
	text := &hub.Target{Provider: "vertex", Model: "text-embedding-005", Quirks: map[string]bool{QuirkVertex: true}}
	for _, x := range []struct {
		target             *hub.Target
		values             int
		path, body, warned string
	}{
		{studio, 2, "batchEmbedContents", `{"requests":[{"content":{"parts":[{"text":"a"}]},"model":"models/gemini-2.5-pro","outputDimensionality":5,"taskType":"CLUSTERING"},` +
			`{"content":{"parts":[{"text":"b"}]},"model":"models/gemini-2.5-pro","outputDimensionality":5,"taskType":"CLUSTERING"}]}`, "user providerOptions.google.autoTruncate"},
		{studio, 1, "embedContent", `{"content":{"parts":[{"text":"a"}]},"model":"models/gemini-2.5-pro","outputDimensionality":5,"taskType":"CLUSTERING"}`, "user providerOptions.google.autoTruncate"},
		{text, 2, "predict", `{"instances":[{"content":"a","task_type":"CLUSTERING"},{"content":"b","task_type":"CLUSTERING"}],"parameters":{"autoTruncate":true,"outputDimensionality":5}}`, "user"},
	} {
		q := *c
		q.Values = q.Values[:x.values]
		out, warnings, err := WriteEmbedCall(&q, x.target)
		if err != nil {
			t.Fatal(err)
		}
		var features []string
		for _, w := range warnings {
			features = append(features, w.Feature)
		}
		if out.Path != "/models/"+x.target.Model+":"+x.path || string(out.Body) != x.body || strings.Join(features, " ") != x.warned {
			t.Errorf("%s %s %v", out.Path, out.Body, features)
		}
	}
	one := &hub.Target{Model: "gemini-embedding-001", Quirks: map[string]bool{QuirkVertex: true}}
	if _, _, err := WriteEmbedCall(c, one); err == nil {
		t.Error("two values were written where one is the most")
	}
	r, err := ReadEmbedResult(vertex, gatewaytest.Named(t, "google-vertex/google-vertex-embedding").Whole, 2)
	if err != nil || len(r.Vectors) != 2 || len(r.Vectors[1]) != 5 || r.Vectors[0][0] != -0.017999587580561638 || *r.Usage.Input != 11 {
		t.Errorf("%+v, %v", r, err)
	}
	for body, n := range map[string]int{`{"embedding":{"values":[1]}}`: 1, `{"embeddings":[{"values":[1]},{"values":[2]}]}`: 2} {
		if r, err := ReadEmbedResult(studio, []byte(body), n); err != nil || len(r.Vectors) != n || r.Usage != nil {
			t.Errorf("%s: %+v, %v", body, r, err)
		}
		if _, err := ReadEmbedResult(studio, []byte(body), n+1); err == nil {
			t.Errorf("%s: a missing vector was not missed", body)
		}
	}
}

// TestRequests checks the property that all content of a call is in the request:
// gatewaytest's independent parser finds all texts, calls with their results, and
// signatures.
func TestRequests(t *testing.T) {
	t.Parallel()
	words := rapid.StringMatching(`[a-z<>&"\\ äß😀]{1,12}`)
	seedtest.Check(t, func(t *rapid.T) {
		c := &hub.Call{Prompt: []hub.Message{say(hub.User, text(words.Draw(t, "first")))}}
		want := []string{c.Prompt[0].Parts[0].Text}
		for i := range rapid.IntRange(0, 3).Draw(t, "turns") {
			var parts, results []hub.Part
			if rapid.Bool().Draw(t, "said") {
				p := text(words.Draw(t, "text"))
				p.Options.Set(optProvider, optSignature, "t"+words.Draw(t, "signature"))
				parts, want = append(parts, p), append(want, p.Text, p.Options.String(optProvider, optSignature))
			}
			for j := range rapid.IntRange(1, 3).Draw(t, "calls") {
				id := fmt.Sprintf("call_%d_%d", i, j)
				p := call(id, "f"+id, string(hub.MustEncode(object{"a": words.Draw(t, "input")})))
				p.Options.Set(optProvider, optSignature, "c"+words.Draw(t, "signature"))
				out := hub.ToolOutput{Kind: hub.OutputText, Text: words.Draw(t, "output")}
				parts, results = append(parts, p), append(results, result(id, out))
				want = append(want, p.Call.Name, p.Call.Input, p.Options.String(optProvider, optSignature), out.Text)
			}
			c.Prompt = append(c.Prompt, say(hub.Assistant, parts...), say(hub.ToolRole, results...))
		}
		before := hub.MustEncode(c)
		out, warnings, err := New().WriteCall(c, third)
		if err != nil || len(warnings) > 0 {
			t.Fatal(err, warnings)
		}
		if !bytes.Equal(hub.MustEncode(c), before) {
			t.Fatal("WriteCall changed the call")
		}
		var b body
		if err := json.Unmarshal(out.Body, &b); err != nil {
			t.Fatal(err)
		}
		all := make(map[string]int)
		role, calls, results := "", 0, 0
		for _, turn := range b.Contents {
			if turn.Role == role {
				t.Fatalf("two turns of %s", role)
			}
			role = turn.Role
			for _, raw := range turn.Parts {
				p := raw.(object)
				for _, name := range []string{"text", "thoughtSignature"} {
					if s, ok := p[name].(string); ok {
						all[s]++
					}
				}
				if f, ok := p["functionCall"].(object); ok {
					calls++
					all[f["name"].(string)]++
					all[string(hub.MustEncode(f["args"]))]++
				}
				if f, ok := p["functionResponse"].(object); ok {
					results++
					all[f["response"].(object)["output"].(string)]++
				}
			}
		}
		for _, s := range want {
			if all[s]--; all[s] < 0 {
				t.Fatalf("%q is not in %s", s, out.Body)
			}
		}
		if calls != results {
			t.Fatalf("%d calls and %d results", calls, results)
		}
	})
}
