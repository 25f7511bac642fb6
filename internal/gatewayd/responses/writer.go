package responses

import (
	"crypto/rand"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/sse"
)

// writer writes an answer as response events. A complete item that may still grow (a
// message before sources, reasoning before another summary) waits in last until another
// item begins.
type writer struct {
	answer   hub.Answer
	quiet    bool // no events are wanted, only final
	final    []byte
	dst      []byte
	sequence int

	begun    bool
	warnings []hub.Warning
	response hub.Response
	now      time.Time

	output []json.RawMessage // items by their place; nil for one that is not done
	blocks map[string]*outItem
	last   *outItem
	calls  map[string]*outItem // calls of the provider's, which wait for their result
	order  []*outItem          // the calls
	early  []json.RawMessage   // annotations that came before any text
	custom map[string]bool     // the client's custom tools

	namespaces namespaced
}

// outItem is an item being written.
type outItem struct {
	at      int
	kind    string
	id      string
	group   string // the provider's id: parts with the same id belong to one item
	phase   string
	parts   []*outPart
	options hub.Options // reasoning: merged options of all parts
	// For calls:
	name, callID string
	namespace    json.RawMessage
	input        strings.Builder
	custom       bool
	quietInput   bool // the input is written when it is complete
	call         *hub.Part
}

// outPart is a content part of a message, or a summary or text of reasoning.
type outPart struct {
	kind        string // output_text, refusal, summary_text, reasoning_text
	index       int
	text        strings.Builder
	open, begun bool
	annotations []json.RawMessage
	known       map[string]bool // the sources of annotations so far
	logprobs    json.RawMessage
}

// NewWriter returns the encoder of a streamed answer.
func (*Format) NewWriter(a hub.Answer) hub.Writer { return newWriter(a) }

func newWriter(a hub.Answer) *writer {
	w := &writer{answer: a, now: time.Now(), blocks: make(map[string]*outItem), calls: make(map[string]*outItem)}
	if a.Call != nil {
		w.namespaces = newNamespaced(a.Call.Tools)
		for _, t := range a.Call.Tools {
			if t.ProviderID == "" && t.Options[optProvider][optCustom] != nil {
				if w.custom == nil {
					w.custom = make(map[string]bool)
				}
				w.custom[t.Name] = true
			}
		}
	}
	return w
}

// KeepAlive appends a comment.
func (w *writer) KeepAlive(dst []byte) []byte { return sse.AppendComment(dst, "keep-alive") }

// Append appends the events for e. A failure becomes an error event and a failed
// response, which is how OpenAI ends such a stream.
func (w *writer) Append(dst []byte, e *hub.Event) []byte {
	w.dst = dst
	switch e.Kind {
	case hub.Start:
		w.warnings = append(w.warnings, e.Warnings...)
		return w.dst
	case hub.Metadata:
		w.response = e.Response
	}
	w.begin()
	switch e.Kind {
	case hub.TextStart:
		w.textStart(e.ID, e.Options)
	case hub.TextDelta, hub.ReasoningDelta:
		if it := w.blocks[e.ID]; it != nil {
			w.delta(it, e.Delta)
			it.options.Merge(e.Options)
		}
	case hub.TextEnd:
		w.textEnd(e.ID, e.Options)
	case hub.ReasoningStart:
		w.reasoningStart(e.ID, e.Options)
	case hub.ReasoningEnd:
		w.reasoningEnd(e.ID, e.Options)
	case hub.InputStart:
		if !e.ProviderExecuted && e.Options[optProvider][optItem] == nil {
			w.callStart(e.ID, e.Name, e.Options)
		}
	case hub.InputDelta:
		if it := w.blocks[e.ID]; it != nil {
			w.inputDelta(it, e.Delta)
		}
	case hub.Whole:
		w.whole(e.Part)
	case hub.Finished:
		w.finished(e)
	case hub.Failure:
		w.failed(e.Err)
	}
	dst, w.dst = w.dst, nil
	return dst
}

// part writes a complete part.
func (w *writer) part(p *hub.Part, i int) {
	id := "part-" + strconv.Itoa(i)
	switch p.Kind {
	case hub.TextPart:
		w.textStart(id, p.Options)
		w.delta(w.blocks[id], p.Text)
		w.textEnd(id, p.Options)
	case hub.ReasoningPart:
		w.reasoningStart(id, p.Options)
		w.delta(w.blocks[id], p.Text)
		w.reasoningEnd(id, p.Options)
	default:
		w.whole(p)
	}
}

// newID returns an id in OpenAI's form: a prefix and 40 hexadecimal digits.
func newID(prefix string) string {
	var b [20]byte
	_, _ = rand.Read(b[:]) // never fails
	const digits = "0123456789abcdef"
	out := make([]byte, 0, len(prefix)+40)
	out = append(out, prefix...)
	for _, c := range b {
		out = append(out, digits[c>>4], digits[c&15])
	}
	return string(out)
}

// emit writes an event: its name, and the members in pairs. Strings are quoted.
func (w *writer) emit(name string, members ...any) {
	if w.quiet {
		return
	}
	data := make([]byte, 0, 256)
	data = append(append(append(data, `{"type":"`...), name...), `","sequence_number":`...)
	data = strconv.AppendInt(data, int64(w.sequence), 10)
	w.sequence++
	for i := 0; i+1 < len(members); i += 2 {
		data = append(append(append(data, `,"`...), members[i].(string)...), `":`...)
		switch v := members[i+1].(type) {
		case string:
			data = append(data, hub.MustEncode(v)...)
		case int:
			data = strconv.AppendInt(data, int64(v), 10)
		case json.RawMessage:
			data = append(data, v...)
		default:
			data = append(data, hub.MustEncode(v)...)
		}
	}
	w.dst = sse.AppendNamed(w.dst, name, append(data, '}'))
}

var none = json.RawMessage("[]")

func (w *writer) begin() {
	if w.begun {
		return
	}
	w.begun = true
	r := w.object("in_progress", nil, nil)
	w.emit("response.created", "response", r)
	w.emit("response.in_progress", "response", r)
}

// open adds an item. It ends the waiting item.
func (w *writer) open(it *outItem, members object) {
	w.settle()
	it.at = len(w.output)
	w.output = append(w.output, nil)
	members["id"], members["type"] = it.id, it.kind
	w.emit("response.output_item.added", "output_index", it.at, "item", members)
}

func (w *writer) done(it *outItem, item any) {
	raw, ok := item.(json.RawMessage)
	if !ok {
		raw = hub.MustEncode(item)
	}
	w.output[it.at] = raw
	w.emit("response.output_item.done", "output_index", it.at, "item", raw)
}

// settle ends the waiting item.
func (w *writer) settle() {
	it := w.last
	w.last = nil
	if it == nil {
		return
	}
	switch it.kind {
	case "message":
		w.messageDone(it)
	case "reasoning":
		w.reasoningDone(it)
	}
}

// Everything else.

func (w *writer) whole(p *hub.Part) {
	switch p.Kind {
	case hub.SourcePart:
		w.source(p)
	case hub.ToolCallPart:
		if p.Call.ProviderExecuted {
			w.hostedCall(p)
		} else {
			w.callDone(p)
		}
	case hub.ToolResultPart:
		w.hostedResult(p)
	case hub.FilePart, hub.ReasoningFilePart:
		w.file(p)
	case hub.CustomPart:
		w.customPart(p)
	case hub.TextPart, hub.ReasoningPart:
		w.part(p, -1)
	}
}

// rawItem writes an item in OpenAI's original form.
func (w *writer) rawItem(raw json.RawMessage) {
	var it item
	if json.Unmarshal(raw, &it) != nil || it.Type == "" {
		return
	}
	w.settle()
	out := &outItem{at: len(w.output)}
	w.output = append(w.output, nil)
	w.emit("response.output_item.added", "output_index", out.at, "item", raw)
	w.done(out, raw)
}

// close ends all open items.
func (w *writer) close() {
	w.settle()
	if len(w.early) > 0 { // sources without a text
		w.textStart("sources", nil)
		w.textEnd("sources", nil)
		w.settle()
	}
	for _, it := range w.order {
		if w.output[it.at] == nil {
			o := it.mcpItem(nil)
			o["status"] = "incomplete"
			w.done(it, o)
		}
	}
	for _, it := range w.calls {
		if it.kind == "image_generation_call" {
			w.rawItem(with(it.call.Options[optProvider][optItem], "result", nil))
		}
	}
}
