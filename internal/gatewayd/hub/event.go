package hub

import (
	"encoding/json"
	"time"
)

// Event is a part of a streamed answer. Kind determines the fields in use.
//
// A stream begins with one Start and ends with one Finish, or with one Failure. In
// between, blocks (text, reasoning, tool input) start once, grow, and end once; they may
// overlap, and their IDs are unique in the stream. A ToolCallPart follows the end of the
// tool input with the same ID; a tool call may also come whole, without streamed input.
// See Checker.
type Event struct {
	Kind EventKind

	ID    string // of the block: Text*, Reasoning*, Input*
	Delta string // TextDelta, ReasoningDelta, InputDelta

	// Name, ProviderExecuted and Dynamic describe the tool: InputStart.
	Name             string
	ProviderExecuted bool
	Dynamic          bool

	Part *Part // Whole

	Warnings []Warning       // Start
	Response Response        // Metadata
	Finish   Finish          // Finished
	Usage    *Usage          // Finished
	Err      *Error          // Failure
	Raw      json.RawMessage // Raw: the provider's own event

	// Options are the provider's metadata of the block, delta or answer.
	Options Options
}

// EventKind is the kind of an Event.
type EventKind uint8

// The kinds of events.
const (
	Start EventKind = iota + 1
	Metadata
	TextStart
	TextDelta
	TextEnd
	ReasoningStart
	ReasoningDelta
	ReasoningEnd
	InputStart
	InputDelta
	InputEnd
	Whole // a complete part: a tool call or result, file, source, approval request, custom
	Finished
	Failure
	Raw
	Ping
)

// Response holds a provider's metadata of an answer.
type Response struct {
	ID      string
	Model   string
	Created time.Time // zero if unknown
}

// Finish is why a model stopped.
type Finish struct {
	Reason Reason
	Raw    string // the provider's own word
}

// Reason is the hub's reason why a model stopped.
type Reason string

// The reasons.
const (
	Stop          Reason = "stop"
	Length        Reason = "length"
	ToolCalls     Reason = "tool-calls"
	ContentFilter Reason = "content-filter"
	Failed        Reason = "error"
	OtherReason   Reason = "other"
)

// Usage counts tokens. A nil count is unknown.
//
// Input includes the whole prompt, cached or not: NoCache + CacheRead + CacheWrite.
// Output includes everything generated: Text + Reasoning.
type Usage struct {
	Input      *int64
	NoCache    *int64
	CacheRead  *int64
	CacheWrite *int64
	// CacheWrite1h is the part of CacheWrite that is cached for 1 hour.
	CacheWrite1h *int64

	Output    *int64
	Text      *int64
	Reasoning *int64

	// Searches is the number of web searches that the provider ran and charges for.
	Searches *int64
	// SearchTool is the tool that Searches counts, by the name under which it has a
	// price; empty stands for web_search.
	SearchTool string
	// Tools counts runs of other tools by the provider, by the names under which they
	// have prices: file_search, code_interpreter.
	Tools map[string]int64
	// Others is the usage of other models by provider-run tools, each with its Model. The
	// counts above exclude these tokens.
	Others []Usage
	// Model is the provider's name of the model that was used; empty means the requested
	// model.
	Model string
	// Cost is the provider's reported charge in US dollars, as a decimal number.
	Cost string
	// Tier is the service tier of the answer, in the provider's term.
	Tier string

	Raw json.RawMessage // in the provider's form
}

// Result is a whole answer.
type Result struct {
	Content  []Part
	Finish   Finish
	Usage    *Usage // nil if the provider sent none
	Warnings []Warning
	Response Response
	Options  Options
}

// N returns a pointer to n, for the counts of Usage.
func N(n int64) *int64 { return &n }

// Count returns *n, 0 for nil.
func Count(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}

// Fill computes missing counts from known ones: Input from its parts or NoCache from the
// rest, and the same for Output and Text.
func (u *Usage) Fill() {
	if u.Input == nil && u.NoCache != nil {
		u.Input = N(*u.NoCache + Count(u.CacheRead) + Count(u.CacheWrite))
	}
	if u.NoCache == nil && u.Input != nil {
		u.NoCache = N(max(0, *u.Input-Count(u.CacheRead)-Count(u.CacheWrite)))
	}
	if u.Output == nil && u.Text != nil {
		u.Output = N(*u.Text + Count(u.Reasoning))
	}
	if u.Text == nil && u.Output != nil && u.Reasoning != nil {
		u.Text = N(max(0, *u.Output-*u.Reasoning))
	}
}
