package converse

import (
	"strings"

	"github.com/cayhq/cay/internal/gatewayd/claude"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// The quirks of what is called through Converse. What a model can be asked is told
// by its id (anthropic.claude-..., amazon.nova-..., openai.gpt-oss-...) unless a
// quirk says otherwise.
const (
	// QuirkCache models know cache points; Claude and Nova do anyway.
	QuirkCache = "cache-points"
	// QuirkOutputFormat models take Anthropic's output_config.format; Claude 4.5 and 4.6
	// do. Bedrock refuses it for newer ones, as the AI SDK's adapter for Bedrock says, and others do not
	// know it: they are made to call a tool, hub.AnswerTool.
	QuirkOutputFormat = "output-format"
	// QuirkNoOutputFormat models do not, whatever they are called.
	QuirkNoOutputFormat = "no-output-format"
)

// model is what a model can be asked.
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
