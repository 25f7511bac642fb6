package agent

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// progress is the progress of an agent that is called as a tool: the message that the
// agent has written so far is a preliminary output of the call. Each preliminary output
// replaces the one before, and the tool's result replaces the last. So readers who
// begin anywhere see the agent's work so far, and text that is written again after a
// crash is seen once.
//
// The workflow's code adds the parts that are in the log, and the step that asks the
// model adds the newest text; readers do not miss progress that was never written.
type progress struct {
	call string // of the agent, by its caller
	// above is the progress of the agent that is a tool itself and has called this one;
	// nil if the call is on the stream. The topmost progress's mu guards the fields
	// below in all of them.
	above *progress
	mu    *sync.Mutex
	done  []progressPart // parts of completed steps
	now   []progressPart
	below map[string]*progress // by their calls
}

// The limits of the progress that is written, in bytes.
const (
	maxProgress     = 32 << 10 // at one time
	maxProgressText = 8 << 10  // of a text in it
	maxProgressJSON = 2 << 10  // of the input and output of a call in it
	maxProgressAll  = 1 << 20  // while a model is asked once
)

// progressPause is the shortest time between two preliminary outputs.
const progressPause = 250 * time.Millisecond

func newProgress(call string, above *progress) *progress {
	p := &progress{call: call, above: above}
	if above == nil {
		p.mu = new(sync.Mutex)
		return p
	}
	p.mu = above.mu
	p.mu.Lock()
	defer p.mu.Unlock()
	if above.below == nil {
		above.below = make(map[string]*progress)
	}
	above.below[call] = p
	return p
}

// top returns the progress of the agent whose call is on the stream.
func (p *progress) top() *progress {
	for p.above != nil {
		p = p.above
	}
	return p
}

// progressMessage is a message of the AI SDK's UI, and progressPart a part of one.
type progressMessage struct {
	ID    string         `json:"id"`
	Role  Role           `json:"role"`
	Parts []progressPart `json:"parts"`
}

type progressPart struct {
	Type  string `json:"type"`
	Text  string `json:"text,omitempty"`
	State string `json:"state,omitempty"`

	ToolName    string          `json:"toolName,omitempty"` // dynamic-tool
	CallID      string          `json:"toolCallId,omitempty"`
	Input       json.RawMessage `json:"input,omitempty"`
	Output      json.RawMessage `json:"output,omitempty"`
	ErrorText   string          `json:"errorText,omitempty"`
	Preliminary bool            `json:"preliminary,omitempty"`
}

// settled records the agent's completed steps.
func (p *progress) settled(steps []StepResult) {
	var parts []progressPart
	for i := range steps {
		s := &steps[i]
		parts = append(parts, progressPart{Type: "step-start"})
		parts = appendText(parts, "reasoning", s.Reasoning, "done")
		parts = appendText(parts, "text", s.Text, "done")
		results := make(map[string]*Output, len(s.ToolResults))
		for j := range s.ToolResults {
			results[s.ToolResults[j].CallID] = &s.ToolResults[j].Output
		}
		for _, c := range s.ToolCalls {
			parts = append(parts, callPart(c, results[c.ID]))
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done, p.now, p.below = parts, nil, nil
}

// says records the part of an answer that the agent's model has given so far.
func (p *progress) says(m *Message, texts map[int]*strings.Builder, ended bool) {
	state := "streaming"
	if ended {
		state = "done"
	}
	parts := []progressPart{{Type: "step-start"}}
	for i := range m.Parts {
		part := &m.Parts[i]
		text := part.Text
		if b := texts[i]; b != nil && !ended {
			text = b.String()
		}
		switch part.Type {
		case Text:
			parts = appendText(parts, "text", text, state)
		case Reasoning:
			parts = appendText(parts, "reasoning", text, state)
		case ToolCallPart:
			parts = append(parts, callPart(ToolCall{ID: part.CallID, Name: part.ToolName, Input: part.Input}, nil))
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now = parts
}

func appendText(parts []progressPart, typ, text, state string) []progressPart {
	if text == "" {
		return parts
	}
	return append(parts, progressPart{Type: typ, Text: newest(text), State: state})
}

// newest returns the end of a long text.
func newest(text string) string {
	if len(text) <= maxProgressText {
		return text
	}
	text = text[len(text)-maxProgressText:]
	for len(text) > 0 && !utf8.RuneStart(text[0]) {
		text = text[1:]
	}
	return "[...] " + text
}

// callPart returns a call with its output, if the output is known.
func callPart(c ToolCall, o *Output) progressPart {
	p := progressPart{Type: "dynamic-tool", ToolName: c.Name, CallID: c.ID, State: "input-available", Input: small(c.Input)}
	if o == nil {
		return p
	}
	p.State = "output-available"
	switch o.Type {
	case OutputErrorText, OutputErrorJSON:
		p.State, p.ErrorText = "output-error", newest(o.Text+string(o.JSON))
	case OutputDenied:
		p.State, p.ErrorText = "output-error", "This was not allowed."
	default:
		value, err := o.value()
		if err != nil {
			value = nil
		}
		p.Output = small(value)
	}
	return p
}

// small returns a value, or its size if it is large.
func small(value json.RawMessage) json.RawMessage {
	switch {
	case len(value) == 0:
		return json.RawMessage("null")
	case len(value) <= maxProgressJSON:
		return value
	}
	return fmt.Appendf(nil, `"%d bytes"`, len(value))
}

// messageLocked returns the agent's message, of at most most bytes: the newest parts.
// The caller holds mu.
func (p *progress) messageLocked(most int) (json.RawMessage, error) {
	all := append(append([]progressPart(nil), p.done...), p.now...)
	size, first := 0, len(all)
	for ; first > 0; first-- {
		part := &all[first-1]
		if b := p.below[part.CallID]; b != nil && part.State == "input-available" {
			inner, err := b.messageLocked(most / 2)
			if err != nil {
				return nil, err
			}
			part.State, part.Output, part.Preliminary = "output-available", inner, true
		}
		raw, err := json.Marshal(part)
		if err != nil {
			return nil, err
		}
		if size += len(raw) + 1; size > most {
			break
		}
	}
	m := progressMessage{ID: p.call, Role: Assistant, Parts: all[first:]}
	return json.Marshal(&m)
}

// chunk returns the preliminary output of the call on the stream.
func (p *progress) chunk() (Chunk, error) {
	top := p.top()
	p.mu.Lock()
	defer p.mu.Unlock()
	m, err := top.messageLocked(maxProgress)
	return Chunk{Type: ChunkToolOutput, ToolCallID: top.call, Output: m, Preliminary: true}, err
}

// teller writes progress from time to time while the model answers.
type teller struct {
	progress *progress
	send     func(...Chunk) error
	at       time.Time // of the last time
	written  int
}

// tell writes the model's answer so far, if enough time has passed. The first and the
// last part are always written.
func (t *teller) tell(b *builder, last bool) error {
	now := time.Now()
	if !last && (now.Sub(t.at) < progressPause || t.written > maxProgressAll) {
		return nil
	}
	t.progress.says(&b.Message, b.texts, b.ended)
	c, err := t.progress.chunk()
	if err != nil {
		return err
	}
	t.at = now
	t.written += len(c.Output)
	return t.send(c)
}
