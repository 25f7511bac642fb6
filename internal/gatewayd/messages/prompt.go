package messages

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"unicode"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// prompt writes the conversation: consecutive messages of one role are joined, with tool
// results first.
func (w *callWriter) prompt() error {
	for i := range w.call.Prompt {
		m := &w.call.Prompt[i]
		var blocks []*block
		var err error
		if m.Role == hub.System && len(w.out.Messages) == 0 {
			if blocks, err = w.blocks(m); err != nil {
				return err
			}
			w.out.System = append(w.out.System, blocks...)
			continue
		}
		if blocks, err = w.blocks(m); err != nil {
			return err
		}
		switch m.Role {
		case hub.Assistant:
			w.add("assistant", blocks)
		case hub.User, hub.ToolRole:
			if len(blocks) == 0 {
				w.otherwise("prompt", "message %d, of the user, has nothing in it: it is left out", i)
			}
			w.add("user", blocks)
		case hub.System:
			w.midSystem(blocks)
		default:
			return bad("prompt", "a message has the role %.40q", string(m.Role))
		}
	}
	w.begin()
	if len(w.out.Messages) == 0 {
		return bad("prompt", "the prompt has no message with content besides the system's; the provider wants one of the user")
	}
	for _, m := range w.out.Messages {
		resultsFirst(m)
	}
	w.trimLast()
	return nil
}

// emptyMessage is the text of an otherwise empty user message at the start of a
// conversation; without it the conversation would begin with the assistant, which the
// provider refuses.
const emptyMessage = "(empty message)"

// begin makes the conversation begin with the user.
func (w *callWriter) begin() {
	if len(w.out.Messages) == 0 || w.out.Messages[0].Role != "assistant" {
		return
	}
	w.otherwise("prompt", "the provider wants a conversation to begin with the user: %q stands in that place", emptyMessage)
	first := &message{Role: "user", Content: []*block{{Type: "text", Text: ptr(emptyMessage)}}}
	w.out.Messages = append([]*message{first}, w.out.Messages...)
}

func (w *callWriter) add(role string, blocks []*block) {
	if len(blocks) == 0 {
		return
	}
	if n := len(w.out.Messages); n > 0 && w.out.Messages[n-1].Role == role {
		last := w.out.Messages[n-1]
		last.Content = append(last.Content, blocks...)
		return
	}
	w.out.Messages = append(w.out.Messages, &message{Role: role, Content: blocks})
}

// midSystem writes a system message after the first turn.
func (w *callWriter) midSystem(blocks []*block) {
	if w.target.Is(QuirkMidSystem) {
		w.add("system", blocks)
		return
	}
	w.otherwise("prompt", "the provider takes no system message after the first turn: it came as the user's text within <system> tags")
	for _, b := range blocks {
		b.Text = ptr("<system>\n" + *b.Text + "\n</system>")
	}
	w.add("user", blocks)
}

// resultsFirst moves tool results to the front, in their order.
func resultsFirst(m *message) {
	var results, others []*block
	for _, b := range m.Content {
		if b.Type == "tool_result" {
			results = append(results, b)
		} else {
			others = append(others, b)
		}
	}
	m.Content = append(results, others...)
}

// trimLast removes trailing white space from a final assistant message, which Anthropic
// refuses.
func (w *callWriter) trimLast() {
	last := w.out.Messages[len(w.out.Messages)-1]
	b := last.Content[len(last.Content)-1]
	if last.Role != "assistant" || b.Type != "text" {
		return
	}
	if text := strings.TrimRightFunc(*b.Text, unicode.IsSpace); text != "" {
		b.Text = &text
	}
}

func (w *callWriter) blocks(m *hub.Message) ([]*block, error) {
	var blocks []*block
	for i := range m.Parts {
		b, err := w.block(m, &m.Parts[i])
		if err != nil {
			return nil, err
		}
		if b != nil {
			blocks = append(blocks, b)
			if b.Type != "thinking" && b.Type != "redacted_thinking" { // thinking is cached with the block that follows
				w.mark(&b.CacheControl, m.Parts[i].Options)
			}
		}
	}
	if n := len(blocks); n > 0 && blocks[n-1].Type != "thinking" && blocks[n-1].Type != "redacted_thinking" {
		if blocks[n-1].CacheControl == nil {
			w.mark(&blocks[n-1].CacheControl, m.Options)
		}
	}
	return blocks, nil
}

// block encodes a part. It returns nil for a part that is left out: empty text, and, with
// a warning, parts that the provider does not support.
func (w *callWriter) block(m *hub.Message, p *hub.Part) (*block, error) {
	switch p.Kind {
	case hub.TextPart:
		if p.Options.String(self, "type") == "compaction" {
			return &block{Type: "compaction", Content: p.Text}, nil
		}
		if raw, ok := p.Options[self]["block"]; ok {
			said := gjson.ParseBytes(raw)
			return &block{Type: said.Get("type").Str, more: without(said, "type")}, nil
		}
		if p.Text == "" {
			return nil, nil
		}
		b := &block{Type: "text", Text: &p.Text}
		if m.Role == hub.Assistant {
			b.Citations = p.Options[self]["citations"]
		}
		return b, nil
	case hub.FilePart:
		return w.file(p)
	case hub.ReasoningPart:
		return w.reasoning(p), nil
	case hub.ToolCallPart:
		return w.toolUse(p), nil
	case hub.ToolResultPart:
		if p.Result.ProviderExecuted || m.Role == hub.Assistant {
			return serverResult(p, w.nameOf(p.Result.Name)), nil
		}
		return w.toolResult(p)
	case hub.CustomPart:
		if kind, ok := strings.CutPrefix(p.CustomKind, self+"."); ok {
			return &block{Type: kind, more: p.Custom}, nil
		}
		return nil, bad("prompt", "a part %s cannot be sent to %s", p.CustomKind, w.target.Provider)
	case hub.ReasoningFilePart, hub.SourcePart:
		w.unsupported("prompt."+string(p.Kind), "the provider has no place for it")
		return nil, nil
	case hub.ApprovalRequestPart, hub.ApprovalResponsePart:
		w.unsupported("prompt."+string(p.Kind), "the provider does not ask for approval")
		return nil, nil
	}
	return nil, bad("prompt", "a part of the kind %.40q cannot be sent to %s", string(p.Kind), w.target.Provider)
}

// reasoning encodes reasoning that Anthropic signed; Bedrock has the same signatures.
// Other reasoning is left out, because Anthropic refuses it.
func (w *callWriter) reasoning(p *hub.Part) *block {
	var send bool
	if w.call.Options.Get(self, "sendReasoning", &send) && !send {
		return nil
	}
	if data, ok := redactedData(p.Options); ok {
		return &block{Type: "redacted_thinking", Data: data}
	}
	for _, provider := range []string{self, "bedrock"} {
		if s := p.Options.String(provider, "signature"); s != "" {
			return &block{Type: "thinking", Thinking: &p.Text, Signature: &s}
		}
	}
	w.otherwise("reasoning", "what another model thought, or thought without a signature, was left out")
	return nil
}

func (w *callWriter) toolUse(p *hub.Part) *block {
	c := p.Call
	b := &block{Type: "tool_use", ID: plainID(c.ID), Name: w.nameOf(c.Name), Input: inputObject(c), Caller: callerOf(p.Options)}
	switch {
	case !c.ProviderExecuted:
	case p.Options.String(self, "type") == "mcp-tool-use" || p.Options.String(self, "serverName") != "":
		b.Type, b.ServerName = "mcp_tool_use", p.Options.String(self, "serverName")
	default:
		b.Type = "server_tool_use"
		b.Name, b.Input = codeName(b.Name, b.Input)
	}
	return b
}

// inputObject returns the input of a call as a JSON object, which the format requires.
func inputObject(c *hub.ToolCall) json.RawMessage {
	raw := c.InputValue()
	if !gjson.ParseBytes(raw).IsObject() {
		raw = append(append([]byte(`{"input":`), raw...), '}')
	}
	return raw
}

func callerOf(o hub.Options) json.RawMessage {
	if raw := o[self]["caller"]; len(raw) > 0 && raw[0] == '{' {
		return snakes(raw)
	}
	return nil
}

// plainID returns an id of letters, digits, _ and - only, as Anthropic requires. A call
// and its result get the same id.
func plainID(id string) string {
	return strings.Map(func(c rune) rune {
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-' {
			return c
		}
		return '_'
	}, id)
}

// serverResult encodes the result of a provider-run tool, under Anthropic's name.
func serverResult(p *hub.Part, name string) *block {
	r := p.Result
	b := &block{Type: p.Options.String(self, "type"), ToolUseID: plainID(r.CallID), Content: outputJSON(&r.Output), Caller: callerOf(p.Options)}
	if b.Type == "" || b.Type == "mcp-tool-use" {
		switch b.Type = typeOfResult(name); {
		case b.Type == "":
			b.Type = "mcp_tool_result"
		case name == codeExecution:
			b.Type = codeResult(&r.Output)
		}
	}
	if b.Type == "mcp_tool_result" {
		failed := r.Output.Failed()
		b.IsError = &failed
		if c := gjson.ParseBytes(outputJSON(&r.Output)); !c.IsArray() && c.Type != gjson.String {
			b.Content = []*block{{Type: "text", Text: ptr(string(outputJSON(&r.Output)))}}
		}
	}
	return b
}

// outputJSON returns an output as JSON.
func outputJSON(o *hub.ToolOutput) json.RawMessage {
	switch o.Kind {
	case hub.OutputJSON, hub.OutputErrorJSON:
		if len(o.JSON) > 0 {
			return o.JSON
		}
		return json.RawMessage("null")
	case hub.OutputContent:
		texts := []json.RawMessage{}
		for i := range o.Content {
			if o.Content[i].Kind == hub.TextPart {
				texts = append(texts, append(gjson.AppendJSONString([]byte(`{"type":"text","text":`), o.Content[i].Text), '}'))
			}
		}
		raw, _ := hub.Encode(texts) // JSON of ours
		return raw
	}
	return gjson.AppendJSONString(nil, o.Text)
}

// toolResult encodes the result of a client-run tool.
func (w *callWriter) toolResult(p *hub.Part) (*block, error) {
	r := p.Result
	b := &block{Type: "tool_result", ToolUseID: plainID(r.CallID)}
	o := &r.Output
	w.mark(&b.CacheControl, o.Options)
	failed := o.Failed()
	switch o.Kind {
	case hub.OutputText, hub.OutputErrorText:
		b.Content = o.Text
	case hub.OutputDenied:
		b.Content = "Tool execution denied."
		if o.Text != "" {
			b.Content = o.Text
		}
	case hub.OutputContent:
		blocks := []*block{}
		for i := range o.Content {
			c, err := w.block(&hub.Message{Role: hub.ToolRole}, &o.Content[i])
			if err != nil {
				return nil, err
			}
			if c != nil {
				w.mark(&c.CacheControl, o.Content[i].Options)
				blocks = append(blocks, c)
			}
		}
		b.Content = blocks
		var said bool
		failed = o.Options.Get(self, "isError", &said) && said
	default:
		b.Content = string(outputJSON(o))
	}
	if b.Content == "" {
		b.Content = nil
	}
	if failed {
		b.IsError = &failed
	}
	return b, nil
}

// file encodes an image, a PDF or a text.
func (w *callWriter) file(p *hub.Part) (*block, error) {
	f := p.File
	media, _, _ := strings.Cut(strings.ToLower(f.MediaType), ";")
	if len(f.Data) > 0 && (media == "" || strings.HasSuffix(media, "/*") || media == "application/octet-stream") {
		media, _, _ = strings.Cut(http.DetectContentType(f.Data), ";")
	}
	b := &block{Type: "document", Source: &source{MediaType: media}}
	image := strings.HasPrefix(media, "image/")
	if image {
		b.Type = "image"
	} else {
		b.Title, b.Context, b.Citations = f.Name, p.Options.String(self, "context"), p.Options[self]["citations"]
		if title := p.Options.String(self, "title"); title != "" {
			b.Title = title
		}
	}
	text := strings.HasPrefix(media, "text/") || media == "application/json"
	switch {
	case f.Reference != nil:
		id := f.Reference[self]
		if id == "" {
			return nil, bad("prompt", "a file is a reference to another provider's; %s has no such file", w.target.Provider)
		}
		b.Source = &source{Type: "file", FileID: id}
		w.beta("files-api-2025-04-14")
	case f.URL != "":
		if w.target.Is(QuirkNoURLs) {
			return nil, bad("prompt", "the provider %s does not fetch files, and the prompt has one by its address; send its bytes", w.target.Provider)
		}
		if !image && media != "application/pdf" {
			return nil, bad("prompt", "a file of the type %.60q cannot be sent to %s by its address: it takes images and PDFs", f.MediaType, w.target.Provider)
		}
		b.Source = &source{Type: "url", URL: f.URL}
	case f.Text != "" || text && len(f.Data) > 0:
		data := f.Text
		if data == "" {
			data = string(f.Data)
		}
		b.Type, b.Source = "document", &source{Type: "text", MediaType: "text/plain", Data: data}
	case media == "image/jpeg", media == "image/png", media == "image/gif", media == "image/webp", media == "application/pdf":
		b.Source.Type, b.Source.Data = "base64", base64.StdEncoding.EncodeToString(f.Data)
	case media == "image/jpg":
		b.Source = &source{Type: "base64", MediaType: "image/jpeg", Data: base64.StdEncoding.EncodeToString(f.Data)}
	default:
		return nil, bad("prompt", "a file of the type %.60q cannot be sent to %s: it takes JPEG, PNG, GIF and WebP images, PDFs and text", f.MediaType, w.target.Provider)
	}
	return b, nil
}

func ptr[T any](v T) *T { return &v }
