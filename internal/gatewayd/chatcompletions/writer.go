package chatcompletions

import (
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// NewWriter returns the encoder of a streamed answer. Usage is sent in its own chunk,
// without choices, if stream_options.include_usage was set.
func (*Format) NewWriter(a hub.Answer) hub.Writer {
	w := &writer{a: a, calls: map[string]int{}, hidden: map[string]bool{}, thoughts: map[string]*thought{}, refusals: map[string]bool{}, customs: customs(a.Call)}
	if a.Call != nil {
		a.Call.Options.Get(own, "includeUsage", &w.withUsage)
	}
	return w
}

type writer struct {
	a         hub.Answer
	withUsage bool
	created   int64
	begun     bool
	head      []byte // a chunk up to its delta

	calls    map[string]int  // index of a tool call by its id
	hidden   map[string]bool // calls that the provider runs itself
	thoughts map[string]*thought
	indexes  int             // number of thoughts
	blocks   []memento       // ended blocks
	refusals map[string]bool // blocks that are
	customs  map[string]bool // names of custom tools, whose calls are written when complete
	warnings []hub.Warning   // told at the end
}

// thought is an open block of reasoning.
type thought struct {
	index   int
	options hub.Options
	text    strings.Builder
}

// KeepAlive appends a comment, which clients skip.
func (*writer) KeepAlive(dst []byte) []byte { return append(dst, ": keep-alive\n\n"...) }

// Append encodes an event.
func (w *writer) Append(dst []byte, e *hub.Event) []byte {
	b := buffer(dst)
	switch e.Kind {
	case hub.Start:
		w.warnings = append(w.warnings, e.Warnings...)
	case hub.Metadata:
		if w.head == nil && !e.Response.Created.IsZero() {
			w.created = e.Response.Created.Unix()
		}
	case hub.TextStart:
		if e.Options["openai"]["refusal"] != nil {
			w.refusals[e.ID] = true
		}
	case hub.TextDelta:
		name := "content"
		if w.refusals[e.ID] {
			name = "refusal"
		}
		w.chunk(&b, func() { b.text(name, e.Delta) })
	case hub.TextEnd:
		if l := e.Options["openai"]["logprobs"]; l != nil {
			w.begin(&b)
			b.add(`{},"logprobs":{"content":` + string(l) + `,"refusal":null}`)
			w.end(&b, "")
		}
	case hub.ReasoningStart, hub.ReasoningDelta, hub.ReasoningEnd:
		if !hides(&w.a) {
			w.reasoning(&b, e)
		}
	case hub.InputStart:
		if !w.isCustom(e) {
			w.inputStart(&b, e.ID, e.Name, e.ProviderExecuted, e.Options)
		}
	case hub.InputDelta:
		if i, ok := w.calls[e.ID]; ok && e.Delta != "" {
			w.chunk(&b, func() {
				b.add(`"tool_calls":[{"index":` + strconv.Itoa(i) + `,"function":{`)
				b.text("arguments", e.Delta)
				b.add("}}]")
			})
		}
	case hub.Whole:
		w.whole(&b, e.Part)
	case hub.Finished:
		w.finished(&b, e)
	case hub.Failure:
		b.add("data: {")
		b.errorBody(e.Err)
		if w.a.ID != "" {
			b.text("generationId", w.a.ID)
		}
		b.add("}\n\n")
	}
	return b
}

// isCustom reports whether an InputStart belongs to a custom tool call.
func (w *writer) isCustom(e *hub.Event) bool {
	return isCustom(&hub.Part{Call: &hub.ToolCall{Name: e.Name}, Options: e.Options}, w.customs)
}

// chunk writes a chunk; member adds the content of its delta.
func (w *writer) chunk(b *buffer, member func()) {
	w.begin(b)
	b.add("{")
	member()
	b.add("}")
	w.end(b, "")
}

// begin writes a chunk up to its delta, and before the first chunk the chunk with the
// role.
func (w *writer) begin(b *buffer) {
	if w.head == nil {
		if w.created == 0 {
			w.created = created(time.Time{})
		}
		var h buffer
		h.add(`data: {`)
		h.text("id", w.a.ID)
		h.add(`,"object":"chat.completion.chunk"`)
		h.int("created", w.created)
		h.text("model", w.a.Model)
		h.add(`,"choices":[{"index":0,"delta":`)
		w.head = h
	}
	if !w.begun {
		w.begun = true
		b.add(string(w.head) + `{"role":"assistant"}`)
		w.end(b, "")
	}
	*b = append(*b, w.head...)
}

func (w *writer) end(b *buffer, finish string) {
	if finish == "" {
		b.add(`,"finish_reason":null}]`)
	} else {
		b.add(`,"finish_reason":"` + finish + `"}]`)
	}
	if w.withUsage {
		b.add(`,"usage":null`)
	}
	b.add("}\n\n")
}

// reasoning writes reasoning: as plain text, and as an item of reasoning_details. The
// signature follows in an item with the same index, and contains all blocks so far: see
// memento.
func (w *writer) reasoning(b *buffer, e *hub.Event) {
	t := w.thoughts[e.ID]
	if t == nil {
		t = &thought{index: w.indexes}
		w.thoughts[e.ID] = t
		w.indexes++
	}
	t.options.Merge(e.Options)
	switch e.Kind {
	case hub.ReasoningDelta:
		if e.Delta == "" {
			return
		}
		t.text.WriteString(e.Delta)
		kind, format := style(t.options)
		d := detail{kind: kind, format: format, text: e.Delta, hasText: true, hasIndex: true, index: t.index}
		w.chunk(b, func() {
			b.text("reasoning", e.Delta)
			b.open("reasoning_details", '[')
			b.detail(&d)
			b.close(']')
		})
	case hub.ReasoningEnd:
		text := t.text.String()
		items := seal(t.options, "", text == "", t.index)
		nothing := detail{kind: detailText, format: formatUnknown, hasText: true, hasIndex: true, index: t.index}
		if text != "" || len(items) > 0 && items[0] != nothing {
			w.blocks = append(w.blocks, memento{text, t.options})
		}
		if len(items) == 0 || items[0] == nothing {
			return // no signature must come back
		}
		if len(w.blocks) > 1 || text != "" {
			remember(items, w.blocks)
		}
		w.chunk(b, func() {
			b.open("reasoning_details", '[')
			for i := range items {
				b.detail(&items[i])
			}
			b.close(']')
		})
	}
}

func (w *writer) inputStart(b *buffer, id, name string, providerExecuted bool, o hub.Options) {
	if providerExecuted { // not for the client to run
		w.hidden[id] = true
		return
	}
	i := len(w.calls)
	w.calls[id] = i
	w.chunk(b, func() {
		b.add(`"tool_calls":[{"index":` + strconv.Itoa(i))
		b.text("id", hub.PackID(id, o))
		b.add(`,"type":"function","function":{`)
		b.text("name", name)
		b.add(`,"arguments":""}}]`)
	})
}

func (w *writer) whole(b *buffer, p *hub.Part) {
	switch p.Kind {
	case hub.ToolCallPart:
		if _, ok := w.calls[p.Call.ID]; ok || w.hidden[p.Call.ID] || p.Call.ProviderExecuted {
			return // its input was written before
		}
		if isCustom(p, w.customs) {
			i := len(w.calls)
			w.calls[p.Call.ID] = i
			w.chunk(b, func() {
				b.add(`"tool_calls":[{"index":` + strconv.Itoa(i))
				b.text("id", hub.PackID(p.Call.ID, withoutCustom(p.Options)))
				b.customCall(p.Call.Name, p.Call.Input)
				b.add("}]")
			})
			return
		}
		w.inputStart(b, p.Call.ID, p.Call.Name, false, p.Options)
		*b = w.Append(*b, &hub.Event{Kind: hub.InputDelta, ID: p.Call.ID, Delta: p.Call.Input})
	case hub.FilePart:
		w.chunk(b, func() {
			b.open("images", '[')
			b.image(p.File)
			b.close(']')
		})
	case hub.SourcePart:
		w.chunk(b, func() {
			b.open("annotations", '[')
			b.annotation(p.Source)
			b.close(']')
		})
	}
}

func (w *writer) finished(b *buffer, e *hub.Event) {
	metadata := metadataOf(&w.a)
	w.begin(b)
	b.add("{")
	b.providerMetadata(metadata, e.Options, w.warnings)
	b.add("}")
	w.end(b, finishReason(e.Finish))
	if w.withUsage && e.Usage != nil {
		var c buffer
		c.add(`data: {`)
		c.text("id", w.a.ID)
		c.add(`,"object":"chat.completion.chunk"`)
		c.int("created", w.created)
		c.text("model", w.a.Model)
		c.add(`,"choices":[]`)
		c.usage(e.Usage, gjson.GetBytes(metadata, "cost").String())
		if e.Usage.Tier != "" {
			c.text("service_tier", e.Usage.Tier)
		}
		*b = append(*b, c...)
		b.add("}\n\n")
	}
	b.add("data: [DONE]\n\n")
}
