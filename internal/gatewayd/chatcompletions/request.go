package chatcompletions

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// ReadCall decodes a request. It ignores model and the members for the gateway itself
// (models, providerOptions.gateway).
func (*Format) ReadCall(_ http.Header, body []byte) (*hub.Call, error) {
	if !valid(body) {
		return nil, wrong("", "the body is not a JSON object, or nests deeper than %d levels", maxDepth)
	}
	r := &callReader{call: new(hub.Call), names: map[string]string{}}
	root := gjson.ParseBytes(body)
	if !root.IsObject() {
		return nil, wrong("", "the body must be a JSON object")
	}
	root.ForEach(func(key, v gjson.Result) bool {
		if v.Type != gjson.Null {
			r.member(key.Str, v)
		}
		return r.err == nil
	})
	if r.err == nil {
		r.finish()
	}
	if r.err != nil {
		return nil, r.err
	}
	return r.call, nil
}

// callReader is a request being decoded.
type callReader struct {
	call *hub.Call
	err  error

	messages bool
	newMax   bool // max_completion_tokens was present
	allowed  []string
	names    map[string]string // tool names by call id
}

// wrong returns the error for an invalid member param.
func wrong(param, format string, args ...any) *hub.Error {
	return &hub.Error{Kind: hub.BadRequest, Param: param, Message: fmt.Sprintf(format, args...)}
}

// fail records the first error.
func (r *callReader) fail(param, format string, args ...any) {
	if r.err == nil {
		r.err = wrong(param, "%s "+format, append([]any{param}, args...)...)
	}
}

func (r *callReader) warn(kind hub.WarningKind, feature, message string) {
	if len(r.call.Warnings) < 64 {
		r.call.Warnings = append(r.call.Warnings, hub.Warning{Kind: kind, Feature: feature, Message: message})
	}
}

func (r *callReader) member(name string, v gjson.Result) {
	c := r.call
	switch name {
	case "model", "models": // the gateway's
	case "messages":
		r.readMessages(v)
	case "stream":
		c.Stream = r.bool(name, v)
	case "stream_options":
		if v.Get("include_usage").Type == gjson.True {
			c.Options.Set(own, "includeUsage", true)
		}
	case "max_tokens":
		if n := r.positive(name, v); !r.newMax {
			c.MaxOutputTokens = n
		}
	case "max_completion_tokens":
		c.MaxOutputTokens, r.newMax = r.positive(name, v), true
	case "temperature":
		c.Temperature = r.float(name, v)
	case "top_p":
		c.TopP = r.float(name, v)
	case "top_k":
		c.TopK = r.float(name, v)
	case "presence_penalty":
		c.PresencePenalty = r.float(name, v)
	case "frequency_penalty":
		c.FrequencyPenalty = r.float(name, v)
	case "seed":
		c.Seed = r.int(name, v)
	case "stop":
		r.stop(v)
	case "n":
		if v.Type != gjson.Number || v.Num != 1 {
			r.fail(name, "must be 1: this model is asked for one answer at a time")
		}
	case "response_format":
		r.responseFormat(v)
	case "tools":
		r.tools(v)
	case "tool_choice":
		r.toolChoice(v)
	case "parallel_tool_calls":
		parallel := r.bool(name, v)
		c.ParallelTools = &parallel
	case "reasoning_effort":
		c.Effort = hub.Effort(r.text(name, v))
	case "reasoning":
		r.reasoning(v)
	case "include_reasoning":
		c.HideReasoning = !r.bool(name, v)
	case "thinking":
		r.thinking(v)
	case "service_tier":
		if tier := r.text(name, v); tier != "auto" {
			c.ServiceTier = tier
		}
	case "user":
		c.User = r.text(name, v)
	case "providerOptions":
		r.providerOptions(v)
	case "modalities":
		r.modalities(v)
	case "audio", "functions", "function_call":
		r.fail(name, "cannot be translated for this model: %s", map[string]string{
			"audio": "it does not answer with audio", "functions": "use tools", "function_call": "use tool_choice",
		}[name])
	case "logprobs":
		if v.Type == gjson.True && c.Options["openai"]["logprobs"] == nil {
			c.Own(name, "openai", "logprobs", json.RawMessage("true"))
		}
	case "top_logprobs":
		c.Own(name, "openai", "logprobs", json.RawMessage(v.Raw))
	default:
		if option, ok := openAIOptions[name]; ok {
			c.Own(name, "openai", option, json.RawMessage(v.Raw))
		} else {
			r.warn(hub.WarnUnsupported, name, unknownMember)
		}
	}
	if plainName(name) && !handled[name] {
		c.Options.SetRaw(own, keptMember+name, json.RawMessage(v.Raw))
	}
}

// unknownMember is the warning about an unknown member.
const unknownMember = "the gateway does not know it: it goes to servers of this format alone"

// keptMember is the prefix of the names under which unknown members are kept for other
// servers of this format.
const keptMember = "member."

// handled are the members that Call has a place for.
var handled = map[string]bool{
	"model": true, "models": true, "messages": true, "stream": true, "stream_options": true, "max_tokens": true, "max_completion_tokens": true,
	"temperature": true, "top_p": true, "top_k": true, "presence_penalty": true, "frequency_penalty": true, "seed": true, "stop": true, "n": true,
	"response_format": true, "tools": true, "tool_choice": true, "parallel_tool_calls": true, "reasoning_effort": true, "reasoning": true,
	"include_reasoning": true, "thinking": true, "service_tier": true, "user": true, "providerOptions": true,
}

// openAIOptions maps members that only OpenAI knows to the AI SDK's names of these
// options.
var openAIOptions = map[string]string{
	"logit_bias":             "logitBias",
	"metadata":               "metadata",
	"store":                  "store",
	"prediction":             "prediction",
	"verbosity":              "textVerbosity",
	"prompt_cache_key":       "promptCacheKey",
	"prompt_cache_retention": "promptCacheRetention",
	"safety_identifier":      "safetyIdentifier",
}

// finish makes the checks that involve several members.
func (r *callReader) finish() {
	c := r.call
	switch {
	case !r.messages:
		r.fail("messages", "is missing")
	case c.Effort != "" && c.ThinkingBudget != nil:
		r.fail("reasoning", "has both an effort and max_tokens: one of them is enough")
	case r.allowed != nil:
		c.Tools = keep(c.Tools, r.allowed)
		if len(c.Tools) == 0 {
			r.fail("tool_choice", "allows none of the tools")
		}
	}
}

func keep(tools []hub.Tool, names []string) (kept []hub.Tool) {
	for _, t := range tools {
		for _, n := range names {
			if n == t.Name {
				kept = append(kept, t)
				break
			}
		}
	}
	return kept
}

func (r *callReader) bool(name string, v gjson.Result) bool {
	if v.Type != gjson.True && v.Type != gjson.False {
		r.fail(name, "must be true or false")
	}
	return v.Type == gjson.True
}

func (r *callReader) text(name string, v gjson.Result) string {
	if v.Type != gjson.String {
		r.fail(name, "must be a string")
	}
	return v.Str
}

func (r *callReader) float(name string, v gjson.Result) *float64 {
	if v.Type != gjson.Number {
		r.fail(name, "must be a number")
	}
	return &v.Num
}

func (r *callReader) int(name string, v gjson.Result) *int64 {
	n := v.Int()
	if v.Type != gjson.Number || v.Num != float64(n) {
		r.fail(name, "must be a whole number")
	}
	return &n
}

// positive reads a number of tokens.
func (r *callReader) positive(name string, v gjson.Result) *int64 {
	n := r.int(name, v)
	if *n < 1 {
		r.fail(name, "is %d; it must be 1 or more", *n)
	}
	return n
}

func (r *callReader) stop(v gjson.Result) {
	if v.Type == gjson.String {
		r.call.StopSequences = []string{v.Str}
		return
	}
	if !v.IsArray() {
		r.fail("stop", "must be a string or a list of strings")
	}
	for i, s := range v.Array() {
		r.call.StopSequences = append(r.call.StopSequences, r.text(fmt.Sprintf("stop[%d]", i), s))
	}
}

func (r *callReader) responseFormat(v gjson.Result) {
	switch kind := v.Get("type").Str; kind {
	case "text":
	case "json_object":
		r.call.Format = &hub.Format{}
	case "json_schema":
		s := v.Get("json_schema")
		f := &hub.Format{Name: s.Get("name").String(), Description: s.Get("description").String()}
		schema := s.Get("schema")
		if !schema.IsObject() {
			r.fail("response_format.json_schema.schema", "must be a JSON Schema")
			return
		}
		f.Schema = json.RawMessage(schema.Raw)
		if strict := s.Get("strict"); strict.Type == gjson.True || strict.Type == gjson.False {
			b := strict.Bool()
			f.Strict = &b
		}
		r.call.Format = f
	default:
		r.fail("response_format.type", "is %.64q; it must be text, json_object or json_schema", kind)
	}
}

func (r *callReader) tools(v gjson.Result) {
	if !v.IsArray() {
		r.fail("tools", "must be a list")
	}
	for i, v := range v.Array() {
		if r.err != nil {
			return
		}
		r.tool(fmt.Sprintf("tools[%d]", i), v)
	}
}

func (r *callReader) tool(at string, v gjson.Result) {
	switch kind := v.Get("type").Str; kind {
	case "function":
	case "custom":
		r.customTool(at+".custom", v.Get("custom"))
		return
	case "provider", "provider-defined": // a provider's own, in the words of the AI SDK
		t := hub.Tool{ProviderID: r.text(at+".id", v.Get("id")), Name: v.Get("name").String()}
		if args := v.Get("args"); args.IsObject() {
			t.Args = json.RawMessage(args.Raw)
		}
		if t.Name == "" {
			t.Name = t.ProviderID[strings.IndexByte(t.ProviderID, '.')+1:]
		}
		r.call.Tools = append(r.call.Tools, t)
		return
	default:
		r.fail(at+".type", "is %.64q; it must be function or custom", kind)
		return
	}
	f := v.Get("function")
	t := hub.Tool{Name: r.text(at+".function.name", f.Get("name")), Description: f.Get("description").String()}
	if t.Name == "" {
		r.fail(at+".function.name", "is empty")
	}
	switch p := f.Get("parameters"); {
	case p.IsObject():
		t.InputSchema = json.RawMessage(p.Raw)
	case p.Type == gjson.Null: // also for a missing member
		t.InputSchema = json.RawMessage(noParameters)
	default:
		r.fail(at+".function.parameters", "must be a JSON Schema")
	}
	if strict := f.Get("strict"); strict.Type == gjson.True || strict.Type == gjson.False {
		b := strict.Bool()
		t.Strict = &b
	}
	for _, at := range []gjson.Result{v, f} {
		cacheControl(&t.Options, at)
	}
	r.call.Tools = append(r.call.Tools, t)
}

// noParameters is the schema of a tool without parameters.
const noParameters = `{"type":"object","properties":{}}`

func cacheControl(o *hub.Options, v gjson.Result) {
	if c := v.Get("cache_control"); c.IsObject() {
		o.SetRaw("anthropic", "cacheControl", json.RawMessage(c.Raw))
	}
}

func (r *callReader) toolChoice(v gjson.Result) {
	if v.Type == gjson.String {
		r.call.ToolChoice.Mode = r.toolMode("tool_choice", v.Str)
		return
	}
	switch kind := v.Get("type").Str; kind {
	case "function":
		name := r.text("tool_choice.function.name", v.Get("function.name"))
		r.call.ToolChoice = hub.ToolChoice{Mode: hub.ToolNamed, Tool: name}
	case "custom":
		name := r.text("tool_choice.custom.name", v.Get("custom.name"))
		r.call.ToolChoice = hub.ToolChoice{Mode: hub.ToolNamed, Tool: name}
	case "allowed_tools": // equivalent to a call without the other tools
		a := v.Get("allowed_tools")
		r.call.ToolChoice.Mode = r.toolMode("tool_choice.allowed_tools.mode", a.Get("mode").Str)
		r.allowed = []string{}
		for _, t := range a.Get("tools").Array() {
			r.allowed = append(r.allowed, t.Get("function.name").Str+t.Get("custom.name").Str)
		}
	case "auto", "none", "required", "any":
		r.call.ToolChoice.Mode = r.toolMode("tool_choice.type", kind)
	default:
		r.fail("tool_choice.type", "is %.64q; it must be function, custom or allowed_tools", kind)
	}
}

func (r *callReader) toolMode(at, mode string) hub.ToolMode {
	switch mode {
	case "auto", "none", "required":
		return hub.ToolMode(mode)
	case "any":
		return hub.ToolRequired
	}
	r.fail(at, "is %.64q; it must be auto, none, required or name a function", mode)
	return ""
}

// reasoning reads OpenRouter's object {enabled, effort, max_tokens, exclude}.
func (r *callReader) reasoning(v gjson.Result) {
	if !v.IsObject() {
		r.fail("reasoning", "must be an object")
	}
	c := r.call
	v.ForEach(func(key, v gjson.Result) bool {
		at := "reasoning." + key.Str
		switch {
		case v.Type == gjson.Null:
		case key.Str == "effort":
			c.Effort = hub.Effort(r.text(at, v))
		case key.Str == "max_tokens":
			c.ThinkingBudget = r.int(at, v)
		case key.Str == "exclude":
			c.HideReasoning = r.bool(at, v)
		case key.Str == "enabled":
			r.bool(at, v)
		default:
			r.warn(hub.WarnUnsupported, at, "the gateway does not know it")
		}
		return r.err == nil
	})
	switch enabled := v.Get("enabled").Type; {
	case enabled == gjson.False:
		c.Effort, c.ThinkingBudget = hub.EffortNone, nil
	case enabled == gjson.True && c.Effort == "" && c.ThinkingBudget == nil:
		c.Effort = hub.EffortMedium // OpenRouter's documented default
	}
}

// thinking reads Anthropic's object, or DeepSeek's, which has no budget.
func (r *callReader) thinking(v gjson.Result) {
	switch kind := v.Get("type").Str; kind {
	case "disabled":
		r.call.Effort = hub.EffortNone
	case "enabled", "adaptive", "auto":
		if b := v.Get("budget_tokens"); b.Type == gjson.Number {
			r.call.ThinkingBudget = r.int("thinking.budget_tokens", b)
		} else if r.call.Effort == "" {
			r.call.Effort = hub.EffortMedium
		}
	default:
		r.fail("thinking.type", "is %.64q; it must be enabled or disabled", kind)
	}
}

func (r *callReader) providerOptions(v gjson.Result) {
	if !v.IsObject() {
		r.fail("providerOptions", "must be an object")
	}
	v.ForEach(func(provider, members gjson.Result) bool {
		if provider.Str == "gateway" {
			return true
		}
		if !members.IsObject() {
			r.fail("providerOptions."+provider.Str, "must be an object")
			return false
		}
		members.ForEach(func(name, v gjson.Result) bool {
			r.call.Options.SetRaw(provider.Str, name.Str, json.RawMessage(v.Raw))
			return true
		})
		return true
	})
}

func (r *callReader) modalities(v gjson.Result) {
	var google []string
	image := false
	for _, m := range v.Array() {
		switch m.Str {
		case "text":
		case "image":
			image = true
		default:
			r.fail("modalities", "has %.64q; this model answers with text, or images", m.Str)
			return
		}
		google = append(google, strings.ToUpper(m.Str))
	}
	if image {
		r.call.Own("modalities", "google", "responseModalities", hub.MustEncode(google))
	}
}
