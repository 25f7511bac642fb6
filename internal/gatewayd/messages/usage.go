package messages

import (
	"encoding/json"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// counts holds the members of usage as they arrive. Later values replace earlier ones,
// except by null. (message_start counts the prompt; message_delta counts the output, and
// the prompt again if provider-run tools extended it.)
type counts map[string]json.RawMessage

func (c *counts) add(usage gjson.Result) {
	if !usage.IsObject() {
		return
	}
	if *c == nil {
		*c = make(counts)
	}
	usage.ForEach(func(key, value gjson.Result) bool {
		if value.Type != gjson.Null {
			(*c)[key.Str] = json.RawMessage(value.Raw)
		}
		return true
	})
}

// iteration is one model call within an answer.
type iteration struct {
	Type       string `json:"type"`
	Model      string `json:"model"`
	Input      int64  `json:"input_tokens"`
	Output     int64  `json:"output_tokens"`
	CacheRead  int64  `json:"cache_read_input_tokens"`
	CacheWrite int64  `json:"cache_creation_input_tokens"`
	Creation   struct {
		Hour int64 `json:"ephemeral_1h_input_tokens"`
	} `json:"cache_creation"`
}

// usage returns the usage, nil if there is none. The format's input count excludes cache
// reads and writes.
//
// If iterations are listed, the totals exclude the tokens for compacting the
// conversation, so usage adds up the iterations: those of the types message and
// compaction. If another model took over (fallback_message), its iterations count instead
// of message, at that model's price. Tokens of an advisor, which is another model, are in
// no sum, but in Others. Code execution costs once, for the minimum billed time of a
// container.
func (c counts) usage(ranCode bool) *hub.Usage {
	if c == nil {
		return nil
	}
	raw, err := hub.Encode(c) // in sorted order, for a stable result
	if err != nil {
		return nil
	}
	root := gjson.ParseBytes(raw)
	u := &hub.Usage{
		NoCache:      number(root.Get("input_tokens")),
		CacheRead:    number(root.Get("cache_read_input_tokens")),
		CacheWrite:   number(root.Get("cache_creation_input_tokens")),
		CacheWrite1h: number(root.Get("cache_creation.ephemeral_1h_input_tokens")),
		Output:       number(root.Get("output_tokens")),
		Reasoning:    number(root.Get("output_tokens_details.thinking_tokens")),
		Searches:     number(root.Get("server_tool_use.web_search_requests")),
		Tier:         root.Get("service_tier").Str,
		Raw:          raw,
	}
	if u.CacheWrite == nil && u.CacheWrite1h != nil {
		short := number(root.Get("cache_creation.ephemeral_5m_input_tokens"))
		u.CacheWrite = hub.N(*u.CacheWrite1h + hub.Count(short))
	}
	if s := root.Get("speed").Str; s != "" && s != "standard" { // a speed has a price of its own, like a tier
		u.Tier = s
	}
	if ranCode {
		u.Tools = map[string]int64{codeExecution: 1}
	}
	sum(u, root.Get("iterations"))
	u.Fill()
	return u
}

// maxOthers is the maximum number of advisor calls listed separately.
const maxOthers = 1024

// runsCode reports whether a block is a call of a provider's code tool: code_execution,
// bash_code_execution, text_editor_code_execution.
func runsCode(block gjson.Result) bool {
	return block.Get("type").Str == "server_tool_use" && strings.HasSuffix(block.Get("name").Str, codeExecution)
}

func number(value gjson.Result) *int64 {
	var n int64
	if value.Type != gjson.Number || json.Unmarshal([]byte(value.Raw), &n) != nil || n < 0 {
		return nil
	}
	return &n
}

// sum replaces the totals by the sums over iterations, if iterations are listed.
func sum(u *hub.Usage, list gjson.Result) {
	var all []iteration
	if !list.IsArray() || json.Unmarshal([]byte(list.Raw), &all) != nil {
		return
	}
	main := "message"
	for _, i := range all {
		if i.Type == "fallback_message" {
			main = i.Type
		}
	}
	var s iteration
	found := false
	for _, i := range all {
		if i.Type == "advisor_message" && len(u.Others) < maxOthers && i.Input >= 0 && i.Output >= 0 && i.CacheRead >= 0 && i.CacheWrite >= 0 {
			other := hub.Usage{Model: i.Model, NoCache: hub.N(i.Input), Output: hub.N(i.Output), CacheRead: hub.N(i.CacheRead), CacheWrite: hub.N(i.CacheWrite)}
			other.Fill()
			u.Others = append(u.Others, other)
		}
		if i.Type != main && i.Type != "compaction" || i.Input < 0 || i.Output < 0 || i.CacheRead < 0 || i.CacheWrite < 0 || i.Creation.Hour < 0 {
			continue
		}
		found = true
		if i.Type == "fallback_message" {
			u.Model = i.Model
		}
		s.Input += i.Input
		s.Output += i.Output
		s.CacheRead += i.CacheRead
		s.CacheWrite += i.CacheWrite
		s.Creation.Hour += i.Creation.Hour
	}
	if !found {
		return
	}
	u.NoCache, u.Output, u.CacheRead, u.CacheWrite = hub.N(s.Input), hub.N(s.Output), hub.N(s.CacheRead), hub.N(s.CacheWrite)
	u.CacheWrite1h = hub.N(max(s.Creation.Hour, hub.Count(u.CacheWrite1h)))
}
