package claude

import (
	"encoding/json"
	"fmt"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/schema"
)

// maxStrictTools is the maximum number of strict tools in a request.
const maxStrictTools = 20

// Strict adapts the schemas of a request that constrain answers and tool inputs.
// Anthropic's limits apply to all these schemas together.
type Strict struct {
	left  schema.Limits
	tools int
}

// NewStrict returns the Strict of a new request.
func NewStrict() Strict { return Strict{left: schema.Anthropic.Limits()} }

// Tool returns the schema of a strict tool, nil if the tool cannot be strict; a warning
// gives the reason.
func (s *Strict) Tool(name string, raw json.RawMessage) (json.RawMessage, []hub.Warning) {
	fitted := schema.Anthropic.Fit(raw)
	feature := "tools." + name + ".strict"
	if s.tools == maxStrictTools && fitted.Loose == "" {
		fitted.Loose = fmt.Sprintf("a request has at most %d strict tools", maxStrictTools)
	}
	out, warnings := s.take(feature, fitted, "the tool is not strict")
	if out != nil {
		s.tools++
	}
	return out, warnings
}

// Format returns the schema for output_config.format, nil if the answer cannot be
// constrained by it; a warning gives the reason.
func (s *Strict) Format(f *hub.Format) (json.RawMessage, []hub.Warning) {
	return s.take("responseFormat", schema.Anthropic.Fit(schema.Describe(f.Schema, f.Description)), "the model is made to call a tool")
}

// InputSchema returns a schema adapted for a tool without strict.
func InputSchema(raw json.RawMessage, feature string) (json.RawMessage, []hub.Warning) {
	return described(feature, schema.AnthropicTool.Fit(raw))
}

func (s *Strict) take(feature string, fitted schema.Fitted, instead string) (json.RawMessage, []hub.Warning) {
	switch {
	case fitted.Loose != "":
		return nil, warn(feature, "the provider does not take the schema as a strict one: %s; %s", fitted.Loose, instead)
	case !s.left.Spend(fitted.Counts):
		return nil, warn(feature, "the strict schemas of the request have too many optional properties or unions for the provider; %s", instead)
	}
	return described(feature, fitted)
}

// described returns the adapted schema, with a warning about constraints that moved into
// descriptions.
func described(feature string, fitted schema.Fitted) (json.RawMessage, []hub.Warning) {
	if len(fitted.Described) == 0 {
		return fitted.Schema, nil
	}
	return fitted.Schema, warn(feature, "%s", fitted.Warning())
}

func warn(feature, format string, args ...any) []hub.Warning {
	return []hub.Warning{{Kind: hub.WarnCompatibility, Feature: feature, Message: fmt.Sprintf(format, args...)}}
}
