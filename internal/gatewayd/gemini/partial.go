package gemini

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// partialArg is a piece of a streamed function call's arguments: the value at a path, or
// the next part of a string.
type partialArg struct {
	JSONPath     string          `json:"jsonPath"` // $.items[0].name
	StringValue  *string         `json:"stringValue"`
	NumberValue  json.RawMessage `json:"numberValue"`
	BoolValue    *bool           `json:"boolValue"`
	NullValue    json.RawMessage `json:"nullValue"`
	WillContinue bool            `json:"willContinue"` // the text goes on
}

// arguments concatenates the pieces to the text of one JSON object, in the order of
// arrival. A model generates arguments in that order, and never returns to a path after
// another one.
type arguments struct {
	open   []place // containers, from the outermost
	begun  bool
	inText bool // the text at the last place goes on
}

// place is an open container and the current position in it.
type place struct {
	array bool
	index int
	key   string
	used  map[string]bool // keys that were
}

var errOrder = errors.New("the arguments of a function call came in no order that makes sense")

// step is one step of a path: a key, or an index.
type step struct {
	array bool
	index int
	key   string
}

// parsePath parses the subset of JSONPath that Google uses: names after dots, and indices
// and quoted names in brackets.
func parsePath(path string) ([]step, error) {
	rest, ok := strings.CutPrefix(path, "$")
	if !ok {
		return nil, errOrder
	}
	var steps []step
	for rest != "" {
		if len(steps) == maxDepth {
			return nil, errOrder
		}
		switch rest[0] {
		case '.':
			end := strings.IndexAny(rest[1:], ".[") + 1
			if end == 0 {
				end = len(rest)
			}
			if end == 1 {
				return nil, errOrder
			}
			steps = append(steps, step{key: rest[1:end]})
			rest = rest[end:]
		case '[':
			if len(rest) > 1 && (rest[1] == '\'' || rest[1] == '"') {
				key, after, ok := quoted(rest[1:])
				if !ok {
					return nil, errOrder
				}
				steps = append(steps, step{key: key})
				rest = after
				continue
			}
			end := strings.IndexByte(rest, ']')
			if end < 0 {
				return nil, errOrder
			}
			n, err := strconv.ParseUint(rest[1:end], 10, 31)
			if err != nil {
				return nil, errOrder
			}
			steps = append(steps, step{array: true, index: int(n)})
			rest = rest[end+1:]
		default:
			return nil, errOrder
		}
	}
	if len(steps) == 0 || steps[0].array {
		return nil, errOrder
	}
	return steps, nil
}

// quoted reads a quoted name up to the bracket that follows it.
func quoted(s string) (key, after string, ok bool) {
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == '\\' && i+1 < len(s):
			i++
			b.WriteByte(s[i])
		case s[i] == s[0]:
			if after, ok = strings.CutPrefix(s[i+1:], "]"); ok {
				return b.String(), after, true
			}
			return "", "", false
		default:
			b.WriteByte(s[i])
		}
	}
	return "", "", false
}

// add returns the text that a piece adds.
func (a *arguments) add(p *partialArg) (string, error) {
	steps, err := parsePath(p.JSONPath)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	if !a.begun {
		a.begun = true
		b.WriteByte('{')
		a.open = append(a.open, place{})
	}
	if a.inText && a.here(steps) {
		if p.StringValue == nil {
			return "", errOrder
		}
		a.text(&b, p)
		return b.String(), nil
	}
	a.endText(&b)
	if err := a.move(&b, steps); err != nil {
		return "", err
	}
	switch {
	case p.StringValue != nil:
		b.WriteByte('"')
		a.inText = true
		a.text(&b, p)
	case !hub.IsNull(p.NumberValue):
		b.Write(p.NumberValue)
	case p.BoolValue != nil:
		b.WriteString(strconv.FormatBool(*p.BoolValue))
	default:
		b.WriteString("null")
	}
	return b.String(), nil
}

func (a *arguments) text(b *strings.Builder, p *partialArg) {
	q := hub.MustEncode(*p.StringValue)
	b.Write(q[1 : len(q)-1])
	if !p.WillContinue {
		a.endText(b)
	}
}

func (a *arguments) endText(b *strings.Builder) {
	if a.inText {
		a.inText = false
		b.WriteByte('"')
	}
}

// here reports whether the last value was written at the path.
func (a *arguments) here(steps []step) bool {
	if len(steps) != len(a.open) {
		return false
	}
	for i, s := range steps {
		if !a.open[i].at(s) {
			return false
		}
	}
	return true
}

func (p *place) at(s step) bool {
	return p.array == s.array && p.index == s.index && p.key == s.key && (p.array || p.used != nil)
}

// move closes and opens containers up to the path, and writes the separators and keys
// before the value.
func (a *arguments) move(b *strings.Builder, steps []step) error {
	same := 0
	for same < len(steps)-1 && same < len(a.open)-1 && a.open[same].at(steps[same]) {
		same++
	}
	for len(a.open) > same+1 {
		a.pop(b)
	}
	for i := same; i < len(steps); i++ {
		s := steps[i]
		if i > same {
			if s.array {
				b.WriteByte('[')
			} else {
				b.WriteByte('{')
			}
			a.open = append(a.open, place{array: s.array, index: -1})
		}
		top := &a.open[i]
		if top.array != s.array {
			return errOrder
		}
		if s.array {
			if s.index != top.index+1 {
				return errOrder
			}
			if s.index > 0 {
				b.WriteByte(',')
			}
			top.index = s.index
			continue
		}
		if top.used[s.key] {
			return errOrder
		}
		if top.used == nil {
			top.used = make(map[string]bool)
		} else {
			b.WriteByte(',')
		}
		top.used[s.key], top.key, top.index = true, s.key, 0
		b.Write(hub.MustEncode(s.key))
		b.WriteByte(':')
	}
	return nil
}

func (a *arguments) pop(b *strings.Builder) {
	last := a.open[len(a.open)-1]
	a.open = a.open[:len(a.open)-1]
	if last.array {
		b.WriteByte(']')
	} else {
		b.WriteByte('}')
	}
}

// end returns the remaining text, which closes all containers.
func (a *arguments) end() string {
	var b strings.Builder
	a.endText(&b)
	for len(a.open) > 0 {
		a.pop(&b)
	}
	return b.String()
}
