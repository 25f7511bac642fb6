package converse

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// decoder converts an answer to hub events, from the events of a stream (event) or from a
// whole answer (blocks).
type decoder struct {
	target *hub.Target
	events []hub.Event
	open   map[int64]*opened
	last   int64             // the index that opened last, -1 before the first
	names  map[string]string // tool names by call id

	usage    *hub.Usage
	finish   hub.Finish
	options  hub.Options
	begun    bool
	stopped  bool // messageStop was seen
	ended    bool
	calls    int
	answered bool // by hub.AnswerTool
	called   bool // a tool of the client's
	sources  int
	kept     int
}

// opened is an open block.
type opened struct {
	kind    hub.EventKind // the first event: TextStart, ReasoningStart, InputStart; 0 for a tool result
	id      string
	call    hub.ToolCall
	answer  bool // a call of hub.AnswerTool, which is text
	implied bool // it had no start, and may get no end
	options hub.Options
	input   strings.Builder
	sig     strings.Builder
	redact  []byte
	list    []json.RawMessage // citations, or the content of a result
	status  string            // of a tool result
}

func newDecoder(t *hub.Target) *decoder {
	return &decoder{target: t, open: make(map[int64]*opened), names: make(map[string]string), last: -1}
}

func (d *decoder) emit(e hub.Event) { d.events = append(d.events, e) }

// fail ends the answer with an error.
func (d *decoder) fail(err *hub.Error) {
	if !d.ended {
		d.ended = true
		d.emit(hub.Event{Kind: hub.Failure, Err: err})
	}
}

func (d *decoder) begin() {
	if !d.begun {
		d.begun = true
		d.emit(hub.Event{Kind: hub.Start})
	}
}

// keep counts kept bytes and reports whether the limit is observed.
func (d *decoder) keep(n int) bool {
	if d.kept += n; d.kept > maxAnswer {
		d.fail(errorf(d.target, "%s sent an answer of more than %d MiB", d.target.Provider, maxAnswer>>20))
		return false
	}
	return true
}

// event processes the JSON of an event of the given type.
func (d *decoder) event(kind string, data []byte) {
	if !json.Valid(data) {
		d.fail(errorf(d.target, "%s sent an event that is not JSON", d.target.Provider))
		return
	}
	e := gjson.ParseBytes(data)
	if c := d.target.Call; c != nil && c.IncludeRaw && d.begun {
		raw, _ := hub.Encode(map[string]json.RawMessage{kind: json.RawMessage(e.Raw)}) // received JSON, cannot fail
		d.emit(hub.Event{Kind: hub.Raw, Raw: raw})
	}
	index := e.Get("contentBlockIndex").Int()
	switch kind {
	case "messageStart":
		d.begin()
	case "contentBlockStart":
		d.start(index, e.Get("start"))
	case "contentBlockDelta":
		d.delta(index, e.Get("delta"))
	case "contentBlockStop":
		d.stop(index)
	case "messageStop":
		d.begin()
		d.stopped = true
		d.about(e.Get("stopReason").Str, e.Get("additionalModelResponseFields"))
		if d.usage != nil {
			d.end()
		}
	case "metadata":
		d.begin()
		d.metadata(e)
		if d.stopped {
			d.end()
		}
	}
}

// metadata processes usage and other metadata of the answer.
func (d *decoder) metadata(e gjson.Result) {
	d.usage = usageOf(e.Get("usage"), e.Get("serviceTier.type").Str)
	for _, name := range []string{"trace", "performanceConfig"} {
		if value := e.Get(name); value.IsObject() {
			d.options.SetRaw(self, name, json.RawMessage(value.Raw))
		}
	}
}

func (d *decoder) about(reason string, more gjson.Result) {
	d.finish = hub.Finish{Reason: reasonOf(reason), Raw: reason}
	for _, path := range []string{"delta.stop_sequence", "stop_sequence"} {
		if s := more.Get(path); s.Type == gjson.String {
			d.options.Set(self, "stopSequence", s.Str)
		}
	}
}

// reasonOf returns the hub's reason for a stopReason.
func reasonOf(raw string) hub.Reason {
	switch raw {
	case "end_turn", "stop_sequence":
		return hub.Stop
	case "max_tokens", "model_context_window_exceeded":
		return hub.Length
	case "tool_use":
		return hub.ToolCalls
	case "content_filtered", "guardrail_intervened":
		return hub.ContentFilter
	case "malformed_model_output", "malformed_tool_use":
		return hub.Failed
	}
	return hub.OtherReason
}

// usageOf decodes usage, whose input count excludes cache reads and writes. It returns
// nil if there is none.
func usageOf(u gjson.Result, tier string) *hub.Usage {
	if !u.IsObject() {
		return nil
	}
	out := &hub.Usage{
		NoCache: number(u.Get("inputTokens")), Output: number(u.Get("outputTokens")),
		CacheRead: number(u.Get("cacheReadInputTokens")), CacheWrite: number(u.Get("cacheWriteInputTokens")),
		Tier: tier, Raw: json.RawMessage(u.Raw),
	}
	u.Get("cacheDetails").ForEach(func(_, part gjson.Result) bool {
		if n := number(part.Get("inputTokens")); n != nil && part.Get("ttl").Str == "1h" {
			out.CacheWrite1h = hub.N(hub.Count(out.CacheWrite1h) + *n)
		}
		return true
	})
	out.Fill()
	return out
}

func number(value gjson.Result) *int64 {
	var n int64
	if value.Type != gjson.Number || json.Unmarshal([]byte(value.Raw), &n) != nil || n < 0 {
		return nil
	}
	return &n
}

// end emits the end of the answer.
func (d *decoder) end() {
	if d.ended {
		return
	}
	d.closeAll(func(*opened) bool { return true })
	if d.ended {
		return
	}
	d.ended = true
	if d.finish.Reason == "" {
		d.finish.Reason = hub.OtherReason
	}
	if d.finish.Reason == hub.ToolCalls && d.answered && !d.called {
		d.finish.Reason = hub.Stop
	}
	d.emit(hub.Event{Kind: hub.Finished, Finish: d.finish, Usage: d.usage, Options: d.options})
}

// closeAll closes the open blocks that f selects, in order.
func (d *decoder) closeAll(f func(*opened) bool) {
	for {
		first := int64(-1)
		for index, o := range d.open {
			if (first < 0 || index < first) && f(o) {
				first = index
			}
		}
		if first < 0 {
			return
		}
		d.stop(first)
	}
}

// add opens a block. Blocks are consecutive, so earlier blocks without an end event end
// here.
func (d *decoder) add(index int64, o *opened) bool {
	d.begin()
	if index <= d.last {
		d.fail(errorf(d.target, "%s opened block %d after block %d", d.target.Provider, index, d.last))
		return false
	}
	d.closeAll(func(before *opened) bool { return before.implied })
	d.last = index
	o.id = strconv.FormatInt(index, 10)
	d.open[index] = o
	return !d.ended
}

func (d *decoder) start(index int64, start gjson.Result) {
	switch {
	case start.Get("toolUse").IsObject():
		if o := new(opened); d.add(index, o) {
			d.startCall(o, start.Get("toolUse"))
		}
	case start.Get("toolResult").IsObject():
		r := start.Get("toolResult")
		o := &opened{call: hub.ToolCall{ID: r.Get("toolUseId").Str}, status: r.Get("status").Str}
		d.add(index, o)
	case start.Get("image").IsObject():
		d.fail(errorf(d.target, "%s streams an image, which the gateway does not know how to read", d.target.Provider))
	}
	// Other kinds of blocks are recognized by their first delta.
}

func (d *decoder) startCall(o *opened, u gjson.Result) {
	o.kind = hub.InputStart
	o.call = hub.ToolCall{ID: u.Get("toolUseId").Str, Name: u.Get("name").Str, ProviderExecuted: u.Get("type").Str == "server_tool_use"}
	if o.answer = o.call.Name == hub.AnswerTool; o.answer {
		d.emit(hub.Event{Kind: hub.TextStart, ID: o.id})
		return
	}
	if d.calls++; d.calls > maxToolCalls {
		d.fail(errorf(d.target, "%s called more than %d tools in one answer", d.target.Provider, maxToolCalls))
		return
	}
	if o.call.ID == "" {
		o.call.ID = "call_" + rand.Text()[:24]
	}
	if o.call.Name == "" || d.names[o.call.ID] != "" {
		d.fail(errorf(d.target, "%s sent a tool call without a name or an id of its own", d.target.Provider))
		return
	}
	d.names[o.call.ID] = o.call.Name
	d.emit(hub.Event{Kind: hub.InputStart, ID: o.call.ID, Name: o.call.Name, ProviderExecuted: o.call.ProviderExecuted})
}

// delta processes a delta of a block. Text and reasoning blocks open with their first
// delta.
func (d *decoder) delta(index int64, delta gjson.Result) {
	if d.ended {
		return
	}
	d.begin()
	o := d.open[index]
	switch {
	case delta.Get("text").Type == gjson.String, delta.Get("citation").IsObject():
		if o == nil {
			o = &opened{kind: hub.TextStart, implied: true}
			if !d.add(index, o) {
				return
			}
			d.emit(hub.Event{Kind: hub.TextStart, ID: o.id})
		}
		if o.kind != hub.TextStart {
			d.mixed(index)
			return
		}
		if text := delta.Get("text").Str; text != "" {
			d.emit(hub.Event{Kind: hub.TextDelta, ID: o.id, Delta: text})
		}
		d.citation(o, delta.Get("citation"))
	case delta.Get("reasoningContent").IsObject():
		if o == nil {
			o = &opened{kind: hub.ReasoningStart, implied: true}
			if !d.add(index, o) {
				return
			}
			d.emit(hub.Event{Kind: hub.ReasoningStart, ID: o.id})
		}
		if o.kind != hub.ReasoningStart {
			d.mixed(index)
			return
		}
		d.reasoning(o, delta.Get("reasoningContent"))
	case delta.Get("toolUse").IsObject():
		if o == nil || o.kind != hub.InputStart {
			d.mixed(index)
			return
		}
		d.input(o, delta.Get("toolUse.input").Str)
	case delta.Get("toolResult").IsArray():
		if o == nil || o.kind != 0 {
			d.mixed(index)
			return
		}
		delta.Get("toolResult").ForEach(func(_, item gjson.Result) bool {
			o.list = append(o.list, json.RawMessage(item.Raw))
			return d.keep(len(item.Raw))
		})
	}
}

func (d *decoder) mixed(index int64) {
	d.fail(errorf(d.target, "%s went on with block %d, which is not open or of another kind", d.target.Provider, index))
}

func (d *decoder) reasoning(o *opened, r gjson.Result) {
	if text := r.Get("text").Str; text != "" {
		d.emit(hub.Event{Kind: hub.ReasoningDelta, ID: o.id, Delta: text})
	}
	if !d.keep(len(r.Raw)) {
		return
	}
	o.sig.WriteString(r.Get("signature").Str)
	if data, ok := redacted(r); ok {
		piece, err := base64.StdEncoding.DecodeString(data)
		if err != nil {
			d.fail(errorf(d.target, "%s sent redacted reasoning that is not base64", d.target.Provider))
			return
		}
		o.redact = append(o.redact, piece...) // pieces of base64 cannot be joined
	}
}

// redacted returns the redacted data of reasoning; older models use another member for
// it.
func redacted(r gjson.Result) (string, bool) {
	for _, path := range []string{"redactedContent", "redactedReasoning.data", "data"} {
		if data := r.Get(path); data.Type == gjson.String {
			return data.Str, true
		}
	}
	return "", false
}

func (d *decoder) input(o *opened, piece string) {
	if piece == "" || !d.keep(len(piece)) {
		return
	}
	o.input.WriteString(piece)
	if o.answer {
		d.emit(hub.Event{Kind: hub.TextDelta, ID: o.id, Delta: piece})
	} else {
		d.emit(hub.Event{Kind: hub.InputDelta, ID: o.call.ID, Delta: piece})
	}
}

// citation keeps a citation for the end of its text, and emits its source.
func (d *decoder) citation(o *opened, c gjson.Result) {
	if !c.IsObject() || !d.keep(len(c.Raw)) {
		return
	}
	o.list = append(o.list, json.RawMessage(c.Raw))
	s := &hub.Source{ID: "source-" + strconv.Itoa(d.sources), URL: c.Get("location.web.url").Str, Title: c.Get("title").Str}
	if s.URL == "" {
		s.MediaType = "text/plain"
		if c.Get("location.documentPage").Exists() {
			s.MediaType = "application/pdf"
		}
	}
	d.sources++
	var options hub.Options
	options.Set(self, "citedText", c.Get("sourceContent.0.text").Str)
	d.emit(hub.Event{Kind: hub.Whole, Part: &hub.Part{Kind: hub.SourcePart, Source: s, Options: options}})
}

// stop closes a block. A text block without deltas was never opened.
func (d *decoder) stop(index int64) {
	o := d.open[index]
	if o == nil || d.ended {
		return
	}
	delete(d.open, index)
	switch o.kind {
	case hub.TextStart:
		if len(o.list) > 0 {
			raw, _ := hub.Encode(o.list) // received JSON, cannot fail
			o.options.SetRaw(self, "citations", raw)
		}
		d.emit(hub.Event{Kind: hub.TextEnd, ID: o.id, Options: o.options})
	case hub.ReasoningStart:
		if o.sig.Len() > 0 {
			o.options.Set(self, "signature", o.sig.String())
		}
		if o.redact != nil {
			o.options.Set(self, "redactedData", base64.StdEncoding.EncodeToString(o.redact))
		}
		d.emit(hub.Event{Kind: hub.ReasoningEnd, ID: o.id, Options: o.options})
	case hub.InputStart:
		d.stopCall(o)
	default:
		raw, _ := hub.Encode(o.list) // received JSON, cannot fail
		d.result(o.call.ID, o.status, raw)
	}
}

func (d *decoder) stopCall(o *opened) {
	if o.input.Len() == 0 {
		d.input(o, "{}")
	}
	if d.ended {
		return
	}
	if o.answer {
		d.answered = true
		d.emit(hub.Event{Kind: hub.TextEnd, ID: o.id})
		return
	}
	o.call.Input = o.input.String()
	d.called = d.called || !o.call.ProviderExecuted
	d.emit(hub.Event{Kind: hub.InputEnd, ID: o.call.ID})
	d.emit(hub.Event{Kind: hub.Whole, Part: &hub.Part{Kind: hub.ToolCallPart, Call: &o.call}})
}

// result emits the result of a provider-run tool.
func (d *decoder) result(id, status string, content json.RawMessage) {
	r := &hub.ToolResult{CallID: id, Name: d.names[id], ProviderExecuted: true, Output: hub.ToolOutput{Kind: hub.OutputJSON, JSON: content}}
	if r.Name == "" {
		r.Name = "tool"
	}
	if status == "error" {
		r.Output.Kind = hub.OutputErrorJSON
	}
	d.emit(hub.Event{Kind: hub.Whole, Part: &hub.Part{Kind: hub.ToolResultPart, Result: r}})
}

// block processes a block of a whole answer.
func (d *decoder) block(index int64, b gjson.Result) {
	switch {
	case !b.IsObject():
		d.fail(errorf(d.target, "%s sent a block that is no object", d.target.Provider))
	case b.Get("text").Type == gjson.String:
		d.delta(index, b)
		d.stop(index)
	case b.Get("citationsContent").IsObject():
		c := b.Get("citationsContent")
		c.Get("content").ForEach(func(_, piece gjson.Result) bool {
			d.delta(index, piece)
			return true
		})
		c.Get("citations").ForEach(func(_, cited gjson.Result) bool {
			raw, _ := hub.Encode(map[string]json.RawMessage{"citation": json.RawMessage(cited.Raw)}) // received JSON, cannot fail
			d.delta(index, gjson.ParseBytes(raw))
			return true
		})
		d.stop(index)
	case b.Get("reasoningContent").IsObject():
		r := b.Get("reasoningContent")
		if text := r.Get("reasoningText"); text.IsObject() {
			r = text
		}
		raw, _ := hub.Encode(map[string]json.RawMessage{"reasoningContent": json.RawMessage(r.Raw)}) // received JSON, cannot fail
		d.delta(index, gjson.ParseBytes(raw))
		d.stop(index)
	case b.Get("toolUse").IsObject():
		d.start(index, b)
		if o := d.open[index]; o != nil && !d.ended {
			var input bytes.Buffer
			if raw := b.Get("toolUse.input"); raw.Type != gjson.Null && json.Compact(&input, []byte(raw.Raw)) == nil {
				d.input(o, input.String())
			}
		}
		d.stop(index)
	case b.Get("toolResult").IsObject():
		d.begin()
		r := b.Get("toolResult")
		content := json.RawMessage("[]")
		if list := r.Get("content"); list.IsArray() {
			content = json.RawMessage(list.Raw)
		}
		d.result(r.Get("toolUseId").Str, r.Get("status").Str, content)
	case b.Get("image").IsObject():
		d.begin()
		data, err := base64.StdEncoding.DecodeString(b.Get("image.source.bytes").Str)
		if err != nil || len(data) == 0 {
			d.fail(errorf(d.target, "%s sent an image without its bytes", d.target.Provider))
			return
		}
		f := &hub.File{MediaType: "image/" + b.Get("image.format").Str, Data: data}
		d.emit(hub.Event{Kind: hub.Whole, Part: &hub.Part{Kind: hub.FilePart, File: f}})
	default:
		d.begin()
		b.ForEach(func(key, value gjson.Result) bool {
			if key.Str == "type" {
				return true
			}
			p := &hub.Part{Kind: hub.CustomPart, CustomKind: self + "." + key.Str, Custom: json.RawMessage(value.Raw)}
			d.emit(hub.Event{Kind: hub.Whole, Part: p})
			return false
		})
	}
}
