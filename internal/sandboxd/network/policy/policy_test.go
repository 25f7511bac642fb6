package policy_test

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/network/policy"
	"github.com/cayhq/cay/internal/sandboxd/network/policy/policytest"
	"github.com/cayhq/cay/internal/seedtest"
	"github.com/cayhq/cay/sandbox"
)

func compile(t testing.TB, n sandbox.Network) *policy.Policy {
	t.Helper()
	p, err := policy.Compile(n)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func names(names ...string) sandbox.Network {
	var n sandbox.Network
	for _, name := range names {
		n.Allow = append(n.Allow, sandbox.Domain{Name: name})
	}
	return n
}

func TestCompile(t *testing.T) {
	t.Parallel()
	if _, err := policy.Compile(names("a:1")); cay.CodeOf(err) != cay.Invalid {
		t.Errorf("an invalid policy compiles: %v", err)
	}
	limits := sandbox.NetworkLimits{Connections: 3}
	p := compile(t, sandbox.Network{Limits: limits})
	if p.Mode() != sandbox.AllowAll || p.Limits() != limits || p.Intercepts() {
		t.Errorf("got mode %s, limits %v, intercepts %v", p.Mode(), p.Limits(), p.Intercepts())
	}
	if !compile(t, sandbox.Network{Allow: names("a.example").Allow, Strict: true}).Intercepts() {
		t.Error("a strict policy does not intercept")
	}
	if !compile(t, rules(sandbox.Rule{})).Intercepts() {
		t.Error("a policy with a rule does not intercept")
	}
	if compile(t, names("*")).Intercepts() {
		t.Error("a policy without rules intercepts")
	}
}

func TestPolicy_Address(t *testing.T) {
	t.Parallel()
	custom := sandbox.Network{
		Allow:      []sandbox.Domain{{Name: "a.example", Ports: []uint16{443, 465}}},
		AllowCIDRs: []string{"203.0.113.0/24", "198.51.100.7"}, DenyCIDRs: []string{"203.0.113.128/25", "2001:db8::/32"},
	}
	for _, c := range []struct {
		name string
		n    sandbox.Network
		dst  string
		want policy.Verdict
		rule string
	}{
		{"AllowAll", sandbox.Network{}, "192.0.2.1:22", policy.Allow, "mode allow-all"},
		{"DenyAll", sandbox.Network{Mode: sandbox.DenyAll}, "192.0.2.1:443", policy.Deny, "mode deny-all"},
		{"Nothing", sandbox.Network{Mode: sandbox.Custom}, "192.0.2.1:443", policy.Deny, "not in allow"},
		{"AllowCIDR", custom, "203.0.113.1:22", policy.Allow, "allow_cidrs 203.0.113.0/24"},
		{"AllowSingle", custom, "198.51.100.7:22", policy.Allow, "allow_cidrs 198.51.100.7"},
		{"AllowMapped", custom, "[::ffff:198.51.100.7]:22", policy.Allow, "allow_cidrs 198.51.100.7"},
		{"DenyIPv6", custom, "[2001:db8::1]:22", policy.Deny, "deny_cidrs 2001:db8::/32"},
		{"DenyCIDR", custom, "203.0.113.200:443", policy.Deny, "deny_cidrs 203.0.113.128/25"},
		{"DenyMapped", custom, "[::ffff:203.0.113.200]:443", policy.Deny, "deny_cidrs 203.0.113.128/25"},
		{"Name", custom, "192.0.2.1:443", policy.Inspect, "allow"},
		{"NameForTheReason", custom, "192.0.2.1:80", policy.Inspect, "allow"},
		{"NameAtNoSuchPort", custom, "192.0.2.1:22", policy.Deny, "not in allow"},
		{"EveryPort", names("*"), "192.0.2.1:22", policy.Inspect, "allow"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := compile(t, c.n).Address(netip.MustParseAddrPort(c.dst))
			check(t, d, c.want, c.rule)
		})
	}
	p := compile(t, custom)
	if d := p.Address(netip.MustParseAddrPort("192.0.2.1:465")); !d.PortListed {
		t.Error("a listed port of mail cannot be inspected")
	}
	if d := compile(t, names("*")).Address(netip.MustParseAddrPort("192.0.2.1:465")); d.PortListed {
		t.Error("a port that is not listed is said to be")
	}
	check(t, p.Resolved(netip.MustParseAddr("203.0.113.1")), policy.Allow, "not in deny_cidrs")
	check(t, p.Resolved(netip.MustParseAddr("::ffff:203.0.113.200")), policy.Deny, "deny_cidrs 203.0.113.128/25")
	check(t, compile(t, sandbox.Network{Mode: sandbox.DenyAll}).Resolved(netip.MustParseAddr("192.0.2.1")), policy.Deny, "mode deny-all")
}

// check compares a decision, and requires a reason for denials and only for denials.
func check(t *testing.T, d policy.Decision, want policy.Verdict, rule string) {
	t.Helper()
	if d.Verdict != want || d.Rule != rule || (d.Reason != "") != (want == policy.Deny) {
		t.Errorf("got %v by %q (reason %q), want %v by %q", d.Verdict, d.Rule, d.Reason, want, rule)
	}
}

func TestPolicy_Name(t *testing.T) {
	t.Parallel()
	n := sandbox.Network{Allow: []sandbox.Domain{
		{Name: "API.example.com", Ports: []uint16{443, 25}}, {Name: "*.example.com"}, {Name: "www.*.com"}, {Name: "*.deep.example.com"},
		{Name: "example.org"}, {Name: "*.*.net"}, {Name: "a.*.*.io"}, {Name: "*.b.*.io"},
	}}
	for _, c := range []struct {
		name string
		port uint16
		want string // the pattern that allows; empty: denied
		rule string // that denies
	}{
		{"api.example.com", 443, "API.example.com", ""},
		{"api.example.com", 80, "", `allow "API.example.com"`}, // the most specific decides, though the next would allow
		{"x.example.com", 80, "*.example.com", ""},
		{"a.b.c.example.com", 80, "*.example.com", ""},
		{"example.com", 80, "", "not in allow"},
		{"xexample.com", 80, "", "not in allow"},
		{"x.deep.example.com", 80, "*.deep.example.com", ""},
		{"deep.example.com", 80, "*.example.com", ""},
		{"www.example.com", 80, "*.example.com", ""}, // as many labels: the parent counts
		{"www.other.com", 80, "www.*.com", ""},
		{"www.a.b.com", 80, "", "not in allow"},
		{"x.www.other.com", 80, "", "not in allow"},
		{"www.com", 80, "", "not in allow"},
		{"example.org", 80, "example.org", ""},
		{"a.example.org", 80, "", "not in allow"},
		{"example.org.evil.example", 80, "", "not in allow"},
		{"a.b.net", 80, "*.*.net", ""},
		{"a.b.c.net", 80, "*.*.net", ""},
		{"b.net", 80, "", "not in allow"},
		{"a.b.c.io", 80, "*.b.*.io", ""},
		{"a.x.c.io", 80, "a.*.*.io", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := compile(t, n)
			d, domain := p.Name(c.name, c.port)
			if c.want == "" {
				check(t, d, policy.Deny, c.rule)
				if domain != nil {
					t.Errorf("denied, but by %q", domain.Pattern)
				}
				return
			}
			check(t, d, policy.Allow, `allow "`+c.want+`"`)
			if domain == nil || domain.Pattern != c.want {
				t.Errorf("got %v, want %q", domain, c.want)
			}
		})
	}
	p := compile(t, n)
	if d, _ := p.Name("api.example.com", 25); !d.PortListed {
		t.Error("a listed port of mail is not said to be")
	}
	if d, _ := p.Name("x.example.com", 25); d.PortListed {
		t.Error("a port of mail is allowed that is not listed")
	}
	if d, _ := p.Name("api.example.com", 8080); !strings.Contains(d.Reason, "at port 443, 25, not at 8080") {
		t.Errorf("the reason is %q", d.Reason)
	}
	if d, domain := compile(t, sandbox.Network{}).Name("a.example", 1); d.Verdict != policy.Allow || domain == nil || domain.Intercept {
		t.Errorf("allow-all says %v, %v", d, domain)
	}
	if d, domain := compile(t, sandbox.Network{Mode: sandbox.DenyAll}).Name("a.example", 1); d.Verdict != policy.Deny || domain != nil {
		t.Errorf("deny-all says %v, %v", d, domain)
	}
}

func TestPolicy_Query(t *testing.T) {
	t.Parallel()
	ports := sandbox.Network{Allow: []sandbox.Domain{{Name: "a.example", Ports: []uint16{22}}}}
	open := ports
	open.AllowCIDRs = []string{"192.0.2.1"}
	for _, c := range []struct {
		name  string
		n     sandbox.Network
		query string
		want  policy.Verdict
		rule  string
	}{
		{"AllowAll", sandbox.Network{}, "a.example", policy.Allow, "mode allow-all"},
		{"DenyAll", sandbox.Network{Mode: sandbox.DenyAll}, "a.example", policy.Deny, "mode deny-all"},
		{"AnyPort", ports, "a.example", policy.Allow, `allow "a.example"`},
		{"Exfiltration", ports, "c2vjcmv0.a.example", policy.Deny, "not in allow"},
		{"CIDRs", open, "b.example", policy.Allow, "allow_cidrs"},
		{"OnlyDenyCIDRs", sandbox.Network{DenyCIDRs: []string{"192.0.2.1"}}, "b.example", policy.Deny, "not in allow"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			check(t, compile(t, c.n).Query(c.query), c.want, c.rule)
		})
	}
}

func TestPolicy_Above(t *testing.T) {
	t.Parallel()
	p := compile(t, names("api.Example.com", "*.b.example.org", "www.*.net"))
	for name, want := range map[string]bool{
		"example.com": true, "com": true, "b.example.org": true, "example.org": true, "org": true, "net": true,
		"api.example.com": false, "x.com": false, "x.b.example.org": false, "x.net": false,
	} {
		if got := p.Above(name); got != want {
			t.Errorf("Above(%q) = %t, want %t", name, got, want)
		}
	}
	if compile(t, sandbox.Network{Mode: sandbox.DenyAll}).Above("com") {
		t.Error("nothing is above a name where none is allowed")
	}
}

// The table of names gives the same result as comparing with every pattern.
func TestPolicy_NameIsTheMostSpecific(t *testing.T) {
	t.Parallel()
	seedtest.Check(t, func(t *rapid.T) {
		patterns := rapid.SliceOfNDistinct(policytest.Patterns(), 1, 12, rapid.ID).Draw(t, "patterns")
		p, err := policy.Compile(names(patterns...))
		if err != nil {
			t.Fatal(err)
		}
		name := policytest.Names().Draw(t, "name")
		var matching []string
		for _, pattern := range patterns {
			if matches(strings.Split(pattern, "."), strings.Split(name, ".")) {
				matching = append(matching, pattern)
			}
		}
		d, domain := p.Name(name, 443)
		if len(matching) == 0 {
			if d.Verdict != policy.Deny || domain != nil {
				t.Fatalf("%q is allowed by %v", name, domain.Pattern)
			}
			return
		}
		if domain == nil {
			t.Fatalf("%q is denied, though %q match", name, matching)
		}
		best := slices.MaxFunc(matching, func(a, b string) int {
			return cmp.Or(
				cmp.Compare(strings.Count(a, "."), strings.Count(b, ".")),
				cmp.Compare(strings.Count(b, "*"), strings.Count(a, "*")),
				cmp.Compare(literals(a), literals(b)),
			)
		})
		if slices.Contains(matching, name) {
			best = name
		}
		if domain.Pattern != best {
			t.Fatalf("%q decides about %q, not %q", domain.Pattern, name, best)
		}
	})
}

// literals has a 1 for each label that is not "*", from the end.
func literals(pattern string) string {
	var b strings.Builder
	for _, l := range slices.Backward(strings.Split(pattern, ".")) {
		b.WriteByte("10"[strings.Count(l, "*")])
	}
	return b.String()
}

func matches(pattern, name []string) bool {
	if pattern[0] == "*" && len(name) > len(pattern) {
		name = name[len(name)-len(pattern):]
	}
	return len(pattern) == len(name) && !slices.ContainsFunc(slices.Collect(indexes(pattern)), func(i int) bool {
		return pattern[i] != "*" && pattern[i] != name[i]
	})
}

func indexes(s []string) func(func(int) bool) {
	return func(yield func(int) bool) {
		for i := range s {
			if !yield(i) {
				return
			}
		}
	}
}

// The ranges give the same result as package netip.
func TestPolicy_AddressIsInRange(t *testing.T) {
	t.Parallel()
	seedtest.Check(t, func(t *rapid.T) {
		var n sandbox.Network
		var prefixes []netip.Prefix
		for _, bits := range rapid.SliceOfN(rapid.IntRange(0, 32), 1, 4).Draw(t, "bits") {
			b := rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 128, 255}), 4, 4).Draw(t, "address")
			prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte(b)), bits).Masked()
			if !slices.Contains(prefixes, prefix) {
				prefixes = append(prefixes, prefix)
				n.AllowCIDRs = append(n.AllowCIDRs, prefix.String())
			}
		}
		p, err := policy.Compile(n)
		if err != nil {
			t.Fatal(err)
		}
		ip := netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 127, 128, 255}), 4, 4).Draw(t, "ip")))
		want := slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(ip) })
		if d := p.Address(netip.AddrPortFrom(ip, 1)); (d.Verdict == policy.Allow) != want {
			t.Fatalf("%v: %v, want it allowed: %v", ip, d, want)
		}
	})
}

func TestCleanName(t *testing.T) {
	t.Parallel()
	label := strings.Repeat("a", 63)
	longest := strings.Repeat(label+".", 3) + label[:61]
	for _, c := range []struct{ in, want string }{ // an empty want means refused
		{"Example.COM", "example.com"}, {"example.com.", "example.com"}, {"_dmarc.example.com", "_dmarc.example.com"},
		{"xn--p1ai", "xn--p1ai"}, {"localhost", "localhost"}, {"1.example", "1.example"}, {"a-.example", "a-.example"},
		{longest, longest}, {longest + ".", longest}, {longest + "a", ""}, {label + "a.example", ""},
		{"", ""}, {".", ""}, {"..", ""}, {"a..example", ""}, {".example", ""}, {"example..", ""},
		{"192.0.2.1", ""}, {"192.0.2.1.", ""}, {"127.1", ""}, {"2130706433", ""}, {"0x7F000001", ""}, {"0x7f.1", ""}, {"example.0x", ""},
		{"[::1]", ""}, {"::1", ""}, {"a:443", ""}, {"u@a.example", ""}, {"a%00.example", ""}, {"a\x00.example", ""},
		{"a.example\r\nx", ""}, {"a b", ""}, {"bücher.example", ""}, {"ａ.example", ""}, {"a/b", ""}, {"*.example", ""}, {"a\xff", ""},
	} {
		got, err := policy.CleanName(c.in)
		if got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%q becomes %q, %v; want %q", c.in, got, err, c.want)
		}
	}
}

func FuzzCleanName(f *testing.F) {
	for _, s := range []string{"a.example", "A.", "1.2.3.4", "0x1", "_a-.b", "a\x00b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		clean, err := policy.CleanName(name)
		if err != nil {
			return
		}
		if again, err := policy.CleanName(clean); err != nil || again != clean {
			t.Errorf("%q becomes %q, and that %q, %v", name, clean, again, err)
		}
		if !strings.EqualFold(strings.TrimSuffix(name, "."), clean) {
			t.Errorf("%q becomes %q", name, clean)
		}
		if _, err := netip.ParseAddr(clean); err == nil || strings.Trim(clean, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" {
			t.Errorf("%q is a name", clean)
		}
		compile(t, names("*")).Query(clean)
	})
}

func BenchmarkPolicy(b *testing.B) {
	n := sandbox.Network{Mode: sandbox.Custom}
	for i := range 256 {
		switch i % 4 {
		case 0:
			n.Allow = append(n.Allow, sandbox.Domain{Name: fmt.Sprintf("*.zone%d.example", i)})
		case 1:
			n.Allow = append(n.Allow, sandbox.Domain{Name: fmt.Sprintf("api%d.*.example.com", i)})
		default:
			n.Allow = append(n.Allow, sandbox.Domain{Name: fmt.Sprintf("host%d.example.com", i)})
		}
		n.AllowCIDRs = append(n.AllowCIDRs, fmt.Sprintf("198.51.%d.0/24", i))
		n.DenyCIDRs = append(n.DenyCIDRs, fmt.Sprintf("203.0.%d.0/24", i))
	}
	p := compile(b, n)
	for _, name := range []string{"host2.example.com", "a.b.zone252.example", "api253.x.example.com", "not.in.the.list.example"} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				p.Name(name, 443)
			}
		})
	}
	b.Run("Address", func(b *testing.B) {
		dst := netip.MustParseAddrPort("192.0.2.1:443")
		for b.Loop() {
			p.Address(dst)
		}
	})
}
