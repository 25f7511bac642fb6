package agent

import (
	"encoding/json"
	"time"

	"github.com/cayhq/cay/workflow"
)

// Config describes an agent. The zero value of each field but Model is sensible.
type Config struct {
	// Name names the agent in timelines, and its workflow.
	Name string
	// Model is the model's name at the gateway: provider/model, or an alias.
	Model        string
	Instructions string
	Tools        []Tool
	ToolChoice   *ToolChoice
	Settings     Settings

	// MaxSteps bounds the calls of the model in one Call; 0 means 20, and a negative
	// number means that only StopWhen ends the loop.
	MaxSteps int
	// StopWhen conditions are checked after the results of tools are in; the first that
	// returns true ends the loop.
	StopWhen []StopCondition
	// Timeout bounds one Call; 0 means none. ModelTimeout bounds one call of the model
	// (default 10 minutes), ModelRetries is how often a call is retried after a
	// temporary failure (default 3; negative: never).
	Timeout      time.Duration
	ModelTimeout time.Duration
	ModelRetries int

	// Prepare may change the next call of the model: model, instructions, messages,
	// tools, settings. Like all functions of a Config it is workflow code.
	Prepare func(ctx workflow.Context, p *Preparation) error
	// Compact is called before each call of the model whose conversation is longer than
	// CompactAbove tokens, and returns the conversation to go on with. The length is
	// counted by the usage of the call before; before the first call, 4 bytes of text
	// count as one token.
	Compact      func(ctx workflow.Context, messages []Message) ([]Message, error)
	CompactAbove int64
	// Repair may mend a call of a tool that does not exist, or whose input does not fit
	// the schema; nil, nil gives up. The model is told why a call could not be made if
	// Repair does not mend it.
	Repair func(ctx workflow.Context, call ToolCall, problem error) (*ToolCall, error)
	// Approvals says how people are asked for approval of tool calls.
	Approvals Approvals
	// Output is the form of the final answer; nil means text. See OutputOf.
	Output *ResponseFormat

	// OnStepEnd is called when the results of the tools of a step are in, OnEnd before
	// the stream is closed. An error of either ends the Call.
	OnStepEnd func(ctx workflow.Context, s *StepResult) error
	OnEnd     func(ctx workflow.Context, r *Result) error
	// ErrorText returns the text on the stream for an error that ends a Call; nil means
	// a sentence for the error's code, because the error's own text may not be meant for
	// every reader.
	ErrorText func(err error) string
}

// ApprovalMode is how an agent waits for an approval.
type ApprovalMode string

// The modes.
const (
	// ApproveByHook makes the run wait at a hook for each call. The hook's token is in
	// the run's list of hooks; the inspector, cay workflow resume and Approve resume it.
	ApproveByHook ApprovalMode = "hook"
	// ApproveByMessage makes the Call end with the question; the next Call has the
	// answer in its messages, as chat pages send it.
	ApproveByMessage ApprovalMode = "message"
)

// Approvals says how people are asked for approval.
type Approvals struct {
	Mode ApprovalMode // empty means hook
	// Timeout is how long the agent waits for an answer; then the call is denied, or,
	// with ApproveByMessage, the answer refused. 0 means for ever.
	Timeout time.Duration
	// SecretEnv names the environment variable with the secret (at least 32 bytes) for
	// signing questions, so that an answer to a question that was never asked, or that
	// had another input, is refused. It is required for ApproveByMessage, where the
	// question travels through the client; for hooks see RequireSignature. An agent does
	// not remember which questions were answered: the program that starts the runs has
	// to. See Answers, and Call.Conversation.
	SecretEnv string
	// RequireSignature makes the agent accept answers at hooks only if they are signed
	// with the secret in SecretEnv: see ApprovalQuestion.Sign. Without RequireSignature
	// everyone who may resume hooks of the run may approve, as people do in the
	// inspector, and only an answer with a wrong signature is refused.
	RequireSignature bool
}

// Call is one use of an agent. Exactly one of Prompt and Messages is set. It is the
// input of Agent.Workflow.
type Call struct {
	Prompt   string    `json:"prompt,omitempty"`
	Messages []Message `json:"messages,omitempty"`

	// These fields override the fields of the same names in Config.
	Model        string          `json:"model,omitempty"`
	Instructions string          `json:"instructions,omitempty"`
	Settings     *Settings       `json:"settings,omitempty"`
	ToolChoice   *ToolChoice     `json:"tool_choice,omitempty"`
	ActiveTools  []string        `json:"active_tools,omitempty"` // nil means all
	MaxSteps     int             `json:"max_steps,omitempty"`
	StopWhen     []StopCondition `json:"-"`
	Timeout      time.Duration   `json:"timeout,omitempty"` // in JSON, nanoseconds

	// Conversation is the id of the conversation that the Call belongs to: answers to
	// questions that were signed in another conversation are refused (ApproveByMessage).
	Conversation string `json:"conversation,omitempty"`
	// MessageID is the id of the answer on the stream; empty means an id made from the
	// run's id.
	MessageID string `json:"message_id,omitempty"`
	// Quiet makes the Call write nothing to the stream. NoStart and NoFinish leave out
	// the chunks start and finish, for several calls that write one answer; NoClose
	// leaves the stream open: see Close.
	Quiet    bool `json:"quiet,omitempty"`
	NoStart  bool `json:"no_start,omitempty"`
	NoFinish bool `json:"no_finish,omitempty"`
	NoClose  bool `json:"no_close,omitempty"`
}

// Result is the result of a Call. It can be a workflow's result.
type Result struct {
	Text         string          `json:"text"`             // of the last step
	Output       json.RawMessage `json:"output,omitempty"` // if one was asked for; it fits the schema
	FinishReason FinishReason    `json:"finish_reason"`
	// Messages is the whole conversation, ready for the next Call. NewMessages counts
	// messages that this Call has added, since the last Compact if Compact was called.
	Messages    []Message    `json:"messages"`
	NewMessages int          `json:"new"`
	Steps       []StepResult `json:"steps"`
	Usage       Usage        `json:"usage"`
	// Pending are calls that the agent cannot make itself: calls of tools that the
	// client executes, and calls that need an approval (ApproveByMessage).
	Pending []ToolCall `json:"pending,omitempty"`
}

// StepResult is one call of the model with the results of its tools.
type StepResult struct {
	Number       int          `json:"number"` // from 0
	Model        string       `json:"model"`
	Text         string       `json:"text"`
	Reasoning    string       `json:"reasoning,omitempty"`
	FinishReason FinishReason `json:"finish_reason"`
	ToolCalls    []ToolCall   `json:"tool_calls,omitempty"`
	ToolResults  []ToolResult `json:"tool_results,omitempty"`
	Usage        Usage        `json:"usage"`
	// GenerationID is the gateway's id of the call, as in cay gateway requests.
	GenerationID string   `json:"generation_id,omitempty"`
	Warnings     []string `json:"warnings,omitempty"`
	Sources      []Source `json:"sources,omitempty"`
}

// ToolCall is a model's call of a tool.
type ToolCall struct {
	ID               string          `json:"id"`
	Name             string          `json:"name"`
	Input            json.RawMessage `json:"input"`
	ProviderExecuted bool            `json:"by_provider,omitempty"`
	// Invalid is why the call cannot be made: the tool does not exist, or the input does
	// not fit the tool's schema.
	Invalid string `json:"invalid,omitempty"`
}

// ToolResult is the result of a ToolCall.
type ToolResult struct {
	CallID string `json:"call_id"`
	Name   string `json:"name"`
	Output Output `json:"output"`
	// Usage is the usage of the agent if the tool is an agent; Result.Usage includes it.
	Usage *Usage `json:"usage,omitempty"`
}

// StopCondition reports whether the loop ends after these steps.
type StopCondition func(steps []StepResult) bool

// Preparation is the next call of the model, which Config.Prepare may change.
type Preparation struct {
	StepNumber int
	Steps      []StepResult // before it

	Model        string
	Instructions string
	Messages     []Message
	Settings     Settings
	ToolChoice   *ToolChoice
	ActiveTools  []string
}
