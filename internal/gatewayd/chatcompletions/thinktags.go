package chatcompletions

import "strings"

const (
	thinkOpen  = "<think>"
	thinkClose = "</think>"
)

// thinkTags splits text that begins with <think>: the tagged part is reasoning, the rest
// is the answer. Open models answer in this form if the server does not parse it.
type thinkTags struct {
	state thinkState
	held  string // could be the beginning of a tag
}

type thinkState uint8

const (
	thinkStart thinkState = iota // nothing but space has come
	thinking
	thinkEnded // space between the tag and the answer is skipped
	saying
)

// split processes text and emits the parts that cannot be the start of a tag.
func (t *thinkTags) split(text string, thought, said func(string)) {
	t.held += text
	for {
		switch t.state {
		case thinkStart:
			rest := strings.TrimLeft(t.held, " \t\r\n")
			if strings.HasPrefix(rest, thinkOpen) {
				t.held, t.state = rest[len(thinkOpen):], thinking
				continue
			}
			if strings.HasPrefix(thinkOpen, rest) && len(t.held) < 1024 {
				return
			}
			t.state = saying
		case thinking:
			if i := strings.Index(t.held, thinkClose); i >= 0 {
				give(t.held[:i], thought)
				t.held, t.state = t.held[i+len(thinkClose):], thinkEnded
				continue
			}
			keep := tail(t.held, thinkClose)
			give(t.held[:len(t.held)-keep], thought)
			t.held = t.held[len(t.held)-keep:]
			return
		case thinkEnded:
			if t.held = strings.TrimLeft(t.held, "\r\n"); t.held == "" {
				return
			}
			t.state = saying
		case saying:
			give(t.held, said)
			t.held = ""
			return
		}
	}
}

// end emits the held text.
func (t *thinkTags) end(thought, said func(string)) {
	if t.state == thinking {
		give(t.held, thought)
	} else {
		give(t.held, said)
	}
	t.held = ""
}

func give(s string, f func(string)) {
	if s != "" {
		f(s)
	}
}

// tail returns the number of bytes at the end of s that could begin tag.
func tail(s, tag string) int {
	for n := min(len(tag)-1, len(s)); n > 0; n-- {
		if strings.HasSuffix(s, tag[:n]) {
			return n
		}
	}
	return 0
}
