package responses

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/sse"
)

// event is a stream event of any type.
type event struct {
	Type         string            `json:"type"`
	OutputIndex  *int              `json:"output_index"`
	ContentIndex int               `json:"content_index"`
	SummaryIndex int               `json:"summary_index"`
	ItemID       string            `json:"item_id"`
	Item         *item             `json:"item"`
	Part         *content          `json:"part"`
	Delta        json.RawMessage   `json:"delta"`
	Text         string            `json:"text"`
	Refusal      string            `json:"refusal"`
	Arguments    *string           `json:"arguments"`
	Input        *string           `json:"input"`
	Annotation   json.RawMessage   `json:"annotation"`
	Logprobs     []json.RawMessage `json:"logprobs"`
	Response     *response         `json:"response"`
	// Error is set for the event error, which has these members itself or in an object.
	Error   *errorBody      `json:"error"`
	Message string          `json:"message"`
	Code    json.RawMessage `json:"code"`
	Param   json.RawMessage `json:"param"`
}

// NewReader returns the decoder of a streamed response.
func (*Format) NewReader(t *hub.Target, body io.Reader) hub.Reader {
	return &reader{
		target: t, events: sse.NewReader(body, maxEvent),
		decoder: newDecoder(t),
		items:   make(map[string]*openItem),
	}
}

// reader holds the state of unfinished items. Items are identified by their position in
// the output, because some servers change an item's id in every event, or omit it.
type reader struct {
	target  *hub.Target
	events  *sse.Reader
	decoder decoder
	items   map[string]*openItem
	seen    int // items
	calls   int
	kept    int // bytes
	outcome hub.Reason
	last    *response // the last response with a usage
	started bool
	done    bool
	out     []hub.Event
}

// openItem is an unfinished item.
type openItem struct {
	item   *item
	key    string
	at     int    // position in the order of arrival
	open   string // the block that is open, if any
	blocks int
	place  [2]int // in the item, of the block: content or summary, and its index
	length int    // length of the block's text so far
	input  strings.Builder
	// State of the open text.
	annotations, logprobs []json.RawMessage
	refusal, raw          bool
}

// Usage returns the tokens counted so far.
func (r *reader) Usage() *hub.Usage {
	if r.last == nil {
		return nil
	}
	return r.last.usage(&r.decoder.ran)
}

// Next returns the next events; see hub.Reader.
func (r *reader) Next() ([]hub.Event, error) {
	if r.done {
		return nil, io.EOF
	}
	r.out = r.out[:0]
	for !r.done && (len(r.out) == 0 || r.events.More()) {
		e, err := r.events.Next()
		switch {
		case err == io.EOF, errors.Is(err, sse.ErrCut):
			r.fail(broken(r.target, "the stream broke off", err))
		case errors.Is(err, sse.ErrTooLarge):
			r.fail(broken(r.target, "an event of the stream is too large", err))
		case err != nil:
			return nil, err
		default:
			r.read(e.Data)
		}
	}
	return r.out, nil
}

func (r *reader) emit(e hub.Event) { r.out = append(r.out, e) }

func (r *reader) fail(e *hub.Error) {
	r.done = true
	r.emit(hub.Event{Kind: hub.Failure, Err: e})
}

func (r *reader) read(data []byte) {
	if string(data) == "[DONE]" {
		return
	}
	var e event
	if err := json.Unmarshal(data, &e); err != nil {
		r.fail(broken(r.target, "an event of the stream makes no sense", err))
		return
	}
	if r.kept += len(data); r.kept > maxWhole {
		r.fail(broken(r.target, "the answer is too large", nil))
		return
	}
	if e.Type == "error" {
		from := e.Error
		if from == nil {
			from = &errorBody{Message: e.Message, Code: e.Code, Param: e.Param}
		}
		r.fail(fromEvent(r.target, from))
		return
	}
	if !r.started {
		r.started = true
		r.emit(hub.Event{Kind: hub.Start})
	}
	if r.target.Call != nil && r.target.Call.IncludeRaw {
		r.emit(hub.Event{Kind: hub.Raw, Raw: bytes.Clone(data)})
	}
	if e.Response != nil && e.Response.Usage != nil {
		r.last = e.Response
	}
	switch e.Type {
	case "response.created", "response.in_progress", "response.queued":
		if e.Response != nil && e.Type == "response.created" {
			r.emit(hub.Event{Kind: hub.Metadata, Response: e.Response.metadata()})
		}
	case "response.completed", "response.incomplete", "response.failed", "response.cancelled":
		r.end(&e)
	case "response.output_item.added":
		r.added(&e)
	case "response.output_item.done":
		r.itemDone(&e)
	default:
		if it := r.items[e.key()]; it != nil {
			r.inside(it, &e)
		}
	}
}

// key identifies an item.
func (e *event) key() string {
	switch {
	case e.OutputIndex != nil:
		return strconv.Itoa(*e.OutputIndex)
	case e.Item != nil:
		return "id " + e.Item.ID
	}
	return "id " + e.ItemID
}

func (r *reader) added(e *event) {
	if e.Item == nil || r.items[e.key()] != nil {
		return
	}
	if r.seen++; r.seen > maxItems {
		r.fail(broken(r.target, "the answer has too many items", nil))
		return
	}
	it := &openItem{item: e.Item, key: e.key(), at: r.seen}
	r.items[it.key] = it
	if r.streamed(it.item) {
		id := it.item.callID()
		if r.calls++; id == "" || it.item.Name == "" || r.calls > maxCalls {
			r.fail(broken(r.target, "the answer has a tool call without id or name, or too many", nil))
			return
		}
		it.open = id
		r.emit(hub.Event{Kind: hub.InputStart, ID: id, Name: r.name(it.item), Options: it.item.callOptions()})
		if it.item.Type == "custom_tool_call" {
			r.inputDelta(it, `"`)
		}
	}
}

// streamed reports whether an item is a call with streamed input.
func (r *reader) streamed(it *item) bool {
	return it.Type == "function_call" || it.Type == "custom_tool_call" && !r.decoder.hostedCustom(it.Name)
}

func (r *reader) inputDelta(it *openItem, s string) {
	if s == "" {
		return
	}
	it.input.WriteString(s)
	r.emit(hub.Event{Kind: hub.InputDelta, ID: it.open, Delta: s})
}

// name returns the client's name of the function or custom tool.
func (r *reader) name(it *item) string {
	if it.Type == "custom_tool_call" {
		return r.decoder.name("custom."+it.Name, it.Name)
	}
	return it.Name
}

// inside processes an event of an open item.
func (r *reader) inside(it *openItem, e *event) {
	switch e.Type {
	case "response.content_part.added":
		if e.Part != nil {
			r.begin(it, e.Part.Type, 0, e.ContentIndex)
		}
	case "response.output_text.delta":
		r.begin(it, "output_text", 0, e.ContentIndex)
		it.logprobs = append(it.logprobs, e.Logprobs...)
		r.delta(it, text(e.Delta))
	case "response.refusal.delta":
		r.begin(it, "refusal", 0, e.ContentIndex)
		r.delta(it, text(e.Delta))
	case "response.reasoning_text.delta", "response.reasoning.delta":
		r.begin(it, "reasoning_text", 0, e.ContentIndex)
		r.delta(it, text(e.Delta))
	case "response.reasoning_summary_part.added":
		r.begin(it, "summary_text", 1, e.SummaryIndex)
	case "response.reasoning_summary_text.delta", "response.reasoning_summary.delta":
		r.begin(it, "summary_text", 1, e.SummaryIndex)
		r.delta(it, text(e.Delta))
	case "response.output_text.done":
		r.begin(it, "output_text", 0, e.ContentIndex)
		r.rest(it, e.Text)
	case "response.refusal.done":
		r.begin(it, "refusal", 0, e.ContentIndex)
		r.rest(it, e.Refusal)
	case "response.reasoning_text.done":
		r.begin(it, "reasoning_text", 0, e.ContentIndex)
		r.rest(it, e.Text)
	case "response.reasoning_summary_text.done":
		r.begin(it, "summary_text", 1, e.SummaryIndex)
		r.rest(it, e.Text)
	case "response.content_part.done":
		if e.Part != nil && it.place == [2]int{0, e.ContentIndex} {
			r.annotate(it, e.Part.Annotations)
		}
	case "response.output_text.annotation.added":
		r.begin(it, "output_text", 0, e.ContentIndex)
		if !hub.IsNull(e.Annotation) {
			r.source(it, e.Annotation)
		}
	case "response.function_call_arguments.delta":
		if r.streamed(it.item) {
			r.inputDelta(it, text(e.Delta))
		}
	case "response.custom_tool_call_input.delta":
		if r.streamed(it.item) {
			r.inputDelta(it, escaped(text(e.Delta)))
		}
	}
}

// escaped returns s with JSON escapes, without quotes.
func escaped(s string) string {
	q := hub.MustEncode(s)
	return string(q[1 : len(q)-1])
}

// begin opens the block for a position in an item, unless it is open, and ends the
// previous block: the blocks of an item are consecutive.
func (r *reader) begin(it *openItem, kind string, list, index int) {
	if it.item.Type != "message" && it.item.Type != "reasoning" {
		return
	}
	if it.open != "" && it.place == [2]int{list, index} {
		return
	}
	r.end1(it, false, nil)
	it.open = it.key + "." + strconv.Itoa(it.blocks)
	it.blocks++
	it.place, it.length = [2]int{list, index}, 0
	it.refusal, it.raw = kind == "refusal", kind == "reasoning_text"
	if it.item.Type == "message" {
		r.emit(hub.Event{Kind: hub.TextStart, ID: it.open, Options: it.item.textOptions()})
	} else {
		r.emit(hub.Event{Kind: hub.ReasoningStart, ID: it.open, Options: it.item.reasoningOptions(false)})
	}
}

func (r *reader) delta(it *openItem, s string) {
	if s == "" || it.open == "" {
		return
	}
	it.length += len(s)
	kind := hub.TextDelta
	if it.item.Type == "reasoning" {
		kind = hub.ReasoningDelta
	}
	r.emit(hub.Event{Kind: kind, ID: it.open, Delta: s})
}

// rest emits the part of a text that the deltas did not contain.
func (r *reader) rest(it *openItem, all string) {
	if len(all) > it.length {
		r.delta(it, all[it.length:])
	}
}

// annotate adds annotations to the open text, and emits new sources.
func (r *reader) annotate(it *openItem, all []json.RawMessage) {
	if len(all) <= len(it.annotations) || it.open == "" || it.item.Type != "message" {
		return
	}
	added := all[len(it.annotations):]
	it.annotations = slices.Clone(all[:len(it.annotations)])
	for _, a := range added {
		r.source(it, a)
	}
}

// source processes the next annotation.
func (r *reader) source(it *openItem, a json.RawMessage) {
	if it.open == "" || it.item.Type != "message" {
		return
	}
	it.annotations = append(it.annotations, a)
	if s := r.decoder.source(a); s != nil {
		r.emit(hub.Event{Kind: hub.Whole, Part: s})
	}
}

// end1 ends the open block of an item. last says that the item is finished; now is its
// final form.
func (r *reader) end1(it *openItem, last bool, now *item) {
	if it.open == "" {
		return
	}
	id := it.open
	it.open = ""
	if it.item.Type == "reasoning" {
		if now == nil {
			now = it.item
		}
		o := it.item.reasoningOptions(false)
		if last {
			o.Merge((&item{EncryptedContent: now.EncryptedContent}).reasoningOptions(true))
		}
		if it.raw {
			o.Set(optProvider, optRawText, true)
		}
		r.emit(hub.Event{Kind: hub.ReasoningEnd, ID: id, Options: o})
		return
	}
	o := it.item.textOptions()
	if it.refusal {
		o.Set(optProvider, optRefusal, true)
		if r.outcome == "" {
			r.outcome = hub.ContentFilter
		}
	}
	o.Merge(annotated(it.annotations, it.logprobs))
	it.annotations, it.logprobs = nil, nil
	r.emit(hub.Event{Kind: hub.TextEnd, ID: id, Options: o})
}

func (r *reader) itemDone(e *event) {
	if e.Item == nil {
		return
	}
	it := r.items[e.key()]
	if it == nil {
		if r.added(e); r.done {
			return
		}
		if it = r.items[e.key()]; it == nil {
			return
		}
	}
	if e.Item.Type == it.item.Type {
		r.finishItem(it, e.Item)
	} else {
		r.finishItem(it, it.item)
	}
}

// finishItem ends an item; now is its final form.
func (r *reader) finishItem(it *openItem, now *item) {
	delete(r.items, it.key)
	switch {
	case it.item.Type == "message":
		r.finishMessage(it, now)
	case it.item.Type == "reasoning":
		r.finishReasoning(it, now)
	case r.streamed(it.item):
		r.finishCall(it, now)
	default:
		for _, p := range r.decoder.parts(now) {
			if p.Kind == hub.ToolCallPart {
				if r.calls++; p.Call.ID == "" || p.Call.Name == "" || r.calls > maxCalls {
					r.fail(broken(r.target, "the answer has a tool call without id or name, or too many", nil))
					return
				}
				if !p.Call.ProviderExecuted {
					r.outcome = hub.ToolCalls
				}
			}
			r.emit(hub.Event{Kind: hub.Whole, Part: &p})
		}
	}
}

// finishMessage adds the content that only the final item has: texts without events, and
// annotations.
func (r *reader) finishMessage(it *openItem, now *item) {
	for i, c := range now.contents() {
		if i < it.blocks-1 {
			continue // over
		}
		if i >= it.blocks {
			r.begin(it, c.Type, 0, i)
		}
		r.rest(it, c.Text+c.Refusal)
		r.annotate(it, c.Annotations)
		if len(it.logprobs) == 0 {
			it.logprobs = c.Logprobs
		}
	}
	r.end1(it, true, now)
}

func (r *reader) finishReasoning(it *openItem, now *item) {
	if now.EncryptedContent == nil || *now.EncryptedContent == "" {
		now.EncryptedContent = it.item.EncryptedContent
	}
	if it.blocks == 0 {
		for i, s := range now.Summary {
			r.begin(it, "summary_text", 1, i)
			r.delta(it, s.Text)
		}
		for i, c := range now.contents() {
			r.begin(it, "reasoning_text", 0, i)
			r.delta(it, c.Text)
		}
	}
	if it.blocks == 0 {
		r.begin(it, "summary_text", 1, 0)
	}
	r.end1(it, true, now)
}

// finishCall ends a function or custom tool call. Its input is the streamed input; the
// final item supplies the part that was not streamed.
func (r *reader) finishCall(it *openItem, now *item) {
	all := text(now.Arguments)
	custom := it.item.Type == "custom_tool_call"
	if custom {
		all = `"` + escaped(now.Input)
	}
	if rest, ok := strings.CutPrefix(all, it.input.String()); ok {
		r.inputDelta(it, rest)
	}
	if custom {
		r.inputDelta(it, `"`)
	}
	if it.input.Len() == 0 { // a function without arguments
		r.inputDelta(it, "{}")
	}
	r.emit(hub.Event{Kind: hub.InputEnd, ID: it.open})
	p := it.item.functionCall(it.input.String())
	p.Call.Name = r.name(it.item)
	if custom {
		p.Options.Set(optProvider, optCustom, true)
	}
	r.outcome = hub.ToolCalls
	r.emit(hub.Event{Kind: hub.Whole, Part: &p})
}

// end processes the last event.
func (r *reader) end(e *event) {
	resp := e.Response
	if resp == nil {
		r.fail(broken(r.target, "the stream ended without its response", nil))
		return
	}
	if resp.Status == "" {
		resp.Status = strings.TrimPrefix(e.Type, "response.")
	}
	if e.Type == "response.failed" {
		r.fail(fromEvent(r.target, resp.Error))
		return
	}
	// Unfinished items are finished here, in the order of their start.
	left := slices.SortedFunc(maps.Values(r.items), func(a, b *openItem) int { return a.at - b.at })
	for _, it := range left {
		r.finishItem(it, it.item)
	}
	if r.seen == 0 { // the server sends everything in the last event
		for i := range resp.Output {
			r.itemDone(&event{OutputIndex: &i, Item: &resp.Output[i]})
		}
	}
	if r.done {
		return
	}
	outcome := r.outcome
	if outcome == "" {
		outcome = hub.Stop
	}
	finish, err := resp.finish(r.target, outcome)
	if err != nil {
		var failed *hub.Error
		errors.As(err, &failed)
		r.fail(failed)
		return
	}
	r.done = true
	r.emit(hub.Event{Kind: hub.Finished, Finish: finish, Usage: resp.usage(&r.decoder.ran)})
}
