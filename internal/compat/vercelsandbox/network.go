package vercelsandbox

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// NetworkFromRequest reads a network policy from a request. There are two forms:
//
//	{"allow": ["a.example.com"] or {"a.example.com": [rule...]}, "subnets": {"allow": [...], "deny": [...]}}
//	{"mode": "allow-all", "deny-all" or "custom", "allowedDomains": [...], "allowedCIDRs": [...],
//	  "deniedCIDRs": [...], "injectionRules": [...], "forwardRules": [...]}
//
// The strings "allow-all" and "deny-all" are understood, too. Names keep their
// order. The policy is valid. Errors: invalid.
func NetworkFromRequest(b []byte) (sandbox.Network, error) {
	switch kind := jsontext.Value(b).Kind(); kind {
	case '"':
		var mode string
		if err := decode(b, &mode); err != nil {
			return sandbox.Network{}, err
		}
		return modeOnly(mode)
	case 'n', 't', 'f', '0', '[':
		return sandbox.Network{}, cay.Errorf(cay.Invalid, "network policy: neither an object nor a string")
	}
	var r networkRequest
	if err := decode(b, &r); err != nil {
		return sandbox.Network{}, err
	}
	n, err := r.network()
	if err != nil {
		return sandbox.Network{}, err
	}
	return n, n.Validate()
}

func modeOnly(mode string) (sandbox.Network, error) {
	switch m := sandbox.NetworkMode(mode); m {
	case sandbox.AllowAll, sandbox.DenyAll:
		return sandbox.Network{Mode: m}, nil
	}
	return sandbox.Network{}, cay.Errorf(cay.Invalid, "network policy %.100q is not one of %q, %q", mode, sandbox.AllowAll, sandbox.DenyAll)
}

// NetworkResponse is the form of a network policy in responses.
type NetworkResponse struct {
	Mode           sandbox.NetworkMode `json:"mode"`
	AllowedDomains []string            `json:"allowedDomains,omitempty"`
	AllowedCIDRs   []string            `json:"allowedCIDRs,omitempty"`
	DeniedCIDRs    []string            `json:"deniedCIDRs,omitempty"`
	InjectionRules []InjectionRule     `json:"injectionRules,omitempty"`
	ForwardRules   []ForwardRule       `json:"forwardRules,omitempty"`
}

// InjectionRule has the names of the headers that a rule sets, never their values.
type InjectionRule struct {
	Domain      string   `json:"domain"`
	HeaderNames []string `json:"headerNames"`
	Match       *Match   `json:"match,omitempty"`
}

// ForwardRule is a rule that forwards requests.
type ForwardRule struct {
	Domain     string `json:"domain"`
	ForwardURL string `json:"forwardURL"`
	Match      *Match `json:"match,omitempty"`
}

// Match selects the requests that a rule applies to.
type Match struct {
	Path        *TextMatch   `json:"path,omitempty"`
	Method      []string     `json:"method,omitempty"`
	QueryString []FieldMatch `json:"queryString,omitempty"`
	Headers     []FieldMatch `json:"headers,omitempty"`
}

// FieldMatch matches a query parameter or a header.
type FieldMatch struct {
	Key   *TextMatch `json:"key,omitempty"`
	Value *TextMatch `json:"value,omitempty"`
}

// TextMatch compares a text by the single field that is set.
type TextMatch struct {
	Exact      *string `json:"exact,omitempty"`
	StartsWith *string `json:"startsWith,omitempty"`
	Regex      *string `json:"regex,omitempty"` // RE2
}

// NetworkToResponse returns a policy in the form of responses. Rules that answer or
// deny, ports, limits and strictness cannot be expressed; their names stay in
// AllowedDomains.
func NetworkToResponse(n sandbox.Network) NetworkResponse {
	n = n.WithDefaults()
	r := NetworkResponse{Mode: n.Mode, AllowedCIDRs: n.AllowCIDRs, DeniedCIDRs: n.DenyCIDRs}
	for _, d := range n.Allow {
		r.AllowedDomains = append(r.AllowedDomains, d.Name)
		for _, rule := range d.Rules {
			switch {
			case len(rule.SetHeaders) > 0:
				r.InjectionRules = append(r.InjectionRules, InjectionRule{
					Domain: d.Name, HeaderNames: slices.Sorted(maps.Keys(rule.SetHeaders)), Match: toMatch(rule.Match),
				})
			case rule.ForwardURL != "":
				r.ForwardRules = append(r.ForwardRules, ForwardRule{Domain: d.Name, ForwardURL: rule.ForwardURL, Match: toMatch(rule.Match)})
			}
		}
	}
	return r
}

// networkRequest has the fields of both forms of a request.
type networkRequest struct {
	Allow   *allowList `json:"allow"`
	Subnets *subnets   `json:"subnets"`

	Mode           *sandbox.NetworkMode `json:"mode"`
	AllowedDomains []string             `json:"allowedDomains"`
	AllowedCIDRs   []string             `json:"allowedCIDRs"`
	DeniedCIDRs    []string             `json:"deniedCIDRs"`
	InjectionRules []injectionRequest   `json:"injectionRules"`
	ForwardRules   []ForwardRule        `json:"forwardRules"`
}

type subnets struct {
	Allow []string `json:"allow"`
	Deny  []string `json:"deny"`
}

type injectionRequest struct {
	Domain      string     `json:"domain"`
	Headers     headerList `json:"headers"`
	HeaderNames []string   `json:"headerNames"` // of a response
	Match       *Match     `json:"match"`
}

type allowedDomain struct {
	name  string
	rules []ruleRequest
}

type ruleRequest struct {
	Match      *Match           `json:"match"`
	Transform  []transform      `json:"transform"`
	ForwardURL *string          `json:"forwardURL"`
	Response   *responseRequest `json:"response"`
}

type transform struct {
	Headers headerList `json:"headers"`
}

type responseRequest struct {
	StatusCode  int        `json:"statusCode"`
	Headers     headerList `json:"headers"`
	Body        *string    `json:"body"`
	ContentType *string    `json:"contentType"`
}

// allowList is an array of names, or an object of rules by name. It keeps the
// order of either.
type allowList []allowedDomain

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (l *allowList) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	if d.PeekKind() == '[' {
		var names []string
		if err := json.UnmarshalDecode(d, &names); err != nil {
			return err
		}
		for _, name := range names {
			*l = append(*l, allowedDomain{name: name})
		}
		return nil
	}
	return members(d, func(name string) error {
		domain := allowedDomain{name: name}
		err := json.UnmarshalDecode(d, &domain.rules)
		*l = append(*l, domain)
		return err
	})
}

// headerList are headers in their order. A repeated name replaces the earlier value.
type headerList []header

type header struct{ name, value string }

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (l *headerList) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	return members(d, func(name string) error {
		h := header{name: name}
		err := json.UnmarshalDecode(d, &h.value)
		*l = append(*l, h)
		return err
	})
}

// members calls f for each member of an object, to read its value.
func members(d *jsontext.Decoder, f func(name string) error) error {
	switch tok, err := d.ReadToken(); {
	case err != nil:
		return err
	case tok.Kind() == 'n':
		return nil
	case tok.Kind() != '{':
		return errors.New("is not an object")
	}
	for d.PeekKind() == '"' {
		tok, err := d.ReadToken()
		if err != nil {
			return err
		}
		if err := f(tok.String()); err != nil {
			return err
		}
	}
	_, err := d.ReadToken()
	return err
}

// decode is strict, so that no part of a policy is ignored. Its errors show no
// values, which may be secret.
func decode(b []byte, v any) error {
	err := json.Unmarshal(b, v, json.RejectUnknownMembers(true))
	if err == nil {
		return nil
	}
	var syntax *jsontext.SyntacticError
	var semantic *json.SemanticError
	switch {
	case errors.As(err, &syntax) && errors.Is(err, jsontext.ErrDuplicateName):
		return cay.Errorf(cay.Invalid, "network policy: %.200s is there twice", syntax.JSONPointer)
	case errors.As(err, &syntax):
		return cay.Errorf(cay.Invalid, "network policy: not JSON at byte %d", syntax.ByteOffset)
	case errors.As(err, &semantic) && errors.Is(err, json.ErrUnknownName):
		return cay.Errorf(cay.Invalid, "network policy: unknown field %.200s", semantic.JSONPointer)
	case errors.As(err, &semantic):
		return cay.Errorf(cay.Invalid, "network policy: %.200s is not of the kind that is expected there", cmp.Or(string(semantic.JSONPointer), "it"))
	}
	return cay.Errorf(cay.Invalid, "network policy: not what is expected")
}

func (r *networkRequest) network() (sandbox.Network, error) {
	byMode := len(r.AllowedDomains)+len(r.AllowedCIDRs)+len(r.DeniedCIDRs)+len(r.InjectionRules)+len(r.ForwardRules) > 0
	if r.Mode == nil && byMode {
		return sandbox.Network{}, cay.Errorf(cay.Invalid, "network policy: mode is missing").WithHint(`set it to "custom"`)
	}
	if r.Mode == nil {
		return r.fromAllow()
	}
	if r.Allow != nil || r.Subnets != nil {
		return sandbox.Network{}, cay.Errorf(cay.Invalid, "network policy: mode is given together with allow or subnets").
			WithHint("leave mode out, or use allowedDomains, allowedCIDRs and deniedCIDRs")
	}
	if *r.Mode == "" {
		return sandbox.Network{}, cay.Errorf(cay.Invalid, "network policy: mode is empty")
	}
	return r.fromMode()
}

func (r *networkRequest) fromAllow() (sandbox.Network, error) {
	n := sandbox.Network{Mode: sandbox.Custom}
	if r.Subnets != nil {
		n.AllowCIDRs, n.DenyCIDRs = r.Subnets.Allow, r.Subnets.Deny
	}
	if r.Allow == nil {
		return n, nil
	}
	for _, d := range *r.Allow {
		domain := sandbox.Domain{Name: d.name}
		for i, in := range d.rules {
			rule, err := in.rule()
			if err != nil {
				return sandbox.Network{}, cay.Errorf(cay.Invalid, "network policy: allow[%s][%d]: %w", strconv.Quote(d.name), i, err)
			}
			domain.Rules = append(domain.Rules, rule)
		}
		n.Allow = append(n.Allow, domain)
	}
	return n, nil
}

func (r *networkRequest) fromMode() (sandbox.Network, error) {
	n := sandbox.Network{Mode: *r.Mode, AllowCIDRs: r.AllowedCIDRs, DenyCIDRs: r.DeniedCIDRs}
	at := map[string]int{}
	for i, name := range r.AllowedDomains {
		n.Allow = append(n.Allow, sandbox.Domain{Name: name})
		at[strings.ToLower(name)] = i
	}
	// A name that only a rule has is allowed by the rule.
	add := func(name string, rule sandbox.Rule) {
		key := strings.ToLower(name)
		i, ok := at[key]
		if !ok {
			i = len(n.Allow)
			at[key] = i
			n.Allow = append(n.Allow, sandbox.Domain{Name: name})
		}
		n.Allow[i].Rules = append(n.Allow[i].Rules, rule)
	}
	for i, in := range r.InjectionRules {
		if len(in.Headers) == 0 {
			return sandbox.Network{}, cay.Errorf(cay.Invalid, "network policy: injectionRules[%d] has no headers", i).
				WithHint("a policy read from the API has only the headers' names; give their values again")
		}
		add(in.Domain, sandbox.Rule{Match: in.Match.match(), SetHeaders: in.Headers.merged()})
	}
	for i, in := range r.ForwardRules {
		if in.ForwardURL == "" {
			return sandbox.Network{}, cay.Errorf(cay.Invalid, "network policy: forwardRules[%d] has no forwardURL", i)
		}
		add(in.Domain, sandbox.Rule{Match: in.Match.match(), ForwardURL: in.ForwardURL})
	}
	return n, nil
}

func (r *ruleRequest) rule() (sandbox.Rule, error) {
	given := 0
	for _, g := range []bool{r.Transform != nil, r.ForwardURL != nil, r.Response != nil} {
		if g {
			given++
		}
	}
	if given != 1 {
		return sandbox.Rule{}, fmt.Errorf("the rule has %d of transform, forwardURL and response, not one", given)
	}
	rule := sandbox.Rule{Match: r.Match.match()}
	switch {
	case r.Transform != nil:
		var all headerList
		for _, t := range r.Transform {
			all = append(all, t.Headers...)
		}
		rule.SetHeaders = all.merged()
	case r.ForwardURL != nil:
		if *r.ForwardURL == "" {
			return sandbox.Rule{}, errors.New("forwardURL is empty")
		}
		rule.ForwardURL = *r.ForwardURL
	default:
		respond, err := r.Response.response()
		if err != nil {
			return sandbox.Rule{}, err
		}
		rule.Respond = respond
	}
	return rule, nil
}

func (r *responseRequest) response() (*sandbox.Response, error) {
	headers := r.Headers
	seen := map[string]bool{}
	for _, h := range headers {
		if key := strings.ToLower(h.name); seen[key] {
			return nil, fmt.Errorf("response.headers has %.100q twice", h.name)
		} else {
			seen[key] = true
		}
	}
	out := &sandbox.Response{Status: r.StatusCode}
	if r.Body != nil {
		out.Body = *r.Body
	}
	switch {
	case r.ContentType == nil && r.Body != nil:
		return nil, errors.New("response.body is given without contentType")
	case r.ContentType != nil && seen["content-type"]:
		return nil, errors.New("response has a content type twice: in contentType and in headers")
	case r.ContentType != nil:
		headers = append(headers, header{"Content-Type", *r.ContentType})
	}
	out.Headers = headers.merged()
	return out, nil
}

// merged returns the headers as a map, nil if there are none. If a name, in any case
// of letters, occurs several times, the last header counts.
func (l headerList) merged() map[string]string {
	if len(l) == 0 {
		return nil
	}
	names := map[string]string{}
	out := map[string]string{}
	for _, h := range l {
		key := strings.ToLower(h.name)
		delete(out, names[key])
		names[key] = h.name
		out[h.name] = h.value
	}
	return out
}

func (m *Match) match() sandbox.Match {
	if m == nil {
		return sandbox.Match{}
	}
	return sandbox.Match{Methods: m.Method, Path: m.Path.match(), Query: fromFields(m.QueryString), Headers: fromFields(m.Headers)}
}

func fromFields(in []FieldMatch) []sandbox.FieldMatch {
	var out []sandbox.FieldMatch
	for _, f := range in {
		out = append(out, sandbox.FieldMatch{Key: f.Key.match(), Value: f.Value.match()})
	}
	return out
}

func (t *TextMatch) match() *sandbox.TextMatch {
	if t == nil {
		return nil
	}
	return &sandbox.TextMatch{Exact: t.Exact, Prefix: t.StartsWith, Regex: t.Regex}
}

func toMatch(m sandbox.Match) *Match {
	if len(m.Methods)+len(m.Query)+len(m.Headers) == 0 && m.Path == nil {
		return nil
	}
	return &Match{Path: toText(m.Path), Method: m.Methods, QueryString: toFields(m.Query), Headers: toFields(m.Headers)}
}

func toFields(in []sandbox.FieldMatch) []FieldMatch {
	var out []FieldMatch
	for _, f := range in {
		out = append(out, FieldMatch{Key: toText(f.Key), Value: toText(f.Value)})
	}
	return out
}

func toText(t *sandbox.TextMatch) *TextMatch {
	if t == nil {
		return nil
	}
	return &TextMatch{Exact: t.Exact, StartsWith: t.Prefix, Regex: t.Regex}
}
