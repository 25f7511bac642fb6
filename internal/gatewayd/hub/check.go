package hub

import "fmt"

// Checker checks the order of events that Event describes. Every test of a Reader uses a
// Checker.
type Checker struct {
	begun, ended bool
	open, closed map[string]EventKind
	inputs       map[string]string // the input of tools, by block
	called       map[string]bool
}

// Add returns an error if e is not allowed here.
func (c *Checker) Add(e *Event) error {
	if c.open == nil {
		c.open, c.closed = make(map[string]EventKind), make(map[string]EventKind)
		c.inputs, c.called = make(map[string]string), make(map[string]bool)
	}
	switch {
	case c.ended:
		return fmt.Errorf("event %d after the end", e.Kind)
	case e.Kind == Start && c.begun, e.Kind != Start && e.Kind != Failure && !c.begun:
		return fmt.Errorf("event %d: a stream has one start, at its beginning", e.Kind)
	}
	c.begun = true
	switch e.Kind {
	case TextStart, ReasoningStart, InputStart:
		if e.ID == "" || c.open[e.ID] != 0 || c.closed[e.ID] != 0 {
			return fmt.Errorf("block %q opens twice, or has no ID", e.ID)
		}
		c.open[e.ID] = e.Kind
	case TextDelta, ReasoningDelta, InputDelta:
		if c.open[e.ID] != e.Kind-1 {
			return fmt.Errorf("delta %d of block %q, which is not open", e.Kind, e.ID)
		}
		if e.Kind == InputDelta {
			c.inputs[e.ID] += e.Delta
		}
	case TextEnd, ReasoningEnd, InputEnd:
		if c.open[e.ID] != e.Kind-2 {
			return fmt.Errorf("end %d of block %q, which is not open", e.Kind, e.ID)
		}
		c.closed[e.ID] = c.open[e.ID]
		delete(c.open, e.ID)
	case Whole:
		return c.whole(e.Part)
	case Finished:
		c.ended = true
		if len(c.open) > 0 {
			return fmt.Errorf("the stream ended with open blocks: %v", c.open)
		}
		for id, kind := range c.closed {
			if kind == InputStart && !c.called[id] {
				return fmt.Errorf("input %q was not followed by its call", id)
			}
		}
		if e.Finish.Reason == "" {
			return fmt.Errorf("the stream ended without a reason")
		}
	case Failure:
		c.ended = true
		if e.Err == nil || e.Err.Kind == "" {
			return fmt.Errorf("a failure without an error")
		}
	}
	return nil
}

func (c *Checker) whole(p *Part) error {
	if p == nil {
		return fmt.Errorf("an event without its part")
	}
	if p.Kind != ToolCallPart {
		return nil
	}
	id := p.Call.ID
	switch {
	case id == "" || p.Call.Name == "":
		return fmt.Errorf("a tool call without id or name: %+v", p.Call)
	case c.open[id] != 0:
		return fmt.Errorf("call %q before the end of its input", id)
	case c.called[id]:
		return fmt.Errorf("call %q twice", id)
	}
	c.called[id] = true
	if in, ok := c.inputs[id]; ok && in != p.Call.Input && in != "" {
		return fmt.Errorf("call %q has the input %q, which came as %q", id, p.Call.Input, in)
	}
	return nil
}

// End returns an error if the stream has not ended.
func (c *Checker) End() error {
	if !c.ended {
		return fmt.Errorf("the stream has no end")
	}
	return nil
}
