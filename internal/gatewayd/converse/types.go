package converse

import (
	"encoding/json"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// request is the body of a call. The model is in the path.
type request struct {
	System     []*block        `json:"system,omitempty"`
	Messages   []*message      `json:"messages"`
	Inference  *inference      `json:"inferenceConfig,omitempty"`
	ToolConfig *toolConfig     `json:"toolConfig,omitempty"`
	More       map[string]any  `json:"additionalModelRequestFields,omitempty"`
	MorePaths  []string        `json:"additionalModelResponseFieldPaths,omitempty"`
	Guardrail  json.RawMessage `json:"guardrailConfig,omitempty"`
	Tier       *typed          `json:"serviceTier,omitempty"`
	Metadata   json.RawMessage `json:"requestMetadata,omitempty"`
}

type message struct {
	Role    string   `json:"role"`
	Content []*block `json:"content"`
}

type inference struct {
	MaxTokens     *int64   `json:"maxTokens,omitempty"`
	Temperature   *float64 `json:"temperature,omitempty"`
	TopP          *float64 `json:"topP,omitempty"`
	StopSequences []string `json:"stopSequences,omitempty"`
}

type toolConfig struct {
	Tools  []*tool     `json:"tools"`
	Choice *toolChoice `json:"toolChoice,omitempty"`
}

type tool struct {
	Spec       *toolSpec       `json:"toolSpec,omitempty"`
	CachePoint json.RawMessage `json:"cachePoint,omitempty"`
}

type toolSpec struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	InputSchema struct {
		JSON json.RawMessage `json:"json"`
	} `json:"inputSchema"`
}

// toolChoice has exactly one member set.
type toolChoice struct {
	Auto *struct{}    `json:"auto,omitempty"`
	Any  *struct{}    `json:"any,omitempty"`
	Tool *namedChoice `json:"tool,omitempty"`
}

type namedChoice struct {
	Name string `json:"name"`
}

type typed struct {
	Type string `json:"type"`
}

// block is a content block, with exactly one member set.
type block struct {
	Text       *string         `json:"text,omitempty"`
	Image      *media          `json:"image,omitempty"`
	Document   *media          `json:"document,omitempty"`
	Video      *media          `json:"video,omitempty"`
	ToolUse    *toolUse        `json:"toolUse,omitempty"`
	ToolResult *toolResult     `json:"toolResult,omitempty"`
	Reasoning  *reasoning      `json:"reasoningContent,omitempty"`
	CachePoint json.RawMessage `json:"cachePoint,omitempty"`
	JSON       json.RawMessage `json:"json,omitempty"` // in results of tools
	custom     string          // name of an unknown member
	raw        json.RawMessage // and its value
}

func (b *block) MarshalJSON() ([]byte, error) {
	if b.custom != "" {
		return hub.Encode(map[string]json.RawMessage{b.custom: b.raw})
	}
	type plain block
	return hub.Encode((*plain)(b))
}

type media struct {
	Format    string          `json:"format"`
	Name      string          `json:"name,omitempty"`
	Source    source          `json:"source"`
	Context   string          `json:"context,omitempty"`
	Citations json.RawMessage `json:"citations,omitempty"`
}

type source struct {
	Bytes []byte    `json:"bytes,omitempty"`
	S3    *location `json:"s3Location,omitempty"`
}

type location struct {
	URI string `json:"uri"`
}

type toolUse struct {
	ID    string          `json:"toolUseId"`
	Name  string          `json:"name"`
	Input json.RawMessage `json:"input"`
	Type  string          `json:"type,omitempty"` // server_tool_use
}

type toolResult struct {
	ID      string   `json:"toolUseId"`
	Content []*block `json:"content"`
	Status  string   `json:"status,omitempty"` // success, error
}

type reasoning struct {
	Text     *reasoningText `json:"reasoningText,omitempty"`
	Redacted string         `json:"redactedContent,omitempty"`
}

type reasoningText struct {
	Text      string `json:"text"`
	Signature string `json:"signature,omitempty"`
}

func ptr[T any](v T) *T { return &v }
