package messages

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Version20261021 is the newer of the two API versions that a client may name in
// anthropic-version. In this version Anthropic refuses temperature, top_p and top_k; the
// gateway accepts them in either version, and drops them with a warning for models that
// refuse them.
const Version20261021 = "2026-10-21"

// Version20230601 is the older API version, and the default.
const Version20230601 = "2023-06-01"

// ReadCall decodes the body of POST /v1/messages, and of count_tokens, which has no
// max_tokens. The engine reads the model and the version.
func (*Format) ReadCall(head http.Header, body []byte) (*hub.Call, error) {
	if !json.Valid(body) {
		return nil, bad("", "the body is not JSON")
	}
	root := gjson.ParseBytes(body)
	if !root.IsObject() {
		return nil, bad("", "the body is not a JSON object")
	}
	r := &callReader{call: &hub.Call{}, names: make(map[string]string)}
	messages := false
	root.ForEach(func(key, value gjson.Result) bool {
		messages = messages || key.Str == "messages"
		if value.Type != gjson.Null {
			r.member(key.Str, value)
		}
		return r.err == nil
	})
	if r.err != nil {
		return nil, r.err
	}
	if !messages {
		return nil, bad("messages", "messages: field required")
	}
	r.conversation(root.Get("system"), root.Get("messages"))
	if r.err != nil {
		return nil, r.err
	}
	if betas := betasOf(head); len(betas) > 0 {
		r.call.Options.Set(self, "anthropicBeta", betas)
	}
	return r.call, nil
}

// betasOf returns the values in the headers anthropic-beta.
func betasOf(head http.Header) []string {
	var betas []string
	for _, line := range head.Values("Anthropic-Beta") {
		for beta := range strings.SplitSeq(line, ",") {
			if beta = strings.TrimSpace(beta); beta != "" {
				betas = append(betas, beta)
			}
		}
	}
	return betas
}

// callReader decodes one call. It keeps the first error.
type callReader struct {
	call  *hub.Call
	names map[string]string // tool names by call id
	err   error
}

func bad(param, format string, args ...any) *hub.Error {
	return &hub.Error{Kind: hub.BadRequest, Param: param, Message: fmt.Sprintf(format, args...)}
}

func (r *callReader) fail(param, format string, args ...any) {
	if r.err == nil {
		r.err = bad(param, "%s: %s", param, fmt.Sprintf(format, args...))
	}
}

func (r *callReader) warn(feature, format string, args ...any) {
	r.call.Warnings = append(r.call.Warnings, hub.Warning{
		Kind: hub.WarnUnsupported, Feature: feature, Message: fmt.Sprintf(format, args...),
	})
}

// member decodes a member of the body outside the conversation.
func (r *callReader) member(name string, value gjson.Result) {
	c := r.call
	switch name {
	case "model", "messages", "system":
	case "max_tokens":
		c.MaxOutputTokens = r.count(name, value, 1)
	case "temperature":
		c.Temperature = r.number(name, value)
	case "top_p":
		c.TopP = r.number(name, value)
	case "top_k":
		c.TopK = r.number(name, value)
	case "stop_sequences":
		r.each(name, value, func(at string, s gjson.Result) {
			c.StopSequences = append(c.StopSequences, r.text(at, s))
		})
	case "stream":
		if !value.IsBool() {
			r.fail(name, "is %s, not true or false", kind(value))
		}
		c.Stream = value.Bool()
	case "metadata":
		r.metadata(value)
	case "service_tier":
		if tier := r.text(name, value); tier != "auto" {
			c.ServiceTier = tier
		}
	case "cache_control":
		c.Options.SetRaw(self, "cacheControl", json.RawMessage(value.Raw))
	case "thinking":
		r.thinking(value)
	case "output_config":
		r.outputConfig(value)
	case "output_format": // the beta's name of it
		r.format(name, value)
	case "tools":
		r.each(name, value, r.tool)
	case "tool_choice":
		r.toolChoice(value)
	case "context_management", "container", "mcp_servers", "speed", "inference_geo":
		c.Options.SetRaw(self, camel(name), camels(value))
		r.warn(name, "only Anthropic's own models know it")
	default:
		r.warn(name, "the gateway does not know it and does not pass it on to providers of other formats")
	}
}

func (r *callReader) metadata(value gjson.Result) {
	if !value.IsObject() {
		r.fail("metadata", "is %s, not an object", kind(value))
		return
	}
	value.ForEach(func(key, value gjson.Result) bool {
		if key.Str == "user_id" {
			if value.Type != gjson.Null {
				r.call.User = r.text("metadata.user_id", value)
			}
		} else {
			r.warn("metadata."+key.Str, "only user_id is known")
		}
		return true
	})
}

// thinking sets the effort or the budget. Settings without a place in Call stay in the
// option anthropic.thinking.
func (r *callReader) thinking(value gjson.Result) {
	c := r.call
	c.Options.SetRaw(self, "thinking", camels(value))
	switch mode := value.Get("type").Str; mode {
	case "enabled":
		budget := r.count("thinking.budget_tokens", value.Get("budget_tokens"), 1)
		c.ThinkingBudget, c.Effort = budget, ""
	case "disabled":
		c.Effort, c.ThinkingBudget = hub.EffortNone, nil
	case "adaptive":
	default:
		r.fail("thinking.type", "is %.40q; it may be enabled, disabled or adaptive", mode)
	}
	if value.Get("display").Str == "omitted" {
		c.HideReasoning = true
	}
}

func (r *callReader) outputConfig(value gjson.Result) {
	if !value.IsObject() {
		r.fail("output_config", "is %s, not an object", kind(value))
		return
	}
	value.ForEach(func(key, value gjson.Result) bool {
		switch {
		case value.Type == gjson.Null:
		case key.Str == "effort":
			effort := hub.Effort(r.text("output_config.effort", value))
			r.call.Options.Set(self, "effort", effort)
			if r.call.Effort == "" && r.call.ThinkingBudget == nil {
				r.call.Effort = effort
			}
		case key.Str == "format":
			r.format("output_config.format", value)
		default:
			r.warn("output_config."+key.Str, "the gateway does not know it")
		}
		return r.err == nil
	})
}

func (r *callReader) format(at string, value gjson.Result) {
	if mode := value.Get("type").Str; mode != "json_schema" {
		r.fail(at+".type", "is %.40q, not json_schema", mode)
		return
	}
	schema := value.Get("schema")
	if !schema.IsObject() {
		r.fail(at+".schema", "is %s, not an object", kind(schema))
		return
	}
	strict := true // Anthropic constrains the sampling
	r.call.Format = &hub.Format{Schema: json.RawMessage(schema.Raw), Name: value.Get("name").Str, Strict: &strict}
}

func (r *callReader) toolChoice(value gjson.Result) {
	c := r.call
	switch mode := value.Get("type").Str; mode {
	case "auto":
		c.ToolChoice.Mode = hub.ToolAuto
	case "any":
		c.ToolChoice.Mode = hub.ToolRequired
	case "none":
		c.ToolChoice.Mode = hub.ToolNone
	case "tool":
		c.ToolChoice = hub.ToolChoice{Mode: hub.ToolNamed, Tool: r.text("tool_choice.name", value.Get("name"))}
	default:
		r.fail("tool_choice.type", "is %.40q; it may be auto, any, tool or none", mode)
	}
	if off := value.Get("disable_parallel_tool_use"); off.IsBool() {
		parallel := !off.Bool()
		c.ParallelTools = &parallel
	}
}

// tool decodes a tool. A tool with a type other than custom is a provider's tool, and all
// its members except the name and the cache marker become Args.
func (r *callReader) tool(at string, value gjson.Result) {
	if !value.IsObject() {
		r.fail(at, "is %s, not an object", kind(value))
		return
	}
	t := hub.Tool{Name: value.Get("name").Str}
	if mode := value.Get("type").Str; mode != "" && mode != "custom" {
		t.ProviderID = self + "." + mode
		if t.Name == "" {
			t.Name = mode // mcp_toolset has no name
		}
		if args := without(value, "type", "name", "cache_control"); args != nil {
			t.Args = camels(gjson.ParseBytes(args))
		}
		r.cacheControl(&t.Options, value)
		r.call.Tools = append(r.call.Tools, t)
		return
	}
	if t.Name == "" {
		r.fail(at+".name", "is missing")
		return
	}
	value.ForEach(func(key, value gjson.Result) bool {
		switch key.Str {
		case "name", "type":
		case "description":
			t.Description = value.Str
		case "input_schema":
			if !value.IsObject() {
				r.fail(at+".input_schema", "is %s, not an object", kind(value))
			}
			t.InputSchema = json.RawMessage(value.Raw)
		case "strict":
			strict := value.Bool()
			t.Strict = &strict
		case "input_examples":
			for _, example := range value.Array() {
				t.Examples = append(t.Examples, json.RawMessage(example.Raw))
			}
		case "defer_loading", "allowed_callers", "eager_input_streaming", "cache_control":
			if value.Type != gjson.Null {
				t.Options.SetRaw(self, camel(key.Str), json.RawMessage(value.Raw))
			}
		default:
			r.warn("tools."+t.Name+"."+key.Str, "the gateway does not know it")
		}
		return r.err == nil
	})
	r.call.Tools = append(r.call.Tools, t)
}

func (r *callReader) cacheControl(o *hub.Options, value gjson.Result) {
	if mark := value.Get("cache_control"); mark.IsObject() {
		o.SetRaw(self, "cacheControl", json.RawMessage(mark.Raw))
	}
}

// each calls f for each element of an array.
func (r *callReader) each(at string, value gjson.Result, f func(at string, element gjson.Result)) {
	if !value.IsArray() {
		r.fail(at, "is %s, not an array", kind(value))
		return
	}
	i := 0
	value.ForEach(func(_, element gjson.Result) bool {
		f(fmt.Sprintf("%s.%d", at, i), element)
		i++
		return r.err == nil
	})
}

func (r *callReader) text(at string, value gjson.Result) string {
	if value.Type != gjson.String {
		r.fail(at, "is %s, not text", kind(value))
	}
	return value.Str
}

func (r *callReader) number(at string, value gjson.Result) *float64 {
	if value.Type != gjson.Number {
		r.fail(at, "is %s, not a number", kind(value))
		return nil
	}
	n := value.Num
	return &n
}

// count decodes an integer that is at least least.
func (r *callReader) count(at string, value gjson.Result, least int64) *int64 {
	var n int64
	if value.Type != gjson.Number || json.Unmarshal([]byte(value.Raw), &n) != nil || n < least {
		r.fail(at, "is %s; it must be a whole number from %d on", shown(value), least)
		return nil
	}
	return &n
}

// shown returns a value for an error message: a number itself, or only the JSON type of
// another value, because errors must not contain parts of a prompt.
func shown(value gjson.Result) string {
	if value.Type == gjson.Number && len(value.Raw) < 32 {
		return value.Raw
	}
	return kind(value)
}

// kind returns the name of a value's JSON type.
func kind(value gjson.Result) string {
	switch {
	case !value.Exists():
		return "missing"
	case value.IsObject():
		return "an object"
	case value.IsArray():
		return "an array"
	case value.Type == gjson.String:
		return "text"
	case value.Type == gjson.Number:
		return "a number"
	case value.Type == gjson.Null:
		return "null"
	}
	return "a boolean"
}
