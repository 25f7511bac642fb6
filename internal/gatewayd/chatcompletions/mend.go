package chatcompletions

import (
	"bytes"
	"io"
	"strconv"

	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/sse"
)

// Mend returns a streamed answer for a client of this format, and repairs the chunks that
// clients misread. All other bytes are unchanged.
//
//   - Tool calls with an equal or missing index, or a missing or duplicate id (Ollama,
//     Google's compatible endpoint): each gets its own index and id. Arguments that are an
//     object become a string.
//   - A finish_reason of stop after tool calls becomes tool_calls, except in OpenAI's own
//     answers, where stop is right if the request names the tool.
//   - [DONE] without a finish_reason (NVIDIA NIM): Mend inserts a chunk with stop or
//     tool_calls before it. Without content, or within a tool call's input, Mend drops
//     [DONE], so that the stream ends like one that broke off.
func (*Format) Mend(t *hub.Target, body io.ReadCloser) io.ReadCloser {
	m := &mender{t: t}
	return sse.NewRewriter(body, maxEvent, m.event)
}

// MendWhole returns a whole answer with the same repairs.
func (*Format) MendWhole(t *hub.Target, body []byte) []byte {
	if !has(body, `"tool_calls"`) && hasTexts(body, `"finish_reason"`) { // the usual case
		return body
	}
	i := -1
	gjson.GetBytes(body, "choices").ForEach(func(_, v gjson.Result) bool {
		i++
		c := choice{}
		c.add(v)
		path := "choices." + strconv.Itoa(i)
		if calls, bad := c.wholeCalls(v.Get("message.tool_calls")); bad {
			body = set(body, path+".message.tool_calls", calls)
		}
		word := c.corrected(t, v)
		if !c.ended && c.content {
			word = c.missing()
		}
		if word != "" {
			body = set(body, path+".finish_reason", []byte(`"`+word+`"`))
		}
		return i < maxChoices
	})
	return body
}

// set returns a copy of JSON with a member's value replaced.
func set(body []byte, path string, value []byte) []byte {
	if with, err := sjson.SetRawBytes(body, path, value); err == nil {
		return with
	}
	return body // the path does not exist, although it was just read
}

// hasTexts reports whether all members of that name, given with its quotes, are strings.
func hasTexts(data []byte, name string) bool {
	n := 0
	for {
		i := bytes.Index(data, []byte(name))
		if i < 0 {
			return n > 0
		}
		data = bytes.TrimLeft(data[i+len(name):], " \t\r\n")
		if len(data) == 0 || data[0] != ':' {
			continue
		}
		if v := bytes.TrimLeft(data[1:], " \t\r\n"); len(v) < 2 || v[0] != '"' || v[1] == '"' {
			return false
		}
		n++
	}
}

// mender repairs the chunks of one stream.
type mender struct {
	t       *hub.Target
	choices []*choice // in the order in which they came
	head    []byte    // the members that all chunks have in common; nil before the first chunk
	off     bool      // the rest passes: the stream is one that the mender cannot follow, or has failed
	out     []byte
}

// event implements sse.Edit.
func (m *mender) event(event []byte) ([]byte, bool) {
	data := sse.DataOf(event)
	if m.off || len(data) == 0 {
		return event, false
	}
	if bytes.Equal(data, doneMark) {
		return m.done(event)
	}
	if data[0] != '{' || data[len(data)-1] != '}' { // no chunk, or one in several lines
		m.off = true
		return event, false
	}
	if has(event, `"error"`) || bytes.HasPrefix(event, []byte("event")) {
		m.off = fails(event, data)
	}
	if m.off || !m.counts(event) {
		return event, false
	}
	if !hub.ClosedObject(data) {
		m.off = true
		return event, false
	}
	mended := m.chunk(data)
	if len(mended) == len(data) && &mended[0] == &data[0] {
		return event, false
	}
	before, after, _ := bytes.Cut(event, data)
	m.out = append(append(append(m.out[:0], before...), mended...), after...)
	return m.out, false
}

// fails reports whether an event is an error, or might be one.
func fails(event, data []byte) bool {
	if string(sse.NameOf(event)) == "error" || !hub.ClosedObject(data) {
		return true
	}
	root := gjson.ParseBytes(data)
	return isError(root.Get("error")) || isError(root.Get("choices.0.error"))
}

// counts reports whether a chunk may change the mender's state.
func (m *mender) counts(chunk []byte) bool {
	return len(m.choices) == 0 || !m.choices[0].content || has(chunk, `"finish_reason"`) || has(chunk, `"tool_calls"`) || another(chunk)
}

// chunk returns a chunk, repaired if necessary.
func (m *mender) chunk(data []byte) []byte {
	root := gjson.ParseBytes(data)
	if m.head == nil {
		m.head = headOf(root)
	}
	i := -1
	list(root.Get("choices")).ForEach(func(_, v gjson.Result) bool {
		i++
		c := m.choice(v)
		if c == nil {
			return true
		}
		c.add(v)
		path := "choices." + strconv.Itoa(i)
		for _, member := range [...]string{"delta", "message"} {
			calls, bad := c.pieces(v.Get(member + ".tool_calls"))
			if m.off = len(c.told.all) > maxCalls; m.off {
				return false
			}
			if bad {
				data = set(data, path+"."+member+".tool_calls", calls)
			}
		}
		if word := c.corrected(m.t, v); word != "" {
			data = set(data, path+".finish_reason", []byte(`"`+word+`"`))
		}
		return true
	})
	return data
}

// headOf returns the members id, created and model of a chunk, each followed by a comma.
func headOf(root gjson.Result) []byte {
	head := buffer(`{"object":"chat.completion.chunk"`)
	for _, name := range [...]string{"id", "created", "model"} {
		if v := root.Get(name); v.Exists() {
			head.raw(name, []byte(v.Raw))
		}
	}
	return append(head, ',')
}

// choice returns the state of the choice that v is a part of. It is nil if v is no
// choice, or if its index exceeds the maximum.
func (m *mender) choice(v gjson.Result) *choice {
	index := v.Get("index").Int()
	if !v.IsObject() {
		return nil
	}
	for _, c := range m.choices {
		if c.index == index {
			return c
		}
	}
	if len(m.choices) == maxChoices {
		return nil
	}
	c := &choice{index: index, told: toolCalls{whole: m.t.Is(WholeToolCalls)}}
	m.choices = append(m.choices, c)
	return c
}

// maxChoices is the maximum number of choices per request.
const maxChoices = 128

// done processes [DONE], before which every choice must have a finish_reason.
func (m *mender) done(event []byte) ([]byte, bool) {
	m.out = m.out[:0]
	for _, c := range m.choices {
		if c.ended {
			continue
		}
		if !c.content || c.told.open() {
			return nil, true
		}
		b := buffer(append(append(m.out, "data: "...), m.head...))
		b.add(`"choices":[{"index":` + strconv.FormatInt(c.index, 10) + `,"delta":{},"finish_reason":"` + c.missing() + "\"}]}\n\n")
		m.out = b
	}
	if len(m.choices) == 0 {
		return nil, true
	}
	if len(m.out) == 0 {
		return event, false
	}
	m.out = append(m.out, event...)
	return m.out, false
}
