package schema

import (
	"encoding/json"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// ForOpenAI returns a schema adapted to OpenAI, and whether to send it as strict; strict
// is the caller's wish, nil means strict if the schema allows it. The warnings name the
// feature.
func ForOpenAI(raw json.RawMessage, feature string, strict *bool) (json.RawMessage, bool, []hub.Warning) {
	var warnings []hub.Warning
	warn := func(message string) {
		warnings = append(warnings, hub.Warning{Kind: hub.WarnCompatibility, Feature: feature, Message: message})
	}
	if strict == nil || *strict {
		fitted := OpenAI.Fit(raw)
		if fitted.Loose == "" {
			if len(fitted.Described) > 0 {
				warn(fitted.Warning())
			}
			return fitted.Schema, true, warnings
		}
		if strict != nil {
			warn("the provider does not take the schema as a strict one: " + fitted.Loose + "; it is not strict")
		}
	}
	fitted := OpenAITool.Fit(raw)
	if len(fitted.Described) > 0 {
		warn(fitted.Warning())
	}
	return fitted.Schema, false, warnings
}
