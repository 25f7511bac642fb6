package agent

import (
	"encoding/json"
	"strings"
)

// Role is the sender of a Message.
type Role string

// The roles.
const (
	System    Role = "system"
	User      Role = "user"
	Assistant Role = "assistant"
	FromTool  Role = "tool"
)

// Message is one turn of a conversation. Its JSON is that of the AI SDK's prompts
// (language model specification 4): a system message has a string as content, all
// others have parts. UnmarshalJSON also accepts the forms that people write by
// hand: content that is a string, and parts of the type image.
type Message struct {
	Role  Role
	Parts []Part
	// Options are for one provider each, such as anthropic.cacheControl.
	Options Options
}

// Options are settings for, or metadata of, one provider each: they map the
// provider's name to a JSON object. Options that a provider sends with a part
// (signatures of reasoning, say) must be sent back with that part, unchanged.
type Options map[string]json.RawMessage

// PartType is the type of a Part.
type PartType string

// The parts a Message may have, with the roles that have them.
const (
	Text             PartType = "text"                   // system, user, assistant
	FilePart         PartType = "file"                   // user, assistant
	Reasoning        PartType = "reasoning"              // assistant
	ReasoningFile    PartType = "reasoning-file"         // assistant
	ToolCallPart     PartType = "tool-call"              // assistant
	ToolResultPart   PartType = "tool-result"            // tool, and assistant if the provider ran it
	ApprovalRequest  PartType = "tool-approval-request"  // assistant
	ApprovalResponse PartType = "tool-approval-response" // tool
	Custom           PartType = "custom"                 // assistant
)

// Part is a part of a Message. Type says which fields apply.
type Part struct {
	Type PartType

	Text string // Text, Reasoning
	File *File  // FilePart, ReasoningFile

	CallID   string          // ToolCallPart, ToolResultPart, ApprovalRequest
	ToolName string          // ToolCallPart, ToolResultPart
	Input    json.RawMessage // ToolCallPart: any JSON value
	Output   *Output         // ToolResultPart
	// ProviderExecuted says that the provider itself runs the tool, or has run it:
	// ToolCallPart.
	ProviderExecuted bool

	ApprovalID string // ApprovalRequest, ApprovalResponse
	Approved   bool   // ApprovalResponse
	Reason     string // ApprovalResponse
	Signature  string // ApprovalRequest, ApprovalResponse: what the agent signed

	Kind string // Custom

	Options Options
}

// File is a file in one of three forms; exactly one of Data, URL and Reference is
// set.
type File struct {
	// MediaType is a full type, image/png, or the first half with a star, image/*.
	MediaType string
	Name      string
	Data      []byte
	URL       string            // http or https
	Reference map[string]string // provider to the id the file was uploaded as
}

// OutputType is the type of an Output.
type OutputType string

// The outputs of tools.
const (
	OutputText      OutputType = "text"
	OutputJSON      OutputType = "json"
	OutputErrorText OutputType = "error-text"
	OutputErrorJSON OutputType = "error-json"
	OutputDenied    OutputType = "execution-denied"
	OutputContent   OutputType = "content" // texts and files
)

// Output is the result of a tool, in the form that the model gets.
type Output struct {
	Type  OutputType
	Text  string          // OutputText, OutputErrorText; the reason of OutputDenied
	JSON  json.RawMessage // OutputJSON, OutputErrorJSON
	Parts []Part          // OutputContent: Text and FilePart
	// Options are for one provider each, like the Options of a Part.
	Options Options
}

// UserMessage returns a user's message with a text.
func UserMessage(text string) Message {
	return Message{Role: User, Parts: []Part{{Type: Text, Text: text}}}
}

// Text returns the text of the message: its parts of type Text, concatenated.
func (m *Message) Text() string {
	var b strings.Builder
	for i := range m.Parts {
		if m.Parts[i].Type == Text {
			b.WriteString(m.Parts[i].Text)
		}
	}
	return b.String()
}

// TextOutput returns an Output with a text.
func TextOutput(text string) Output { return Output{Type: OutputText, Text: text} }
