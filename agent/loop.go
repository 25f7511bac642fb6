package agent

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/workflow"
)

const (
	defaultMaxSteps     = 20
	defaultModelTimeout = 10 * time.Minute
	defaultModelRetries = 3
)

// Stream answers a Call, and writes the model's answer to the run's stream StreamName
// as it arrives.
//
// Errors: invalid for a Call that is wrong or an answer that does not fit Output;
// ErrCancelled; deadline_exceeded, which is also ErrTimeout; permission_denied for an
// approval of a question that was not asked; a *workflow.StepError if the call of the
// model failed, with the code of the error of Models; and the errors of the functions
// of Config. Before Stream returns an error, it writes a message about the failure,
// in words for every reader, to the stream and closes it. With NoClose it does not:
// call Fail then.
func (a *Agent) Stream(ctx workflow.Context, call Call) (*Result, error) {
	r, _, err := a.answer(ctx, call, nil)
	return r, err
}

// Generate is Stream without writing to the stream, as for a Call that is Quiet.
func (a *Agent) Generate(ctx workflow.Context, call Call) (*Result, error) {
	call.Quiet = true
	r, _, err := a.answer(ctx, call, nil)
	return r, err
}

// answer answers a Call. It returns the usage even if the Call fails. by is the tool
// call that the agent executes; nil if the agent is not called as a tool.
func (a *Agent) answer(ctx workflow.Context, call Call, by *calling) (*Result, Usage, error) {
	l, err := a.newLoop(ctx, call)
	var r *Result
	if by != nil {
		l.progress, l.span.ParentID, l.span.ParentCall = by.progress, by.in, by.ID
	}
	if err == nil {
		r, err = l.bounded(ctx, by == nil)
	}
	l.ended(ctx, r, err)
	if err == nil {
		return r, l.usage, nil
	}
	if call.Quiet || call.NoClose {
		return nil, l.usage, err
	}
	if failing := fail(ctx, &a.config, err, !call.NoFinish); failing != nil {
		err = errors.Join(err, failing)
	}
	return nil, l.usage, err
}

// loop is a Call in progress.
type loop struct {
	agent  *Agent
	config Config // with what the Call has instead
	call   Call

	messageID string
	messages  []Message // the conversation so far
	added     int       // how many messages this Call has added
	steps     []StepResult
	usage     Usage     // including agents called as tools
	progress  *progress // if the agent is a tool that people see at work; else nil
	span      Span
}

func (a *Agent) newLoop(ctx workflow.Context, call Call) (*loop, error) {
	l := &loop{agent: a, config: a.config, call: call, messageID: call.MessageID}
	l.span.Agent, l.span.StartedAt = a.config.Name, ctx.Now()
	c := &l.config
	if call.Model != "" {
		c.Model = call.Model
	}
	if call.Instructions != "" {
		c.Instructions = call.Instructions
	}
	if call.Settings != nil {
		c.Settings = *call.Settings
	}
	if call.ToolChoice != nil {
		c.ToolChoice = call.ToolChoice
	}
	if call.MaxSteps != 0 {
		c.MaxSteps = call.MaxSteps
	}
	if c.MaxSteps == 0 {
		c.MaxSteps = defaultMaxSteps
	}
	if call.StopWhen != nil {
		c.StopWhen = call.StopWhen
	}
	if call.Timeout != 0 {
		c.Timeout = call.Timeout
	}
	if c.ModelTimeout == 0 {
		c.ModelTimeout = defaultModelTimeout
	}
	switch {
	case c.ModelRetries == 0:
		c.ModelRetries = defaultModelRetries
	case c.ModelRetries < 0:
		c.ModelRetries = 0
	}
	if l.messageID == "" {
		l.messageID = "msg_" + ctx.NewID()
	}
	l.span.ID, l.span.Model = fmt.Sprint(l.messageID, " ", l.span.StartedAt.UnixMilli()), c.Model
	var err error
	l.messages, err = call.conversation()
	return l, err
}

// bounded executes run within the Call's timeout, with the run's attributes.
func (l *loop) bounded(ctx workflow.Context, first bool) (*Result, error) {
	limited := ctx
	if d := l.config.Timeout; d > 0 {
		var cancel workflow.CancelFunc
		limited, cancel = workflow.WithTimeout(ctx, d)
		defer cancel()
	}
	if first {
		if err := l.name(limited); err != nil {
			return nil, err
		}
	}
	r, err := l.run(limited)
	if first {
		if failing := total(ctx); failing != nil {
			return nil, errors.Join(err, failing)
		}
	}
	if err != nil {
		if ctx.Err() == nil && errors.Is(limited.Err(), workflow.ErrTimeout) {
			err = cay.Errorf(cay.DeadlineExceeded, "the agent %s took longer than its timeout of %s: %w", l.config.Name, l.config.Timeout, workflow.ErrTimeout)
		}
		return nil, err
	}
	return r, l.finish(ctx, r)
}

// name writes the agent and the model into the run's attributes.
func (l *loop) name(ctx workflow.Context) error {
	have := ctx.Info().Attributes
	if have[AttributeAgent] == l.config.Name && have[AttributeModel] == l.config.Model {
		return nil
	}
	const most = 4096 // of an attribute
	return workflow.SetAttributes(ctx, map[string]string{
		AttributeAgent: l.config.Name[:min(len(l.config.Name), most)], AttributeModel: l.config.Model[:min(len(l.config.Model), most)],
	})
}

// run executes the steps.
func (l *loop) run(ctx workflow.Context) (*Result, error) {
	if err := l.start(ctx); err != nil {
		return nil, err
	}
	if err := l.settle(ctx); err != nil {
		return nil, err
	}
	mended := false // an answer that did not fit was asked for again
	for {
		t, err := l.turn(ctx)
		if err != nil {
			return nil, err
		}
		r := l.result(t)
		if t.final && l.config.Output != nil && l.config.Output.Type == "json" {
			if t.unfit != "" {
				if mended {
					return nil, workflow.Fatal(cay.Errorf(cay.Invalid, "the answer of the agent %s does not fit what was asked for: %s", l.config.Name, t.unfit))
				}
				mended = true
				l.add(UserMessage(mendOutput(t.unfit)))
				continue
			}
			if r.Output, err = outputIn(t.step.Text); err != nil {
				return nil, err
			}
		}
		if !t.final && len(t.pending) == 0 && !l.stops() {
			continue
		}
		if l.config.OnEnd != nil {
			if err := l.config.OnEnd(ctx, r); err != nil {
				return nil, err
			}
		}
		return r, nil
	}
}

// stops reports whether the loop ends although the model has called tools.
func (l *loop) stops() bool {
	if l.config.MaxSteps > 0 && len(l.steps) >= l.config.MaxSteps {
		return true
	}
	return slices.ContainsFunc(l.config.StopWhen, func(stop StopCondition) bool { return stop(slices.Clone(l.steps)) })
}

func (l *loop) add(m Message) {
	l.messages = append(l.messages, m)
	l.added++
}

// result returns the Result of a Call that ends with the turn t.
func (l *loop) result(t *turn) *Result {
	return &Result{
		Text: t.step.Text, FinishReason: t.step.FinishReason,
		Messages: slices.Clone(l.messages), NewMessages: l.added, Steps: slices.Clone(l.steps),
		Usage: l.usage, Pending: t.pending,
	}
}

// turn is one call of the model with the results of its tools.
type turn struct {
	step StepResult
	// final says that no calls of the model are left to be made.
	final   bool
	pending []ToolCall
	unfit   string // why the text is not the output that was asked for
}

// turn calls the model and makes the model's tool calls.
func (l *loop) turn(ctx workflow.Context) (*turn, error) {
	if err := l.compact(ctx); err != nil {
		return nil, err
	}
	p, offered, err := l.prepare(ctx)
	if err != nil {
		return nil, err
	}
	a, err := l.ask(ctx, p, offered)
	if err != nil {
		return nil, err
	}
	l.usage.Add(a.Usage)
	spend(ctx, a.Usage)
	tools := make(map[string]*Tool, len(offered))
	for _, t := range offered {
		tools[t.spec.Name] = t
	}
	calls, err := l.mend(ctx, a, tools)
	if err != nil {
		return nil, err
	}
	done, err := l.execute(ctx, calls, tools)
	if err != nil {
		return nil, err
	}
	said := a.Message
	said.Parts = append(slices.Clip(said.Parts), done.asked...)
	if len(said.Parts) > 0 {
		l.add(said)
	}
	if len(done.results) > 0 {
		l.add(resultMessage(done.results))
	}
	t := &turn{
		step: StepResult{
			Number: a.Number, Model: a.Model, Text: a.Message.Text(), Reasoning: a.reasoning(), FinishReason: a.FinishReason,
			ToolCalls: calls, ToolResults: append(a.results(), done.results...), Usage: a.Usage,
			GenerationID: a.GenerationID, Warnings: a.Warnings, Sources: a.Sources,
		},
		final: len(done.results) == 0 && len(done.pending) == 0, pending: done.pending, unfit: a.Unfit,
	}
	if pending := a.approvals(); len(pending) > 0 {
		t.pending, t.final = append(pending, t.pending...), false
	}
	l.steps = append(l.steps, t.step)
	if l.config.OnStepEnd != nil {
		s := t.step
		if err := l.config.OnStepEnd(ctx, &s); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// resultMessage returns the message that gives the model the results of its calls.
func resultMessage(results []ToolResult) Message {
	m := Message{Role: FromTool}
	for i := range results {
		r := &results[i]
		m.Parts = append(m.Parts, Part{Type: ToolResultPart, CallID: r.CallID, ToolName: r.Name, Output: &r.Output})
	}
	return m
}

// compact replaces the conversation if it has become too long.
func (l *loop) compact(ctx workflow.Context) error {
	if l.config.Compact == nil || l.config.CompactAbove <= 0 {
		return nil
	}
	tokens := size(l.messages) / 4
	if n := len(l.steps); n > 0 && l.steps[n-1].Usage.Input > 0 {
		tokens = l.steps[n-1].Usage.Input + l.steps[n-1].Usage.Output
	}
	if tokens <= l.config.CompactAbove {
		return nil
	}
	shorter, err := l.config.Compact(ctx, slices.Clone(l.messages))
	if err != nil {
		return err
	}
	if len(shorter) == 0 {
		return cay.Errorf(cay.Invalid, "Compact of the agent %s has returned no messages", l.config.Name)
	}
	for i := range shorter {
		if err := shorter[i].check(); err != nil {
			return cay.Errorf(cay.Invalid, "Compact of the agent %s: message %d: %w", l.config.Name, i, err)
		}
	}
	l.messages, l.added = slices.Clone(shorter), 0
	return nil
}

// size returns the approximate size of a conversation in bytes.
func size(messages []Message) (n int64) {
	eachPart(messages, func(_ *Message, p *Part) {
		n += int64(len(p.Text) + len(p.Input))
		if o := p.Output; o != nil {
			n += int64(len(o.Text) + len(o.JSON))
			for i := range o.Parts {
				n += int64(len(o.Parts[i].Text))
			}
		}
	})
	return n
}

// prepare returns the next call of the model, and the model's tools.
func (l *loop) prepare(ctx workflow.Context) (*Preparation, []*Tool, error) {
	c := &l.config
	p := &Preparation{
		StepNumber: len(l.steps), Steps: slices.Clone(l.steps),
		Model: c.Model, Instructions: c.Instructions, Messages: slices.Clone(l.messages),
		Settings: c.Settings, ToolChoice: c.ToolChoice, ActiveTools: l.call.ActiveTools,
	}
	p.Settings.ProviderOptions = maps.Clone(p.Settings.ProviderOptions)
	if c.Prepare != nil {
		if err := c.Prepare(ctx, p); err != nil {
			return nil, nil, err
		}
	}
	if p.Model == "" {
		return nil, nil, cay.Errorf(cay.Invalid, "the agent %s has no model, nor has the Call", c.Name)
	}
	if len(p.Messages) == 0 {
		return nil, nil, cay.Errorf(cay.Invalid, "Prepare of the agent %s has left no messages", c.Name)
	}
	for i := range p.Messages {
		if err := p.Messages[i].check(); err != nil {
			return nil, nil, cay.Errorf(cay.Invalid, "Prepare of the agent %s: message %d: %w", c.Name, i, err)
		}
	}
	for _, name := range p.ActiveTools {
		if l.agent.tools[name] == nil {
			return nil, nil, cay.Errorf(cay.Invalid, "ActiveTools has %.64q, which is no tool of the agent %s", name, c.Name)
		}
	}
	var offered []*Tool
	for i := range c.Tools {
		if t := &c.Tools[i]; p.ActiveTools == nil || slices.Contains(p.ActiveTools, t.spec.Name) {
			offered = append(offered, t)
		}
	}
	return p, offered, nil
}
