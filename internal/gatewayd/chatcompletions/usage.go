package chatcompletions

import (
	"encoding/json"
	"strconv"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// readUsage reads a usage object; nil if v is not an object. Input includes cached
// tokens, as in the hub.
//
// Output includes reasoning tokens, except for some xAI models: there the total is the
// sum of all three counts (recorded: 12 + 2 + 320 = 334).
func readUsage(v gjson.Result) *hub.Usage {
	if !v.IsObject() {
		return nil
	}
	u := &hub.Usage{Raw: json.RawMessage(v.Raw)}
	var total, read, hit *int64
	v.ForEach(func(key, v gjson.Result) bool {
		switch key.Str {
		case "prompt_tokens":
			u.Input = count(v)
		case "completion_tokens":
			u.Output = count(v)
		case "total_tokens":
			total = count(v)
		case "cached_tokens": // Moonshot
			read = count(v)
		case "prompt_cache_hit_tokens": // DeepSeek
			hit = count(v)
		case "prompt_tokens_details":
			u.CacheRead = count(v.Get("cached_tokens"))
			if n := count(v.Get("cache_write_tokens")); n != nil {
				u.CacheWrite = n
			}
		case "cache_creation_input_tokens": // sent by gateways, including this one
			if u.CacheWrite == nil {
				u.CacheWrite = count(v)
			}
		case "completion_tokens_details":
			u.Reasoning = count(v.Get("reasoning_tokens"))
		case "reasoning_tokens": // Perplexity
			if u.Reasoning == nil {
				u.Reasoning = count(v)
			}
		case "num_sources_used", "num_search_queries": // xAI, Perplexity
			if n := count(v); hub.Count(n) > 0 {
				u.Searches, u.SearchTool = n, searchTools[key.Str]
			}
		case "server_tool_use": // OpenRouter
			if n := count(v.Get("web_search_requests")); hub.Count(n) > 0 {
				u.Searches = n
			}
		case "cost": // OpenRouter, in dollars; Perplexity has an object here
			if v.Type == gjson.Number {
				u.Cost = v.Raw
			} else if c := v.Get("total_cost"); c.Type == gjson.Number {
				u.Cost = c.Raw
			}
		case "cost_in_usd_ticks": // xAI: 10^-10 dollars
			if n := count(v); n != nil && u.Cost == "" {
				u.Cost = ticks(*n)
			}
		}
		return true
	})
	if u.CacheRead == nil {
		u.CacheRead = hit
	}
	if u.CacheRead == nil {
		u.CacheRead = read
	}
	if u.Input == nil && u.Output == nil {
		return nil
	}
	if r, out := hub.Count(u.Reasoning), hub.Count(u.Output); r > 0 {
		if total != nil && *total == hub.Count(u.Input)+out+r || r > out {
			u.Output = hub.N(out + r)
		}
	}
	u.Fill()
	return u
}

// searchTools maps counts of searches to the tools whose prices apply: xAI charges per
// source, Perplexity per query.
var searchTools = map[string]string{"num_sources_used": "live_search", "num_search_queries": "search_query"}

// count returns a token count, nil if v is none. Counts are bounded, so that sums cannot
// overflow.
func count(v gjson.Result) *int64 {
	if v.Type != gjson.Number || !(v.Num >= 0 && v.Num < 1<<40) {
		return nil
	}
	return hub.N(int64(v.Num))
}

func ticks(n int64) string {
	const perDollar = 10_000_000_000
	fraction := strconv.FormatInt(perDollar+n%perDollar, 10)[1:]
	return strconv.FormatInt(n/perDollar, 10) + "." + fraction
}

// usage adds the usage member.
func (b *buffer) usage(u *hub.Usage, cost string) {
	b.open("usage", '{')
	b.int("prompt_tokens", hub.Count(u.Input))
	b.int("completion_tokens", hub.Count(u.Output))
	b.int("total_tokens", hub.Count(u.Input)+hub.Count(u.Output))
	if u.CacheRead != nil || u.CacheWrite != nil {
		b.open("prompt_tokens_details", '{')
		if u.CacheRead != nil {
			b.int("cached_tokens", *u.CacheRead)
		}
		if u.CacheWrite != nil {
			b.int("cache_write_tokens", *u.CacheWrite)
		}
		b.close('}')
	}
	if u.CacheWrite != nil {
		b.int("cache_creation_input_tokens", *u.CacheWrite)
	}
	if u.Reasoning != nil {
		b.open("completion_tokens_details", '{')
		b.int("reasoning_tokens", *u.Reasoning)
		b.close('}')
	}
	if u.Searches != nil {
		b.open("server_tool_use", '{')
		b.int("web_search_requests", *u.Searches)
		b.close('}')
	}
	if cost == "" {
		cost = u.Cost
	}
	if number(cost) {
		b.raw("cost", []byte(cost))
	}
	b.close('}')
}

// number reports whether s is a JSON number.
func number(s string) bool {
	return s != "" && (s[0] == '-' || s[0] >= '0' && s[0] <= '9') && json.Valid([]byte(s))
}

// reasonOf returns the hub's reason for a finish_reason. A missing reason counts as Stop.
func reasonOf(raw string) hub.Reason {
	switch raw {
	case "", "stop", "eos", "eos_token", "stop_sequence", "end_turn", "STOP": // Together, Hugging Face, Google and others have their own
		return hub.Stop
	case "length", "max_tokens", "model_length", "MAX_TOKENS": // model_length: Mistral
		return hub.Length
	case "tool_calls", "function_call", "tool_use":
		return hub.ToolCalls
	case "content_filter", "safety", "refusal":
		return hub.ContentFilter
	case "error", "insufficient_system_resource", "abort", "network_error": // OpenRouter, DeepSeek, vLLM, Zhipu
		return hub.Failed
	}
	return hub.OtherReason
}

// finishOf returns the hub's Finish, given other facts about the answer.
func finishOf(raw string, toolCalls, refusal bool) hub.Finish {
	f := hub.Finish{Reason: reasonOf(raw), Raw: raw}
	switch {
	case toolCalls && (f.Reason == hub.Stop || f.Reason == hub.OtherReason):
		f.Reason = hub.ToolCalls
	case refusal && f.Reason == hub.Stop:
		f.Reason = hub.ContentFilter
	}
	return f
}

// finishReason returns the format's finish_reason for f.
func finishReason(f hub.Finish) string {
	switch f.Reason {
	case hub.Length:
		return "length"
	case hub.ToolCalls:
		return "tool_calls"
	case hub.ContentFilter:
		return "content_filter"
	case hub.Failed:
		return "error" // like OpenRouter: a failed answer must not look like a successful one
	}
	return "stop" // clients know no others
}
