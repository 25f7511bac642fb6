// Package aisdk implements the wire format of the AI SDK's gateway provider
// (@ai-sdk/gateway 2, 3 and 4, which AI SDK 5, 6 and 7 use for plain model names): a call
// is one JSON request whose body is the SDK's call options, and the answer is the SDK's
// result, or its stream parts as Server-Sent Events.
//
// The format has three versions of language models, which a header distinguishes; the
// path is the same. A client names its version in a header per kind of model (see
// Version), and misreads or rejects other versions, so every answer is written for the
// client's version:
//
//	                2 (AI SDK 5)           3 (AI SDK 6)        4 (AI SDK 7)
//	finish reason   a word                 {unified, raw}      {unified, raw}
//	usage           flat                   nested              nested
//	warnings        unsupported-setting    unsupported         unsupported
//	files           base64                 base64              {type, data}
//	keep-alive      comments               comments            ping parts
//
// Requests are recognized by their form, so any version's form is accepted from clients
// of any version. Package hub uses the words of version 4, so requests of version 4
// clients are decoded without loss; if an older version cannot express a part, its
// clients get the closest equivalent and a warning.
//
// Besides language models the package implements the protocol's embedding, image and
// reranking models (ReadEmbed, ReadImage, ReadRerank), the list of models (Models) and
// the accounting (Credits, Generation, Report).
//
// Sources: types and source code of the published npm packages ai, @ai-sdk/gateway and
// @ai-sdk/provider.
package aisdk

import (
	"net/http"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// The headers of a request. Each kind of model has its own version header, which the
// client sends with every request.
const (
	HeaderModel         = "Ai-Model-Id"          // for all kinds except language models
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

// Version returns the version of a request, for hub.Answer: "2", "3" or "4"; the default
// without a version header is the newest. Any other value is an *hub.Error.
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

// Model returns the name of the requested model, empty if there is none.
func Model(head http.Header) string {
	if name := head.Get(HeaderLanguageModel); name != "" {
		return name
	}
	return head.Get(HeaderModel)
}

// GatewayOptions returns the request's options for the gateway itself, the JSON of
// providerOptions.gateway; nil if there are none.
func GatewayOptions(body []byte) []byte {
	v := gjson.GetBytes(body, "providerOptions.gateway")
	if !v.Exists() || v.Type == gjson.Null {
		return nil
	}
	return []byte(v.Raw)
}

// clip quotes and shortens a client's text for an error message.
func clip(s string) string {
	const most = 64
	if len(s) > most {
		s = s[:most] + "…"
	}
	return string(gjson.AppendJSONString(nil, s))
}
