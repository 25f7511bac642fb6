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
	"github.com/cayhq/cay/internal/gatewayd/request"
)

// Kinds of models; see gateway.Model.
const (
	kindLanguage      = request.KindLanguage
	kindEmbedding     = request.KindEmbedding
	kindImage         = request.KindImage
	kindReranking     = request.KindReranking
	kindSpeech        = request.KindSpeech
	kindTranscription = request.KindTranscription
)

// route is a path of the gateway's own origin.
type route struct {
	request.Route
	serve func(*call) *hub.Error
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
		{serve: (*call).root, Route: request.Route{Pattern: "GET /", Name: "root", Surface: chat}},
		{serve: (*call).root, Route: request.Route{Pattern: "HEAD /", Name: "root", Surface: chat}},
		{serve: (*call).root, Route: request.Route{Pattern: "GET /healthz", Name: "root", Surface: chat}},
		{serve: (*call).language, Route: request.Route{
			Pattern: "POST /v1/chat/completions", Name: formatChat, Surface: chat, Kind: kindLanguage,
			Limits: []string{"max_tokens", "max_completion_tokens"}, Home: "openai", PassPath: "/chat/completions",
			MetadataPath: "choices.0.message.provider_metadata", LastEvent: []byte("data: [DONE]"),
		}},
	}
	if messages != nil {
		all = append(all, &route{serve: (*call).language, Route: request.Route{
			Pattern: "POST /v1/messages", Name: formatMessages, Surface: messages, Kind: kindLanguage,
			Limits: []string{"max_tokens"}, Home: "anthropic", PassPath: "/messages",
			MetadataPath: "provider_metadata", LastEvent: []byte("message_stop"),
		}}, &route{serve: (*call).countTokens, Route: request.Route{
			Pattern: "POST /v1/messages/count_tokens", Name: "count_tokens", Surface: messages, Kind: kindLanguage,
			Home: "anthropic", PassPath: "/messages/count_tokens",
		}})
	}
	if responses != nil {
		all = append(all, &route{serve: (*call).language, Route: request.Route{
			Pattern: "POST /v1/responses", Name: formatResponses, Surface: responses, Kind: kindLanguage,
			Limits: []string{"max_output_tokens"}, Home: "openai", PassPath: "/responses",
			MetadataPath: "providerMetadata", LastEvent: []byte(`"response.`),
		}})
	}
	for _, v := range [...]struct{ path, version string }{{"/v1/ai/", "2"}, {"/v3/ai/", "3"}, {"/v4/ai/", "4"}} {
		all = append(all, &route{serve: (*call).language, Route: request.Route{
			Pattern: "POST " + v.path + "language-model", Name: "aisdk", Surface: aisdk, Kind: kindLanguage,
			Header: true, ModelHeader: "Ai-Language-Model-Id", VersionHeader: "Ai-Language-Model-Specification-Version", Version: v.version,
			Limits: []string{"maxOutputTokens"},
		}})
	}
	all = append(all, e.otherRoutes(chat, aisdk)...)
	routes := make(map[string]*route, len(all))
	for _, r := range all {
		routes[r.Pattern] = r
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
	return &route{Route: request.Route{Surface: errors.Surface, Version: errors.Version}}
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
	return &hub.Error{Kind: hub.NotFound, Code: "unknown_url", Message: "the gateway has no route " + r.Method + " " + request.Clip(r.URL.Path)}
}

// root describes the gateway.
func (c *call) root() *hub.Error {
	c.out.whole(http.StatusOK, "application/json", []byte(`{"service":"cay gateway","version":"`+cay.Version()+`"}`+"\n"))
	return nil
}

// chatMetadata adds an event with the gateway's metadata before [DONE], because the cost
// is not known earlier.
func chatMetadata(dst, event []byte, x *exchange) []byte {
	dst = append(dst, `data: {"id":`...)
	dst = gjson.AppendJSONString(dst, x.cl.rq.ID)
	dst = append(dst, `,"object":"chat.completion.chunk","created":`...)
	dst = appendInt(dst, x.cl.rq.Begun.Unix())
	dst = append(dst, `,"model":`...)
	dst = gjson.AppendJSONString(dst, x.cl.rq.Model)
	dst = append(dst, `,"choices":[],"provider_metadata":`...)
	dst = append(dst, wrapMetadata(x.host.metadata())...)
	dst = append(dst, "}\n\n"...)
	return append(dst, event...)
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

// appendLast appends the last event of a stream, with the gateway's metadata.
func (x *exchange) appendLast(dst, event, data []byte) []byte {
	switch x.cl.rq.Route.Name {
	case formatChat:
		return chatMetadata(dst, event, x)
	case formatMessages:
		return withMember(dst, event, data, "message_stop", "provider_metadata", x)
	}
	return withMember(dst, event, data, gjson.GetBytes(data, "type").Str, "response.providerMetadata", x)
}

// isLast reports whether data belongs to the last event of a stream.
func isLast(rt *request.Route, data []byte) bool {
	if rt.Name == formatChat {
		return string(data) == "[DONE]"
	}
	switch gjson.GetBytes(data, "type").Str {
	case "message_stop":
		return rt.Name == formatMessages
	case "response.completed", "response.incomplete", "response.failed":
		return rt.Name == formatResponses
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

// Serves reports whether the path of a request belongs to the gateway's own origin. The
// daemon's API uses it to tell clients that they have called the wrong origin.
func (e *Engine) Serves(r *http.Request) bool {
	for _, method := range [...]string{r.Method, http.MethodPost, http.MethodGet} {
		asked := *r
		asked.Method = method
		if found := e.find(&asked); found.serve != nil && found.Name != "root" {
			return true
		}
	}
	return false
}
