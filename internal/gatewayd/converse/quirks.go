package converse

import (
	"strings"

	"github.com/cayhq/cay/internal/gatewayd/claude"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// The quirks of models called through Converse. A model's features follow from its id
// (anthropic.claude-..., amazon.nova-..., openai.gpt-oss-...) unless a quirk overrides
// them.
const (
	// QuirkCache models support cache points; Claude and Nova support them without the
	// quirk.
	QuirkCache = "cache-points"
	// QuirkOutputFormat models support Anthropic's output_config.format; Claude 4.5 and
	// 4.6 support it without the quirk. Bedrock refuses it for newer models, according to
	// the AI SDK's adapter for Bedrock, and other models do not know it; for these a
	// tool, hub.AnswerTool, takes its place.
	QuirkOutputFormat = "output-format"
	// QuirkNoOutputFormat models do not support output_config.format, whatever their
	// name.
	QuirkNoOutputFormat = "no-output-format"
)

// model holds the features of a model.
type model struct {
	claude.Model
	nova, gptOSS bool
	cache        bool
}

func modelOf(t *hub.Target) model {
	m := model{Model: claude.Of(t.Model), nova: strings.Contains(t.Model, "amazon.nova"), gptOSS: strings.Contains(t.Model, "openai.gpt-oss")}
	m.Formats = (m.Formats && !m.Free || t.Is(QuirkOutputFormat)) && !t.Is(QuirkNoOutputFormat)
	m.cache = m.Known || m.nova || t.Is(QuirkCache)
	return m
}
