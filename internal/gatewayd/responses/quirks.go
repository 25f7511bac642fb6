package responses

import "strings"

// Quirks of servers that speak the Responses API, for hub.Target.
const (
	// QuirkReasoning says that all models are reasoning models: encrypted reasoning is
	// always requested. Without the quirk the model's name decides, because OpenAI
	// refuses the request for other models.
	QuirkReasoning = "reasoning-models"
	// QuirkHostedCustomTools says that custom_tool_call items belong to tools that the
	// provider ran itself, such as xAI's searches. If the call is known, an item with the
	// name of a client's custom tool is the client's.
	QuirkHostedCustomTools = "hosted-custom-tools"
	// QuirkSystemRole says that the server does not support developer messages.
	QuirkSystemRole = "system-role"
	// QuirkPlainInclude says that the server refuses values of include other than
	// reasoning.encrypted_content.
	QuirkPlainInclude = "plain-include"
)

// thinks reports whether a model is a reasoning model by its name; such models refuse
// temperature and top_p and have reasoning to encrypt: OpenAI's o1 and later, gpt-5 and
// later except chat versions, and codex.
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

// refusesSampling reports whether the provider refuses sampling parameters. Models from
// gpt-5.1 on accept them if the effort is none.
func refusesSampling(model, effort string) bool {
	if strings.HasPrefix(model, "gpt-oss") || !thinks(model) {
		return false
	}
	return effort != "none" || !strings.HasPrefix(model, "gpt-5.")
}
