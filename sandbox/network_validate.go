package sandbox

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Bounds of network policies that their comments name.
const (
	maxDomains      = 256
	maxHandledNames = 256
	maxCIDRs        = 256
	maxDomainPorts  = 64
	dotPort         = 853
	maxDomainRules  = 64
	maxNetworkBytes = 256 << 10
	maxFlows        = 1000
)

// Validate returns an invalid error that names the first field with a bad
// value, as network.allow[2].rules[0].set_headers["authorization"]. It never
// shows a header's value. An empty mode is valid: see WithDefaults.
func (n Network) Validate() error {
	switch n.Mode {
	case "", AllowAll, DenyAll, Custom:
	default:
		return invalid("network.mode %q is not one of %s, %s, %s", n.Mode, AllowAll, DenyAll, Custom)
	}
	if mode := n.WithDefaults().Mode; mode != Custom {
		if err := n.checkUnused(mode); err != nil {
			return err
		}
	}
	if err := checkDomains(n.Allow); err != nil {
		return err
	}
	if err := checkAllowed("network.allow_cidrs", n.AllowCIDRs); err != nil {
		return err
	}
	if err := checkCIDRs("network.deny_cidrs", n.DenyCIDRs); err != nil {
		return err
	}
	if err := checkHandled(n.Handled); err != nil {
		return err
	}
	if err := n.Limits.check(); err != nil {
		return err
	}
	b, err := json.Marshal(n)
	if err != nil {
		return invalid("network cannot be written as JSON: %v", err)
	}
	if len(b) > maxNetworkBytes {
		return invalid("network is %d bytes long as JSON, more than %d", len(b), maxNetworkBytes)
	}
	return nil
}

// checkHandled checks the names of an egress handler.
func checkHandled(names []string) error {
	if len(names) > maxHandledNames {
		return invalid("network.handled has %d names, more than %d", len(names), maxHandledNames).WithHint(`"*" covers every name`)
	}
	for i, name := range names {
		bad := strings.ContainsFunc(name, func(r rune) bool { return notInLabel(r) && r != '.' && r != '*' })
		if name == "" || len(name) > 253 || bad {
			return invalid("network.handled[%d] %.300q is not a name of 1 to 253 letters, digits, hyphens, underscores, dots and asterisks", i, name)
		}
	}
	return nil
}

// checkUnused refuses fields that only the mode Custom uses.
func (n Network) checkUnused(mode NetworkMode) error {
	for _, part := range []struct {
		name  string
		given bool
	}{
		{"allow", len(n.Allow) > 0}, {"allow_cidrs", len(n.AllowCIDRs) > 0}, {"deny_cidrs", len(n.DenyCIDRs) > 0}, {"strict", n.Strict},
	} {
		if part.given {
			return invalid("network.%s is given, but the mode is %s", part.name, mode).
				WithHint("it has a meaning in the mode %s only; set network.mode to that, or leave network.%s out", Custom, part.name)
		}
	}
	return nil
}

// Unspecified reports whether n names no mode and has no lists. The sandbox then gets the
// default policy, or the policy of the snapshot that it starts from.
func (n Network) Unspecified() bool {
	return n.Mode == "" && n.WithDefaults().Mode == AllowAll && len(n.Handled) == 0
}

// WithDefaults returns n with an empty mode filled in: Custom if there is a
// list, else AllowAll.
func (n Network) WithDefaults() Network {
	switch {
	case n.Mode != "":
	case len(n.Allow)+len(n.AllowCIDRs)+len(n.DenyCIDRs) > 0:
		n.Mode = Custom
	default:
		n.Mode = AllowAll
	}
	return n
}

// HasSecrets reports whether n has values that the API does not show.
func (n Network) HasSecrets() bool {
	for _, d := range n.Allow {
		for _, r := range d.Rules {
			if len(r.SetHeaders) > 0 {
				return true
			}
		}
	}
	return false
}

// Redacted returns a deep copy of n, with Redacted in place of the values of all
// SetHeaders.
func (n Network) Redacted() Network {
	n.AllowCIDRs = slices.Clone(n.AllowCIDRs)
	n.DenyCIDRs = slices.Clone(n.DenyCIDRs)
	n.Handled = slices.Clone(n.Handled)
	n.Allow = slices.Clone(n.Allow)
	for i, d := range n.Allow {
		d.Ports = slices.Clone(d.Ports)
		d.Rules = slices.Clone(d.Rules)
		for j, r := range d.Rules {
			d.Rules[j] = r.redacted()
		}
		n.Allow[i] = d
	}
	return n
}

// String returns n as JSON, redacted, so that secrets stay out of logs.
func (n Network) String() string {
	b, err := json.Marshal(n.Redacted())
	if err != nil {
		return string(n.Mode) // Custom, with what no JSON can have
	}
	return string(b)
}

// String returns r as JSON, redacted, so that secrets stay out of logs.
func (r Rule) String() string {
	b, err := json.Marshal(r.redacted())
	if err != nil {
		return "rule"
	}
	return string(b)
}

func (r Rule) redacted() Rule {
	r.Match.Methods = slices.Clone(r.Match.Methods)
	r.Match.Path = r.Match.Path.clone()
	r.Match.Query = cloneFields(r.Match.Query)
	r.Match.Headers = cloneFields(r.Match.Headers)
	r.SetHeaders = maps.Clone(r.SetHeaders)
	for name := range r.SetHeaders {
		r.SetHeaders[name] = Redacted
	}
	if r.Respond != nil {
		respond := *r.Respond
		respond.Headers = maps.Clone(respond.Headers)
		r.Respond = &respond
	}
	return r
}

func cloneFields(fields []FieldMatch) []FieldMatch {
	fields = slices.Clone(fields)
	for i, f := range fields {
		fields[i] = FieldMatch{Key: f.Key.clone(), Value: f.Value.clone()}
	}
	return fields
}

func (t *TextMatch) clone() *TextMatch {
	if t == nil {
		return nil
	}
	c := func(s *string) *string {
		if s == nil {
			return nil
		}
		return new(*s)
	}
	return &TextMatch{Exact: c(t.Exact), Prefix: c(t.Prefix), Regex: c(t.Regex)}
}

func checkDomains(domains []Domain) error {
	if len(domains) > maxDomains {
		return invalid("network.allow has %d names, more than %d", len(domains), maxDomains)
	}
	seen := map[string]int{}
	cost := 0
	for i, d := range domains {
		where := fmt.Sprintf("network.allow[%d]", i)
		if err := checkPattern(where+".name", d.Name); err != nil {
			return err
		}
		key := strings.ToLower(d.Name)
		if first, ok := seen[key]; ok {
			return invalid("%s.name %q is that of network.allow[%d], too", where, d.Name, first).
				WithHint("put the ports and rules of both into one")
		}
		seen[key] = i
		if err := checkDomainPorts(where+".ports", d.Ports); err != nil {
			return err
		}
		if len(d.Rules) > maxDomainRules {
			return invalid("%s has %d rules, more than %d", where, len(d.Rules), maxDomainRules)
		}
		for j, r := range d.Rules {
			if err := r.check(fmt.Sprintf("%s.rules[%d]", where, j), &cost); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkPattern checks Domain.Name.
func checkPattern(where, name string) error {
	fail := func(why string) error { return invalid("%s %.300q %s", where, name, why) }
	hint := func(why, hint string, args ...any) error {
		return invalid("%s %.300q %s", where, name, why).WithHint(hint, args...)
	}
	_, errAddr := netip.ParseAddr(strings.Trim(name, "[]"))
	_, errPrefix := netip.ParsePrefix(name)
	labels := strings.Split(name, ".")
	switch {
	case name == "":
		return hint("is empty", `"*" stands for every name`)
	case errAddr == nil || errPrefix == nil || isNumber(strings.ToLower(labels[len(labels)-1])):
		return hint("is an address, not a name", "list addresses in network.allow_cidrs")
	case strings.Contains(name, "://"):
		return hint("is a URL", "give the host name only; paths go into the match of a rule")
	case strings.Contains(name, "/"):
		return hint("has a path in it", "give the host name only; paths go into the match of a rule")
	case strings.Contains(name, ":"):
		return hint("has a port in it", "put the port into ports")
	case strings.ContainsFunc(name, func(r rune) bool { return r >= 0x80 }):
		return hint("has characters in it that are not ASCII", `write the name in its ASCII form, which begins with "xn--"`)
	case len(name) > 253:
		return fail("is longer than 253 characters")
	case name[0] == '.':
		return hint("begins with a dot", `write "*%s" for all names below`, name)
	case strings.HasSuffix(name, "."):
		return hint("ends in a dot", "leave it out")
	case len(labels) > 1 && labels[len(labels)-1] == "*":
		return hint(`ends in "*"`, "anyone can have such a name; list the names that you mean")
	}
	for _, l := range labels {
		switch {
		case l == "*":
		case strings.Contains(l, "*"):
			return hint(`has a "*" that is not alone between dots`, `"*.example.com" stands for all names below example.com`)
		case l == "":
			return fail("has two dots in a row")
		case len(l) > 63:
			return fail("has more than 63 characters between dots")
		case l[0] == '-' || l[len(l)-1] == '-':
			return fail("has a hyphen next to a dot or at an end")
		case strings.ContainsFunc(l, notInLabel):
			return fail("has a character in it that is not a letter, a digit, a hyphen or an underscore")
		}
	}
	return nil
}

func notInLabel(r rune) bool {
	return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '-' || r == '_')
}

// isNumber reports whether programs that know the old notations, such as 127.1 and
// 0x7f000001, read a name that ends with this label as an IPv4 address.
func isNumber(label string) bool {
	digits := "0123456789"
	if rest, ok := strings.CutPrefix(label, "0x"); ok {
		label, digits = rest, "0123456789abcdef"
	} else if label == "" {
		return false
	}
	return strings.Trim(label, digits) == ""
}

func checkDomainPorts(where string, ports []uint16) error {
	if len(ports) > maxDomainPorts {
		return invalid("%s has %d ports, more than %d", where, len(ports), maxDomainPorts).
			WithHint("leave ports out to allow all but those of mail")
	}
	for i, p := range ports {
		if p == 0 {
			return invalid("%s[%d] is 0, not 1 to 65535", where, i)
		}
		if p == dotPort {
			return invalid("%s has %d, which is closed to every sandbox: DNS over TLS would hide names from the policy", where, p)
		}
		if slices.Contains(ports[:i], p) {
			return invalid("%s has %d twice", where, p)
		}
	}
	return nil
}

func checkCIDRs(where string, cidrs []string) error {
	if len(cidrs) > maxCIDRs {
		return invalid("%s has %d ranges, more than %d", where, len(cidrs), maxCIDRs)
	}
	seen := map[netip.Prefix]int{}
	for i, text := range cidrs {
		at := fmt.Sprintf("%s[%d]", where, i)
		prefix, err := parseCIDR(at, text)
		if err != nil {
			return err
		}
		if first, ok := seen[prefix]; ok {
			return invalid("%s %q is that of %s[%d], too", at, text, where, first)
		}
		seen[prefix] = i
	}
	return nil
}

// checkAllowed also refuses ranges of IPv6: a policy that lists such a range would seem to
// open it, but IPv6 is off in sandboxes. In deny_cidrs IPv6 ranges are accepted.
func checkAllowed(where string, cidrs []string) error {
	if err := checkCIDRs(where, cidrs); err != nil {
		return err
	}
	for i, text := range cidrs {
		if strings.ContainsRune(text, ':') {
			return invalid("%s[%d] %q is a range of IPv6, which is off in sandboxes: nothing there can be reached", where, i, text).
				WithHint("leave it out; the range of all IPv4 addresses is 0.0.0.0/0")
		}
	}
	return nil
}

// parseCIDR parses an address range, or a single address as a range of one.
func parseCIDR(where, text string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		ip, err := netip.ParseAddr(text)
		if err != nil {
			return netip.Prefix{}, invalid("%s %.100q is not an address range", where, text).
				WithHint(`write "203.0.113.0/24" or a single address; names go into network.allow`)
		}
		if ip.Zone() != "" {
			return netip.Prefix{}, invalid("%s %.100q has a zone in it", where, text)
		}
		prefix = netip.PrefixFrom(ip, ip.BitLen())
	}
	if prefix.Addr().Is4In6() {
		return netip.Prefix{}, invalid("%s %q is an IPv4 address written as IPv6", where, text).
			WithHint("write it as IPv4, as %v", prefix.Addr().Unmap())
	}
	if masked := prefix.Masked(); masked != prefix {
		return netip.Prefix{}, invalid("%s %q has bits set behind its prefix", where, text).
			WithHint("the range is %v; the single address is %v", masked, prefix.Addr())
	}
	return prefix, nil
}

func (l NetworkLimits) check() error {
	for _, limit := range l.each() {
		if limit.value < 0 {
			return invalid("network.limits.%s %d is negative", limit.name, limit.value).WithHint("0 means the operator's limit")
		}
	}
	return nil
}

// Within returns an invalid error that names the first limit that exceeds the same limit
// of most. 0 in most means no bound.
func (l NetworkLimits) Within(most NetworkLimits) error {
	bounds := most.each()
	for i, limit := range l.each() {
		if bound := bounds[i].value; bound != 0 && limit.value > bound {
			return invalid("network.limits.%s %d is more than this daemon's maximum of %d", limit.name, limit.value, bound).
				WithHint("ask for less, or leave it out to get the maximum")
		}
	}
	return nil
}

// networkLimit is a field of NetworkLimits and its name in JSON.
type networkLimit struct {
	name  string
	value int64
}

func (l NetworkLimits) each() []networkLimit {
	return []networkLimit{
		{"connections", int64(l.Connections)}, {"connections_per_second", int64(l.ConnectionsPerSecond)},
		{"bytes_per_second", l.BytesPerSecond}, {"total_bytes", l.TotalBytes},
	}
}

// Validate returns an invalid error that names the first field with a bad value.
func (p FlowParams) Validate() error {
	switch p.Verdict {
	case "", Allowed, Denied, Broken:
	default:
		return invalid("verdict %q is not one of %s, %s, %s", p.Verdict, Allowed, Denied, Broken)
	}
	switch {
	case p.After < 0:
		return invalid("after %d is negative", p.After)
	case p.Limit < 0 || p.Limit > maxFlows:
		return invalid("limit %d is not 1 to %d", p.Limit, maxFlows)
	}
	return nil
}
