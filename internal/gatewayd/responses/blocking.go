package responses

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// ReadResult decodes a Response object. A failed response is an error, and so is an
// unfinished one, which only background responses are.
func (*Format) ReadResult(t *hub.Target, body []byte) (*hub.Result, error) {
	if len(body) > maxWhole {
		return nil, broken(t, "the answer is too large", nil)
	}
	var r response
	if err := json.Unmarshal(body, &r); err != nil {
		return nil, broken(t, "the answer makes no sense", err)
	}
	if r.Output == nil && r.Status == "" && r.Error == nil {
		return nil, broken(t, "the answer is no response", nil)
	}
	d := newDecoder(t)
	if len(r.Output) > maxItems {
		return nil, broken(t, "the answer has too many items", nil)
	}
	result := &hub.Result{Response: r.metadata()}
	calls := 0
	for i := range r.Output {
		for _, p := range d.parts(&r.Output[i]) {
			if p.Kind == hub.ToolCallPart {
				if calls++; p.Call.ID == "" || p.Call.Name == "" || calls > maxCalls {
					return nil, broken(t, "the answer has a tool call without id or name, or too many", nil)
				}
			}
			result.Content = append(result.Content, p)
		}
	}
	finish, err := r.finish(t, outcome(result.Content))
	if err != nil {
		return nil, err
	}
	result.Finish, result.Usage = finish, r.usage(&d.ran)
	return result, nil
}

func (r *response) metadata() hub.Response {
	m := hub.Response{ID: r.ID, Model: r.Model}
	if s, err := r.CreatedAt.Float64(); err == nil && s > 0 && s < 1e12 {
		m.Created = time.Unix(int64(s), 0).UTC()
	}
	return m
}

// outcome returns the reason for the end of an answer: ToolCalls if the client has to run
// tools, ContentFilter if the model refused, else Stop.
func outcome(parts []hub.Part) hub.Reason {
	reason := hub.Stop
	for i := range parts {
		switch p := &parts[i]; {
		case p.Kind == hub.ToolCallPart && !p.Call.ProviderExecuted:
			return hub.ToolCalls
		case refused(p.Options):
			reason = hub.ContentFilter
		}
	}
	return reason
}

func refused(o hub.Options) bool {
	var yes bool
	return o.Get(optProvider, optRefusal, &yes) && yes
}

// finish returns why the model stopped. Raw is the reason of an incomplete response, else
// its status.
func (r *response) finish(t *hub.Target, outcome hub.Reason) (hub.Finish, error) {
	switch r.Status {
	case "completed", "":
		if r.Status == "" && r.Error != nil {
			return hub.Finish{}, fromEvent(t, r.Error)
		}
		return hub.Finish{Reason: outcome, Raw: r.Status}, nil
	case "incomplete":
		f := hub.Finish{Reason: hub.OtherReason, Raw: r.Status}
		if r.IncompleteDetails != nil && r.IncompleteDetails.Reason != "" {
			f.Raw = r.IncompleteDetails.Reason
		}
		switch f.Raw {
		case "max_output_tokens":
			f.Reason = hub.Length
		case "content_filter":
			f.Reason = hub.ContentFilter
		}
		return f, nil
	case "failed":
		return hub.Finish{}, fromEvent(t, r.Error)
	}
	return hub.Finish{}, broken(t, "the response is "+hub.Redact(r.Status), nil)
}

// usage returns the usage; runs of hosted tools are counted by items if the provider does
// not count them.
func (r *response) usage(ran *ran) *hub.Usage {
	u := r.Usage
	if u == nil {
		return nil
	}
	out := &hub.Usage{
		Input: u.InputTokens.n, CacheRead: u.InputTokensDetails.CachedTokens.n, CacheWrite: u.InputTokensDetails.CacheWriteTokens.n,
		Output: u.OutputTokens.n, Reasoning: u.OutputTokensDetails.ReasoningTokens.n,
		Tier: r.ServiceTier, Raw: u.raw,
	}
	if n := u.Ticks.n; n != nil {
		const perDollar = 10_000_000_000
		out.Cost = fmt.Sprintf("%d.%010d", *n/perDollar, *n%perDollar)
	}
	ran.into(out, r.ToolUsage, u.Side)
	out.Fill()
	return out
}

// WriteResult encodes a Response object. Its output equals the items of the Writer.
func (f *Format) WriteResult(a hub.Answer, r *hub.Result) ([]byte, error) {
	w := newWriter(a)
	w.quiet = true
	w.Append(nil, &hub.Event{Kind: hub.Start, Warnings: r.Warnings})
	w.Append(nil, &hub.Event{Kind: hub.Metadata, Response: r.Response})
	for i := range r.Content {
		w.part(&r.Content[i], i)
	}
	w.Append(nil, &hub.Event{Kind: hub.Finished, Finish: r.Finish, Usage: r.Usage, Options: r.Options})
	return w.final, nil
}
