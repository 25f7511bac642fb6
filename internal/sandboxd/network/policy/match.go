package policy

import (
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/cayhq/cay/sandbox"
)

// answer is whether a condition holds in no, some or every reading of a request. The
// answer for several conditions that must all hold is the least of their answers.
type answer int

const (
	no answer = iota
	maybe
	yes
)

// among returns the answer of a condition over readings, which must not be empty.
func among[T any](readings []T, holds func(T) bool) answer {
	first := holds(readings[0])
	for _, r := range readings[1:] {
		if holds(r) != first {
			return maybe
		}
	}
	if first {
		return yes
	}
	return no
}

// match is a compiled sandbox.Match.
type match struct {
	methods        []string
	path           *text
	query, headers []field
}

type field struct{ key, value *text } // nil: any

func newMatch(in sandbox.Match) (match, error) {
	m := match{methods: slices.Clone(in.Methods)}
	var err error
	if m.path, err = newText(in.Path, false); err != nil {
		return match{}, err
	}
	if m.query, err = newFields(in.Query, false); err != nil {
		return match{}, err
	}
	m.headers, err = newFields(in.Headers, true)
	return m, err
}

func newFields(in []sandbox.FieldMatch, foldKeys bool) ([]field, error) {
	var fields []field
	for _, f := range in {
		key, err := newText(f.Key, foldKeys)
		if err != nil {
			return nil, err
		}
		value, err := newText(f.Value, false)
		if err != nil {
			return nil, err
		}
		fields = append(fields, field{key, value})
	}
	return fields, nil
}

// request is a request with derived values that rules need, each computed at most once.
type request struct {
	*http.Request
	path  *paths
	query *queries
}

// matches returns the answer, and for maybe the part of the request in doubt.
func (m *match) matches(r *request) (answer, string) {
	all, doubt := yes, ""
	note := func(a answer, what string) {
		if a < all {
			all = a
			doubt = what
		}
	}
	note(m.matchMethod(r.Method), "its method is in small letters")
	note(m.matchHeaders(r), "")
	if all > no && m.path != nil {
		if r.path == nil {
			r.path = readPath(r.URL.EscapedPath())
		}
		if r.path.unreadable != "" {
			note(maybe, r.path.unreadable)
		} else {
			note(among(r.path.readings, m.path.matches), "its path is not in normal form")
		}
	}
	if all > no && len(m.query) > 0 {
		if r.query == nil {
			r.query = readQuery(r.URL.RawQuery)
		}
		for _, f := range m.query {
			a := among(r.query.readings, func(params []param) bool {
				return slices.ContainsFunc(params, func(p param) bool { return f.matches(p.key, p.value) })
			})
			if a == no && r.query.malformed {
				a = maybe
			}
			note(a, "its query is malformed, or has semicolons or plus signs in it")
		}
	}
	return all, doubt
}

func (m *match) matchMethod(method string) answer {
	if method == "" { // as package http has it
		method = http.MethodGet
	}
	switch {
	case len(m.methods) == 0 || slices.Contains(m.methods, method):
		return yes
	case slices.Contains(m.methods, strings.ToUpper(method)):
		return maybe
	}
	return no
}

func (m *match) matchHeaders(r *request) answer {
	for _, f := range m.headers {
		if !f.inHeader(r.Request) {
			return no
		}
	}
	return yes
}

func (f field) inHeader(r *http.Request) bool {
	if f.matches("host", r.Host) {
		return true
	}
	for name, values := range r.Header {
		if f.key != nil && !f.key.matches(strings.ToLower(name)) {
			continue
		}
		for _, value := range values {
			if f.value == nil || f.value.matches(value) {
				return true
			}
		}
	}
	return false
}

func (f field) matches(key, value string) bool {
	return (f.key == nil || f.key.matches(key)) && (f.value == nil || f.value.matches(value))
}

// text is a compiled sandbox.TextMatch.
type text struct {
	exact, prefix *string
	regex         *regexp.Regexp
}

// newText returns nil for nil. With fold, it matches texts in lower case.
func newText(in *sandbox.TextMatch, fold bool) (*text, error) {
	if in == nil {
		return nil, nil
	}
	t := &text{exact: in.Exact, prefix: in.Prefix}
	if fold {
		t.exact, t.prefix = lower(in.Exact), lower(in.Prefix)
	}
	if in.Regex != nil {
		expr := *in.Regex
		if fold {
			expr = "(?i:" + expr + ")"
		}
		var err error
		if t.regex, err = regexp.Compile(expr); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func lower(s *string) *string {
	if s == nil {
		return nil
	}
	l := strings.ToLower(*s)
	return &l
}

func (t *text) matches(s string) bool {
	switch {
	case t.exact != nil:
		return s == *t.exact
	case t.prefix != nil:
		return strings.HasPrefix(s, *t.prefix)
	}
	return t.regex.MatchString(s)
}
