package ident

import (
	"regexp"
	"strings"
	"testing"
)

func TestNames(t *testing.T) {
	valid := regexp.MustCompile(`^[a-z]+-[a-z]+-[0-9a-z]{4}$`)
	seen := make(map[string]bool)
	for range 2000 {
		n := NewName()
		if !valid.MatchString(n) {
			t.Fatalf("name %q", n)
		}
		seen[n] = true
		id := NewSandbox()
		if seen[id] || len(id) != 24 {
			t.Fatalf("id %q", id)
		}
		seen[id] = true
	}
	if len(seen) < 3990 {
		t.Fatalf("only %d of 4000 names and ids differ", len(seen))
	}
}

func TestHostname(t *testing.T) {
	for name, want := range map[string]string{
		"amber-reef-x1y2": "amber-reef-x1y2", "My_Box": "my-box", "_-_": "sandbox", "-a-": "a",
		strings.Repeat("a", 62) + "_b": strings.Repeat("a", 62), strings.Repeat("x", 128): strings.Repeat("x", 63),
	} {
		if got := Hostname(name); got != want {
			t.Errorf("host name of %q is %q, want %q", name, got, want)
		}
	}
}
