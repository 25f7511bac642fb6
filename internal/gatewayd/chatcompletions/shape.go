package chatcompletions

// shape tracks whether JSON that arrives in pieces is complete: whether all brackets and
// strings are closed. It does not check the JSON otherwise.
type shape struct {
	depth   int
	begun   bool // something other than space has come
	text    bool // a text is open
	escaped bool // the next byte of the text is escaped
}

func (s *shape) add(p string) {
	for i := range len(p) {
		switch c := p[i]; {
		case s.escaped:
			s.escaped = false
		case s.text:
			s.escaped, s.text = c == '\\', c != '"'
		case c == '"':
			s.text, s.begun = true, true
		case c == '{', c == '[':
			s.depth, s.begun = s.depth+1, true
		case c == '}', c == ']':
			s.depth--
		case c > ' ':
			s.begun = true
		}
	}
}

// open reports whether the JSON has begun and is incomplete.
func (s *shape) open() bool { return s.begun && (s.text || s.depth > 0) }

// complete reports whether there is JSON and it is complete.
func (s *shape) complete() bool { return s.begun && !s.text && s.depth <= 0 }
