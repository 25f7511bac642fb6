package messages

import (
	"encoding/json"
	"slices"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// ReadResult decodes a whole message.
func (*Format) ReadResult(t *hub.Target, body []byte) (*hub.Result, error) {
	if !json.Valid(body) {
		return nil, errorf(t, "%s sent an answer that is not JSON", t.Provider)
	}
	root := gjson.ParseBytes(body)
	switch root.Get("type").Str {
	case "error":
		return nil, errorOf(t, root.Get("error"))
	case "message":
	default:
		return nil, errorf(t, "%s sent an answer that is no message", t.Provider)
	}
	d := newDecoder(t)
	d.message(root)
	d.end()
	var c hub.Collector
	for i := range d.events {
		c.Add(&d.events[i])
	}
	r, failed := c.Result()
	if failed != nil {
		return nil, failed
	}
	return r, nil
}

// answer is a whole message to be encoded.
type answer struct {
	ID               string         `json:"id"`
	Type             string         `json:"type"`
	Role             string         `json:"role"`
	Model            string         `json:"model"`
	Content          []*block       `json:"content"`
	StopReason       *string        `json:"stop_reason"`
	StopSequence     *string        `json:"stop_sequence"`
	StopDetails      any            `json:"stop_details,omitempty"`
	Container        any            `json:"container,omitempty"`
	Usage            *usage         `json:"usage"`
	ContextManage    any            `json:"context_management,omitempty"`
	ProviderMetadata map[string]any `json:"provider_metadata,omitempty"`
}

// usage is the usage object in answers. Unknown counts are null, except the two that
// clients add up.
type usage struct {
	Input       int64          `json:"input_tokens"`
	CacheWrite  *int64         `json:"cache_creation_input_tokens"`
	CacheRead   *int64         `json:"cache_read_input_tokens"`
	Creation    *cacheCreation `json:"cache_creation,omitempty"`
	Output      int64          `json:"output_tokens"`
	Details     *outputDetails `json:"output_tokens_details,omitempty"`
	ServerTools *serverTools   `json:"server_tool_use,omitempty"`
	ServiceTier string         `json:"service_tier,omitempty"`
}

type cacheCreation struct {
	Short int64 `json:"ephemeral_5m_input_tokens"`
	Hour  int64 `json:"ephemeral_1h_input_tokens"`
}

type outputDetails struct {
	Thinking int64 `json:"thinking_tokens"`
}

type serverTools struct {
	Searches int64 `json:"web_search_requests"`
}

func usageOf(u *hub.Usage) *usage {
	if u == nil {
		return &usage{}
	}
	filled := *u
	filled.Fill()
	out := &usage{
		Input: hub.Count(filled.NoCache), CacheWrite: u.CacheWrite, CacheRead: u.CacheRead,
		Output: hub.Count(filled.Output), ServiceTier: u.Tier,
	}
	if u.CacheWrite1h != nil {
		out.Creation = &cacheCreation{max(0, hub.Count(u.CacheWrite)-*u.CacheWrite1h), *u.CacheWrite1h}
	}
	if u.Reasoning != nil {
		out.Details = &outputDetails{*u.Reasoning}
	}
	if u.Searches != nil {
		out.ServerTools = &serverTools{*u.Searches}
	}
	return out
}

// WriteResult encodes a whole message. The format cannot express an answer that ended
// with an error, so WriteResult returns an *Error for it.
func (*Format) WriteResult(a hub.Answer, r *hub.Result) ([]byte, error) {
	if r.Finish.Reason == hub.Failed {
		return nil, brokenOff(r.Finish)
	}
	e := encoder{}
	out := answer{ID: a.ID, Type: "message", Role: "assistant", Model: a.Model, Content: []*block{}, Usage: usageOf(r.Usage)}
	for i := range r.Content {
		p := &r.Content[i]
		if s, ok := foreignSource(p); ok {
			if n := len(out.Content); n > 0 && out.Content[n-1].Type == "text" {
				out.Content[n-1].Citations = appendElement(out.Content[n-1].Citations, s)
				continue
			}
		}
		out.Content = append(out.Content, e.blocks(p)...)
	}
	w := wordsOf(r.Finish, r.Options)
	out.StopReason, out.StopSequence, out.StopDetails, out.Container, out.ContextManage = &w.reason, w.sequence, w.details, w.container, w.management
	out.ProviderMetadata = metadataOf(a, slices.Concat(r.Warnings, e.warnings))
	return hub.Encode(&out)
}

// brokenOff returns the error for an answer that, according to its provider, ended with
// an error.
func brokenOff(f hub.Finish) *hub.Error {
	return &hub.Error{Kind: hub.UpstreamFailed, Message: "the model did not finish its answer: " + f.Raw}
}

// metadataOf returns provider_metadata: the gateway's object, and the warnings, for which
// the format has no other place. It is nil if both are empty.
func metadataOf(a hub.Answer, warnings []hub.Warning) map[string]any {
	all := make(map[string]any)
	if a.Metadata != nil {
		if raw := a.Metadata(); json.Valid(raw) {
			all["gateway"] = json.RawMessage(raw)
		}
	}
	if len(warnings) > 0 {
		list := make([]map[string]string, len(warnings))
		for i, w := range warnings {
			list[i] = map[string]string{"type": string(w.Kind), "message": w.Message}
			if w.Feature != "" {
				list[i]["feature"] = w.Feature
			}
		}
		all["warnings"] = list
	}
	if len(all) == 0 {
		return nil
	}
	return all
}

// words is the end of an answer in the format's terms.
type words struct {
	reason                         string
	sequence                       *string
	details, container, management any
}

func wordsOf(f hub.Finish, o hub.Options) words {
	var w words
	switch f.Reason {
	case hub.Length:
		w.reason = "max_tokens"
	case hub.ToolCalls:
		w.reason = "tool_use"
	case hub.ContentFilter:
		w.reason = "refusal"
	default:
		w.reason = "end_turn"
	}
	if reasonOf(f.Raw) == f.Reason && f.Reason != hub.OtherReason {
		w.reason = f.Raw
	}
	var sequence string
	if o.Get(self, "stopSequence", &sequence) {
		w.sequence = &sequence
	}
	w.details, w.container, w.management = snaked(o, "stopDetails"), snaked(o, "container"), snaked(o, "contextManagement")
	return w
}

func snaked(o hub.Options, name string) any {
	if raw, ok := o[self][name]; ok && json.Valid(raw) {
		return snakes(raw)
	}
	return nil
}
