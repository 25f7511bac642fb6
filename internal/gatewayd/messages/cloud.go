package messages

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Clouds serve Claude models in this format at their own addresses: the model is in the
// path, the version of the API in the body.
const (
	// QuirkVertex models are at Google Vertex AI, with a base URL that ends in
	// /publishers/anthropic.
	// https://cloud.google.com/vertex-ai/generative-ai/docs/partner-models/claude/use-claude
	QuirkVertex = "claude-on-vertex"
	// QuirkBedrock models are called with Amazon Bedrock's InvokeModel, whose streams
	// wrap events in frames (converse.Chunks).
	// https://docs.aws.amazon.com/bedrock/latest/userguide/model-parameters-anthropic-claude-messages.html
	QuirkBedrock = "claude-on-bedrock"
)

// The API versions that clouds require in the body.
const (
	versionVertex  = `"vertex-2023-10-16"`
	versionBedrock = `"bedrock-2023-05-31"`
)

// Address converts a request of this format to the form that t's cloud requires, if t is
// at a cloud: out is for /messages or /messages/count_tokens; betas are the values of the
// client's header anthropic-beta in a passed request. It may change out.
func Address(t *hub.Target, out *hub.Outgoing, betas []string, stream bool) *hub.Outgoing {
	switch {
	case t.Is(QuirkVertex):
		return vertex(t, out, stream)
	case t.Is(QuirkBedrock):
		return bedrock(t, out, betas, stream)
	}
	return out
}

func vertex(t *hub.Target, out *hub.Outgoing, stream bool) *hub.Outgoing {
	out.Body = set(out.Body, "anthropic_version", versionVertex)
	if strings.HasSuffix(out.Path, "/count_tokens") { // the model stays in the body
		out.Path = "/models/count-tokens:rawPredict"
		return out
	}
	method := ":rawPredict"
	if stream {
		method = ":streamRawPredict"
	}
	out.Body = remove(out.Body, "model")
	out.Path = "/models/" + url.PathEscape(t.Model) + method
	return out
}

func bedrock(t *hub.Target, out *hub.Outgoing, betas []string, stream bool) *hub.Outgoing {
	method := "/invoke"
	if stream {
		method = "/invoke-with-response-stream"
	}
	out.Body = set(remove(remove(out.Body, "model"), "stream"), "anthropic_version", versionBedrock)
	if own := out.Head["Anthropic-Beta"]; own != nil {
		betas = own
	}
	var list []byte
	for _, line := range betas {
		for beta := range strings.SplitSeq(line, ",") {
			if beta = strings.TrimSpace(beta); beta != "" {
				list = gjson.AppendJSONString(append(list, ','), beta)
			}
		}
	}
	if list != nil && !gjson.GetBytes(out.Body, "anthropic_beta").Exists() {
		list[0] = '['
		out.Body = set(out.Body, "anthropic_beta", string(append(list, ']')))
	}
	out.Head = http.Header{}
	if stream {
		out.Head.Set("Accept", "application/vnd.amazon.eventstream")
	}
	// Amazon signs the path in the escaping of its SDKs, which escape colons, too.
	out.Path = "/model/" + strings.ReplaceAll(url.PathEscape(t.Model), ":", "%3A") + method
	return out
}

// set and remove change a member of an object, which cannot fail for valid JSON objects.
func set(body []byte, name, raw string) []byte {
	changed, err := sjson.SetRawBytes(body, name, []byte(raw))
	if err != nil {
		return body
	}
	return changed
}

func remove(body []byte, name string) []byte {
	changed, err := sjson.DeleteBytes(body, name)
	if err != nil {
		return body
	}
	return changed
}
