package agent

import (
	"context"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/workflow"
)

// ask calls the model in a single step.
func (l *loop) ask(ctx workflow.Context, p *Preparation, offered []*Tool) (*answer, error) {
	call := &ModelCall{
		Model: p.Model, Prompt: prompt(p.Instructions, p.Messages), Settings: p.Settings,
		ResponseFormat: l.config.Output, ToolChoice: p.ToolChoice,
		Session: ctx.Info().RunID, App: l.config.Name,
	}
	tools := make(map[string]*Tool, len(offered))
	for _, t := range offered {
		call.Tools = append(call.Tools, t.spec)
		tools[t.spec.Name] = t
	}
	if len(call.Tools) == 0 {
		call.ToolChoice = nil
	}
	about := answer{Agent: l.config.Name, Number: p.StepNumber, Model: p.Model}
	quiet, shown := l.call.Quiet, l.progress
	known, span := l.messages, l.span.ID
	if shown != nil {
		shown.settled(l.steps)
	}
	a, err := workflow.Do(ctx, StepModel, func(ctx context.Context) (a *answer, err error) {
		ctx, done := traceModel(ctx, span, call)
		defer func() { done(a, err) }()
		return ask(ctx, call, newBuilder(about, tools, known), quiet, shown)
	}, workflow.MaxRetries(l.config.ModelRetries), workflow.Timeout(l.config.ModelTimeout), workflow.RetryPolicy{})
	if err != nil {
		return nil, err
	}
	if shown != nil {
		shown.says(&a.Message, nil, true)
	}
	return a, nil
}

// ask calls the model, within a step, and writes the answer, or the progress of the
// agent, to the stream.
func ask(ctx context.Context, call *ModelCall, b *builder, quiet bool, shown *progress) (*answer, error) {
	send := func(...Chunk) error { return nil }
	if !quiet {
		var err error
		if send, err = retell(ctx); err != nil {
			return nil, err
		}
	}
	tell := func(bool) error { return nil }
	if shown != nil {
		stream := workflow.Stream[Chunk](ctx, StreamName)
		t := &teller{progress: shown, send: func(chunks ...Chunk) error { return open(stream.Send(chunks...)) }}
		tell = func(last bool) error { return t.tell(b, last) }
	}
	err := modelsOf(ctx).Stream(ctx, call, func(p *StreamPart) error {
		chunks, err := b.take(p)
		if err == nil && len(chunks) > 0 {
			err = send(chunks...)
		}
		if err == nil {
			err = tell(p.Type == StreamFinish)
		}
		return err
	})
	if err == nil && !b.ended {
		err = cay.Errorf(cay.Unavailable, "the model's answer ended without saying how")
	}
	if err != nil {
		return nil, again(err)
	}
	if f := call.ResponseFormat; f != nil && f.Type == "json" {
		if err := fitOutput(f, b.Message.Text()); err != nil {
			b.Unfit = err.Error()
		}
	}
	return &b.answer, send(Chunk{Type: ChunkFinishStep})
}
