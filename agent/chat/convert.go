package chat

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/agent"
)

// ConvertOptions say how messages of pages become messages of an agent. The zero value
// is usable.
type ConvertOptions struct {
	// AllowSystem lets pages send messages of the role system. Without it they are
	// refused: the program sets the instructions.
	AllowSystem bool
	// Data converts a part of type "data-" and a name to the part that the model sees;
	// nil, nil drops it. Data is called for parts of users and of the assistant. If
	// Data is nil, models see no such parts.
	Data func(name string, data json.RawMessage) (*agent.Part, error)
	// ToolOutput converts the result of a tool for the model, for tools whose output
	// is not their JSON (agent.OutputAs). nil, nil means the default: a string becomes
	// text, everything else JSON.
	ToolOutput func(tool string, output json.RawMessage) (*agent.Output, error)
}

// denied is the text for the model for a denial without a reason. Source: the AI SDK.
const denied = "Tool call execution denied."

// Convert converts the messages of a page to messages of an agent, like
// convertToModelMessages of AI SDK 7, except that
//
//   - calls of tools without an answer, before the last message of a user, are left out:
//     providers refuse a call without an answer;
//   - the denial of a call in the last message is left to the agent, which informs both
//     the model and the page;
//   - texts that are empty and have no metadata are left out, as the SDK does later.
//
// Errors: invalid, with the place in the messages.
func Convert(messages []UIMessage, o ConvertOptions) ([]agent.Message, error) {
	lastUser := -1
	for i := range messages {
		if messages[i].Role == agent.User {
			lastUser = i
		}
	}
	c := converter{o: o}
	for i := range messages {
		m, at := &messages[i], fmt.Sprintf("messages[%d]", i)
		if err := m.check(at); err != nil {
			return nil, err
		}
		c.past, c.last = i < lastUser, i == len(messages)-1
		var err error
		switch m.Role {
		case agent.System:
			err = c.system(m, at)
		case agent.User:
			err = c.user(m.Parts, at)
		default:
			err = c.assistant(m, at)
		}
		if err != nil {
			return nil, err
		}
	}
	return c.out, nil
}

type converter struct {
	o    ConvertOptions
	out  []agent.Message
	past bool // a user has said something since
	last bool // nothing follows
}

func (c *converter) add(role agent.Role, parts []agent.Part) {
	if len(parts) > 0 {
		c.out = append(c.out, agent.Message{Role: role, Parts: parts})
	}
}

func (c *converter) system(m *UIMessage, at string) error {
	if !c.o.AllowSystem {
		return cay.Errorf(cay.Invalid, "%s is of the role system: the agent's instructions are not the page's", at)
	}
	var text strings.Builder
	options := agent.Options{}
	for i := range m.Parts {
		if p := &m.Parts[i]; p.Type == "text" {
			if err := checkOptions(p.ProviderMetadata, partAt(at, i)); err != nil {
				return err
			}
			text.WriteString(p.Text)
			maps.Copy(options, p.ProviderMetadata)
		}
	}
	out := agent.Message{Role: agent.System, Parts: []agent.Part{{Type: agent.Text, Text: text.String()}}}
	if len(options) > 0 {
		out.Options = options
	}
	c.out = append(c.out, out)
	return nil
}

func (c *converter) user(parts []UIPart, at string) error {
	var out []agent.Part
	for i := range parts {
		p, at := &parts[i], partAt(at, i)
		var part *agent.Part
		var err error
		switch {
		case p.Type == "text":
			part, err = text(p, at)
		case p.Type == "file":
			part, err = file(agent.FilePart, p, at)
		case strings.HasPrefix(p.Type, prefixData):
			part, err = c.data(p, at)
		default:
			err = cay.Errorf(cay.Invalid, "%s.type is %q: messages of users have text, files and data", at, p.Type)
		}
		if err != nil {
			return err
		}
		if part != nil {
			out = append(out, *part)
		}
	}
	c.add(agent.User, out)
	return nil
}

// assistant converts each step to a message of the assistant and a message of its
// tools.
func (c *converter) assistant(m *UIMessage, at string) error {
	begin := 0
	for i := range m.Parts {
		p := &m.Parts[i]
		if p.Type != typeStepStart && p.Type != typeSteering {
			continue
		}
		if err := c.step(m.Parts[begin:i], begin, at); err != nil {
			return err
		}
		if p.Type == typeSteering {
			if err := c.user(p.Parts, partAt(at, i)); err != nil {
				return err
			}
		}
		begin = i + 1
	}
	return c.step(m.Parts[begin:], begin, at)
}

// step converts the parts of a step; first is the index of the first one.
func (c *converter) step(parts []UIPart, first int, at string) error {
	var said, answered []agent.Part
	for i := range parts {
		p, at := &parts[i], partAt(at, first+i)
		var part *agent.Part
		var err error
		switch {
		case p.Type == "text":
			part, err = text(p, at)
		case p.Type == "reasoning":
			part = &agent.Part{Type: agent.Reasoning, Text: p.Text, Options: p.ProviderMetadata}
			err = checkOptions(p.ProviderMetadata, at)
		case p.Type == "file":
			part, err = file(agent.FilePart, p, at)
		case p.Type == "reasoning-file":
			part, err = file(agent.ReasoningFile, p, at)
		case p.Type == "custom":
			part = &agent.Part{Type: agent.Custom, Kind: p.Kind, Options: p.ProviderMetadata}
			err = checkOptions(p.ProviderMetadata, at)
		case p.Type == "source-url", p.Type == "source-document":
			// Sources are for people, not for the model.
		case strings.HasPrefix(p.Type, prefixData):
			part, err = c.data(p, at)
		case p.isTool():
			var call, answer []agent.Part
			if call, answer, err = c.tool(p, at); err == nil {
				said, answered = append(said, call...), append(answered, answer...)
			}
		default:
			err = cay.Errorf(cay.Invalid, "%s.type is %q, which is not known", at, p.Type)
		}
		if err != nil {
			return err
		}
		if part != nil {
			said = append(said, *part)
		}
	}
	c.add(agent.Assistant, said)
	c.add(agent.FromTool, answered)
	return nil
}

// tool converts a call of a tool to the assistant's part, and the part with the tool's
// answer.
func (c *converter) tool(p *UIPart, at string) (said, answered []agent.Part, err error) {
	if err := p.checkTool(at); err != nil {
		return nil, nil, err
	}
	for _, options := range []agent.Options{p.CallProviderMetadata, p.ResultProviderMetadata} {
		if err := checkOptions(options, at); err != nil {
			return nil, nil, err
		}
	}
	if p.State == InputStreaming || c.past && p.nothingCameOfIt() {
		return nil, nil, nil
	}
	failed := p.State == OutputFailed
	call := agent.Part{
		Type: agent.ToolCallPart, CallID: p.ToolCallID, ToolName: p.tool(), Input: p.Input,
		ProviderExecuted: p.ProviderExecuted, Options: p.CallProviderMetadata,
	}
	if failed && isNull(call.Input) {
		call.Input = p.RawInput
	}
	if len(call.Input) == 0 {
		call.Input = json.RawMessage("{}")
	}
	if failed && call.Options == nil {
		call.Options = p.ResultProviderMetadata
	}
	said = append(said, call)
	if a := p.Approval; a != nil {
		said = append(said, agent.Part{Type: agent.ApprovalRequest, ApprovalID: a.ID, CallID: p.ToolCallID, Signature: a.Signature})
		if a.Approved != nil {
			answered = append(answered, agent.Part{
				Type: agent.ApprovalResponse, ApprovalID: a.ID, Approved: *a.Approved, Reason: a.Reason,
				Signature: a.Signature, ProviderExecuted: p.ProviderExecuted,
			})
		}
	}

	result := agent.Part{Type: agent.ToolResultPart, CallID: p.ToolCallID, ToolName: p.tool(), Options: p.CallProviderMetadata}
	if p.ProviderExecuted && p.ResultProviderMetadata != nil {
		result.Options = p.ResultProviderMetadata
	}
	switch p.State {
	case OutputAvailable:
		if result.Output, err = c.output(p); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", at, err)
		}
	case OutputFailed:
		result.Output = &agent.Output{Type: agent.OutputErrorText, Text: p.ErrorText}
		if p.ProviderExecuted {
			result.Output = &agent.Output{Type: agent.OutputErrorJSON, JSON: quote(p.ErrorText)}
		}
	case OutputDenied:
		result.Output = &agent.Output{Type: agent.OutputErrorText, Text: denied}
		if p.Approval != nil && p.Approval.Reason != "" {
			result.Output.Text = p.Approval.Reason
		}
	case ApprovalResponded:
		if *p.Approval.Approved || c.last {
			return said, answered, nil
		}
		result.Output = &agent.Output{Type: agent.OutputDenied, Text: p.Approval.Reason}
	default:
		return said, answered, nil
	}
	switch {
	case !p.ProviderExecuted, p.State == ApprovalResponded:
		answered = append(answered, result)
	case p.State != OutputDenied:
		said = append(said, result)
	}
	return said, answered, nil
}

// nothingCameOfIt reports whether a call has no answer, and will get none.
func (p *UIPart) nothingCameOfIt() bool {
	switch p.State {
	case OutputAvailable:
		return p.Preliminary
	case OutputFailed, OutputDenied:
		return false
	case ApprovalResponded:
		return *p.Approval.Approved
	}
	return true
}

// output returns the result of a tool.
func (c *converter) output(p *UIPart) (*agent.Output, error) {
	if c.o.ToolOutput != nil {
		out, err := c.o.ToolOutput(p.tool(), p.Output)
		if out != nil || err != nil {
			return out, err
		}
	}
	var s string
	switch {
	case len(p.Output) == 0:
		return &agent.Output{Type: agent.OutputJSON, JSON: json.RawMessage("null")}, nil
	case p.Output[0] == '"':
		if err := json.Unmarshal(p.Output, &s); err != nil {
			return nil, cay.Errorf(cay.Invalid, "output: %w", err)
		}
		return &agent.Output{Type: agent.OutputText, Text: s}, nil
	}
	return &agent.Output{Type: agent.OutputJSON, JSON: p.Output}, nil
}

// data converts a part of the program's own.
func (c *converter) data(p *UIPart, at string) (*agent.Part, error) {
	if c.o.Data == nil {
		return nil, nil
	}
	part, err := c.o.Data(strings.TrimPrefix(p.Type, prefixData), p.Data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	return part, nil
}

// text converts a text; nil for an empty text without metadata.
func text(p *UIPart, at string) (*agent.Part, error) {
	if err := checkOptions(p.ProviderMetadata, at); err != nil {
		return nil, err
	}
	if p.Text == "" && p.ProviderMetadata == nil {
		return nil, nil
	}
	return &agent.Part{Type: agent.Text, Text: p.Text, Options: p.ProviderMetadata}, nil
}

// checkOptions returns an error for metadata whose keys are not providers.
func checkOptions(o agent.Options, at string) error {
	for name, v := range o {
		if len(v) == 0 || v[0] != '{' {
			return cay.Errorf(cay.Invalid, "%s: the metadata of provider %.40q is no object", at, name)
		}
	}
	return nil
}

func partAt(at string, i int) string { return fmt.Sprintf("%s.parts[%d]", at, i) }

// quote returns a string as JSON.
func quote(s string) json.RawMessage {
	b, _ := json.Marshal(s) // strings can always be
	return b
}
