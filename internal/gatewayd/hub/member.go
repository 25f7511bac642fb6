package hub

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Member is a request member that only one provider's formats have a place for. Its value
// is in Call.Options, where that provider's formats read it.
type Member struct {
	Name             string // the client's name: logit_bias
	Provider, Option string // the place of the value: openai, logitBias
}

// Own records a request member and stores its value as an option of the provider. An
// empty value (null, false, an empty list or object) is stored without a warning.
func (c *Call) Own(name, provider, option string, value json.RawMessage) {
	c.Options.SetRaw(provider, option, value)
	switch string(value) {
	case "null", "false", "{}", "[]", `""`:
		return
	}
	c.Members = append(c.Members, Member{name, provider, option})
}

// Unheard returns warnings about the members that an Upstream has no place for.
func (c *Call) Unheard(heard func(Member) bool) []Warning {
	var all []Warning
	for _, m := range c.Members {
		if !heard(m) {
			all = append(all, Warning{Kind: WarnUnsupported, Feature: m.Name, Message: fmt.Sprintf("only formats of %s have it: it is left out", m.Provider)})
		}
	}
	return all
}

// Stops returns the stop sequences that a provider accepts: at most most of them (0: any
// number), none empty, and no blank ones if blank is false.
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
