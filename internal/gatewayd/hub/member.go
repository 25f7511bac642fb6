package hub

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Member is a member of a request that one provider's formats alone have a place for. Its
// value is in Call.Options, where that provider's formats look.
type Member struct {
	Name             string // as the client wrote it: logit_bias
	Provider, Option string // where the value is: openai, logitBias
}

// Own notes a member of a request and keeps its value as an option of the provider's. A value
// that asks for nothing (null, false, nothing in it) is kept and needs no warning.
func (c *Call) Own(name, provider, option string, value json.RawMessage) {
	c.Options.SetRaw(provider, option, value)
	switch string(value) {
	case "null", "false", "{}", "[]", `""`:
		return
	}
	c.Members = append(c.Members, Member{name, provider, option})
}

// Unheard warns of the members of a request that an Upstream has no place for.
func (c *Call) Unheard(heard func(Member) bool) []Warning {
	var all []Warning
	for _, m := range c.Members {
		if !heard(m) {
			all = append(all, Warning{Kind: WarnUnsupported, Feature: m.Name, Message: fmt.Sprintf("only formats of %s have it: it is left out", m.Provider)})
		}
	}
	return all
}

// Stops returns the stop sequences that a provider takes: at most a number of them (0: any),
// none empty, and none of white space alone if the provider refuses blank ones.
func (c *Call) Stops(most int, blank bool) ([]string, []Warning) {
	var taken []string
	var warnings []Warning
	warn := func(format string, args ...any) {
		warnings = append(warnings, Warning{Kind: WarnUnsupported, Feature: "stopSequences", Message: fmt.Sprintf(format, args...)})
	}
	for _, s := range c.StopSequences {
		switch {
		case s == "" || !blank && strings.TrimSpace(s) == "":
			warn("%q has nothing but white space, which the provider does not take: it is left out", s)
		case most > 0 && len(taken) == most:
			warn("the provider takes %d of them: %.40q is left out", most, s)
		default:
			taken = append(taken, s)
		}
	}
	return taken, warnings
}
