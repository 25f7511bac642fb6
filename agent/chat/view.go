package chat

import (
	"bytes"
	"encoding/json"

	"github.com/cayhq/cay/agent"
	"github.com/cayhq/cay/workflow"
)

// The replacements of chunks that a reader must not get. Clients of AI SDK 5 to 7 pass
// transient data to the page's onData, and forget it otherwise.
var (
	chunkSkip      = []byte(`{"type":"data-skip","data":null,"transient":true}`)
	chunkTell      = []byte(`{"type":"data-reset-step","data":null,"transient":true}`)
	chunkReset     = []byte(`{"type":"reset-step"}`)
	chunkStartStep = []byte(`{"type":"start-step"}`)
	chunkFinish    = []byte(`{"type":"finish"}`)
	chunkAbort     = []byte(`{"type":"abort","reason":"stopped"}`)
	chunkDone      = []byte("[DONE]") // ends a stream; not a chunk
	chunkFailed    = []byte(`{"type":"error","errorText":"The answer could not be finished."}`)
)

// head has the members of a chunk that a view reads.
type head struct {
	Type   agent.ChunkType `json:"type"`
	ID     string          `json:"id"`
	CallID string          `json:"toolCallId"`
	Step   string          `json:"step"`
}

func headOf(chunk []byte) (head, bool) {
	var h head
	ok := json.Unmarshal(chunk, &h) == nil && h.Type != ""
	return h, ok
}

// span is a range of chunks: begin is included, end is not.
type span struct{ begin, end int64 }

func (s span) has(i int64) bool { return s.begin <= i && i < s.end }

// view is a stream as one reader gets it. Each chunk of the stream becomes a chunk at
// the same index, and the text of the failed attempts of a retried step is replaced
// (agent.StreamName). The caller first calls known with the chunks that are on the
// stream already, from the first one on, and then next with the chunks that the reader
// gets.
type view struct {
	reset bool // the reader knows the chunk reset-step
	from  int64
	// resumes says that the reader has received all chunks before from; otherwise it
	// has none.
	resumes bool

	starts map[string]int64 // where steps began, by id
	dead   []span           // chunks known to count no more
	ends   map[agent.ChunkType]int64
	shown  int64           // the last chunk that the reader has unchanged; -1: none
	broken map[string]bool // parts whose beginning the reader does not have
}

func newView(from int64, resumes, reset bool) *view {
	v := &view{
		reset: reset, from: from, resumes: resumes, shown: -1,
		starts: make(map[string]int64), ends: make(map[agent.ChunkType]int64), broken: make(map[string]bool),
	}
	if resumes {
		v.shown = from - 1
	}
	return v
}

// known records a chunk that was on the stream before the reader.
func (v *view) known(i int64, chunk []byte) {
	h, ok := headOf(chunk)
	if !ok {
		return
	}
	if first, again := v.note(i, h); again {
		if n := len(v.dead); n > 0 && v.dead[n-1].begin == first+1 {
			v.dead[n-1].end = i // once more
		} else {
			v.dead = append(v.dead, span{first + 1, i})
		}
	}
	if i < v.from && !v.resumes {
		part, begins, ends := partOf(h)
		switch {
		case part == "":
		case begins:
			v.broken[part] = true
		case ends:
			delete(v.broken, part)
		}
	}
}

// note records where steps begin and answers end. It reports whether a step begins
// again, and where it began first.
func (v *view) note(i int64, h head) (first int64, again bool) {
	switch h.Type {
	case agent.ChunkFinish, agent.ChunkAbort, agent.ChunkError:
		if _, ok := v.ends[h.Type]; !ok {
			v.ends[h.Type] = i
		}
	case agent.ChunkStartStep:
		if h.Step == "" {
			return 0, false
		}
		first, again = v.starts[h.Step]
		again = again && first < i
		if !again {
			v.starts[h.Step] = i
			return 0, false
		}
		for typ, at := range v.ends {
			if first < at && at < i {
				delete(v.ends, typ)
			}
		}
	}
	return first, again
}

// partOf returns the part of a message that a chunk belongs to, and whether the chunk
// begins or ends the part; "" if the chunk belongs to no part.
func partOf(h head) (part string, begins, ends bool) {
	switch h.Type {
	case agent.ChunkTextStart, agent.ChunkTextDelta, agent.ChunkTextEnd:
		return "text " + h.ID, h.Type == agent.ChunkTextStart, h.Type == agent.ChunkTextEnd
	case agent.ChunkReasoningStart, agent.ChunkReasoningDelta, agent.ChunkReasoningEnd:
		return "reasoning " + h.ID, h.Type == agent.ChunkReasoningStart, h.Type == agent.ChunkReasoningEnd
	case agent.ChunkToolInputStart, agent.ChunkToolInputAvailable, agent.ChunkToolInputError:
		return "tool " + h.CallID, true, false
	case agent.ChunkToolInputDelta, agent.ChunkToolOutput, agent.ChunkToolOutputError,
		agent.ChunkToolOutputDenied, agent.ChunkApprovalRequest:
		return "tool " + h.CallID, false, false
	}
	return "", false, false
}

// next returns the reader's chunk for a chunk of the stream. Chunks come in order,
// from v.from on.
func (v *view) next(i int64, chunk []byte) []byte {
	h, ok := headOf(chunk)
	if !ok {
		return chunkSkip
	}
	first, again := v.note(i, h)
	for _, s := range v.dead {
		if s.has(i) {
			return chunkSkip
		}
	}
	if again {
		switch {
		case v.shown > first:
			v.shown = i
			if v.reset {
				return chunkReset
			}
			return chunkTell
		case first < v.from && !v.resumes && v.shown < v.from:
			v.shown = i
			return chunkStartStep
		}
		return chunkSkip
	}
	if part, begins, _ := partOf(h); part != "" && v.broken[part] {
		if !begins {
			return chunkSkip
		}
		delete(v.broken, part)
	}
	v.shown = i
	if h.Type == agent.ChunkStartStep {
		return chunkStartStep
	}
	if bytes.ContainsAny(chunk, "\r\n") {
		var line bytes.Buffer
		if json.Compact(&line, chunk) != nil {
			return chunkSkip // not reached: it was JSON
		}
		return line.Bytes()
	}
	return chunk
}

// rest returns the chunks to add to a stream that has ended: clients wait for a
// finish, and would otherwise reconnect for ever.
func (v *view) rest(status workflow.Status) [][]byte {
	var rest [][]byte
	_, finished := v.ends[agent.ChunkFinish]
	_, failed := v.ends[agent.ChunkError]
	_, aborted := v.ends[agent.ChunkAbort]
	if finished {
		return nil
	}
	switch {
	case status == workflow.StatusFailed && !failed:
		rest = append(rest, chunkFailed)
	case status == workflow.StatusCancelled && !aborted:
		rest = append(rest, chunkAbort)
	}
	return append(rest, chunkFinish)
}
