package responses

import "strings"

// Quirks of servers that speak the Responses API, for hub.Target.
const (
	// QuirkReasoning says that all models think: encrypted reasoning is asked for.
	// Without it that goes by the name of the model, since OpenAI refuses it for
	// models that do not think.
	QuirkReasoning = "reasoning-models"
	// QuirkHostedCustomTools says that custom_tool_call items are of tools that the
	// provider ran itself, as xAI's searches. Where the call is known, that goes by
	// whether it has such a tool.
	QuirkHostedCustomTools = "hosted-custom-tools"
	// QuirkSystemRole says that the server knows no developer messages.
	QuirkSystemRole = "system-role"
	// QuirkPlainInclude says that the server refuses values of include other than
	// reasoning.encrypted_content.
	QuirkPlainInclude = "plain-include"
)

// thinks reports whether a model of that name thinks, and so refuses temperature
// and top_p and has reasoning to encrypt: OpenAI's o1 and later, gpt-5 and later
// but their chat versions, and codex.
func thinks(model string) bool {
	if i := strings.LastIndexByte(model, '/'); i >= 0 {
		model = model[i+1:]
	}
	if strings.Contains(model, "-chat") {
		return false
	}
	if strings.HasPrefix(model, "codex-") || strings.HasPrefix(model, "computer-use") || strings.HasPrefix(model, "gpt-oss") {
		return true
	}
	if rest, ok := strings.CutPrefix(model, "gpt-"); ok {
		return len(rest) > 0 && (rest[0] >= '5' && rest[0] <= '9' || len(rest) > 1 && rest[0] == '1' && rest[1] >= '0' && rest[1] <= '9')
	}
	return len(model) > 1 && model[0] == 'o' && model[1] >= '1' && model[1] <= '9'
}

// encrypts reports whether a model has reasoning to encrypt.
func encrypts(model string) bool {
	return thinks(model) || strings.HasPrefix(model, "grok-") && !strings.Contains(model, "non-reasoning")
}

// refusesSampling reports whether sampling parameters would be refused. Models from
// gpt-5.1 on take them if the effort is none.
func refusesSampling(model, effort string) bool {
	if strings.HasPrefix(model, "gpt-oss") || !thinks(model) {
		return false
	}
	return effort != "none" || !strings.HasPrefix(model, "gpt-5.")
}
