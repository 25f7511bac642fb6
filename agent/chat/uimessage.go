package chat

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/agent"
)

// UIMessage is a message in the form that pages store. Source: the type UIMessage of
// the AI SDK, versions 5 to 7.
type UIMessage struct {
	ID       string          `json:"id"`
	Role     agent.Role      `json:"role"` // system, user or assistant
	Metadata json.RawMessage `json:"metadata,omitempty"`
	Parts    []UIPart        `json:"parts"`
}

// UIPart is a part of a UIMessage. Type says which fields apply: text, reasoning,
// file, reasoning-file, custom, source-url, source-document, step-start,
// steering-message, dynamic-tool, "tool-" and the tool's name, or "data-" and a name of
// the program's own.
type UIPart struct {
	Type string `json:"type"`
	Text string `json:"text,omitempty"` // text, reasoning
	Kind string `json:"kind,omitempty"` // custom

	// file, reasoning-file. URL is http, https, or data.
	MediaType         string            `json:"mediaType,omitempty"`
	Filename          string            `json:"filename,omitempty"`
	URL               string            `json:"url,omitempty"`
	ProviderReference map[string]string `json:"providerReference,omitempty"`

	ProviderMetadata agent.Options `json:"providerMetadata,omitempty"`

	// Parts of tools.
	ToolCallID             string          `json:"toolCallId,omitempty"`
	ToolName               string          `json:"toolName,omitempty"` // dynamic-tool
	State                  ToolState       `json:"state,omitempty"`    // of others: streaming or done
	Input                  json.RawMessage `json:"input,omitempty"`
	RawInput               json.RawMessage `json:"rawInput,omitempty"` // that could not be read
	Output                 json.RawMessage `json:"output,omitempty"`
	ErrorText              string          `json:"errorText,omitempty"`
	ProviderExecuted       bool            `json:"providerExecuted,omitempty"`
	Preliminary            bool            `json:"preliminary,omitempty"`
	Approval               *UIApproval     `json:"approval,omitempty"`
	CallProviderMetadata   agent.Options   `json:"callProviderMetadata,omitempty"`
	ResultProviderMetadata agent.Options   `json:"resultProviderMetadata,omitempty"`

	// Parts with data.
	ID   string          `json:"id,omitempty"`
	Data json.RawMessage `json:"data,omitempty"`

	Parts []UIPart `json:"parts,omitempty"` // steering-message: what the user said meanwhile
}

// UIApproval is a question whether a tool may be used, and its answer.
type UIApproval struct {
	ID        string `json:"id"`
	Approved  *bool  `json:"approved,omitempty"` // nil until the question is answered
	Reason    string `json:"reason,omitempty"`
	Signature string `json:"signature,omitempty"`
}

// ToolState is the state of a call of a tool.
type ToolState string

// The states of calls.
const (
	InputStreaming    ToolState = "input-streaming"
	InputAvailable    ToolState = "input-available"
	ApprovalRequested ToolState = "approval-requested"
	ApprovalResponded ToolState = "approval-responded"
	OutputAvailable   ToolState = "output-available"
	OutputFailed      ToolState = "output-error"
	OutputDenied      ToolState = "output-denied"
)

const (
	typeDynamicTool = "dynamic-tool"
	typeStepStart   = "step-start"
	typeSteering    = "steering-message"
	prefixTool      = "tool-"
	prefixData      = "data-"
)

// readMessage reads a message. parts is how many parts the request may still have; at
// is the message's place in the request.
func readMessage(raw json.RawMessage, parts *int, at string) (UIMessage, error) {
	type plain UIMessage
	var w struct {
		plain
		Parts json.RawMessage `json:"parts"` // instead of plain's
	}
	if err := json.Unmarshal(raw, &w); err != nil {
		return UIMessage{}, cay.Errorf(cay.Invalid, "%s: %w", at, err)
	}
	m := UIMessage(w.plain)
	if len(m.ID) > maxID {
		return UIMessage{}, cay.Errorf(cay.Invalid, "%s.id has more than %d bytes", at, maxID)
	}
	var err error
	m.Parts, err = readParts(w.Parts, parts, at, true)
	return m, err
}

// readParts reads the parts of a message, or of a part, whose parts cannot have parts
// themselves.
func readParts(raw json.RawMessage, left *int, at string, deeper bool) ([]UIPart, error) {
	if isNull(raw) {
		return nil, nil
	}
	all := []UIPart{}
	err := elements(raw, func(i int, raw json.RawMessage) error {
		if *left--; *left < 0 {
			return cay.Errorf(cay.Invalid, "there are more than %d parts in the messages", maxParts)
		}
		type plain UIPart
		var w struct {
			plain
			Parts json.RawMessage `json:"parts"`
		}
		at := partAt(at, i)
		if err := json.Unmarshal(raw, &w); err != nil {
			return cay.Errorf(cay.Invalid, "%s: %w", at, err)
		}
		p := UIPart(w.plain)
		if !isNull(w.Parts) {
			if !deeper {
				return cay.Errorf(cay.Invalid, "%s has parts, and is a part of a part", at)
			}
			var err error
			if p.Parts, err = readParts(w.Parts, left, at, false); err != nil {
				return err
			}
		}
		all = append(all, p)
		return nil
	})
	return all, err
}

// elements calls f with each element of a JSON array, until f returns an error. null
// counts as an empty array.
func elements(array json.RawMessage, f func(i int, raw json.RawMessage) error) error {
	if isNull(array) {
		return nil
	}
	if array[0] != '[' {
		return cay.Errorf(cay.Invalid, "messages and parts are arrays, and one of them is %.20q", array)
	}
	d := json.NewDecoder(bytes.NewReader(array))
	if _, err := d.Token(); err != nil {
		return cay.Errorf(cay.Invalid, "%w", err)
	}
	for i := 0; d.More(); i++ {
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return cay.Errorf(cay.Invalid, "%w", err)
		}
		if err := f(i, raw); err != nil {
			return err
		}
	}
	return nil
}

// isTool reports whether the part is a call of a tool.
func (p *UIPart) isTool() bool {
	return p.Type == typeDynamicTool || strings.HasPrefix(p.Type, prefixTool)
}

// tool returns the name of the tool.
func (p *UIPart) tool() string {
	if p.Type == typeDynamicTool {
		return p.ToolName
	}
	return strings.TrimPrefix(p.Type, prefixTool)
}

// check reports fields that a message of its role cannot have. at is the message's
// place in the request.
func (m *UIMessage) check(at string) error {
	switch m.Role {
	case agent.System, agent.User, agent.Assistant:
	default:
		return cay.Errorf(cay.Invalid, "%s.role is %q: it must be system, user or assistant", at, m.Role)
	}
	if m.Parts == nil {
		return cay.Errorf(cay.Invalid, "%s has no parts: messages of AI SDK 5 and later do", at)
	}
	return nil
}

// checkTool reports missing fields of a call of a tool.
func (p *UIPart) checkTool(at string) error {
	switch {
	case p.ToolCallID == "":
		return cay.Errorf(cay.Invalid, "%s has no toolCallId", at)
	case p.tool() == "":
		return cay.Errorf(cay.Invalid, "%s names no tool", at)
	}
	needs := false // an approval
	switch p.State {
	case InputStreaming, InputAvailable, OutputAvailable, OutputFailed, OutputDenied:
	case ApprovalRequested, ApprovalResponded:
		needs = true
	default:
		return cay.Errorf(cay.Invalid, "%s.state is %q, which no call of a tool is in", at, p.State)
	}
	if needs && p.Approval == nil || p.Approval != nil && p.Approval.ID == "" {
		return cay.Errorf(cay.Invalid, "%s has no approval.id", at)
	}
	if p.State == ApprovalResponded && p.Approval.Approved == nil {
		return cay.Errorf(cay.Invalid, "%s has no approval.approved, and its state is %s", at, p.State)
	}
	return nil
}

// isNull reports whether a value is missing, or null.
func isNull(v json.RawMessage) bool { return len(v) == 0 || string(v) == "null" }
