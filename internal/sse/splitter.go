package sse

import "bytes"

// Event is one event of a stream. Its bytes belong to the Reader or Splitter that
// returned it, and change with the next event.
type Event struct {
	Name []byte // empty for an unnamed event, which has the type "message"
	Data []byte // lines are joined by LF
}

// Splitter finds the events in a stream of bytes. The zero value has no limit; see
// NewSplitter.
type Splitter struct {
	limit int

	line  []byte // an incomplete line; for a comment only the colon
	begun bool   // the first line is over, and with it the place for a byte order mark
	cr    bool   // the last byte was CR: an LF now belongs to it

	name, data []byte // of the incomplete event; may point into the bytes being split
	hasData    bool
	nameBuf    []byte // copies of name and data between calls
	dataBuf    []byte
	ownName    bool // name is in nameBuf
	ownData    bool

	skip    bool // the event is too large: to be skipped up to its end
	dropped int
}

// NewSplitter returns a Splitter of events whose lines have up to limit bytes in total.
func NewSplitter(limit int) *Splitter { return &Splitter{limit: limit} }

// Write processes the next bytes and calls f for each completed event. The event is valid
// until f returns. Events over the limit are skipped; see Dropped.
func (s *Splitter) Write(p []byte, f func(Event)) {
	for len(p) > 0 {
		n, e, ok := s.next(p)
		if ok {
			f(e)
		}
		p = p[n:]
	}
}

// Dropped returns the number of events over the limit.
func (s *Splitter) Dropped() int { return s.dropped }

// Cut reports whether a stream that ended here would end within an event.
func (s *Splitter) Cut() bool {
	line := s.line
	if !s.begun {
		line = bytes.TrimPrefix(line, bom)
	}
	return s.skip || s.hasData || len(s.name) > 0 || len(line) > 0 && line[0] != ':'
}

var bom = []byte("\xef\xbb\xbf")

// next reads p up to the end of the first event and returns the number of bytes read;
// len(p) if no event ends in p.
func (s *Splitter) next(p []byte) (n int, e Event, ok bool) {
	pos := 0
	if s.cr && len(p) > 0 {
		s.cr = false
		if p[0] == '\n' {
			pos = 1
		}
	}
	lf, cr := -1, -1 // the next of each from pos on; looked for once, so that no mix of them is slow
	for pos < len(p) {
		if lf < pos {
			lf = index(p, pos, '\n')
		}
		if cr < pos {
			cr = min(index(p[:lf], pos, '\r'), lf)
			if cr == lf {
				cr = len(p) // none before lf, and there lf counts
			}
		}
		end := min(lf, cr)
		if end == len(p) {
			s.keep(p[pos:])
			break
		}
		line := p[pos:end]
		pos = end + 1
		if end == cr {
			if pos < len(p) && p[pos] == '\n' {
				pos++
			} else if pos == len(p) {
				s.cr = true
			}
		}
		if cr > end {
			cr = -1
		}
		kept := len(s.line) > 0
		if kept {
			s.keep(line)
			line = s.line
		}
		if e, ok = s.field(line, kept); ok {
			s.line = s.line[:0]
			return pos, e, true
		}
		s.line = s.line[:0]
	}
	s.own()
	return len(p), Event{}, false
}

// index returns the position of c in p from pos on, len(p) if there is none.
func index(p []byte, pos int, c byte) int {
	if i := bytes.IndexByte(p[pos:], c); i >= 0 {
		return pos + i
	}
	return len(p)
}

// keep appends to the incomplete line, within the limit.
func (s *Splitter) keep(b []byte) {
	if s.begun && (len(s.line) > 0 && s.line[0] == ':' || s.skip && len(s.line) > 0) {
		return // a comment: its text is not needed
	}
	if s.begun && len(s.line) == 0 && len(b) > 0 && (b[0] == ':' || s.skip) {
		b = b[:1]
	}
	if s.over(len(s.line) + len(b)) {
		s.drop()
		if s.line = append(s.line[:0], 'x'); !s.begun {
			s.begun = true
		}
		return
	}
	s.line = append(s.line, b...)
}

// over reports whether n more bytes would exceed the event's limit.
func (s *Splitter) over(n int) bool {
	return s.limit > 0 && len(s.name)+len(s.data)+n > s.limit
}

// drop discards the event.
func (s *Splitter) drop() {
	if !s.skip {
		s.skip = true
		s.dropped++
	}
	s.clear()
}

// own copies the event's kept data out of the bytes being split.
func (s *Splitter) own() {
	if s.hasData && !s.ownData {
		s.dataBuf = append(s.dataBuf[:0], s.data...)
		s.data, s.ownData = s.dataBuf, true
	}
	if len(s.name) > 0 && !s.ownName {
		s.nameBuf = append(s.nameBuf[:0], s.name...)
		s.name, s.ownName = s.nameBuf, true
	}
}

// field processes a complete line, and returns the event if the line ends it. If kept is
// true, the line will be overwritten.
func (s *Splitter) field(line []byte, kept bool) (Event, bool) {
	if len(line) > 0 && (!s.begun || line[0] != ':') && s.over(len(line)) {
		s.drop()
	}
	if !s.begun {
		s.begun = true
		line = bytes.TrimPrefix(line, bom)
	}
	if len(line) == 0 {
		e, ok := Event{s.name, s.data}, s.hasData
		s.clear()
		s.skip = false
		return e, ok
	}
	if s.skip || line[0] == ':' {
		return Event{}, false
	}
	name, value, _ := bytes.Cut(line, colon)
	if len(value) > 0 && value[0] == ' ' {
		value = value[1:]
	}
	switch {
	case string(name) == "data" && s.hasData:
		s.own()
		s.dataBuf = append(append(s.dataBuf, '\n'), value...)
		s.data = s.dataBuf
	case string(name) == "data":
		s.data, s.hasData = value, true
	case string(name) == "event":
		s.name, s.ownName = value, false
	}
	if kept {
		s.own()
	}
	return Event{}, false
}

func (s *Splitter) clear() {
	s.name, s.data, s.hasData, s.ownName, s.ownData = nil, nil, false, false, false
}

var colon = []byte(":")
