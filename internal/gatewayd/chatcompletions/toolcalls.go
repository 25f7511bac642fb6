package chatcompletions

import (
	"strings"

	"github.com/tidwall/gjson"
)

// piece is an element of tool_calls in a stream: a part of a tool call, or a whole call.
type piece struct {
	index    int64
	numbered bool   // it has an index
	id       string // empty if it has none, or "null" (Mistral, of some versions)
	name     string
	args     string
	object   bool // args came as an object, not as a text
	custom   bool // args are text of a custom tool, not JSON
}

func readPiece(v gjson.Result) piece {
	var p piece
	v.ForEach(func(key, v gjson.Result) bool {
		switch key.Str {
		case "id":
			p.id = v.Str
		case "index":
			p.index, p.numbered = v.Int(), v.Type == gjson.Number
		case "custom":
			p.custom, p.name, p.args = true, v.Get("name").Str, v.Get("input").Str
		case "function":
			p.name = v.Get("name").Str
			if a := v.Get("arguments"); a.Type == gjson.String {
				p.args = a.Str
			} else if p.object = a.IsObject(); p.object { // not as documented, but unambiguous
				p.args = a.Raw
			}
		}
		return true
	})
	if p.id == "null" {
		p.id = ""
	}
	return p
}

// toolCall is the state of a tool call that is needed to assign pieces to calls.
type toolCall struct {
	place int    // in the answer: 0, 1, ...
	given string // the id that the provider gave
	name  string
	shape shape // of the input
}

// toolCalls holds the tool calls of one answer. The zero value has none.
type toolCalls struct {
	whole   bool // WholeToolCalls
	all     []*toolCall
	byIndex map[int64]*toolCall // the last one of each index
	byID    map[string]*toolCall
}

// find returns the call that p belongs to. It returns nil if p begins a call. A piece
// belongs to the call with its index, if it has an index; else to the call with its id;
// else to the last call. Some servers reuse an index or id, so a piece with a name is
// checked further: see begins.
func (s *toolCalls) find(p *piece) *toolCall {
	if s.whole && p.name != "" {
		return nil
	}
	var c *toolCall
	switch {
	case p.numbered:
		c = s.byIndex[p.index]
		if other := s.byID[p.id]; c != nil && p.name == "" && other != nil && p.id != "" {
			c = other
		}
	case p.id != "":
		c = s.byID[p.id]
	case len(s.all) > 0:
		c = s.all[len(s.all)-1]
		if p.name != "" && !(c.name == p.name && c.shape.open() && !startsInput(p.args)) {
			return nil
		}
	}
	if c == nil || c.begins(p) {
		return nil
	}
	return c
}

// begins reports whether a piece with the index or the id of c begins another call: it
// has a name, and another id (Google's compatible endpoint gives each call the index 0),
// another name, or input that starts again.
func (c *toolCall) begins(p *piece) bool {
	switch {
	case p.name == "":
		return false
	case p.id != "" && c.given != "" && p.id != c.given:
		return true
	case c.name == "": // the name arrives late
		return false
	}
	return p.name != c.name || c.shape.complete() && startsInput(p.args)
}

func startsInput(args string) bool { return strings.HasPrefix(strings.TrimLeft(args, " \t\r\n"), "{") }

// begin adds the call that p begins.
func (s *toolCalls) begin(p *piece) *toolCall {
	c := &toolCall{place: len(s.all)}
	s.all = append(s.all, c)
	if p.numbered {
		if s.byIndex == nil {
			s.byIndex = make(map[int64]*toolCall)
		}
		s.byIndex[p.index] = c
	}
	return c
}

// add adds p to its call.
func (s *toolCalls) add(c *toolCall, p *piece) {
	if c.given == "" && p.id != "" {
		if s.byID == nil {
			s.byID = make(map[string]*toolCall)
		}
		c.given, s.byID[p.id] = p.id, c
	}
	if c.name == "" {
		c.name = p.name
	}
	c.shape.add(p.args)
}

// open reports whether the input of a call has begun and is incomplete.
func (s *toolCalls) open() bool {
	for _, c := range s.all {
		if c.shape.open() {
			return true
		}
	}
	return false
}
