package policy

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// Domain is an entry of the allow list.
type Domain struct {
	Pattern   string   // as the user wrote it
	Ports     []uint16 // empty: all ports but the ports of mail
	Intercept bool     // TLS must be opened: the domain has rules, or the policy is strict

	text   string   // allow "pattern"
	labels []string // of the pattern in lower case
	prefix string   // the part before the first "*", if a "*" is further in
	suffix string   // the part after the last "*"
	rules  []*Rule
}

// anyDomain is the entry for every name in the mode AllowAll.
var anyDomain = &Domain{Pattern: "*", text: ruleAllowAll}

// Rule is what to do with an HTTP request. At most one of SetHeaders, Forward, Respond
// and Deny is set; with none, the request passes. The fields must not be changed.
type Rule struct {
	Text       string      // the rule's name, counted from 1: allow "api.example.com" rule 2
	SetHeaders http.Header // canonical names, a single value each; secret
	Scrub      bool        // put sandbox.Redacted in place of Secrets in the response
	// Secrets, longest first, are the values in SetHeaders, and their secret parts: the
	// token after "Bearer", the password of "Basic".
	Secrets [][]byte
	Forward *url.URL
	Respond *sandbox.Response
	Deny    bool
	Reason  string // for Deny, a sentence for people

	match match
}

// Format writes only the name of the rule, so that secrets stay out of logs.
func (r *Rule) Format(f fmt.State, _ rune) { fmt.Fprint(f, r.Text) }

// minSecret is the length, in bytes, from which a part of a value is a secret of its own:
// shorter parts would be found in harmless text. Network.Validate requires the same
// length of whole values that are to be scrubbed.
const minSecret = 8

func newDomain(in sandbox.Domain, strict bool) (*Domain, error) {
	d := &Domain{
		Pattern: in.Name, Ports: slices.Clone(in.Ports), Intercept: strict || len(in.Rules) > 0,
		text: `allow "` + in.Name + `"`,
	}
	for i, rule := range in.Rules {
		r, err := newRule(fmt.Sprintf("%s rule %d", d.text, i+1), rule)
		if err != nil {
			return nil, err
		}
		d.rules = append(d.rules, r)
	}
	return d, nil
}

func newRule(text string, in sandbox.Rule) (*Rule, error) {
	r := &Rule{Text: text, Scrub: in.Scrub, Respond: in.Respond, Deny: in.Deny}
	if in.Deny {
		r.Reason = "a rule of the network policy denies this request"
	}
	if len(in.SetHeaders) > 0 {
		r.SetHeaders = make(http.Header, len(in.SetHeaders))
		for name, value := range in.SetHeaders {
			r.SetHeaders.Set(name, value)
			r.Secrets = append(r.Secrets, secretsIn(value)...)
		}
		slices.SortFunc(r.Secrets, func(a, b []byte) int { return len(b) - len(a) })
	}
	if in.ForwardURL != "" {
		u, err := url.Parse(in.ForwardURL)
		if err != nil {
			return nil, cay.Errorf(cay.Invalid, "%s: forward_url is not a URL", text) // err shows it whole
		}
		r.Forward = u
	}
	var err error
	if r.match, err = newMatch(in.Match); err != nil {
		return nil, cay.Errorf(cay.Invalid, "%s: %w", text, err)
	}
	return r, nil
}

// secretsIn returns the parts of a header's value that must not be shown.
func secretsIn(value string) [][]byte {
	var secrets [][]byte
	add := func(s string, least int) {
		if len(s) >= least {
			secrets = append(secrets, []byte(s))
		}
	}
	add(value, 1)
	scheme, token, ok := strings.Cut(value, " ")
	if !ok {
		return secrets
	}
	add(token, minSecret)
	if strings.EqualFold(scheme, "basic") {
		if plain, err := base64.StdEncoding.DecodeString(token); err == nil {
			_, password, _ := strings.Cut(string(plain), ":")
			add(string(plain), minSecret)
			add(password, minSecret)
		}
	}
	return secrets
}

// Match returns the first rule that matches the request, or nil if no rule matches.
// Method, URL and headers must be exactly as they will be sent on: callers must not
// normalize them.
//
// Servers read paths and queries in many ways, and a guest must not evade a rule by a
// spelling that this package reads otherwise than the server: a path with //, /../, %2e,
// %2F, backslashes or ;parameters, a query with an invalid escape or with semicolons, a
// method in small letters. If the readings differ in whether a rule matches, the request
// is refused: Match returns a new rule with Deny set, and with the Text of the rule in
// doubt. So /@scope%2Fname passes a rule for /@scope, but not one for /@scope/.
//
// Match does not see values that a server takes from elsewhere, such as
// X-HTTP-Method-Override, and does not know whether a server ignores the case of letters.
func (d *Domain) Match(r *http.Request) *Rule {
	if len(d.rules) == 0 {
		return nil
	}
	req := request{Request: r}
	for _, rule := range d.rules {
		switch answer, doubt := rule.match.matches(&req); answer {
		case yes:
			return rule
		case maybe:
			return &Rule{Text: rule.Text, Deny: true, Reason: "the request can be read in several ways, and a rule of the network policy depends on which: " + doubt}
		}
	}
	return nil
}
