// Package policytest makes network policies for property tests.
package policytest

import (
	"fmt"
	"strings"

	"pgregory.net/rapid"

	"github.com/cayhq/cay/sandbox"
)

// SecretPrefix begins each value of SetHeaders that Networks makes, and no other text in
// them.
const SecretPrefix = "secret-"

// Names draws host names in the form of policy.CleanName, few enough for
// policies to match them.
func Names() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		labels := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "api", "_srv", "x-1"}), 0, 4).Draw(t, "labels")
		return strings.Join(append(labels, rapid.SampledFrom([]string{"com", "example", "xn--p1ai"}).Draw(t, "top")), ".")
	})
}

// Patterns draws valid values of sandbox.Domain.Name.
func Patterns() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		if rapid.IntRange(0, 9).Draw(t, "any") == 0 {
			return "*"
		}
		labels := strings.Split(Names().Draw(t, "name"), ".")
		for i := range labels[:len(labels)-1] {
			if rapid.IntRange(0, 2).Draw(t, "star") == 0 {
				labels[i] = "*"
			}
		}
		return strings.Join(labels, ".")
	})
}

// Networks draws valid policies with their defaults filled in.
func Networks() *rapid.Generator[sandbox.Network] {
	return rapid.Custom(func(t *rapid.T) sandbox.Network {
		n := sandbox.Network{Mode: rapid.SampledFrom([]sandbox.NetworkMode{sandbox.AllowAll, sandbox.DenyAll, sandbox.Custom, sandbox.Custom}).Draw(t, "mode")}
		n.Limits.Connections = rapid.IntRange(0, 100).Draw(t, "connections")
		n.Limits.TotalBytes = rapid.Int64Min(0).Draw(t, "total")
		if n.Mode != sandbox.Custom {
			return n
		}
		n.Strict = rapid.Bool().Draw(t, "strict")
		n.AllowCIDRs = cidrs().Draw(t, "allow_cidrs")
		n.DenyCIDRs = cidrs("2001:db8::/32", "::1").Draw(t, "deny_cidrs")
		for _, name := range rapid.SliceOfNDistinct(Patterns(), 0, 5, rapid.ID).Draw(t, "names") {
			d := sandbox.Domain{Name: name}
			d.Ports = optional(rapid.SliceOfNDistinct(rapid.Uint16Min(1), 1, 3, rapid.ID)).Draw(t, "ports")
			d.Rules = optional(rapid.SliceOfN(rules(), 1, 3)).Draw(t, "rules")
			n.Allow = append(n.Allow, d)
		}
		return n
	})
}

// optional draws nil sometimes, as JSON has no difference between nil and empty.
func optional[T any](g *rapid.Generator[[]T]) *rapid.Generator[[]T] {
	return rapid.OneOf(rapid.Just([]T(nil)), g)
}

// cidrs draws ranges of IPv4, and of more.
func cidrs(more ...string) *rapid.Generator[[]string] {
	return optional(rapid.SliceOfNDistinct(rapid.SampledFrom(append([]string{
		"0.0.0.0/0", "203.0.113.0/24", "198.51.100.7", "192.0.2.128/25",
	}, more...)), 1, 4, rapid.ID))
}

func rules() *rapid.Generator[sandbox.Rule] {
	return rapid.Custom(func(t *rapid.T) sandbox.Rule {
		r := sandbox.Rule{Match: matches().Draw(t, "match")}
		switch rapid.IntRange(0, 4).Draw(t, "action") {
		case 0:
			r.SetHeaders = map[string]string{}
			for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"Authorization", "x-api-key", "Cookie"}), 1, 3, rapid.ID).Draw(t, "headers") {
				r.SetHeaders[name] = SecretPrefix + rapid.StringMatching(`[!-~]{1,20}`).Draw(t, "secret")
			}
			r.Scrub = rapid.Bool().Draw(t, "scrub")
		case 1:
			r.ForwardURL = rapid.SampledFrom([]string{"https://proxy.example/base", "http://203.0.113.9:8080"}).Draw(t, "forward")
		case 2:
			r.Respond = &sandbox.Response{Status: rapid.SampledFrom([]int{200, 403, 599}).Draw(t, "status"), Body: rapid.String().Draw(t, "body")}
			if rapid.Bool().Draw(t, "typed") {
				r.Respond.Headers = map[string]string{"Content-Type": "text/plain"}
			}
		case 3:
			r.Deny = true
		}
		return r
	})
}

func matches() *rapid.Generator[sandbox.Match] {
	return rapid.Custom(func(t *rapid.T) sandbox.Match {
		var m sandbox.Match
		m.Methods = optional(rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"GET", "POST", "M-SEARCH"}), 1, 3, rapid.ID)).Draw(t, "methods")
		if rapid.Bool().Draw(t, "has path") {
			m.Path = texts("/").Draw(t, "path")
		}
		m.Query = optional(rapid.SliceOfN(fields(), 1, 2)).Draw(t, "query")
		m.Headers = optional(rapid.SliceOfN(fields(), 1, 2)).Draw(t, "match headers")
		return m
	})
}

func fields() *rapid.Generator[sandbox.FieldMatch] {
	return rapid.Custom(func(t *rapid.T) sandbox.FieldMatch {
		f := sandbox.FieldMatch{Key: texts("").Draw(t, "key")}
		if rapid.Bool().Draw(t, "has value") {
			f.Value = texts("").Draw(t, "value")
		}
		return f
	})
}

func texts(before string) *rapid.Generator[*sandbox.TextMatch] {
	return rapid.Custom(func(t *rapid.T) *sandbox.TextMatch {
		s := before + rapid.StringMatching(`[a-z0-9]{0,5}`).Draw(t, "text")
		switch rapid.IntRange(0, 2).Draw(t, "kind") {
		case 0:
			return &sandbox.TextMatch{Exact: &s}
		case 1:
			return &sandbox.TextMatch{Prefix: &s}
		}
		return &sandbox.TextMatch{Regex: new(fmt.Sprintf("^%s.*$", s))}
	})
}
