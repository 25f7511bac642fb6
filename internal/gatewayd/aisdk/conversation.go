package aisdk

import (
	"encoding/json"
	"slices"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// partsOf are the allowed kinds of parts per role.
var partsOf = map[hub.Role][]hub.PartKind{
	hub.System: {hub.TextPart},
	hub.User:   {hub.TextPart, hub.FilePart},
	hub.Assistant: {
		hub.TextPart, hub.FilePart, hub.ReasoningPart, hub.ReasoningFilePart, hub.CustomPart,
		hub.ToolCallPart, hub.ToolResultPart, hub.ApprovalRequestPart,
	},
	hub.ToolRole: {hub.ToolResultPart, hub.ApprovalResponsePart},
}

func (r *callReader) prompt(v gjson.Result, path string) (messages []hub.Message) {
	r.items(v, path, func(path string, v gjson.Result) {
		messages = append(messages, r.message(v, path))
	})
	return messages
}

func (r *callReader) message(v gjson.Result, path string) (m hub.Message) {
	role := v.Get("role") // before the content, which depends on it
	if m.Role = hub.Role(role.Str); partsOf[m.Role] == nil {
		r.want(join(path, "role"), `"system", "user", "assistant" or "tool"`)
		return m
	}
	content := false
	r.members(v, path, func(name, path string, v gjson.Result) {
		switch name {
		case "role":
		case "content":
			content = true
			m.Parts = r.content(v, path, m.Role)
		case "providerOptions":
			m.Options = r.options(v, path)
		default:
			r.unknown(path)
		}
	})
	if !content {
		r.missing(path, "content")
	}
	return m
}

// content decodes the parts of a message. A system message has a string; a string is
// accepted for the other roles as well, and becomes one text part.
func (r *callReader) content(v gjson.Result, path string, role hub.Role) (parts []hub.Part) {
	if v.Type == gjson.String && role != hub.ToolRole {
		return []hub.Part{{Kind: hub.TextPart, Text: v.Str}}
	}
	r.items(v, path, func(path string, v gjson.Result) {
		p := r.part(v, path)
		if r.err == nil && !slices.Contains(partsOf[role], p.Kind) {
			r.fail(join(path, "type"), "%s: a message of the role %s cannot have a part of the type %s", join(path, "type"), role, clip(string(p.Kind)))
		}
		if p.Kind == hub.ToolResultPart {
			p.Result.ProviderExecuted = role == hub.Assistant
		}
		parts = append(parts, p)
	})
	return parts
}

func (r *callReader) part(v gjson.Result, path string) (p hub.Part) {
	if !v.IsObject() {
		r.want(path, "an object")
		return p
	}
	p.Kind = hub.PartKind(v.Get("type").Str)
	switch p.Kind {
	case hub.TextPart, hub.ReasoningPart:
		r.textPart(&p, v, path)
	case hub.FilePart, hub.ReasoningFilePart:
		p.File, p.Options = r.file(v, path)
	case hub.ToolCallPart:
		r.toolCall(&p, v, path)
	case hub.ToolResultPart:
		r.toolResult(&p, v, path)
	case hub.ApprovalRequestPart, hub.ApprovalResponsePart:
		r.approval(&p, v, path)
	case hub.CustomPart:
		r.custom(&p, v, path)
	default:
		r.fail(join(path, "type"), "%s: the gateway does not know parts of the type %s", join(path, "type"), clip(string(p.Kind)))
	}
	return p
}

// ofPart calls f for the members of a part that are specific to its type. f returns false
// for an unknown member.
func (r *callReader) ofPart(p *hub.Part, v gjson.Result, path string, f func(name, path string, v gjson.Result) bool) {
	r.members(v, path, func(name, path string, v gjson.Result) {
		switch name {
		case "type":
		case "providerOptions":
			p.Options = r.options(v, path)
		default:
			if !f(name, path, v) {
				r.unknown(path)
			}
		}
	})
}

func (r *callReader) textPart(p *hub.Part, v gjson.Result, path string) {
	text := false
	r.ofPart(p, v, path, func(name, path string, v gjson.Result) bool {
		switch name {
		case "text":
			text = true
			p.Text = r.text(v, path)
		default:
			return false
		}
		return true
	})
	if !text {
		r.missing(path, "text")
	}
}

// toolCall decodes a tool call. Its input is a value, while answers have a string; an
// input that was invalid JSON comes back as a string with the model's text.
func (r *callReader) toolCall(p *hub.Part, v gjson.Result, path string) {
	c := &hub.ToolCall{Input: "{}"}
	p.Call = c
	r.ofPart(p, v, path, func(name, path string, v gjson.Result) bool {
		switch name {
		case "toolCallId":
			c.ID = r.name(v, path)
		case "toolName":
			c.Name = r.name(v, path)
		case "input":
			if c.Input = v.Raw; v.Type == gjson.String {
				c.Input = v.Str
			}
		case "providerExecuted":
			c.ProviderExecuted = r.flag(v, path)
		case "dynamic":
			c.Dynamic = r.flag(v, path)
		default:
			return false
		}
		return true
	})
	switch {
	case c.ID == "":
		r.missing(path, "toolCallId")
	case c.Name == "":
		r.missing(path, "toolName")
	}
}

func (r *callReader) toolResult(p *hub.Part, v gjson.Result, path string) {
	t := new(hub.ToolResult)
	p.Result = t
	r.ofPart(p, v, path, func(name, path string, v gjson.Result) bool {
		switch name {
		case "toolCallId":
			t.CallID = r.name(v, path)
		case "toolName":
			t.Name = r.name(v, path)
		case "output":
			t.Output = r.output(v, path)
		default:
			return false
		}
		return true
	})
	switch {
	case t.CallID == "":
		r.missing(path, "toolCallId")
	case t.Name == "":
		r.missing(path, "toolName")
	case t.Output.Kind == "":
		r.missing(path, "output")
	}
}

func (r *callReader) output(v gjson.Result, path string) (o hub.ToolOutput) {
	if !v.IsObject() {
		r.want(path, "an object")
		return o
	}
	o.Kind = hub.OutputKind(v.Get("type").Str)
	value := false
	r.members(v, path, func(name, path string, v gjson.Result) {
		switch {
		case name == "type":
		case name == "providerOptions":
			o.Options = r.options(v, path)
		case name == "value" && o.Kind != hub.OutputDenied:
			value = true
			r.value(&o, v, path)
		case name == "reason" && o.Kind == hub.OutputDenied:
			o.Text = r.text(v, path)
		default:
			r.unknown(path)
		}
	})
	switch o.Kind {
	case hub.OutputText, hub.OutputErrorText, hub.OutputContent:
		if !value {
			r.missing(path, "value")
		}
	case hub.OutputJSON, hub.OutputErrorJSON:
		if !value {
			o.JSON = json.RawMessage("null") // the output of a tool that returns nothing
		}
	case hub.OutputDenied:
	default:
		r.want(join(path, "type"), `"text", "json", "error-text", "error-json", "content" or "execution-denied"`)
	}
	return o
}

func (r *callReader) value(o *hub.ToolOutput, v gjson.Result, path string) {
	switch o.Kind {
	case hub.OutputText, hub.OutputErrorText:
		o.Text = r.text(v, path)
	case hub.OutputJSON, hub.OutputErrorJSON:
		o.JSON = json.RawMessage(v.Raw)
	case hub.OutputContent:
		r.items(v, path, func(path string, v gjson.Result) {
			o.Content = append(o.Content, r.outputPart(v, path))
		})
	}
}

// outputPart decodes an element of a tool's content output: text, files (whose form
// differs between versions) and custom parts.
func (r *callReader) outputPart(v gjson.Result, path string) (p hub.Part) {
	if !v.IsObject() {
		r.want(path, "an object")
		return p
	}
	switch kind := v.Get("type").Str; kind {
	case "text":
		p.Kind = hub.TextPart
		r.textPart(&p, v, path)
	case "file", "media", "file-data", "file-url", "file-id", "image-data", "image-url", "image-file-id":
		p.Kind = hub.FilePart
		p.File, p.Options = r.file(v, path)
	case "custom":
		p.Kind = hub.CustomPart
		r.custom(&p, v, path)
	default:
		r.fail(join(path, "type"), "%s: the gateway does not know content of the type %s", join(path, "type"), clip(kind))
	}
	return p
}

func (r *callReader) approval(p *hub.Part, v gjson.Result, path string) {
	a := new(hub.Approval)
	p.Approval = a
	approved := false
	r.ofPart(p, v, path, func(name, path string, v gjson.Result) bool {
		switch name {
		case "approvalId":
			a.ID = r.name(v, path)
		case "toolCallId":
			a.CallID = r.name(v, path)
		case "approved":
			approved = true
			a.Approved = r.flag(v, path)
		case "reason":
			a.Reason = r.text(v, path)
		default:
			return false
		}
		return true
	})
	switch {
	case a.ID == "":
		r.missing(path, "approvalId")
	case p.Kind == hub.ApprovalResponsePart && !approved:
		r.missing(path, "approved")
	}
}

// custom decodes a provider-specific part. Its members other than the options are kept
// unchanged.
func (r *callReader) custom(p *hub.Part, v gjson.Result, path string) {
	members := make(map[string]json.RawMessage)
	r.ofPart(p, v, path, func(name, path string, v gjson.Result) bool {
		if name == "kind" {
			p.CustomKind = r.name(v, path)
		} else {
			members[name] = json.RawMessage(v.Raw)
		}
		return true
	})
	if len(members) > 0 {
		p.Custom, _ = json.Marshal(members) // valid raw messages, cannot fail
	}
}
