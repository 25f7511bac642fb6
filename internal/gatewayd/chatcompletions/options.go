package chatcompletions

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// options writes the caller's options for this provider. AI SDK names of options become
// the API's names, others are passed on unchanged; an option that the request already
// contains is not written again.
func (w *callWriter) options() {
	members := w.own(w.c.Options)
	kept := w.c.Options[own]
	w.warnings = append(w.warnings, w.c.Unheard(func(m hub.Member) bool {
		name, known := wireNames[m.Option]
		return m.Option == "imageDetail" || kept[keptMember+m.Name] != nil || members[m.Option] != nil && (!known || name != "")
	})...)
	if len(members) == 0 && len(kept) == 0 {
		return
	}
	written := map[string]bool{}
	gjson.ParseBytes(append(slices.Clone(w.b), '}')).ForEach(func(key, _ gjson.Result) bool {
		written[key.Str] = true
		return true
	})
	for _, member := range slices.Sorted(maps.Keys(members)) {
		v := members[member]
		name, known := wireNames[member]
		if !known {
			name = member
		}
		switch {
		case member == "logprobs" && w.reasons:
			w.unsupported("logprobs")
		case member == "logprobs":
			w.logprobs(v)
			written["logprobs"], written["top_logprobs"] = true, true
		case name == "" || written[name]: // an option of another API, or handled elsewhere
		case reserved[name] || !plainName(name):
			w.warn(hub.WarnUnsupported, "providerOptions."+w.t.Provider+"."+member, "the gateway sets it")
		default:
			written[name] = true
			w.b.raw(name, v)
		}
	}
	for _, member := range slices.Sorted(maps.Keys(kept)) { // from a client of this format
		name, ok := strings.CutPrefix(member, keptMember)
		if ok && !written[name] && !(w.reasons && strings.HasSuffix(name, "logprobs")) {
			w.b.raw(name, kept[member])
		}
	}
}

// own returns the options for this provider: options under the provider's configured
// name, and for OpenAI's API also under openai.
func (w *callWriter) own(o hub.Options) map[string]json.RawMessage {
	var names []string
	if w.t.Is(OpenAI) {
		names = append(names, "openai")
	}
	names = append(names, camelCase(w.t.Provider), w.t.Provider)
	members := map[string]json.RawMessage{}
	for _, name := range names {
		maps.Copy(members, o[name])
	}
	return members
}

// extra writes the options of a call of another kind of model, for example outputFormat
// as output_format.
func (w *callWriter) extra(o hub.Options) {
	members := w.own(o)
	for _, member := range slices.Sorted(maps.Keys(members)) {
		switch name := snakeCase(member); {
		case name == "response_format":
		case reserved[name] || name == "input" || name == "prompt" || !plainName(name):
			w.warn(hub.WarnUnsupported, "providerOptions."+w.t.Provider+"."+member, "the gateway sets it")
		default:
			w.b.raw(name, members[member])
		}
	}
}

// plainName reports whether a member name needs no JSON escapes.
func plainName(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool { return !isAlphanumeric(r) && r != '_' && r != '-' && r != '.' })
}

// snakeCase converts outputFormat to output_format.
func snakeCase(name string) string {
	var b strings.Builder
	for _, r := range name {
		if r >= 'A' && r <= 'Z' {
			b.WriteByte('_')
			r += 'a' - 'A'
		}
		b.WriteRune(r)
	}
	return b.String()
}

// logprobs writes true, or the number of top logprobs.
func (w *callWriter) logprobs(v json.RawMessage) {
	switch r := gjson.ParseBytes(v); r.Type {
	case gjson.True:
		w.b.bool("logprobs", true)
	case gjson.Number:
		w.b.bool("logprobs", true)
		w.b.int("top_logprobs", r.Int())
	}
}

// wireNames maps options of the AI SDK's providers to the API's names; options mapped to
// "" are not passed on.
var wireNames = map[string]string{
	"logitBias": "logit_bias", "textVerbosity": "verbosity", "promptCacheKey": "prompt_cache_key", "promptCacheRetention": "prompt_cache_retention",
	"safetyIdentifier": "safety_identifier", "reasoningEffort": "reasoning_effort", "parallelToolCalls": "parallel_tool_calls",
	"maxCompletionTokens": "max_completion_tokens", "serviceTier": "service_tier", "searchParameters": "search_parameters",
	"reasoningFormat": "reasoning_format", "includeReasoning": "include_reasoning", "safePrompt": "safe_prompt", "promptMode": "prompt_mode",
	"documentImageLimit": "document_image_limit", "documentPageLimit": "document_page_limit", "topLogprobs": "top_logprobs",

	"strictJsonSchema": "", "structuredOutputs": "", "systemMessageMode": "", "forceReasoning": "", "reasoningSummary": "", "include": "",
	"previousResponseId": "", "instructions": "", "maxToolCalls": "", "contextManagement": "", "truncation": "", "itemId": "", "reasoningEncryptedContent": "", "conversation": "",
}

// reserved are members that decide which model answers, how often and to whom.
var reserved = map[string]bool{
	"model": true, "models": true, "messages": true, "stream": true, "stream_options": true, "n": true, "provider": true,
	"tools": true, "functions": true, "modalities": true, "audio": true,
}

// camelCase converts my-server to myServer, the AI SDK's form of provider names.
func camelCase(name string) string {
	words := strings.FieldsFunc(name, func(r rune) bool { return r == '-' || r == '_' || r == '.' })
	for i := 1; i < len(words); i++ {
		words[i] = strings.ToUpper(words[i][:1]) + words[i][1:]
	}
	return strings.Join(words, "")
}
