package hub

import "encoding/json"

// Call is one call of a language model.
type Call struct {
	Prompt []Message

	MaxOutputTokens  *int64
	Temperature      *float64
	TopP             *float64
	TopK             *float64
	PresencePenalty  *float64
	FrequencyPenalty *float64
	StopSequences    []string
	Seed             *int64

	Format     *Format // nil: text
	Tools      []Tool
	ToolChoice ToolChoice
	// ParallelTools says whether the model may call several tools in one turn; nil
	// leaves it to the provider.
	ParallelTools *bool

	// Effort is how hard the model thinks, ThinkingBudget how many tokens it may
	// think for. At most one is set. See EffortBudget.
	Effort         Effort
	ThinkingBudget *int64
	// HideReasoning asks not to be sent the text of what the model thought.
	HideReasoning bool

	ServiceTier string // "", flex, priority; anything else is the provider's own word
	User        string // the caller's end user, for the provider's abuse detection

	Stream     bool
	IncludeRaw bool // RawEvents are wanted

	// Members are the members of the request that one provider's formats alone have a place
	// for, where the client speaks a format that has them. Their values are in Options.
	Members []Member

	// Options are for one provider each: anthropic, openai, google, bedrock... The
	// member gateway is ours and has been taken out.
	Options Options
	// Warnings are what the Surface could not carry into the Call.
	Warnings []Warning
}

// Message is one turn of a conversation.
type Message struct {
	Role Role
	// Parts by role: a system message has text; a user's text and files; an
	// assistant's text, files, reasoning, tool calls and results of tools the
	// provider ran; a tool's, results and answers to approval requests.
	Parts   []Part
	Options Options // such as anthropic.cacheControl
}

// Role says whose turn it was.
type Role string

// The roles.
const (
	System    Role = "system"
	User      Role = "user"
	Assistant Role = "assistant"
	ToolRole  Role = "tool"
)

// Format is the form an answer is wanted in: JSON, of a schema if there is one.
type Format struct {
	Schema      json.RawMessage // JSON Schema; nil for any JSON
	Name        string
	Description string
	Strict      *bool
}

// Tool is a function the model may call, or a tool the provider runs itself.
type Tool struct {
	// Name is what the model calls it, unique in a Call.
	Name        string
	Description string
	InputSchema json.RawMessage // JSON Schema of an object
	Strict      *bool
	Examples    []json.RawMessage // of input

	// ProviderID is set for a provider's own tool, as anthropic.web_search_20250305;
	// then Args configure it, and there is no schema.
	ProviderID string
	Args       json.RawMessage

	Options Options
}

// ToolChoice says whether tools are to be called. The zero value leaves it to the
// provider.
type ToolChoice struct {
	Mode ToolMode
	Tool string // name, for ToolNamed
}

// ToolMode is the kind of a ToolChoice.
type ToolMode string

// The tool modes.
const (
	ToolDefault  ToolMode = ""
	ToolAuto     ToolMode = "auto"
	ToolNone     ToolMode = "none"
	ToolRequired ToolMode = "required"
	ToolNamed    ToolMode = "tool"
)

// Effort is how hard a model is to think.
type Effort string

// The efforts. EffortDefault leaves it to the provider.
const (
	EffortDefault Effort = ""
	EffortNone    Effort = "none"
	EffortMinimal Effort = "minimal"
	EffortLow     Effort = "low"
	EffortMedium  Effort = "medium"
	EffortHigh    Effort = "high"
	EffortXHigh   Effort = "xhigh"
	EffortMax     Effort = "max"
)

// Options are settings for, or metadata of, one provider each: its name to the
// members of a JSON object. In parts they carry what a provider must get back
// with the part, under the names the AI SDK's provider packages use:
//
//	anthropic  cacheControl, signature, redactedData, citations
//	bedrock    cachePoint, signature, redactedData
//	openai     itemId, reasoningEncryptedContent, annotations, logprobs
//	google     thoughtSignature
type Options map[string]map[string]json.RawMessage

// Get decodes a member into v and reports whether there is one that fits.
func (o Options) Get(provider, name string, v any) bool {
	raw, ok := o[provider][name]
	return ok && json.Unmarshal(raw, v) == nil
}

// String returns a member that is a string, else "".
func (o Options) String(provider, name string) string {
	var s string
	o.Get(provider, name, &s)
	return s
}

// Set sets a member to v, which must be something encoding/json can encode, and
// makes the map if need be.
func (o *Options) Set(provider, name string, v any) {
	raw, err := json.Marshal(v)
	if err != nil {
		panic("hub: " + provider + "." + name + ": " + err.Error())
	}
	o.SetRaw(provider, name, raw)
}

// SetRaw is Set for a value that is JSON already.
func (o *Options) SetRaw(provider, name string, raw json.RawMessage) {
	if *o == nil {
		*o = make(Options)
	}
	if (*o)[provider] == nil {
		(*o)[provider] = make(map[string]json.RawMessage)
	}
	(*o)[provider][name] = raw
}

// Merge adds the members of other, which win over those that are there.
func (o *Options) Merge(other Options) {
	for provider, members := range other {
		for name, raw := range members {
			o.SetRaw(provider, name, raw)
		}
	}
}

// Warning says that something asked for was left out, or is not quite what was
// asked.
type Warning struct {
	Kind WarningKind
	// Feature is what it is about, in the hub's words (topK, tools.web_search); for
	// WarnOther it is empty.
	Feature string
	Message string // details for people
}

// WarningKind is the kind of a Warning.
type WarningKind string

// The kinds of warnings.
const (
	WarnUnsupported   WarningKind = "unsupported"
	WarnCompatibility WarningKind = "compatibility" // it is done in another way
	WarnOther         WarningKind = "other"
)
