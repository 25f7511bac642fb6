package chatcompletions

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"mime"
	"net/url"
	"path"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

func (r *callReader) readMessages(v gjson.Result) {
	r.messages = true
	if !v.IsArray() {
		r.fail("messages", "must be a list")
		return
	}
	i := 0
	v.ForEach(func(_, m gjson.Result) bool {
		r.message(fmt.Sprintf("messages[%d]", i), m)
		i++
		return r.err == nil
	})
	if i == 0 {
		r.fail("messages", "is empty")
	}
}

func (r *callReader) message(at string, v gjson.Result) {
	if !v.IsObject() {
		r.fail(at, "must be an object")
		return
	}
	m := hub.Message{}
	switch role := v.Get("role").Str; role {
	case "system", "developer":
		m.Role = hub.System
		m.Parts = r.content(at, v.Get("content"), hub.System)
	case "user":
		m.Role = hub.User
		m.Parts = r.content(at, v.Get("content"), hub.User)
	case "assistant":
		m.Role = hub.Assistant
		m.Parts = r.assistant(at, v)
	case "tool":
		r.toolMessage(at, v)
		return
	default:
		r.fail(at+".role", "is %.64q; it must be system, developer, user, assistant or tool", role)
		return
	}
	if name := v.Get("name"); name.Type == gjson.String && name.Str != "" {
		r.warn(hub.WarnUnsupported, at+".name", "it is left out: models of other providers are not told names of participants")
	}
	cacheControl(&m.Options, v)
	r.call.Prompt = append(r.call.Prompt, m)
}

// content reads text or a list of parts.
func (r *callReader) content(at string, v gjson.Result, role hub.Role) (parts []hub.Part) {
	at += ".content"
	switch {
	case v.Type == gjson.String:
		return []hub.Part{{Kind: hub.TextPart, Text: v.Str}}
	case v.Type == gjson.Null && role == hub.Assistant:
		return nil
	case !v.IsArray():
		r.fail(at, "must be a string or a list of parts")
		return nil
	}
	i := 0
	v.ForEach(func(_, p gjson.Result) bool {
		parts = r.part(parts, fmt.Sprintf("%s[%d]", at, i), p, role)
		i++
		return r.err == nil
	})
	return parts
}

// part appends a part of a message.
func (r *callReader) part(parts []hub.Part, at string, v gjson.Result, role hub.Role) []hub.Part {
	p := hub.Part{Kind: hub.FilePart}
	kind := v.Get("type").Str
	switch {
	case kind == "text":
		p.Kind, p.Text = hub.TextPart, r.text(at+".text", v.Get("text"))
	case kind == "refusal" && role == hub.Assistant:
		p.Kind, p.Text = hub.TextPart, r.text(at+".refusal", v.Get("refusal"))
		p.Options.Set("openai", "refusal", true)
	case kind == "thinking" && role == hub.Assistant: // Mistral's
		p.Kind, p.Text = hub.ReasoningPart, joinText(v.Get("thinking"))
	case role == hub.System || role == hub.Assistant && kind != "image_url":
		r.fail(at+".type", "is %.64q; a message of this role has parts of the type text", kind)
		return parts
	case kind == "image_url":
		u := v.Get("image_url")
		p.File = r.file(at+".image_url.url", orText(u, "url"), "image/*", "")
		if d := u.Get("detail"); d.Type == gjson.String {
			p.Options.Set("openai", "imageDetail", d.Str)
			if d.Str != "auto" {
				r.call.Members = append(r.call.Members, hub.Member{Name: at + ".image_url.detail", Provider: "openai", Option: "imageDetail"})
			}
		}
	case kind == "video_url":
		p.File = r.file(at+".video_url.url", orText(v.Get("video_url"), "url"), "video/*", "")
	case kind == "input_audio":
		a := v.Get("input_audio")
		p.File = r.data(at+".input_audio.data", a.Get("data"), audioType(a.Get("format").Str))
	case kind == "file":
		p.File = r.filePart(at+".file", v.Get("file"))
	default:
		r.fail(at+".type", "is %.64q; it must be text, image_url, file or input_audio", kind)
		return parts
	}
	cacheControl(&p.Options, v)
	return append(parts, p)
}

// orText returns v if it is a string, otherwise v's member name.
func orText(v gjson.Result, name string) gjson.Result {
	if v.Type == gjson.String {
		return v
	}
	return v.Get(name)
}

// joinText returns the text of a string or of a list of text parts.
func joinText(v gjson.Result) string {
	if v.Type == gjson.String {
		return v.Str
	}
	var b strings.Builder
	v.ForEach(func(_, p gjson.Result) bool {
		b.WriteString(p.Get("text").Str)
		return true
	})
	return b.String()
}

// file reads the file at a URL, http, https or data.
func (r *callReader) file(at string, v gjson.Result, mediaType, name string) *hub.File {
	address := r.text(at, v)
	f, err := readAddress(address, mediaType)
	if err != "" {
		r.fail(at, "%s", err)
		return nil
	}
	f.Name = name
	return f
}

// readAddress returns the file at an address; wrong describes an invalid address.
func readAddress(address, mediaType string) (f *hub.File, wrong string) {
	switch scheme, rest, _ := strings.Cut(address, ":"); strings.ToLower(scheme) {
	case "data":
		head, data, ok := strings.Cut(rest, ",")
		kind, encoded := strings.CutSuffix(head, ";base64")
		if !ok {
			return nil, "is no data: URL; it must be data:TYPE;base64,DATA"
		}
		if kind != "" && kind[0] != ';' {
			mediaType, _, _ = strings.Cut(kind, ";")
		}
		if !encoded {
			text, err := url.PathUnescape(data)
			if err != nil {
				return nil, "is no data: URL; it has a wrong % escape"
			}
			return &hub.File{MediaType: mediaType, Data: []byte(text)}, ""
		}
		raw, err := decodeBase64(data)
		if err != nil || len(raw) == 0 {
			return nil, "has no base64 in its data: URL"
		}
		return &hub.File{MediaType: mediaType, Data: raw}, ""
	case "http", "https":
		if u, err := url.Parse(address); err != nil || u.Host == "" {
			return nil, "is no URL"
		}
		return &hub.File{MediaType: mediaType, URL: address}, ""
	}
	return nil, "must be a http:, https: or data: URL"
}

// decodeBase64 decodes base64 of any variant: standard or URL alphabet, with or without
// padding.
func decodeBase64(s string) ([]byte, error) {
	if raw, err := base64.StdEncoding.DecodeString(s); err == nil {
		return raw, nil
	}
	s = strings.TrimRight(s, "=")
	if strings.ContainsAny(s, "-_") {
		return base64.RawURLEncoding.DecodeString(s)
	}
	return base64.RawStdEncoding.DecodeString(s)
}

// data reads base64 without a data URL.
func (r *callReader) data(at string, v gjson.Result, mediaType string) *hub.File {
	text := r.text(at, v)
	if strings.HasPrefix(text, "data:") {
		return r.file(at, v, mediaType, "")
	}
	raw, err := decodeBase64(text)
	if err != nil || len(raw) == 0 {
		r.fail(at, "must be base64")
	}
	return &hub.File{MediaType: mediaType, Data: raw}
}

func (r *callReader) filePart(at string, v gjson.Result) *hub.File {
	name := v.Get("filename").String()
	mediaType := typeByName(name)
	if id := v.Get("file_id"); id.Type == gjson.String && id.Str != "" {
		return &hub.File{MediaType: mediaType, Name: name, Reference: map[string]string{"openai": id.Str}}
	}
	data := v.Get("file_data")
	if data.Type != gjson.String {
		r.fail(at, "needs file_data or file_id")
		return nil
	}
	var f *hub.File
	if strings.Contains(data.Str[:min(len(data.Str), 8)], ":") {
		f = r.file(at+".file_data", data, mediaType, name)
	} else {
		f = r.data(at+".file_data", data, mediaType)
	}
	if f != nil {
		f.Name = name
	}
	return f
}

// types maps file name extensions to media types. The operating system's own list differs
// between systems.
var types = map[string]string{
	".pdf": "application/pdf", ".txt": "text/plain", ".md": "text/markdown", ".csv": "text/csv", ".html": "text/html",
	".xml": "application/xml", ".json": "application/json", ".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif",
	".webp": "image/webp", ".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
}

func typeByName(name string) string {
	if t, ok := types[strings.ToLower(path.Ext(name))]; ok {
		return t
	}
	return "application/pdf" // the type that OpenAI accepts as a file part
}

func audioType(format string) string {
	switch format {
	case "mp3":
		return "audio/mpeg"
	case "":
		return "audio/wav"
	}
	return "audio/" + strings.ToLower(strings.NewReplacer("/", "", ";", "", " ", "").Replace(format))
}

// isText reports whether files of the type can be sent as text.
func isText(mediaType string) bool {
	kind, _, err := mime.ParseMediaType(mediaType)
	return err == nil && (strings.HasPrefix(kind, "text/") || kind == "application/json" || kind == "application/xml")
}

func (r *callReader) assistant(at string, v gjson.Result) []hub.Part {
	for _, name := range []string{"audio", "function_call"} {
		if v.Get(name).IsObject() {
			r.fail(at+"."+name, "cannot be translated for this model")
			return nil
		}
	}
	parts := append(reasoningOf(v), r.content(at, v.Get("content"), hub.Assistant)...)
	if s := v.Get("refusal"); s.Type == gjson.String && s.Str != "" {
		p := hub.Part{Kind: hub.TextPart, Text: s.Str}
		p.Options.Set("openai", "refusal", true)
		parts = append(parts, p)
	}
	for i, image := range v.Get("images").Array() {
		at := fmt.Sprintf("%s.images[%d].image_url.url", at, i)
		parts = append(parts, hub.Part{Kind: hub.FilePart, File: r.file(at, orText(image.Get("image_url"), "url"), "image/*", "")})
	}
	for i, call := range v.Get("tool_calls").Array() {
		parts = append(parts, r.toolCall(fmt.Sprintf("%s.tool_calls[%d]", at, i), call))
	}
	if len(parts) > 0 && len(v.Get("tool_calls").Array()) > 0 {
		parts = withoutEmptyText(parts)
	}
	return parts
}

// withoutEmptyText drops the content "" that many clients send with tool calls, and that
// some providers reject.
func withoutEmptyText(parts []hub.Part) []hub.Part {
	kept := parts[:0]
	for _, p := range parts {
		if p.Kind != hub.TextPart || p.Text != "" {
			kept = append(kept, p)
		}
	}
	return kept
}

func (r *callReader) toolCall(at string, v gjson.Result) hub.Part {
	packed := r.text(at+".id", v.Get("id"))
	id, o := hub.UnpackID(packed)
	switch kind := v.Get("type"); {
	case kind.Str == "custom":
		c := &hub.ToolCall{ID: id, Name: r.text(at+".custom.name", v.Get("custom.name")), Input: hub.CustomObject(v.Get("custom.input").String())}
		if c.ID == "" || c.Name == "" {
			r.fail(at, "needs an id and the name of its custom tool")
		}
		o.Set("openai", hub.OptionCustom, true)
		r.names[id] = c.Name
		return hub.Part{Kind: hub.ToolCallPart, Call: c, Options: o}
	case kind.Type == gjson.String && kind.Str != "function":
		r.fail(at+".type", "is %.64q; it must be function or custom", kind.Str)
	}
	c := &hub.ToolCall{ID: id, Name: r.text(at+".function.name", v.Get("function.name"))}
	if c.ID == "" || c.Name == "" {
		r.fail(at, "needs an id and the name of its function")
	}
	switch args := v.Get("function.arguments"); {
	case args.Type == gjson.String:
		c.Input = args.Str
	case args.IsObject():
		c.Input = args.Raw
	}
	if c.Input == "" {
		c.Input = "{}"
	}
	if s := v.Get("extra_content.google.thought_signature"); s.Type == gjson.String && s.Str != "" {
		o.Set("google", "thoughtSignature", s.Str)
	}
	r.names[id] = c.Name
	return hub.Part{Kind: hub.ToolCallPart, Call: c, Options: o}
}

// toolMessage reads the result of a tool. Consecutive results become one message of the
// hub.
func (r *callReader) toolMessage(at string, v gjson.Result) {
	id, _ := hub.UnpackID(r.text(at+".tool_call_id", v.Get("tool_call_id")))
	res := &hub.ToolResult{CallID: id, Name: r.names[id]}
	if res.Name == "" {
		res.Name = v.Get("name").String()
	}
	if res.Name == "" {
		r.fail(at+".tool_call_id", "is %.64q, and no message before it has a tool call of that id", id)
		return
	}
	switch content := v.Get("content"); content.Type {
	case gjson.String:
		res.Output = hub.ToolOutput{Kind: hub.OutputText, Text: content.Str}
	case gjson.Null:
		res.Output = hub.ToolOutput{Kind: hub.OutputText}
	default:
		res.Output = hub.ToolOutput{Kind: hub.OutputContent, Content: r.content(at, content, hub.ToolRole)}
	}
	p := hub.Part{Kind: hub.ToolResultPart, Result: res}
	cacheControl(&p.Options, v)
	if n := len(r.call.Prompt); n > 0 && r.call.Prompt[n-1].Role == hub.ToolRole {
		r.call.Prompt[n-1].Parts = append(r.call.Prompt[n-1].Parts, p)
		return
	}
	r.call.Prompt = append(r.call.Prompt, hub.Message{Role: hub.ToolRole, Parts: []hub.Part{p}})
}

// rawText returns s as a JSON string.
func rawText(s string) json.RawMessage { return appendText(nil, s) }
