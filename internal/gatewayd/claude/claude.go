// Package claude knows which features each generation of Anthropic's models supports;
// only the models' names, not the providers' answers, reveal the generation. Both formats
// for these models, messages and converse, use the package.
package claude

import (
	"regexp"
	"strconv"
)

// Model holds the features of a model. The zero value is an unknown model, which is
// treated like the first Claude models.
type Model struct {
	// Known says that the model is Anthropic's.
	Known bool
	// Thinks says that the model supports thinking: from 3.7 on.
	Thinks bool
	// Adaptive models accept {"type":"adaptive"} and output_config.effort instead of a
	// budget: from 4.6 on.
	Adaptive bool
	// Free models refuse budgets and sampling parameters (400), and support the effort
	// xhigh: from 4.7 on.
	Free bool
	// AlwaysThinks says that {"type":"disabled"} is refused: from 5 on.
	AlwaysThinks bool
	// OneSampling models refuse temperature and top_p together: from 4.1 on.
	OneSampling bool
	// Formats says that the model supports output_config.format and strict tools: from
	// 4.5 on.
	Formats bool
}

// name matches claude-opus-4-7, claude-sonnet-4-5-20250929, claude-3-5-haiku and the
// variants of Bedrock and Vertex AI: us.anthropic.claude-opus-4-6-v1:0,
// claude-sonnet-4@20250514. Dates have eight digits, minor versions one or two.
var name = regexp.MustCompile(`claude-(?:[a-z]+-)?(\d{1,2})(?:[-.](\d{1,2}))?(?:[^0-9]|$)`)

// Of returns the features of a model, given its name.
func Of(model string) Model {
	m := name.FindStringSubmatch(model)
	if m == nil {
		return Model{}
	}
	major, _ := strconv.Atoi(m[1]) // one or two digits, cannot fail
	minor, _ := strconv.Atoi(m[2]) // the same, or none: 0
	v := major*100 + minor
	return Model{
		Known: true, Thinks: v >= 307, Adaptive: v >= 406, Free: v >= 407, AlwaysThinks: v >= 500,
		OneSampling: v >= 401, Formats: v >= 405,
	}
}
