package chatcompletions

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

func TestPasses(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 41)
	history := func(id string) string {
		return `{"messages":[{"role":"assistant","tool_calls":[{"id":"` + id + `","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"` + id + `","content":"r"}]}`
	}
	for _, tt := range []struct {
		body string
		not  string // the servers below that it does not pass to
	}{
		{ask(``), ""},
		{ask(`,"temperature":1,"stop":["a"],"guided_json":{}`), ""},
		{ask(`,"max_tokens":5`), "openai/gpt-5"},
		{ask(`,"max_completion_tokens":5`), "mistral/m deepseek/m"},
		{ask(`,"reasoning":{"effort":"low"}`), "openai/gpt-5 openai/gpt-4o mistral/m deepseek/m groq/m"},
		{ask(`,"reasoning_effort":"low"`), "mistral/m deepseek/m"},
		{ask(`,"reasoning_effort":"minimal"`), "mistral/m deepseek/m groq/m"},
		{ask(`,"stream_options":{"include_usage":true}`), "mistral/m"},
		{ask(`,"user":"ann"`), "mistral/m deepseek/m"},
		{ask(`,"seed":1`), "mistral/m"},
		{ask(`,"tool_choice":"required","tools":[{"type":"function","function":{"name":"f","strict":true}}]`), "mistral/m deepseek/m groq/m"},
		{ask(`,"response_format":{"type":"json_schema","json_schema":{"schema":{"properties":{"reasoning":{}}}}}`), "deepseek/m"},
		{`{"messages":[{"role":"developer","content":"x"}]}`, "mistral/m deepseek/m groq/m"},
		{`{"messages":[{"role":"user","content":[{"type":"text","text":"x"}]}]}`, "deepseek/m"},
		{`{"messages":[{"role":"user","content":[{"type":"text","text":"x","cache_control":{"type":"ephemeral"}}]}]}`, "openai/gpt-5 openai/gpt-4o mistral/m deepseek/m groq/m"},
		{`{"messages":[{"role":"user","content":"say \"reasoning\" and \"tool\""}]}`, ""},
		{`{"messages":[{"role":"assistant","content":"a","reasoning_content":"b"},{"role":"user","content":"x"}]}`, "openai/gpt-5 openai/gpt-4o mistral/m deepseek/m"},
		{`{"messages":[{"role":"user","content":"x"},{"role":"assistant","content":"a","reasoning_content":"b"}]}`, "openai/gpt-5 openai/gpt-4o mistral/m"},
		{`{"messages":[{"role":"assistant","content":"a","reasoning_details":[{"type":"reasoning.text","signature":"S"}]}]}`, "openai/gpt-5 openai/gpt-4o mistral/m deepseek/m groq/m"},
		{`{"messages":[{"role":"assistant","content":"a","reasoning_details":[{"type":"reasoning.text","signature":"cay1.all.x"}]}]}`, "openai/gpt-5 openai/gpt-4o mistral/m deepseek/m groq/m openrouter/m my-server/m"},
		{`{"messages":[{"role":"tool","tool_call_id":"abcdefghi","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}`, "openai/gpt-5 openai/gpt-4o mistral/m deepseek/m groq/m openrouter/m my-server/m"},
		{history("abcdefghi"), ""},
		{history("call_0123456789"), "mistral/m"},
		{history(long), "openai/gpt-5 openai/gpt-4o mistral/m deepseek/m groq/m openrouter/m"},
		{history(hub.PackID("abcdefghi", hub.Options{"google": {"thoughtSignature": raw(`"S"`)}})), "openai/gpt-5 openai/gpt-4o mistral/m deepseek/m groq/m openrouter/m my-server/m"},
	} {
		var not []string
		for _, name := range []string{"openai/gpt-5", "openai/gpt-4o", "mistral/m", "deepseek/m", "groq/m", "openrouter/m", "my-server/m", "cay/m"} {
			server, model, _ := strings.Cut(name, "/")
			if !New().Passes(&hub.Target{Provider: server, Model: model, Quirks: Known(server)}, []byte(tt.body)) {
				not = append(not, name)
			}
		}
		if got := strings.Join(not, " "); got != tt.not {
			t.Errorf("%.150s\ndoes not pass to %q, want %q", tt.body, got, tt.not)
		}
	}
}

// A re-encoded request passes, and still has the unknown members.
func TestPasses_WrittenAnew(t *testing.T) {
	t.Parallel()
	body := ask(`,"reasoning":{"effort":"low"},"max_completion_tokens":5,"guided_json":{"a":1},"logit_bias":{"5":1},"logprobs":true,"top_logprobs":2,"stream":true,"user":"ann","n":1`)
	for _, server := range []string{"mistral", "deepseek", "groq", "openai", "vllm"} {
		target := &hub.Target{Provider: server, Model: "gpt-4o", Quirks: Known(server)}
		out, _, err := New().WriteCall(readCall(t, body), target)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := members(t, out.Body, "guided_json", "logit_bias", "logprobs", "top_logprobs"), `{"guided_json":{"a":1},"logit_bias":{"5":1},"logprobs":true,"top_logprobs":2}`; got != want {
			t.Errorf("%s: %s", server, out.Body)
		}
		var all map[string]json.RawMessage
		if err := json.Unmarshal(out.Body, &all); err != nil || !New().Passes(target, out.Body) {
			t.Errorf("%s: %v, or it does not pass: %s", server, err, out.Body)
		}
	}
	// Every encoded request passes.
	for server := range known {
		for _, messages := range [][]hub.Message{loop, hello, {say(hub.User, image, text("a"))}} {
			target := &hub.Target{Provider: server, Model: "gpt-5.1", Quirks: Known(server)}
			c := &hub.Call{Prompt: messages, MaxOutputTokens: hub.N(5), Effort: hub.EffortMax, Sampling: hub.Sampling{Seed: hub.N(1), PresencePenalty: ptr(1.0)}, User: "ann", Stream: true, Tools: []hub.Tool{weather}, ToolChoice: hub.ToolChoice{Mode: hub.ToolRequired}, Format: &hub.Format{Schema: raw(`{}`), Strict: ptr(true)}, ParallelTools: ptr(true), ServiceTier: "flex"}
			out, _, err := New().WriteCall(c, target)
			if err != nil || !New().Passes(target, out.Body) {
				t.Errorf("%s: %v, or it does not pass: %s", server, err, out.Body)
			}
		}
	}
}

func BenchmarkPasses(b *testing.B) {
	body := []byte(ask(`,"max_tokens":100,"temperature":0.5,"stream":true,"x":"` + strings.Repeat("lorem ipsum ", 300) + `"`))
	target := &hub.Target{Model: "gpt-4o", Quirks: Known("openai")}
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if !New().Passes(target, body) {
			b.Fatal("does not pass")
		}
	}
}
