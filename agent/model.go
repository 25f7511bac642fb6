package agent

import (
	"context"
	"encoding/json"
)

// Models answers calls of models. A *Gateway is one; others are for tests.
type Models interface {
	// Stream calls a model and hands over its answer piece by piece, until the piece
	// of type finish. An error of emit ends it and is returned.
	//
	// Errors: those of the gateway by their code; unavailable if the answer broke off
	// before its end, which a step tries again.
	Stream(ctx context.Context, call *ModelCall, emit func(*Piece) error) error
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

	// Session names the conversation, so that its calls go where its prompt is cached.
	// App is who calls, for reports.
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
	// ProviderOptions are for one provider each; those of "gateway" are the
	// gateway's: order, models, tags...
	ProviderOptions Options `json:"providerOptions,omitempty"`
}

// ResponseFormat is the form an answer is wanted in.
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

// ToolChoice is which tools a model may or must call: auto, none, required, or tool
// with a ToolName.
type ToolChoice struct {
	Type     string `json:"type"`
	ToolName string `json:"toolName,omitempty"`
}
