package agent

import (
	"slices"

	"github.com/cayhq/cay"
)

// prompt returns a conversation in the form for a model: after the instructions,
// without questions to people, and with a result for each call, because providers
// refuse a call without a result.
func prompt(instructions string, conversation []Message) []Message {
	var out []Message
	if instructions != "" {
		out = append(out, Message{Role: System, Parts: []Part{{Type: Text, Text: instructions}}})
	}
	results := make(map[string]bool)
	byProvider := make(map[string]bool) // calls, and approvals of them
	eachPart(conversation, func(m *Message, p *Part) {
		switch {
		case p.Type == ToolResultPart:
			results[p.CallID] = true
		case p.Type == ToolCallPart && p.ProviderExecuted:
			byProvider[p.CallID] = true
		case p.Type == ApprovalRequest && byProvider[p.CallID]:
			byProvider[p.ApprovalID] = true
		}
	})
	var open []Part // calls without a result, since the last message of the model
	settle := func() {
		for _, c := range open {
			o := Output{Type: OutputErrorText, Text: "This call was not made."}
			out = appendResult(out, Part{Type: ToolResultPart, CallID: c.CallID, ToolName: c.ToolName, Output: &o})
		}
		open = nil
	}
	for i := range conversation {
		m := conversation[i]
		if m.Role != FromTool {
			settle()
		}
		kept := make([]Part, 0, len(m.Parts))
		for _, p := range m.Parts {
			switch {
			case p.Type == ApprovalRequest && !byProvider[p.CallID], p.Type == ApprovalResponse && !byProvider[p.ApprovalID]:
				continue
			case p.Type == ToolCallPart && !p.ProviderExecuted && !results[p.CallID]:
				open = append(open, p)
			}
			p.Signature = ""
			kept = append(kept, p)
		}
		if m.Parts = kept; len(kept) == 0 {
			continue
		}
		if m.Role == FromTool && len(out) > 0 && out[len(out)-1].Role == FromTool && len(m.Options) == 0 {
			for _, p := range kept {
				out = appendResult(out, p)
			}
			continue
		}
		out = append(out, m)
	}
	settle()
	return out
}

// appendResult adds a part to the last message, if that is a message of tools, or
// to a new one.
func appendResult(messages []Message, p Part) []Message {
	if n := len(messages); n > 0 && messages[n-1].Role == FromTool {
		last := &messages[n-1]
		last.Parts = append(slices.Clip(last.Parts), p)
		return messages
	}
	return append(messages, Message{Role: FromTool, Parts: []Part{p}})
}

func eachPart(messages []Message, f func(*Message, *Part)) {
	for i := range messages {
		for j := range messages[i].Parts {
			f(&messages[i], &messages[i].Parts[j])
		}
	}
}

// conversation returns the messages that a Call begins with.
func (c *Call) conversation() ([]Message, error) {
	switch {
	case c.Prompt != "" && len(c.Messages) > 0:
		return nil, cay.Errorf(cay.Invalid, "a Call has both a Prompt and Messages; give one of them")
	case c.Prompt != "":
		return []Message{UserMessage(c.Prompt)}, nil
	case len(c.Messages) == 0:
		return nil, cay.Errorf(cay.Invalid, "a Call has neither a Prompt nor Messages; give one of them")
	}
	for i := range c.Messages {
		if err := c.Messages[i].check(); err != nil {
			return nil, cay.Errorf(cay.Invalid, "message %d: %w", i, err)
		}
	}
	return slices.Clone(c.Messages), nil
}
