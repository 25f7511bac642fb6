// Package claude knows what generations of Anthropic's models can be asked, which
// their names tell and no answer of a provider does. The formats messages and
// converse both speak to them.
package claude

import (
	"regexp"
	"strconv"
)

// Model is what a model can be asked. The zero value is a model we know nothing
// of, which is asked as the first ones were.
type Model struct {
	// Known says that it is one of Anthropic's.
	Known bool
	// Thinks says that it can be asked to think: from 3.7 on.
	Thinks bool
	// Adaptive ones take {"type":"adaptive"} and output_config.effort in place of a
	// budget: from 4.6 on.
	Adaptive bool
	// Free ones refuse budgets and sampling parameters (400), and know the effort
	// xhigh: from 4.7 on.
	Free bool
	// AlwaysThinks says that {"type":"disabled"} is refused: from 5 on.
	AlwaysThinks bool
	// OneSampling refuse temperature and top_p together: from 4.1 on.
	OneSampling bool
	// Formats says that output_config.format and strict tools work: from 4.5 on.
	Formats bool
}

// name matches claude-opus-4-7, claude-sonnet-4-5-20250929, claude-3-5-haiku and what
// Bedrock and Vertex AI make of them: us.anthropic.claude-opus-4-6-v1:0,
// claude-sonnet-4@20250514. Dates have eight digits, minor versions one or two.
var name = regexp.MustCompile(`claude-(?:[a-z]+-)?(\d{1,2})(?:[-.](\d{1,2}))?(?:[^0-9]|$)`)

// Of returns what the model of a name can be asked.
func Of(model string) Model {
	m := name.FindStringSubmatch(model)
	if m == nil {
		return Model{}
	}
	major, _ := strconv.Atoi(m[1]) // one or two digits
	minor, _ := strconv.Atoi(m[2]) // the same, or none: 0
	v := major*100 + minor
	return Model{
		Known: true, Thinks: v >= 307, Adaptive: v >= 406, Free: v >= 407, AlwaysThinks: v >= 500,
		OneSampling: v >= 401, Formats: v >= 405,
	}
}
