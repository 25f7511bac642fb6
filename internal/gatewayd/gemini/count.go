package gemini

import (
	"encoding/json"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// WriteCount encodes a countTokens request for the prompt and tools of a call. Errors and
// warnings: see WriteCall.
func (*Format) WriteCount(c *hub.Call, t *hub.Target) (*hub.Outgoing, []hub.Warning, error) {
	w := newCallWriter(c, t)
	if err := w.write(); err != nil {
		return nil, nil, err
	}
	request := object{"contents": w.body.Contents}
	if w.body.SystemInstruction != nil {
		request["systemInstruction"] = w.body.SystemInstruction
	}
	if w.body.Tools != nil {
		request["tools"] = w.body.Tools
	}
	body := any(request)
	if !t.Is(QuirkVertex) {
		request["model"] = modelName(t)
		body = object{"generateContentRequest": request}
	}
	return &hub.Outgoing{Path: path(t, "countTokens"), Body: hub.MustEncode(body)}, w.warnings, nil
}

// ReadCount decodes the answer of countTokens. Errors: UpstreamFailed.
func (*Format) ReadCount(t *hub.Target, body []byte) (int64, error) {
	var answer struct{ TotalTokens *int64 }
	if err := json.Unmarshal(body, &answer); err != nil || answer.TotalTokens == nil {
		return 0, broken(t, "the count of tokens makes no sense", err)
	}
	return *answer.TotalTokens, nil
}
