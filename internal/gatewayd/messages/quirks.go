package messages

import (
	"github.com/cayhq/cay/internal/gatewayd/claude"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// The quirks of providers that speak Anthropic Messages. What a model can be asked
// is told by its name (package claude) unless a quirk says otherwise.
const (
	// QuirkVersion2026 providers are called with the anthropic-version 2026-10-21,
	// which has no sampling parameters; others with 2023-06-01.
	QuirkVersion2026 = "version-2026-10-21"
	// QuirkAdaptive models take {"type":"adaptive"} and output_config.effort in place
	// of a budget for thinking.
	QuirkAdaptive = "adaptive-thinking"
	// QuirkNoBudget models refuse budgets.
	QuirkNoBudget = "no-thinking-budget"
	// QuirkNoThinking models cannot be asked to think.
	QuirkNoThinking = "no-thinking"
	// QuirkNoSampling models refuse temperature, top_p and top_k.
	QuirkNoSampling = "no-sampling"
	// QuirkOutputFormat models know output_config.format; others are made to call a
	// tool, hub.AnswerTool.
	QuirkOutputFormat = "output-format"
	// QuirkNoOutputFormat models do not know it, whatever they are called.
	QuirkNoOutputFormat = "no-output-format"
	// QuirkMidSystem providers take messages of the role system after the first turn;
	// others get them as text of the user.
	QuirkMidSystem = "system-messages"
	// QuirkNoURLs providers do not fetch files themselves.
	QuirkNoURLs = "no-url-files"
)

// modelOf returns what the model of t can be asked, its quirks considered.
func modelOf(t *hub.Target) claude.Model {
	m := claude.Of(t.Model)
	if !m.Known {
		m.Thinks = true // a provider of other models that speaks the format
	}
	m.Adaptive = m.Adaptive || t.Is(QuirkAdaptive)
	m.Thinks = (m.Thinks || m.Adaptive) && !t.Is(QuirkNoThinking)
	m.Formats = (m.Formats || t.Is(QuirkOutputFormat)) && !t.Is(QuirkNoOutputFormat)
	return m
}

// noBudget reports whether budgets are refused.
func noBudget(m claude.Model, t *hub.Target) bool { return m.Free || t.Is(QuirkNoBudget) }

// noSampling reports whether sampling parameters are refused.
func noSampling(m claude.Model, t *hub.Target) bool {
	return m.Free || t.Is(QuirkNoSampling) || t.Is(QuirkVersion2026)
}
