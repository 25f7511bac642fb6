package policy_test

import (
	"strings"
	"testing"

	"github.com/cayhq/cay/sandbox"
)

func TestPolicy_HandlesName(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		pattern, name string
		want          bool
	}{
		{"api.example.com", "api.example.com", true},
		{"API.Example.com", "api.example.com", true},
		{"api.example.com", "api.example.org", false},
		{"example.com", "api.example.com", false},
		{"*.example.com", "api.example.com", true},
		{"*.example.com", "a.b.example.com", true},
		{"*.example.com", "example.com", false},
		{"api.*.com", "api.example.com", true},
		{"api.*.com", "api.com", false},
		{"a*b*c", "aXbYbZc", true},
		{"a*b*c", "ac", false},
		{"ab*ba", "aba", false},
		{"**", "x", true},
		{"*", "anything.test", true},
		{"x*", "xy", true},
		{"x*", "yx", false},
		{strings.Repeat("*a", 100) + "b", strings.Repeat("a", 250), false},
	} {
		p := compile(t, sandbox.Network{Mode: sandbox.DenyAll, Handled: []string{"other.test", tt.pattern}})
		if got := p.HandlesName(tt.name); got != tt.want {
			t.Errorf("%s handles %s: %t", tt.pattern, tt.name, got)
		}
		if !p.Handles() || !p.Intercepts() || p.HandlesAll() != (tt.pattern == "*") {
			t.Errorf("%s: handles %t, all %t, intercepts %t", tt.pattern, p.Handles(), p.HandlesAll(), p.Intercepts())
		}
	}
	if p := compile(t, sandbox.Network{}); p.Handles() || p.HandlesAll() || p.HandlesName("x") {
		t.Error("a policy without names handles some")
	}
}
