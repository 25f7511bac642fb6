package sandbox

import (
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/cayhq/cay"
)

// Bounds of rules.
const (
	maxHeaders       = 64
	maxHeaderName    = 256
	maxHeaderValue   = 8 << 10
	maxForwardURL    = 2048
	maxRespondBody   = 64 << 10
	maxConditions    = 32 // of each kind in one Match
	maxRegex         = 1024
	minScrubbed      = 8
	maxInstructions  = 2000  // a regular expression compiled, which bounds what matching costs
	maxPolicyProgram = 20000 // all of a policy together
)

// check checks a rule; cost counts the instructions of the policy's regular
// expressions.
func (r Rule) check(where string, cost *int) error {
	if err := r.Match.check(where+".match", cost); err != nil {
		return err
	}
	var actions []string
	for _, a := range []struct {
		name  string
		given bool
	}{
		{"set_headers", len(r.SetHeaders) > 0}, {"forward_url", r.ForwardURL != ""}, {"respond", r.Respond != nil}, {"deny", r.Deny},
	} {
		if a.given {
			actions = append(actions, a.name)
		}
	}
	if len(actions) > 1 {
		return invalid("%s has %s together", where, strings.Join(actions, " and ")).WithHint("give each action a rule of its own")
	}
	if err := checkSetHeaders(where+".set_headers", r.SetHeaders, r.Scrub); err != nil {
		return err
	}
	if r.Scrub && len(r.SetHeaders) == 0 {
		return invalid("%s.scrub is set without set_headers", where).WithHint("there is nothing to look for in the response")
	}
	if r.ForwardURL != "" {
		if err := checkForwardURL(where+".forward_url", r.ForwardURL); err != nil {
			return err
		}
	}
	if r.Respond != nil {
		return r.Respond.check(where + ".respond")
	}
	return nil
}

// ofConnection are the headers that concern one connection, not a request.
var ofConnection = []string{"connection", "content-length", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}

func checkSetHeaders(where string, headers map[string]string, scrub bool) error {
	if err := checkHeaders(where, headers); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		value, at := headers[name], where+"["+strconv.Quote(name)+"]"
		lower := strings.ToLower(name)
		switch {
		case lower == "host":
			return invalid("%s cannot be set", at).WithHint("forward_url sends a request to another host")
		case scrub && lower == "accept-encoding":
			return invalid("%s cannot be set together with scrub", at).WithHint("with scrub, the response is asked for uncompressed")
		case value == Redacted:
			return invalid("%s is %q, which stands for a value that is not shown", at, Redacted).
				WithHint("give the value itself again; a policy read from the API does not have it")
		case scrub && len(value) < minScrubbed:
			return invalid("%s is shorter than %d bytes, too short to scrub", at, minScrubbed).
				WithHint("it would be found in innocent text")
		}
	}
	return nil
}

// checkHeaders checks headers to set in a request or a response. Its errors do
// not contain the headers' values, which may be secret.
func checkHeaders(where string, headers map[string]string) error {
	if len(headers) > maxHeaders {
		return invalid("%s has %d headers, more than %d", where, len(headers), maxHeaders)
	}
	seen := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		value, at := headers[name], where+"["+quote(name)+"]"
		lower := strings.ToLower(name)
		switch first, twice := seen[lower]; {
		case name == "" || len(name) > maxHeaderName || strings.ContainsFunc(name, notInToken):
			return invalid("%s is not the name of a header", at)
		case twice:
			return invalid("%s is there as %q, too", at, first).WithHint("the case of letters does not count")
		case slices.Contains(ofConnection, lower) || strings.HasPrefix(lower, "proxy-"):
			return invalid("%s cannot be set: it is about the connection", at)
		case len(value) > maxHeaderValue:
			return invalid("%s is %d bytes long, more than %d", at, len(value), maxHeaderValue)
		case strings.ContainsAny(value, "\r\n"):
			return invalid("%s has a line break in its value", at).WithHint("a value read from a file often ends in one")
		case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }):
			return invalid("%s has a control character in its value", at)
		case value != strings.Trim(value, " \t"):
			return invalid("%s has white space at an end of its value", at)
		case !utf8.ValidString(value):
			return invalid("%s has a value that is not UTF-8", at)
		}
		seen[lower] = name
	}
	return nil
}

// quote shortens a text that may be long.
func quote(s string) string { return fmt.Sprintf("%.100q", s) }

func notInToken(r rune) bool {
	return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
}

// checkForwardURL shows only the host of the URL in errors: the rest may have a
// password in it.
func checkForwardURL(where, text string) error {
	u, err := url.Parse(text)
	switch {
	case len(text) > maxForwardURL:
		return invalid("%s is %d bytes long, more than %d", where, len(text), maxForwardURL)
	case err != nil || u.Opaque != "":
		return invalid("%s is not a URL", where).WithHint("write https://host/path")
	case u.Scheme != "http" && u.Scheme != "https":
		return invalid("%s has the scheme %.20q, not http or https", where, u.Scheme).WithHint("write https://host/path")
	case u.User != nil:
		return invalid("%s has a user or password in it", where).WithHint("a URL is shown to whoever reads the policy")
	case u.RawQuery != "" || u.ForceQuery:
		return invalid("%s has a query", where).WithHint("leave it out: that of the request is kept")
	case u.Fragment != "" || strings.Contains(text, "#"):
		return invalid("%s has a fragment", where).WithHint("leave out what begins with #")
	}
	host := u.Hostname()
	if _, err := netip.ParseAddr(host); err != nil {
		if strings.Contains(host, "*") || checkPattern(where, host) != nil {
			return invalid("%s has %.300q for a host", where, host)
		}
	}
	if port := u.Port(); port != "" || strings.HasSuffix(u.Host, ":") {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return invalid("%s has the port %.20q, not 1 to 65535", where, port)
		}
	}
	return nil
}

func (r Response) check(where string) error {
	if r.Status < 200 || r.Status > 599 {
		return invalid("%s.status %d is not 200 to 599", where, r.Status)
	}
	if err := checkHeaders(where+".headers", r.Headers); err != nil {
		return err
	}
	switch {
	case r.Body == "":
	case r.Status == 204 || r.Status == 205 || r.Status == 304:
		return invalid("%s.body is given, but a response of the status %d has none", where, r.Status)
	case len(r.Body) > maxRespondBody:
		return invalid("%s.body is %d bytes long, more than %d", where, len(r.Body), maxRespondBody)
	case !utf8.ValidString(r.Body):
		return invalid("%s.body is not UTF-8", where)
	}
	return nil
}

func (m Match) check(where string, cost *int) error {
	if len(m.Methods) > maxConditions || len(m.Query) > maxConditions || len(m.Headers) > maxConditions {
		return invalid("%s has %d methods, %d query and %d headers, more than %d of a kind", where, len(m.Methods), len(m.Query), len(m.Headers), maxConditions)
	}
	for i, method := range m.Methods {
		at := fmt.Sprintf("%s.methods[%d]", where, i)
		switch {
		case method == "" || len(method) > maxHeaderName || strings.ContainsFunc(method, notInToken):
			return invalid("%s %.100q is not a method", at, method)
		case method != strings.ToUpper(method):
			return invalid("%s %q is in small letters", at, method).WithHint("their case counts; write %s", strings.ToUpper(method))
		}
	}
	if m.Path != nil {
		if err := m.Path.check(where+".path", cost); err != nil {
			return err
		}
		if err := m.Path.checkPath(where + ".path"); err != nil {
			return err
		}
	}
	if err := checkFields(where+".query", m.Query, cost); err != nil {
		return err
	}
	return checkFields(where+".headers", m.Headers, cost)
}

func checkFields(where string, fields []FieldMatch, cost *int) error {
	for i, f := range fields {
		at := fmt.Sprintf("%s[%d]", where, i)
		if f.Key == nil && f.Value == nil {
			return invalid("%s has neither key nor value", at)
		}
		if f.Key != nil {
			if err := f.Key.check(at+".key", cost); err != nil {
				return err
			}
		}
		if f.Value != nil {
			if err := f.Value.check(at+".value", cost); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t TextMatch) check(where string, cost *int) error {
	given := 0
	for _, s := range []*string{t.Exact, t.Prefix, t.Regex} {
		if s == nil {
			continue
		}
		given++
		if !utf8.ValidString(*s) {
			return invalid("%s is not UTF-8", where)
		}
	}
	if given != 1 {
		return invalid("%s has %d of exact, prefix and regex", where, given).WithHint("give it exactly one")
	}
	if t.Regex == nil {
		return nil
	}
	n, err := instructions(*t.Regex)
	switch {
	case utf8.RuneCountInString(*t.Regex) > maxRegex:
		return invalid("%s.regex is %d characters long, more than %d", where, utf8.RuneCountInString(*t.Regex), maxRegex)
	case err != nil:
		return invalid("%s.regex is not a regular expression: %v", where, err).WithHint("the syntax is that of RE2")
	case n > maxInstructions:
		return invalid("%s.regex is too costly to match", where).WithHint("use smaller counts for repetitions")
	}
	if *cost += n; *cost > maxPolicyProgram {
		return invalid("%s.regex is too costly to match, together with those before it", where).
			WithHint("use fewer regular expressions, or smaller counts for repetitions")
	}
	return nil
}

// instructions returns how long a regular expression is when it is compiled. An
// expression that is too long to be valid is not compiled.
func instructions(expr string) (int, error) {
	if len(expr) > maxRegex*utf8.UTFMax {
		return 0, nil
	}
	re, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		return 0, err
	}
	prog, err := syntax.Compile(re.Simplify())
	if err != nil {
		return 0, err
	}
	return len(prog.Inst), nil
}

// checkPath refuses texts that no request's path can match without ambiguity,
// since paths are compared as they are sent.
func (t TextMatch) checkPath(where string) error {
	kind, text := "exact", t.Exact
	if text == nil {
		kind, text = "prefix", t.Prefix
	}
	if text == nil || *text == "*" && kind == "exact" { // OPTIONS *
		return nil
	}
	fail := func(why, hint string) *cay.Error {
		return invalid("%s.%s %.200q %s", where, kind, *text, why).WithHint("%s", hint)
	}
	if !strings.HasPrefix(*text, "/") {
		return fail("does not begin with /", "paths are compared from their beginning; a regex is found anywhere")
	}
	for i := 0; i < len(*text); i++ {
		switch c := (*text)[i]; {
		case c == '?' || c == '#':
			return fail("has a query or fragment in it", "match.query is for the query")
		case c == '%':
			if i+2 >= len(*text) || !plainEscape((*text)[i:i+3]) {
				return fail("has an escape in it that is none, is not in capitals, or stands for a character that needs none",
					"write the character itself; (/|%2F) in a regex matches an escaped slash, too")
			}
		case c == ';' || c == '\\' || c < ' ' || c == 0x7f:
			return fail(fmt.Sprintf("has %q in it", c), "servers read that in several ways; end the text before it")
		case !inPath(c):
			return fail(fmt.Sprintf("has %q in it", c), fmt.Sprintf("write it as it is sent, as %%%02X", c))
		}
	}
	segments := strings.Split(*text, "/")
	for i, s := range segments {
		last := i == len(segments)-1
		if s == "" && i > 0 && !last || (s == "." || s == "..") && !(last && kind == "prefix") {
			return fail("is not in normal form", "leave out double slashes, /./ and /../")
		}
	}
	return nil
}

// inPath reports whether a byte can be in a path unescaped.
func inPath(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~!$&'()*+,;=:@/", c) >= 0
}

// plainEscape reports whether s is an escape in capitals of a byte that cannot
// be in a path unescaped, and that no server takes for a part of the path's
// syntax.
func plainEscape(s string) bool {
	n, err := strconv.ParseUint(s[1:], 16, 8)
	c := byte(n)
	return err == nil && s == strings.ToUpper(s) && c >= ' ' && c != 0x7f && !inPath(c) && c != '%' && c != '\\'
}
