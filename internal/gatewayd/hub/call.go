package hub

import "encoding/json"

// Call is one call to a language model.
type Call struct {
	Prompt []Message

	MaxOutputTokens *int64
	StopSequences   []string
	Sampling

	Format     *Format // nil: text
	Tools      []Tool
	ToolChoice ToolChoice
	// ParallelTools says whether the model may call several tools in one turn; nil
	// leaves it to the provider.
	ParallelTools *bool

	// Effort is the reasoning effort; ThinkingBudget is the maximum number of reasoning
	// tokens. At most one is set. See EffortBudget.
	Effort         Effort
	ThinkingBudget *int64
	// HideReasoning says that the caller does not want the text of the reasoning.
	HideReasoning bool

	ServiceTier string // "", flex, priority; anything else is the provider's own word
	User        string // the caller's end user, for the provider's abuse detection

	Stream     bool
	IncludeRaw bool // RawEvents are wanted

	// Members are the request's members that only one provider's formats have a place
	// for, and that the client's format has as well. Their values are in Options.
	Members []Member

	// Options are for one provider each: anthropic, openai, google, bedrock... The member
	// gateway holds the gateway's own options and has been removed.
	Options Options
	// Warnings are about request content that the Surface could not put into the Call.
	Warnings []Warning
}

// Sampling is how the model draws its tokens; nil leaves a setting to the provider.
type Sampling struct {
	Temperature      *float64
	TopP             *float64
	TopK             *float64
	PresencePenalty  *float64
	FrequencyPenalty *float64
	Seed             *int64
}

// Message is one turn of a conversation.
type Message struct {
	Role Role
	// Parts depend on the role: a system message has text; a user's text and files; an
	// assistant's text, files, reasoning, tool calls and results of provider-run tools; a
	// tool's, results and answers to approval requests.
	Parts   []Part
	Options Options // such as anthropic.cacheControl
}

// Role is the author of a message.
type Role string

// The roles.
const (
	System    Role = "system"
	User      Role = "user"
	Assistant Role = "assistant"
	ToolRole  Role = "tool"
)

// Format is the requested form of an answer: JSON, optionally with a schema.
type Format struct {
	Schema      json.RawMessage // JSON Schema; nil for any JSON
	Name        string
	Description string
	Strict      *bool
}

// Tool is a function that the model may call, or a provider-run tool.
type Tool struct {
	// Name is the model's name for the tool, unique in a Call.
	Name        string
	Description string
	InputSchema json.RawMessage // JSON Schema of an object
	Strict      *bool
	Examples    []json.RawMessage // of input

	// ProviderID is set for a provider's own tool, for example
	// anthropic.web_search_20250305; then Args configure it, and there is no schema.
	ProviderID string
	Args       json.RawMessage

	Options Options
}

// ToolChoice says whether the model must, may or must not call tools. The zero value
// leaves it to the provider.
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

// Effort is the reasoning effort of a model.
type Effort string

// The efforts. EffortDefault leaves the choice to the provider.
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

// Options are settings for single providers, or metadata from them: a map of provider
// names to the members of a JSON object. In parts they hold the data that a provider must
// get back with the part, under the names that the AI SDK's provider packages use:
//
//	anthropic  cacheControl, signature, redactedData, citations
//	bedrock    cachePoint, signature, redactedData
//	openai     itemId, reasoningEncryptedContent, annotations, logprobs
//	google     thoughtSignature
type Options map[string]map[string]json.RawMessage

// Get decodes a member into v and reports whether the member exists and has v's type.
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

// Set sets a member to v, which encoding/json must be able to encode, and creates the map
// if necessary.
func (o *Options) Set(provider, name string, v any) {
	raw, err := json.Marshal(v)
	if err != nil {
		panic("hub: " + provider + "." + name + ": " + err.Error())
	}
	o.SetRaw(provider, name, raw)
}

// SetRaw is Set for a value that is already JSON.
func (o *Options) SetRaw(provider, name string, raw json.RawMessage) {
	if *o == nil {
		*o = make(Options)
	}
	if (*o)[provider] == nil {
		(*o)[provider] = make(map[string]json.RawMessage)
	}
	(*o)[provider][name] = raw
}

// Merge adds the members of other, which replace existing ones.
func (o *Options) Merge(other Options) {
	for provider, members := range other {
		for name, raw := range members {
			o.SetRaw(provider, name, raw)
		}
	}
}

// Warning says that a requested feature was left out or approximated.
type Warning struct {
	Kind WarningKind
	// Feature is the feature in the hub's terms (topK, tools.web_search); for WarnOther
	// it is empty.
	Feature string
	Message string // details for people
}

// WarningKind is the kind of a Warning.
type WarningKind string

// The kinds of warnings.
const (
	WarnUnsupported   WarningKind = "unsupported"
	WarnCompatibility WarningKind = "compatibility" // done in another way
	WarnOther         WarningKind = "other"
)
