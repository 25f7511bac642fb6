package vercelsandbox

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/network/policy/policytest"
	"github.com/cayhq/cay/internal/seedtest"
	"github.com/cayhq/cay/sandbox"
)

func TestNetworkFromRequest(t *testing.T) {
	t.Parallel()
	headers := func(kv ...string) map[string]string {
		m := map[string]string{}
		for i := 0; i < len(kv); i += 2 {
			m[kv[i]] = kv[i+1]
		}
		return m
	}
	one := func(name string, rules ...sandbox.Rule) sandbox.Network {
		return sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{{Name: name, Rules: rules}}}
	}
	for _, c := range []struct {
		name, in string
		want     sandbox.Network
	}{
		{"AllowAll", `{"mode":"allow-all"}`, sandbox.Network{Mode: sandbox.AllowAll}},
		{"DenyAll", `{"mode":"deny-all"}`, sandbox.Network{Mode: sandbox.DenyAll}},
		{"StringAllowAll", ` "allow-all"`, sandbox.Network{Mode: sandbox.AllowAll}},
		{"StringDenyAll", `"deny-all"`, sandbox.Network{Mode: sandbox.DenyAll}},
		{"Nothing", `{}`, sandbox.Network{Mode: sandbox.Custom}},
		{"Nulls", `{"allow":null,"subnets":null,"mode":null}`, sandbox.Network{Mode: sandbox.Custom}},
		{"EmptyList", `{"allow":[]}`, sandbox.Network{Mode: sandbox.Custom}},
		{"List", `{"allow":["z.example","a.example","*"]}`, sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{{Name: "z.example"}, {Name: "a.example"}, {Name: "*"}}}},
		{"MapInOrder", `{"allow":{"z.example":[],"a.example":null,"m.example":[]}}`, sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{{Name: "z.example"}, {Name: "a.example"}, {Name: "m.example"}}}},
		{"Subnets", `{"subnets":{"allow":["203.0.113.0/24"],"deny":["203.0.113.7"]}}`, sandbox.Network{Mode: sandbox.Custom, AllowCIDRs: []string{"203.0.113.0/24"}, DenyCIDRs: []string{"203.0.113.7"}}},
		{"Transform", `{"allow":{"a.example":[{"transform":[{"headers":{"X-A":"1","x-b":"2"}},{"headers":{"x-a":"3"}}]}]}}`, one("a.example", sandbox.Rule{SetHeaders: headers("x-a", "3", "x-b", "2")})},
		{"Forward", `{"allow":{"a.example":[{"forwardURL":"https://p.example/x"}]}}`, one("a.example", sandbox.Rule{ForwardURL: "https://p.example/x"})},
		{"Response", `{"allow":{"a.example":[{"response":{"statusCode":403,"headers":{"x":"y"},"body":"no","contentType":"text/plain"}}]}}`,
			one("a.example", sandbox.Rule{Respond: &sandbox.Response{Status: 403, Headers: headers("x", "y", "Content-Type", "text/plain"), Body: "no"}})},
		{"ResponseEmpty", `{"allow":{"a.example":[{"response":{"statusCode":204}}]}}`, one("a.example", sandbox.Rule{Respond: &sandbox.Response{Status: 204}})},
		{"Match", `{"allow":{"a.example":[{"match":{"path":{"startsWith":"/v1"},"method":["GET"],"queryString":[{"key":{"exact":"k"},"value":{"regex":"^v"}}],"headers":[{"key":{"exact":"h"}}]},"forwardURL":"https://p.example"}]}}`,
			one("a.example", sandbox.Rule{ForwardURL: "https://p.example", Match: sandbox.Match{
				Path: &sandbox.TextMatch{Prefix: new("/v1")}, Methods: []string{"GET"},
				Query:   []sandbox.FieldMatch{{Key: &sandbox.TextMatch{Exact: new("k")}, Value: &sandbox.TextMatch{Regex: new("^v")}}},
				Headers: []sandbox.FieldMatch{{Key: &sandbox.TextMatch{Exact: new("h")}}},
			}})},
		{"Mode", `{"mode":"custom","allowedDomains":["z.example","a.example"],"allowedCIDRs":["203.0.113.0/24"],"deniedCIDRs":["203.0.113.7"],
			"injectionRules":[{"domain":"A.example","headers":{"x":"1"},"match":{"method":["GET"]}},{"domain":"new.example","headers":{"x":"2"}}],
			"forwardRules":[{"domain":"a.example","forwardURL":"https://p.example"}]}`,
			sandbox.Network{Mode: sandbox.Custom, AllowCIDRs: []string{"203.0.113.0/24"}, DenyCIDRs: []string{"203.0.113.7"}, Allow: []sandbox.Domain{
				{Name: "z.example"},
				{Name: "a.example", Rules: []sandbox.Rule{{SetHeaders: headers("x", "1"), Match: sandbox.Match{Methods: []string{"GET"}}}, {ForwardURL: "https://p.example"}}},
				{Name: "new.example", Rules: []sandbox.Rule{{SetHeaders: headers("x", "2")}}},
			}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := NetworkFromRequest([]byte(c.in))
			if err != nil {
				t.Fatal(err)
			}
			a, b := mustJSON(t, got), mustJSON(t, c.want)
			if a != b {
				t.Errorf("got %s, want %s", a, b)
			}
		})
	}
}

func TestNetworkFromRequest_Invalid(t *testing.T) {
	t.Parallel()
	rule := func(r string) string { return `{"allow":{"a.example":[` + r + `]}}` }
	for _, c := range []struct{ name, in, says string }{
		{"Empty", ``, "byte 0"},
		{"Null", `null`, "neither"},
		{"Array", `[]`, "neither"},
		{"NotJSON", `{"allow":`, "byte 9"},
		{"Rest", `{} {}`, "byte 3"},
		{"String", `"custom"`, `"custom"`},
		{"Mode", `{"mode":"some"}`, `"some"`},
		{"ModeEmpty", `{"mode":""}`, "empty"},
		{"NoMode", `{"allowedDomains":["a.example"]}`, "mode is missing"},
		{"Both", `{"mode":"custom","allow":[]}`, "together"},
		{"AllowAllWithList", `{"mode":"allow-all","allowedDomains":["a.example"]}`, "allow-all"},
		{"Unknown", `{"allowed":[]}`, "/allowed"},
		{"UnknownInRule", rule(`{"transfrom":[]}`), "/allow/a.example/0/transfrom"},
		{"UnknownInMatch", rule(`{"match":{"paths":{}},"forwardURL":"https://p.example"}`), "paths"},
		{"DomainTwice", `{"allow":{"a.example":[],"a.example":[]}}`, "twice"},
		{"DomainTwiceInList", `{"allow":["a.example","A.example"]}`, "network.allow[1].name"},
		{"Kind", `{"allow":7}`, "/allow"},
		{"RuleKind", rule(`7`), "/allow/a.example/0"},
		{"HeaderKind", rule(`{"transform":[{"headers":{"x":20202020}}]}`), "headers/x"},
		{"NoAction", rule(`{}`), `allow["a.example"][0]`},
		{"TwoActions", rule(`{"forwardURL":"https://p.example","response":{"statusCode":200}}`), "2 of transform"},
		{"EmptyForward", rule(`{"forwardURL":""}`), "forwardURL is empty"},
		{"BodyWithoutType", rule(`{"response":{"statusCode":200,"body":"20202020"}}`), "contentType"},
		{"TypeTwice", rule(`{"response":{"statusCode":200,"headers":{"content-type":"a"},"contentType":"b"}}`), "twice"},
		{"ResponseHeaderTwice", rule(`{"response":{"statusCode":200,"headers":{"X":"a","x":"b"}}}`), "twice"},
		{"ResponseStatus", rule(`{"response":{}}`), "respond.status 0"},
		{"Matcher", rule(`{"match":{"path":{}},"forwardURL":"https://p.example"}`), "match.path"},
		{"HeaderNames", `{"mode":"custom","injectionRules":[{"domain":"a.example","headerNames":["x"]}]}`, "injectionRules[0]"},
		{"NoForwardURL", `{"mode":"custom","forwardRules":[{"domain":"a.example"}]}`, "forwardRules[0]"},
		{"Secret", rule(`{"transform":[{"headers":{"x":"20202020\n"}}]}`), `set_headers["x"]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := NetworkFromRequest([]byte(c.in))
			if cay.CodeOf(err) != cay.Invalid || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "20202020") {
				t.Errorf("got %v, want an invalid error with %q in it", err, c.says)
			}
		})
	}
}

func TestNetworkToResponse(t *testing.T) {
	t.Parallel()
	n := sandbox.Network{
		Allow: []sandbox.Domain{
			{Name: "z.example", Rules: []sandbox.Rule{
				{SetHeaders: map[string]string{"b": "secret", "a": "secret"}, Match: sandbox.Match{Path: &sandbox.TextMatch{Prefix: new("/v1")}}},
				{Deny: true}, {Respond: &sandbox.Response{Status: 200}},
			}},
			{Name: "a.example", Rules: []sandbox.Rule{{ForwardURL: "https://p.example"}}},
		},
		AllowCIDRs: []string{"203.0.113.0/24"}, DenyCIDRs: []string{"203.0.113.7"},
	}
	const want = `{"mode":"custom","allowedDomains":["z.example","a.example"],"allowedCIDRs":["203.0.113.0/24"],"deniedCIDRs":["203.0.113.7"],` +
		`"injectionRules":[{"domain":"z.example","headerNames":["a","b"],"match":{"path":{"startsWith":"/v1"}}}],"forwardRules":[{"domain":"a.example","forwardURL":"https://p.example"}]}`
	if got := mustJSON(t, NetworkToResponse(n)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := mustJSON(t, NetworkToResponse(sandbox.Network{})); got != `{"mode":"allow-all"}` {
		t.Errorf("got %s", got)
	}
}

// The policy in a response, completed with the values that responses omit,
// gives the same policy again.
func TestNetwork_RoundTrip(t *testing.T) {
	t.Parallel()
	seedtest.Check(t, func(t *rapid.T) {
		n := representable(policytest.Networks().Draw(t, "network"))
		resp := NetworkToResponse(n)
		if b := mustJSON(t, resp); strings.Contains(b, policytest.SecretPrefix) {
			t.Fatalf("%s has a secret in it", b)
		}
		req := map[string]any{}
		if err := json.Unmarshal([]byte(mustJSON(t, resp)), &req); err != nil {
			t.Fatal(err)
		}
		var values []map[string]string
		for _, d := range n.Allow {
			for _, r := range d.Rules {
				if r.SetHeaders != nil {
					values = append(values, r.SetHeaders)
				}
			}
		}
		injections, _ := req["injectionRules"].([]any)
		for i, rule := range injections {
			m := rule.(map[string]any)
			names := slices.Sorted(maps.Keys(values[i]))
			if got := mustJSON(t, m["headerNames"]); got != mustJSON(t, names) {
				t.Fatalf("rule %d names %s, not %q", i, got, names)
			}
			delete(m, "headerNames")
			m["headers"] = values[i]
		}
		back, err := NetworkFromRequest([]byte(mustJSON(t, req)))
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(back, n) {
			t.Fatalf("%s comes back as %s", mustJSON(t, n), mustJSON(t, back))
		}
	})
}

// representable leaves out what responses cannot express, and sorts the rules
// of each name in the order of responses.
func representable(n sandbox.Network) sandbox.Network {
	n.Limits, n.Strict = sandbox.NetworkLimits{}, false
	for i := range n.Allow {
		d := &n.Allow[i]
		var set, forward []sandbox.Rule
		for _, r := range d.Rules {
			r.Scrub = false
			switch {
			case r.SetHeaders != nil:
				set = append(set, r)
			case r.ForwardURL != "":
				forward = append(forward, r)
			}
		}
		d.Ports, d.Rules = nil, slices.Concat(set, forward)
	}
	return n
}

func FuzzNetworkFromRequest(f *testing.F) {
	for _, s := range []string{
		`"deny-all"`, `{"allow":{"a.example":[{"transform":[{"headers":{"a":"b"}}]}]}}`,
		`{"mode":"custom","injectionRules":[{"domain":"a","headers":{"a":"b"}}]}`, `{"allow":["*"],"subnets":{"deny":["::/0"]}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := NetworkFromRequest(b)
		if err != nil {
			if cay.CodeOf(err) != cay.Invalid {
				t.Errorf("%q: %v", b, err)
			}
			return
		}
		if err := n.Validate(); err != nil || n.Mode == "" {
			t.Errorf("%q gives %v, %v", b, n, err)
		}
		NetworkToResponse(n)
	})
}

func mustJSON(t interface{ Fatal(...any) }, v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
