package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/cayhq/cay/workflow"
)

// mend lets Config.Repair repair the calls that cannot be made, once each, and writes
// the outcome to the stream. It returns all calls of the answer, whose message then
// has the calls as repaired.
func (l *loop) mend(ctx workflow.Context, a *answer, tools map[string]*Tool) ([]ToolCall, error) {
	calls := a.calls()
	var bad []*ToolCall
	var chunks []Chunk
	repaired := make(map[int]bool) // of bad
	for i := range calls {
		c := &calls[i]
		if c.Invalid == "" {
			continue
		}
		dynamic := tools[c.Name] == nil // as readers were told when its input began
		if l.config.Repair != nil {
			better, err := l.config.Repair(ctx, *c, errors.New(c.Invalid))
			if err != nil {
				return nil, err
			}
			if better != nil {
				c.Name, c.Input = better.Name, better.Input
				repaired[len(bad)] = true
			}
		}
		bad = append(bad, c)
		chunks = append(chunks, Chunk{Type: ChunkToolInputError, ToolCallID: c.ID, ToolName: c.Name, Dynamic: dynamic})
	}
	if len(bad) == 0 || len(repaired) == 0 && l.call.Quiet {
		return calls, nil
	}
	quiet := l.call.Quiet
	tried := make([]ToolCall, len(bad)) // as they are now: the step may be executed while they change
	for i, c := range bad {
		tried[i] = *c
	}
	checked, err := workflow.Do(ctx, StepInput, func(ctx context.Context) ([]ToolCall, error) {
		return check(ctx, slices.Clone(tried), chunks, repaired, tools, quiet)
	})
	if err != nil {
		return nil, err
	}
	for i, c := range bad {
		*c = checked[i]
		for j := range a.Message.Parts {
			if p := &a.Message.Parts[j]; c.Invalid == "" && p.Type == ToolCallPart && p.CallID == c.ID {
				p.ToolName, p.Input = c.Name, c.Input
			}
		}
	}
	return calls, nil
}

// check finds out, within a step, which calls can be made now, and writes the outcome
// to the stream.
func check(ctx context.Context, calls []ToolCall, chunks []Chunk, repaired map[int]bool, tools map[string]*Tool, quiet bool) ([]ToolCall, error) {
	seen := make([]Chunk, len(calls))
	for i := range calls {
		c := &calls[i]
		input, problem := readInput(string(c.Input))
		if repaired[i] {
			if problem == nil {
				problem = fits(tools, c.Name, input)
			}
			if c.Invalid = ""; problem != nil {
				c.Invalid = problem.Error()
			}
		}
		c.Input = input
		seen[i] = chunks[i]
		seen[i].Input = input
		if seen[i].ErrorText = c.Invalid; c.Invalid == "" {
			seen[i].Type = ChunkToolInputAvailable
		}
	}
	if quiet {
		return calls, nil
	}
	return calls, sent(workflow.Stream[Chunk](ctx, StreamName), seen...)
}

// executed is the outcome of the calls of an answer.
type executed struct {
	results []ToolResult // in the order of the calls
	pending []ToolCall
	asked   []Part // the questions about those that need an approval
}

// execute makes the calls, all at the same time.
func (l *loop) execute(ctx workflow.Context, calls []ToolCall, tools map[string]*Tool) (*executed, error) {
	var done executed
	var asked []ToolCall
	results := make([]*workflow.Future[ToolResult], len(calls))
	for i := range calls {
		c, t := calls[i], tools[calls[i].Name]
		switch {
		case c.ProviderExecuted:
		case c.Invalid != "":
			done.results = append(done.results, ToolResult{}) // see below
		case !t.local():
			done.pending = append(done.pending, c)
		default:
			asks, err := t.needsApproval(c)
			if err == nil && asks && l.config.Approvals.Mode == ApproveByMessage {
				asked = append(asked, c)
				done.pending = append(done.pending, c)
				continue
			}
			results[i] = workflow.Go(ctx, func(ctx workflow.Context) (ToolResult, error) {
				if err != nil {
					return l.tell(ctx, c, refused(err))
				}
				return l.make(ctx, t, c, asks)
			})
		}
	}
	done.results = nil
	if len(asked) > 0 {
		var err error
		if done.asked, err = l.question(ctx, asked); err != nil {
			return nil, err
		}
	}
	for i := range calls {
		switch {
		case results[i] != nil:
			r, err := results[i].Get(ctx)
			if err != nil {
				return nil, err
			}
			if r.Usage != nil {
				l.usage.Add(*r.Usage)
			}
			done.results = append(done.results, r)
		case calls[i].Invalid != "" && !calls[i].ProviderExecuted:
			done.results = append(done.results, ToolResult{
				CallID: calls[i].ID, Name: calls[i].Name,
				Output: Output{Type: OutputErrorText, Text: calls[i].Invalid},
			})
		}
	}
	return &done, nil
}

// needsApproval reports whether the call needs a person's approval.
func (t *Tool) needsApproval(c ToolCall) (bool, error) {
	if t.asks == nil {
		return false, nil
	}
	return t.asks(c.Input)
}

// make makes one call, after an approval if the call needs one. The errors are only
// those of ctx and of the stream: an error of the tool is a result for the model.
func (l *loop) make(ctx workflow.Context, t *Tool, c ToolCall, asks bool) (ToolResult, error) {
	if asks {
		a, err := l.wait(ctx, c)
		if err != nil {
			return ToolResult{}, err
		}
		if !a.Approved {
			return l.tell(ctx, c, denied(a.Reason))
		}
	}
	o, err := l.invoke(ctx, t, c)
	if err != nil {
		if ctx.Err() != nil {
			return ToolResult{}, ctx.Err()
		}
		used := o.Usage
		o = refused(err)
		o.Usage = used
	}
	return l.tell(ctx, c, o)
}

// invoke makes a call. The outcome has its Usage even if invoke returns an error.
func (l *loop) invoke(ctx workflow.Context, t *Tool, c ToolCall) (outcome, error) {
	span := l.span.ID
	if t.code != nil {
		by := calling{ToolCall: c, in: span}
		if t.agent && !t.quiet && (l.progress != nil || !l.call.Quiet) {
			by.progress = newProgress(c.ID, l.progress)
		}
		startedAt := ctx.Now()
		o, err := t.code(ctx, by)
		workflow.Emit(ctx, &ToolSpan{ParentID: span, CallID: c.ID, Tool: c.Name, StartedAt: startedAt, EndedAt: ctx.Now(), ErrorCode: errorCode(err)})
		return o, err
	}
	return workflow.Do(ctx, StepTool+t.spec.Name, func(ctx context.Context) (o outcome, err error) {
		ctx, done := traceTool(ctx, span, c)
		failed := errPanicked
		defer func() { done(failed) }()
		o, failed = t.step(context.WithValue(ctx, callKey{}, c), c.Input)
		return o, failed
	}, t.steps...)
}

// refused returns the outcome that tells the model of an error.
func refused(err error) outcome {
	return outcome{ForModel: &Output{Type: OutputErrorText, Text: words(err)}}
}

func denied(reason string) outcome {
	return outcome{ForModel: &Output{Type: OutputDenied, Text: reason}}
}

const maxWords = 16 << 10

// words returns the text of a tool's error.
func words(err error) string {
	var s *workflow.StepError
	if errors.As(err, &s) && s.Err != nil {
		err = s.Err
	}
	text := err.Error()
	var p *workflow.PanicError
	if errors.As(err, &p) {
		text = "the tool failed: " + p.Value
	}
	if len(text) > maxWords {
		text = fmt.Sprintf("%.*s [...]", maxWords, text)
	}
	return text
}

// maxShown bounds the part of an output that goes to the stream, in bytes.
const maxShown = 4 << 20

// tell writes the outcome of a call to the stream.
func (l *loop) tell(ctx workflow.Context, c ToolCall, o outcome) (ToolResult, error) {
	r := ToolResult{CallID: c.ID, Name: c.Name, Output: o.output(), Usage: o.Usage}
	if l.call.Quiet {
		return r, nil
	}
	value := o.Value
	if len(value) > maxShown {
		value, _ = json.Marshal(fmt.Sprintf("%d bytes, which are too many to be shown", len(value))) // a string
	}
	chunk, err := outputChunk(c.ID, &r.Output, value)
	if err != nil {
		return ToolResult{}, err
	}
	return r, write(ctx, StepOutput, chunk)
}
