package responses

import (
	"encoding/json"
	"strconv"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// response is a Response object with the members that are read.
type response struct {
	ID                string      `json:"id"`
	Model             string      `json:"model"`
	CreatedAt         json.Number `json:"created_at"` // seconds; some servers give a fraction
	Status            string      `json:"status"`
	Error             *errorBody  `json:"error"`
	IncompleteDetails *incomplete `json:"incomplete_details"`
	Output            []item      `json:"output"`
	Usage             *usage      `json:"usage"`
	ServiceTier       string      `json:"service_tier"`
	ToolUsage         *toolUsage  `json:"tool_usage"`
}

type incomplete struct {
	Reason string `json:"reason"`
}

type usage struct {
	InputTokens        count `json:"input_tokens"`
	InputTokensDetails struct {
		CachedTokens     count `json:"cached_tokens"`
		CacheWriteTokens count `json:"cache_write_tokens"`
	} `json:"input_tokens_details"`
	OutputTokens        count `json:"output_tokens"`
	OutputTokensDetails struct {
		ReasoningTokens count `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
	Ticks count      `json:"cost_in_usd_ticks"` // xAI: 10^-10 dollars
	Side  *sideTools `json:"server_side_tool_usage_details"`
	raw   json.RawMessage
}

func (u *usage) UnmarshalJSON(b []byte) error {
	type plain usage
	u.raw = hub.Compact(b)
	return json.Unmarshal(b, (*plain)(u))
}

// count is a number, nil if it is missing or implausible: counts are bounded so that sums
// cannot overflow.
type count struct{ n *int64 }

func (c *count) UnmarshalJSON(b []byte) error {
	if v, err := strconv.ParseFloat(string(b), 64); err == nil && v >= 0 && v < 1<<40 {
		n := int64(v)
		c.n = &n
	}
	return nil
}

// item is an item of an answer or of a conversation, of any type: its fields cover all
// the types.
type item struct {
	Type             string          `json:"type"`
	ID               string          `json:"id"`
	Status           string          `json:"status"`
	Role             string          `json:"role"`
	Phase            string          `json:"phase"`
	Content          json.RawMessage `json:"content"` // message: parts, or a string; reasoning: parts
	Summary          []summary       `json:"summary"`
	EncryptedContent *string         `json:"encrypted_content"`
	CallID           *string         `json:"call_id"`
	Name             string          `json:"name"`
	Namespace        string          `json:"namespace"`
	Arguments        json.RawMessage `json:"arguments"` // a string; of tool_search_call a value
	Input            string          `json:"input"`
	Caller           json.RawMessage `json:"caller"`
	Action           json.RawMessage `json:"action"`
	Operation        json.RawMessage `json:"operation"`
	Queries          json.RawMessage `json:"queries"`
	Results          json.RawMessage `json:"results"`
	Code             *string         `json:"code"`
	ContainerID      string          `json:"container_id"`
	Outputs          json.RawMessage `json:"outputs"`
	Result           *string         `json:"result"`
	Output           json.RawMessage `json:"output"`
	Error            json.RawMessage `json:"error"`
	ServerLabel      string          `json:"server_label"`
	Tools            json.RawMessage `json:"tools"`
	Environment      *environment    `json:"environment"`
	Execution        string          `json:"execution"`
	OutputFormat     string          `json:"output_format"`
	RequestID        string          `json:"approval_request_id"`
	Approve          *bool           `json:"approve"`
	Reason           string          `json:"reason"`
	SafetyChecks     json.RawMessage `json:"pending_safety_checks"`
	raw              json.RawMessage
}

type environment struct {
	Type string `json:"type"`
}

func (it *item) UnmarshalJSON(b []byte) error {
	type plain item
	it.raw = hub.Compact(b)
	return json.Unmarshal(b, (*plain)(it))
}

type summary struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// content is a part of a message or of a tool's output.
type content struct {
	Type        string            `json:"type"`
	Text        string            `json:"text"`
	Refusal     string            `json:"refusal"`
	Annotations []json.RawMessage `json:"annotations"`
	Logprobs    []json.RawMessage `json:"logprobs"`
	ImageURL    json.RawMessage   `json:"image_url"`
	Detail      string            `json:"detail"`
	FileID      string            `json:"file_id"`
	FileData    string            `json:"file_data"`
	FileURL     string            `json:"file_url"`
	Filename    string            `json:"filename"`
	InputAudio  *struct {
		Data   string `json:"data"`
		Format string `json:"format"`
	} `json:"input_audio"`
}

type annotation struct {
	Type     string `json:"type"`
	URL      string `json:"url"`
	Title    string `json:"title"`
	FileID   string `json:"file_id"`
	Filename string `json:"filename"`
}
