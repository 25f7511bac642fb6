package messages

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// decoder converts an answer to hub events, from the events of a stream (event) or from a
// whole message (message). The slice events is valid until it is reset.
type decoder struct {
	target *hub.Target
	events []hub.Event
	open   map[int64]*opened
	names  map[string]string // names of provider-run tools by call id

	counts   counts
	code     bool // the provider has run some
	finish   hub.Finish
	options  hub.Options
	begun    bool
	told     bool   // message_start has come
	id       string // the id in the answer
	ended    bool
	calls    int
	answered bool // by hub.AnswerTool
	called   bool // a tool of the client's
	sources  int
	kept     int // bytes of open blocks
}

// opened is an open block.
type opened struct {
	kind    string // type of the block
	id      string // id of the block in hub events
	call    hub.ToolCall
	options hub.Options
	start   gjson.Result
	input   strings.Builder
	typed   typed
	list    []json.RawMessage // citations
	more    map[string]string // texts that deltas added to members of an unknown block
	sig     strings.Builder
}

func newDecoder(t *hub.Target) *decoder {
	return &decoder{target: t, open: make(map[int64]*opened), names: make(map[string]string)}
}

func (d *decoder) emit(e hub.Event) { d.events = append(d.events, e) }

// fail ends the answer with an error.
func (d *decoder) fail(err *hub.Error) {
	if !d.ended {
		d.ended = true
		d.emit(hub.Event{Kind: hub.Failure, Err: err})
	}
}

// event processes the JSON of one stream event.
func (d *decoder) event(data []byte) {
	if !json.Valid(data) {
		d.fail(errorf(d.target, "%s sent an event that is not JSON", d.target.Provider))
		return
	}
	e := gjson.ParseBytes(data)
	if c := d.target.Call; c != nil && c.IncludeRaw && e.Get("type").Str != "ping" {
		raw := hub.Event{Kind: hub.Raw, Raw: append(json.RawMessage(nil), data...)}
		if d.begun {
			d.emit(raw)
		} else {
			defer func() { // the Start must come before events from the answer's beginning
				if d.begun && !d.ended {
					d.emit(raw)
				}
			}()
		}
	}
	index := e.Get("index").Int()
	switch e.Get("type").Str {
	case "message_start":
		d.message(e.Get("message"))
	case "content_block_start":
		d.start(index, e.Get("content_block"))
	case "content_block_delta":
		d.delta(index, e.Get("delta"))
	case "content_block_stop":
		d.stop(index)
	case "message_delta":
		d.counts.add(e.Get("usage"))
		d.about(e.Get("delta"))
		d.option("contextManagement", e.Get("context_management"))
	case "message_stop":
		d.end()
	case "ping":
		if d.begun {
			d.emit(hub.Event{Kind: hub.Ping})
		}
	case "error":
		d.fail(errorOf(d.target, e.Get("error")))
	}
}

// begin emits the events that start every answer.
func (d *decoder) begin() {
	if !d.begun {
		d.begun = true
		d.emit(hub.Event{Kind: hub.Start})
	}
}

// message processes a whole message, or the message in message_start.
func (d *decoder) message(m gjson.Result) {
	id := m.Get("id").Str
	if d.told && id == d.id { // once more
		return
	}
	if d.begun {
		d.fail(errorf(d.target, "%s began a second answer within the first", d.target.Provider))
		return
	}
	d.told, d.id = true, id
	d.begin()
	if model := m.Get("model").Str; id != "" || model != "" {
		d.emit(hub.Event{Kind: hub.Metadata, Response: hub.Response{ID: id, Model: model}})
	}
	d.counts.add(m.Get("usage"))
	index := int64(0)
	for _, b := range m.Get("content").Array() {
		d.start(index, b)
		d.stop(index)
		index++
		if d.ended {
			return
		}
	}
	d.about(m)
	d.option("contextManagement", m.Get("context_management"))
}

// about processes the members that concern the whole answer.
func (d *decoder) about(m gjson.Result) {
	if reason := m.Get("stop_reason").Str; reason != "" {
		d.finish = hub.Finish{Reason: reasonOf(reason), Raw: reason}
	}
	d.option("stopSequence", m.Get("stop_sequence"))
	d.option("stopDetails", m.Get("stop_details"))
	d.option("container", m.Get("container"))
}

func (d *decoder) option(name string, value gjson.Result) {
	if value.Exists() && value.Type != gjson.Null {
		d.options.SetRaw(self, name, camels(value))
	}
}

// end emits the end of the answer.
func (d *decoder) end() {
	if d.ended {
		return
	}
	d.begin()
	for len(d.open) > 0 { // the provider sent no end for them
		first := int64(-1)
		for index := range d.open {
			if first < 0 || index < first {
				first = index
			}
		}
		d.stop(first)
		delete(d.open, first)
	}
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
	d.emit(hub.Event{Kind: hub.Finished, Finish: d.finish, Usage: d.counts.usage(d.code), Options: d.options})
}

// reasonOf returns the hub's reason for a stop_reason.
func reasonOf(raw string) hub.Reason {
	switch raw {
	case "end_turn", "stop_sequence", "pause_turn":
		return hub.Stop
	case "max_tokens", "model_context_window_exceeded":
		return hub.Length
	case "tool_use":
		return hub.ToolCalls
	case "refusal":
		return hub.ContentFilter
	}
	return hub.OtherReason
}

// start opens a block, with the content of its start event.
func (d *decoder) start(index int64, b gjson.Result) {
	d.begin()
	if !b.IsObject() {
		d.fail(errorf(d.target, "%s sent a block that is no object", d.target.Provider))
		return
	}
	if d.open[index] != nil || index < 0 {
		d.fail(errorf(d.target, "%s opened block %d twice", d.target.Provider, index))
		return
	}
	o := &opened{kind: b.Get("type").Str, id: strconv.FormatInt(index, 10), start: b}
	if !d.keep(len(b.Raw)) {
		return
	}
	d.open[index] = o
	switch o.kind {
	case "text", "compaction":
		if o.kind == "compaction" {
			o.options.Set(self, "type", "compaction")
		}
		d.emit(hub.Event{Kind: hub.TextStart, ID: o.id, Options: o.options})
		d.text(o, b.Get("text").Str+b.Get("content").Str)
		b.Get("citations").ForEach(func(_, c gjson.Result) bool {
			d.citation(o, c)
			return true
		})
	case "thinking":
		d.emit(hub.Event{Kind: hub.ReasoningStart, ID: o.id})
		d.thought(o, b.Get("thinking").Str)
		o.sig.WriteString(b.Get("signature").Str)
	case "redacted_thinking":
		o.options.Set(self, "redactedData", b.Get("data").Str)
		d.emit(hub.Event{Kind: hub.ReasoningStart, ID: o.id, Options: o.options})
	case "tool_use", "server_tool_use", "mcp_tool_use":
		d.code = d.code || runsCode(b)
		d.startCall(o)
	default:
		if isResult(o.kind) {
			d.result(b)
		}
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

func (d *decoder) startCall(o *opened) {
	b := o.start
	o.call = hub.ToolCall{ID: b.Get("id").Str, Name: b.Get("name").Str}
	if o.call.Name == hub.AnswerTool {
		d.emit(hub.Event{Kind: hub.TextStart, ID: o.id})
		return
	}
	if d.calls++; d.calls > maxToolCalls {
		d.fail(errorf(d.target, "%s called more than %d tools in one answer", d.target.Provider, maxToolCalls))
		return
	}
	if o.call.ID == "" || o.call.Name == "" || d.names[o.call.ID] != "" {
		d.fail(errorf(d.target, "%s sent a tool call without a name or an id of its own", d.target.Provider))
		return
	}
	d.names[o.call.ID] = o.call.Name
	call, options := callOptions(b, nil)
	o.call.ProviderExecuted, o.call.Dynamic, o.options = call.ProviderExecuted, call.Dynamic, options
	if o.call.ProviderExecuted && isCode(o.call.Name) {
		o.typed.name = o.call.Name
		o.call.Name = codeExecution
	}
	o.call.Name = d.nameOf(o.call.Name)
	d.emit(hub.Event{
		Kind: hub.InputStart, ID: o.call.ID, Name: o.call.Name,
		ProviderExecuted: o.call.ProviderExecuted, Dynamic: o.call.Dynamic, Options: o.options,
	})
}

// nameOf returns the caller's name of an Anthropic tool that has a fixed name.
func (d *decoder) nameOf(name string) string {
	if d.target.Call == nil {
		return name
	}
	for i := range d.target.Call.Tools {
		t := &d.target.Call.Tools[i]
		if kind, ok := strings.CutPrefix(t.ProviderID, self+"."); ok && nameOfType(typeOfID(kind)) == name {
			return t.Name
		}
	}
	return name
}

func (d *decoder) result(b gjson.Result) {
	name := d.names[b.Get("tool_use_id").Str]
	p := resultPart(b, name)
	p.Result.Name = d.nameOf(p.Result.Name)
	d.emit(hub.Event{Kind: hub.Whole, Part: &p})
	if b.Get("type").Str != "web_search_tool_result" {
		return
	}
	b.Get("content").ForEach(func(_, found gjson.Result) bool {
		if found.Get("type").Str == "web_search_result" {
			var o hub.Options // never nil: the options mark the sources as Anthropic's
			o.SetRaw(self, "pageAge", json.RawMessage("null"))
			if age := found.Get("page_age"); age.Type == gjson.String {
				o.Set(self, "pageAge", age.Str)
			}
			d.source(&hub.Source{URL: found.Get("url").Str, Title: found.Get("title").Str}, o)
		}
		return true
	})
}

func (d *decoder) source(s *hub.Source, o hub.Options) {
	s.ID = "source-" + strconv.Itoa(d.sources)
	d.sources++
	d.emit(hub.Event{Kind: hub.Whole, Part: &hub.Part{Kind: hub.SourcePart, Source: s, Options: o}})
}

// citation keeps a citation for the end of its text, and emits its source.
func (d *decoder) citation(o *opened, c gjson.Result) {
	if !c.IsObject() || !d.keep(len(c.Raw)) {
		return
	}
	o.list = append(o.list, json.RawMessage(c.Raw))
	var said hub.Options
	said.Set(self, "citedText", c.Get("cited_text").Str)
	title := c.Get("title").Str
	switch c.Get("type").Str {
	case "web_search_result_location":
		said.Set(self, "encryptedIndex", c.Get("encrypted_index").Str)
		d.source(&hub.Source{URL: c.Get("url").Str, Title: title}, said)
	case "page_location", "char_location", "content_block_location":
		if name := c.Get("document_title"); name.Type == gjson.String {
			title = name.Str
		}
		for _, name := range []string{"start_page_number", "end_page_number", "start_char_index", "end_char_index"} {
			if n := c.Get(name); n.Type == gjson.Number {
				said.SetRaw(self, camel(name), json.RawMessage(n.Raw))
			}
		}
		media := "text/plain"
		if c.Get("type").Str == "page_location" {
			media = "application/pdf"
		}
		d.source(&hub.Source{Title: title, MediaType: media}, said)
	}
}

func (d *decoder) text(o *opened, text string) {
	if text != "" {
		d.emit(hub.Event{Kind: hub.TextDelta, ID: o.id, Delta: text})
	}
}

func (d *decoder) thought(o *opened, text string) {
	if text != "" {
		d.emit(hub.Event{Kind: hub.ReasoningDelta, ID: o.id, Delta: text})
	}
}

// delta processes a delta of a block.
func (d *decoder) delta(index int64, delta gjson.Result) {
	o := d.open[index]
	if o == nil {
		d.fail(errorf(d.target, "%s went on with block %d, which is not open", d.target.Provider, index))
		return
	}
	switch kind := delta.Get("type").Str; {
	case kind == "text_delta" && o.kind == "text":
		d.text(o, delta.Get("text").Str)
	case kind == "compaction_delta" && o.kind == "compaction":
		d.text(o, delta.Get("content").Str)
	case kind == "thinking_delta" && o.kind == "thinking":
		d.thought(o, delta.Get("thinking").Str)
	case kind == "signature_delta" && o.kind == "thinking":
		if s := delta.Get("signature").Str; d.keep(len(s)) {
			o.sig.WriteString(s)
		}
	case kind == "citations_delta" && o.kind == "text":
		d.citation(o, delta.Get("citation"))
	case kind == "input_json_delta" && (o.kind == "tool_use" || o.kind == "server_tool_use" || o.kind == "mcp_tool_use"):
		d.input(o, delta.Get("partial_json").Str)
	default:
		d.unknownDelta(o, delta)
	}
}

func (d *decoder) input(o *opened, piece string) {
	if piece = o.typed.add(piece); piece == "" || !d.keep(len(piece)) {
		return
	}
	o.input.WriteString(piece)
	if o.call.Name == hub.AnswerTool {
		d.text(o, piece)
	} else {
		d.emit(hub.Event{Kind: hub.InputDelta, ID: o.call.ID, Delta: piece})
	}
}

// unknownDelta adds a delta's texts to a block of unknown type, which is passed on
// completely.
func (d *decoder) unknownDelta(o *opened, delta gjson.Result) {
	if !delta.IsObject() || !d.keep(len(delta.Raw)) {
		return
	}
	if o.more == nil {
		o.more = make(map[string]string)
	}
	delta.ForEach(func(key, value gjson.Result) bool {
		if key.Str != "type" && value.Type == gjson.String {
			o.more[key.Str] += value.Str
		}
		return true
	})
}

// stop closes a block.
func (d *decoder) stop(index int64) {
	o := d.open[index]
	if o == nil {
		if !d.ended {
			d.fail(errorf(d.target, "%s closed block %d, which is not open", d.target.Provider, index))
		}
		return
	}
	delete(d.open, index)
	if d.ended {
		return
	}
	switch o.kind {
	case "text", "compaction":
		if len(o.list) > 0 {
			raw, _ := hub.Encode(o.list) // received JSON, cannot fail
			o.options.SetRaw(self, "citations", raw)
		}
		d.emit(hub.Event{Kind: hub.TextEnd, ID: o.id, Options: o.options})
	case "thinking":
		if o.sig.Len() > 0 {
			o.options.Set(self, "signature", o.sig.String())
		}
		d.emit(hub.Event{Kind: hub.ReasoningEnd, ID: o.id, Options: o.options})
	case "redacted_thinking":
		d.emit(hub.Event{Kind: hub.ReasoningEnd, ID: o.id, Options: o.options})
	case "tool_use", "server_tool_use", "mcp_tool_use":
		d.stopCall(o)
	default:
		if !isResult(o.kind) {
			d.custom(o)
		}
	}
}

func (d *decoder) stopCall(o *opened) {
	if o.input.Len() == 0 { // the input came whole, or is missing
		whole := bytes.NewBuffer(nil)
		if input := o.start.Get("input"); input.Type == gjson.Null || json.Compact(whole, []byte(input.Raw)) != nil {
			whole.WriteString("{}")
		}
		d.input(o, whole.String())
	}
	if d.ended {
		return
	}
	o.call.Input = o.input.String()
	if o.call.Name == hub.AnswerTool {
		d.answered = true
		d.emit(hub.Event{Kind: hub.TextEnd, ID: o.id})
		return
	}
	d.called = d.called || !o.call.ProviderExecuted
	d.emit(hub.Event{Kind: hub.InputEnd, ID: o.call.ID})
	d.emit(hub.Event{Kind: hub.Whole, Part: &hub.Part{Kind: hub.ToolCallPart, Call: &o.call, Options: o.options}})
}

func (d *decoder) custom(o *opened) {
	p := &hub.Part{Kind: hub.CustomPart, CustomKind: self + "." + o.kind, Custom: without(o.start, "type")}
	if o.more != nil {
		members := make(map[string]json.RawMessage)
		if p.Custom != nil && json.Unmarshal(p.Custom, &members) != nil {
			members = make(map[string]json.RawMessage)
		}
		for name, text := range o.more {
			var before string
			_ = json.Unmarshal(members[name], &before) // a missing value, or one that is no string, is replaced
			members[name] = gjson.AppendJSONString(nil, before+text)
		}
		p.Custom, _ = hub.Encode(members) // JSON of ours
	}
	d.emit(hub.Event{Kind: hub.Whole, Part: p})
}
