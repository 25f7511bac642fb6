package sandbox_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/network/policy/policytest"
	"github.com/cayhq/cay/internal/seedtest"
	"github.com/cayhq/cay/sandbox"
)

// invalid fails unless err is invalid and contains all texts of says, in its
// message or hint. An empty list means that there must be no error.
func invalid(t *testing.T, err error, says ...string) {
	t.Helper()
	if len(says) == 0 {
		if err != nil {
			t.Errorf("got %v, want it valid", err)
		}
		return
	}
	var e *cay.Error
	if !errors.As(err, &e) || e.Code != cay.Invalid {
		t.Errorf("got %v, want an invalid error with %q in it", err, says)
		return
	}
	for _, s := range says {
		if !strings.Contains(e.Message+"\n"+e.Hint, s) {
			t.Errorf("got %q (hint %q), want %q in it", e.Message, e.Hint, s)
		}
	}
}

func domains(names ...string) sandbox.Network {
	var n sandbox.Network
	for _, name := range names {
		n.Allow = append(n.Allow, sandbox.Domain{Name: name})
	}
	return n
}

func rule(r sandbox.Rule) sandbox.Network {
	return sandbox.Network{Allow: []sandbox.Domain{
		{Name: "a.example"}, {Name: "b.example"}, {Name: "c.example", Rules: []sandbox.Rule{r}},
	}}
}

func set(name, value string) sandbox.Network {
	return rule(sandbox.Rule{SetHeaders: map[string]string{name: value}})
}

func path(m sandbox.TextMatch) sandbox.Network {
	return rule(sandbox.Rule{Match: sandbox.Match{Path: &m}, Deny: true})
}

func forward(url string) sandbox.Network { return rule(sandbox.Rule{ForwardURL: url}) }

func respond(r sandbox.Response) sandbox.Network { return rule(sandbox.Rule{Respond: &r}) }

func TestNetwork_Validate(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 63)
	for _, c := range []struct {
		name string
		n    sandbox.Network
		says []string // none: valid
	}{
		{"Zero", sandbox.Network{}, nil},
		{"Mode", sandbox.Network{Mode: "some"}, []string{`network.mode "some"`, "custom"}},
		{"CustomEmpty", sandbox.Network{Mode: sandbox.Custom}, nil},
		{"AllowAllWithList", sandbox.Network{Mode: sandbox.AllowAll, Allow: []sandbox.Domain{{Name: "a.example"}}}, []string{"network.allow is given", "allow-all", "network.mode"}},
		{"DenyAllWithCIDRs", sandbox.Network{Mode: sandbox.DenyAll, AllowCIDRs: []string{"192.0.2.1"}}, []string{"network.allow_cidrs is given", "deny-all"}},
		{"AllowAllWithDeny", sandbox.Network{Mode: sandbox.AllowAll, DenyCIDRs: []string{"192.0.2.1"}}, []string{"network.deny_cidrs is given"}},
		{"StrictAlone", sandbox.Network{Strict: true}, []string{"network.strict is given"}},
		{"LimitsInAnyMode", sandbox.Network{Mode: sandbox.AllowAll, Limits: sandbox.NetworkLimits{Connections: 1}}, nil},

		{"Names", domains("Example.com", "*.example.com", "www.*.com", "*.*.com", "*", "_dmarc.x-1.example", "xn--p1ai", "localhost"), nil},
		{"Twice", domains("a.example", "b.example", "A.Example"), []string{`network.allow[2].name "A.Example"`, "network.allow[0]"}},
		{"Empty", domains(""), []string{"network.allow[0].name", "empty"}},
		{"URL", domains("https://a.example/"), []string{"a URL", "host name only"}},
		{"Path", domains("a.example/x"), []string{"path"}},
		{"Port", domains("a.example:443"), []string{"port", "put the port into ports"}},
		{"IPv4", domains("192.0.2.1"), []string{"address", "network.allow_cidrs"}},
		{"IPv4Range", domains("192.0.2.0/24"), []string{"network.allow_cidrs"}},
		{"IPv4Short", domains("127.1"), []string{"network.allow_cidrs"}},
		{"IPv4Hex", domains("0x7F000001"), []string{"network.allow_cidrs"}},
		{"IPv6", domains("2001:db8::1"), []string{"network.allow_cidrs"}},
		{"IPv6Brackets", domains("[::1]"), []string{"network.allow_cidrs"}},
		{"IDN", domains("bücher.example"), []string{"ASCII", "xn--"}},
		{"Dot", domains(".example.com"), []string{`"*.example.com"`}},
		{"TrailingDot", domains("a.example."), []string{"ends in a dot"}},
		{"TwoDots", domains("a..example"), []string{"two dots"}},
		{"StarInLabel", domains("*a.example"), []string{"alone"}},
		{"StarInMiddleOfLabel", domains("a*b.example"), []string{"alone"}},
		{"StarLast", domains("example.*"), []string{`ends in "*"`}},
		{"LabelLimit", domains(long + ".example"), nil},
		{"LabelLong", domains(long + "a.example"), []string{"63"}},
		{"NameLong", domains(strings.Repeat(long+".", 4) + "a"), []string{"253"}},
		{"Hyphen", domains("-a.example"), []string{"hyphen"}},
		{"HyphenEnd", domains("a-.example"), []string{"hyphen"}},
		{"Space", domains("a b.example"), []string{"character"}},
		{"NUL", domains("a\x00.example"), []string{`\x00`}},
		{"TooMany", sandbox.Network{Allow: make([]sandbox.Domain, 257)}, []string{"257"}},
		{"PortZero", sandbox.Network{Allow: []sandbox.Domain{{Name: "a.example", Ports: []uint16{443, 0}}}}, []string{"network.allow[0].ports[1]"}},
		{"PortOfDNS", sandbox.Network{Allow: []sandbox.Domain{{Name: "a.example", Ports: []uint16{853}}}}, []string{"network.allow[0].ports has 853"}},
		{"PortTwice", sandbox.Network{Allow: []sandbox.Domain{{Name: "a.example", Ports: []uint16{443, 443}}}}, []string{"network.allow[0].ports has 443 twice"}},
		{"PortsMany", sandbox.Network{Allow: []sandbox.Domain{{Name: "a.example", Ports: make([]uint16, 65)}}}, []string{"65"}},
		{"RulesMany", sandbox.Network{Allow: []sandbox.Domain{{Name: "a.example", Rules: make([]sandbox.Rule, 65)}}}, []string{"network.allow[0] has 65 rules"}},

		{"CIDRs", sandbox.Network{AllowCIDRs: []string{"203.0.113.0/24", "192.0.2.1", "0.0.0.0/0"}, DenyCIDRs: []string{"203.0.113.0/24", "2001:db8::/32"}}, nil},
		{"CIDRIPv6All", sandbox.Network{AllowCIDRs: []string{"0.0.0.0/0", "::/0"}}, []string{`network.allow_cidrs[1] "::/0"`, "IPv6", "0.0.0.0/0"}},
		{"CIDRIPv6", sandbox.Network{AllowCIDRs: []string{"2001:db8::/32"}}, []string{"network.allow_cidrs[0]", "IPv6"}},
		{"CIDRIPv6Single", sandbox.Network{AllowCIDRs: []string{"2001:db8::1"}}, []string{"network.allow_cidrs[0]", "IPv6"}},
		{"CIDRBits", sandbox.Network{AllowCIDRs: []string{"192.0.2.0/24", "203.0.113.7/24"}}, []string{`network.allow_cidrs[1] "203.0.113.7/24"`, "203.0.113.0/24"}},
		{"CIDRName", sandbox.Network{DenyCIDRs: []string{"example.com"}}, []string{"network.deny_cidrs[0]", "network.allow"}},
		{"CIDRMapped", sandbox.Network{AllowCIDRs: []string{"::ffff:192.0.2.0/120"}}, []string{"192.0.2.0"}},
		{"CIDRMappedSingle", sandbox.Network{AllowCIDRs: []string{"::ffff:192.0.2.1"}}, []string{"192.0.2.1"}},
		{"CIDRZone", sandbox.Network{AllowCIDRs: []string{"fe80::1%eth0"}}, []string{"zone"}},
		{"CIDRTwice", sandbox.Network{AllowCIDRs: []string{"192.0.2.1/32", "192.0.2.1"}}, []string{"network.allow_cidrs[1]", "network.allow_cidrs[0]"}},
		{"CIDRsMany", sandbox.Network{DenyCIDRs: make([]string, 257)}, []string{"network.deny_cidrs has 257"}},
		{"LimitNegative", sandbox.Network{Limits: sandbox.NetworkLimits{BytesPerSecond: -1}}, []string{"network.limits.bytes_per_second -1"}},

		{"TwoActions", rule(sandbox.Rule{Deny: true, ForwardURL: "https://x.example"}), []string{"network.allow[2].rules[0] has forward_url and deny together"}},
		{"NoAction", rule(sandbox.Rule{}), nil},
		{"SetHeaders", set("x-api-key", "hunter2 \xc3\xa4\t!"), nil},
		{"SetEmpty", set("cookie", ""), nil},
		{"SetNewline", set("authorization", "hunter2\n"), []string{`network.allow[2].rules[0].set_headers["authorization"]`, "line break"}},
		{"SetNUL", set("authorization", "hunter2\x00"), []string{`set_headers["authorization"]`, "control character"}},
		{"SetSpace", set("authorization", "hunter2 "), []string{"white space"}},
		{"SetNotUTF8", set("authorization", "hunter2\xff"), []string{"UTF-8"}},
		{"SetRedacted", set("authorization", sandbox.Redacted), []string{`set_headers["authorization"]`, "again"}},
		{"SetLimit", set("authorization", strings.Repeat("x", 8<<10)), nil},
		{"SetLong", set("authorization", strings.Repeat("x", 8<<10+1)), []string{"8193"}},
		{"SetHost", set("Host", "hunter2"), []string{`set_headers["Host"]`, "forward_url"}},
		{"SetConnection", set("Connection", "hunter2"), []string{"connection"}},
		{"SetContentLength", set("Content-Length", "1"), []string{"connection"}},
		{"SetTransferEncoding", set("transfer-encoding", "chunked"), []string{"connection"}},
		{"SetUpgrade", set("upgrade", "h2c"), []string{"connection"}},
		{"SetTE", set("TE", "trailers"), []string{"connection"}},
		{"SetTrailer", set("Trailer", "x"), []string{"connection"}},
		{"SetProxy", set("Proxy-Authorization", "hunter2"), []string{"connection"}},
		{"SetBadName", set("a b", "hunter2"), []string{`set_headers["a b"]`, "name"}},
		{"SetNoName", set("", "hunter2"), []string{"name"}},
		{"SetPseudo", set(":authority", "hunter2"), []string{"name"}},
		{"SetTwice", rule(sandbox.Rule{SetHeaders: map[string]string{"X-Key": "hunter2", "x-key": "hunter2"}}), []string{`"X-Key"`, "case"}},
		{"Scrub", rule(sandbox.Rule{SetHeaders: map[string]string{"x": "12345678"}, Scrub: true}), nil},
		{"ScrubShort", rule(sandbox.Rule{SetHeaders: map[string]string{"x": "hunter2"}, Scrub: true}), []string{"too short to scrub"}},
		{"ScrubNothing", rule(sandbox.Rule{Scrub: true}), []string{"scrub", "set_headers"}},
		{"ScrubEncoding", rule(sandbox.Rule{SetHeaders: map[string]string{"Accept-Encoding": "identity"}, Scrub: true}), []string{"uncompressed"}},

		{"Forward", forward("https://x.example:8443/base/"), nil},
		{"ForwardAddress", forward("http://[2001:db8::1]:80"), nil},
		{"ForwardScheme", forward("ftp://x.example"), []string{"network.allow[2].rules[0].forward_url", "ftp"}},
		{"ForwardRelative", forward("/x"), []string{"http or https"}},
		{"ForwardOpaque", forward("https:x.example"), []string{"not a URL"}},
		{"ForwardUser", forward("https://me:hunter2@x.example"), []string{"password"}},
		{"ForwardBadUser", forward("https://me:hunter2%@x.example"), []string{"not a URL"}},
		{"ForwardQuery", forward("https://x.example/?key=hunter2"), []string{"query"}},
		{"ForwardEmptyQuery", forward("https://x.example/?"), []string{"query"}},
		{"ForwardFragment", forward("https://x.example/#hunter2"), []string{"fragment"}},
		{"ForwardEmptyFragment", forward("https://x.example/#"), []string{"fragment"}},
		{"ForwardNoHost", forward("https:///x"), []string{"host"}},
		{"ForwardStar", forward("https://*/"), []string{"host"}},
		{"ForwardPort", forward("https://x.example:0/"), []string{"port"}},
		{"ForwardPortHigh", forward("https://x.example:65536/"), []string{"port"}},
		{"ForwardLong", forward("https://x.example/" + long + strings.Repeat("x", 2048)), []string{"2048"}},

		{"Respond", respond(sandbox.Response{Status: 404, Headers: map[string]string{"content-type": "text/plain"}, Body: "no"}), nil},
		{"RespondStatus", respond(sandbox.Response{}), []string{"network.allow[2].rules[0].respond.status 0"}},
		{"RespondStatusHigh", respond(sandbox.Response{Status: 600}), []string{"600"}},
		{"RespondHeader", respond(sandbox.Response{Status: 200, Headers: map[string]string{"content-length": "1"}}), []string{`respond.headers["content-length"]`}},
		{"RespondSplit", respond(sandbox.Response{Status: 200, Headers: map[string]string{"a": "b\r\nc: d"}}), []string{"line break"}},
		{"RespondNoBody", respond(sandbox.Response{Status: 204, Body: "x"}), []string{"204"}},
		{"RespondBodyLimit", respond(sandbox.Response{Status: 200, Body: strings.Repeat("x", 64<<10)}), nil},
		{"RespondLong", respond(sandbox.Response{Status: 200, Body: strings.Repeat("x", 64<<10+1)}), []string{"65537"}},

		{"MethodSmall", rule(sandbox.Rule{Match: sandbox.Match{Methods: []string{"GET", "post"}}}), []string{"network.allow[2].rules[0].match.methods[1]", "POST"}},
		{"MethodBad", rule(sandbox.Rule{Match: sandbox.Match{Methods: []string{"GET /"}}}), []string{"match.methods[0]"}},
		{"FieldEmpty", rule(sandbox.Rule{Match: sandbox.Match{Query: []sandbox.FieldMatch{{}}}}), []string{"match.query[0] has neither"}},
		{"TextEmpty", rule(sandbox.Rule{Match: sandbox.Match{Headers: []sandbox.FieldMatch{{Key: &sandbox.TextMatch{}}}}}), []string{"match.headers[0].key has 0 of exact"}},
		{"TextTwo", path(sandbox.TextMatch{Exact: new("/"), Prefix: new("/")}), []string{"match.path has 2 of exact"}},
		{"Regex", path(sandbox.TextMatch{Regex: new(`^/v[0-9]{1,3}/(a|b)$`)}), nil},
		{"RegexBad", path(sandbox.TextMatch{Regex: new("(")}), []string{"match.path.regex", "RE2"}},
		{"RegexLimit", path(sandbox.TextMatch{Regex: new(strings.Repeat("ä", 1024))}), nil},
		{"RegexLong", path(sandbox.TextMatch{Regex: new(strings.Repeat("ä", 1025))}), []string{"1025"}},
		{"RegexHuge", path(sandbox.TextMatch{Regex: new(strings.Repeat("a", 1<<20))}), []string{"1048576"}},
		{"RegexCostly", path(sandbox.TextMatch{Regex: new(strings.Repeat(".{900}", 3))}), []string{"too costly"}},
		{"RegexesCostly", sandbox.Network{Allow: []sandbox.Domain{{Name: "a.example", Rules: costly(12)}}}, []string{"network.allow[0].rules[11]", "together"}},
		{"Path", path(sandbox.TextMatch{Prefix: new("/b%C3%BCcher/a+b@c/.well")}), nil},
		{"PathStar", path(sandbox.TextMatch{Exact: new("*")}), nil},
		{"PathRelative", path(sandbox.TextMatch{Prefix: new("admin")}), []string{`match.path.prefix "admin"`}},
		{"PathQuery", path(sandbox.TextMatch{Exact: new("/a?b")}), []string{"query"}},
		{"PathNotEscaped", path(sandbox.TextMatch{Exact: new("/a b")}), []string{"%20"}},
		{"PathNotASCII", path(sandbox.TextMatch{Exact: new("/ü")}), []string{"%C3"}},
		{"PathEscapedLetter", path(sandbox.TextMatch{Exact: new("/%61")}), []string{"escape"}},
		{"PathEscapedSlash", path(sandbox.TextMatch{Exact: new("/a%2Fb")}), []string{"(/|%2F)"}},
		{"PathSmallEscape", path(sandbox.TextMatch{Exact: new("/%c3%bc")}), []string{"capitals"}},
		{"PathBroken", path(sandbox.TextMatch{Exact: new("/%2")}), []string{"escape"}},
		{"PathDots", path(sandbox.TextMatch{Prefix: new("/a/../b")}), []string{"normal form"}},
		{"PathSlashes", path(sandbox.TextMatch{Prefix: new("/a//b")}), []string{"normal form"}},
		{"PathSemicolon", path(sandbox.TextMatch{Prefix: new("/a;b")}), []string{"several ways"}},

		{"TooLarge", sandbox.Network{Allow: []sandbox.Domain{{Name: "a.example", Rules: []sandbox.Rule{
			{Respond: &sandbox.Response{Status: 200, Body: strings.Repeat("x", 64<<10)}}, {Respond: &sandbox.Response{Status: 200, Body: strings.Repeat("x", 64<<10)}},
			{Respond: &sandbox.Response{Status: 200, Body: strings.Repeat("x", 64<<10)}}, {Respond: &sandbox.Response{Status: 200, Body: strings.Repeat("x", 64<<10)}},
		}}}}, []string{"262144"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			err := c.n.Validate()
			invalid(t, err, c.says...)
			var e *cay.Error
			if errors.As(err, &e) && strings.Contains(e.Message+e.Hint, "hunter2") {
				t.Errorf("the error shows the secret: %q, %q", e.Message, e.Hint)
			}
			invalid(t, sandbox.CreateParams{Network: c.n}.Validate(), c.says...)
			invalid(t, sandbox.UpdateParams{Network: &c.n}.Validate(), c.says...)
		})
	}
}

func costly(n int) []sandbox.Rule {
	rules := make([]sandbox.Rule, n)
	for i := range rules {
		rules[i].Match.Path = &sandbox.TextMatch{Regex: new(".{900}.{900}")}
	}
	return rules
}

func TestNetwork_WithDefaults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		n    sandbox.Network
		want sandbox.NetworkMode
	}{
		{sandbox.Network{}, sandbox.AllowAll},
		{sandbox.Network{Limits: sandbox.NetworkLimits{Connections: 1}}, sandbox.AllowAll},
		{domains("a.example"), sandbox.Custom},
		{sandbox.Network{AllowCIDRs: []string{"192.0.2.1"}}, sandbox.Custom},
		{sandbox.Network{DenyCIDRs: []string{"192.0.2.1"}}, sandbox.Custom},
		{sandbox.Network{Mode: sandbox.DenyAll}, sandbox.DenyAll},
	} {
		if got := c.n.WithDefaults().Mode; got != c.want {
			t.Errorf("%v gets the mode %s, want %s", c.n, got, c.want)
		}
		if got := (sandbox.CreateParams{Network: c.n}).WithDefaults().Network.Mode; got != c.want {
			t.Errorf("a sandbox created with %v gets the mode %s, want %s", c.n, got, c.want)
		}
	}
}

func TestNetwork_Properties(t *testing.T) {
	t.Parallel()
	seedtest.Check(t, func(t *rapid.T) {
		n := policytest.Networks().Draw(t, "network")
		if err := n.Validate(); err != nil {
			t.Fatalf("%v: %v", n, err)
		}
		if d := n.WithDefaults(); !reflect.DeepEqual(d, n) {
			t.Fatalf("defaults change %v to %v", n, d)
		}
		b, err := json.Marshal(n)
		if err != nil {
			t.Fatal(err)
		}
		var back sandbox.Network
		if err := json.Unmarshal(b, &back); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(back, n) {
			t.Fatalf("%s comes back as %v", b, back)
		}
		secret := strings.Contains(string(b), policytest.SecretPrefix)
		if n.HasSecrets() != secret {
			t.Fatalf("HasSecrets of %s is %v", b, n.HasSecrets())
		}
		r := n.Redacted()
		rb, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if s := string(rb) + fmt.Sprintf("%v %+v", n, n.Allow); strings.Contains(s, policytest.SecretPrefix) {
			t.Fatalf("redacted, it is %s", s)
		}
		if !reflect.DeepEqual(n, back) {
			t.Fatalf("Redacted changed what it was called on to %v", n)
		}
		if err := r.Validate(); (err != nil) != secret {
			t.Fatalf("redacted, it is valid: %v, but it has secrets: %v", err, secret)
		}
		// Clone returns a copy that shares nothing: changes of the copy stay in
		// the copy.
		for i := range r.Allow {
			r.Allow[i].Name = "changed"
			for j := range r.Allow[i].Ports {
				r.Allow[i].Ports[j] = 1
			}
			for j := range r.Allow[i].Rules {
				m := &r.Allow[i].Rules[j].Match
				clear(m.Methods)
				if m.Path != nil {
					*m.Path = sandbox.TextMatch{}
				}
				clear(m.Query)
				clear(m.Headers)
				if resp := r.Allow[i].Rules[j].Respond; resp != nil {
					clear(resp.Headers)
				}
				r.Allow[i].Rules[j] = sandbox.Rule{}
			}
		}
		clear(r.AllowCIDRs)
		clear(r.DenyCIDRs)
		if !reflect.DeepEqual(n, back) {
			t.Fatalf("changing the redacted copy changed the original to %v", n)
		}
	})
}

func TestPorts_Validate(t *testing.T) {
	t.Parallel()
	many := make([]sandbox.PortParams, 65)
	for i := range many {
		many[i].Port = 3000 + i
	}
	for _, c := range []struct {
		name  string
		ports []sandbox.PortParams
		says  []string
	}{
		{"None", nil, nil},
		{"Most", many[:64], nil},
		{"TooMany", many, []string{"65 ports", "64"}},
		{"Low", []sandbox.PortParams{{Port: 0}}, []string{"ports[0].port 0"}},
		{"High", []sandbox.PortParams{{Port: 1}, {Port: 65536}}, []string{"ports[1].port 65536"}},
		{"Twice", []sandbox.PortParams{{Port: 80}, {Port: 80, Access: sandbox.Private}}, []string{"ports[1].port 80", "ports[0]"}},
		{"Access", []sandbox.PortParams{{Port: 80, Access: "all"}}, []string{`ports[0].access "all"`, "public"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			invalid(t, sandbox.CreateParams{Ports: c.ports}.Validate(), c.says...)
			invalid(t, sandbox.UpdateParams{Ports: c.ports}.Validate(), c.says...)
		})
	}
	invalid(t, sandbox.PortParams{Port: -1}.Validate(), "port -1")
	if got := (sandbox.PortParams{Port: 80}).WithDefaults().Access; got != sandbox.Public {
		t.Errorf("the access of a port is %q, want public", got)
	}

	day := sandbox.Duration(24 * time.Hour)
	invalid(t, sandbox.LinkParams{}.Validate())
	invalid(t, sandbox.LinkParams{TTL: 30 * day}.Validate())
	invalid(t, sandbox.LinkParams{TTL: 30*day + 1}.Validate(), "720h")
	invalid(t, sandbox.LinkParams{TTL: -1}.Validate(), "-1ns")
	if got := (sandbox.LinkParams{}).WithDefaults().TTL; got != sandbox.Duration(time.Hour) {
		t.Errorf("the TTL of a link is %v, want 1h", got)
	}

	invalid(t, sandbox.FlowParams{Verdict: sandbox.Denied, After: 1, Limit: 1000}.Validate())
	invalid(t, sandbox.FlowParams{Verdict: "no"}.Validate(), `"no"`)
	invalid(t, sandbox.FlowParams{After: -1}.Validate(), "-1")
	invalid(t, sandbox.FlowParams{Limit: 1001}.Validate(), "1001")
}

func FuzzNetwork_Name(f *testing.F) {
	for _, s := range []string{"*", "*.example.com", "www.*.com", "127.1", "0x7f.1", "[::1]", "xn--p1ai", "a.*", "a:1", "\xff", "1.2.3.4.", "a.0x"} {
		f.Add(s)
	}
	valid := regexp.MustCompile(`^(\*|((\*|[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)\.)*[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)$`)
	number := regexp.MustCompile(`(^|\.)([0-9]+|0[xX][0-9A-Fa-f]*)$`)
	f.Fuzz(func(t *testing.T, name string) {
		want := valid.MatchString(name) && !number.MatchString(name) && len(name) <= 253
		if err := domains(name).Validate(); (err == nil) != want {
			t.Errorf("%q: %v, want it valid: %v", name, err, want)
		}
	})
}

func FuzzNetwork_CIDR(f *testing.F) {
	for _, s := range []string{"203.0.113.0/24", "192.0.2.1", "192.0.2.1/24", "::ffff:1.2.3.4", "::/0", "fe80::1%x", "1.2.3.4/33", "01.2.3.4", "1.2.3.4/024"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if (sandbox.Network{AllowCIDRs: []string{text}}).Validate() != nil {
			return
		}
		whole := text
		if !strings.Contains(text, "/") {
			whole += map[bool]string{true: "/128", false: "/32"}[strings.Contains(text, ":")]
		}
		p, err := netip.ParsePrefix(whole)
		if err != nil || p != p.Masked() || p.Addr().Is4In6() || p.Addr().Zone() != "" {
			t.Errorf("%q is valid", text)
		}
	})
}
