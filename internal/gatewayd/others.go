package gatewayd

import (
	"fmt"
	"mime"
	"net/http"
	"strings"

	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"

	"github.com/cayhq/cay/internal/gatewayd/aisdk"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/plan"
	"github.com/cayhq/cay/internal/gatewayd/provider"
	"github.com/cayhq/cay/internal/gatewayd/request"
	"github.com/cayhq/cay/internal/gatewayd/scan"
)

// otherRoutes returns the routes of models other than language models, and the routes
// without a model.
func (e *Engine) otherRoutes(chat, sdk hub.Surface) []*route {
	all := []*route{
		{serve: (*call).embeddings, Route: request.Route{Pattern: "POST /v1/embeddings", Name: "embeddings", Surface: chat, Kind: kindEmbedding, Home: "openai", MetadataPath: "providerMetadata"}},
		{serve: (*call).passThrough, Route: request.Route{Pattern: "POST /v1/images/generations", Name: "images", Surface: chat, Kind: kindImage, Home: "openai", MetadataPath: "providerMetadata"}},
		{serve: (*call).passThrough, Route: request.Route{Pattern: "POST /v1/rerank", Name: "rerank", Surface: chat, Kind: kindReranking, MetadataPath: "providerMetadata"}},
		{serve: (*call).passThrough, Route: request.Route{Pattern: "POST /v1/audio/speech", Name: "speech", Surface: chat, Kind: kindSpeech, Home: "openai"}},
		{serve: (*call).form, Route: request.Route{Pattern: "POST /v1/audio/transcriptions", Name: "transcription", Surface: chat, Kind: kindTranscription, Home: "openai"}},
		{serve: lookUp((*lookup).listModels), Route: request.Route{Pattern: "GET /v1/models", Name: "models", Surface: chat}},
		{serve: lookUp((*lookup).showModel), Route: request.Route{Pattern: "GET /v1/models/{creator}/{model}", Name: "models", Surface: chat}},
		{serve: lookUp((*lookup).credits), Route: request.Route{Pattern: "GET /v1/credits", Name: "credits", Surface: sdk, Version: "4"}},
		{serve: lookUp((*lookup).generation), Route: request.Route{Pattern: "GET /v1/generation", Name: "generation", Surface: sdk, Version: "4"}},
		{serve: lookUp((*lookup).report), Route: request.Route{Pattern: "GET /v1/report", Name: "report", Surface: sdk, Version: "4"}},
	}
	for _, v := range [...]struct{ path, version string }{{"/v1/ai/", "2"}, {"/v3/ai/", "3"}, {"/v4/ai/", "4"}} {
		of := func(kind, header string, serve func(*call) *hub.Error) *route {
			return &route{serve: serve, Route: request.Route{
				Pattern: "POST " + v.path + kind + "-model", Name: "aisdk", Surface: sdk, Kind: kind, Version: v.version,
				Header: true, ModelHeader: aisdk.HeaderModel, VersionHeader: header,
			}}
		}
		all = append(all, of(kindEmbedding, "Ai-Embedding-Model-Specification-Version", (*call).embedSDK),
			of(kindImage, "Ai-Image-Model-Specification-Version", (*call).imageSDK),
			of(kindReranking, "Ai-Reranking-Model-Specification-Version", (*call).rerankSDK))
		all = append(all, &route{serve: lookUp(configOf(v.version)), Route: request.Route{Pattern: "GET " + v.path + "config", Name: "config", Surface: sdk, Version: v.version}})
	}
	return all
}

// pathOf returns a provider's path for a kind of call, "" if the provider has none.
func pathOf(p *provider.Provider, kind string) string {
	switch kind {
	case kindEmbedding:
		return p.Embeddings
	case kindImage:
		return p.Images
	case kindReranking:
		return p.Rerank
	case kindSpeech:
		return p.Speech
	case kindTranscription:
		return p.Transcription
	}
	return ""
}

// passThrough serves a call that is passed without translation; its body is JSON with a
// model.
func (c *call) passThrough() *hub.Error {
	if err := c.prepared(); err != nil {
		return err
	}
	if c.rq.Stream {
		return &hub.Error{Kind: hub.BadRequest, Param: "stream", Message: "this gateway does not stream calls of this kind"}
	}
	if c.replayed(c.v, &c.plan, &c.record) {
		return nil
	}
	return c.try(func(o *plan.Candidate, cred provider.Credential) *hub.Error { return c.passOn(o, cred) })
}

// passOn passes the request with the model's name replaced by the provider's.
func (c *call) passOn(o *plan.Candidate, cred provider.Credential) *hub.Error {
	changes := []scan.Change{scan.Set("model", gjson.AppendJSONString(nil, o.ModelFor(cred)))}
	for _, ours := range [...]string{"providerOptions", "models"} {
		if c.rq.Object.Find(ours) != nil {
			changes = append(changes, scan.Delete(ours))
		}
	}
	return c.pass(o, cred, "application/json", c.rq.Object.Edit(changes...))
}

// pass sends a body to the provider's path for the route's kind and passes the answer.
func (c *call) pass(o *plan.Candidate, cred provider.Credential, contentType string, body []byte) *hub.Error {
	at := pathOf(o.Provider, c.rq.Route.Kind)
	if at == "" {
		return notTaken(o, c.rq.Route.Kind)
	}
	up := c.e.upstreams[formatChat]
	if up == nil {
		return &hub.Error{Kind: hub.Internal, Message: "internal error", Cause: fmt.Errorf("nobody speaks %s", formatChat)}
	}
	asked, err := c.reserve(o, cred, c.rq.Object)
	if err != nil {
		return err
	}
	x := c.begin(o, cred, asked, false)
	resp, err := x.send(&hub.Outgoing{Path: at, Head: http.Header{"Content-Type": {contentType}}, Body: body}, up, false)
	if err == nil {
		err = x.relayAny(resp)
	}
	c.conclude(x, err)
	return err
}

// relayAny passes an answer of any type.
func (x *exchange) relayAny(resp *http.Response) *hub.Error {
	defer resp.Body.Close()
	rq := &x.cl.rq
	body, err := x.readAll(resp)
	if err != nil {
		return err
	}
	contentType := resp.Header.Get("Content-Type")
	usage := &hub.Usage{}
	if strings.HasSuffix(mediaType(contentType), "json") {
		if !gjson.ValidBytes(body) {
			return x.cutShort("an answer that makes no sense")
		}
		usage = plainUsage(body)
	} else {
		usage = nil
	}
	x.serving = true
	x.firstContent()
	x.sawBody(body, usage)
	if usage != nil || strings.HasPrefix(mediaType(contentType), "text/") {
		if body, err = x.host.guarded(body); err != nil {
			x.withheld = true
			return err
		}
	}
	if rq.Options.Given && rq.Route.MetadataPath != "" && usage != nil {
		if with, err := sjson.SetRawBytes(body, rq.Route.MetadataPath, wrapMetadata(x.host.metadata())); err == nil {
			body = with
		}
	}
	x.headers(x.cl.out.w.Header())
	x.cl.out.whole(http.StatusOK, orDefault(contentType, "application/octet-stream"), body)
	return nil
}

// plainUsage reads usage in the form of OpenAI's smaller APIs, or of Cohere.
func plainUsage(body []byte) *hub.Usage {
	u := gjson.GetBytes(body, "usage")
	first := func(paths ...string) *int64 {
		for _, p := range paths {
			if v := u.Get(p); v.Type == gjson.Number && v.Num >= 0 && v.Num < 1e12 {
				return hub.N(v.Int())
			}
		}
		return nil
	}
	usage := &hub.Usage{Input: first("prompt_tokens", "input_tokens", "total_tokens"), Output: first("completion_tokens", "output_tokens")}
	if usage.Input == nil {
		if v := gjson.GetBytes(body, "meta.billed_units.input_tokens"); v.Exists() {
			usage.Input = hub.N(v.Int())
		}
	}
	if usage.Output == nil {
		usage.Output = hub.N(0)
	}
	return usage
}

// form serves a call whose body is a form with the model as a field, such as a
// transcription.
func (c *call) form() *hub.Error {
	if err := c.received(); err != nil {
		return err
	}
	media, params, err := mime.ParseMediaType(c.rq.HTTP.Header.Get("Content-Type"))
	if err != nil || media != "multipart/form-data" || params["boundary"] == "" {
		return &hub.Error{Kind: hub.BadRequest, Param: "content-type", Message: "the body must be multipart/form-data"}
	}
	parts, bad := request.ReadForm(c.rq.Raw, params["boundary"])
	if bad != nil {
		return bad
	}
	for i := range parts {
		switch parts[i].Name {
		case "model":
			c.rq.Model = string(parts[i].Data)
		case "stream":
			if string(parts[i].Data) == "true" {
				return &hub.Error{Kind: hub.BadRequest, Param: "stream", Message: "this gateway does not stream calls of this kind"}
			}
		}
	}
	if c.rq.Model == "" || len(c.rq.Model) > request.MaxText {
		return &hub.Error{Kind: hub.BadRequest, Param: "model", Message: "model is missing; it must be a text such as openai/whisper-1"}
	}
	c.rq.Object, c.rq.Copies, c.rq.Parts = &scan.Object{}, 1, parts
	if bad := c.planned(); bad != nil {
		return bad
	}
	return c.try(func(o *plan.Candidate, cred provider.Credential) *hub.Error {
		body, contentType := request.WriteForm(parts, o.ModelFor(cred))
		return c.pass(o, cred, contentType, body)
	})
}
