package guard

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Pattern finds texts, and blocks or redacts them. Exactly one of Preset, Regex and Words
// must be set.
type Pattern struct {
	// Name stands for the pattern in errors and redacted texts. Default: the preset's
	// name, else "pattern".
	Name string
	// Preset is email, card, iban or key.
	Preset string
	// Regex is a regular expression in Go's syntax (RE2).
	Regex string
	// Words are matched as whole words, ignoring case.
	Words []string
	// Redact replaces matches by [name]; without Redact, a match blocks the request.
	Redact bool
}

// rule is a compiled Pattern.
type rule struct {
	name   string
	expr   *regexp.Regexp
	valid  func(match string) bool // nil: all matches are valid
	redact bool
	words  bool // matches must be whole words
}

// presets find personal data and secrets. A check after the expression excludes numbers
// that merely look similar. Expressions are compiled on first use: compiling them at
// start would slow the start of every sandbox, which runs this program, too.
var presets = map[string]struct {
	expr  string
	valid func(string) bool
}{
	"email": {expr: `[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)+[A-Za-z]{2,24}\b`},
	"card":  {expr: `\b[2-6](?:[ -]?[0-9]){12,18}\b`, valid: luhn},
	"iban":  {expr: `\b[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]){11,30}\b`, valid: iban},
	"key": {expr: `\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,}|\b(?:cgk|cay|vck|gsk|xai|ghp|gho|ghu|ghs|ghr|github_pat|glpat|npm|hf|xox[abprs])[-_][A-Za-z0-9_-]{16,}` +
		`|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bAIza[A-Za-z0-9_-]{35}|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}` +
		`|-----BEGIN (?:[A-Z ]+ )?PRIVATE KEY-----`},
}

const (
	maxPatterns = 100
	maxRegex    = 4 << 10
)

func rules(member string, patterns []Pattern) ([]*rule, error) {
	if len(patterns) > maxPatterns {
		return nil, cay.Errorf(cay.Invalid, "%s: there are %d patterns, and at most %d", member, len(patterns), maxPatterns)
	}
	all := make([]*rule, 0, len(patterns))
	for i, p := range patterns {
		r, err := p.rule()
		if err != nil {
			return nil, cay.Errorf(cay.Invalid, "%s[%d]: %w", member, i, err)
		}
		all = append(all, r)
	}
	return all, nil
}

func (p *Pattern) rule() (*rule, error) {
	r := &rule{name: p.Name, redact: p.Redact}
	if r.name == "" {
		r.name = p.Preset
	}
	if r.name == "" {
		r.name = "pattern"
	}
	set := 0
	for _, is := range []bool{p.Preset != "", p.Regex != "", len(p.Words) > 0} {
		if is {
			set++
		}
	}
	if set != 1 {
		return nil, cay.Errorf(cay.Invalid, "it has one of preset, regex and words")
	}
	switch {
	case p.Preset != "":
		preset, ok := presets[p.Preset]
		if !ok {
			return nil, cay.Errorf(cay.Invalid, "preset %q is none of email, card, iban, key", p.Preset)
		}
		r.expr, r.valid = regexp.MustCompile(preset.expr), preset.valid
		return r, nil
	case len(p.Words) > 0:
		quoted := make([]string, len(p.Words))
		for i, w := range p.Words {
			if strings.TrimSpace(w) == "" {
				return nil, cay.Errorf(cay.Invalid, "words: one is empty")
			}
			quoted[i] = regexp.QuoteMeta(w)
		}
		// \b knows only ASCII, so found checks the word boundaries.
		p.Regex = `(?i)(?:` + strings.Join(quoted, "|") + `)`
	}
	if len(p.Regex) > 16*maxRegex || len(p.Words) == 0 && len(p.Regex) > maxRegex {
		return nil, cay.Errorf(cay.Invalid, "it is longer than %d bytes", maxRegex)
	}
	var err error
	if r.expr, err = regexp.Compile(p.Regex); err != nil {
		return nil, cay.Errorf(cay.Invalid, "regex: %w", err)
	}
	if r.expr.MatchString("") {
		return nil, cay.Errorf(cay.Invalid, "regex %.60q matches the empty text", p.Regex)
	}
	r.words = len(p.Words) > 0
	return r, nil
}

// found reports whether text[from:to], a match of the expression, passes the rule's
// further check.
func (r *rule) found(text string, from, to int) bool {
	if r.words {
		before, _ := utf8.DecodeLastRuneInString(text[:from])
		after, _ := utf8.DecodeRuneInString(text[to:])
		return !inWord(before) && !inWord(after)
	}
	return r.valid == nil || r.valid(text[from:to])
}

func inWord(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) }

// apply runs rules over all texts in a JSON value.
func apply(rules []*rule, body []byte, where string) ([]byte, error) {
	if len(rules) == 0 {
		return body, nil
	}
	return rewrite(body, func(text string) (string, error) { return applyText(rules, text, where) })
}

// applyText runs rules over one text.
func applyText(rules []*rule, text, where string) (string, error) {
	for _, r := range rules {
		var changed []byte // nil: nothing was found
		copied := 0
		for _, at := range r.expr.FindAllStringIndex(text, -1) {
			if !r.found(text, at[0], at[1]) {
				continue
			}
			if !r.redact {
				return "", refuse(hub.BadRequest, "blocked", fmt.Sprintf("%s has something in it that is not allowed here: %s", where, r.name))
			}
			changed = append(append(changed, text[copied:at[0]]...), "["+r.name+"]"...)
			copied = at[1]
		}
		if changed != nil {
			text = string(append(changed, text[copied:]...))
		}
	}
	return text, nil
}

// luhn reports whether the digits of s have the check digit of card numbers
// (ISO/IEC 7812-1).
func luhn(s string) bool {
	sum, n := 0, 0
	for i := len(s) - 1; i >= 0; i-- {
		if s[i] < '0' || s[i] > '9' {
			continue
		}
		d := int(s[i] - '0')
		if n%2 == 1 {
			if d *= 2; d > 9 {
				d -= 9
			}
		}
		sum += d
		n++
	}
	return n >= 13 && n <= 19 && sum%10 == 0
}

// iban reports whether the check digits of an account number are right
// (ISO 13616: modulo 97 is 1).
func iban(s string) bool {
	s = strings.ReplaceAll(s, " ", "")
	if len(s) < 15 || len(s) > 34 {
		return false
	}
	sum := 0
	for i := range len(s) {
		c := s[(i+4)%len(s)]
		if c >= 'A' {
			sum = (sum*100 + int(c-'A') + 10) % 97
		} else {
			sum = (sum*10 + int(c-'0')) % 97
		}
	}
	return sum == 1
}
