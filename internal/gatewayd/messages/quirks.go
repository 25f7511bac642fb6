package messages

import (
	"github.com/cayhq/cay/internal/gatewayd/claude"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// The quirks of providers with Anthropic's format. A model's features follow from its
// name (package claude) unless a quirk overrides them.
const (
	// QuirkVersion2026 providers get the anthropic-version 2026-10-21, which has no
	// sampling parameters; others get 2023-06-01.
	QuirkVersion2026 = "version-2026-10-21"
	// QuirkAdaptive models accept {"type":"adaptive"} and output_config.effort instead of
	// a thinking budget.
	QuirkAdaptive = "adaptive-thinking"
	// QuirkNoBudget models refuse thinking budgets.
	QuirkNoBudget = "no-thinking-budget"
	// QuirkNoThinking models do not support thinking.
	QuirkNoThinking = "no-thinking"
	// QuirkNoSampling models refuse temperature, top_p and top_k.
	QuirkNoSampling = "no-sampling"
	// QuirkOutputFormat models support output_config.format; for other models a tool,
	// hub.AnswerTool, takes its place.
	QuirkOutputFormat = "output-format"
	// QuirkNoOutputFormat models do not support output_config.format, whatever their
	// name.
	QuirkNoOutputFormat = "no-output-format"
	// QuirkMidSystem providers accept messages of the role system after the first turn;
	// for other providers such messages become user text.
	QuirkMidSystem = "system-messages"
	// QuirkNoURLs providers do not fetch files by URL.
	QuirkNoURLs = "no-url-files"
)

// modelOf returns the features of t's model, including quirks.
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

// noBudget reports whether thinking budgets are refused.
func noBudget(m claude.Model, t *hub.Target) bool { return m.Free || t.Is(QuirkNoBudget) }

// noSampling reports whether sampling parameters are refused.
func noSampling(m claude.Model, t *hub.Target) bool {
	return m.Free || t.Is(QuirkNoSampling) || t.Is(QuirkVersion2026)
}
