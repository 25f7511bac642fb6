package messages

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// encoder creates the blocks of an answer.
type encoder struct {
	warnings []hub.Warning // for parts without a place in the format
}

// blocks returns the blocks for a part; none if the format has another place for the
// part, or no place.
func (e *encoder) blocks(p *hub.Part) []*block {
	switch p.Kind {
	case hub.TextPart:
		if p.Options.String(self, "type") == "compaction" {
			return []*block{{Type: "compaction", Content: p.Text}}
		}
		return []*block{{Type: "text", Text: &p.Text, Citations: p.Options[self]["citations"]}}
	case hub.ReasoningPart:
		if data, ok := redactedData(p.Options); ok {
			return []*block{{Type: "redacted_thinking", Data: data}}
		}
		return []*block{{Type: "thinking", Thinking: &p.Text, Signature: ptr(signature(p.Options))}}
	case hub.ToolCallPart:
		return []*block{e.call(p.Call.Name, p.Call.ID, p.Call.ProviderExecuted, p.Options, inputObject(p.Call))}
	case hub.ToolResultPart:
		b := serverResult(p, p.Result.Name)
		b.ToolUseID = p.Result.CallID
		if b.Type == "mcp_tool_result" && !gjson.ParseBytes(outputJSON(&p.Result.Output)).IsArray() {
			b.Content = []*block{{Type: "text", Text: ptr(string(outputJSON(&p.Result.Output)))}}
		}
		return []*block{b}
	case hub.CustomPart:
		if kind, ok := strings.CutPrefix(p.CustomKind, self+"."); ok {
			return []*block{{Type: kind, more: p.Custom}}
		}
	case hub.FilePart:
		return []*block{fileBlock(p.File)}
	case hub.SourcePart:
		s, foreign := foreignSource(p)
		if !foreign {
			return nil // the text says it already
		}
		if s != nil {
			return []*block{{Type: "text", Text: ptr(""), Citations: appendElement(nil, s)}}
		}
	}
	feature := string(p.Kind)
	if p.Kind == hub.CustomPart {
		feature = p.CustomKind
	}
	e.warnings = append(e.warnings, hub.Warning{
		Kind: hub.WarnUnsupported, Feature: feature, Message: "the answer had one, for which this format has no place",
	})
	return nil
}

// call returns the block for a tool call. A provider-run tool becomes Anthropic's own
// tool if it is one, else an MCP server's tool, whose results may have any form.
func (e *encoder) call(name, id string, byProvider bool, o hub.Options, input json.RawMessage) *block {
	b := &block{Type: "tool_use", ID: id, Name: name, Input: input, Caller: callerOf(o)}
	server := o.String(self, "serverName")
	switch {
	case !byProvider:
		b.ID = hub.PackID(id, foreign(o))
	case server != "" || o.String(self, "type") == "mcp-tool-use":
		b.Type, b.ServerName = "mcp_tool_use", server
	case typeOfResult(name) != "" || strings.HasPrefix(id, "srvtoolu_"):
		b.Type = "server_tool_use"
		b.Name, b.Input = codeName(name, input)
	default:
		b.Type, b.ServerName = "mcp_tool_use", "provider"
	}
	return b
}

// foreign returns the options of other providers.
func foreign(o hub.Options) hub.Options {
	var out hub.Options
	for provider, members := range o {
		if provider != self && len(members) > 0 {
			out.Merge(hub.Options{provider: members})
		}
	}
	return out
}

// signature returns Anthropic's signature, or other providers' options wrapped as a
// signature.
func signature(o hub.Options) string {
	if s := o.String(self, "signature"); s != "" {
		return s
	}
	others := foreign(o)
	if len(others) == 0 {
		return ""
	}
	names := make([]string, 0, len(others))
	for name := range others {
		names = append(names, name)
	}
	return hub.Wrap(slices.Min(names), others)
}

// redactedData returns the data of Anthropic's redacted reasoning.
func redactedData(o hub.Options) (string, bool) {
	if _, ok := o[self]["redactedData"]; !ok {
		return "", false
	}
	return o.String(self, "redactedData"), true
}

// foreignSource returns another provider's source as an Anthropic citation, nil if the
// source is no web page, and whether p is another provider's source.
func foreignSource(p *hub.Part) (json.RawMessage, bool) {
	if p.Kind != hub.SourcePart || p.Options[self] != nil {
		return nil, false
	}
	s := p.Source
	if s.URL == "" {
		return nil, true
	}
	raw, _ := hub.Encode(struct { // texts
		Type           string `json:"type"`
		URL            string `json:"url"`
		Title          string `json:"title"`
		CitedText      string `json:"cited_text"`
		EncryptedIndex string `json:"encrypted_index"`
	}{Type: "web_search_result_location", URL: s.URL, Title: s.Title})
	return raw, true
}

// appendElement appends an element to a JSON array, which may be nil.
func appendElement(array, element json.RawMessage) json.RawMessage {
	if element == nil {
		return array
	}
	if len(array) < 2 {
		array = json.RawMessage("[]")
	}
	out := append(make(json.RawMessage, 0, len(array)+len(element)+1), array[:len(array)-1]...)
	if len(out) > 1 {
		out = append(out, ',')
	}
	return append(append(out, element...), ']')
}

// fileBlock returns the block for a generated file. Anthropic's models generate no such
// files, so the block has the form used in prompts.
func fileBlock(f *hub.File) *block {
	b := &block{Type: "document", Source: &source{Type: "base64", MediaType: f.MediaType}}
	if strings.HasPrefix(f.MediaType, "image/") {
		b.Type = "image"
	}
	switch {
	case f.URL != "":
		b.Source = &source{Type: "url", URL: f.URL}
	case f.Text != "":
		b.Source = &source{Type: "text", MediaType: "text/plain", Data: f.Text}
	default:
		b.Source.Data = base64.StdEncoding.EncodeToString(f.Data)
	}
	return b
}
