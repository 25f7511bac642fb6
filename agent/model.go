package agent

import (
	"context"
	"encoding/json"
)

// Models calls language models. *Gateway implements Models; other implementations are
// for tests.
type Models interface {
	// Stream calls a model and passes its answer to emit part by part, until the
	// part of type finish. An error of emit ends Stream and is returned.
	//
	// Errors: the gateway's errors by their code; unavailable if the answer broke off
	// before its end, which a step retries.
	Stream(ctx context.Context, call *ModelCall, emit func(*StreamPart) error) error
}

// ModelCall is one call of a language model. Its JSON is the body of the AI SDK's
// gateway protocol, specification 4, which has the model's name in a header.
type ModelCall struct {
	Model  string    `json:"-"`
	Prompt []Message `json:"prompt"`

	Settings
	ResponseFormat *ResponseFormat `json:"responseFormat,omitempty"`
	Tools          []ToolSpec      `json:"tools,omitempty"`
	ToolChoice     *ToolChoice     `json:"toolChoice,omitempty"`

	// Session is the id of the conversation, so that its calls go to the provider
	// that has its prompt cached. App is the name of the caller, for reports.
	Session string `json:"-"`
	App     string `json:"-"`
}

// Settings are the parameters of a model's answer. The model chooses those that are
// nil or empty.
type Settings struct {
	MaxOutputTokens  *int64   `json:"maxOutputTokens,omitempty"`
	Temperature      *float64 `json:"temperature,omitempty"`
	TopP             *float64 `json:"topP,omitempty"`
	TopK             *int64   `json:"topK,omitempty"`
	PresencePenalty  *float64 `json:"presencePenalty,omitempty"`
	FrequencyPenalty *float64 `json:"frequencyPenalty,omitempty"`
	StopSequences    []string `json:"stopSequences,omitempty"`
	Seed             *int64   `json:"seed,omitempty"`
	// Reasoning is none, minimal, low, medium, high, xhigh or max.
	Reasoning string `json:"reasoning,omitempty"`
	// ProviderOptions are for one provider each; the key "gateway" has the gateway's
	// options: order, models, tags...
	ProviderOptions Options `json:"providerOptions,omitempty"`
}

// ResponseFormat is the format of an answer.
type ResponseFormat struct {
	Type        string          `json:"type"` // text or json
	Schema      json.RawMessage `json:"schema,omitempty"`
	Name        string          `json:"name,omitempty"`
	Description string          `json:"description,omitempty"`
}

// ToolSpec describes a tool to a model.
type ToolSpec struct {
	Type        string          `json:"type"` // function, or provider for those its provider runs
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	InputSchema json.RawMessage `json:"inputSchema,omitempty"` // function
	Strict      *bool           `json:"strict,omitempty"`      // function
	ID          string          `json:"id,omitempty"`          // provider: openai.web_search
	Args        json.RawMessage `json:"args,omitempty"`        // provider
}

// ToolChoice restricts the tools that a model calls: auto, none, required, or tool
// with a ToolName.
type ToolChoice struct {
	Type     string `json:"type"`
	ToolName string `json:"toolName,omitempty"`
}
