package hub

import "encoding/json"

// Part is a piece of a message or of an answer. Kind determines the fields in use.
type Part struct {
	Kind PartKind

	Text       string          // TextPart, ReasoningPart
	File       *File           // FilePart, ReasoningFilePart
	Call       *ToolCall       // ToolCallPart
	Result     *ToolResult     // ToolResultPart
	Source     *Source         // SourcePart
	Approval   *Approval       // ApprovalRequestPart, ApprovalResponsePart
	CustomKind string          // CustomPart: provider.kind
	Custom     json.RawMessage // CustomPart: its remaining members, an object or nil

	// Options hold, in a prompt, the provider's settings for the part, and in an answer
	// the provider's metadata, which it must get back.
	Options Options
}

// PartKind is the kind of a Part.
type PartKind string

// The kinds of parts.
const (
	TextPart             PartKind = "text"
	ReasoningPart        PartKind = "reasoning"
	FilePart             PartKind = "file"
	ReasoningFilePart    PartKind = "reasoning-file"
	ToolCallPart         PartKind = "tool-call"
	ToolResultPart       PartKind = "tool-result"
	SourcePart           PartKind = "source"
	ApprovalRequestPart  PartKind = "tool-approval-request"
	ApprovalResponsePart PartKind = "tool-approval-response"
	CustomPart           PartKind = "custom"
)

// File is a file in one of four forms; exactly one of Data, URL, Reference and
// Text is set.
type File struct {
	// MediaType is a full type, image/png, or the main type with a star, image/*.
	MediaType string
	Name      string

	Data      []byte
	URL       string            // http or https
	Reference map[string]string // provider to the id the file was uploaded as
	Text      string
}

// ToolCall is a model's request to call a tool.
type ToolCall struct {
	ID   string
	Name string
	// Input is the text of a JSON value; "{}" if the model sent none. A model may write
	// invalid JSON: an Upstream passes the text on unchanged, and a Surface or Upstream
	// that needs a value uses InputValue.
	Input string
	// ProviderExecuted says that the provider runs the call; its result follows.
	ProviderExecuted bool
	Dynamic          bool // the tool was not in the Call
}

// InputValue returns Input as a JSON value. Invalid JSON becomes an object whose only
// member, "invalid_input", is the text.
func (c *ToolCall) InputValue() json.RawMessage {
	switch {
	case c.Input == "":
		return json.RawMessage("{}")
	case json.Valid([]byte(c.Input)):
		return json.RawMessage(c.Input)
	}
	raw, _ := json.Marshal(map[string]string{"invalid_input": c.Input}) // a string cannot fail
	return raw
}

// ToolResult is the result of a tool call.
type ToolResult struct {
	CallID string
	Name   string
	Output ToolOutput
	// ProviderExecuted says that the result is part of the model's answer; Output is then
	// OutputJSON or OutputErrorJSON, and a Preliminary result is followed by another.
	ProviderExecuted bool
	Dynamic          bool
	Preliminary      bool
}

// ToolOutput is the output of a tool. Kind determines the field in use.
type ToolOutput struct {
	Kind    OutputKind
	Text    string          // OutputText, OutputErrorText; OutputDenied: the reason
	JSON    json.RawMessage // OutputJSON, OutputErrorJSON
	Content []Part          // OutputContent: text, files and custom parts
	Options Options
}

// Failed reports whether the tool failed or was not run.
func (o *ToolOutput) Failed() bool {
	return o.Kind == OutputErrorText || o.Kind == OutputErrorJSON || o.Kind == OutputDenied
}

// OutputKind is the kind of a ToolOutput.
type OutputKind string

// The kinds of outputs.
const (
	OutputText      OutputKind = "text"
	OutputJSON      OutputKind = "json"
	OutputErrorText OutputKind = "error-text"
	OutputErrorJSON OutputKind = "error-json"
	OutputContent   OutputKind = "content"
	OutputDenied    OutputKind = "execution-denied"
)

// Source is a source of an answer: a web page if URL is set, else a document.
type Source struct {
	ID        string
	URL       string
	Title     string
	MediaType string // of a document
	Filename  string // of a document
}

// Approval is a provider's question whether it may run a tool, or the answer.
type Approval struct {
	ID       string
	CallID   string // of a request
	Approved bool   // of a response
	Reason   string // of a response
}
