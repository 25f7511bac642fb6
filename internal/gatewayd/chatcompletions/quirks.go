package chatcompletions

import (
	"maps"
	"strings"
)

// The quirks: each describes how a server differs from OpenAI's documentation, and is set
// in the Target of a call. Answers need no quirks, with two exceptions (ThinkTags,
// WholeToolCalls): the decoder tolerates all variants.
const (
	// OpenAI: the server is OpenAI or Azure. Its reasoning models (o1, o3, gpt-5...,
	// recognized by name) require max_completion_tokens and developer messages, and
	// refuse temperature, top_p, penalties and logprobs; its other models refuse
	// reasoning_effort. Embeddings are requested in base64.
	OpenAI = "openai"
	// NoStreamOptions: stream_options is refused or unknown. The server sends usage
	// anyway, or never. Mistral, older Ollama.
	NoStreamOptions = "no_stream_options"
	// OldMaxTokens: max_completion_tokens is unknown or ignored. WriteCall sends
	// max_tokens to all but OpenAI's reasoning models anyway.
	OldMaxTokens = "old_max_tokens"
	// ShortToolIDs: ids of tool calls have exactly nine letters and digits. Other ids are
	// replaced by nine characters of a hash. Mistral.
	ShortToolIDs = "short_tool_ids"
	// ToolChoiceAny: tool_choice is called any instead of required. Mistral.
	ToolChoiceAny = "tool_choice_any"
	// RandomSeed: seed is called random_seed. Mistral.
	RandomSeed = "random_seed"
	// DocumentURL: a PDF is a document_url part, not a file. Mistral.
	DocumentURL = "document_url"
	// NoFiles: there are no file parts. A PDF is refused.
	NoFiles = "no_files"
	// VideoURL: video_url parts are known. OpenRouter, vLLM, SGLang.
	VideoURL = "video_url"
	// StringContent: the content of a message must be a string, unless the message has
	// images or files; null is refused, too. DeepSeek, Cerebras.
	StringContent = "string_content"
	// ThinkTags: reasoning comes inside <think> in the text, and must be split off.
	// Together, Fireworks, DeepInfra and others, with raw open models.
	ThinkTags = "think_tags"
	// WholeToolCalls: streams contain whole tool calls, so each element of tool_calls
	// with a name is a call, whatever its index and id. Without this quirk, calls with
	// equal indexes are distinguished by ids, names and input. Ollama, Google's
	// compatible endpoint.
	WholeToolCalls = "whole_tool_calls"
	// ThinkingParts: reasoning is sent back as parts of the type thinking. Mistral.
	ThinkingParts = "thinking_parts"
	// ReasoningContent: reasoning is sent back as reasoning_content. vLLM, SGLang,
	// llama.cpp, Moonshot, Zhipu.
	ReasoningContent = "reasoning_content"
	// ReasoningInToolLoop: like ReasoningContent, but only for turns after the user's
	// last message: the server refuses it for earlier turns, and requires it for these.
	// DeepSeek.
	ReasoningInToolLoop = "reasoning_in_tool_loop"
	// ReasoningDetails: the server supports reasoning_details with signatures.
	// OpenRouter, gateways such as this one.
	ReasoningDetails = "reasoning_details"
	// ReasoningObject: the effort is in reasoning {effort, max_tokens, exclude}.
	// OpenRouter, gateways such as this one.
	ReasoningObject = "reasoning_object"
	// ThinkingSwitch: thinking is {type: enabled or disabled} and there are no
	// efforts. DeepSeek, Zhipu, Moonshot.
	ThinkingSwitch = "thinking_switch"
	// NoReasoningEffort: the server has no parameter for effort.
	NoReasoningEffort = "no_reasoning_effort"
	// ThreeEfforts: the efforts are low, medium and high.
	ThreeEfforts = "three_efforts"
	// XAI: grok-4 and others refuse reasoning_effort, and those that reason refuse
	// penalties and stop.
	XAI = "xai"
	// NoStrict: strict is refused in tools and schemas. Mistral's tools take it;
	// Groq refuses it in tools.
	NoStrict = "no_strict"
	// NoJSONSchema: response_format is json_object at most. The schema goes into a
	// system message. DeepSeek.
	NoJSONSchema = "no_json_schema"
	// NoParallelTools: parallel_tool_calls is refused.
	NoParallelTools = "no_parallel_tools"
	// NoUser and NoServiceTier: user and service_tier are refused.
	NoUser        = "no_user"
	NoServiceTier = "no_service_tier"
	// NoPenalties: presence_penalty and frequency_penalty are refused.
	NoPenalties = "no_penalties"
	// TopK: top_k is known. OpenRouter, vLLM, SGLang, llama.cpp, Together,
	// Fireworks, DeepInfra.
	TopK = "top_k"
	// CacheControl: the server supports cache_control in message parts. OpenRouter,
	// gateways such as this one.
	CacheControl = "cache_control"
	// OurSignatures: the server is another gateway of this kind, which accepts all
	// providers' signatures in this gateway's form. Other servers get only signatures in
	// OpenRouter's form.
	OurSignatures = "our_signatures"
	// GoogleSignatures: signatures of tool calls are in
	// extra_content.google.thought_signature. Google's compatible endpoint.
	GoogleSignatures = "google_signatures"
)

// known maps common servers to their quirks.
var known = map[string][]string{
	"openai":     {OpenAI},
	"azure":      {OpenAI},
	"mistral":    {OldMaxTokens, NoStreamOptions, ShortToolIDs, ToolChoiceAny, RandomSeed, DocumentURL, ThinkingParts, NoUser, NoServiceTier, NoReasoningEffort},
	"deepseek":   {OldMaxTokens, StringContent, ReasoningInToolLoop, ThinkingSwitch, NoStrict, NoJSONSchema, NoParallelTools, NoUser, NoServiceTier, NoFiles},
	"groq":       {ThreeEfforts, NoStrict, NoFiles},
	"xai":        {XAI, ThreeEfforts, NoFiles, NoServiceTier},
	"openrouter": {ReasoningDetails, ReasoningObject, CacheControl, TopK, VideoURL},
	"vercel":     {ReasoningDetails, ReasoningObject, CacheControl},
	"cay":        {ReasoningDetails, ReasoningObject, CacheControl, OurSignatures, TopK, VideoURL},
	"google":     {WholeToolCalls, GoogleSignatures, ThreeEfforts, NoServiceTier, NoUser, NoParallelTools},
	"ollama":     {WholeToolCalls, OldMaxTokens, NoFiles, NoServiceTier, NoUser, NoParallelTools, ThreeEfforts},
	"vllm":       {ReasoningContent, ThreeEfforts, TopK, VideoURL, NoFiles, NoServiceTier},
	"sglang":     {ReasoningContent, ThreeEfforts, TopK, VideoURL, NoFiles, NoServiceTier},
	"llamacpp":   {OldMaxTokens, ReasoningContent, ThreeEfforts, TopK, NoFiles, NoServiceTier},
	"lmstudio":   {OldMaxTokens, ThreeEfforts, TopK, NoFiles, NoServiceTier},
	"together":   {OldMaxTokens, ThinkTags, ThreeEfforts, TopK, NoFiles, NoServiceTier},
	"fireworks":  {ThinkTags, ThreeEfforts, TopK, NoFiles, NoServiceTier},
	"deepinfra":  {OldMaxTokens, ThinkTags, ThreeEfforts, TopK, NoFiles},
	"baseten":    {OldMaxTokens, ThinkTags, ThreeEfforts, TopK, NoFiles, NoServiceTier},
	"cerebras":   {ThinkTags, StringContent, ThreeEfforts, NoFiles, NoPenalties},
	"perplexity": {OldMaxTokens, ThinkTags, NoStrict, NoParallelTools, NoUser, NoServiceTier, ThreeEfforts},
	"moonshot":   {OldMaxTokens, ReasoningContent, ThinkingSwitch, NoFiles, NoServiceTier},
	"zhipu":      {OldMaxTokens, ReasoningContent, ThinkingSwitch, NoFiles, NoServiceTier, NoStrict},
}

// Known returns the quirks of a server by its usual name: openai, azure, mistral,
// deepseek, groq, xai, openrouter, vercel, cay, google (its compatible endpoint), ollama,
// vllm, sglang, llamacpp, lmstudio, together, fireworks, deepinfra, baseten, cerebras,
// perplexity, moonshot, zhipu. Nil for others. The caller owns the map.
func Known(server string) map[string]bool {
	names, ok := known[server]
	if !ok {
		return nil
	}
	quirks := make(map[string]bool, len(names))
	for _, q := range names {
		quirks[q] = true
	}
	return quirks
}

// Quirks returns all quirks, each true.
func Quirks() map[string]bool { return maps.Clone(allQuirks) }

var allQuirks = map[string]bool{
	OpenAI: true, NoStreamOptions: true, OldMaxTokens: true, ShortToolIDs: true, ToolChoiceAny: true, RandomSeed: true, DocumentURL: true, NoFiles: true,
	VideoURL: true, StringContent: true, ThinkTags: true, WholeToolCalls: true, ThinkingParts: true, ReasoningContent: true, ReasoningInToolLoop: true,
	ReasoningDetails: true, ReasoningObject: true, ThinkingSwitch: true, NoReasoningEffort: true, ThreeEfforts: true, XAI: true,
	NoStrict: true, NoJSONSchema: true, NoParallelTools: true, NoUser: true, NoServiceTier: true, NoPenalties: true, TopK: true,
	CacheControl: true, GoogleSignatures: true, OurSignatures: true,
}

// reasons reports whether an OpenAI model is a reasoning model. Unknown families count as
// reasoning models.
func reasons(model string) bool {
	model = model[strings.LastIndexByte(model, '/')+1:]
	switch {
	case len(model) > 1 && model[0] == 'o' && model[1] >= '1' && model[1] <= '9':
		return true
	case strings.HasPrefix(model, "gpt-35"): // Azure's spelling of 3.5
		return false
	case strings.HasPrefix(model, "gpt-"):
		version := strings.TrimPrefix(model, "gpt-")
		return version != "" && (version[0] >= '5' && version[0] <= '9' || len(version) > 1 && version[1] >= '0' && version[1] <= '9') && !strings.Contains(version, "-chat")
	}
	return strings.HasPrefix(model, "codex") || strings.HasPrefix(model, "computer-use")
}

// grokReasons reports whether an xAI model is a reasoning model.
func grokReasons(model string) bool {
	return !strings.Contains(model, "non-reasoning") && !strings.HasPrefix(model, "grok-2") &&
		(!strings.HasPrefix(model, "grok-3") || strings.Contains(model, "mini"))
}
