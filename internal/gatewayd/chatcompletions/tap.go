package chatcompletions

import (
	"bytes"
	"time"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/sse"
)

// Tap watches a passed answer. In a stream it decodes the first chunk and the chunks with
// usage, finish_reason or an error; in the other chunks it only counts text.
func (*Format) Tap(t *hub.Target, stream bool) hub.Tap {
	p := &tap{t: t, stream: stream}
	if stream {
		p.split = sse.NewSplitter(maxEvent)
	}
	return p
}

type tap struct {
	t      *hub.Target
	stream bool
	looked bool // at the first byte
	split  *sse.Splitter
	body   []byte // a whole answer
	large  bool   // the body is too large to keep

	seen               hub.Seen
	tier, finish       string
	begun, calls, over bool // over: data after the end is ignored
	answered           bool
	refused, failed    bool
	nonsense           bool // an event was no JSON object
	// open and ended are the indexes of the choices (n) that have begun and that have a
	// finish_reason.
	open, ended choices
}

// choices is a set of the indexes of choices, 0 to 127, the maximum per request.
type choices [2]uint64

func (c *choices) add(index gjson.Result) {
	if i := index.Num; i >= 0 && i < 128 {
		c[int(i)/64] |= 1 << (int(i) % 64)
	}
}

// Write processes the next bytes.
func (p *tap) Write(b []byte) {
	if p.stream && !p.looked {
		head := bytes.TrimLeft(b, " \t\r\n")
		if p.looked = len(head) > 0; p.looked && isJSON(head) {
			p.stream = false // a whole answer although a stream was requested
		}
	}
	if p.stream {
		p.split.Write(b, p.event)
		return
	}
	if len(p.body)+len(b) > maxAnswer {
		p.large = true
		return
	}
	p.body = append(p.body, b...)
}

// Nonsense reports whether an event was not a JSON object.
func (p *tap) Nonsense() bool { return p.nonsense }

// Begun reports whether content has been seen.
func (p *tap) Begun() bool { return p.begun || !p.stream && len(p.body) > 0 }

func (p *tap) event(e sse.Event) {
	data := bytes.TrimSpace(e.Data)
	switch {
	case p.over || len(data) == 0:
	case bytes.Equal(data, doneMark):
		p.over, p.seen.Complete = true, p.finished()
	case string(e.Name) != "error" && !hub.ClosedObject(data):
		p.over, p.nonsense = true, true
	case string(e.Name) == "error" || has(data, `"error"`):
		if root := gjson.ParseBytes(data); string(e.Name) == "error" || isError(root.Get("error")) || isError(root.Get("choices.0.error")) {
			if c := root.Get("choices.0"); isError(c.Get("error")) {
				root = c
			}
			p.seen.Err, p.over = errorIn(p.t, root, 0), true
			return
		}
		p.chunk(data)
	default:
		p.chunk(data)
	}
}

func (p *tap) chunk(data []byte) {
	if i := bytes.Index(data, []byte(`"delta"`)); i >= 0 {
		p.answered = true
		if n := p.delta(data[i+len(`"delta"`):]); n > 0 {
			p.begun = true
			p.seen.OutputBytes += int64(n)
		}
	}
	if p.seen.Response.ID == "" || has(data, `"finish_reason"`) || has(data, `"usage"`) || another(data) {
		p.look(gjson.ParseBytes(data))
	}
}

// another reports whether data may belong to a choice other than the first.
func another(data []byte) bool {
	i := bytes.Index(data, []byte(`"index"`))
	if i < 0 {
		return false
	}
	i = skipSpace(data, i+len(`"index"`))
	if i == len(data) || data[i] != ':' {
		return true
	}
	i = skipSpace(data, i+1)
	return i < len(data) && data[i] >= '1' && data[i] <= '9'
}

// finished reports whether all choices have a finish_reason.
func (p *tap) finished() bool { return p.finish != "" && p.open == p.ended }

// has reports whether data has a member name, given with its quotes, whose value is not
// null, false or empty. Quotes inside strings are escaped, so the search has no false
// match.
func has(data []byte, name string) bool {
	for {
		i := bytes.Index(data, []byte(name))
		if i < 0 {
			return false
		}
		data = bytes.TrimLeft(data[i+len(name):], " \t\r\n")
		if len(data) < 2 || data[0] != ':' {
			continue
		}
		v := bytes.TrimLeft(data[1:], " \t\r\n")
		switch {
		case len(v) < 2:
			return false
		case v[0] == 'n', v[0] == 'f', v[0] == '"' && v[1] == '"', v[0] == '[' && v[1] == ']':
			continue
		}
		return true
	}
}

// look decodes a chunk, or a whole answer.
func (p *tap) look(root gjson.Result) {
	s := &p.seen
	root.ForEach(func(key, v gjson.Result) bool {
		switch key.Str {
		case "id":
			if s.Response.ID == "" {
				s.Response.ID = v.Str
			}
		case "model":
			if s.Response.Model == "" {
				s.Response.Model = v.Str
			}
		case "created":
			if s.Response.Created.IsZero() && v.Num > 0 && v.Num < 1<<40 {
				s.Response.Created = time.Unix(int64(v.Num), 0).UTC()
			}
		case "service_tier":
			p.tier = v.Str
		case "usage":
			p.usage(v)
		case "x_groq":
			p.usage(v.Get("usage"))
		case "error":
			p.failed = isError(v)
		case "choices":
			list(v).ForEach(func(_, c gjson.Result) bool {
				p.choice(c)
				return true
			})
		}
		return true
	})
}

func (p *tap) choice(c gjson.Result) {
	if !c.IsObject() {
		return
	}
	p.answered = true
	index := c.Get("index") // 0 if missing
	p.open.add(index)
	c.ForEach(func(key, v gjson.Result) bool {
		switch key.Str {
		case "finish_reason":
			if v.Type == gjson.String && v.Str != "" {
				p.ended.add(index)
				if index.Num == 0 || p.finish == "" {
					p.finish = v.Str
				}
			}
		case "usage":
			p.usage(v)
		case "message": // in a whole answer
			p.seen.OutputBytes += int64(p.delta([]byte(v.Raw)))
		}
		return true
	})
}

func (p *tap) usage(v gjson.Result) {
	if u := readUsage(v); u != nil {
		p.seen.Usage = u
	}
}

// delta searches an object and returns the number of bytes of generated text in it;
// escapes are counted in their escaped form. Text in both reasoning and reasoning_details
// counts twice; the number is an estimate.
func (p *tap) delta(data []byte) (n int) {
	depth := 0
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '{':
			depth++
		case '}':
			if depth--; depth <= 0 {
				return n
			}
		case '"':
			end := textEnd(data[i+1:])
			if end < 0 {
				return n
			}
			name := data[i+1 : i+1+end]
			i = skipSpace(data, i+end+2)
			if i == len(data) || data[i] != ':' {
				i-- // it was a value
				continue
			}
			i = skipSpace(data, i+1)
			if i == len(data) {
				return n
			}
			if data[i] != '"' {
				p.calls = p.calls || string(name) == "tool_calls" && data[i] == '['
				i--
				continue
			}
			if end = textEnd(data[i+1:]); end < 0 {
				return n
			}
			switch string(name) {
			case "refusal":
				p.refused = p.refused || end > 0
				n += end
			case "content", "arguments", "reasoning_content", "reasoning", "text", "thinking":
				n += end
			}
			i += end + 1
		}
	}
	return n
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\r' || b[i] == '\n') {
		i++
	}
	return i
}

// textEnd returns the position of the quote that ends a string.
func textEnd(b []byte) int {
	for from := 0; ; {
		i := bytes.IndexByte(b[from:], '"')
		if i < 0 {
			return -1
		}
		i += from
		slashes := 0
		for slashes < i-from && b[i-1-slashes] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return i
		}
		from = i + 1
	}
}

// End returns the result.
func (p *tap) End() hub.Seen {
	s := &p.seen
	if !p.stream {
		p.wholeEnd()
	} else if p.finished() && s.Err == nil && !p.nonsense {
		s.Complete = true // not all servers send [DONE]
	}
	if s.Usage != nil {
		s.Usage.Tier = p.tier
	}
	if p.finish != "" || s.Complete {
		s.Finish = finishOf(p.finish, p.calls, p.refused)
	}
	return *s
}

func (p *tap) wholeEnd() {
	s := &p.seen
	if s.Complete = !p.large && closed(p.body) && gjson.ValidBytes(p.body); !s.Complete {
		s.OutputBytes = int64(len(p.body))
		return
	}
	root := gjson.ParseBytes(p.body)
	p.look(root)
	if p.failed {
		s.Err, s.Complete = errorIn(p.t, root, 0), false
	}
	if !p.answered { // no choices
		s.Complete, s.OutputBytes = false, int64(len(p.body))
	}
}
