package scan

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/bits"
	"slices"
	"unicode/utf8"
)

// maxDepth is the maximum nesting of a request's JSON.
const maxDepth = 512

// Member is a member of the request object: Body[Name:End], whose value is
// Body[Value:End].
type Member struct {
	Key              string
	Name, Value, End int
}

// Object is a request body whose outermost level has been parsed.
type Object struct {
	Body    []byte
	Members []Member
	// end is the position of the last bracket.
	end   int
	Marks Marks
}

// Get returns the value of a member, nil if it is missing.
func (o *Object) Get(key string) json.RawMessage {
	if m := o.Find(key); m != nil {
		return o.Body[m.Value:m.End]
	}
	return nil
}

// Find returns a member, nil if it is missing.
func (o *Object) Find(key string) *Member {
	for i := range o.Members {
		if o.Members[i].Key == key {
			return &o.Members[i]
		}
	}
	return nil
}

// Read checks that body is a JSON object in UTF-8, nested at most maxDepth deep, without
// duplicate members, and finds its members. Read neither recurses nor decodes, so that
// hostile input costs little more than one pass.
func Read(body []byte) (*Object, error) {
	o := &Object{Body: body, Members: make([]Member, 0, 12)}
	s := scanner{b: body}
	err := s.object(o)
	if (err != nil || s.seen&highs != 0) && !utf8.Valid(body) {
		return nil, fmt.Errorf("the body is not UTF-8")
	}
	if err != nil {
		return nil, err
	}
	o.Marks = s.marks
	for i, m := range o.Members { // few
		for _, other := range o.Members[:i] {
			if m.Key == other.Key {
				return nil, fmt.Errorf("the member %.64q is there twice", m.Key)
			}
		}
	}
	return o, nil
}

// levels has one bit per open level.
type levels [maxDepth / 64]uint64

func (l *levels) set(depth int)      { l[depth/64] |= 1 << (depth % 64) }
func (l *levels) clear(depth int)    { l[depth/64] &^= 1 << (depth % 64) }
func (l *levels) has(depth int) bool { return l[depth/64]&(1<<(depth%64)) != 0 }

// scanner is a JSON parser.
type scanner struct {
	b     []byte
	i     int
	depth int
	open  levels // 1 for objects
	// Per object: some: a member is not null; more: so is a second; ids: a member is
	// called id.
	some, more, ids levels
	seen            uint64 // all bytes of texts, or'ed
	marks           Marks
}

func (s *scanner) wrong(what string) error {
	return fmt.Errorf("the body is not JSON: %s at byte %d", what, s.i)
}

func (s *scanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\n', '\t', '\r':
			s.i++
		default:
			return
		}
	}
}

// next returns the next byte that is not white space, 0 at the end.
func (s *scanner) next() byte {
	s.space()
	if s.i == len(s.b) {
		return 0
	}
	return s.b[s.i]
}

func (s *scanner) push(object bool) error {
	if s.depth == maxDepth {
		return fmt.Errorf("the body nests deeper than %d levels", maxDepth)
	}
	if object {
		s.open.set(s.depth)
		s.some.clear(s.depth)
		s.more.clear(s.depth)
		s.ids.clear(s.depth)
	} else {
		s.open.clear(s.depth)
	}
	s.depth++
	return nil
}

// inObject reports whether the innermost level is an object.
func (s *scanner) inObject() bool { return s.open.has(s.depth - 1) }

// pop closes the innermost level.
func (s *scanner) pop() {
	s.depth--
	if s.open.has(s.depth) && s.ids.has(s.depth) && !s.more.has(s.depth) {
		s.marks |= ID
	}
}

// object parses the body, and records the members of the outermost level.
func (s *scanner) object(o *Object) error {
	if s.next() != '{' {
		return s.wrong("an object is missing")
	}
	_ = s.push(true)
	s.i++
	if s.next() == '}' {
		return s.close(o)
	}
	if err := s.member(o); err != nil {
		return err
	}
	for { // a value has been read
		if s.depth == 1 {
			o.Members[len(o.Members)-1].End = s.i
		}
		c := s.next()
		switch {
		case c == ',':
			s.i++
			if s.inObject() {
				if err := s.member(o); err != nil {
					return err
				}
			} else if err := s.value(o); err != nil {
				return err
			}
		case c == '}' && s.inObject(), c == ']' && !s.inObject():
			if s.depth == 1 {
				return s.close(o)
			}
			s.i++
			s.pop()
		default:
			return s.wrong("a comma or bracket is missing")
		}
	}
}

// close reads the final bracket.
func (s *scanner) close(o *Object) error {
	o.end = s.i
	s.i++
	if s.next() != 0 || s.i < len(s.b) {
		return s.wrong("something follows the object")
	}
	return nil
}

// member reads the name of a member and the start of its value.
func (s *scanner) member(o *Object) error {
	if s.next() != '"' {
		return s.wrong("the name of a member is missing")
	}
	name := s.i
	plain, err := s.text()
	if err != nil {
		return err
	}
	end := s.i
	if s.next() != ':' {
		return s.wrong("a colon is missing")
	}
	s.i++
	s.space()
	if s.i < len(s.b) && s.b[s.i] != 'n' {
		if s.some.has(s.depth - 1) {
			s.more.set(s.depth - 1)
		}
		s.some.set(s.depth - 1)
	}
	if string(s.b[name:end]) == `"id"` {
		s.ids.set(s.depth - 1)
	}
	if s.depth == 1 {
		if len(o.Members) == 256 {
			return fmt.Errorf("the body has more than 256 members")
		}
		m := Member{Name: name, Value: s.i}
		if plain {
			m.Key = known(s.b[name+1 : end-1])
		} else if err := json.Unmarshal(s.b[name:end], &m.Key); err != nil {
			return s.wrong("a name is wrong")
		}
		o.Members = append(o.Members, m)
	}
	return s.value(o)
}

// names are the usual member names; sharing their strings avoids copies.
var names = []string{
	"model", "messages", "stream", "temperature", "max_tokens", "max_completion_tokens", "tools", "tool_choice", "system",
	"input", "instructions", "stream_options", "providerOptions", "reasoning_effort", "response_format", "top_p", "prompt", "max_output_tokens", "maxOutputTokens",
}

func known(b []byte) string {
	for _, n := range names {
		if n == string(b) {
			return n
		}
	}
	return string(b)
}

// value reads a scalar, or opens containers down to the first scalar in them, or past the
// end of an empty container.
func (s *scanner) value(o *Object) error {
	for {
		switch c := s.next(); {
		case c == '"':
			_, err := s.text()
			return err
		case c == '{':
			if err := s.push(true); err != nil {
				return err
			}
			s.i++
			if s.next() == '}' {
				s.i++
				s.depth--
				return nil
			}
			return s.member(o) // push bounds the recursion to maxDepth
		case c == '[':
			if err := s.push(false); err != nil {
				return err
			}
			s.i++
			if s.next() == ']' {
				s.i++
				s.depth--
				return nil
			}
		case c == '-' || c >= '0' && c <= '9':
			return s.number()
		default:
			return s.literal()
		}
	}
}

func (s *scanner) literal() error {
	for _, l := range []string{"true", "false", "null"} {
		if len(s.b)-s.i >= len(l) && string(s.b[s.i:s.i+len(l)]) == l {
			s.i += len(l)
			return nil
		}
	}
	return s.wrong("a value is missing")
}

func (s *scanner) digits() bool {
	from := s.i
	for s.i < len(s.b) && s.b[s.i] >= '0' && s.b[s.i] <= '9' {
		s.i++
	}
	return s.i > from
}

func (s *scanner) number() error {
	if s.b[s.i] == '-' {
		s.i++
	}
	zero := s.i < len(s.b) && s.b[s.i] == '0'
	from := s.i
	if !s.digits() || zero && s.i > from+1 {
		return s.wrong("a number is wrong")
	}
	if s.i < len(s.b) && s.b[s.i] == '.' {
		s.i++
		if !s.digits() {
			return s.wrong("a number is wrong")
		}
	}
	if s.i < len(s.b) && (s.b[s.i] == 'e' || s.b[s.i] == 'E') {
		s.i++
		if s.i < len(s.b) && (s.b[s.i] == '+' || s.b[s.i] == '-') {
			s.i++
		}
		if !s.digits() {
			return s.wrong("a number is wrong")
		}
	}
	return nil
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// special sets the high bit of each byte of x that ends a run of plain text: a control
// character, a quote or a backslash. A byte above 0x7f that follows such a byte may be
// reported, too.
func special(x uint64) uint64 {
	quote, slash := x^(ones*'"'), x^(ones*'\\')
	return ((x-ones*0x20)&^x | (quote-ones)&^quote | (slash-ones)&^slash) & highs
}

// text reads a string and reports whether it contains no escapes.
func (s *scanner) text() (plain bool, err error) {
	b, i := s.b, s.i+1
	begin := i
	plain = true
	for {
		i = s.run(i)
		if i >= len(b) {
			s.i = i
			return false, s.wrong("a text does not end")
		}
		switch c := b[i]; {
		case c == '"':
			s.i = i + 1
			if n := i - begin; n >= shortestMark && n <= longestMark {
				s.marks |= marksOf(b[begin:i])
			}
			return plain, nil
		case c == '\\':
			plain = false
			n := escape(b[i:])
			if n == 0 {
				s.i = i
				return false, s.wrong("an escape is wrong")
			}
			if n == 6 && disguised(b[i:]) {
				s.marks |= Disguise
			}
			i += n
		case c < 0x20:
			s.i = i
			return false, s.wrong("a text has a control character")
		default:
			s.seen |= uint64(c)
			i++
		}
	}
}

// run returns a position from i on up to which the text is plain, at most 7 bytes before
// the end of the plain text.
func (s *scanner) run(i int) int {
	b, seen := s.b, s.seen
	for i+8 <= len(b) {
		x := binary.LittleEndian.Uint64(b[i:])
		seen |= x
		if hit := special(x); hit != 0 {
			i += bits.TrailingZeros64(hit) / 8
			break
		}
		i += 8
		for i+32 <= len(b) { // long texts are most of large requests
			p := b[i : i+32 : i+32]
			x0, x1, x2, x3 := binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:]), binary.LittleEndian.Uint64(p[16:]), binary.LittleEndian.Uint64(p[24:])
			if special(x0)|special(x1)|special(x2)|special(x3) != 0 {
				break
			}
			seen |= x0 | x1 | x2 | x3
			i += 32
		}
	}
	s.seen = seen
	return i
}

// escape returns the length of the escape at the start of b, 0 if it is invalid.
func escape(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if len(b) < 6 {
			return 0
		}
		for _, c := range b[2:6] {
			if !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F') {
				return 0
			}
		}
		return 6
	}
	return 0
}

// Change is an edit of a member: a new value, or deletion if Value is nil. A missing
// member is appended.
type Change struct {
	Key   string
	Value []byte
}

// Set returns a Change to a new value.
func Set(key string, value []byte) Change { return Change{key, value} }

// Delete returns a Change that deletes a member.
func Delete(key string) Change { return Change{key, nil} }

// Edit returns the body with changes applied. Unchanged members keep their bytes and
// their order.
func (o *Object) Edit(changes ...Change) []byte {
	out := pieces{body: o.Body, all: make([][]byte, 0, 16)}
	at := 0
	first := true // nothing has been written since the opening bracket
	for i := range o.Members {
		m := &o.Members[i]
		j := slices.IndexFunc(changes, func(c Change) bool { return c.Key == m.Key })
		switch {
		case j >= 0 && changes[j].Value == nil:
			// The white space and comma before the member are removed, too.
			if at == 0 {
				out.same(0, o.Members[0].Name)
			}
			at = m.End
			continue
		case first && at > 0: // all members before were removed
			out.same(m.Name, m.Value)
		default:
			out.same(at, m.Value)
		}
		first = false
		if j >= 0 {
			out.add(changes[j].Value)
		} else {
			out.same(m.Value, m.End)
		}
		at = m.End
	}
	if len(o.Members) == 0 {
		out.same(0, o.end)
		at = o.end
	}
	for _, c := range changes {
		if c.Value == nil || o.Find(c.Key) != nil {
			continue
		}
		name := make([]byte, 0, 64)
		if !first {
			name = append(name, ',')
		}
		first = false
		name = append(append(append(name, '"'), c.Key...), `":`...) // one of the gateway's names, which needs no escapes
		out.add(name)
		out.add(c.Value)
	}
	out.same(at, len(o.Body))
	return out.join()
}

// pieces are the parts of an edited body.
type pieces struct {
	body     []byte
	all      [][]byte
	from, to int // a range of body to be added
}

// same adds body[from:to].
func (p *pieces) same(from, to int) {
	if from != p.to {
		p.end()
		p.from = from
	}
	p.to = to
}

func (p *pieces) end() {
	if p.from < p.to {
		p.all = append(p.all, p.body[p.from:p.to])
	}
	p.from = p.to
}

func (p *pieces) add(b []byte) {
	p.end()
	p.all = append(p.all, b)
}

// join copies all parts once, into memory that is not zeroed before.
func (p *pieces) join() []byte {
	p.end()
	return bytes.Join(p.all, nil)
}
