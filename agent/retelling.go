package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/workflow"
)

// retelling writes the answer of a retried attempt to ask a model. The text of the
// attempts that were cut off is on the stream already, and most readers cannot be made
// to forget it: as long as this attempt says the same, nothing is written, and where
// it continues further, only the new part is written. If this attempt says something
// else, all of its answer is written, after another start-step: see StreamName.
type retelling struct {
	write func(...Chunk) error
	begin Chunk
	said  []Chunk // on the stream, and not said again so far
	held  []Chunk // said again
}

// maxRetold is how many chunks an answer may have for a retry to continue it; after a
// longer answer the retry begins anew. StreamWriter.Last returns at most as many.
const maxRetold = 1000

// few is the number of chunks that shows whether an answer broke off.
const few = 16

// amid reports whether a stream ends in the middle of an answer, or just after one.
func amid(items []workflow.Item[Chunk]) bool {
	for i := len(items) - 1; i >= 0; i-- {
		switch t := items[i].Value.Type; {
		case t.data():
		case t == ChunkStart, t == ChunkToolOutput, t == ChunkToolOutputError, t == ChunkToolOutputDenied, t == ChunkToolInputError, t == ChunkFinish:
			return false
		default:
			return true
		}
	}
	return len(items) > 0
}

// retell begins the stream of an attempt. The attempt passes its chunks to send.
func retell(ctx context.Context) (send func(...Chunk) error, err error) {
	stream, info := workflow.Stream[Chunk](ctx, StreamName), workflow.StepInfo(ctx)
	write := func(chunks ...Chunk) error { return open(stream.Send(chunks...)) }
	begin := Chunk{Type: ChunkStartStep, Step: info.StepID}
	n := maxRetold
	if info.Attempt == 1 { // the first, unless the process died before it was recorded
		n = few
	}
	for {
		items, err := stream.Last(n)
		if err != nil && !errors.Is(err, &cay.Error{Code: cay.Invalid}) { // not all chunks are an agent's
			return nil, err
		}
		if said, ok := saidBy(info.StepID, items); ok {
			return (&retelling{write: write, begin: begin, said: said}).send, nil
		}
		if n == maxRetold || len(items) < n || !amid(items) {
			break
		}
		n = maxRetold
	}
	return write, write(begin)
}

// saidBy returns the chunks of a step at the end of a stream. ok reports that only
// chunks of the program's own are among them.
func saidBy(step string, items []workflow.Item[Chunk]) (said []Chunk, ok bool) {
	first := len(items) - 1
	for ; first >= 0 && items[first].Value.Type != ChunkStartStep; first-- {
	}
	if first < 0 || items[first].Value.Step != step {
		return nil, false
	}
	for _, item := range items[first+1:] {
		switch t := item.Value.Type; {
		case t.data():
		case t == ChunkStart, t == ChunkFinish, t == ChunkAbort, t == ChunkError, t == ChunkMessageMetadata:
			return nil, false // of another answer to the same stream
		default:
			said = append(said, item.Value)
		}
	}
	return said, true
}

func (r *retelling) send(chunks ...Chunk) error {
	for i, c := range chunks {
		if len(r.said) == 0 {
			r.held = nil
			return r.write(chunks[i:]...)
		}
		c = c.own()
		r.held = append(r.held, c)
		rest, same := r.again(c)
		var err error
		switch {
		case !same:
			all := append([]Chunk{r.begin}, r.held...)
			r.said, r.held = nil, nil
			err = r.write(all...)
		case rest != nil:
			err = r.write(*rest)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// again compares c with the next chunks of the earlier attempt, and removes the
// repeated part. It returns the part of c beyond the earlier attempt; same is false if
// c differs.
func (r *retelling) again(c Chunk) (rest *Chunk, same bool) {
	delta := c.text()
	if delta == nil || len(c.ProviderMetadata) > 0 {
		r.trim()
		if len(r.said) == 0 {
			return &c, true
		}
		same = equal(r.said[0], c)
		r.said = r.said[1:]
		return nil, same
	}
	left := *delta
	for left != "" {
		r.trim()
		if len(r.said) == 0 {
			c = c.own()
			*c.text() = left
			return &c, true
		}
		old := &r.said[0]
		if old.Type != c.Type || old.ID != c.ID || old.ToolCallID != c.ToolCallID || len(old.ProviderMetadata) > 0 {
			return nil, false
		}
		have := old.text()
		if tail, ok := strings.CutPrefix(*have, left); ok {
			*have = tail
			return nil, true
		}
		var ok bool
		if left, ok = strings.CutPrefix(left, *have); !ok {
			return nil, false
		}
		*have = ""
	}
	return nil, true
}

// trim drops chunks that have been repeated completely.
func (r *retelling) trim() {
	for len(r.said) > 0 {
		if t := r.said[0].text(); t == nil || *t != "" || len(r.said[0].ProviderMetadata) > 0 {
			return
		}
		r.said = r.said[1:]
	}
}

// text returns the text of a delta; nil for other chunks.
func (c *Chunk) text() *string {
	switch c.Type {
	case ChunkTextDelta, ChunkReasoningDelta:
		return c.Delta
	case ChunkToolInputDelta:
		return c.InputTextDelta
	}
	return nil
}

// own returns a copy of the chunk that does not share its text.
func (c Chunk) own() Chunk {
	for _, p := range []**string{&c.Delta, &c.InputTextDelta} {
		if *p != nil {
			text := **p
			*p = &text
		}
	}
	return c
}

func equal(a, b Chunk) bool {
	x, err := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err == nil && err2 == nil && bytes.Equal(x, y)
}
