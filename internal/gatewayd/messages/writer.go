package messages

import (
	"strconv"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/sse"
)

// NewWriter returns the encoder of a stream: message_start, the blocks, several of which
// may be open, message_delta and message_stop. Blocks are numbered in the order of their
// start.
func (*Format) NewWriter(a hub.Answer) hub.Writer {
	return &writer{answer: a, open: make(map[string]*written), calls: make(map[string]bool)}
}

type writer struct {
	answer  hub.Answer
	encoder encoder
	begun   bool
	ended   bool
	next    int
	open    map[string]*written
	lastTxt string          // the ID of the text that opened last
	calls   map[string]bool // calls whose input has been written
}

// written is an open block. Reasoning is written from its first delta on, because only
// then is it known not to be redacted.
type written struct {
	index   int
	begun   bool
	kind    hub.EventKind
	options hub.Options
}

func (w *writer) KeepAlive(dst []byte) []byte {
	return append(dst, "event: ping\ndata: {\"type\":\"ping\"}\n\n"...)
}

func (w *writer) Append(dst []byte, e *hub.Event) []byte {
	if w.ended {
		return dst
	}
	switch e.Kind {
	case hub.Start:
		w.encoder.warnings = append(w.encoder.warnings, e.Warnings...)
		return w.start(dst)
	case hub.Metadata, hub.Raw:
		return dst
	case hub.Failure:
		w.ended = true
		return w.failure(dst, e.Err)
	}
	dst = w.start(dst)
	switch e.Kind {
	case hub.Ping:
		return w.KeepAlive(dst)
	case hub.TextStart:
		w.lastTxt = e.ID
		b := &block{Type: "text", Text: ptr("")}
		if e.Options.String(self, "type") == "compaction" {
			b = &block{Type: "compaction", Content: ""}
		}
		w.open[e.ID] = &written{kind: e.Kind, options: e.Options}
		return w.begin(dst, w.open[e.ID], b)
	case hub.ReasoningStart:
		w.open[e.ID] = &written{kind: e.Kind, options: clone(e.Options)}
	case hub.InputStart:
		if e.ProviderExecuted && e.Name == codeExecution {
			return dst // the input determines the name, so the call is written when complete
		}
		w.calls[e.ID] = true
		w.open[e.ID] = &written{kind: e.Kind}
		return w.begin(dst, w.open[e.ID], w.encoder.call(e.Name, e.ID, e.ProviderExecuted, e.Options, []byte("{}")))
	case hub.TextDelta, hub.ReasoningDelta, hub.InputDelta:
		return w.delta(dst, e)
	case hub.TextEnd, hub.ReasoningEnd, hub.InputEnd:
		return w.end(dst, e)
	case hub.Whole:
		return w.whole(dst, e.Part)
	case hub.Finished:
		w.ended = true
		return w.finish(dst, e)
	}
	return dst
}

func clone(o hub.Options) hub.Options {
	var c hub.Options
	c.Merge(o)
	return c
}

// start writes message_start, once.
func (w *writer) start(dst []byte) []byte {
	if w.begun {
		return dst
	}
	w.begun = true
	return w.event(dst, "message_start", struct {
		Type    string `json:"type"`
		Message answer `json:"message"`
	}{"message_start", answer{ID: w.answer.ID, Type: "message", Role: "assistant", Model: w.answer.Model, Content: []*block{}, Usage: &usage{}}})
}

// event writes an event with a value that can be encoded.
func (w *writer) event(dst []byte, name string, v any) []byte {
	raw, err := hub.Encode(v)
	if err != nil { // invalid JSON in options, which decoders do not produce
		return w.failure(dst, &hub.Error{Kind: hub.Internal, Message: "the answer cannot be encoded"})
	}
	return sse.AppendNamed(dst, name, raw)
}

func (w *writer) begin(dst []byte, b *written, content *block) []byte {
	b.index, b.begun = w.next, true
	w.next++
	raw, err := hub.Encode(content)
	if err != nil {
		raw = []byte(`{"type":"text","text":""}`)
	}
	dst = append(dst, "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":"...)
	dst = strconv.AppendInt(dst, int64(b.index), 10)
	dst = append(append(dst, `,"content_block":`...), raw...)
	return append(dst, "}\n\n"...)
}

// deltaOf writes a delta with one string member.
func deltaOf(dst []byte, index int, kind, member, text string) []byte {
	dst = append(dst, "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":"...)
	dst = strconv.AppendInt(dst, int64(index), 10)
	dst = append(append(dst, `,"delta":{"type":"`...), kind...)
	dst = append(append(append(dst, `","`...), member...), `":`...)
	return append(gjson.AppendJSONString(dst, text), "}}\n\n"...)
}

func (w *writer) delta(dst []byte, e *hub.Event) []byte {
	b := w.open[e.ID]
	if b == nil {
		return dst
	}
	switch e.Kind {
	case hub.TextDelta:
		if b.options.String(self, "type") == "compaction" {
			return deltaOf(dst, b.index, "compaction_delta", "content", e.Delta)
		}
		return deltaOf(dst, b.index, "text_delta", "text", e.Delta)
	case hub.ReasoningDelta:
		b.options.Merge(e.Options)
		if e.Delta == "" {
			return dst
		}
		return deltaOf(w.think(dst, b), b.index, "thinking_delta", "thinking", e.Delta)
	}
	return deltaOf(dst, b.index, "input_json_delta", "partial_json", e.Delta)
}

func (w *writer) think(dst []byte, b *written) []byte {
	if b.begun {
		return dst
	}
	return w.begin(dst, b, &block{Type: "thinking", Thinking: ptr(""), Signature: ptr("")})
}

func (w *writer) end(dst []byte, e *hub.Event) []byte {
	b := w.open[e.ID]
	if b == nil {
		return dst
	}
	delete(w.open, e.ID)
	switch e.Kind {
	case hub.TextEnd:
		gjson.ParseBytes(e.Options[self]["citations"]).ForEach(func(_, c gjson.Result) bool {
			dst = w.cite(dst, b.index, c.Raw)
			return true
		})
	case hub.ReasoningEnd:
		b.options.Merge(e.Options)
		if data, ok := redactedData(b.options); ok && !b.begun {
			dst = w.begin(dst, b, &block{Type: "redacted_thinking", Data: data})
			break
		}
		dst = w.think(dst, b)
		if s := signature(b.options); s != "" {
			dst = deltaOf(dst, b.index, "signature_delta", "signature", s)
		}
	}
	return w.stop(dst, b.index)
}

func (w *writer) stop(dst []byte, index int) []byte {
	dst = append(dst, "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":"...)
	return append(strconv.AppendInt(dst, int64(index), 10), "}\n\n"...)
}

func (w *writer) cite(dst []byte, index int, citation string) []byte {
	dst = append(dst, "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":"...)
	dst = strconv.AppendInt(dst, int64(index), 10)
	return append(append(append(dst, `,"delta":{"type":"citations_delta","citation":`...), citation...), "}}\n\n"...)
}

// whole writes a complete part. A call whose input was streamed has been written already.
func (w *writer) whole(dst []byte, p *hub.Part) []byte {
	if p.Kind == hub.ToolCallPart && w.calls[p.Call.ID] {
		return dst
	}
	if s, ok := foreignSource(p); ok && s != nil {
		if b := w.open[w.lastTxt]; b != nil && b.kind == hub.TextStart {
			return w.cite(dst, b.index, string(s))
		}
	}
	for _, b := range w.encoder.blocks(p) {
		var at written
		switch b.Type {
		case "tool_use", "server_tool_use", "mcp_tool_use":
			input := string(b.Input)
			b.Input = []byte("{}")
			dst = deltaOf(w.begin(dst, &at, b), at.index, "input_json_delta", "partial_json", input)
		default:
			dst = w.begin(dst, &at, b)
		}
		dst = w.stop(dst, at.index)
	}
	return dst
}

func (w *writer) finish(dst []byte, e *hub.Event) []byte {
	if e.Finish.Reason == hub.Failed {
		return w.failure(dst, brokenOff(e.Finish))
	}
	words := wordsOf(e.Finish, e.Options)
	type delta struct {
		StopReason   string  `json:"stop_reason"`
		StopSequence *string `json:"stop_sequence"`
		StopDetails  any     `json:"stop_details,omitempty"`
		Container    any     `json:"container,omitempty"`
	}
	dst = w.event(dst, "message_delta", struct {
		Type             string         `json:"type"`
		Delta            delta          `json:"delta"`
		Usage            *usage         `json:"usage"`
		ContextManage    any            `json:"context_management,omitempty"`
		ProviderMetadata map[string]any `json:"provider_metadata,omitempty"`
	}{
		"message_delta", delta{words.reason, words.sequence, words.details, words.container},
		usageOf(e.Usage), words.management, metadataOf(w.answer, w.encoder.warnings),
	})
	return append(dst, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"...)
}

func (w *writer) failure(dst []byte, err *hub.Error) []byte {
	_, kind := statusOf(err.Kind)
	raw, _ := hub.Encode(errorBody{Type: "error", Error: errorWords{kind, err.Message}, RequestID: w.answer.ID}) // texts
	return sse.AppendNamed(dst, "error", raw)
}
