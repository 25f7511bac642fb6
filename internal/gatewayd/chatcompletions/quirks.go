package chatcompletions

import (
	"maps"
	"strings"
)

// The quirks: how a server differs from what OpenAI documents, as the Target of a
// call has them. Answers need none, with two exceptions (ThinkTags, WholeToolCalls): all
// of them are read with the same tolerance.
const (
	// OpenAI: it is OpenAI itself, or Azure. Its reasoning models (o1, o3, gpt-5...,
	// told by their names) want max_completion_tokens and developer messages, and
	// refuse temperature, top_p, penalties and logprobs; the others refuse
	// reasoning_effort. Embeddings are asked for in base64.
	OpenAI = "openai"
	// NoStreamOptions: stream_options is refused, or not known. Usage comes all the
	// same, or not at all. Mistral, older Ollama.
	NoStreamOptions = "no_stream_options"
	// OldMaxTokens: max_completion_tokens is not known, or ignored. WriteCall has
	// max_tokens for all but OpenAI's reasoning models anyway.
	OldMaxTokens = "old_max_tokens"
	// ShortToolIDs: ids of tool calls have nine letters and digits. Others are
	// replaced by nine of a hash. Mistral.
	ShortToolIDs = "short_tool_ids"
	// ToolChoiceAny: tool_choice is any where others have required. Mistral.
	ToolChoiceAny = "tool_choice_any"
	// RandomSeed: seed is called random_seed. Mistral.
	RandomSeed = "random_seed"
	// DocumentURL: a PDF is a document_url part, not a file. Mistral.
	DocumentURL = "document_url"
	// NoFiles: there are no file parts. A PDF is refused.
	NoFiles = "no_files"
	// VideoURL: video_url parts are known. OpenRouter, vLLM, SGLang.
	VideoURL = "video_url"
	// StringContent: the content of a message is a string, unless there is an image
	// or the like in it; null is refused as well. DeepSeek, Cerebras.
	StringContent = "string_content"
	// ThinkTags: what the model thought comes as <think> in its text, and is to be
	// split off. Together, Fireworks, DeepInfra and others, with raw open models.
	ThinkTags = "think_tags"
	// WholeToolCalls: tool calls come whole in streams, so that each element of
	// tool_calls that has a name is a call, whatever its index and id. Without it, calls
	// of one index are told apart by their ids, names and input. Ollama, Google's
	// compatible endpoint.
	WholeToolCalls = "whole_tool_calls"
	// ThinkingParts: what was thought goes back as parts of the type thinking.
	// Mistral.
	ThinkingParts = "thinking_parts"
	// ReasoningContent: what was thought goes back as reasoning_content. vLLM,
	// SGLang, llama.cpp, Moonshot, Zhipu.
	ReasoningContent = "reasoning_content"
	// ReasoningInToolLoop: ReasoningContent, but of the turns after the last message
	// of a user alone: earlier ones are refused, and these are demanded. DeepSeek.
	ReasoningInToolLoop = "reasoning_in_tool_loop"
	// ReasoningDetails: reasoning_details are known, with their signatures.
	// OpenRouter, gateways such as this one.
	ReasoningDetails = "reasoning_details"
	// ReasoningObject: the effort is in reasoning {effort, max_tokens, exclude}.
	// OpenRouter, gateways such as this one.
	ReasoningObject = "reasoning_object"
	// ThinkingSwitch: thinking is {type: enabled or disabled} and there are no
	// efforts. DeepSeek, Zhipu, Moonshot.
	ThinkingSwitch = "thinking_switch"
	// NoReasoningEffort: there is none of this.
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
	// CacheControl: cache_control in parts of messages is known. OpenRouter,
	// gateways such as this one.
	CacheControl = "cache_control"
	// OurSignatures: it is another gateway such as this one, which knows signatures of
	// all providers in the form this one gives them. Others are sent only those that
	// are OpenRouter's way, too.
	OurSignatures = "our_signatures"
	// GoogleSignatures: signatures of tool calls are in
	// extra_content.google.thought_signature. Google's compatible endpoint.
	GoogleSignatures = "google_signatures"
)

// known are the quirks of servers that many use.
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
// vllm, sglang, llamacpp, lmstudio, together, fireworks, deepinfra, baseten,
// cerebras, perplexity, moonshot, zhipu. Nil for others. The map is the caller's.
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

// Quirks returns the names of all quirks, each true.
func Quirks() map[string]bool { return maps.Clone(allQuirks) }

var allQuirks = map[string]bool{
	OpenAI: true, NoStreamOptions: true, OldMaxTokens: true, ShortToolIDs: true, ToolChoiceAny: true, RandomSeed: true, DocumentURL: true, NoFiles: true,
	VideoURL: true, StringContent: true, ThinkTags: true, WholeToolCalls: true, ThinkingParts: true, ReasoningContent: true, ReasoningInToolLoop: true,
	ReasoningDetails: true, ReasoningObject: true, ThinkingSwitch: true, NoReasoningEffort: true, ThreeEfforts: true, XAI: true,
	NoStrict: true, NoJSONSchema: true, NoParallelTools: true, NoUser: true, NoServiceTier: true, NoPenalties: true, TopK: true,
	CacheControl: true, GoogleSignatures: true, OurSignatures: true,
}

// reasons reports whether a model of OpenAI's is one that reasons. New families
// are taken to.
func reasons(model string) bool {
	model = model[strings.LastIndexByte(model, '/')+1:]
	switch {
	case len(model) > 1 && model[0] == 'o' && model[1] >= '1' && model[1] <= '9':
		return true
	case strings.HasPrefix(model, "gpt-35"): // 3.5, as Azure writes it
		return false
	case strings.HasPrefix(model, "gpt-"):
		version := strings.TrimPrefix(model, "gpt-")
		return version != "" && (version[0] >= '5' && version[0] <= '9' || len(version) > 1 && version[1] >= '0' && version[1] <= '9') && !strings.Contains(version, "-chat")
	}
	return strings.HasPrefix(model, "codex") || strings.HasPrefix(model, "computer-use")
}

// grokReasons reports whether a model of xAI's reasons.
func grokReasons(model string) bool {
	return !strings.Contains(model, "non-reasoning") && !strings.HasPrefix(model, "grok-2") &&
		(!strings.HasPrefix(model, "grok-3") || strings.Contains(model, "mini"))
}
