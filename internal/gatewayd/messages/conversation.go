package messages

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// conversation decodes the system prompt and the messages. Tool results become messages
// of their own, before the rest of the user's message.
func (r *callReader) conversation(system, messages gjson.Result) {
	if system.Exists() && system.Type != gjson.Null {
		m := hub.Message{Role: hub.System}
		r.content("system", system, func(at string, b gjson.Result) { m.Parts = append(m.Parts, r.systemPart(at, b)...) })
		if len(m.Parts) > 0 {
			r.call.Prompt = append(r.call.Prompt, m)
		}
	}
	r.each("messages", messages, func(at string, m gjson.Result) {
		content := m.Get("content")
		at += ".content"
		switch role := m.Get("role").Str; role {
		case "system":
			s := hub.Message{Role: hub.System}
			r.content(at, content, func(at string, b gjson.Result) { s.Parts = append(s.Parts, r.systemPart(at, b)...) })
			r.add(s)
		case "user":
			tools, user := hub.Message{Role: hub.ToolRole}, hub.Message{Role: hub.User}
			r.content(at, content, func(at string, b gjson.Result) {
				if b.Get("type").Str == "tool_result" {
					tools.Parts = append(tools.Parts, r.toolResult(at, b))
				} else {
					user.Parts = append(user.Parts, r.part(at, b, hub.User)...)
				}
			})
			r.add(tools)
			r.add(user)
		case "assistant":
			a := hub.Message{Role: hub.Assistant}
			r.content(at, content, func(at string, b gjson.Result) { a.Parts = append(a.Parts, r.part(at, b, hub.Assistant)...) })
			r.add(a)
		default:
			r.fail(strings.TrimSuffix(at, ".content")+".role", "is %.40q; it may be user, assistant or system", role)
		}
	})
}

func (r *callReader) add(m hub.Message) {
	if len(m.Parts) > 0 {
		r.call.Prompt = append(r.call.Prompt, m)
	}
}

// content calls f for each block of a content; a string counts as one text block.
func (r *callReader) content(at string, content gjson.Result, f func(at string, block gjson.Result)) {
	switch {
	case content.Type == gjson.String:
		f(at, gjson.Parse(`{"type":"text","text":`+content.Raw+`}`))
	case content.IsArray():
		r.each(at, content, func(at string, b gjson.Result) {
			if !b.IsObject() {
				r.fail(at, "is %s, not an object", kind(b))
				return
			}
			f(at, b)
		})
	default:
		r.fail(at, "is %s, not text or an array", kind(content))
	}
}

func (r *callReader) systemPart(at string, b gjson.Result) []hub.Part {
	if mode := b.Get("type").Str; mode != "text" {
		r.fail(at+".type", "is %.40q; a system prompt has text", mode)
		return nil
	}
	return r.part(at, b, hub.System)
}

// part decodes a block. Empty text is dropped, because providers refuse it.
func (r *callReader) part(at string, b gjson.Result, role hub.Role) []hub.Part {
	p := hub.Part{}
	r.cacheControl(&p.Options, b)
	mode := b.Get("type").Str
	switch mode {
	case "text":
		p.Kind, p.Text = hub.TextPart, r.text(at+".text", b.Get("text"))
		if citations := b.Get("citations"); citations.IsArray() && len(citations.Array()) > 0 {
			p.Options.SetRaw(self, "citations", json.RawMessage(citations.Raw))
		}
		if p.Text == "" {
			return nil
		}
	case "image", "document":
		return r.file(at, b, p.Options)
	case "tool_reference", "search_result":
		p.Kind, p.Text = hub.TextPart, asText(b)
		p.Options.SetRaw(self, "block", without(b, "cache_control"))
	case "thinking":
		p.Kind, p.Text = hub.ReasoningPart, b.Get("thinking").Str
		p.Options = signed(p.Options, b.Get("signature").Str)
		if p.Text == "" && p.Options == nil {
			return nil // empty thinking of a model that hides it
		}
	case "redacted_thinking":
		p.Kind = hub.ReasoningPart
		p.Options = redacted(p.Options, b.Get("data").Str)
	case "compaction":
		p.Kind, p.Text = hub.TextPart, b.Get("content").Str
		p.Options.Set(self, "type", "compaction")
	case "tool_use", "server_tool_use", "mcp_tool_use":
		p.Kind = hub.ToolCallPart
		p.Call, p.Options = r.toolUse(at, b, p.Options)
	case "":
		r.fail(at+".type", "is missing")
	default:
		if role == hub.Assistant && isResult(mode) {
			p = resultPart(b, r.names[b.Get("tool_use_id").Str])
			r.cacheControl(&p.Options, b)
			break
		}
		p.Kind, p.CustomKind = hub.CustomPart, self+"."+mode
		p.Custom = without(b, "type", "cache_control")
	}
	return []hub.Part{p}
}

// asText returns a text for a block type that only Anthropic knows.
func asText(b gjson.Result) string {
	if b.Get("type").Str == "tool_reference" { // Claude Code finds tools in this way
		return "The tool " + b.Get("tool_name").Str + " was found and can be called."
	}
	text := b.Get("title").Str + " (" + b.Get("source").Str + ")\n"
	for _, c := range b.Get("content").Array() {
		text += c.Get("text").Str
	}
	return text
}

// signed returns the options of reasoning with a signature; the signature may be another
// provider's, wrapped.
func signed(o hub.Options, signature string) hub.Options {
	if wrapped, ok := hub.Unwrap(signature); ok {
		o.Merge(wrapped)
	} else if signature != "" {
		o.Set(self, "signature", signature)
	}
	return o
}

func redacted(o hub.Options, data string) hub.Options {
	if wrapped, ok := hub.Unwrap(data); ok {
		o.Merge(wrapped)
	} else {
		o.Set(self, "redactedData", data)
	}
	return o
}

func (r *callReader) toolUse(at string, b gjson.Result, o hub.Options) (*hub.ToolCall, hub.Options) {
	c := &hub.ToolCall{Name: r.text(at+".name", b.Get("name"))}
	id := r.text(at+".id", b.Get("id"))
	var packed hub.Options
	c.ID, packed = hub.UnpackID(id)
	o.Merge(packed)
	if c.ID == "" {
		r.fail(at+".id", "is empty")
	}
	if c.Name == "" {
		r.fail(at+".name", "is empty")
	}
	r.names[id] = c.Name
	c.Input = "{}"
	if input := b.Get("input"); input.Exists() {
		c.Input = input.Raw
	}
	call, options := callOptions(b, o)
	c.ProviderExecuted, c.Dynamic = call.ProviderExecuted, call.Dynamic
	if c.ProviderExecuted && isCode(c.Name) {
		c.Input = string(join([]byte(`{"type":"`+c.Name+`"}`), json.RawMessage(c.Input)))
		c.Name = codeExecution
	}
	return c, options
}

// toolResult decodes the result of a client-run tool.
func (r *callReader) toolResult(at string, b gjson.Result) hub.Part {
	id := r.text(at+".tool_use_id", b.Get("tool_use_id"))
	if id == "" {
		r.fail(at+".tool_use_id", "is empty")
	}
	p := hub.Part{Kind: hub.ToolResultPart, Result: &hub.ToolResult{Name: r.names[id]}}
	p.Result.CallID, _ = hub.UnpackID(id)
	r.cacheControl(&p.Options, b)
	failed := b.Get("is_error").Bool()
	content := b.Get("content")
	out := &p.Result.Output
	switch {
	case !content.Exists() || content.Type == gjson.Null:
		out.Kind = hub.OutputText
	case content.Type == gjson.String:
		out.Kind, out.Text = hub.OutputText, content.Str
	default:
		out.Kind = hub.OutputContent
		r.content(at+".content", content, func(at string, b gjson.Result) {
			if b.Get("type").Str == "tool_result" {
				r.fail(at+".type", "is tool_result; results are not within results")
				return
			}
			out.Content = append(out.Content, r.part(at, b, hub.User)...)
		})
	}
	if out.Kind == hub.OutputContent && onlyText(out.Content) && (failed || len(out.Content) == 1 && out.Content[0].Options == nil) {
		texts := make([]string, len(out.Content))
		for i := range out.Content {
			texts[i] = out.Content[i].Text
		}
		out.Kind, out.Text, out.Content = hub.OutputText, strings.Join(texts, "\n"), nil
	}
	if failed {
		if out.Kind == hub.OutputContent {
			out.Options.Set(self, "isError", true)
			r.call.Warnings = append(r.call.Warnings, hub.Warning{
				Kind: hub.WarnCompatibility, Feature: at + ".is_error",
				Message: "providers of other formats are not told that a tool failed whose result has more than text",
			})
		} else {
			out.Kind = hub.OutputErrorText
		}
	}
	return p
}

func onlyText(parts []hub.Part) bool {
	for i := range parts {
		if parts[i].Kind != hub.TextPart {
			return false
		}
	}
	return len(parts) > 0
}

// file decodes an image or a document.
func (r *callReader) file(at string, b gjson.Result, o hub.Options) []hub.Part {
	src := b.Get("source")
	f := &hub.File{Name: b.Get("title").Str, MediaType: src.Get("media_type").Str}
	image := b.Get("type").Str == "image"
	at += ".source"
	switch form := src.Get("type").Str; form {
	case "base64":
		data, err := base64.StdEncoding.DecodeString(r.text(at+".data", src.Get("data")))
		if err != nil || len(data) == 0 {
			r.fail(at+".data", "is not base64, or empty")
		}
		f.Data = data
	case "url":
		f.URL = r.text(at+".url", src.Get("url"))
		if !strings.HasPrefix(f.URL, "https://") && !strings.HasPrefix(f.URL, "http://") {
			r.fail(at+".url", "is no address that begins with https:// or http://")
		}
	case "file":
		f.Reference = map[string]string{self: r.text(at+".file_id", src.Get("file_id"))}
	case "text":
		f.Text = r.text(at+".data", src.Get("data"))
		f.MediaType = "text/plain"
	case "content":
		f.MediaType = "text/plain"
		r.content(at+".content", src.Get("content"), func(at string, b gjson.Result) {
			if b.Get("type").Str != "text" {
				r.fail(at+".type", "is %.40q; the gateway knows documents of text blocks only", b.Get("type").Str)
			}
			f.Text += b.Get("text").Str
		})
	default:
		r.fail(at+".type", "is %.40q, which the gateway does not know; it may be base64, url, file, text or content", form)
	}
	if f.MediaType == "" {
		f.MediaType = "application/pdf" // documents by URL are PDFs
		if image {
			f.MediaType = "image/*"
		}
	}
	if text := b.Get("context"); text.Type == gjson.String {
		o.Set(self, "context", text.Str)
	}
	if c := b.Get("citations"); c.IsObject() {
		o.SetRaw(self, "citations", json.RawMessage(c.Raw))
	}
	return []hub.Part{{Kind: hub.FilePart, File: f, Options: o}}
}

// isResult reports whether a block type is the result of a provider-run tool.
func isResult(mode string) bool {
	return mode != "tool_result" && strings.HasSuffix(mode, "_tool_result")
}

// resultPart decodes the result of a provider-run tool. name is the name in the tool's
// call, empty if unknown; then the block type determines the name.
func resultPart(b gjson.Result, name string) hub.Part {
	mode := b.Get("type").Str
	res := &hub.ToolResult{Name: name, ProviderExecuted: true}
	res.CallID, _ = hub.UnpackID(b.Get("tool_use_id").Str)
	p := hub.Part{Kind: hub.ToolResultPart, Result: res}
	if res.Name == "" {
		res.Name = strings.TrimSuffix(mode, "_tool_result")
	}
	if isCode(res.Name) {
		res.Name = codeExecution
	}
	if typeOfResult(res.Name) != mode {
		p.Options.Set(self, "type", mode)
	}
	content := b.Get("content")
	res.Output.JSON = json.RawMessage("null")
	if content.Exists() {
		res.Output.JSON = json.RawMessage(content.Raw)
	}
	res.Output.Kind = hub.OutputJSON
	if b.Get("is_error").Bool() || strings.HasSuffix(content.Get("type").Str, "_error") {
		res.Output.Kind = hub.OutputErrorJSON
	}
	res.Dynamic = mode == "mcp_tool_result"
	if caller := b.Get("caller"); caller.IsObject() {
		p.Options.SetRaw(self, "caller", camels(caller))
	}
	return p
}

// typeOfResult returns the block type for results of an Anthropic tool, empty for other
// tools.
func typeOfResult(name string) string {
	switch name {
	case "web_search", "web_fetch", "code_execution", "bash_code_execution", "text_editor_code_execution", "advisor", "tool_search":
		return name + "_tool_result"
	case "tool_search_tool_bm25", "tool_search_tool_regex":
		return "tool_search_tool_result"
	}
	return ""
}

// callOptions decodes the members of a tool call block other than id, name and input.
func callOptions(b gjson.Result, o hub.Options) (hub.ToolCall, hub.Options) {
	var c hub.ToolCall
	switch b.Get("type").Str {
	case "server_tool_use":
		c.ProviderExecuted = true
	case "mcp_tool_use":
		c.ProviderExecuted, c.Dynamic = true, true
		o.Set(self, "type", "mcp-tool-use")
		o.Set(self, "serverName", b.Get("server_name").Str)
	}
	if caller := b.Get("caller"); caller.IsObject() {
		o.SetRaw(self, "caller", camels(caller))
	}
	return c, o
}

// errorf returns the error for a malformed answer.
func errorf(t *hub.Target, format string, args ...any) *hub.Error {
	return &hub.Error{Kind: hub.UpstreamFailed, Provider: t.Provider, Message: fmt.Sprintf(format, args...)}
}
