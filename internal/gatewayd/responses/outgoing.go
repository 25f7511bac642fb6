package responses

import (
	"encoding/json"
	"slices"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/schema"
)

// body is the request body.
type body struct {
	Model              string          `json:"model"`
	Instructions       string          `json:"instructions,omitempty"`
	Input              []any           `json:"input"`
	Tools              []any           `json:"tools,omitempty"`
	ToolChoice         any             `json:"tool_choice,omitempty"`
	ParallelToolCalls  *bool           `json:"parallel_tool_calls,omitempty"`
	MaxOutputTokens    *int64          `json:"max_output_tokens,omitempty"`
	Temperature        *float64        `json:"temperature,omitempty"`
	TopP               *float64        `json:"top_p,omitempty"`
	Text               object          `json:"text,omitempty"`
	Reasoning          object          `json:"reasoning,omitempty"`
	Include            []string        `json:"include,omitempty"`
	ServiceTier        string          `json:"service_tier,omitempty"`
	User               string          `json:"user,omitempty"`
	Store              json.RawMessage `json:"store"`
	Stream             bool            `json:"stream,omitempty"`
	Metadata           json.RawMessage `json:"metadata,omitempty"`
	PreviousResponseID json.RawMessage `json:"previous_response_id,omitempty"`
	Conversation       json.RawMessage `json:"conversation,omitempty"`
	PromptCacheKey     json.RawMessage `json:"prompt_cache_key,omitempty"`
	CacheRetention     json.RawMessage `json:"prompt_cache_retention,omitempty"`
	SafetyIdentifier   json.RawMessage `json:"safety_identifier,omitempty"`
	Truncation         json.RawMessage `json:"truncation,omitempty"`
	MaxToolCalls       json.RawMessage `json:"max_tool_calls,omitempty"`
	TopLogprobs        json.RawMessage `json:"top_logprobs,omitempty"`
	ContextManagement  json.RawMessage `json:"context_management,omitempty"`
}

// WriteCall encodes a call as POST /responses. The provider stores nothing: unless the
// caller's options for OpenAI say otherwise, store is false, and encrypted reasoning is
// requested instead.
//
// The format has no place for the following, which become warnings: topK, penalties, stop
// sequences, seed, and for reasoning models temperature and topP. Files other than
// images, documents and text are refused, and so are tools of other providers.
func (*Format) WriteCall(c *hub.Call, t *hub.Target) (*hub.Outgoing, []hub.Warning, error) {
	w := &callWriter{call: c, target: t, kinds: make(map[string]string), foreign: make(map[string]*hub.ToolCall), custom: make(map[string]bool), options: options(c.Options, t.Provider), namespaces: newNamespaced(c.Tools)}
	w.body.Model, w.body.Stream = t.Model, c.Stream
	w.settings()
	if err := w.tools(); err != nil {
		return nil, nil, err
	}
	w.given()
	for i := range c.Prompt {
		if err := w.message(i, &c.Prompt[i]); err != nil {
			return nil, nil, err
		}
	}
	if w.body.Input == nil {
		w.body.Input = []any{}
	}
	return &hub.Outgoing{Path: "/responses", Body: hub.MustEncode(w.body)}, w.warnings, nil
}

type callWriter struct {
	call     *hub.Call
	target   *hub.Target
	options  map[string]json.RawMessage // the provider's options
	body     body
	warnings []hub.Warning
	kinds    map[string]string // type of the item of a tool call, by its id
	images   []any             // the assistant's, for the next user message
	echo     bool              // encodes the request for the client's answer, not for a provider
	custom   map[string]bool   // custom tools
	foreign  map[string]*hub.ToolCall
	results  map[string]*hub.ToolResult // results in the message being written

	namespaces namespaced
}

// options returns the options for OpenAI, overridden by those under the provider's own
// name (azure, xai).
func options(o hub.Options, provider string) map[string]json.RawMessage {
	all := make(map[string]json.RawMessage)
	for _, name := range []string{optProvider, provider} {
		for k, v := range o[name] {
			if !hub.IsNull(v) {
				all[k] = v
			}
		}
	}
	return all
}

func (w *callWriter) warn(kind hub.WarningKind, feature, message string) {
	w.warnings = append(w.warnings, hub.Warning{Kind: kind, Feature: feature, Message: message})
}

func (w *callWriter) unsupported(feature, message string) {
	w.warn(hub.WarnUnsupported, feature, message)
}

func (w *callWriter) settings() {
	c, b := w.call, &w.body
	b.MaxOutputTokens, b.ParallelToolCalls, b.User = c.MaxOutputTokens, c.ParallelTools, c.User
	b.ServiceTier = c.ServiceTier
	for _, s := range []struct {
		set  bool
		name string
	}{
		{c.TopK != nil, "topK"}, {c.PresencePenalty != nil, "presencePenalty"}, {c.FrequencyPenalty != nil, "frequencyPenalty"},
		{len(c.StopSequences) > 0, "stopSequences"}, {c.Seed != nil, "seed"},
	} {
		if s.set {
			w.unsupported(s.name, "the Responses API has no such setting")
		}
	}
	effort := w.effort()
	if effort != "" {
		b.Reasoning = object{"effort": effort}
	}
	if refusesSampling(w.target.Model, effort) {
		if c.Temperature != nil {
			w.unsupported("temperature", "models that think do not take it")
		}
		if c.TopP != nil {
			w.unsupported("topP", "models that think do not take it")
		}
	} else {
		b.Temperature, b.TopP = c.Temperature, c.TopP
	}
	if f := c.Format; f != nil {
		format := object{"type": "json_object"}
		if f.Schema != nil {
			wanted := f.Strict != nil && *f.Strict || f.Strict == nil && string(w.options["strictJsonSchema"]) == "true"
			fitted, strict := w.fitted(f.Schema, wanted, "responseFormat")
			format = object{"type": "json_schema", "name": "response", "schema": fitted}
			if f.Name != "" {
				format["name"] = f.Name
			}
			if f.Description != "" {
				format["description"] = f.Description
			}
			if f.Strict != nil || w.options["strictJsonSchema"] != nil {
				format["strict"] = strict
			}
		}
		b.Text = object{"format": format}
	}
}

// fitted returns a schema adapted to the provider, and whether it is strict.
func (w *callWriter) fitted(raw json.RawMessage, strict bool, feature string) (json.RawMessage, bool) {
	if w.echo {
		return raw, strict
	}
	fitted, strict, warnings := schema.ForOpenAI(raw, feature, &strict)
	w.warnings = append(w.warnings, warnings...)
	return fitted, strict
}

// usualOutput is the output limit assumed for budgets if the model's is unknown.
const usualOutput = 32768

// effort returns the format's word for the reasoning effort. The format has no budgets,
// and no effort above xhigh.
func (w *callWriter) effort() string {
	effort := string(w.call.Effort)
	if n := w.call.ThinkingBudget; n != nil {
		limit := w.target.MaxOutput
		if limit == 0 {
			limit = usualOutput
		}
		effort = string(hub.BudgetEffort(*n, limit))
		w.warn(hub.WarnCompatibility, "thinkingBudget", "the Responses API has efforts and no budgets; it is "+effort)
	}
	if effort == string(hub.EffortMax) {
		w.warn(hub.WarnCompatibility, "reasoning", "the highest effort of the Responses API is xhigh")
		effort = string(hub.EffortXHigh)
	}
	return effort
}

// given copies the caller's options for the provider, by their names in the AI SDK.
func (w *callWriter) given() {
	b := &w.body
	b.Store = json.RawMessage("false")
	raw := map[string]*json.RawMessage{
		"store": &b.Store, "metadata": &b.Metadata, "previousResponseId": &b.PreviousResponseID, "conversation": &b.Conversation,
		"promptCacheKey": &b.PromptCacheKey, "promptCacheRetention": &b.CacheRetention, "safetyIdentifier": &b.SafetyIdentifier,
		"truncation": &b.Truncation, "maxToolCalls": &b.MaxToolCalls, "topLogprobs": &b.TopLogprobs, "contextManagement": &b.ContextManagement,
	}
	reasoning := func(name string, v json.RawMessage) {
		if b.Reasoning == nil {
			b.Reasoning = object{}
		}
		b.Reasoning[name] = v
	}
	for _, name := range sorted(w.options) {
		v := w.options[name]
		if into := raw[name]; into != nil {
			*into = v
			continue
		}
		ok := true
		switch name {
		case "reasoningSummary":
			reasoning("summary", v)
		case "reasoningEffort":
			if b.Reasoning["effort"] == nil {
				reasoning("effort", v)
			}
		case "textVerbosity":
			if b.Text == nil {
				b.Text = object{}
			}
			b.Text["verbosity"] = v
		case "include":
			ok = json.Unmarshal(v, &b.Include) == nil
		case "instructions":
			ok = json.Unmarshal(v, &b.Instructions) == nil
		case "user":
			ok = json.Unmarshal(v, &b.User) == nil
		case "serviceTier":
			ok = json.Unmarshal(v, &b.ServiceTier) == nil
		case "parallelToolCalls":
			ok = json.Unmarshal(v, &b.ParallelToolCalls) == nil
		case "strictJsonSchema": // see settings
		case "logprobs":
			ok = w.logprobs(v)
		case "systemMessageMode", "forceReasoning", "passThroughUnsupportedFiles": // nothing to do
		default:
			ok = false
		}
		if !ok {
			w.unsupported("providerOptions."+optProvider+"."+name, "the Responses API has no such setting")
		}
	}
	w.warnings = append(w.warnings, w.call.Unheard(func(m hub.Member) bool { return m.Provider == optProvider || m.Provider == w.target.Provider })...)
	include := func(what string) {
		if !slices.Contains(b.Include, what) {
			b.Include = append(b.Include, what)
		}
	}
	if string(b.Store) == "false" && (encrypts(w.target.Model) || w.target.Is(QuirkReasoning)) {
		include("reasoning.encrypted_content")
	}
	if b.TopLogprobs != nil {
		include("message.output_text.logprobs")
	}
	for _, t := range w.call.Tools {
		switch {
		case w.target.Is(QuirkPlainInclude):
		case t.ProviderID == "openai.web_search", t.ProviderID == "openai.web_search_preview":
			include("web_search_call.action.sources")
		case t.ProviderID == "openai.code_interpreter":
			include("code_interpreter_call.outputs")
		}
	}
}

// logprobs reads true, which stands for the maximum, or a number.
func (w *callWriter) logprobs(v json.RawMessage) bool {
	switch string(v) {
	case "false":
	case "true":
		w.body.TopLogprobs = json.RawMessage("20")
	default:
		var n int
		if json.Unmarshal(v, &n) != nil {
			return false
		}
		w.body.TopLogprobs = v
	}
	return true
}
