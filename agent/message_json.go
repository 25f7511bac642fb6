package agent

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/cayhq/cay"
)

// partsOf are the parts a message of each role may have.
var partsOf = map[Role][]PartType{
	System:    {Text},
	User:      {Text, FilePart},
	Assistant: {Text, FilePart, Reasoning, ReasoningFile, ToolCallPart, ToolResultPart, ApprovalRequest, Custom},
	FromTool:  {ToolResultPart, ApprovalResponse},
}

// check returns an error for an invalid message.
func (m *Message) check() error {
	allowed := partsOf[m.Role]
	if allowed == nil {
		return cay.Errorf(cay.Invalid, "the role %.64q of a message is not system, user, assistant or tool", m.Role)
	}
	for i := range m.Parts {
		p := &m.Parts[i]
		if !slices.Contains(allowed, p.Type) {
			return cay.Errorf(cay.Invalid, "part %d of a message of the role %s has the type %.64q, which such messages do not have", i, m.Role, p.Type)
		}
		if err := p.check(); err != nil {
			return cay.Errorf(cay.Invalid, "part %d of a message of the role %s: %w", i, m.Role, err)
		}
	}
	return nil
}

// check returns an error for an incomplete part.
func (p *Part) check() error {
	switch p.Type {
	case FilePart, ReasoningFile:
		if p.File == nil {
			return cay.Errorf(cay.Invalid, "a part of type %s has no file", p.Type)
		}
		return p.File.check()
	case ToolCallPart, ToolResultPart:
		if p.CallID == "" || p.ToolName == "" {
			return cay.Errorf(cay.Invalid, "a part of type %s has no id of its call, or no name of a tool", p.Type)
		}
		if p.Type == ToolResultPart {
			if p.Output == nil {
				return cay.Errorf(cay.Invalid, "the result of call %.64q has no output", p.CallID)
			}
			return p.Output.check()
		}
	case ApprovalRequest, ApprovalResponse:
		if p.ApprovalID == "" {
			return cay.Errorf(cay.Invalid, "a part of type %s has no id", p.Type)
		}
	}
	return nil
}

func (o *Output) check() error {
	switch o.Type {
	case OutputText, OutputErrorText, OutputDenied, OutputJSON, OutputErrorJSON:
		return nil
	case OutputContent:
		for i := range o.Parts {
			if t := o.Parts[i].Type; t != Text && t != FilePart {
				return cay.Errorf(cay.Invalid, "part %d of the output of a tool has the type %.64q, not text or file", i, t)
			}
			if err := o.Parts[i].check(); err != nil {
				return err
			}
		}
		return nil
	}
	return cay.Errorf(cay.Invalid, "the output of a tool has the type %.64q, not text, json, error-text, error-json, content or execution-denied", o.Type)
}

// messageJSON, partJSON and outputJSON are the JSON forms of the AI SDK's prompts.
type messageJSON struct {
	Role    Role            `json:"role"`
	Content json.RawMessage `json:"content"`
	Options Options         `json:"providerOptions,omitempty"`
}

type partJSON struct {
	Type             PartType        `json:"type"`
	Text             *string         `json:"text,omitempty"`
	CallID           string          `json:"toolCallId,omitempty"`
	ToolName         string          `json:"toolName,omitempty"`
	Input            json.RawMessage `json:"input,omitempty"`
	Output           *Output         `json:"output,omitempty"`
	ProviderExecuted bool            `json:"providerExecuted,omitempty"`
	MediaType        string          `json:"mediaType,omitempty"`
	Filename         string          `json:"filename,omitempty"`
	Data             json.RawMessage `json:"data,omitempty"`
	URL              string          `json:"url,omitempty"`   // read only
	Image            json.RawMessage `json:"image,omitempty"` // read only
	ApprovalID       string          `json:"approvalId,omitempty"`
	Approved         *bool           `json:"approved,omitempty"`
	Reason           string          `json:"reason,omitempty"`
	Signature        string          `json:"signature,omitempty"`
	Kind             string          `json:"kind,omitempty"`
	Options          Options         `json:"providerOptions,omitempty"`
}

type outputJSON struct {
	Type    OutputType      `json:"type"`
	Value   json.RawMessage `json:"value,omitempty"`
	Reason  string          `json:"reason,omitempty"`
	Options Options         `json:"providerOptions,omitempty"`
}

// MarshalJSON implements json.Marshaler. It fails for a message that is not valid in
// a prompt.
func (m Message) MarshalJSON() ([]byte, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	w := messageJSON{Role: m.Role, Options: m.Options}
	var err error
	if m.Role == System {
		texts := make([]string, len(m.Parts))
		for i := range m.Parts {
			texts[i] = m.Parts[i].Text
		}
		w.Content, err = json.Marshal(strings.Join(texts, "\n"))
	} else {
		w.Content, err = json.Marshal(append([]Part{}, m.Parts...)) // never null
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(w)
}

// UnmarshalJSON implements json.Unmarshaler. Errors: invalid, which names the part.
func (m *Message) UnmarshalJSON(b []byte) error {
	var w messageJSON
	if err := json.Unmarshal(b, &w); err != nil {
		return cay.Errorf(cay.Invalid, "a message: %w", err)
	}
	*m = Message{Role: w.Role, Options: w.Options}
	content := bytes.TrimSpace(w.Content)
	switch {
	case len(content) == 0 || string(content) == "null":
		return cay.Errorf(cay.Invalid, "a message of the role %.64q has no content", w.Role)
	case content[0] == '"' && w.Role != FromTool:
		var text string
		if err := json.Unmarshal(content, &text); err != nil {
			return cay.Errorf(cay.Invalid, "a message of the role %s: %w", w.Role, err)
		}
		m.Parts = []Part{{Type: Text, Text: text}}
	default:
		if err := json.Unmarshal(content, &m.Parts); err != nil {
			return cay.Errorf(cay.Invalid, "the content of a message of the role %.64q: %w", w.Role, err)
		}
	}
	return m.check()
}

// MarshalJSON implements json.Marshaler.
func (p Part) MarshalJSON() ([]byte, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	w := partJSON{Type: p.Type, Options: p.Options}
	switch p.Type {
	case Text, Reasoning:
		w.Text = &p.Text
	case FilePart, ReasoningFile:
		w.MediaType, w.Filename = p.File.MediaType, p.File.Name
		data, err := p.File.tagged()
		if err != nil {
			return nil, err
		}
		w.Data = data
	case ToolCallPart:
		w.CallID, w.ToolName, w.Input, w.ProviderExecuted = p.CallID, p.ToolName, p.Input, p.ProviderExecuted
		if len(w.Input) == 0 {
			w.Input = json.RawMessage("{}")
		}
	case ToolResultPart:
		w.CallID, w.ToolName, w.Output = p.CallID, p.ToolName, p.Output
	case ApprovalRequest:
		w.ApprovalID, w.CallID, w.Signature = p.ApprovalID, p.CallID, p.Signature
	case ApprovalResponse:
		w.ApprovalID, w.Approved, w.Reason, w.Signature = p.ApprovalID, &p.Approved, p.Reason, p.Signature
	case Custom:
		w.Kind = p.Kind
	default:
		return nil, cay.Errorf(cay.Invalid, "there are no parts of type %.64q", p.Type)
	}
	return json.Marshal(w)
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *Part) UnmarshalJSON(b []byte) error {
	var w partJSON
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	*p = Part{Type: w.Type, Options: w.Options}
	switch w.Type {
	case Text, Reasoning:
		if w.Text == nil {
			return cay.Errorf(cay.Invalid, "a part of type %s has no text", w.Type)
		}
		p.Text = *w.Text
	case FilePart, ReasoningFile:
		return p.readFile(&w)
	case "image":
		p.Type, w.Data = FilePart, w.Image
		if w.MediaType == "" {
			w.MediaType = "image/*"
		}
		return p.readFile(&w)
	case ToolCallPart:
		p.CallID, p.ToolName, p.Input, p.ProviderExecuted = w.CallID, w.ToolName, w.Input, w.ProviderExecuted
		if len(p.Input) == 0 {
			p.Input = json.RawMessage("{}")
		}
	case ToolResultPart:
		p.CallID, p.ToolName, p.Output = w.CallID, w.ToolName, w.Output
	case ApprovalRequest:
		p.ApprovalID, p.CallID, p.Signature = w.ApprovalID, w.CallID, w.Signature
	case ApprovalResponse:
		if w.Approved == nil {
			return cay.Errorf(cay.Invalid, "the answer to approval %.64q does not say whether it is approved", w.ApprovalID)
		}
		p.ApprovalID, p.Approved, p.Reason, p.Signature = w.ApprovalID, *w.Approved, w.Reason, w.Signature
	case Custom:
		p.Kind = w.Kind
	default:
		return cay.Errorf(cay.Invalid, "there are no parts of type %.64q", w.Type)
	}
	return p.check()
}

// MarshalJSON implements json.Marshaler.
func (o Output) MarshalJSON() (_ []byte, err error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	w := outputJSON{Type: o.Type, Options: o.Options}
	switch o.Type {
	case OutputText, OutputErrorText:
		w.Value, err = json.Marshal(o.Text)
	case OutputJSON, OutputErrorJSON:
		if w.Value = o.JSON; len(w.Value) == 0 {
			w.Value = json.RawMessage("null")
		}
	case OutputDenied:
		w.Reason = o.Text
	case OutputContent:
		w.Value, err = json.Marshal(append([]Part{}, o.Parts...))
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(w)
}

// contentTypes are the types that older versions of the AI SDK have for files in
// outputs of tools.
var contentTypes = []PartType{"media", "file-data", "file-url", "file-id", "image-data", "image-url", "image-file-id"}

// UnmarshalJSON implements json.Unmarshaler.
func (o *Output) UnmarshalJSON(b []byte) (err error) {
	var w outputJSON
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	*o = Output{Type: w.Type, Options: w.Options}
	if err := o.check(); err != nil {
		return err
	}
	switch w.Type {
	case OutputText, OutputErrorText:
		err = json.Unmarshal(w.Value, &o.Text)
	case OutputJSON, OutputErrorJSON:
		if o.JSON = w.Value; len(o.JSON) == 0 {
			o.JSON = json.RawMessage("null")
		}
	case OutputDenied:
		o.Text = w.Reason
	case OutputContent:
		err = o.readContent(w.Value)
	}
	if err != nil {
		return cay.Errorf(cay.Invalid, "the value of an output of type %s: %w", w.Type, err)
	}
	return o.check()
}

func (o *Output) readContent(value json.RawMessage) error {
	var items []json.RawMessage
	if err := json.Unmarshal(value, &items); err != nil {
		return err
	}
	o.Parts = make([]Part, len(items))
	for i, item := range items {
		var w struct {
			partJSON
			FileID json.RawMessage `json:"fileId"`
		}
		if err := json.Unmarshal(item, &w); err != nil {
			return err
		}
		p := &o.Parts[i]
		if !slices.Contains(contentTypes, w.Type) {
			if err := json.Unmarshal(item, p); err != nil {
				return err
			}
			continue
		}
		if w.MediaType == "" && strings.HasPrefix(string(w.Type), "image-") {
			w.MediaType = "image/*"
		}
		*p = Part{Type: FilePart, Options: w.Options}
		if len(w.FileID) > 0 {
			p.File = &File{MediaType: w.MediaType, Name: w.Filename}
			if err := p.File.readID(w.FileID); err != nil {
				return err
			}
			continue
		}
		if err := p.readFile(&w.partJSON); err != nil {
			return err
		}
	}
	return nil
}
