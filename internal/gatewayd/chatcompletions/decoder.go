package chatcompletions

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// decoder converts chunks of an answer to events.
type decoder struct {
	output

	named    bool // Metadata has been emitted
	answered bool // a choice has come
	content  bool // a block, a tool call or an image has come
	finished bool // a finish_reason has come

	open    block
	blocks  int // number of blocks so far
	mused   int // number of reasoning blocks
	think   thinkTags
	refused bool

	calls []*call
	told  toolCalls // the same calls, told apart
	ids   map[string]bool

	kept    int // bytes of tool input and logprobs
	finish  string
	usage   *hub.Usage
	tier    string
	sources sources
}

// output is the events of an answer.
type output struct {
	t      *hub.Target
	events []hub.Event
	begun  bool // Start has been emitted
	done   bool // Finished or Failure has been emitted
}

// block is the open block of text or reasoning; id is empty if no block is open.
type block struct {
	id       string
	kind     hub.EventKind // TextStart or ReasoningStart
	refusal  bool
	index    int64 // in reasoning_details; -1 if unknown
	options  hub.Options
	logprobs []byte
}

// call is a tool call.
type call struct {
	*toolCall
	id      string // id in the hub; empty until the input has started
	input   strings.Builder
	options hub.Options
	custom  bool // the input is text
	closed  bool
}

func newDecoder(t *hub.Target) *decoder {
	return &decoder{output: output{t: t}, told: toolCalls{whole: t.Is(WholeToolCalls)}, ids: map[string]bool{}}
}

// start emits the start of the stream, once.
func (o *output) start() {
	if !o.begun {
		o.begun = true
		o.events = append(o.events, hub.Event{Kind: hub.Start})
	}
}

func (o *output) emit(e hub.Event) {
	if e.Kind != hub.Failure {
		o.start()
	}
	o.events = append(o.events, e)
}

func (o *output) fail(err *hub.Error) {
	if !o.done {
		o.done = true
		o.emit(hub.Event{Kind: hub.Failure, Err: err})
	}
}

// broken fails with the error for a malformed answer.
func (o *output) broken(what string) {
	o.fail(&hub.Error{Kind: hub.UpstreamFailed, Provider: o.t.Provider, Message: "the provider " + o.t.Provider + " failed: " + what})
}

// whole decodes a whole answer.
func (d *decoder) whole(root gjson.Result) {
	d.chunk(root)
	switch {
	case d.done:
	case !d.answered:
		d.broken("its answer has no choices")
	default:
		d.end()
	}
}

// chunk decodes the next chunk.
func (d *decoder) chunk(root gjson.Result) {
	if !root.IsObject() {
		d.broken("a part of its answer is no JSON object")
		return
	}
	if d.t.Call != nil && d.t.Call.IncludeRaw {
		d.emit(hub.Event{Kind: hub.Raw, Raw: json.RawMessage(root.Raw)})
	}
	var r hub.Response
	var choices, usage, groq, failure gjson.Result
	root.ForEach(func(key, v gjson.Result) bool {
		switch key.Str {
		case "id":
			r.ID = v.Str
		case "model":
			r.Model = v.Str
		case "created":
			if v.Num > 0 && v.Num < 1<<40 {
				r.Created = time.Unix(int64(v.Num), 0).UTC()
			}
		case "choices":
			choices = v
		case "usage":
			usage = v
		case "x_groq":
			groq = v.Get("usage")
		case "service_tier":
			d.tier = v.Str
		case "citations":
			d.sources.citations = v
		case "search_results":
			d.sources.results = v
		case "error":
			failure = v
		}
		return true
	})
	if isError(failure) {
		d.fail(errorIn(d.t, root, 0))
		return
	}
	if !d.named && (r.ID != "" || r.Model != "") { // the first chunk of Azure has neither
		d.named = true
		d.emit(hub.Event{Kind: hub.Metadata, Response: r})
	}
	if u := readUsage(groq); u != nil {
		d.usage = u
	}
	if u := readUsage(usage); u != nil {
		d.usage = u
	}
	list(choices).ForEach(func(_, c gjson.Result) bool {
		if index := c.Get("index"); index.Num == 0 {
			d.choice(c)
		}
		return !d.done
	})
}

func (d *decoder) choice(c gjson.Result) {
	if !c.IsObject() {
		return
	}
	d.start()
	var delta, logprobs gjson.Result
	c.ForEach(func(key, v gjson.Result) bool {
		switch key.Str {
		case "delta", "message":
			if v.IsObject() {
				delta = v
			}
		case "finish_reason":
			if v.Type == gjson.String && v.Str != "" {
				d.finished, d.finish = true, v.Str
			}
		case "logprobs":
			logprobs = v.Get("content")
		case "usage": // Moonshot
			if u := readUsage(v); u != nil {
				d.usage = u
			}
		case "error": // OpenRouter
			if isError(v) {
				d.fail(errorIn(d.t, c, 0))
			}
		}
		return true
	})
	if d.done {
		return
	}
	d.answered = true
	if delta.Exists() {
		d.delta(delta)
	}
	if logprobs.IsArray() && d.open.kind == hub.TextStart {
		logprobs.ForEach(func(_, v gjson.Result) bool {
			d.open.logprobs = append(append(d.open.logprobs, v.Raw...), ',')
			return d.keep(len(v.Raw))
		})
	}
}

// delta decodes a delta, or a whole message.
func (d *decoder) delta(v gjson.Result) {
	var content, refusal, plain, details, images, calls gjson.Result
	v.ForEach(func(key, v gjson.Result) bool {
		switch key.Str {
		case "content":
			content = v
		case "refusal":
			refusal = v
		case "reasoning_content", "reasoning", "reasoning_text":
			if v.Type == gjson.String && v.Str != "" {
				plain = v
			}
		case "reasoning_details":
			details = v
		case "images":
			images = v
		case "tool_calls":
			calls = v
		case "annotations":
			v.ForEach(func(_, note gjson.Result) bool {
				d.sources.annotation(note)
				return true
			})
		}
		return true
	})
	d.reasoning(details, plain.Str)
	switch {
	case content.Type == gjson.String:
		d.text(content.Str)
	case content.IsArray():
		content.ForEach(func(_, p gjson.Result) bool {
			d.part(p)
			return true
		})
	}
	if refusal.Type == gjson.String && refusal.Str != "" {
		d.refused = true
		d.write(hub.TextStart, refusal.Str, true)
	}
	list(images).ForEach(func(_, image gjson.Result) bool {
		d.image(orText(image.Get("image_url"), "url").Str)
		return true
	})
	list(calls).ForEach(func(_, c gjson.Result) bool {
		d.toolCall(c)
		return !d.done
	})
}

// list returns v if it is a list, else an empty result: many members may be null, and
// gjson treats any value as a list of itself.
func list(v gjson.Result) gjson.Result {
	if v.IsArray() {
		return v
	}
	return gjson.Result{}
}

// part decodes a part of a content list, which Mistral sends.
func (d *decoder) part(p gjson.Result) {
	switch p.Get("type").Str {
	case "text", "output_text":
		d.text(p.Get("text").Str)
	case "thinking":
		d.write(hub.ReasoningStart, joinText(p.Get("thinking")), false)
	case "image_url":
		d.image(orText(p.Get("image_url"), "url").Str)
	}
}

// text processes text, and splits off thinking in tags.
func (d *decoder) text(s string) {
	if !d.t.Is(ThinkTags) {
		d.write(hub.TextStart, s, false)
		return
	}
	d.think.split(s,
		func(s string) { d.write(hub.ReasoningStart, s, false) },
		func(s string) { d.write(hub.TextStart, s, false) })
}

// write appends text to the block of a kind, and opens one if necessary.
func (d *decoder) write(kind hub.EventKind, s string, refusal bool) {
	if s == "" {
		return
	}
	if d.open.id == "" || d.open.kind != kind || d.open.refusal != refusal {
		d.openBlock(kind, refusal, -1, nil)
	}
	d.emit(hub.Event{Kind: kind + 1, ID: d.open.id, Delta: s})
}

func (d *decoder) openBlock(kind hub.EventKind, refusal bool, index int64, o hub.Options) {
	d.closeBlock()
	name := "text-"
	if kind == hub.ReasoningStart {
		name = "reasoning-"
		d.mused++
	}
	if refusal {
		o.Set("openai", "refusal", true)
	}
	id := d.unique(name + strconv.Itoa(d.blocks))
	d.blocks++
	d.content = true
	d.open = block{id: id, kind: kind, refusal: refusal, index: index, options: o}
	d.emit(hub.Event{Kind: kind, ID: id, Options: o})
}

func (d *decoder) closeBlock() {
	if d.open.id == "" {
		return
	}
	if n := len(d.open.logprobs); n > 0 {
		d.open.options.SetRaw("openai", "logprobs", json.RawMessage("["+string(d.open.logprobs[:n-1])+"]"))
	}
	d.emit(hub.Event{Kind: d.open.kind + 2, ID: d.open.id, Options: d.open.options})
	d.open = block{}
}

// reasoning processes reasoning, which comes as text, as items with signatures, or as
// both.
func (d *decoder) reasoning(details gjson.Result, plain string) {
	hasText := false
	details.ForEach(func(_, item gjson.Result) bool {
		hasText = hasText || detailsText(item) != ""
		return !hasText
	})
	if !hasText {
		d.write(hub.ReasoningStart, plain, false)
	}
	details.ForEach(func(_, item gjson.Result) bool {
		if item.IsObject() {
			d.detail(item)
		}
		return true
	})
}

func (d *decoder) detail(item gjson.Result) {
	text, o := detailsText(item), optionsOf(item)
	if text == "" && len(o) == 0 {
		return
	}
	index := int64(-1)
	if i := item.Get("index"); i.Type == gjson.Number {
		index = i.Int()
	}
	if blocks, ok := remembered(o); ok { // the answer comes from another gateway of this kind
		for _, b := range blocks[min(d.mused, len(blocks)):] {
			d.openBlock(hub.ReasoningStart, false, index, nil)
			d.write(hub.ReasoningStart, b.Text, false)
		}
		if d.open.kind == hub.ReasoningStart {
			d.open.options.Merge(blocks[len(blocks)-1].Options)
		}
		return
	}
	redacted := o.String("anthropic", "redactedData") != ""
	same := d.open.kind == hub.ReasoningStart && !redacted && d.open.options.String("anthropic", "redactedData") == "" &&
		(d.open.index == index || d.open.index < 0)
	if !same {
		d.openBlock(hub.ReasoningStart, false, index, nil)
	}
	if d.open.index < 0 {
		d.open.index = index
	}
	d.open.options.Merge(o)
	d.write(hub.ReasoningStart, text, false)
}

func (d *decoder) image(address string) {
	f, wrong := readAddress(address, "image/*")
	if wrong != "" {
		return // carries no information
	}
	d.closeBlock()
	d.content = true
	d.emit(hub.Event{Kind: hub.Whole, Part: &hub.Part{Kind: hub.FilePart, File: f}})
}

// toolCall processes a part of a tool call, or a whole call.
func (d *decoder) toolCall(v gjson.Result) {
	p := readPiece(v)
	var c *call
	if known := d.told.find(&p); known != nil {
		c = d.calls[known.place]
	} else {
		if len(d.calls) == maxCalls {
			d.broken("its answer has more than " + strconv.Itoa(maxCalls) + " tool calls")
			return
		}
		if c = d.newCall(&p); c == nil {
			return
		}
	}
	d.told.add(c.toolCall, &p)
	if p.custom && !c.custom {
		c.custom = true
		c.options.Set("openai", hub.OptionCustom, true)
	}
	if s := v.Get("extra_content.google.thought_signature"); s.Type == gjson.String && s.Str != "" && !c.closed {
		c.options.Set("google", "thoughtSignature", s.Str)
	}
	if c.id == "" && c.name != "" {
		d.startCall(c)
	}
	d.input(c, p.args)
}

// newCall starts a tool call. It closes an open text block, and the previous call if its
// input is complete.
func (d *decoder) newCall(p *piece) *call {
	d.flush()
	d.closeBlock()
	if n := len(d.calls); n > 0 && (d.calls[n-1].custom || json.Valid([]byte(d.calls[n-1].input.String()))) {
		d.closeCall(d.calls[n-1])
	}
	if d.done {
		return nil
	}
	d.content = true
	c := &call{toolCall: d.told.begin(p)}
	d.calls = append(d.calls, c)
	return c
}

func (d *decoder) startCall(c *call) {
	c.id = d.unique(c.given)
	d.emit(hub.Event{Kind: hub.InputStart, ID: c.id, Name: c.name, Options: c.options})
	if c.input.Len() > 0 && !c.custom {
		d.emit(hub.Event{Kind: hub.InputDelta, ID: c.id, Delta: c.input.String()})
	}
}

// input appends to the input of a call. Leading white space is dropped, so that an empty
// input stays recognizable.
func (d *decoder) input(c *call, args string) {
	if args == "" || c.input.Len() == 0 && !c.custom && strings.TrimSpace(args) == "" {
		return
	}
	if c.closed {
		if strings.TrimSpace(args) != "" {
			d.broken("the input of a tool call went on after its end")
		}
		return
	}
	if !d.keep(len(args)) {
		return
	}
	c.input.WriteString(args)
	if c.id != "" && !c.custom { // the input of a custom tool becomes JSON when it is whole
		d.emit(hub.Event{Kind: hub.InputDelta, ID: c.id, Delta: args})
	}
}

// keep counts bytes kept until the end of the answer, and fails if the limit is exceeded.
func (d *decoder) keep(n int) bool {
	if d.kept += n; d.kept > maxAnswer {
		d.broken("its answer is too large")
	}
	return !d.done
}

func (d *decoder) closeCall(c *call) {
	if c.closed || d.done {
		return
	}
	c.closed = true
	if c.id == "" {
		d.broken("a tool call has no name")
		return
	}
	input := c.input.String()
	switch {
	case c.custom:
		input = string(hub.MustEncode(input))
		d.emit(hub.Event{Kind: hub.InputDelta, ID: c.id, Delta: input})
	case input == "":
		input = "{}"
	}
	d.emit(hub.Event{Kind: hub.InputEnd, ID: c.id})
	d.emit(hub.Event{Kind: hub.Whole, Part: &hub.Part{
		Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: c.id, Name: c.name, Input: input}, Options: c.options,
	}})
}

// unique returns id, or a new id if it is empty or taken.
func (d *decoder) unique(id string) string {
	for id == "" || d.ids[id] {
		id = inventID()
	}
	d.ids[id] = true
	return id
}

// flush emits text that was held back as the possible start of a tag.
func (d *decoder) flush() {
	d.think.end(
		func(s string) { d.write(hub.ReasoningStart, s, false) },
		func(s string) { d.write(hub.TextStart, s, false) })
}

// doneMark processes [DONE]. Some servers (NVIDIA NIM) send it without a finish_reason:
// then the answer is complete if it has content, and no tool call with incomplete input.
func (d *decoder) doneMark() {
	d.flush()
	if !d.finished && !d.content {
		d.broken("its answer is empty")
		return
	}
	if !d.finished && d.told.open() {
		d.broken("its answer ended within the input of a tool call")
		return
	}
	d.end()
}

// end emits the end of a complete answer.
func (d *decoder) end() {
	d.flush()
	d.closeBlock()
	for _, c := range d.calls {
		d.closeCall(c)
	}
	if d.done {
		return
	}
	all := d.sources.all()
	for i := range all {
		d.emit(hub.Event{Kind: hub.Whole, Part: &hub.Part{Kind: hub.SourcePart, Source: &all[i]}})
	}
	if d.usage != nil {
		d.usage.Tier = d.tier
	}
	d.emit(hub.Event{Kind: hub.Finished, Finish: finishOf(d.finish, len(d.calls) > 0, d.refused), Usage: d.usage})
	d.done = true
}
