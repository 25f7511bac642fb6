// Package aisdk is the wire format of the AI SDK's gateway provider
// (@ai-sdk/gateway 2, 3 and 4, which AI SDK 5, 6 and 7 use for plain model names):
// one JSON request per call, whose body is the SDK's own call options, and the
// SDK's own result as the answer, or its stream parts as Server-Sent Events.
//
// Its language models have three versions, told apart by a header and never by the
// path. A client names its version in a header of each kind of model (see Version),
// and reads an answer of another version wrongly or not at all, so all that is
// written is written for a version:
//
//	                2 (AI SDK 5)           3 (AI SDK 6)        4 (AI SDK 7)
//	finish reason   a word                 {unified, raw}      {unified, raw}
//	usage           flat                   nested              nested
//	warnings        unsupported-setting    unsupported         unsupported
//	files           base64                 base64              {type, data}
//	keep-alive      comments               comments            ping parts
//
// What is read is told apart by its own shape, and any shape is taken of any
// version. The words of package hub are those of version 4, so that what comes
// from such a client arrives whole; what an older client has no word for is given
// to it as what is closest, and said in a warning.
//
// Besides language models the package has the embedding, image and reranking
// models of the protocol (ReadEmbed, ReadImage, ReadRerank), the list of models
// (Models) and the accounts the client asks for (Credits, Generation, Report).
//
// Facts about the protocol are from the types and the sources of the published
// npm packages ai, @ai-sdk/gateway and @ai-sdk/provider.
package aisdk

import (
	"net/http"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// The headers of a request. The version is in one of its own for each kind of
// model, which the client sends with every request.
const (
	HeaderModel         = "Ai-Model-Id"          // of all kinds but language models
	HeaderLanguageModel = "Ai-Language-Model-Id" // creator/model
	headerStreaming     = "Ai-Language-Model-Streaming"
	headerVersion       = "Ai-Language-Model-Specification-Version"
	headerEmbedVersion  = "Ai-Embedding-Model-Specification-Version"
	headerImageVersion  = "Ai-Image-Model-Specification-Version"
	headerRerankVersion = "Ai-Reranking-Model-Specification-Version"
	newest              = "4"
	versions            = "2, 3 and 4"
)

// Format is the wire format.
type Format struct{}

var _ hub.Surface = (*Format)(nil)

// New returns the format.
func New() *Format { return &Format{} }

// Name implements hub.Surface.
func (*Format) Name() string { return "aisdk" }

// Version returns the version that a request is in, for hub.Answer: "2", "3" or
// "4"; the newest if it has no header that says so. Any other is an *hub.Error.
func Version(head http.Header) (string, error) {
	for _, name := range []string{headerVersion, headerEmbedVersion, headerImageVersion, headerRerankVersion} {
		switch v := head.Get(name); v {
		case "":
		case "2", "3", "4":
			return v, nil
		default:
			return "", &hub.Error{
				Kind: hub.BadRequest, Param: name,
				Message: "this gateway speaks the versions " + versions + " of the AI SDK's protocol, not " + clip(v) + ": update the gateway, or use ai 5, 6 or 7",
			}
		}
	}
	return newest, nil
}

// Model returns the name of the model a request is for; empty if it has none.
func Model(head http.Header) string {
	if name := head.Get(HeaderLanguageModel); name != "" {
		return name
	}
	return head.Get(HeaderModel)
}

// GatewayOptions returns what the body of a request asks of the gateway itself,
// the JSON of its providerOptions.gateway; nil if there is none.
func GatewayOptions(body []byte) []byte {
	v := gjson.GetBytes(body, "providerOptions.gateway")
	if !v.Exists() || v.Type == gjson.Null {
		return nil
	}
	return []byte(v.Raw)
}

// clip quotes what a client sent, for a message, and shortens it.
func clip(s string) string {
	const most = 64
	if len(s) > most {
		s = s[:most] + "…"
	}
	return string(gjson.AppendJSONString(nil, s))
}
