package gatewayd

import (
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Kinds of models; see gateway.Model.
const (
	kindLanguage  = "language"
	kindEmbedding = "embedding"
	kindImage     = "image"
	kindReranking = "reranking"
)

// route is a path of the gateway's own origin.
type route struct {
	pattern string
	name    string      // the client's format, for records
	surface hub.Surface // encodes errors
	kind    string
	serve   func(*call) *hub.Error

	// header says that a header, not the body, names the model.
	header                     bool
	modelHeader, versionHeader string
	version                    string
	// limits are members that limit the output; the first one is the one the gateway
	// sets.
	limits []string
	// home is the provider whose clients send their own token besides the gateway's key.
	home string

	// passPath is the path of the same call below a provider's base URL.
	passPath string
	// metadataPath is the place of the gateway's metadata in a whole answer. lastEvent is
	// a text in the last event of a stream, and appendLast appends that event with the
	// gateway's metadata.
	metadataPath string
	lastEvent    []byte
	appendLast   func(dst, event, data []byte, x *exchange) []byte
}

// agents are path prefixes that identify the calling coding agent; the paths behind them
// are the same.
var agents = []string{"/claude-code", "/codex", "/cursor", "/coding-agent"}

// maxHeader is the maximum size of a request's headers. The server reads up to readHeader
// bytes, so that the error for larger headers can be in the client's format.
const (
	maxHeader  = 64 << 10
	readHeader = 1 << 20
)

// NewServer returns an HTTP server for the gateway's own origin.
func (e *Engine) NewServer() *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           e,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       5 * time.Minute, // clients keep connections for their next call
		MaxHeaderBytes:    readHeader,
		Protocols:         protocols,
		ErrorLog:          slog.NewLogLogger(e.log.Handler(), slog.LevelDebug),
		BaseContext:       e.base,
	}
}

// newRoutes returns all routes.
func (e *Engine) newRoutes() map[string]*route {
	chat, messages, responses, aisdk := e.surfaces[formatChat], e.surfaces[formatMessages], e.surfaces[formatResponses], e.surfaces["aisdk"]
	if chat == nil {
		chat = plainErrors{}
	}
	if aisdk == nil {
		aisdk = chat
	}
	all := []*route{
		{pattern: "GET /", name: "root", surface: chat, serve: (*call).root},
		{pattern: "HEAD /", name: "root", surface: chat, serve: (*call).root},
		{pattern: "GET /healthz", name: "root", surface: chat, serve: (*call).root},
		{
			pattern: "POST /v1/chat/completions", name: formatChat, surface: chat, kind: kindLanguage, serve: (*call).language,
			limits: []string{"max_tokens", "max_completion_tokens"}, home: "openai", passPath: "/chat/completions",
			metadataPath: "choices.0.message.provider_metadata", lastEvent: []byte("data: [DONE]"), appendLast: chatMetadata,
		},
	}
	if messages != nil {
		all = append(all, &route{
			pattern: "POST /v1/messages", name: formatMessages, surface: messages, kind: kindLanguage, serve: (*call).language,
			limits: []string{"max_tokens"}, home: "anthropic", passPath: "/messages",
			metadataPath: "provider_metadata", lastEvent: []byte("message_stop"), appendLast: messagesMetadata,
		}, &route{
			pattern: "POST /v1/messages/count_tokens", name: "count_tokens", surface: messages, kind: kindLanguage, serve: (*call).countTokens,
			home: "anthropic", passPath: "/messages/count_tokens",
		})
	}
	if responses != nil {
		all = append(all, &route{
			pattern: "POST /v1/responses", name: formatResponses, surface: responses, kind: kindLanguage, serve: (*call).language,
			limits: []string{"max_output_tokens"}, home: "openai", passPath: "/responses",
			metadataPath: "providerMetadata", lastEvent: []byte(`"response.`), appendLast: responsesMetadata,
		})
	}
	for _, v := range [...]struct{ path, version string }{{"/v1/ai/", "2"}, {"/v3/ai/", "3"}, {"/v4/ai/", "4"}} {
		all = append(all, &route{
			pattern: "POST " + v.path + "language-model", name: "aisdk", surface: aisdk, kind: kindLanguage, serve: (*call).language,
			header: true, modelHeader: "Ai-Language-Model-Id", versionHeader: "Ai-Language-Model-Specification-Version", version: v.version,
			limits: []string{"maxOutputTokens"},
		})
	}
	all = append(all, e.otherRoutes(chat, aisdk)...)
	routes := make(map[string]*route, len(all))
	for _, r := range all {
		routes[r.pattern] = r
	}
	return routes
}

// Routes lists the patterns of all routes, sorted.
func (e *Engine) Routes() []string {
	var all []string
	for pattern := range e.routes {
		all = append(all, pattern)
	}
	slices.Sort(all)
	return all
}

// path returns a request's path without an agent's prefix.
func path(r *http.Request) string {
	p := r.URL.Path
	for _, a := range agents {
		if rest, ok := strings.CutPrefix(p, a); ok && strings.HasPrefix(rest, "/") {
			return rest
		}
	}
	return p
}

// find returns the route of a request, or a route that only formats errors.
func (e *Engine) find(r *http.Request) *route {
	p := path(r)
	switch r.Method {
	case http.MethodPost: // the common case, without a concatenation
		if p == "/v1/chat/completions" {
			return e.routes["POST /v1/chat/completions"]
		}
	}
	if found := e.routes[r.Method+" "+p]; found != nil {
		return found
	}
	if r.Method == http.MethodGet && strings.HasPrefix(p, "/v1/models/") {
		return e.routes["GET /v1/models/{creator}/{model}"]
	}
	errors := e.routes["POST /v1/chat/completions"]
	for prefix, known := range map[string]string{"/v1/messages": "POST /v1/messages", "/v1/responses": "POST /v1/responses"} {
		if strings.HasPrefix(p, prefix) && e.routes[known] != nil {
			errors = e.routes[known]
		}
	}
	for _, prefix := range [...]string{"/v1/ai/", "/v2/ai/", "/v3/ai/", "/v4/ai/"} {
		if strings.HasPrefix(p, prefix) {
			errors = e.routes["POST /v4/ai/language-model"]
		}
	}
	return &route{surface: errors.surface, version: errors.version}
}

// route returns the route of a request. With an error, the route is the one to format the
// error.
func (e *Engine) route(r *http.Request) (*route, *hub.Error) {
	found := e.find(r)
	size := 0
	for name, values := range r.Header {
		size += len(name)
		for _, v := range values {
			size += len(v) + 4
		}
	}
	switch {
	case size > maxHeader:
		return found, &hub.Error{Kind: hub.TooLarge, Code: "headers_too_large", Message: "the headers of the request are larger than 64 KiB"}
	case !api.HostAllowed(r, e.cfg.Hosts):
		return found, &hub.Error{Kind: hub.Forbidden, Code: "wrong_host", Message: "the gateway does not serve the host " + r.Host}
	case e.origin.Check(r) != nil:
		return found, &hub.Error{Kind: hub.Forbidden, Code: "wrong_origin", Message: "the request comes from a page of another site"}
	case found.serve == nil:
		return found, e.unknown(r)
	}
	return found, nil
}

// notServed are kinds of the AI SDK that are not served.
var notServed = []string{"speech-model", "transcription-model", "video-model", "decision-model", "evaluation-model", "realtime-model", "batch"}

func (e *Engine) unknown(r *http.Request) *hub.Error {
	p := path(r)
	for _, kind := range notServed {
		if strings.Contains(p, "/ai/"+kind) {
			return &hub.Error{Kind: hub.BadRequest, Code: "not_supported", Message: "this gateway does not serve " + kind}
		}
	}
	if strings.HasPrefix(p, "/v1/realtime") {
		return &hub.Error{Kind: hub.BadRequest, Code: "not_supported", Message: "this gateway does not serve realtime models"}
	}
	return &hub.Error{Kind: hub.NotFound, Code: "unknown_url", Message: "the gateway has no route " + r.Method + " " + clip(r.URL.Path)}
}

// root describes the gateway.
func (c *call) root() *hub.Error {
	c.out.whole(http.StatusOK, "application/json", []byte(`{"service":"cay gateway","version":"`+cay.Version()+`"}`+"\n"))
	return nil
}

// chatMetadata adds an event with the gateway's metadata before [DONE], because the cost
// is not known earlier.
func chatMetadata(dst, event, _ []byte, x *exchange) []byte {
	dst = append(dst, `data: {"id":`...)
	dst = gjson.AppendJSONString(dst, x.cl.rq.id)
	dst = append(dst, `,"object":"chat.completion.chunk","created":`...)
	dst = appendInt(dst, x.cl.rq.begun.Unix())
	dst = append(dst, `,"model":`...)
	dst = gjson.AppendJSONString(dst, x.cl.rq.model)
	dst = append(dst, `,"choices":[],"provider_metadata":`...)
	dst = append(dst, wrapMetadata(x.host.metadata())...)
	dst = append(dst, "}\n\n"...)
	return append(dst, event...)
}

func messagesMetadata(dst, event, data []byte, x *exchange) []byte {
	return withMember(dst, event, data, "message_stop", "provider_metadata", x)
}

func responsesMetadata(dst, event, data []byte, x *exchange) []byte {
	return withMember(dst, event, data, gjson.GetBytes(data, "type").Str, "response.providerMetadata", x)
}

// withMember appends a named event with the gateway's metadata in its data.
func withMember(dst, event, data []byte, name, path string, x *exchange) []byte {
	with, err := sjson.SetRawBytes(data, path, wrapMetadata(x.host.metadata()))
	if err != nil {
		return append(dst, event...)
	}
	dst = append(dst, "event: "+name+"\ndata: "...)
	return append(append(dst, with...), "\n\n"...)
}

// isLast reports whether data belongs to the last event of a stream.
func isLast(rt *route, data []byte) bool {
	if rt.name == formatChat {
		return string(data) == "[DONE]"
	}
	switch gjson.GetBytes(data, "type").Str {
	case "message_stop":
		return rt.name == formatMessages
	case "response.completed", "response.incomplete", "response.failed":
		return rt.name == formatResponses
	}
	return false
}

// plainErrors formats errors for routes without a format.
type plainErrors struct{ hub.Surface }

func (plainErrors) Name() string { return formatChat }

func (plainErrors) WriteError(_ hub.Answer, e *hub.Error, _ http.Header) (int, []byte) {
	b := append([]byte(`{"error":{"message":`), gjson.AppendJSONString(nil, e.Message)...)
	return http.StatusInternalServerError, append(b, '}', '}')
}
