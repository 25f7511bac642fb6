package aisdk

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// head returns the headers of a request in a version.
func head(version string, stream bool) http.Header {
	h := make(http.Header)
	h.Set("ai-language-model-specification-version", version)
	h.Set("ai-language-model-id", "anthropic/claude-sonnet-4.6")
	h.Set("ai-language-model-streaming", fmt.Sprint(stream))
	return h
}

func read(t *testing.T, version, body string) *hub.Call {
	t.Helper()
	c, err := New().ReadCall(head(version, false), []byte(body))
	if err != nil {
		t.Fatalf("version %s: %v\n%s", version, err, body)
	}
	return c
}

// user returns the body of a request with additional members.
func user(more string) string {
	return `{"prompt":[{"role":"user","content":[{"type":"text","text":"hi"}]}]` + more + `}`
}

func TestReadCall_Settings(t *testing.T) {
	t.Parallel()
	yes, no := true, false
	f := func(x float64) *float64 { return &x }
	want := &hub.Call{
		Prompt:          []hub.Message{{Role: hub.User, Parts: []hub.Part{{Kind: hub.TextPart, Text: "hi"}}}},
		MaxOutputTokens: hub.N(100),
		Sampling:        hub.Sampling{Temperature: f(0), TopP: f(0.9), TopK: f(5), PresencePenalty: f(-1.5), FrequencyPenalty: f(1.5), Seed: hub.N(-7)},
		StopSequences:   []string{"a", "\n"},
		Format:          &hub.Format{Schema: json.RawMessage(`{"type":"object"}`), Name: "city", Description: "a city"},
		Tools: []hub.Tool{
			{Name: "weather", Description: "d", InputSchema: json.RawMessage(`{"type":"object","properties":{}}`), Strict: &yes,
				Examples: []json.RawMessage{json.RawMessage(`{"city":"Oslo"}`)}, Options: hub.Options{"anthropic": {"cacheControl": json.RawMessage(`{"type":"ephemeral"}`)}}},
			{Name: "bare", InputSchema: json.RawMessage(`{"type":"object","properties":{}}`), Strict: &no},
			{Name: "search", ProviderID: "anthropic.web_search_20250305", Args: json.RawMessage(`{"maxUses":3}`)},
		},
		ToolChoice: hub.ToolChoice{Mode: hub.ToolNamed, Tool: "weather"},
		Effort:     hub.EffortXHigh,
		Stream:     true,
		IncludeRaw: true,
		Options:    hub.Options{"openai": {"store": json.RawMessage("false"), "x": json.RawMessage(`[1, 2]`)}},
	}
	body := `{
		"prompt":[{"role":"user","content":[{"type":"text","text":"hi"}]}],
		"maxOutputTokens":100,"temperature":0,"topP":0.9,"topK":5,"presencePenalty":-1.5,"frequencyPenalty":1.5,
		"stopSequences":["a","\n"],"seed":-7,
		"responseFormat":{"type":"json","schema":{"type":"object"},"name":"city","description":"a city"},
		"tools":[
			{"type":"function","name":"weather","description":"d","inputSchema":{"type":"object","properties":{}},"strict":true,
			 "inputExamples":[{"input":{"city":"Oslo"}}],"providerOptions":{"anthropic":{"cacheControl":{"type":"ephemeral"}}}},
			{"type":"function","name":"bare","strict":false,"args":{}},
			{"type":"KIND","id":"anthropic.web_search_20250305","name":"search","args":{"maxUses":3}}],
		"toolChoice":{"type":"tool","toolName":"weather"},
		"reasoning":"xhigh","includeRawChunks":true,"headers":{"x":"y"},
		"providerOptions":{"gateway":{"only":["anthropic"]},"openai":{"store":false,"x":[1, 2],"none":null},"google":null}}`
	for version, kind := range map[string]string{"2": "provider-defined", "3": "provider", "4": "provider"} {
		got, err := New().ReadCall(head(version, true), []byte(strings.ReplaceAll(body, "KIND", kind)))
		if err != nil {
			t.Fatalf("version %s: %v", version, err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("version %s:\n got %+v\nwant %+v", version, got, want)
		}
	}
}

func TestReadCall_Defaults(t *testing.T) {
	t.Parallel()
	plain := &hub.Call{Prompt: []hub.Message{{Role: hub.User, Parts: []hub.Part{{Kind: hub.TextPart, Text: "hi"}}}}}
	for _, more := range []string{
		``,
		`,"responseFormat":{"type":"text"}`,
		`,"toolChoice":{"type":"auto"}`, // sent by ai 7 without tools
		`,"toolChoice":{"type":"none"},"tools":[]`,
		`,"reasoning":"provider-default"`,
		`,"temperature":null,"tools":null,"providerOptions":null`,
		`,"providerOptions":{"gateway":{"only":["x"]}}`,
	} {
		if got := read(t, "4", user(more)); !reflect.DeepEqual(got, plain) {
			t.Errorf("%s: got %+v, want %+v", more, got, plain)
		}
	}
	if got := read(t, "4", user(`,"toolChoice":{"type":"required"}`)).ToolChoice.Mode; got != hub.ToolRequired {
		t.Errorf("required without tools became %q: it is for the provider to refuse", got)
	}
	if got := read(t, "4", user(`,"tools":[{"type":"function","name":"f"}],"toolChoice":{"type":"auto","toolName":"f"}`)).ToolChoice; got != (hub.ToolChoice{Mode: hub.ToolAuto}) {
		t.Errorf("auto with tools became %+v", got)
	}
	if got := read(t, "4", user(`,"responseFormat":{"type":"json"}`)).Format; got == nil || got.Schema != nil {
		t.Errorf("any JSON became %+v", got)
	}
}

func TestReadCall_Version(t *testing.T) {
	t.Parallel()
	if _, err := New().ReadCall(make(http.Header), []byte(user(""))); err != nil {
		t.Errorf("without a version: %v", err)
	}
	for _, v := range []string{"1", "5", "v4", "4.0"} {
		var e *hub.Error
		if _, err := New().ReadCall(head(v, false), []byte(user(""))); !errors.As(err, &e) || e.Kind != hub.BadRequest || !strings.Contains(e.Message, v) {
			t.Errorf("version %s: %v, want an error that names it", v, err)
		}
	}
	for name, v := range map[string]string{
		"ai-language-model-specification-version": "2", "ai-embedding-model-specification-version": "3",
		"ai-image-model-specification-version": "4", "ai-reranking-model-specification-version": "3",
	} {
		h := http.Header{}
		h.Set(name, v)
		if got, err := Version(h); got != v || err != nil {
			t.Errorf("Version of %s: %s = %q, %v", name, v, got, err)
		}
	}
	if got, err := Version(http.Header{}); got != "4" || err != nil {
		t.Errorf("Version of nothing = %q, %v; want 4", got, err)
	}
}

func TestReadCall_Errors(t *testing.T) {
	t.Parallel()
	part := func(p string) string { return `{"prompt":[{"role":"user","content":[` + p + `]}]}` }
	said := func(p string) string { return `{"prompt":[{"role":"assistant","content":[` + p + `]}]}` }
	did := func(output string) string {
		return `{"prompt":[{"role":"tool","content":[{"type":"tool-result","toolCallId":"c","toolName":"f","output":` + output + `}]}]}`
	}
	for _, test := range []struct{ body, param, message string }{
		{"", "", "not JSON"},
		{"{", "", "not JSON"},
		{"[]", "", "a JSON object"},
		{"null", "", "a JSON object"},
		{"\"\xff\"", "", "UTF-8"},
		{`{"prompt":` + strings.Repeat("[", 600) + strings.Repeat("]", 600) + `}`, "", "512"},
		{`{"a":"` + strings.Repeat("[", 600) + `"}`, "prompt", "missing"}, // brackets in strings do not nest
		{`{}`, "prompt", "missing"},
		{`{"prompt":null}`, "prompt", "missing"},
		{`{"prompt":"hi"}`, "prompt", "an array"},
		{`{"prompt":[]}`, "prompt", "at least one"},
		{`{"prompt":["hi"]}`, "prompt[0].role", "system"},
		{`{"prompt":[{"role":"user"}]}`, "prompt[0].content", "missing"},
		{`{"prompt":[{"role":"developer","content":"x"}]}`, "prompt[0].role", "assistant"},
		{`{"prompt":[{"role":"system","content":5}]}`, "prompt[0].content", "an array"},
		{`{"prompt":[{"role":"tool","content":"x"}]}`, "prompt[0].content", "an array"},
		{`{"prompt":[{"role":"user","content":"x","providerOptions":5}]}`, "prompt[0].providerOptions", "an object"},
		{`{"prompt":[{"role":"user","content":"x","providerOptions":{"a":5}}]}`, "prompt[0].providerOptions.a", "an object"},
		{part(`5`), "prompt[0].content[0]", "an object"},
		{part(`{}`), "prompt[0].content[0].type", "know"},
		{part(`{"type":"video"}`), "prompt[0].content[0].type", `"video"`},
		{part(`{"type":"reasoning","text":"x"}`), "prompt[0].content[0].type", "role user"},
		{part(`{"type":"text"}`), "prompt[0].content[0].text", "missing"},
		{part(`{"type":"text","text":"a"},{"type":"text","text":7}`), "prompt[0].content[1].text", "a string"},
		{said(`{"type":"tool-call","toolName":"f"}`), "prompt[0].content[0].toolCallId", "missing"},
		{said(`{"type":"tool-call","toolCallId":"c"}`), "prompt[0].content[0].toolName", "missing"},
		{said(`{"type":"tool-call","toolCallId":"","toolName":"f"}`), "prompt[0].content[0].toolCallId", "not empty"},
		{said(`{"type":"tool-result","toolCallId":"c","toolName":"f"}`), "prompt[0].content[0].output", "missing"},
		{said(`{"type":"tool-approval-response","approvalId":"a","approved":true}`), "prompt[0].content[0].type", "role assistant"},
		{did(`{"type":"text"}`), "prompt[0].content[0].output.value", "missing"},
		{did(`{"type":"text","value":{}}`), "prompt[0].content[0].output.value", "a string"},
		{did(`{"type":"xml","value":"x"}`), "prompt[0].content[0].output.type", "execution-denied"},
		{did(`{"type":"content","value":"x"}`), "prompt[0].content[0].output.value", "an array"},
		{did(`{"type":"content","value":[{"type":"audio"}]}`), "prompt[0].content[0].output.value[0].type", `"audio"`},
		{`{"prompt":[{"role":"tool","content":[{"type":"tool-approval-response","approvalId":"a"}]}]}`, "prompt[0].content[0].approved", "missing"},
		{`{"prompt":[{"role":"tool","content":[{"type":"tool-approval-response","approved":true}]}]}`, "prompt[0].content[0].approvalId", "missing"},
		{user(`,"temperature":"hot"`), "temperature", "a number"},
		{user(`,"temperature":1e999`), "temperature", "a number"},
		{user(`,"maxOutputTokens":0`), "maxOutputTokens", "at least 1"},
		{user(`,"maxOutputTokens":1.5`), "maxOutputTokens", "whole"},
		{user(`,"seed":1e30`), "seed", "whole"},
		{user(`,"stopSequences":"x"`), "stopSequences", "an array"},
		{user(`,"stopSequences":["x",1]`), "stopSequences[1]", "a string"},
		{user(`,"includeRawChunks":"yes"`), "includeRawChunks", "true or false"},
		{user(`,"reasoning":"extreme"`), "reasoning", "xhigh"},
		{user(`,"responseFormat":{"type":"xml"}`), "responseFormat.type", "json"},
		{user(`,"responseFormat":{"type":"json","schema":"x"}`), "responseFormat.schema", "an object"},
		{user(`,"toolChoice":{"type":"any"}`), "toolChoice.type", "required"},
		{user(`,"toolChoice":{"type":"tool"}`), "toolChoice.toolName", "missing"},
		{user(`,"tools":{}`), "tools", "an array"},
		{user(`,"tools":[{"type":"function"}]`), "tools[0].name", "missing"},
		{user(`,"tools":[{"name":"f"}]`), "tools[0].type", "function"},
		{user(`,"tools":[{"type":"function","name":"f"},{"type":"function","name":"f"}]`), "tools[1].name", "another tool"},
		{user(`,"tools":[{"type":"function","name":"f","inputExamples":[{}]}]`), "tools[0].inputExamples[0].input", "an object"},
		{user(`,"tools":[{"type":"provider","name":"f","id":"f"}]`), "tools[0].id", "anthropic.web_search"},
		{user(`,"tools":[{"type":"provider","name":"f","id":"gateway.exa_search","args":{}}]`), "tools[0]", "gateway.exa_search"},
	} {
		_, err := New().ReadCall(head("4", false), []byte(test.body))
		var e *hub.Error
		if !errors.As(err, &e) {
			t.Errorf("%.100s: error %v, want an *hub.Error", test.body, err)
			continue
		}
		if e.Kind != hub.BadRequest || e.Param != test.param || !strings.Contains(e.Message, test.message) {
			t.Errorf("%.100s: %s, %q: %s; want the member %q and %q", test.body, e.Kind, e.Param, e.Message, test.param, test.message)
		}
	}
}

func TestReadCall_SaysWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	c := read(t, "4", `{"prompt":[
		{"role":"user","content":[{"type":"text","text":"a","style":"bold"},{"type":"text","text":"b","style":"bold"}],"mood":1},
		{"role":"user","content":[{"type":"file","data":{"type":"text","text":"x","lang":"en"},"pages":[1]}]}],
		"logitBias":{},"verbosity":"low","frequency\"":1,"tools":[{"type":"function","name":"f","hidden":true}]}`)
	var got []string
	for _, w := range c.Warnings {
		if w.Kind != hub.WarnUnsupported || w.Message == "" {
			t.Errorf("warning %+v", w)
		}
		got = append(got, w.Feature)
	}
	want := []string{"prompt.content.style", "prompt.mood", "prompt.content.data.lang", "prompt.content.pages", "logitBias", "verbosity", `frequency"`, "tools.hidden"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("warnings of %q, want %q", got, want)
	}
	many := `{"prompt":[{"role":"user","content":"x"}]`
	for i := range 500 {
		many += fmt.Sprintf(`,"m%d":1`, i)
	}
	if got := len(read(t, "4", many+"}").Warnings); got != maxWarnings {
		t.Errorf("%d warnings, want %d", got, maxWarnings)
	}
}

func TestGatewayOptions(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"providerOptions":{"a":{},"gateway":{"only":["x"]}}}`: `{"only":["x"]}`,
		`{"providerOptions":{"gateway":null}}`:                  "",
		`{"providerOptions":{}}`:                                "",
		`{}`:                                                    "",
		`[1`:                                                    "",
	} {
		if got := string(GatewayOptions([]byte(body))); got != want {
			t.Errorf("GatewayOptions(%s) = %s, want %s", body, got, want)
		}
	}
}

func TestModel(t *testing.T) {
	t.Parallel()
	h := http.Header{}
	if Model(h) != "" {
		t.Error("a model of nothing")
	}
	h.Set("ai-model-id", "openai/text-embedding-3-small")
	if got := Model(h); got != "openai/text-embedding-3-small" {
		t.Errorf("Model = %q", got)
	}
	h.Set("ai-language-model-id", "openai/gpt-5")
	if got := Model(h); got != "openai/gpt-5" {
		t.Errorf("Model = %q", got)
	}
}

func FuzzReadCall(f *testing.F) {
	f.Add("4", user(`,"tools":[{"type":"provider","name":"f","id":"a.b","args":{}}],"providerOptions":{"gateway":{},"a":{"b":1}}`))
	for _, body := range prompts {
		f.Add("3", body)
	}
	f.Add("2", `{"prompt":[{"role":"user","content":[{"type":"file","data":"data:image/png;base64,iVBORw0KGgo=","mediaType":"image/*"}]}]}`)
	f.Add("2", `{"prompt":[{"role":"user","content":[{"type":"file","data":"data:;x=y,a%20b"}]}],"toolChoice":{"type":"auto"}}`)
	f.Fuzz(func(t *testing.T, version, body string) {
		c, err := New().ReadCall(head(version, true), []byte(body))
		if err != nil {
			var e *hub.Error
			if !errors.As(err, &e) || e.Kind != hub.BadRequest || e.Message == "" {
				t.Fatalf("error %#v", err)
			}
			return
		}
		checkCall(t, c)
		GatewayOptions([]byte(body))
	})
}

// checkCall checks the invariants of the types in package hub.
func checkCall(t *testing.T, c *hub.Call) {
	t.Helper()
	if len(c.Prompt) == 0 {
		t.Error("a call without a prompt")
	}
	var check func(parts []hub.Part)
	check = func(parts []hub.Part) {
		for _, p := range parts {
			switch p.Kind {
			case hub.TextPart, hub.ReasoningPart, hub.CustomPart:
			case hub.FilePart, hub.ReasoningFilePart:
				forms := 0
				for _, has := range []bool{len(p.File.Data) > 0, p.File.URL != "", p.File.Reference != nil, p.File.Text != ""} {
					if has {
						forms++
					}
				}
				if forms != 1 || !strings.Contains(p.File.MediaType, "/") {
					t.Errorf("file %+v", p.File)
				}
			case hub.ToolCallPart:
				if p.Call.ID == "" || p.Call.Name == "" {
					t.Errorf("call %+v", p.Call)
				}
			case hub.ToolResultPart:
				if p.Result.CallID == "" || p.Result.Name == "" || p.Result.Output.Kind == "" {
					t.Errorf("result %+v", p.Result)
				}
				check(p.Result.Output.Content)
			case hub.ApprovalRequestPart, hub.ApprovalResponsePart:
				if p.Approval.ID == "" {
					t.Errorf("approval %+v", p.Approval)
				}
			default:
				t.Errorf("a part of the kind %q", p.Kind)
			}
			if _, ok := p.Options[us]; ok {
				t.Error("the gateway's own options are in a part")
			}
		}
	}
	for _, m := range c.Prompt {
		if partsOf[m.Role] == nil {
			t.Errorf("a message of the role %q", m.Role)
		}
		check(m.Parts)
	}
	if _, ok := c.Options[us]; ok {
		t.Error("the gateway's own options are in the call")
	}
}
