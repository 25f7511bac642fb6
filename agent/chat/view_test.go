package chat

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/cayhq/cay/agent"
	"github.com/cayhq/cay/workflow"
)

// message is the message that a page builds from chunks. conformance/chat has the
// real pages.
type message struct {
	steps [][]string      // texts
	open  map[string]*int // text blocks: where they are in the last step
	tells int             // how often the page was told to read again
	ends  int             // how often it was finished
}

func (m *message) take(t *testing.T, chunk []byte) {
	t.Helper()
	var c agent.Chunk
	if err := json.Unmarshal(chunk, &c); err != nil {
		t.Fatalf("%s: %v", chunk, err)
	}
	last := len(m.steps) - 1
	switch c.Type {
	case agent.ChunkStartStep:
		m.steps = append(m.steps, nil)
	case agent.ChunkResetStep:
		m.steps[last], m.open = nil, nil
	case agent.ChunkTextStart:
		if m.open == nil {
			m.open = make(map[string]*int)
		}
		at := len(m.steps[last])
		m.open[c.ID] = &at
		m.steps[last] = append(m.steps[last], "")
	case agent.ChunkTextDelta:
		if m.open[c.ID] == nil {
			t.Fatalf("%s is of a text that has not begun", chunk)
		}
		m.steps[last][*m.open[c.ID]] += *c.Delta
	case "data-reset-step":
		m.tells++
	case agent.ChunkFinish:
		m.ends++
	}
}

// read gives the chunks from an index on to a message, in the form for a reader that
// connects when the first n chunks are on the stream.
func read(t *testing.T, m *message, chunks []string, n, from, to int, reset bool) {
	t.Helper()
	v := newView(int64(from), true, reset)
	for i := range n {
		v.known(int64(i), []byte(chunks[i]))
	}
	for i := from; i < to; i++ {
		m.take(t, v.next(int64(i), []byte(chunks[i])))
	}
	if n >= to && to == len(chunks) { // it has ended
		for _, c := range v.rest(workflow.StatusCompleted) {
			m.take(t, c)
		}
	}
}

// Wherever an answer is cut, and whenever its reader connects, the reader has the
// final answer in the end, or is told to read again, which gives the final answer.
func TestView_AnyCut(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	tells, resets := 0, 0
	for range 100 {
		chunks, clean := randomAnswer(r)
		want := new(message)
		for _, c := range clean {
			want.take(t, []byte(c))
		}
		for cut := 0; cut <= len(chunks); cut++ {
			known := r.IntN(max(cut, 1)) // when the reader came first
			for _, reset := range []bool{true, false} {
				got := new(message)
				read(t, got, chunks, known, 0, cut, reset)
				read(t, got, chunks, cut+r.IntN(len(chunks)-cut+1), cut, len(chunks), reset)
				if got.ends == 0 {
					read(t, got, chunks, len(chunks), len(chunks), len(chunks), reset)
				}
				if got.tells > 0 {
					if reset {
						t.Fatalf("who knows reset-step was given data")
					}
					tells++
					got = new(message)
					read(t, got, chunks, len(chunks), 0, len(chunks), false)
					if got.tells > 0 {
						t.Fatalf("who reads again is told to read again")
					}
				} else if reset {
					resets++
				}
				if !reflect.DeepEqual(got.steps, want.steps) || got.ends != 1 {
					t.Fatalf("reset %v, first at %d, cut at %d of\n%s\nthe reader has %q, finished %d times, want %q",
						reset, known, cut, strings.Join(chunks, "\n"), got.steps, got.ends, want.steps)
				}
			}
		}
	}
	if tells < 100 || resets < 100 {
		t.Errorf("too few readers saw an answer given again: %d, %d", tells, resets)
	}
}

// randomAnswer returns the chunks of a run whose steps are retried, and the chunks
// of the same run without retries.
func randomAnswer(r *rand.Rand) (chunks, clean []string) {
	add := func(c string) { chunks, clean = append(chunks, c), append(clean, c) }
	add(`{"type":"start","messageId":"a"}`)
	for step := range 1 + r.IntN(3) {
		begin := fmt.Sprintf(`{"type":"start-step","step":"s%d"}`, step)
		said := []string{begin}
		for block := range 1 + r.IntN(2) {
			said = append(said, fmt.Sprintf(`{"type":"text-start","id":"%d"}`, block))
			for range r.IntN(4) {
				said = append(said, fmt.Sprintf(`{"type":"text-delta","id":"%d","delta":"%d"}`, block, r.IntN(100)))
			}
			said = append(said, fmt.Sprintf(`{"type":"text-end","id":"%d"}`, block))
		}
		said = append(said, `{"type":"finish-step"}`)
		for range r.IntN(3) {
			chunks = append(chunks, said[:1+r.IntN(len(said))]...)
			if r.IntN(4) == 0 {
				chunks = append(chunks, `{"type":"error","errorText":"e"}`)
			}
		}
		for _, c := range said {
			add(c)
		}
	}
	if r.IntN(3) > 0 {
		add(`{"type":"finish"}`)
	} else {
		clean = append(clean, `{"type":"finish"}`)
	}
	return chunks, clean
}
