package scripted

import (
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Source answers from a script and counts calls, so that each call gets the next reply of
// a sequence. It is safe for concurrent use.
type Source struct {
	script *Script

	mu     sync.Mutex
	counts map[int]int // calls by Rule; guarded by mu
}

// NewSource returns a Source with all counts at 0.
func NewSource(s *Script) *Source { return &Source{script: s, counts: make(map[int]int)} }

// Answer calls Script.Answer with the next count.
func (s *Source) Answer(c *hub.Call) (*hub.Result, time.Duration, *hub.Error) {
	rule := s.script.Rule(c)
	s.mu.Lock()
	n := s.counts[rule]
	s.counts[rule]++
	s.mu.Unlock()
	return s.script.Answer(c, n)
}

// Embed calls Script.Embed.
func (s *Source) Embed(c *hub.EmbedCall) (*hub.EmbedResult, *hub.Error) { return s.script.Embed(c) }

// inputPiece is the number of bytes of a tool's input per delta.
const inputPiece = 16

// Events returns an answer as stream events: text is sent word by word, tool inputs in
// pieces. If failed is not nil, the stream ends with it; r may be nil then.
func Events(r *hub.Result, failed *hub.Error) []hub.Event {
	if r == nil {
		return []hub.Event{{Kind: hub.Start}, {Kind: hub.Failure, Err: failed}}
	}
	var events []hub.Event
	for _, e := range r.Events() {
		switch e.Kind {
		case hub.TextDelta, hub.ReasoningDelta:
			events = pieces(events, e, endOfWord)
		case hub.InputDelta:
			events = pieces(events, e, endOfPiece)
		case hub.Finished:
			if failed != nil {
				e = hub.Event{Kind: hub.Failure, Err: failed}
			}
			events = append(events, e)
		default:
			events = append(events, e)
		}
	}
	return events
}

// pieces appends e with its delta split into pieces; end returns the end of the first
// piece.
func pieces(events []hub.Event, e hub.Event, end func(text string) int) []hub.Event {
	for rest := e.Delta; rest != ""; {
		n := end(rest)
		e.Delta, rest = rest[:n], rest[n:]
		events = append(events, e)
	}
	return events
}

// endOfWord returns the end of the first word, including the space after it.
func endOfWord(text string) int {
	word, space := false, false
	for i, r := range text {
		isSpace := unicode.IsSpace(r)
		if word && space && !isSpace {
			return i
		}
		word, space = word || !isSpace, isSpace
	}
	return len(text)
}

func endOfPiece(text string) int {
	end := min(inputPiece, len(text))
	for end < len(text) && !utf8.RuneStart(text[end]) {
		end++
	}
	return end
}
