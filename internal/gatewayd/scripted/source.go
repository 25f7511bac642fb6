package scripted

import (
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Source answers from a script and counts, so that each call gets the next reply
// of a sequence. It may be used concurrently.
type Source struct {
	script *Script

	mu     sync.Mutex
	counts map[int]int // calls by Rule; guarded by mu
}

// NewSource returns a Source that has answered nothing yet.
func NewSource(s *Script) *Source { return &Source{script: s, counts: make(map[int]int)} }

// Answer is that of the Script.
func (s *Source) Answer(c *hub.Call) (*hub.Result, time.Duration, *hub.Error) {
	rule := s.script.Rule(c)
	s.mu.Lock()
	n := s.counts[rule]
	s.counts[rule]++
	s.mu.Unlock()
	return s.script.Answer(c, n)
}

// Embed is that of the Script.
func (s *Source) Embed(c *hub.EmbedCall) (*hub.EmbedResult, *hub.Error) { return s.script.Embed(c) }

// inputPiece is how much of a tool's input comes at once, in bytes.
const inputPiece = 16

// Events returns an answer as it is streamed: text word by word, inputs of tools
// in pieces. With an error it ends with that; r may be nil then.
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

// pieces appends e with its delta in pieces, whose ends end finds.
func pieces(events []hub.Event, e hub.Event, end func(text string) int) []hub.Event {
	for rest := e.Delta; rest != ""; {
		n := end(rest)
		e.Delta, rest = rest[:n], rest[n:]
		events = append(events, e)
	}
	return events
}

// endOfWord returns where the first word and the space after it end.
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
