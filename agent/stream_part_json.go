package agent

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
)

// us is the gateway's name in providerMetadata.
const us = "gateway"

// streamPartJSON is a stream part of specification 4.
type streamPartJSON struct {
	Type     StreamPartType  `json:"type"`
	ID       string          `json:"id"`
	Delta    string          `json:"delta"`
	CallID   string          `json:"toolCallId"`
	ToolName string          `json:"toolName"`
	Input    json.RawMessage `json:"input"`
	Result   json.RawMessage `json:"result"`

	IsError          bool   `json:"isError"`
	Preliminary      bool   `json:"preliminary"`
	Dynamic          bool   `json:"dynamic"`
	ProviderExecuted bool   `json:"providerExecuted"`
	ApprovalID       string `json:"approvalId"`

	MediaType  string          `json:"mediaType"`
	Filename   string          `json:"filename"`
	Data       json.RawMessage `json:"data"`
	SourceType string          `json:"sourceType"`
	URL        string          `json:"url"`
	Title      string          `json:"title"`
	Kind       string          `json:"kind"`

	Warnings []warningJSON   `json:"warnings"`
	ModelID  string          `json:"modelId"`
	Finish   json.RawMessage `json:"finishReason"`
	Usage    *usageJSON      `json:"usage"`
	Error    json.RawMessage `json:"error"`
	Metadata Options         `json:"providerMetadata"`
}

type warningJSON struct {
	Type, Feature, Setting, Details, Message string
}

// String returns the warning in words.
func (w warningJSON) String() string {
	var words []string
	for _, s := range []string{w.Type, w.Feature, w.Setting, w.Details, w.Message} {
		if s != "" && s != "other" {
			words = append(words, s)
		}
	}
	return strings.Join(words, ": ")
}

type usageJSON struct {
	Input struct {
		Total, CacheRead, CacheWrite int64
	} `json:"inputTokens"`
	Output struct {
		Total, Reasoning int64
	} `json:"outputTokens"`
}

// readStreamPart reads an event of an answer. It returns nil for an event without a
// meaning here. Errors: unavailable for an invalid event; the model's error.
func readStreamPart(data []byte) (*StreamPart, error) {
	var w streamPartJSON
	if err := json.Unmarshal(data, &w); err != nil {
		return nil, cay.Errorf(cay.Unavailable, "the gateway sent an event that is no part of an answer: %w", err)
	}
	p := &StreamPart{Type: w.Type, ID: w.ID, Metadata: w.Metadata}
	ours := metadata{}
	if raw, ok := p.Metadata[us]; ok {
		_ = json.Unmarshal(raw, &ours) // unreadable metadata is left out
		delete(p.Metadata, us)
	}
	p.GenerationID = ours.GenerationID
	if len(p.Metadata) == 0 {
		p.Metadata = nil
	}
	switch w.Type {
	case StreamStart:
		for _, warning := range w.Warnings {
			p.Warnings = append(p.Warnings, warning.String())
		}
	case StreamResponse:
		p.ResponseID, p.ID, p.Model = w.ID, "", w.ModelID
	case StreamTextStart, StreamTextEnd, StreamReasoningStart, StreamReasoningEnd, StreamToolInputEnd:
	case StreamTextDelta, StreamReasoningDelta, StreamToolInputDelta:
		p.Delta = w.Delta
	case StreamToolInputStart:
		p.ToolName, p.ProviderExecuted, p.Dynamic = w.ToolName, w.ProviderExecuted, w.Dynamic
	case StreamToolCall:
		p.ID, p.ToolName, p.ProviderExecuted, p.Dynamic = w.CallID, w.ToolName, w.ProviderExecuted, w.Dynamic
		if p.Input = string(w.Input); len(w.Input) > 0 && w.Input[0] == '"' {
			_ = json.Unmarshal(w.Input, &p.Input) // a string, as it was unmarshaled before
		}
	case StreamToolResult:
		p.ID, p.ToolName, p.Dynamic = w.CallID, w.ToolName, w.Dynamic
		p.Result, p.IsError, p.Preliminary = w.Result, w.IsError, w.Preliminary
	case StreamApproval:
		p.ID, p.ApprovalID = w.CallID, w.ApprovalID
	case StreamFile, StreamReasoningFile:
		var part Part
		if err := part.readFile(&partJSON{MediaType: w.MediaType, Filename: w.Filename, Data: w.Data}); err != nil {
			return nil, cay.Errorf(cay.Unavailable, "the gateway sent a file that is none: %w", err)
		}
		p.File = part.File
	case StreamSource:
		p.Source = &Source{ID: w.ID, URL: w.URL, Title: w.Title, MediaType: w.MediaType, Filename: w.Filename}
	case StreamCustom:
		p.Kind = w.Kind
	case StreamFinish:
		p.Reason = readReason(w.Finish)
		p.Usage = w.Usage.usage(ours)
		for _, warning := range ours.Warnings {
			p.Warnings = append(p.Warnings, warning.String())
		}
	case "error":
		return nil, readFailure(w.Error)
	case "raw", "ping":
		return nil, nil
	default:
		return &StreamPart{Type: StreamStart, Warnings: []string{fmt.Sprintf("the answer had a part of the type %.64q, which is not known here", w.Type)}}, nil
	}
	return p, nil
}

// metadata is the gateway's metadata.
type metadata struct {
	GenerationID string        `json:"generationId"`
	Cost         string        `json:"cost"`
	Warnings     []warningJSON `json:"warnings"`
}

func (w *usageJSON) usage(m metadata) Usage {
	u := Usage{Calls: 1}
	if w != nil {
		u.Input, u.CacheRead, u.CacheWrite = max(0, w.Input.Total), max(0, w.Input.CacheRead), max(0, w.Input.CacheWrite)
		u.Output, u.Reasoning = max(0, w.Output.Total), max(0, w.Output.Reasoning)
	}
	if cost, err := gateway.ParseMoney(m.Cost); err == nil {
		u.Cost, u.CostKnown = cost, true
	}
	return u
}

// readReason reads a reason of any version: a word, or {unified, raw}.
func readReason(raw json.RawMessage) FinishReason {
	var word FinishReason
	if json.Unmarshal(raw, &word) != nil {
		var both struct{ Unified FinishReason }
		_ = json.Unmarshal(raw, &both) // other forms give an unknown reason
		word = both.Unified
	}
	switch word {
	case FinishStop, FinishLength, FinishContentFilter, FinishToolCalls, FinishError:
		return word
	}
	return FinishOther
}
