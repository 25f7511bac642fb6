package policy_test

import (
	"bufio"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/cayhq/cay/internal/sandboxd/network/policy"
	"github.com/cayhq/cay/internal/seedtest"
	"github.com/cayhq/cay/sandbox"
)

func rules(rules ...sandbox.Rule) sandbox.Network {
	return sandbox.Network{Allow: []sandbox.Domain{{Name: "a.example", Rules: rules}}}
}

func domain(t testing.TB, r ...sandbox.Rule) *policy.Domain {
	t.Helper()
	_, d := compile(t, rules(r...)).Name("a.example", 443)
	return d
}

// request reads a request as a server does.
func request(t testing.TB, head string) *http.Request {
	t.Helper()
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(strings.ReplaceAll(head, "\n", "\r\n") + "\r\n\r\n")))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func exact(s string) *sandbox.TextMatch  { return &sandbox.TextMatch{Exact: &s} }
func prefix(s string) *sandbox.TextMatch { return &sandbox.TextMatch{Prefix: &s} }
func regex(s string) *sandbox.TextMatch  { return &sandbox.TextMatch{Regex: &s} }

// Outcomes of matching a single rule that denies.
const (
	matched = "matched"
	passed  = "passed"
	doubted = "doubted" // refused, since it may or may not match
)

func outcome(r *policy.Rule) string {
	switch {
	case r == nil:
		return passed
	case r.Deny && strings.Contains(r.Reason, "several ways"):
		return doubted
	}
	return matched
}

func TestDomain_Match(t *testing.T) {
	t.Parallel()
	admin := sandbox.Match{Path: prefix("/admin/")}
	key := func(k, v *sandbox.TextMatch) []sandbox.FieldMatch { return []sandbox.FieldMatch{{Key: k, Value: v}} }
	for _, c := range []struct {
		match sandbox.Match
		head  string // without "HTTP/1.1" and Host
		want  string
	}{
		{sandbox.Match{}, "GET /", matched},
		{sandbox.Match{Methods: []string{"POST", "PUT"}}, "PUT /", matched},
		{sandbox.Match{Methods: []string{"POST"}}, "GET /", passed},
		{sandbox.Match{Methods: []string{"POST"}}, "post /", doubted},
		{sandbox.Match{Methods: []string{"POST"}}, "get /", passed},

		{sandbox.Match{Path: exact("/a")}, "GET /a?b", matched},
		{sandbox.Match{Path: exact("/a")}, "GET /a/", passed},
		{sandbox.Match{Path: exact("/a")}, "GET /A", passed},
		{sandbox.Match{Path: exact("/")}, "GET http://a.example", matched},
		{sandbox.Match{Path: exact("*")}, "OPTIONS *", matched},
		{sandbox.Match{Path: regex("^/v[0-9]/")}, "GET /v1/x", matched},
		{sandbox.Match{Path: regex("x")}, "GET /v1/x", matched},
		{sandbox.Match{Path: regex("x$")}, "GET /v1/xy", passed},
		{sandbox.Match{Path: exact("/b%C3%BCcher")}, "GET /b%c3%bccher", matched},
		{sandbox.Match{Path: exact("/b%C3%BCcher")}, "GET /bücher", matched}, // the request is sent with the path escaped
		{sandbox.Match{Path: exact("/a%20b")}, "GET /a%20b", matched},

		{admin, "GET /admin/x", matched},
		{admin, "GET /admin", passed},
		{admin, "GET /public/.well-known/x", passed},
		{admin, "GET //admin/x", doubted},
		{admin, "GET /./admin/x", doubted},
		{admin, "GET /public/../admin/x", doubted},
		{admin, "GET /public/%2e%2e/admin/x", doubted},
		{admin, "GET /public/%2E./admin/x", doubted},
		{admin, "GET /public/..%2fadmin/x", doubted},
		{admin, "GET /public/%252e%252e/admin/x", doubted},
		{admin, "GET /public/%25252e%25252e%25252fadmin/x", doubted},
		{admin, "GET /public%2f..%2Fadmin/x", doubted},
		{admin, "GET /%61dmin/x", doubted},
		{admin, "GET /%2561dmin/x", doubted},
		{admin, "GET /admin%2Fx", doubted},
		{admin, "GET /admin%5Cx", doubted},
		{admin, `GET /admin\x`, doubted},
		{admin, `GET /public\..\admin\x`, doubted},
		{admin, "GET /admin;v=1/x", doubted},
		{admin, "GET /public/..;/admin/x", doubted},
		{admin, "GET /public/..%3b/admin/x", doubted},
		{admin, "GET /public//..//admin/x", doubted},
		{admin, "GET /admin/../public", doubted},
		{admin, "GET /admin/.", matched},
		{admin, "GET /admin/%2e%2e/public", doubted},
		{admin, "GET /x%00", doubted},
		{admin, "GET /x%250a", doubted},
		{admin, "GET /%c0%afadmin/x", doubted}, // an overlong slash
		{admin, "GET /public//x", passed},      // every reading is outside
		{admin, "GET /public/a%2Fb", passed},
		{admin, "GET /admin/a%2Fb", matched}, // and here inside
		{admin, "GET /admin/a;b/%41", matched},
		{admin, "GET /public/../../x", passed},
		{admin, "GET /public/" + strings.Repeat("%61", 1000), doubted}, // too long to look at
		{admin, "GET /public/" + strings.Repeat("%C3%BC", 1000), passed},
		{admin, "GET /public/" + strings.Repeat("a", 10000), passed},
		{sandbox.Match{Methods: []string{"POST"}, Path: admin.Path}, "GET //admin/x", passed}, // the rule is for POST only
		{sandbox.Match{Path: prefix("/@scope")}, "GET /@scope%2fname", matched},
		{sandbox.Match{Path: prefix("/@scope/")}, "GET /@scope%2fname", doubted},
		{sandbox.Match{Path: regex("^/@scope(/|%2F)name$")}, "GET /@scope%2fname", matched},

		{sandbox.Match{Query: key(exact("k"), nil)}, "GET /?a&k=1", matched},
		{sandbox.Match{Query: key(exact("k"), nil)}, "GET /?K=1", passed},
		{sandbox.Match{Query: key(exact("k"), exact("v w"))}, "GET /?k=1&%6b=v%20w", matched},
		{sandbox.Match{Query: key(exact("k"), exact("v w"))}, "GET /?k=v+w", doubted},
		{sandbox.Match{Query: key(exact("k"), exact("v+w"))}, "GET /?k=v%2Bw", matched},
		{sandbox.Match{Query: key(nil, prefix("v"))}, "GET /?x=vw", matched},
		{sandbox.Match{Query: append(key(exact("k"), nil), key(exact("l"), nil)...)}, "GET /?k", passed},
		{sandbox.Match{Query: append(key(exact("k"), nil), key(exact("l"), nil)...)}, "GET /?k&l", matched},
		{sandbox.Match{Query: key(exact("k"), nil)}, "GET /?a=1;k=1", doubted},
		{sandbox.Match{Query: key(exact("k"), nil)}, "GET /?a=1;b=1", passed},
		{sandbox.Match{Query: key(exact("k"), nil)}, "GET /?k%zz=1", doubted},
		{sandbox.Match{Query: key(exact("k"), nil)}, "GET /?x=%z&k=1", matched},
		{sandbox.Match{Path: exact("/x")}, "GET /?%zz", passed}, // no rule looks at it

		{sandbox.Match{Headers: key(exact("X-Key"), nil)}, "GET /\nx-kEY: 1", matched},
		{sandbox.Match{Headers: key(regex("^X-K"), exact("b"))}, "GET /\nx-key: a\nx-key: b", matched},
		{sandbox.Match{Headers: key(exact("x-key"), exact("b"))}, "GET /\nx-key: B", passed},
		{sandbox.Match{Headers: key(exact("x-key"), nil)}, "GET /", passed},
		{sandbox.Match{Headers: key(exact("Host"), exact("a.example"))}, "GET /", matched},
	} {
		t.Run(strings.Join(strings.Fields(c.head), " "), func(t *testing.T) {
			t.Parallel()
			line, rest, _ := strings.Cut(c.head, "\n")
			if rest != "" {
				rest = "\n" + rest
			}
			r := request(t, line+" HTTP/1.1\nHost: a.example"+rest)
			got := domain(t, sandbox.Rule{Match: c.match, Deny: true}).Match(r)
			if outcome(got) != c.want {
				t.Errorf("%+v is %s, want %s", c.match, outcome(got), c.want)
			}
		})
	}
}

func TestDomain_MatchOrder(t *testing.T) {
	t.Parallel()
	d := domain(t,
		sandbox.Rule{Match: sandbox.Match{Path: prefix("/a/b")}},
		sandbox.Rule{Match: sandbox.Match{Path: prefix("/a")}, Deny: true},
		sandbox.Rule{Match: sandbox.Match{Methods: []string{"POST"}}, ForwardURL: "https://x.example/base"},
	)
	for head, want := range map[string]string{
		"GET /a/bc":   `allow "a.example" rule 1`,
		"GET /a/c":    `allow "a.example" rule 2`,
		"POST /b":     `allow "a.example" rule 3`,
		"POST /%61/c": `allow "a.example" rule 2`, // refused: in doubt, but not about the first
	} {
		r := d.Match(request(t, head+" HTTP/1.1\nHost: a.example"))
		if r == nil || r.Text != want || r.Deny != strings.HasSuffix(want, "2") || r.Deny != (r.Reason != "") {
			t.Errorf("%s: got %+v, want %s", head, r, want)
		}
	}
	if r := d.Match(request(t, "GET /b HTTP/1.1\nHost: a.example")); r != nil {
		t.Errorf("got %v for what no rule is for", r)
	}
	if u := d.Match(request(t, "POST /b HTTP/1.1\nHost: a.example")).Forward; u.String() != "https://x.example/base" {
		t.Errorf("it is forwarded to %v", u)
	}
}

func TestRule_Secrets(t *testing.T) {
	t.Parallel()
	r := domain(t, sandbox.Rule{Scrub: true, SetHeaders: map[string]string{
		"authorization": "Bearer token-0123", "x-basic": "Basic dXNlcjpwYXNzd29yZDE=", "x-key": "key-45678", "x-two": "two words",
	}}).Match(request(t, "GET / HTTP/1.1\nHost: a.example"))
	var got []string
	for _, s := range r.Secrets {
		got = append(got, string(s))
	}
	if !slices.IsSortedFunc(got, func(a, b string) int { return len(b) - len(a) }) {
		t.Errorf("%q are not the longest first", got)
	}
	want := []string{
		"Basic dXNlcjpwYXNzd29yZDE=", "dXNlcjpwYXNzd29yZDE=", "user:password1", "password1",
		"Bearer token-0123", "token-0123", "key-45678", "two words",
	}
	if slices.Sort(got); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
		t.Errorf("the secrets are %q, want %q", got, want)
	}
	if names := slices.Sorted(maps.Keys(r.SetHeaders)); !slices.Equal(names, []string{"Authorization", "X-Basic", "X-Key", "X-Two"}) {
		t.Errorf("headers %q are set", names)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x"} {
		if s := fmt.Sprintf(verb, r); s != r.Text {
			t.Errorf("formatted with %s, a rule is %q", verb, s)
		}
	}
}

// However a guest spells a path, a request that matches a denying rule in one of the
// known readings never reaches the server.
func TestDomain_MatchCannotBeTalkedAround(t *testing.T) {
	t.Parallel()
	d := domain(t, sandbox.Rule{Match: sandbox.Match{Path: prefix("/admin/")}, Deny: true})
	noise := rapid.SampledFrom([]string{"", "/", "/.", "/x/..", "/x/../y/..", "/%2e", "/x%2f%2e%2E", "/x/.%252e", ";a", `/x\..`, "/x/..;b=c"})
	letters := func(t *rapid.T, s string) string {
		var b strings.Builder
		for _, c := range []byte(s) {
			b.WriteString(rapid.SampledFrom([]string{string(c), string(c), fmt.Sprintf("%%%02x", c), fmt.Sprintf("%%25%02X", c)}).Draw(t, "letter"))
		}
		return b.String()
	}
	seedtest.Check(t, func(t *rapid.T) {
		before, between := noise.Draw(t, "before"), noise.Draw(t, "between")
		if strings.HasPrefix(before, ";") {
			before = "/" + before
		}
		slash := rapid.SampledFrom([]string{"/", "//", "%2F", "%252f", `\`, "%5c"})
		path := before + "/" + letters(t, "admin") + between + slash.Draw(t, "slash") + "x"
		r := &http.Request{Method: "GET"}
		parsed, err := http.NewRequest("GET", "http://a.example"+path, nil)
		if err != nil {
			t.Skip(err)
		}
		r.URL = parsed.URL
		if got := d.Match(r); got == nil {
			t.Fatalf("%s passes", path)
		}
	})
}

func FuzzDomain_Match(f *testing.F) {
	for _, s := range []string{"/admin/x", "//%2e/..;a/%25%32%65?x=%&k;k=+", `\%5c`, "*", ""} {
		f.Add(s)
	}
	p := compile(f, rules(
		sandbox.Rule{Match: sandbox.Match{Path: prefix("/admin/")}, Deny: true},
		sandbox.Rule{Match: sandbox.Match{Query: []sandbox.FieldMatch{{Key: exact("k"), Value: regex("^v")}}}, Deny: true},
	))
	_, d := p.Name("a.example", 443)
	f.Fuzz(func(t *testing.T, target string) {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader("GET " + target + " HTTP/1.1\r\nHost: a.example\r\n\r\n")))
		if err != nil {
			return
		}
		got := d.Match(r)
		if strings.HasPrefix(r.URL.Path, "/admin/") && got == nil {
			t.Errorf("%q passes", target)
		}
		if got == nil && r.URL.Query().Has("k") && strings.HasPrefix(r.URL.Query().Get("k"), "v") {
			t.Errorf("%q passes", target)
		}
	})
}

func BenchmarkDomain_Match(b *testing.B) {
	var all []sandbox.Rule
	for i := range 64 {
		all = append(all, sandbox.Rule{Match: sandbox.Match{Path: prefix(fmt.Sprintf("/v%d/", i))}})
	}
	d := domain(b, all...)
	for _, path := range []string{"/v63/models", "/v64/a%2Fb;c/../d", "/" + strings.Repeat(`%252e%5c;/`, 200)} {
		r := request(b, "GET "+path+" HTTP/1.1\nHost: a.example")
		b.Run(path[:min(len(path), 20)], func(b *testing.B) {
			for b.Loop() {
				d.Match(r)
			}
		})
	}
}
