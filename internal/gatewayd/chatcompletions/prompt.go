package chatcompletions

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/big"
	"strings"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

func (w *callWriter) messages() {
	w.b.open("messages", '[')
	last := -1 // the last message of the user: a tool loop begins behind it
	for i := range w.c.Prompt {
		if w.c.Prompt[i].Role == hub.User {
			last = i
		}
	}
	if f := w.c.Format; f != nil && f.Schema != nil && w.t.Is(NoJSONSchema) {
		w.schemaMessage(f)
	}
	for i := range w.c.Prompt {
		m := &w.c.Prompt[i]
		if m.Role != hub.ToolRole {
			w.attach()
		}
		switch m.Role {
		case hub.System:
			role := "system"
			if w.reasons {
				role = "developer"
			}
			w.message(role, m)
		case hub.User:
			w.message("user", m)
		case hub.Assistant:
			w.assistant(m, i > last)
		case hub.ToolRole:
			w.results(m)
		default:
			w.fail("messages", "a message has the role %q", m.Role)
		}
	}
	w.attach()
	w.b.close(']')
}

func (w *callWriter) schemaMessage(f *hub.Format) {
	w.b.next()
	w.b.add(`{"role":"system"`)
	w.b.text("content", "Answer with JSON only, of this JSON Schema:\n"+string(f.Schema))
	w.b.close('}')
	w.warn(hub.WarnCompatibility, "responseFormat", "the schema is in a system message: "+w.t.Provider+" takes none")
}

// message writes a message of the role system, developer or user.
func (w *callWriter) message(role string, m *hub.Message) {
	w.b.next()
	w.b.add("{")
	w.b.text("role", role)
	w.b.key("content")
	w.content(m.Parts, &m.Options)
	w.b.close('}')
}

// content writes text and files: a single text as a string, anything else as parts.
func (w *callWriter) content(parts []hub.Part, message *hub.Options) {
	marked := w.mark(*message) != nil
	texts := true
	for i := range parts {
		texts = texts && w.asText(&parts[i])
		marked = marked || w.mark(parts[i].Options) != nil
	}
	switch {
	case len(parts) == 0 && !marked:
		w.b.add(`""`)
		return
	case texts && !marked && (len(parts) == 1 || w.t.Is(StringContent)):
		var s []string
		for i := range parts {
			s = append(s, partText(&parts[i]))
		}
		w.b = appendText(w.b, strings.Join(s, "\n"))
		return
	}
	w.b.add("[")
	for i := range parts {
		w.part(&parts[i])
		mark := w.mark(parts[i].Options)
		if mark == nil && i == len(parts)-1 {
			mark = w.mark(*message)
		}
		if mark != nil {
			w.b = w.b[:len(w.b)-1] // the bracket
			w.b.raw("cache_control", mark)
			w.b.close('}')
		}
	}
	w.b.close(']')
}

// mark returns the cache marker of a part or message, nil if there is none or the server
// does not support markers: a marker is a hint, and omitting it changes no answer.
func (w *callWriter) mark(o hub.Options) json.RawMessage {
	if !w.t.Is(CacheControl) {
		return nil
	}
	return o["anthropic"]["cacheControl"]
}

// asText reports whether a part is text, or a text file.
func (w *callWriter) asText(p *hub.Part) bool {
	return p.Kind == hub.TextPart || p.Kind == hub.FilePart && p.File != nil && (p.File.Text != "" || p.File.Data != nil && isText(p.File.MediaType))
}

func partText(p *hub.Part) string {
	switch {
	case p.Kind != hub.FilePart:
		return p.Text
	case p.File.Text != "":
		return p.File.Text
	}
	return string(p.File.Data)
}

// part writes a part of a user's message.
func (w *callWriter) part(p *hub.Part) {
	b := &w.b
	switch {
	case w.asText(p):
		b.next()
		b.add(`{"type":"text"`)
		b.text("text", partText(p))
		b.close('}')
	case p.Kind == hub.FilePart && p.File != nil:
		w.file(p)
	case p.Kind == hub.CustomPart:
		w.fail("messages", "a part of the type %s cannot be sent to %s", hub.Redact(p.CustomKind), w.t.Provider)
	default:
		w.fail("messages", "a part of the type %s cannot be sent to %s", p.Kind, w.t.Provider)
	}
}

func (w *callWriter) file(p *hub.Part) {
	b, f := &w.b, p.File
	kind, sub, _ := strings.Cut(f.MediaType, "/")
	id := f.Reference["openai"]
	if id == "" {
		id = f.Reference[w.t.Provider]
	}
	if f.Reference != nil && (id == "" || kind != "application") {
		w.fail("messages", "a file is given by the id it has with a provider, which %s does not know here: send the file itself", w.t.Provider)
		return
	}
	b.next()
	switch {
	case kind == "image":
		b.add(`{"type":"image_url","image_url":{`)
		w.address("url", f, "image/jpeg")
		if d := p.Options.String("openai", "imageDetail"); d != "" {
			b.text("detail", d)
		}
		b.add("}}")
	case kind == "audio" && f.Data != nil:
		format := sub
		switch sub {
		case "mpeg", "mpga", "*":
			format = "mp3"
		case "x-wav", "wave", "vnd.wave":
			format = "wav"
		}
		b.add(`{"type":"input_audio","input_audio":{`)
		b.key("data")
		b.base64(f.Data)
		b.text("format", format)
		b.add("}}")
	case kind == "video" && w.t.Is(VideoURL):
		b.add(`{"type":"video_url","video_url":{`)
		w.address("url", f, "video/mp4")
		b.add("}}")
	case f.MediaType == "application/pdf" && w.t.Is(DocumentURL) && id == "":
		b.add(`{"type":"document_url"`)
		w.address("document_url", f, "")
		if f.Name != "" {
			b.text("document_name", f.Name)
		}
		b.close('}')
	case kind == "application" && !w.t.Is(NoFiles) && (id != "" || sub == "pdf" || w.t.Is(ReasoningDetails)):
		b.add(`{"type":"file","file":{`)
		name := f.Name
		switch {
		case id != "":
			b.text("file_id", id)
		default:
			if f.URL != "" && w.t.Is(OpenAI) {
				w.fail("messages", "%s takes files as data alone, not by their URL: send the file itself", w.t.Provider)
			}
			if name == "" {
				name = "file." + sub
			}
			w.address("file_data", f, "")
		}
		if name != "" {
			b.text("filename", name)
		}
		b.add("}}")
	default:
		w.fail("messages", "a file of the type %q cannot be sent to %s of %s", f.MediaType, w.t.Model, w.t.Provider)
	}
}

// address adds a file as a URL; unclear is used if neither f nor its first bytes tell the
// full media type.
func (w *callWriter) address(name string, f *hub.File, unclear string) {
	if f.URL != "" {
		w.b.text(name, f.URL)
		return
	}
	mediaType := f.MediaType
	if strings.HasSuffix(mediaType, "/*") {
		mediaType = sniff(f.Data, unclear)
	}
	w.b.key(name)
	w.b.add(`"data:` + strings.Trim(string(appendText(nil, mediaType)), `"`) + `;base64,`)
	w.b.appendBase64(f.Data)
	w.b.close('"')
}

// sniff determines the type of an image from its first bytes.
func sniff(data []byte, otherwise string) string {
	for _, s := range []struct{ head, kind string }{
		{"\x89PNG", "image/png"}, {"\xff\xd8\xff", "image/jpeg"}, {"GIF8", "image/gif"}, {"RIFF", "image/webp"},
	} {
		if strings.HasPrefix(string(data[:min(len(data), 4)]), s.head) {
			return s.kind
		}
	}
	return otherwise
}

// assistant writes an assistant message. inLoop says that no user message follows.
func (w *callWriter) assistant(m *hub.Message, inLoop bool) {
	var said []string
	var reasoning []*hub.Part
	var calls []*hub.Part
	refusal := ""
	for i := range m.Parts {
		p := &m.Parts[i]
		switch p.Kind {
		case hub.TextPart:
			if p.Options["openai"]["refusal"] != nil {
				refusal += p.Text
			} else {
				said = append(said, p.Text)
			}
		case hub.ReasoningPart:
			reasoning = append(reasoning, p)
		case hub.ToolCallPart:
			if p.Call.ProviderExecuted {
				w.warn(hub.WarnUnsupported, "tools."+p.Call.Name, "what tools of another provider did is left out of the conversation")
				continue
			}
			calls = append(calls, p)
		case hub.ToolResultPart:
			w.warn(hub.WarnUnsupported, "tools."+p.Result.Name, "what tools of another provider did is left out of the conversation")
		case hub.FilePart:
			w.fail("messages", "a file in an answer of the model cannot be sent back to %s: put it into a message of the user", w.t.Provider)
		default:
			w.warn(hub.WarnUnsupported, string(p.Kind), "it is left out of the conversation")
		}
	}
	if len(said) == 0 && len(calls) == 0 && refusal == "" && (len(reasoning) == 0 || !w.thinks(inLoop)) {
		return // servers refuse an empty message
	}
	b := &w.b
	b.next()
	b.add(`{"role":"assistant"`)
	text := strings.Join(said, "")
	switch mark := w.mark(m.Options); {
	case w.t.Is(ThinkingParts) && len(reasoning) > 0:
		w.thinkingParts(reasoning, text)
	case mark != nil && text != "":
		b.add(`,"content":[{"type":"text"`)
		b.text("text", text)
		b.raw("cache_control", mark)
		b.add("}]")
	case text == "" && (len(calls) > 0 || refusal != "") && !w.t.Is(StringContent):
		b.add(`,"content":null`)
	default:
		b.text("content", text)
	}
	if refusal != "" {
		b.text("refusal", refusal)
	}
	w.reasoning(reasoning, inLoop)
	if len(calls) > 0 {
		b.open("tool_calls", '[')
		for _, p := range calls {
			w.toolCall(p)
		}
		b.close(']')
	}
	b.close('}')
}

func (w *callWriter) thinkingParts(reasoning []*hub.Part, text string) {
	b := &w.b
	b.open("content", '[')
	for _, p := range reasoning {
		b.next()
		b.add(`{"type":"thinking","thinking":[{"type":"text"`)
		b.text("text", p.Text)
		b.add("}]}")
	}
	if text != "" {
		b.next()
		b.add(`{"type":"text"`)
		b.text("text", text)
		b.close('}')
	}
	b.close(']')
}

// thinks reports whether the server accepts reasoning from earlier turns.
func (w *callWriter) thinks(inLoop bool) bool {
	return w.t.Is(ReasoningDetails) || w.t.Is(ReasoningContent) || w.t.Is(ThinkingParts) || w.t.Is(ReasoningInToolLoop) && inLoop
}

// reasoning writes the reasoning, if the server expects it back. OpenAI's own API never
// returns reasoning, and rejects it; OpenAI intends clients to omit reasoning, so the
// omission causes no warning.
func (w *callWriter) reasoning(parts []*hub.Part, inLoop bool) {
	b := &w.b
	switch {
	case len(parts) == 0:
	case w.t.Is(ReasoningDetails):
		var details buffer
		for i, p := range parts {
			for _, d := range seal(p.Options, p.Text, true, i) {
				if d.format == formatOurs && !w.t.Is(OurSignatures) {
					w.warn(hub.WarnUnsupported, "reasoning", "what was thought with a signature that "+w.t.Provider+" does not know is left out of the conversation")
					continue
				}
				details.detail(&d)
			}
		}
		b.list("reasoning_details", details)
	case w.t.Is(ReasoningContent), w.t.Is(ReasoningInToolLoop) && inLoop:
		var text strings.Builder
		for _, p := range parts {
			text.WriteString(p.Text)
		}
		if text.Len() > 0 {
			b.text("reasoning_content", text.String())
		}
	}
}

func (w *callWriter) toolCall(p *hub.Part) {
	b := &w.b
	b.next()
	b.add("{")
	id := w.toolID(p.Call.ID)
	if w.t.Is(OurSignatures) {
		id = hub.PackID(id, p.Options)
	}
	b.text("id", id)
	input := p.Call.Input
	switch custom := isCustom(p, w.customs); {
	case custom && w.t.Is(OpenAI):
		b.customCall(p.Call.Name, input)
		b.close('}')
		return
	case custom:
		input = hub.CustomObject(hub.CustomInput(input))
	case input == "":
		input = "{}"
	}
	b.add(`,"type":"function","function":{`)
	b.text("name", p.Call.Name)
	b.text("arguments", input)
	b.close('}')
	if s := p.Options.String("google", "thoughtSignature"); s != "" && w.t.Is(GoogleSignatures) {
		b.add(`,"extra_content":{"google":{`)
		b.text("thought_signature", s)
		b.add("}}")
	}
	b.close('}')
}

// maxID is OpenAI's maximum length of a tool call id.
const maxID = 40

// toolID returns an id that the server accepts; equal ids give equal results.
func (w *callWriter) toolID(id string) string {
	switch {
	case w.t.Is(ShortToolIDs):
		if len(id) == 9 && !strings.ContainsFunc(id, func(r rune) bool { return !isAlphanumeric(r) }) {
			return id
		}
		return hash(id)[:9]
	case len(id) > maxID:
		return "call_" + hash(id)[:24]
	}
	return id
}

func isAlphanumeric(r rune) bool {
	return r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
}

// hash returns a hash of id with at least 32 letters and digits.
func hash(id string) string {
	sum := sha256.Sum256([]byte(id))
	return fmt.Sprintf("%032s", new(big.Int).SetBytes(sum[:]).Text(62))
}

func (w *callWriter) results(m *hub.Message) {
	for i := range m.Parts {
		p := &m.Parts[i]
		switch p.Kind {
		case hub.ToolResultPart:
			w.result(p)
		default:
			w.warn(hub.WarnUnsupported, string(p.Kind), "it is left out of the conversation")
		}
	}
}

func (w *callWriter) result(p *hub.Part) {
	b, out := &w.b, &p.Result.Output
	b.next()
	b.add(`{"role":"tool"`)
	b.text("tool_call_id", w.toolID(p.Result.CallID))
	b.key("content")
	var texts []hub.Part
	switch out.Kind {
	case hub.OutputText, hub.OutputErrorText:
		texts = []hub.Part{{Kind: hub.TextPart, Text: out.Text}}
	case hub.OutputJSON, hub.OutputErrorJSON:
		texts = []hub.Part{{Kind: hub.TextPart, Text: string(out.JSON)}}
	case hub.OutputDenied:
		text := "The tool was not run: its use was denied."
		if out.Text != "" {
			text += " " + out.Text
		}
		texts = []hub.Part{{Kind: hub.TextPart, Text: text}}
	case hub.OutputContent:
		texts = w.resultContent(p.Result)
	default:
		w.fail("messages", "the result of tool %q has the kind %q", p.Result.Name, out.Kind)
	}
	options := p.Options
	if mark := out.Options["anthropic"]["cacheControl"]; mark != nil {
		options = hub.Options{"anthropic": {"cacheControl": mark}}
	}
	w.content(texts, &options)
	b.close('}')
}

// resultContent returns the text of a result, and collects its files in attached.
func (w *callWriter) resultContent(res *hub.ToolResult) (texts []hub.Part) {
	files := 0
	for i := range res.Output.Content {
		c := &res.Output.Content[i]
		switch {
		case w.asText(c):
			texts = append(texts, *c)
		case c.Kind == hub.FilePart:
			files++
			w.attached = append(w.attached, attached{res.CallID, c})
		default:
			w.warn(hub.WarnUnsupported, string(c.Kind), "it is left out of the result of tool "+res.Name)
		}
	}
	if files > 0 {
		texts = append(texts, hub.Part{Kind: hub.TextPart, Text: attachedNote})
	}
	return texts
}

// These texts tell the model where the files of a result are.
const (
	attachedNote = "[Files of this result are in the next message of the user.]"
	attachedHead = "Files of the result of tool call "
)

// attach writes the files of tool results as a user message.
func (w *callWriter) attach() {
	if len(w.attached) == 0 {
		return
	}
	w.b.next()
	w.b.add(`{"role":"user","content":[`)
	last := ""
	for _, a := range w.attached {
		if a.callID != last {
			last = a.callID
			w.part(&hub.Part{Kind: hub.TextPart, Text: attachedHead + w.toolID(a.callID) + ":"})
		}
		w.file(a.part)
	}
	w.b.add("]}")
	w.attached = nil
}
