package gemini

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// generated is a whole answer, or an event of a stream, which has the same form.
type generated struct {
	Candidates     []candidate     `json:"candidates"`
	PromptFeedback json.RawMessage `json:"promptFeedback"`
	UsageMetadata  *usageMetadata  `json:"usageMetadata"`
	ModelVersion   string          `json:"modelVersion"`
	ResponseID     string          `json:"responseId"`
	CreateTime     time.Time       `json:"createTime"`
	Error          json.RawMessage `json:"error"`
}

type candidate struct {
	Content struct {
		Parts []part `json:"parts"`
	} `json:"content"`
	FinishReason       string          `json:"finishReason"`
	FinishMessage      string          `json:"finishMessage"`
	GroundingMetadata  json.RawMessage `json:"groundingMetadata"`
	URLContextMetadata json.RawMessage `json:"urlContextMetadata"`
	SafetyRatings      json.RawMessage `json:"safetyRatings"`
	CitationMetadata   json.RawMessage `json:"citationMetadata"`
}

type usageMetadata struct {
	Prompt     count  `json:"promptTokenCount"`
	ToolUse    count  `json:"toolUsePromptTokenCount"`
	Cached     count  `json:"cachedContentTokenCount"`
	Candidates count  `json:"candidatesTokenCount"`
	Thoughts   count  `json:"thoughtsTokenCount"`
	Traffic    string `json:"trafficType"`
	Tier       string `json:"serviceTier"`
	raw        json.RawMessage
}

func (u *usageMetadata) UnmarshalJSON(b []byte) error {
	type plain usageMetadata
	u.raw = hub.Compact(b)
	return json.Unmarshal(b, (*plain)(u))
}

// count is a number of tokens, nil if it is missing or implausible: counts are bounded so
// that sums cannot overflow.
type count struct{ n *int64 }

func (c *count) UnmarshalJSON(b []byte) error {
	if v, err := strconv.ParseFloat(string(b), 64); err == nil && v >= 0 && v < 1<<40 {
		n := int64(v)
		c.n = &n
	}
	return nil
}

// counts reports whether any count is present; intermediate events of Vertex have none.
func (u *usageMetadata) counts() bool {
	return u.Prompt.n != nil || u.Candidates.n != nil || u.Thoughts.n != nil
}

type part struct {
	Text           *string       `json:"text"`
	Thought        bool          `json:"thought"`
	Signature      string        `json:"thoughtSignature"`
	InlineData     *inlineData   `json:"inlineData"`
	FileData       *fileData     `json:"fileData"`
	FunctionCall   *functionCall `json:"functionCall"`
	ExecutableCode *code         `json:"executableCode"`
	CodeExecution  *codeResult   `json:"codeExecutionResult"`
	raw            json.RawMessage
}

func (p *part) UnmarshalJSON(b []byte) error {
	type plain part
	if err := json.Unmarshal(b, (*plain)(p)); err != nil {
		return err
	}
	if p.Text == nil && p.InlineData == nil && p.FileData == nil && p.FunctionCall == nil && p.ExecutableCode == nil && p.CodeExecution == nil {
		p.raw = hub.Compact(b)
	}
	return nil
}

type inlineData struct {
	MimeType string `json:"mimeType"`
	Data     []byte `json:"data"`
}

type fileData struct {
	MimeType string `json:"mimeType"`
	FileURI  string `json:"fileUri"`
}

type functionCall struct {
	ID           string          `json:"id"`
	Name         string          `json:"name"`
	Args         json.RawMessage `json:"args"`
	PartialArgs  []partialArg    `json:"partialArgs"`
	WillContinue bool            `json:"willContinue"`
}

type code struct {
	ID       string `json:"id"`
	Language string `json:"language"`
	Code     string `json:"code"`
}

type codeResult struct {
	ID      string `json:"id"`
	Outcome string `json:"outcome"`
	Output  string `json:"output"`
}

type object = map[string]any
