package agent

import (
	"context"
	"errors"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/workflow"
)

// none is the result type of steps without a result.
type none struct{}

// open explains the error of a stream that is closed: the run's stream cannot be
// reopened.
func open(err error) error {
	if errors.Is(err, &cay.Error{Code: cay.Conflict}) {
		return workflow.Fatal(cay.Errorf(cay.Conflict, "the stream %q of the run is closed, so nobody would see what the agent says: %w", StreamName, err).
			WithHint("set NoClose in the Calls before the last one, or Quiet in this one"))
	}
	return err
}

// sent sends chunks, and returns when they are stored.
func sent(stream *workflow.StreamWriter[Chunk], chunks ...Chunk) error {
	if err := stream.Send(chunks...); err != nil {
		return open(err)
	}
	return open(stream.Flush())
}

// write writes chunks in a step of its own. A crash may cause them to be written
// twice.
func write(ctx workflow.Context, step string, chunks ...Chunk) error {
	_, err := workflow.Do(ctx, step, func(ctx context.Context) (none, error) {
		return none{}, sent(workflow.Stream[Chunk](ctx, StreamName), chunks...)
	})
	return err
}

// near is how far back in the stream a step looks for chunks that it may have written
// before it was cut off. Other writers write less than that to the stream in the
// meantime.
const near = 64

// start begins the answer on the stream: once, however often the step is retried.
func (l *loop) start(ctx workflow.Context) error {
	if l.call.Quiet || l.call.NoStart {
		return nil
	}
	chunk := Chunk{Type: ChunkStart, MessageID: l.messageID}
	_, err := workflow.Do(ctx, StepStart, func(ctx context.Context) (none, error) {
		stream := workflow.Stream[Chunk](ctx, StreamName)
		items, err := stream.Last(near)
		if err != nil {
			return none{}, err
		}
		for i := len(items) - 1; i >= 0; i-- {
			switch c := items[i].Value; c.Type {
			case ChunkStart:
				if c.MessageID == chunk.MessageID {
					return none{}, nil
				}
			case ChunkFinish: // of an answer before: a program may use an id again
				i = 0
			}
		}
		return none{}, sent(stream, chunk)
	})
	return err
}

// finish ends the answer on the stream, and closes it: once.
func (l *loop) finish(ctx workflow.Context, r *Result) error {
	if l.call.Quiet || l.call.NoFinish && l.call.NoClose {
		return nil
	}
	var chunks []Chunk
	if !l.call.NoFinish {
		chunks = append(chunks, Chunk{Type: ChunkFinish, FinishReason: r.FinishReason})
	}
	return end(ctx, StepFinish, !l.call.NoClose, chunks...)
}

// end writes the last chunks of an answer, once, and closes the stream if it is to be
// closed.
func end(ctx workflow.Context, step string, closes bool, chunks ...Chunk) error {
	_, err := workflow.Do(ctx, step, func(ctx context.Context) (none, error) {
		stream := workflow.Stream[Chunk](ctx, StreamName)
		if closes {
			err := stream.End(chunks...)
			if errors.Is(err, &cay.Error{Code: cay.Conflict}) {
				err = nil // an earlier attempt has closed it
			}
			return none{}, err
		}
		items, err := stream.Last(near)
		if err != nil {
			return none{}, err
		}
		// An answer always has a chunk before its end, so the newest chunk of an
		// agent shows whether the end was written.
		for i := len(items) - 1; i >= 0; i-- {
			if t := items[i].Value.Type; !t.data() {
				if t == chunks[len(chunks)-1].Type {
					return none{}, nil
				}
				break
			}
		}
		return none{}, sent(stream, chunks...)
	})
	return err
}

// Close closes the run's stream StreamName, after Calls with NoClose; after a failure
// use Fail instead. Closing a closed stream does nothing.
func Close(ctx workflow.Context) error {
	_, err := workflow.Do(ctx, StepClose, func(ctx context.Context) (none, error) {
		return none{}, workflow.Stream[Chunk](ctx, StreamName).Close()
	})
	return err
}

// Fail tells the readers of the stream StreamName that there will be no answer, in
// words for everybody, and closes it: for workflows whose Calls have NoClose. Fail
// works even if ctx has ended.
func Fail(ctx workflow.Context, err error) error { return fail(ctx, &Config{}, err, true) }

func fail(ctx workflow.Context, c *Config, err error, finishes bool) error {
	chunks := []Chunk{{Type: ChunkError, ErrorText: errorText(c, err)}}
	reason := FinishError
	if errors.Is(err, workflow.ErrCancelled) && ctx.Err() != nil {
		chunks, reason = []Chunk{{Type: ChunkAbort, Reason: "The answer was stopped."}}, FinishOther
	}
	if finishes {
		// Clients that reconnect for the rest of an answer do so until they receive
		// this chunk.
		chunks = append(chunks, Chunk{Type: ChunkFinish, FinishReason: reason})
	}
	return end(workflow.WithoutCancel(ctx), StepFail, true, chunks...)
}

// errorText returns the text of an error that every reader may see.
func errorText(c *Config, err error) string {
	if c.ErrorText != nil {
		if text := c.ErrorText(err); text != "" {
			return text
		}
	}
	switch cay.CodeOf(err) {
	case cay.Unavailable:
		return "The model does not answer at the moment."
	case cay.DeadlineExceeded:
		return "The answer took too long."
	case cay.QuotaExceeded:
		return "The limit of what may be asked is reached."
	case cay.PermissionDenied:
		return "This is not allowed."
	case cay.TooLarge:
		return "That is too much at once."
	}
	return "The answer failed."
}
