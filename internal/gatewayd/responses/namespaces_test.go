package responses

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

const withNamespace = `{"model":"m","tool_choice":{"type":"function","name":"spawn","namespace":"agents"},"tools":[
	{"type":"function","name":"spawn","parameters":{"type":"object","properties":{}}},
	{"type":"namespace","name":"agents","description":"Sub-agents","tools":[
		{"type":"function","name":"spawn","description":"Begin","parameters":{"type":"object","properties":{"n":{"type":"integer"}}}},
		{"type":"custom","name":"tell"}]}],
	"input":[{"role":"user","content":"Go"},
		{"type":"function_call","call_id":"c1","name":"spawn","namespace":"agents","arguments":"{\"n\":1}"},
		{"type":"function_call_output","call_id":"c1","output":"ok"},
		{"type":"custom_tool_call","call_id":"c2","name":"tell","namespace":"agents","input":"hi"},
		{"type":"custom_tool_call_output","call_id":"c2","output":"heard"}]}`

// Tools of a namespace become functions with joined names for providers without
// namespaces, and stay unchanged for others.
func TestNamespaces(t *testing.T) {
	t.Parallel()
	c, err := New().ReadCall(http.Header{}, []byte(withNamespace))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tool := range c.Tools {
		if tool.ProviderID != "" {
			t.Errorf("%s is %s", tool.Name, tool.ProviderID)
		}
		names = append(names, tool.Name)
	}
	for _, m := range c.Prompt {
		for _, p := range m.Parts {
			switch p.Kind {
			case hub.ToolCallPart:
				names = append(names, p.Call.Name)
			case hub.ToolResultPart:
				names = append(names, p.Result.Name)
			}
		}
	}
	want := "spawn agents__spawn agents__tell agents__spawn agents__spawn agents__tell agents__tell"
	if got := strings.Join(names, " "); got != want || c.ToolChoice.Tool != "agents__spawn" {
		t.Errorf("%s, the choice is %q; want %s", got, c.ToolChoice.Tool, want)
	}
	out, _, err := New().WriteCall(c, &hub.Target{Provider: "openai", Model: "m"})
	if err != nil {
		t.Fatal(err)
	}
	asked := gjson.ParseBytes(out.Body)
	for path, want := range map[string]string{
		"tools.#": "2", "tools.0.name": "spawn", "tools.1.type": "namespace", "tools.1.name": "agents", "tools.1.description": "Sub-agents",
		"tools.1.tools.#.name": `["spawn","tell"]`, "tools.1.tools.0.description": "Begin", "tools.1.tools.1.type": "custom",
		"tool_choice.name": "spawn", "tool_choice.namespace": "agents",
		"input.1.name": "spawn", "input.1.namespace": "agents", "input.3.name": "tell", "input.3.namespace": "agents", "input.3.input": "hi",
	} {
		if got := asked.Get(path).String(); got != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
}

// Calls come back in their namespace, whether or not the provider supports namespaces.
func TestNamespaces_calls(t *testing.T) {
	t.Parallel()
	c, err := New().ReadCall(http.Header{}, []byte(withNamespace))
	if err != nil {
		t.Fatal(err)
	}
	of := hub.Options{}
	of.Set(optProvider, optNamespace, "agents")
	for name, p := range map[string]hub.Part{
		"joined": {Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: "c", Name: "agents__spawn", Input: "{}"}},
		"own":    {Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: "c", Name: "spawn", Input: "{}"}, Options: of},
	} {
		result := &hub.Result{Content: []hub.Part{p}, Finish: hub.Finish{Reason: hub.ToolCalls}}
		whole, err := New().WriteResult(hub.Answer{Call: c}, result)
		if err != nil {
			t.Fatal(err)
		}
		item := gjson.GetBytes(whole, "output.0")
		var stream []byte
		w := New().NewWriter(hub.Answer{Call: c})
		events := result.Events()
		for i := range events {
			stream = w.Append(stream, &events[i])
		}
		for _, item := range []gjson.Result{item, gjson.Get(after(string(stream), "response.output_item.added"), "item"), gjson.Get(after(string(stream), "response.completed"), "response.output.0")} {
			if item.Get("name").Str != "spawn" || item.Get("namespace").Str != "agents" || item.Get("type").Str != "function_call" {
				t.Errorf("%s: %s", name, item.Raw)
			}
		}
	}
	plain := &hub.Result{Content: []hub.Part{{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: "c", Name: "spawn", Input: "{}"}}}}
	whole, err := New().WriteResult(hub.Answer{Call: c}, plain)
	if item := gjson.GetBytes(whole, "output.0"); err != nil || item.Get("namespace").Exists() || item.Get("name").Str != "spawn" {
		t.Errorf("of no namespace: %s %v", item.Raw, err)
	}
}

// after returns the data of the first event of a type.
func after(stream, event string) string {
	_, rest, _ := strings.Cut(stream, "event: "+event+"\ndata: ")
	data, _, _ := strings.Cut(rest, "\n")
	return data
}

func TestNamespaces_allowed(t *testing.T) {
	t.Parallel()
	for choice, want := range map[string]string{
		`{"type":"allowed_tools","mode":"auto","tools":[{"type":"namespace","name":"agents"}]}`:                 "agents__spawn agents__tell",
		`{"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"spawn"}]}`:                   "spawn",
		`{"type":"allowed_tools","mode":"auto","tools":[{"type":"custom","name":"tell","namespace":"agents"}]}`: "agents__tell",
	} {
		body := strings.Replace(withNamespace, `{"type":"function","name":"spawn","namespace":"agents"}`, choice, 1)
		c, err := New().ReadCall(http.Header{}, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, tool := range c.Tools {
			names = append(names, tool.Name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s leaves %s, want %s", choice, got, want)
		}
	}
	for _, tools := range []string{
		`[{"type":"namespace","tools":[]}]`,
		`[{"type":"namespace","name":"a","tools":[{"type":"namespace","name":"b","tools":[]}]}]`,
		`[{"type":"namespace","name":"a","tools":[{"type":"web_search"}]}]`,
		`[{"type":"namespace","name":"a","tools":[{"type":"function"}]}]`,
		`[{"type":"function","name":"a__b"},{"type":"namespace","name":"a","tools":[{"type":"function","name":"b"}]}]`,
	} {
		if _, err := New().ReadCall(http.Header{}, []byte(`{"input":"x","tools":`+tools+`}`)); err == nil || !strings.Contains(err.Error(), "tools[") {
			t.Errorf("%s: %v", tools, err)
		}
	}
}
