package converse

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
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
		blocks, err := w.blocks(m)
		if err != nil {
			return err
		}
		switch m.Role {
		case hub.System:
			if len(w.out.Messages) == 0 {
				w.out.System = append(w.out.System, blocks...)
				continue
			}
			w.otherwise("prompt", "the provider takes no system message after the first turn: it came as the user's text within <system> tags")
			for _, b := range blocks {
				if b.Text != nil {
					b.Text = ptr("<system>\n" + *b.Text + "\n</system>")
				}
			}
			w.add("user", blocks)
		case hub.Assistant:
			w.add("assistant", blocks)
		case hub.User, hub.ToolRole:
			if len(blocks) == 0 {
				w.otherwise("prompt", "message %d, of the user, has nothing in it: it is left out", i)
			}
			w.add("user", blocks)
		default:
			return bad("prompt", "a message has the role %.40q", string(m.Role))
		}
	}
	w.begin()
	if len(w.out.Messages) == 0 {
		return bad("prompt", "the prompt has no message with content besides the system's; the provider wants one of the user")
	}
	for _, m := range w.out.Messages {
		if m.Role == "user" {
			slices.SortStableFunc(m.Content, func(a, b *block) int { return rank(a) - rank(b) })
		}
	}
	last := w.out.Messages[len(w.out.Messages)-1]
	if b := last.Content[len(last.Content)-1]; last.Role == "assistant" && b.Text != nil {
		if text := strings.TrimRightFunc(*b.Text, unicode.IsSpace); text != "" {
			b.Text = &text
		}
	}
	return nil
}

// rank orders tool results before all other blocks. A cache point after a result moves to
// the end of the user's message, so that it covers the whole message.
func rank(b *block) int {
	if b.ToolResult != nil {
		return 0
	}
	return 1
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
	first := &message{Role: "user", Content: []*block{{Text: ptr(emptyMessage)}}}
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

func (w *callWriter) blocks(m *hub.Message) ([]*block, error) {
	var blocks []*block
	marked := false
	for i := range m.Parts {
		p := &m.Parts[i]
		b, err := w.block(m, p)
		if err != nil {
			return nil, err
		}
		if b == nil {
			continue
		}
		blocks = append(blocks, b)
		marked = false
		if mark := w.cachePoint(p.Options); mark != nil && b.Reasoning == nil {
			blocks = append(blocks, &block{CachePoint: mark})
			marked = true
		}
	}
	if len(blocks) > 0 && !marked {
		if mark := w.cachePoint(m.Options); mark != nil {
			blocks = append(blocks, &block{CachePoint: mark})
		}
	}
	return blocks, nil
}

// block encodes a part. It returns nil for a part that is left out: empty text, and, with
// a warning, parts that the provider does not support.
func (w *callWriter) block(m *hub.Message, p *hub.Part) (*block, error) {
	switch p.Kind {
	case hub.TextPart:
		if strings.TrimSpace(p.Text) == "" { // Converse refuses blank text
			return nil, nil
		}
		return &block{Text: &p.Text}, nil
	case hub.FilePart:
		return w.file(p)
	case hub.ReasoningPart:
		return w.reasoning(p), nil
	case hub.ToolCallPart:
		u := &toolUse{ID: plainID(p.Call.ID), Name: p.Call.Name, Input: inputObject(p.Call)}
		if p.Call.ProviderExecuted {
			u.Type = "server_tool_use"
		}
		return &block{ToolUse: u}, nil
	case hub.ToolResultPart:
		return w.toolResult(p)
	case hub.CustomPart:
		if kind, ok := strings.CutPrefix(p.CustomKind, self+"."); ok && len(p.Custom) > 0 {
			return &block{custom: kind, raw: p.Custom}, nil
		}
		return nil, bad("prompt", "a part %s cannot be sent to %s", p.CustomKind, w.target.Provider)
	case hub.ReasoningFilePart, hub.SourcePart:
		w.unsupported("prompt."+string(p.Kind), "the provider has no place for it")
		return nil, nil
	case hub.ApprovalRequestPart, hub.ApprovalResponsePart:
		w.unsupported("prompt."+string(p.Kind), "the provider does not ask for approval")
		return nil, nil
	}
	return nil, bad("prompt", "a part of the kind %.40q in a message of the role %s cannot be sent to %s", string(p.Kind), m.Role, w.target.Provider)
}

// reasoning encodes signed reasoning. Other reasoning is left out, because models refuse
// it, or mistake it for their own words.
func (w *callWriter) reasoning(p *hub.Part) *block {
	if data := p.Options.String(self, "redactedData"); data != "" {
		return &block{Reasoning: &reasoning{Redacted: data}}
	}
	for _, provider := range []string{self, "anthropic"} {
		if s := p.Options.String(provider, "signature"); s != "" {
			return &block{Reasoning: &reasoning{Text: &reasoningText{p.Text, s}}}
		}
	}
	w.otherwise("reasoning", "what another model thought, or thought without a signature, was left out")
	return nil
}

// inputObject returns the input of a call as a JSON object, which the format requires.
func inputObject(c *hub.ToolCall) json.RawMessage {
	raw := c.InputValue()
	if !gjson.ParseBytes(raw).IsObject() {
		raw = append(append([]byte(`{"input":`), raw...), '}')
	}
	return raw
}

// maxID is the maximum length of an id.
const maxID = 64

// plainID returns an id of up to 64 letters, digits, _ and -, as Converse requires. A
// call and its result get the same id.
func plainID(id string) string {
	plain := strings.Map(func(c rune) rune {
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-' {
			return c
		}
		return '_'
	}, id)
	if len(plain) > maxID {
		sum := sha256.Sum256([]byte(id))
		plain = "call_" + hex.EncodeToString(sum[:16])
	}
	return plain
}

func (w *callWriter) toolResult(p *hub.Part) (*block, error) {
	o := &p.Result.Output
	r := &toolResult{ID: plainID(p.Result.CallID), Content: []*block{}}
	if o.Failed() {
		r.Status = "error"
	}
	text := o.Text
	switch o.Kind {
	case hub.OutputDenied:
		if text == "" {
			text = "Tool execution denied."
		}
	case hub.OutputJSON, hub.OutputErrorJSON:
		if p.Result.ProviderExecuted && gjson.ParseBytes(o.JSON).IsArray() { // as received
			gjson.ParseBytes(o.JSON).ForEach(func(_, item gjson.Result) bool {
				item.ForEach(func(key, value gjson.Result) bool {
					r.Content = append(r.Content, &block{custom: key.Str, raw: json.RawMessage(value.Raw)})
					return false
				})
				return true
			})
			return &block{ToolResult: r}, nil
		}
		if gjson.ParseBytes(o.JSON).IsObject() {
			r.Content = append(r.Content, &block{JSON: o.JSON})
			return &block{ToolResult: r}, nil
		}
		text = string(o.JSON) // Converse takes objects only
	case hub.OutputContent:
		for i := range o.Content {
			b, err := w.block(&hub.Message{Role: hub.ToolRole}, &o.Content[i])
			if err != nil {
				return nil, err
			}
			if b != nil {
				r.Content = append(r.Content, b)
			}
		}
		var failed bool
		if o.Options.Get("anthropic", "isError", &failed) && failed {
			r.Status = "error"
		}
		if len(r.Content) > 0 {
			return &block{ToolResult: r}, nil
		}
	}
	if text == "" {
		text = " " // the content must not be empty
	}
	r.Content = append(r.Content, &block{Text: &text})
	return &block{ToolResult: r}, nil
}

// The file formats that Converse accepts, by media type.
var (
	images = map[string]string{"image/png": "png", "image/jpeg": "jpeg", "image/jpg": "jpeg", "image/gif": "gif", "image/webp": "webp"}
	videos = map[string]string{
		"video/mp4": "mp4", "video/quicktime": "mov", "video/x-matroska": "mkv", "video/webm": "webm", "video/x-flv": "flv",
		"video/mpeg": "mpeg", "video/x-ms-wmv": "wmv", "video/3gpp": "three_gp",
	}
	documents = map[string]string{
		"application/pdf": "pdf", "text/csv": "csv", "text/html": "html", "text/plain": "txt", "text/markdown": "md",
		"application/msword": "doc", "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
		"application/vnd.ms-excel": "xls", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
	}
)

// file encodes an image, a document or a video: its bytes, or its location in Amazon S3,
// which is a reference for the provider bedrock.
func (w *callWriter) file(p *hub.Part) (*block, error) {
	f := p.File
	kind, _, _ := strings.Cut(strings.ToLower(f.MediaType), ";")
	data := f.Data
	if f.Text != "" {
		data = []byte(f.Text)
		if documents[kind] == "" {
			kind = "text/plain"
		}
	}
	if len(data) > 0 && (kind == "" || strings.HasSuffix(kind, "/*") || kind == "application/octet-stream") {
		kind, _, _ = strings.Cut(http.DetectContentType(data), ";")
	}
	m := &media{Source: source{Bytes: data}}
	switch {
	case f.URL != "":
		return nil, bad("prompt", "the provider %s does not fetch files, and the prompt has one by its address; send its bytes", w.target.Provider)
	case f.Reference != nil:
		uri := f.Reference[self]
		if !strings.HasPrefix(uri, "s3://") {
			return nil, bad("prompt", "a file is a reference to another provider's; %s has files at s3:// addresses only", w.target.Provider)
		}
		m.Source = source{S3: &location{uri}}
	}
	switch {
	case images[kind] != "":
		m.Format = images[kind]
		return &block{Image: m}, nil
	case videos[kind] != "":
		m.Format = videos[kind]
		return &block{Video: m}, nil
	case documents[kind] == "" && strings.HasPrefix(kind, "text/"), kind == "application/json":
		m.Format = "txt"
	case documents[kind] != "":
		m.Format = documents[kind]
	default:
		return nil, bad("prompt", "a file of the type %.60q cannot be sent to %s: it takes PNG, JPEG, GIF and WebP images, videos, PDFs, text and office documents", f.MediaType, w.target.Provider)
	}
	w.documents++
	m.Name = documentName(f.Name, w.documents)
	m.Context = p.Options.String("anthropic", "context")
	for _, provider := range []string{"anthropic", self} {
		if raw := p.Options[provider]["citations"]; gjson.ParseBytes(raw).IsObject() {
			m.Citations = raw
		}
	}
	return &block{Document: m}, nil
}

// documentName returns a name that Converse accepts: letters, digits, single spaces,
// hyphens, parentheses and brackets. Names within a prompt must be unique.
func documentName(name string, n int) string {
	name, _, _ = strings.Cut(name, ".")
	name = strings.Map(func(c rune) rune {
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.ContainsRune("-()[]", c) {
			return c
		}
		return ' '
	}, name)
	name = strings.Join(strings.Fields(name), " ")
	if len(name) > 150 {
		name = strings.TrimSpace(name[:150])
	}
	if name == "" {
		return fmt.Sprintf("document-%d", n)
	}
	if n > 1 {
		name = fmt.Sprintf("%s (%d)", name, n)
	}
	return name
}
