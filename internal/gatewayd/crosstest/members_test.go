package crosstest_test

import (
	"bytes"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/gatewayd/chatcompletions"
	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// member is a member of a request, given as the members of a body with it, and of a body
// without it.
type member struct{ name, with, without string }

const (
	aTool   = `"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"string"}}}%s}}]`
	aSchema = `"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false}%s}}`
	user    = `"messages":[{"role":"user","content":"hi"}]`
	flat    = `"tools":[{"type":"function","name":"f","parameters":{"type":"object","properties":{"a":{"type":"string"}}}%s}]`
	format  = `"text":{"format":{"type":"json_schema","name":"n","schema":{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false}%s}}`
	input   = `"input":[{"role":"user","content":"hi"}]`
	claudes = `"tools":[{"name":"f","input_schema":{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false}%s}]`
	aiTool  = `"tools":[{"type":"function","name":"f","inputSchema":{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false}%s}]`
	prompt  = `"prompt":[{"role":"user","content":[{"type":"text","text":"hi"}]}]`
)

// within returns a member of an object in the body.
func within(name, body, with string) member {
	return member{name, strings.Replace(body, "%s", ","+with, 1), strings.Replace(body, "%s", "", 1)}
}

// only returns a member of the body.
func only(name, value string) member { return member{name, fmt.Sprintf("%q:%s", name, value), ""} }

// bodies maps formats to the members that every request has.
var bodies = map[string]string{
	"chatcompletions": user, "responses": input, "messages": user + `,"max_tokens":2000`, "aisdk": prompt,
}

// members are all members of a format's requests: members in the newest SDKs of OpenAI
// and Anthropic and in the AI SDK's provider specification, members of other servers with
// the formats, and one unknown member.
var members = map[string][]member{
	"chatcompletions": {
		only("audio", `{"voice":"alloy","format":"wav"}`), only("frequency_penalty", "0.5"), only("function_call", `"auto"`), only("functions", `[{"name":"f"}]`),
		only("logit_bias", `{"50256":-100}`), only("logprobs", "true"), only("max_completion_tokens", "77"), only("max_tokens", "77"), only("metadata", `{"a":"b"}`),
		only("modalities", `["text","image"]`), only("moderation", `{"model":"omni"}`), only("n", "2"), only("prediction", `{"type":"content","content":"x"}`),
		only("presence_penalty", "0.5"), only("prompt_cache_key", `"k"`), only("prompt_cache_options", `{"ttl":"24h"}`), only("prompt_cache_retention", `"24h"`),
		only("reasoning_effort", `"high"`), only("safety_identifier", `"s"`), only("seed", "7"), only("service_tier", `"flex"`), only("stop", `["END"]`),
		only("store", "true"), only("stream", "true"), only("temperature", "0.3"), only("top_logprobs", "3"), only("top_p", "0.4"), only("user", `"u"`),
		only("verbosity", `"low"`), only("web_search_options", "{}"), only("top_k", "5"), only("thinking", `{"type":"enabled","budget_tokens":1500}`),
		only("reasoning", `{"effort":"high"}`), only("a_new_member", "1"),
		{"parallel_tool_calls", fmt.Sprintf(aTool, "") + `,"parallel_tool_calls":false`, fmt.Sprintf(aTool, "")},
		{"tool_choice", fmt.Sprintf(aTool, "") + `,"tool_choice":"required"`, fmt.Sprintf(aTool, "")},
		{"tools", fmt.Sprintf(aTool, ""), ""}, {"response_format", fmt.Sprintf(aSchema, ""), ""},
		{"tools.custom", `"tools":[{"type":"custom","custom":{"name":"f","description":"d","format":{"type":"grammar","grammar":{"syntax":"lark","definition":"start: x"}}}}]`, ""},
		within("description", aTool, `"description":"d"`), within("strict", aTool, `"strict":true`),
		within("response_format.description", aSchema, `"description":"what it is"`),
		{"stop, blank", `"stop":["END","\n"]`, `"stop":["END"]`}, {"stop, many", `"stop":["1","2","3","4","5","6"]`, `"stop":["1","2","3","4"]`},
		{"max_tokens, none", `"max_tokens":0`, ""}, {"max_completion_tokens, none", `"max_completion_tokens":0`, ""},
		{"an empty message first", `"messages":[{"role":"user","content":""},{"role":"assistant","content":"a"},{"role":"user","content":"b"}]`, `"messages":[{"role":"assistant","content":"a"},{"role":"user","content":"b"}]`},
		{"name", `"messages":[{"role":"user","name":"ann","content":"hi"}]`, user},
		{"reasoning.other", `"reasoning":{"effort":"high","other":1}`, `"reasoning":{"effort":"high"}`},
		{"detail", `"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo=","detail":"high"}}]}]`,
			`"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo="}}]}]`},
	},
	"responses": {
		only("background", "true"), only("context_management", `[{"type":"compaction"}]`), only("conversation", `"c"`), only("include", `["file_search_call.results"]`),
		only("instructions", `"be brief"`), only("max_output_tokens", "77"), only("max_tool_calls", "3"), only("metadata", `{"a":"b"}`), only("moderation", `{"model":"omni"}`),
		only("previous_response_id", `"r"`), only("prompt", `{"id":"p"}`), only("prompt_cache_key", `"k"`), only("prompt_cache_options", `{"ttl":"24h"}`),
		only("prompt_cache_retention", `"24h"`), only("reasoning", `{"effort":"high"}`), only("safety_identifier", `"s"`), only("service_tier", `"flex"`),
		only("store", "true"), only("stream", "true"), only("temperature", "0.3"), only("top_logprobs", "3"), only("top_p", "0.4"), only("truncation", `"auto"`),
		only("user", `"u"`), only("a_new_member", "1"),
		{"parallel_tool_calls", fmt.Sprintf(flat, "") + `,"parallel_tool_calls":false`, fmt.Sprintf(flat, "")},
		{"tool_choice", fmt.Sprintf(flat, "") + `,"tool_choice":"required"`, fmt.Sprintf(flat, "")},
		{"tools", fmt.Sprintf(flat, ""), ""}, {"text", fmt.Sprintf(format, ""), ""}, {"text.verbosity", `"text":{"verbosity":"low"}`, ""},
		{"text.other", `"text":{"other":1}`, ""}, {"reasoning.other", `"reasoning":{"effort":"high","other":1}`, `"reasoning":{"effort":"high"}`},
		within("description", flat, `"description":"d"`), within("strict", flat, `"strict":true`), within("tools.f.other", flat, `"other":1`),
		within("text.format.description", format, `"description":"what it is"`), within("text.format.other", format, `"other":1`),
		{"max_output_tokens, none", `"max_output_tokens":0`, ""},
		{"additional_tools", `"input":[{"role":"user","content":"hi"},{"type":"additional_tools","role":"developer","tools":[{"type":"function","name":"g","parameters":{"type":"object","properties":{}}}]}]`, input},
		{"detail", `"input":[{"role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,iVBORw0KGgo=","detail":"high"}]}]`,
			`"input":[{"role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,iVBORw0KGgo="}]}]`},
		{"a custom tool", `"tools":[{"type":"custom","name":"f","description":"d"}]`, ""},
		{"both user and safety_identifier", `"user":"u","safety_identifier":"s"`, `"user":"u"`},
	},
	"messages": {
		only("cache_control", `{"type":"ephemeral"}`), only("container", `"c"`), only("diagnostics", `{"a":1}`), only("inference_geo", `"us"`), only("metadata", `{"user_id":"u"}`),
		only("metadata.other", "1"), only("service_tier", `"standard_only"`), only("speed", `"fast"`), only("stop_sequences", `["END"]`), only("stream", "true"),
		only("system", `"be brief"`), only("temperature", "0.3"), only("top_k", "5"), only("top_p", "0.4"), only("thinking", `{"type":"enabled","budget_tokens":1500}`),
		only("output_config", `{"effort":"high"}`), only("user_profile_id", `"p"`), only("workspace_id", `"w"`), only("context_management", `{"edits":[]}`),
		only("mcp_servers", `[{"type":"url","url":"https://example.com","name":"m"}]`), only("billing_policy", `{"a":1}`), only("compaction", `{"a":1}`), only("fallbacks", `["x"]`),
		only("fallback_credit_token", `"t"`), only("thread", `{"a":1}`), only("a_new_member", "1"),
		{"max_tokens", `"max_tokens":77`, ""}, {"max_tokens, none", `"max_tokens":0`, ""},
		{"tools", fmt.Sprintf(claudes, ""), ""}, within("description", claudes, `"description":"d"`), within("strict", claudes, `"strict":true`),
		within("input_examples", claudes, `"input_examples":[{"a":"x"}]`), within("tools.f.other", claudes, `"other":1`),
		{"tool_choice", fmt.Sprintf(claudes, "") + `,"tool_choice":{"type":"any"}`, fmt.Sprintf(claudes, "")},
		{"disable_parallel_tool_use", fmt.Sprintf(claudes, "") + `,"tool_choice":{"type":"auto","disable_parallel_tool_use":true}`, fmt.Sprintf(claudes, "") + `,"tool_choice":{"type":"auto"}`},
		{"output_config.format", `"output_config":{"format":{"type":"json_schema","schema":{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false}}}`, ""},
		{"output_config.other", `"output_config":{"other":1}`, ""},
		{"stop_sequences, many", `"stop_sequences":["1","2","3","4","5","6"]`, `"stop_sequences":["1","2","3","4"]`},
	},
	"aisdk": {
		only("maxOutputTokens", "77"), only("temperature", "0.3"), only("topP", "0.4"), only("topK", "5"), only("presencePenalty", "0.5"), only("frequencyPenalty", "0.5"),
		only("stopSequences", `["END"]`), only("seed", "7"), only("reasoning", `"high"`), only("a_new_member", "1"),
		{"stopSequences, many", `"stopSequences":["1","2","3","4","5","6"]`, `"stopSequences":["1","2","3","4"]`},
		{"responseFormat", `"responseFormat":{"type":"json","schema":{"type":"object","properties":{"a":{"type":"string"}}}}`, ""},
		{"responseFormat.description", `"responseFormat":{"type":"json","description":"what it is","schema":{"type":"object","properties":{"a":{"type":"string"}}}}`, `"responseFormat":{"type":"json","schema":{"type":"object","properties":{"a":{"type":"string"}}}}`},
		{"responseFormat.other", `"responseFormat":{"type":"json","other":1}`, `"responseFormat":{"type":"json"}`},
		{"tools", fmt.Sprintf(aiTool, ""), ""}, within("description", aiTool, `"description":"d"`), within("strict", aiTool, `"strict":true`),
		within("inputExamples", aiTool, `"inputExamples":[{"input":{"a":"x"}}]`), within("tools[0].other", aiTool, `"other":1`),
		{"toolChoice", fmt.Sprintf(aiTool, "") + `,"toolChoice":{"type":"required"}`, fmt.Sprintf(aiTool, "")},
		{"maxOutputTokens, none", `"maxOutputTokens":0`, ""},
	},
}

// silent lists members that change nothing for a provider, with the reason.
var silent = []struct{ surface, name, upstream, why string }{
	{"messages", "cache_control", "", "a hint: without it the answer is the same"},
}

func TestMembers(t *testing.T) {
	t.Parallel()
	up := gatewaytest.New(t)
	targets := map[string]*hub.Target{
		"messages":              {Provider: "anthropic", Model: "claude-opus-4-6", MaxOutput: 64000},
		"converse":              {Provider: "bedrock", Model: "anthropic.claude-opus-4-6-v1", MaxOutput: 64000},
		"converse, Nova":        {Provider: "bedrock", Model: "amazon.nova-2-lite-v1"},
		"chatcompletions":       {Provider: "openai", Model: "gpt-4o", Quirks: chatcompletions.Known("openai")},
		"chatcompletions, vLLM": {Provider: "house", Model: "llama", Quirks: chatcompletions.Known("vllm")},
		"responses":             {Provider: "openai", Model: "gpt-4o"},
		"gemini":                {Provider: "google", Model: "gemini-3-pro"},
	}
	for _, target := range targets {
		up.On(target.Model, gatewaytest.Answer{Reply: gatewaytest.Reply{Text: "ok"}})
	}
	for _, s := range surfaces() {
		for name, target := range targets {
			t.Run(s.Name()+" to "+name, func(t *testing.T) {
				t.Parallel()
				for _, m := range members[s.Name()] {
					said := crossMember(t, up, s, name, target, m)
					excused := slices.ContainsFunc(silent, func(e struct{ surface, name, upstream, why string }) bool {
						return e.surface == s.Name() && e.name == m.name && regexp.MustCompile(e.upstream).MatchString(name)
					})
					if said == "" && !excused {
						t.Errorf("%s vanishes without a word", m.name)
					} else if said != "" && excused && said != "it is written" {
						t.Logf("%s needs no excuse: %s", m.name, said)
					}
				}
			})
		}
	}
}

// crossMember decodes a request with and without a member, encodes both for a target, and
// describes what happened to the member; the result is empty if the member vanished. The
// provider must accept the encoded requests.
func crossMember(t *testing.T, up *gatewaytest.Upstream, s hub.Surface, name string, target *hub.Target, m member) string {
	t.Helper()
	format, _, _ := strings.Cut(name, ",")
	u := upstreams()[format]
	write := func(members string) (*hub.Outgoing, []hub.Warning, *hub.Error) {
		c, err := s.ReadCall(http.Header{"Ai-Language-Model-Specification-Version": {"4"}}, []byte(body(s.Name(), members)))
		if err != nil {
			return nil, nil, failure(t, err)
		}
		out, warnings, err := u.WriteCall(c, target)
		if err != nil {
			return nil, nil, failure(t, err)
		}
		return out, append(slices.Clone(c.Warnings), warnings...), nil
	}
	out, warnings, err := write(m.with)
	if err != nil {
		word, _, _ := strings.Cut(m.name, ",")
		if !strings.Contains(err.Param+" "+err.Message, word) {
			t.Errorf("%s is refused without its name: %s: %s", m.name, err.Param, err.Message)
		}
		return "it is refused"
	}
	if said := post(t, up, format, out); said != "" {
		t.Errorf("with %s the provider refuses it: %s\n%s", m.name, said, out.Body)
	}
	for _, w := range warnings {
		if w.Message == "" || w.Feature == "" {
			t.Errorf("%s: a warning without words: %+v", m.name, w)
		}
	}
	without, before, err := write(m.without)
	switch {
	case err != nil:
		return "it is written"
	case len(warnings) > len(before):
		return "there is a warning"
	case strings.HasPrefix(m.name, "stop") && slices.ContainsFunc(warnings, func(w hub.Warning) bool { return w.Feature == "stopSequences" }):
		return "there is a warning" // the provider takes no stop sequences at all
	case !bytes.Equal(out.Body, without.Body) || fmt.Sprint(out.Path, out.Head) != fmt.Sprint(without.Path, without.Head):
		return "it is written"
	}
	return ""
}

// body returns a body; members replace the standard members with the same names.
func body(surface, members string) string {
	base := bodies[surface]
	if members == "" {
		return `{"model":"m",` + base + "}"
	}
	for _, name := range []string{"messages", "input", "max_tokens"} {
		if strings.HasPrefix(members, `"`+name+`":`) {
			base = regexp.MustCompile(`"`+name+`":(\[.*\]|\d+),?`).ReplaceAllString(base, "")
		}
	}
	return `{"model":"m",` + strings.TrimSuffix(members+","+strings.TrimPrefix(base, ","), ",") + "}"
}
