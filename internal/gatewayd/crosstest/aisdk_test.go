package crosstest_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// sdkPart is an element of an answer in the AI SDK's form: of the content, or of the
// stream. See spec sections 3.3 and 3.4.
type sdkPart struct {
	Type             string
	ID               string
	Delta            string
	Text             string
	Kind             string
	MediaType        string
	Data             json.RawMessage
	SourceType       string
	URL              string
	Title            string
	Filename         string
	ToolCallID       string `json:"toolCallId"`
	ToolName         string
	Input            string
	ProviderExecuted bool
	Result           json.RawMessage
	ProviderMetadata hub.Options
	FinishReason     json.RawMessage
	Usage            json.RawMessage
	Error            json.RawMessage
}

func (p *sdkPart) part(t *testing.T, name, version string) hub.Part {
	t.Helper()
	out := hub.Part{Options: p.ProviderMetadata}
	switch p.Type {
	case "text":
		out.Kind, out.Text = hub.TextPart, p.Text
	case "reasoning":
		out.Kind, out.Text = hub.ReasoningPart, p.Text
	case "tool-call":
		if p.Input == "" || p.ToolCallID == "" || p.ToolName == "" {
			t.Errorf("%s: a call without something: %+v", name, p)
		}
		out.Kind, out.Call = hub.ToolCallPart, &hub.ToolCall{ID: p.ToolCallID, Name: p.ToolName, Input: p.Input, ProviderExecuted: p.ProviderExecuted}
	case "tool-result":
		out.Kind, out.Result = hub.ToolResultPart, &hub.ToolResult{CallID: p.ToolCallID, Name: p.ToolName}
	case "file":
		out.Kind, out.File = hub.FilePart, &hub.File{MediaType: p.MediaType, Data: p.bytes(t, name, version)}
	case "source":
		if p.ID == "" || p.SourceType != "url" && p.SourceType != "document" {
			t.Errorf("%s: a source without id or kind: %+v", name, p)
		}
		out.Kind, out.Source = hub.SourcePart, &hub.Source{ID: p.ID, URL: p.URL, Title: p.Title, Filename: p.Filename}
	case "custom":
		out.Kind, out.CustomKind = hub.CustomPart, p.Kind
	case "tool-approval-request":
		out.Kind = hub.ApprovalRequestPart
	case "reasoning-file":
		out.Kind = hub.ReasoningFilePart
	default:
		t.Errorf("%s: a part of the kind %q", name, p.Type)
	}
	if version != "4" && (p.Type == "custom" || p.Type == "reasoning-file") || version == "2" && p.Type == "tool-approval-request" {
		t.Errorf("%s: version %s has no %s", name, version, p.Type)
	}
	return out
}

// bytes decodes base64 text, which is inside an object in version 4.
func (p *sdkPart) bytes(t *testing.T, name, version string) []byte {
	t.Helper()
	raw := p.Data
	if version == "4" {
		var tagged struct {
			Type string
			Data json.RawMessage
		}
		if err := json.Unmarshal(raw, &tagged); err != nil || tagged.Type != "data" {
			t.Errorf("%s: the data of a file: %v %.100s", name, err, raw)
		}
		raw = tagged.Data
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		t.Errorf("%s: the data of a file: %v %.100s", name, err, raw)
	}
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		t.Errorf("%s: the data of a file: %v", name, err)
	}
	return data
}

func sdkFinish(t *testing.T, name, version string, raw json.RawMessage) hub.Finish {
	t.Helper()
	var f struct{ Unified, Raw string }
	var err error
	if version == "2" {
		err = json.Unmarshal(raw, &f.Unified)
	} else {
		err = json.Unmarshal(raw, &f)
	}
	if err != nil || f.Unified == "" {
		t.Errorf("%s: the finish reason is %s: %v", name, raw, err)
	}
	return hub.Finish{Reason: hub.Reason(f.Unified), Raw: f.Raw}
}

func sdkUsage(t *testing.T, name, version string, raw json.RawMessage) *hub.Usage {
	t.Helper()
	var err error
	if version == "2" {
		var u struct{ InputTokens, OutputTokens, TotalTokens, ReasoningTokens, CachedInputTokens *int64 }
		err = json.Unmarshal(raw, &u)
		if err == nil {
			return &hub.Usage{Input: u.InputTokens, Output: u.OutputTokens, Reasoning: u.ReasoningTokens, CacheRead: u.CachedInputTokens}
		}
	} else {
		var u struct {
			InputTokens, OutputTokens struct{ Total, NoCache, CacheRead, CacheWrite, Text, Reasoning *int64 }
		}
		err = json.Unmarshal(raw, &u)
		if err == nil {
			return &hub.Usage{
				Input: u.InputTokens.Total, CacheRead: u.InputTokens.CacheRead, CacheWrite: u.InputTokens.CacheWrite,
				Output: u.OutputTokens.Total, Reasoning: u.OutputTokens.Reasoning,
			}
		}
	}
	t.Errorf("%s: the usage is %s: %v", name, raw, err)
	return nil
}

// sdkWhole decodes a whole answer like the AI SDK.
func sdkWhole(t *testing.T, name, version string, body []byte) (*hub.Result, *hub.Error) {
	t.Helper()
	var a struct {
		Content             []sdkPart
		FinishReason, Usage json.RawMessage
		Warnings            []json.RawMessage
		ProviderMetadata    hub.Options
	}
	if err := json.Unmarshal(body, &a); err != nil {
		t.Fatalf("%s: %v: %.300s", name, err, body)
	}
	if a.Warnings == nil || a.ProviderMetadata.String("gateway", "generationId") == "" {
		t.Errorf("%s: no warnings, or no metadata of ours: %.300s", name, body)
	}
	r := &hub.Result{Finish: sdkFinish(t, name, version, a.FinishReason), Usage: sdkUsage(t, name, version, a.Usage)}
	for i := range a.Content {
		r.Content = append(r.Content, a.Content[i].part(t, name, version))
	}
	return r, nil
}

// sdkStream decodes a stream like the AI SDK, which keeps every part, complete or not.
func sdkStream(t *testing.T, name, version string, body []byte) (*hub.Result, *hub.Error) {
	t.Helper()
	var (
		collector hub.Collector
		checker   hub.Checker
	)
	add := func(e hub.Event) {
		if err := checker.Add(&e); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		collector.Add(&e)
	}
	kinds := map[string]hub.EventKind{
		"text-start": hub.TextStart, "text-delta": hub.TextDelta, "text-end": hub.TextEnd,
		"reasoning-start": hub.ReasoningStart, "reasoning-delta": hub.ReasoningDelta, "reasoning-end": hub.ReasoningEnd,
		"tool-input-start": hub.InputStart, "tool-input-delta": hub.InputDelta, "tool-input-end": hub.InputEnd,
	}
	for block := range bytes.SplitSeq(body, []byte("\n\n")) {
		data, ok := bytes.CutPrefix(block, []byte("data: "))
		if !ok {
			if len(block) > 0 && block[0] != ':' {
				t.Errorf("%s: %.100q is neither data nor a comment", name, block)
			}
			continue
		}
		if string(data) == "[DONE]" {
			continue
		}
		var p sdkPart
		if err := json.Unmarshal(data, &p); err != nil {
			t.Errorf("%s: %v: %.200s", name, err, data)
			continue
		}
		switch {
		case p.Type == "stream-start":
			add(hub.Event{Kind: hub.Start})
		case p.Type == "response-metadata", p.Type == "raw":
		case p.Type == "ping":
			if version != "4" {
				t.Errorf("%s: version %s has no ping", name, version)
			}
		case kinds[p.Type] != 0:
			e := hub.Event{Kind: kinds[p.Type], ID: p.ID, Delta: p.Delta, Name: p.ToolName, Options: p.ProviderMetadata}
			if p.ID == "" || e.Kind == hub.InputStart && p.ToolName == "" || strings.HasSuffix(p.Type, "-delta") && !bytes.Contains(data, []byte(`"delta":`)) {
				t.Errorf("%s: a part without something: %.200s", name, data)
			}
			add(e)
		case p.Type == "finish":
			f, u := sdkFinish(t, name, version, p.FinishReason), sdkUsage(t, name, version, p.Usage)
			if p.ProviderMetadata.String("gateway", "generationId") == "" {
				t.Errorf("%s: no metadata of ours at the end: %.300s", name, data)
			}
			add(hub.Event{Kind: hub.Finished, Finish: f, Usage: u})
		case p.Type == "error":
			if len(p.Error) == 0 {
				t.Errorf("%s: an error without one", name)
			}
			add(hub.Event{Kind: hub.Failure, Err: &hub.Error{Kind: hub.UpstreamFailed, Message: string(p.Error)}})
		default:
			part := p.part(t, name, version)
			add(hub.Event{Kind: hub.Whole, Part: &part})
		}
	}
	if err := checker.End(); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	return collector.Result()
}
