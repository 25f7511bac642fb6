package chatcompletions

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

const customRequest = `{"model":"m","messages":[{"role":"user","content":"hi"},
	{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"custom","custom":{"name":"patch","input":"*** <b>"}}]},{"role":"tool","tool_call_id":"c1","content":"done"}],
	"tools":[{"type":"custom","custom":{"name":"patch","description":"d","format":{"type":"grammar","grammar":{"syntax":"lark","definition":"start: x"}}}}],
	"tool_choice":{"type":"custom","custom":{"name":"patch"}}}`

// Custom tools are passed to OpenAI as custom tools, and to other servers as functions.
func TestCustom_Request(t *testing.T) {
	t.Parallel()
	c, err := New().ReadCall(http.Header{}, []byte(customRequest))
	if err != nil {
		t.Fatal(err)
	}
	for server, want := range map[string]string{
		"openai": `{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"custom","custom":{"name":"patch","input":"*** <b>"}}]},{"role":"tool","tool_call_id":"c1","content":"done"}],` +
			`"tool_choice":{"type":"custom","custom":{"name":"patch"}},"tools":[{"type":"custom","custom":{"name":"patch","description":"d","format":{"type":"grammar","grammar":{"syntax":"lark","definition":"start: x"}}}}]}`,
		"vllm": `{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"patch","arguments":"{\"input\":\"*** <b>\"}"}}]},{"role":"tool","tool_call_id":"c1","content":"done"}],` +
			`"tool_choice":{"type":"function","function":{"name":"patch"}},"tools":[{"type":"function","function":{"name":"patch","description":"d\n\nThe input must match this lark grammar:\nstart: x","parameters":{"type":"object","properties":{"input":{"type":"string"}},"required":["input"],"additionalProperties":false}}}]}`,
	} {
		target := &hub.Target{Provider: server, Model: "m", Quirks: Known(server)}
		out, warnings, err := New().WriteCall(c, target)
		if err != nil || len(warnings) > 0 {
			t.Fatal(err, warnings)
		}
		if got := members(t, out.Body, "messages", "tools", "tool_choice"); got != want {
			t.Errorf("%s:\n got %s\nwant %s", server, got, want)
		}
		if passes := New().Passes(target, []byte(customRequest)); passes != (server == "openai") {
			t.Errorf("%s: passes is %t", server, passes)
		}
	}
}

// The client gets a custom tool call, in whatever form the provider made it, streamed or
// not.
func TestCustom_Answer(t *testing.T) {
	t.Parallel()
	c, err := New().ReadCall(http.Header{}, []byte(customRequest))
	if err != nil {
		t.Fatal(err)
	}
	const whole = `{"choices":[{"index":0,"finish_reason":"tool_calls","message":{"role":"assistant","content":null,"tool_calls":[CALL]}}]}`
	calls := map[string]string{
		"custom":   `{"id":"c2","type":"custom","custom":{"name":"patch","input":"{\"a\": <x>\n"}}`,
		"function": `{"id":"c2","type":"function","function":{"name":"patch","arguments":"{\"input\":\"{\\\"a\\\": <x>\\n\"}"}}`,
	}
	for kind, call := range calls {
		body := strings.Replace(whole, "CALL", call, 1)
		r, err := New().ReadResult(&hub.Target{Provider: "p", Model: "m", Call: c}, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		answer := hub.Answer{ID: "gen_1", Model: "m", Call: c}
		said, err := New().WriteResult(answer, r)
		if err != nil {
			t.Fatal(err)
		}
		if got := gjson.GetBytes(said, "choices.0.message.tool_calls.0").Raw; got != calls["custom"] {
			t.Errorf("%s, whole: %s", kind, got)
		}
		chunks := "data: " + strings.Replace(strings.Replace(body, `"message"`, `"delta"`, 1), "CALL", call, 1) + "\n\ndata: [DONE]\n\n"
		got := callOf(t, answer, New().NewReader(&hub.Target{Provider: "p", Model: "m", Call: c}, strings.NewReader(chunks)))
		if got != strings.Replace(calls["custom"], `{"id"`, `{"index":0,"id"`, 1) {
			t.Errorf("%s, streamed: %s", kind, got)
		}
	}
}

// OpenAI streams the input of a custom tool in pieces.
func TestCustom_Pieces(t *testing.T) {
	t.Parallel()
	piece := func(call string) string {
		return `data: {"choices":[{"index":0,"delta":{"tool_calls":[` + call + `]}}]}` + "\n\n"
	}
	chunks := piece(`{"index":0,"id":"c","type":"custom","custom":{"name":"patch","input":""}}`) + piece(`{"index":0,"custom":{"input":" a"}}`) +
		piece(`{"index":0,"custom":{"input":"b "}}`) + piece(`{"index":1,"id":"d","type":"custom","custom":{"name":"patch","input":"1"}}`) +
		`data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}` + "\n\ndata: [DONE]\n\n"
	r := New().NewReader(&hub.Target{Provider: "p", Model: "m"}, strings.NewReader(chunks))
	var collector hub.Collector
	var checker hub.Checker
	for {
		events, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for i := range events {
			if err := checker.Add(&events[i]); err != nil {
				t.Error(err)
			}
			collector.Add(&events[i])
		}
	}
	result, failed := collector.Result()
	if failed != nil {
		t.Fatal(failed)
	}
	var got []string
	for _, p := range result.Content {
		got = append(got, hub.CustomInput(p.Call.Input))
	}
	if strings.Join(got, "|") != " ab |1" {
		t.Errorf("%q", got)
	}
}

// callOf returns the tool call in the chunks written for a stream.
func callOf(t *testing.T, answer hub.Answer, r hub.Reader) string {
	t.Helper()
	w := New().NewWriter(answer)
	var out []byte
	for {
		events, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for i := range events {
			out = w.Append(out, &events[i])
		}
	}
	var calls []string
	for line := range bytes.SplitSeq(out, []byte("\n")) {
		if c := gjson.GetBytes(bytes.TrimPrefix(line, []byte("data: ")), "choices.0.delta.tool_calls.0"); c.Exists() && json.Valid([]byte(c.Raw)) {
			calls = append(calls, c.Raw)
		}
	}
	return strings.Join(calls, " ")
}
