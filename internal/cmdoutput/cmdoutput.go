// Package cmdoutput has the parts that every server of a command's output shares: events
// that stay valid, and characters whose bytes arrive in two events. It knows no protocol.
package cmdoutput

import (
	"bytes"
	"unicode/utf8"

	"github.com/cayhq/cay/sandbox"
)

// Own returns out with events that stay valid after the next call of Next. Outputs of the
// engine reuse the memory of an event.
func Own(out sandbox.Output) sandbox.Output { return owned{out} }

type owned struct{ sandbox.Output }

func (o owned) Next() (sandbox.Event, error) {
	e, err := o.Output.Next()
	e.Data = bytes.Clone(e.Data)
	return e, err
}

// Partial returns how many bytes at the end of b, 0 to 3, are the beginning of a character
// in UTF-8.
func Partial(b []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if end := b[len(b)-n:]; utf8.RuneStart(end[0]) {
			if utf8.FullRune(end) {
				return 0
			}
			return n
		}
	}
	return 0
}

// Splitter holds back the beginning of a character until the rest arrives.
type Splitter struct {
	held []byte // at most 3 bytes
}

// Whole returns the bytes that were held and p, without the beginning of a character at
// their end, which is held instead. The result may share the memory of p.
func (s *Splitter) Whole(p []byte) []byte {
	if len(s.held) > 0 {
		p = append(s.Rest(), p...)
	}
	n := len(p) - Partial(p)
	s.held = bytes.Clone(p[n:])
	return p[:n]
}

// Rest returns the bytes that are held, and holds none.
func (s *Splitter) Rest() []byte {
	held := s.held
	s.held = nil
	return held
}
