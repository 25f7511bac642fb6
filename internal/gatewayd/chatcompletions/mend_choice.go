package chatcompletions

import (
	"strconv"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// choice is the state of one of the n choices of an answer.
type choice struct {
	index   int64
	content bool // there is some
	calls   bool // it has tool calls
	ended   bool // it has a finish_reason

	told  toolCalls
	given []given        // the client's form of each call
	used  map[int64]bool // their indexes
	ids   map[string]bool
}

// given is the client's form of a tool call.
type given struct {
	index    int64
	invented bool // its id
}

// add processes an element of choices, of a stream or of a whole answer.
func (c *choice) add(v gjson.Result) {
	v.ForEach(func(key, v gjson.Result) bool {
		switch key.Str {
		case "delta", "message":
			c.content = c.content || contentOf(v)
			c.calls = c.calls || len(list(v.Get("tool_calls")).Array()) > 0
		case "finish_reason":
			c.ended = c.ended || v.Type == gjson.String && v.Str != ""
		}
		return true
	})
}

// contentOf reports whether a message or delta has content.
func contentOf(v gjson.Result) (some bool) {
	v.ForEach(func(key, v gjson.Result) bool {
		switch key.Str {
		case "content", "refusal", "reasoning_content", "reasoning", "reasoning_text", "reasoning_details", "images", "tool_calls":
			some = some || v.Type == gjson.String && v.Str != "" || v.IsArray() && len(v.Array()) > 0
		}
		return !some
	})
	return some
}

// missing returns the finish_reason for a choice without one.
func (c *choice) missing() string {
	if c.calls {
		return "tool_calls"
	}
	return "stop"
}

// corrected returns the finish_reason that replaces v's, empty if v's is right.
func (c *choice) corrected(t *hub.Target, v gjson.Result) string {
	if r := v.Get("finish_reason"); c.calls && r.Type == gjson.String && r.Str != "" && reasonOf(r.Str) == hub.Stop && !t.Is(OpenAI) {
		return "tool_calls"
	}
	return ""
}

// pieces processes tool_calls of a stream. bad reports that a client would misread them;
// mended are then the repaired elements.
func (c *choice) pieces(v gjson.Result) (mended buffer, bad bool) {
	mended = buffer("[")
	list(v).ForEach(func(_, v gjson.Result) bool {
		raw := v.Raw
		if v.IsObject() && !v.Get("custom").Exists() { // custom tools are OpenAI's, and right
			p := readPiece(v)
			call := c.told.find(&p)
			first := call == nil
			if first {
				call = c.told.begin(&p)
				c.given = append(c.given, given{index: c.free(&p)})
			}
			c.told.add(call, &p)
			raw = c.piece(v, &p, &c.given[call.place], first, true)
		}
		bad = bad || raw != v.Raw
		mended.next()
		mended.add(raw)
		return len(c.told.all) <= maxCalls
	})
	mended.close(']')
	return mended, bad
}

// wholeCalls processes tool_calls of a whole answer, where each element is a call.
func (c *choice) wholeCalls(v gjson.Result) (mended buffer, bad bool) {
	mended = buffer("[")
	list(v).ForEach(func(_, v gjson.Result) bool {
		raw := v.Raw
		if v.IsObject() && !v.Get("custom").Exists() {
			p := readPiece(v)
			raw = c.piece(v, &p, new(given), true, false)
		}
		bad = bad || raw != v.Raw
		mended.next()
		mended.add(raw)
		return true
	})
	mended.close(']')
	return mended, bad
}

// free returns the index for the call that p begins: p's own index, unless another call
// has it.
func (c *choice) free(p *piece) int64 {
	index := p.index
	if !p.numbered || c.used[index] || index < 0 {
		for index = int64(len(c.given)); c.used[index]; index++ {
		}
	}
	if c.used == nil {
		c.used = make(map[int64]bool)
	}
	c.used[index] = true
	return index
}

// piece returns the JSON of an element of tool_calls. The first piece of a call has its
// id and type. Elements of a stream have an index.
func (c *choice) piece(v gjson.Result, p *piece, g *given, first, stream bool) string {
	raw := []byte(v.Raw)
	if stream && (!p.numbered || p.index != g.index) {
		raw = set(raw, "index", strconv.AppendInt(nil, g.index, 10))
	}
	switch {
	case first:
		id := p.id
		if g.invented = id == "" || c.ids[id]; g.invented {
			id = inventID()
			raw = set(raw, "id", appendText(nil, id))
		}
		if c.ids == nil {
			c.ids = make(map[string]bool)
		}
		c.ids[id] = true
		if v.Get("type").Str == "" {
			raw = set(raw, "type", []byte(`"function"`))
		}
	case g.invented && v.Get("id").Exists():
		raw = set(raw, "id", []byte("null"))
	}
	if p.object {
		raw = set(raw, "function.arguments", appendText(nil, p.args))
	}
	return string(raw)
}
