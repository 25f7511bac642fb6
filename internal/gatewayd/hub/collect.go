package hub

import (
	"slices"
	"strconv"
	"strings"
)

// Collector builds a Result from the events of a stream.
type Collector struct {
	result Result
	err    *Error
	open   map[string]*block
}

// block is an open block.
type block struct {
	at   int // its position in the content
	text strings.Builder
}

// Add adds the next event.
func (c *Collector) Add(e *Event) {
	if c.open == nil {
		c.open = make(map[string]*block)
	}
	switch e.Kind {
	case Start:
		c.result.Warnings = append(c.result.Warnings, e.Warnings...)
	case Metadata:
		c.metadata(e.Response)
	case TextStart:
		c.begin(e, TextPart)
	case ReasoningStart:
		c.begin(e, ReasoningPart)
	case TextDelta, ReasoningDelta:
		if b := c.open[e.ID]; b != nil {
			b.text.WriteString(e.Delta)
			c.result.Content[b.at].Options.Merge(e.Options)
		}
	case TextEnd, ReasoningEnd:
		if b := c.open[e.ID]; b != nil {
			p := &c.result.Content[b.at]
			p.Text = b.text.String()
			p.Options.Merge(e.Options)
			delete(c.open, e.ID)
		}
	case Whole:
		c.result.Content = append(c.result.Content, *e.Part)
	case Finished:
		c.result.Finish, c.result.Usage = e.Finish, e.Usage
		c.result.Options.Merge(e.Options)
	case Failure:
		c.err = e.Err
	}
}

func (c *Collector) metadata(r Response) {
	if r.ID != "" {
		c.result.Response.ID = r.ID
	}
	if r.Model != "" {
		c.result.Response.Model = r.Model
	}
	if !r.Created.IsZero() {
		c.result.Response.Created = r.Created
	}
}

func (c *Collector) begin(e *Event, kind PartKind) {
	c.open[e.ID] = &block{at: len(c.result.Content)}
	c.result.Content = append(c.result.Content, Part{Kind: kind})
	c.result.Content[len(c.result.Content)-1].Options.Merge(e.Options)
}

// Result returns the collected result, and the error if the stream ended with a Failure.
// An unfinished block has the text received so far.
func (c *Collector) Result() (*Result, *Error) {
	for _, b := range c.open {
		c.result.Content[b.at].Text = b.text.String()
	}
	return &c.result, c.err
}

// Events returns the events of a whole answer, with each block in one delta.
func (r *Result) Events() []Event {
	events := []Event{{Kind: Start, Warnings: r.Warnings}}
	if r.Response != (Response{}) {
		events = append(events, Event{Kind: Metadata, Response: r.Response})
	}
	for i := range r.Content {
		events = r.Content[i].events(events, "block-"+strconv.Itoa(i))
	}
	return append(events, Event{Kind: Finished, Finish: r.Finish, Usage: r.Usage, Options: r.Options})
}

func (p *Part) events(events []Event, id string) []Event {
	switch p.Kind {
	case TextPart, ReasoningPart:
		kinds := [3]EventKind{TextStart, TextDelta, TextEnd}
		if p.Kind == ReasoningPart {
			kinds = [3]EventKind{ReasoningStart, ReasoningDelta, ReasoningEnd}
		}
		start := Event{Kind: kinds[0], ID: id}
		if p.Kind == TextPart {
			start.Options = p.Options // they may mark a special kind of text
		}
		events = append(events, start)
		if p.Text != "" {
			events = append(events, Event{Kind: kinds[1], ID: id, Delta: p.Text})
		}
		return append(events, Event{Kind: kinds[2], ID: id, Options: p.Options})
	case ToolCallPart:
		c := p.Call
		return append(events,
			Event{Kind: InputStart, ID: c.ID, Name: c.Name, ProviderExecuted: c.ProviderExecuted, Dynamic: c.Dynamic, Options: p.Options},
			Event{Kind: InputDelta, ID: c.ID, Delta: c.Input},
			Event{Kind: InputEnd, ID: c.ID},
			Event{Kind: Whole, Part: p})
	}
	return append(events, Event{Kind: Whole, Part: p})
}

// Text returns the text of the answer without reasoning.
func (r *Result) Text() string {
	var b strings.Builder
	for i := range r.Content {
		if r.Content[i].Kind == TextPart {
			b.WriteString(r.Content[i].Text)
		}
	}
	return b.String()
}

// HasToolCalls reports whether the caller has to run tools.
func (r *Result) HasToolCalls() bool {
	return slices.ContainsFunc(r.Content, func(p Part) bool { return p.Kind == ToolCallPart && !p.Call.ProviderExecuted })
}
