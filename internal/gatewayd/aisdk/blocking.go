package aisdk

import "github.com/cayhq/cay/internal/gatewayd/hub"

// WriteResult implements hub.Surface.
func (*Format) WriteResult(a hub.Answer, r *hub.Result) ([]byte, error) {
	w := newAnswer(a)
	dst := append(make([]byte, 0, 1024), `{"content":[`...)
	for i := range r.Content {
		if p := &r.Content[i]; p.Kind == hub.ToolResultPart && p.Result.Preliminary {
			continue // the following part contains everything
		}
		if with, ok := w.part(item(dst), &r.Content[i], nil); ok {
			dst = with
		}
	}
	dst = append(dst, ']')
	dst = w.finishReason(dst, r.Finish)
	dst = w.usage(dst, r.Usage)
	dst = w.warnings(dst, r.Warnings, w.late)
	dst = metadata(dst, r.Options, w.ours())
	dst = append(key(dst, "response"), '{')
	dst = w.response(dst, r.Response)
	return append(dst, '}', '}'), nil
}

// answer writes an answer in the form of its version.
type answer struct {
	hub.Answer
	// late are warnings about parts that the version cannot express.
	late    []hub.Warning
	sources int // how many had no id of their own
}

func newAnswer(a hub.Answer) answer {
	if a.Version == "" {
		a.Version = newest
	}
	return answer{Answer: a}
}

// ours returns the value of providerMetadata.gateway, nil if there is none.
func (w *answer) ours() []byte {
	if w.Metadata == nil {
		return nil
	}
	return w.Metadata()
}

// response appends the provider's response metadata. For unstreamed answers the client
// fills in its own.
func (w *answer) response(dst []byte, r hub.Response) []byte {
	if r.ID == "" {
		r.ID = w.ID
	}
	if r.Model == "" {
		r.Model = w.Model
	}
	dst = optional(dst, "id", r.ID)
	if !r.Created.IsZero() {
		dst = text(dst, "timestamp", r.Created.UTC().Format("2006-01-02T15:04:05.000Z"))
	}
	return optional(dst, "modelId", r.Model)
}

// reasons are the finish reasons that are equal in all versions.
var reasons = map[hub.Reason]bool{
	hub.Stop: true, hub.Length: true, hub.ContentFilter: true, hub.ToolCalls: true, hub.Failed: true, hub.OtherReason: true,
}

func (w *answer) finishReason(dst []byte, f hub.Finish) []byte {
	reason := string(f.Reason)
	if !reasons[f.Reason] {
		reason = "other"
		if f.Reason == "" && w.Version == "2" {
			reason = "unknown"
		}
	}
	if w.Version == "2" {
		return text(dst, "finishReason", reason)
	}
	dst = append(key(dst, "finishReason"), '{')
	dst = text(dst, "unified", reason)
	dst = optional(dst, "raw", f.Raw)
	return append(dst, '}')
}

// usage appends the known counts. The enclosing objects are always present, because
// clients access their members.
func (w *answer) usage(dst []byte, u *hub.Usage) []byte {
	if u == nil {
		u = &hub.Usage{}
	}
	filled := *u
	filled.Fill()
	u = &filled
	dst = append(key(dst, "usage"), '{')
	if w.Version == "2" {
		dst = count(dst, "inputTokens", u.Input)
		dst = count(dst, "outputTokens", u.Output)
		if u.Input != nil && u.Output != nil {
			dst = count(dst, "totalTokens", hub.N(*u.Input+*u.Output))
		}
		dst = count(dst, "reasoningTokens", u.Reasoning)
		dst = count(dst, "cachedInputTokens", u.CacheRead)
		return append(dst, '}')
	}
	dst = append(key(dst, "inputTokens"), '{')
	dst = count(dst, "total", u.Input)
	dst = count(dst, "noCache", u.NoCache)
	dst = count(dst, "cacheRead", u.CacheRead)
	dst = count(dst, "cacheWrite", u.CacheWrite)
	dst = append(append(dst, '}'), `,"outputTokens":{`...)
	dst = count(dst, "total", u.Output)
	dst = count(dst, "text", u.Text)
	dst = count(dst, "reasoning", u.Reasoning)
	dst = append(dst, '}')
	if len(u.Raw) > 0 && u.Raw[0] == '{' {
		dst = raw(key(dst, "raw"), u.Raw)
	}
	return append(dst, '}')
}
