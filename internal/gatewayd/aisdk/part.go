package aisdk

import (
	"encoding/json"
	"slices"
	"strconv"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// part appends a complete part. It returns false if the version cannot express the part,
// which becomes a warning. ours is for providerMetadata.gateway.
func (w *answer) part(dst []byte, p *hub.Part, ours []byte) ([]byte, bool) {
	dst = append(dst, '{')
	ok := true
	switch p.Kind {
	case hub.TextPart, hub.ReasoningPart:
		dst = text(text(dst, "type", string(p.Kind)), "text", p.Text)
	case hub.FilePart, hub.ReasoningFilePart:
		dst, ok = w.file(dst, p)
	case hub.ToolCallPart:
		ok = !w.strange(p.Call.Name, p.Call.ProviderExecuted, p.Call.Dynamic)
		dst = w.toolCall(dst, p.Call)
	case hub.ToolResultPart:
		ok = !w.strange(p.Result.Name, p.Result.ProviderExecuted, p.Result.Dynamic)
		ok = ok && (w.Version != "2" || !p.Result.Preliminary) // the following result replaces it
		dst = w.toolResult(dst, p.Result)
	case hub.SourcePart:
		dst = w.source(dst, *p.Source)
	case hub.ApprovalRequestPart:
		if ok = w.Version != "2"; !ok {
			w.warn("the model asks whether it may run a tool of its provider, which ai 5 has no word for: use ai 6 or 7, or a tool that needs no approval")
		}
		dst = text(dst, "type", "tool-approval-request")
		dst = text(dst, "approvalId", p.Approval.ID)
		dst = text(dst, "toolCallId", p.Approval.CallID)
	case hub.CustomPart:
		if ok = w.Version == "4"; !ok {
			w.warn("the answer has a part of the kind " + clip(p.CustomKind) + ", which ai 5 and 6 have no word for: use ai 7")
		}
		dst = custom(dst, p)
	default:
		ok = false
		w.warn("the answer has a part of the type " + clip(string(p.Kind)) + ", which the AI SDK has no word for")
	}
	return append(metadata(dst, p.Options, ours), '}'), ok
}

// strange reports whether version 2 cannot express a provider-run tool, and adds a
// warning: ai 5 fails at the call of a tool that was not in its request, such as a tool
// of an MCP server that the provider connects to.
func (w *answer) strange(name string, providerExecuted, dynamic bool) bool {
	if w.Version != "2" || !providerExecuted {
		return false
	}
	named := func(t hub.Tool) bool { return t.Name == name }
	if !dynamic && (w.Call == nil || slices.ContainsFunc(w.Call.Tools, named)) {
		return false
	}
	w.warn("the provider ran the tool " + clip(name) + ", which was not among those of the request, and which ai 5 cannot be told of: use ai 6 or 7")
	return true
}

func (w *answer) warn(message string) {
	warning := hub.Warning{Kind: hub.WarnOther, Message: message}
	if !slices.Contains(w.late, warning) {
		w.late = append(w.late, warning)
	}
}

// file appends a file. The older versions have no files with a URL, which become sources,
// and no files inside reasoning.
func (w *answer) file(dst []byte, p *hub.Part) ([]byte, bool) {
	f, kind := p.File, string(p.Kind)
	data := f.Data
	switch {
	case f.Text != "":
		data = []byte(f.Text)
	case f.Reference != nil:
		w.warn("the answer has a file that is given as an id at its provider, which the AI SDK has no word for")
		return dst, false
	}
	if w.Version == "4" {
		dst = text(dst, "type", kind)
		dst = text(dst, "mediaType", mediaType(f))
		dst = append(key(dst, "data"), '{')
		if f.URL != "" {
			dst = text(text(dst, "type", "url"), "url", f.URL)
		} else {
			dst = encoded(text(dst, "type", "data"), "data", data)
		}
		return append(dst, '}'), true
	}
	if p.Kind == hub.ReasoningFilePart {
		w.warn("a file the model made while it was thinking is among the files of the answer: ai 5 and 6 do not tell them apart")
	}
	if f.URL != "" {
		w.warn("a file of the answer is given by its URL, as a source: ai 5 and 6 take no files by URL")
		return w.source(dst, hub.Source{URL: f.URL, Title: f.Name}), true
	}
	dst = text(dst, "type", "file")
	dst = text(dst, "mediaType", mediaType(f))
	return encoded(dst, "data", data), true
}

func mediaType(f *hub.File) string {
	if f.MediaType == "" {
		return "application/octet-stream"
	}
	return f.MediaType
}

func (w *answer) toolCall(dst []byte, c *hub.ToolCall) []byte {
	input := c.Input
	if input == "" {
		input = "{}"
	}
	dst = text(dst, "type", "tool-call")
	dst = text(dst, "toolCallId", c.ID)
	dst = text(dst, "toolName", c.Name)
	dst = text(dst, "input", input)
	dst = yes(dst, "providerExecuted", c.ProviderExecuted)
	return yes(dst, "dynamic", c.Dynamic && w.Version != "2")
}

func (w *answer) toolResult(dst []byte, r *hub.ToolResult) []byte {
	dst = text(dst, "type", "tool-result")
	dst = text(dst, "toolCallId", r.CallID)
	dst = text(dst, "toolName", r.Name)
	dst = w.outcome(key(dst, "result"), &r.Output)
	dst = yes(dst, "isError", r.Output.Failed())
	if w.Version == "2" {
		return yes(dst, "providerExecuted", r.ProviderExecuted)
	}
	dst = yes(dst, "preliminary", r.Preliminary)
	return yes(dst, "dynamic", r.Dynamic)
}

// outcome appends the output of a tool, as a value other than null.
func (w *answer) outcome(dst []byte, o *hub.ToolOutput) []byte {
	switch o.Kind {
	case hub.OutputJSON, hub.OutputErrorJSON:
		if v := gjson.ParseBytes(o.JSON); !v.Exists() || v.Type == gjson.Null {
			return append(dst, "{}"...)
		}
		return raw(dst, o.JSON)
	case hub.OutputContent:
		dst = append(dst, '[')
		for i := range o.Content {
			if with, ok := w.part(item(dst), &o.Content[i], nil); ok {
				dst = with
			}
		}
		return append(dst, ']')
	}
	return gjson.AppendJSONString(dst, o.Text)
}

// source appends a source. The source always has an id, and a document always has a
// title.
func (w *answer) source(dst []byte, s hub.Source) []byte {
	if s.ID == "" {
		w.sources++
		s.ID = "source-" + strconv.Itoa(w.sources)
	}
	dst = text(dst, "type", "source")
	if s.URL != "" {
		dst = text(text(text(dst, "sourceType", "url"), "id", s.ID), "url", s.URL)
		return optional(dst, "title", s.Title)
	}
	if s.Title == "" {
		s.Title = s.Filename
	}
	if s.MediaType == "" {
		s.MediaType = "text/plain"
	}
	dst = text(text(dst, "sourceType", "document"), "id", s.ID)
	dst = text(text(dst, "mediaType", s.MediaType), "title", s.Title)
	return optional(dst, "filename", s.Filename)
}

// custom appends a provider-specific part with all its members.
func custom(dst []byte, p *hub.Part) []byte {
	dst = text(text(dst, "type", "custom"), "kind", p.CustomKind)
	gjson.ParseBytes(p.Custom).ForEach(func(name, v gjson.Result) bool {
		switch name.Str {
		case "type", "kind", "providerMetadata":
			return true
		}
		dst = gjson.AppendJSONString(comma(dst), name.Str)
		dst = raw(append(dst, ':'), json.RawMessage(v.Raw))
		return true
	})
	return dst
}
