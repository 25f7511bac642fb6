package agent

import (
	"encoding/json"
	"strings"
)

// StreamName is the stream of a run that agents write to: UI message chunks of the
// AI SDK, each a JSON object. Chunks of type start-step have an additional member,
// "step", the id of the step that asks the model. A second start-step with the same
// id means that the answer that began with the first one was cut off by a crash, or
// failed, and is given again; the chunks in between are void. (As long as the retry
// repeats the same text, nothing is written, and if it continues from there,
// readers notice nothing: most clients cannot drop text.) Package agent/chat
// removes the member, and informs clients as well as their protocol allows.
const StreamName = "ui"

// ChunkType is the type of a Chunk.
type ChunkType string

// The chunks. Source: the AI SDK's UI message stream protocol, version 1.
const (
	ChunkStart              ChunkType = "start"
	ChunkStartStep          ChunkType = "start-step"
	ChunkTextStart          ChunkType = "text-start"
	ChunkTextDelta          ChunkType = "text-delta"
	ChunkTextEnd            ChunkType = "text-end"
	ChunkReasoningStart     ChunkType = "reasoning-start"
	ChunkReasoningDelta     ChunkType = "reasoning-delta"
	ChunkReasoningEnd       ChunkType = "reasoning-end"
	ChunkToolInputStart     ChunkType = "tool-input-start"
	ChunkToolInputDelta     ChunkType = "tool-input-delta"
	ChunkToolInputAvailable ChunkType = "tool-input-available"
	ChunkToolInputError     ChunkType = "tool-input-error"
	ChunkToolOutput         ChunkType = "tool-output-available"
	ChunkToolOutputError    ChunkType = "tool-output-error"
	ChunkToolOutputDenied   ChunkType = "tool-output-denied"
	ChunkApprovalRequest    ChunkType = "tool-approval-request"
	ChunkSourceURL          ChunkType = "source-url"
	ChunkSourceDocument     ChunkType = "source-document"
	ChunkFile               ChunkType = "file"
	ChunkMessageMetadata    ChunkType = "message-metadata"
	ChunkFinishStep         ChunkType = "finish-step"
	ChunkFinish             ChunkType = "finish"
	ChunkError              ChunkType = "error"
	ChunkAbort              ChunkType = "abort"
	ChunkResetStep          ChunkType = "reset-step" // AI SDK 7: forget all since the last start-step
)

// data reports whether a chunk is the program's own.
func (t ChunkType) data() bool { return strings.HasPrefix(string(t), "data-") }

// Chunk is a part of an answer as chat pages take it. Type says which fields
// apply; a type's other fields are left out, because clients refuse them. Types
// that begin with "data-" are a program's own.
type Chunk struct {
	Type ChunkType `json:"type"`
	ID   string    `json:"id,omitempty"` // of a text or reasoning block; of data
	// Delta is never left out of deltas, even if it is empty.
	Delta *string `json:"delta,omitempty"`

	MessageID       string          `json:"messageId,omitempty"`
	MessageMetadata json.RawMessage `json:"messageMetadata,omitempty"`
	FinishReason    FinishReason    `json:"finishReason,omitempty"` // finish
	ErrorText       string          `json:"errorText,omitempty"`
	Reason          string          `json:"reason,omitempty"` // abort

	ToolCallID       string          `json:"toolCallId,omitempty"`
	ToolName         string          `json:"toolName,omitempty"`
	Title            string          `json:"title,omitempty"`
	Input            json.RawMessage `json:"input,omitempty"`
	InputTextDelta   *string         `json:"inputTextDelta,omitempty"`
	Output           json.RawMessage `json:"output,omitempty"`
	Preliminary      bool            `json:"preliminary,omitempty"`
	ProviderExecuted bool            `json:"providerExecuted,omitempty"`
	Dynamic          bool            `json:"dynamic,omitempty"`
	ApprovalID       string          `json:"approvalId,omitempty"`
	Signature        string          `json:"signature,omitempty"`

	SourceID  string `json:"sourceId,omitempty"`
	URL       string `json:"url,omitempty"`
	MediaType string `json:"mediaType,omitempty"`
	Filename  string `json:"filename,omitempty"`

	Data      json.RawMessage `json:"data,omitempty"`
	Transient bool            `json:"transient,omitempty"`

	ProviderMetadata Options `json:"providerMetadata,omitempty"`

	Step string `json:"step,omitempty"` // start-step; see StreamName
}

// FinishReason is why a model stopped.
type FinishReason string

// The reasons.
const (
	FinishStop          FinishReason = "stop"
	FinishLength        FinishReason = "length"
	FinishContentFilter FinishReason = "content-filter"
	FinishToolCalls     FinishReason = "tool-calls"
	FinishError         FinishReason = "error"
	FinishOther         FinishReason = "other"
)
