package agent

import "encoding/json"

// PieceType is the type of a Piece.
type PieceType string

// The pieces. Source: the stream parts of the AI SDK's language model specification
// 4.
const (
	PieceStart          PieceType = "stream-start"      // Warnings
	PieceResponse       PieceType = "response-metadata" // ResponseID, Model
	PieceTextStart      PieceType = "text-start"        // ID
	PieceTextDelta      PieceType = "text-delta"        // ID, Delta
	PieceTextEnd        PieceType = "text-end"          // ID
	PieceReasoningStart PieceType = "reasoning-start"   // as text
	PieceReasoningDelta PieceType = "reasoning-delta"
	PieceReasoningEnd   PieceType = "reasoning-end"
	PieceInputStart     PieceType = "tool-input-start"      // ID (of the call), ToolName, ByProvider
	PieceInputDelta     PieceType = "tool-input-delta"      // ID, Delta
	PieceInputEnd       PieceType = "tool-input-end"        // ID
	PieceToolCall       PieceType = "tool-call"             // ID, ToolName, Input, ByProvider
	PieceToolResult     PieceType = "tool-result"           // ID, ToolName, Result, IsError
	PieceApproval       PieceType = "tool-approval-request" // ID, ApprovalID: the provider asks
	PieceFile           PieceType = "file"                  // File
	PieceReasoningFile  PieceType = "reasoning-file"        // File
	PieceSource         PieceType = "source"                // Source
	PieceCustom         PieceType = "custom"                // Kind
	PieceFinish         PieceType = "finish"                // Reason, Usage, GenerationID: the last
)

// Piece is a piece of a model's answer. Type says which fields apply. A failure is
// not a piece: Models.Stream returns the error.
type Piece struct {
	Type  PieceType
	ID    string // of a block of text or reasoning; of a call of a tool
	Delta string

	ToolName   string
	ByProvider bool            // the provider runs the tool itself
	Dynamic    bool            // the tool was not offered in the ModelCall
	Input      string          // as the model wrote it; may be invalid JSON
	Result     json.RawMessage // of a tool the provider has run
	IsError    bool            // so Result is an error
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
	// GenerationID is the gateway's id of the call. Any piece may have it.
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
