package agent

import "encoding/json"

// StreamPartType is the type of a StreamPart.
type StreamPartType string

// The types. Source: the stream parts of the AI SDK's language model specification
// 4.
const (
	StreamStart          StreamPartType = "stream-start"      // Warnings
	StreamResponse       StreamPartType = "response-metadata" // ResponseID, Model
	StreamTextStart      StreamPartType = "text-start"        // ID
	StreamTextDelta      StreamPartType = "text-delta"        // ID, Delta
	StreamTextEnd        StreamPartType = "text-end"          // ID
	StreamReasoningStart StreamPartType = "reasoning-start"   // as text
	StreamReasoningDelta StreamPartType = "reasoning-delta"
	StreamReasoningEnd   StreamPartType = "reasoning-end"
	StreamToolInputStart StreamPartType = "tool-input-start"      // ID (of the call), ToolName, ProviderExecuted
	StreamToolInputDelta StreamPartType = "tool-input-delta"      // ID, Delta
	StreamToolInputEnd   StreamPartType = "tool-input-end"        // ID
	StreamToolCall       StreamPartType = "tool-call"             // ID, ToolName, Input, ProviderExecuted
	StreamToolResult     StreamPartType = "tool-result"           // ID, ToolName, Result, IsError
	StreamApproval       StreamPartType = "tool-approval-request" // ID, ApprovalID: the provider asks
	StreamFile           StreamPartType = "file"                  // File
	StreamReasoningFile  StreamPartType = "reasoning-file"        // File
	StreamSource         StreamPartType = "source"                // Source
	StreamCustom         StreamPartType = "custom"                // Kind
	StreamFinish         StreamPartType = "finish"                // Reason, Usage, GenerationID: the last
)

// StreamPart is a part of a model's answer, as it arrives. Type says which fields apply.
// A failure is not a StreamPart: Models.Stream returns the error.
type StreamPart struct {
	Type  StreamPartType
	ID    string // of a block of text or reasoning; of a call of a tool
	Delta string

	ToolName         string
	ProviderExecuted bool            // the provider runs the tool itself
	Dynamic          bool            // the tool was not offered in the ModelCall
	Input            string          // as the model wrote it; may be invalid JSON
	Result           json.RawMessage // of a tool the provider has run
	IsError          bool            // so Result is an error
	// Preliminary says that a further Result will replace this one.
	Preliminary bool
	ApprovalID  string

	File   *File
	Source *Source
	Kind   string

	Warnings   []string
	ResponseID string
	Model      string // the provider's name of the model

	Reason FinishReason
	Usage  Usage
	// GenerationID is the gateway's id of the call. Any part may have it.
	GenerationID string

	// Metadata must be sent back with the part.
	Metadata Options
}

// Source is a source of a model's answer: a page, or a document.
type Source struct {
	ID        string `json:"id"`
	URL       string `json:"url,omitempty"`
	Title     string `json:"title,omitempty"`
	MediaType string `json:"media_type,omitempty"`
	Filename  string `json:"filename,omitempty"`
}
