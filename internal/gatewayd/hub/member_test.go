package hub_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

func TestCall_Stops(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		stops    []string
		most     int
		blank    bool
		want     string
		warnings int
	}{
		{nil, 0, true, "", 0},
		{[]string{"a", "b"}, 0, false, "a|b", 0},
		{[]string{"a", "", "\n", " b"}, 0, true, "a|\n| b", 1},
		{[]string{"a", "", "\n", " b"}, 0, false, "a| b", 2},
		{[]string{"", "a", "b", "c"}, 2, true, "a|b", 2},
	} {
		c := hub.Call{StopSequences: tt.stops}
		got, warnings := c.Stops(tt.most, tt.blank)
		if strings.Join(got, "|") != tt.want || len(warnings) != tt.warnings {
			t.Errorf("%q: %q, %v", tt.stops, got, warnings)
		}
	}
}

// Empty values cause no warning.
func TestCall_Own(t *testing.T) {
	t.Parallel()
	var c hub.Call
	for name, value := range map[string]string{"a": "false", "b": "null", "c": "{}", "d": "[]", "e": `""`, "f": "true"} {
		c.Own(name, "openai", name, json.RawMessage(value))
	}
	warnings := c.Unheard(func(m hub.Member) bool { return m.Provider == "anthropic" })
	if len(c.Options["openai"]) != 6 || len(warnings) != 1 || warnings[0].Feature != "f" || warnings[0].Message == "" {
		t.Errorf("%v, %v", c.Options, warnings)
	}
	if heard := c.Unheard(func(m hub.Member) bool { return m.Provider == "openai" }); heard != nil {
		t.Errorf("%v", heard)
	}
}
