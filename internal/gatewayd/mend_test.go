package gatewayd_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/chatcompletions"
	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// chatChunks returns chat completions chunks, one per delta, followed by the usage.
func chatChunks(deltas ...string) [][]byte {
	var chunks [][]byte
	for _, d := range deltas {
		if !strings.HasPrefix(d, `"`) {
			d = `"delta":` + d
		}
		chunks = append(chunks, []byte(`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1785000000,"model":"m","choices":[{"index":0,`+d+`}]}`))
	}
	return append(chunks, []byte(`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1785000000,"model":"m","choices":[],"usage":{"prompt_tokens":20,"completion_tokens":10,"total_tokens":30}}`))
}

// eventsOf returns the data of the events of a stream, and checks that no event follows
// [DONE].
func eventsOf(t *testing.T, body string) (all []gjson.Result) {
	t.Helper()
	before, after, done := strings.Cut(body, "data: [DONE]\n\n")
	if done && after != "" {
		t.Errorf("after [DONE] comes %q", after)
	}
	for line := range strings.Lines(before) {
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			if !gjson.Valid(data) {
				t.Errorf("an event is no JSON: %q", data)
			}
			all = append(all, gjson.Parse(data))
		}
	}
	return all
}

// finishReasons returns the finish reasons in a chat completions stream.
func finishReasons(t *testing.T, body string) (all []string) {
	t.Helper()
	for _, e := range eventsOf(t, body) {
		for _, c := range e.Get("choices").Array() {
			if r := c.Get("finish_reason").Str; r != "" {
				all = append(all, r)
			}
		}
	}
	return all
}

// A stream that ends with [DONE] without a finish_reason (NVIDIA NIM) is complete if it
// has content, for clients of all formats, and its usage is charged.
func TestStream_NoFinishReason(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		deltas []string
		reason hub.Reason
		word   string // in chat completions; empty: the stream fails
		has    string
	}{
		"text":                {[]string{`{"role":"assistant","content":""}`, `{"content":"Hello"}`}, hub.Stop, "stop", "Hello"},
		"a reason of null":    {[]string{`{"content":"Hello"}`, `"delta":{},"finish_reason":null`}, hub.Stop, "stop", "Hello"},
		"an empty reason":     {[]string{`{"content":"Hello"}`, `"delta":{},"finish_reason":""`}, hub.Stop, "stop", "Hello"},
		"a call":              {[]string{`{"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"look","arguments":"{\"a\":"}}]}`, `{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]}`}, hub.ToolCalls, "tool_calls", "look"},
		"a call of no input":  {[]string{`{"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"look","arguments":""}}]}`}, hub.ToolCalls, "tool_calls", "look"},
		"text and a call":     {[]string{`{"content":"Hello"}`, `{"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"look","arguments":"{}"}}]}`}, hub.ToolCalls, "tool_calls", "look"},
		"no content":          {[]string{`{"role":"assistant","content":""}`}, "", "", ""},
		"half a call's input": {[]string{`{"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"look","arguments":"{\"a\":"}}]}`}, "", "", ""},
	} {
		for _, d := range dialects {
			t.Run(name+" to "+d.name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.model("lab/m", "chatcompletions:odd")
				w.up.On("odd", gatewaytest.Answer{Fixture: &gatewaytest.Fixture{Format: gatewaytest.Chat, Chunks: chatChunks(tt.deltas...)}})
				status, body, _ := w.ask(d, "lab/m", true)
				r := w.record(1)
				if tt.word == "" {
					if r.Status != gateway.Failed || status == http.StatusOK && (!strings.Contains(body, d.fails) || strings.Contains(body, d.ends)) {
						t.Errorf("%d, the record is %s: %s", status, r.Status, body)
					}
					return
				}
				if status != http.StatusOK || !strings.Contains(body, d.ends) || !strings.Contains(body, tt.has) {
					t.Errorf("%d %s", status, body)
				}
				if r.Status != gateway.Succeeded || r.FinishReason != string(tt.reason) || r.Tokens.Input != 20 || r.Tokens.Output != 10 || r.Tokens.Estimated {
					t.Errorf("the record is %s, %q, %+v", r.Status, r.FinishReason, r.Tokens)
				}
				if d.name == "chatcompletions" {
					if got := finishReasons(t, body); len(got) != 1 || got[0] != tt.word {
						t.Errorf("the finish reasons are %q: %s", got, body)
					}
				}
			})
		}
	}
}

// A whole answer without a finish_reason gets the right one.
func TestWhole_NoFinishReason(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ message, word string }{
		"text":   {`{"role":"assistant","content":"Hello"}`, "stop"},
		"a call": {`{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"look","arguments":"{}"}}]}`, "tool_calls"},
	} {
		for _, d := range dialects {
			t.Run(name+" to "+d.name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.model("lab/m", "chatcompletions:odd")
				whole := `{"id":"x","object":"chat.completion","created":1785000000,"model":"m","choices":[{"index":0,"message":` + tt.message + `,"finish_reason":null}],"usage":{"prompt_tokens":20,"completion_tokens":10}}`
				w.up.On("odd", gatewaytest.Answer{Fixture: &gatewaytest.Fixture{Format: gatewaytest.Chat, Whole: []byte(whole)}})
				status, body, _ := w.ask(d, "lab/m", false)
				r := w.record(1)
				if status != http.StatusOK || r.Status != gateway.Succeeded || r.FinishReason != strings.ReplaceAll(tt.word, "_", "-") || r.Tokens.Output != 10 || r.Tokens.Estimated {
					t.Errorf("%d %s, %q, %+v", status, r.Status, r.FinishReason, r.Tokens)
				}
				if got := gjson.Get(body, "choices.0.finish_reason").Str; d.name == "chatcompletions" && got != tt.word {
					t.Errorf("finish_reason is %q: %s", got, body)
				}
			})
		}
	}
}

// Tool calls to which a provider gives the same index arrive as separate calls in all
// formats: detected by their bytes, or because the provider is known or configured to
// send whole calls.
func TestStream_CallsOfOneIndex(t *testing.T) {
	t.Parallel()
	const (
		first  = `{"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"look","arguments":"{}"}}]}`
		second = `{"tool_calls":[{"index":0,"id":"c2","type":"function","function":{"name":"look","arguments":"{}"}}]}`
	)
	for name, tt := range map[string]struct {
		quirks map[string]bool
		second string
	}{
		"by its bytes":                {nil, second},
		"of a kind that is known":     {chatcompletions.Known("ollama"), first},
		"of a kind in the settings":   {map[string]bool{chatcompletions.WholeToolCalls: true}, first},
		"of a kind that is not wrong": {nil, strings.ReplaceAll(second, `"index":0`, `"index":1`)},
	} {
		for _, d := range dialects {
			t.Run(name+" to "+d.name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				p := w.provider("odd", gatewaytest.Chat, w.up.URL)
				p.Quirks = tt.quirks
				w.add(p)
				w.model("lab/m", "odd:odd")
				w.up.On("odd", gatewaytest.Answer{Fixture: &gatewaytest.Fixture{Format: gatewaytest.Chat, Chunks: chatChunks(first, tt.second, `"delta":{},"finish_reason":"stop"`)}})
				status, body, _ := w.ask(d, "lab/m", true)
				if r := w.record(1); status != http.StatusOK || r.Status != gateway.Succeeded || r.FinishReason != string(hub.ToolCalls) {
					t.Errorf("%d %s, %q: %s", status, r.Status, r.FinishReason, body)
				}
				if d.name != "chatcompletions" {
					return
				}
				ids := map[int64]string{}
				for _, e := range eventsOf(t, body) {
					for _, c := range e.Get("choices.0.delta.tool_calls").Array() {
						ids[c.Get("index").Int()] += c.Get("id").Str
					}
				}
				if len(ids) != 2 || ids[0] != "c1" || ids[1] == "" || ids[1] == "c1" {
					t.Errorf("the ids by their index are %v: %s", ids, body)
				}
				if got := finishReasons(t, body); len(got) != 1 || got[0] != "tool_calls" {
					t.Errorf("the finish reasons are %q", got)
				}
			})
		}
	}
}
