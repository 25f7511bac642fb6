package gatewayd

import (
	"bytes"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"strings"

	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"

	"github.com/cayhq/cay/internal/gatewayd/aisdk"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/provider"
	"github.com/cayhq/cay/internal/gatewayd/scan"
)

// These kinds of models have calls that are passed to providers with the path; the answer
// may have any type.
const (
	kindSpeech        = "speech"
	kindTranscription = "transcription"
)

// otherRoutes returns the routes of models other than language models, and the routes
// without a model.
func (e *Engine) otherRoutes(chat, sdk hub.Surface) []*route {
	all := []*route{
		{pattern: "POST /v1/embeddings", name: "embeddings", surface: chat, kind: kindEmbedding, serve: (*call).embeddings, home: "openai", metadataPath: "providerMetadata"},
		{pattern: "POST /v1/images/generations", name: "images", surface: chat, kind: kindImage, serve: (*call).passing, home: "openai", metadataPath: "providerMetadata"},
		{pattern: "POST /v1/rerank", name: "rerank", surface: chat, kind: kindReranking, serve: (*call).passing, metadataPath: "providerMetadata"},
		{pattern: "POST /v1/audio/speech", name: "speech", surface: chat, kind: kindSpeech, serve: (*call).passing, home: "openai"},
		{pattern: "POST /v1/audio/transcriptions", name: "transcription", surface: chat, kind: kindTranscription, serve: (*call).form, home: "openai"},
		{pattern: "GET /v1/models", name: "models", surface: chat, serve: lookUp((*lookup).listModels)},
		{pattern: "GET /v1/models/{creator}/{model}", name: "models", surface: chat, serve: lookUp((*lookup).showModel)},
		{pattern: "GET /v1/credits", name: "credits", surface: sdk, version: "4", serve: lookUp((*lookup).credits)},
		{pattern: "GET /v1/generation", name: "generation", surface: sdk, version: "4", serve: lookUp((*lookup).generation)},
		{pattern: "GET /v1/report", name: "report", surface: sdk, version: "4", serve: lookUp((*lookup).report)},
	}
	for _, v := range [...]struct{ path, version string }{{"/v1/ai/", "2"}, {"/v3/ai/", "3"}, {"/v4/ai/", "4"}} {
		of := func(kind, header string, serve func(*call) *hub.Error) *route {
			return &route{
				pattern: "POST " + v.path + kind + "-model", name: "aisdk", surface: sdk, kind: kind, version: v.version, serve: serve,
				header: true, modelHeader: aisdk.HeaderModel, versionHeader: header,
			}
		}
		all = append(all, of(kindEmbedding, "Ai-Embedding-Model-Specification-Version", (*call).embedSDK),
			of(kindImage, "Ai-Image-Model-Specification-Version", (*call).imageSDK),
			of(kindReranking, "Ai-Reranking-Model-Specification-Version", (*call).rerankSDK))
		all = append(all, &route{pattern: "GET " + v.path + "config", name: "config", surface: sdk, version: v.version, serve: lookUp(configOf(v.version))})
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

// passing serves a call that is passed without translation; its body is JSON with a
// model.
func (c *call) passing() *hub.Error {
	if err := c.prepared(); err != nil {
		return err
	}
	if c.rq.stream {
		return &hub.Error{Kind: hub.BadRequest, Param: "stream", Message: "this gateway does not stream calls of this kind"}
	}
	if c.replayed(c.v, &c.plan, &c.record) {
		return nil
	}
	return c.try(func(o *candidate, cred provider.Credential) *hub.Error { return c.passOn(o, cred) })
}

// passOn passes the request with the model's name replaced by the provider's.
func (c *call) passOn(o *candidate, cred provider.Credential) *hub.Error {
	changes := []scan.Change{scan.Set("model", gjson.AppendJSONString(nil, o.modelFor(cred)))}
	for _, ours := range [...]string{"providerOptions", "models"} {
		if c.rq.obj.Find(ours) != nil {
			changes = append(changes, scan.Delete(ours))
		}
	}
	return c.pass(o, cred, "application/json", c.rq.obj.Edit(changes...))
}

// pass sends a body to the provider's path for the route's kind and passes the answer.
func (c *call) pass(o *candidate, cred provider.Credential, contentType string, body []byte) *hub.Error {
	at := pathOf(o.provider, c.rq.rt.kind)
	if at == "" {
		return notTaken(o, c.rq.rt.kind)
	}
	up := c.e.upstreams[formatChat]
	if up == nil {
		return &hub.Error{Kind: hub.Internal, Message: "internal error", Cause: fmt.Errorf("nobody speaks %s", formatChat)}
	}
	asked, err := c.reserve(o, cred, c.rq.obj)
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
	x.content()
	x.sawBody(body, usage)
	if usage != nil || strings.HasPrefix(mediaType(contentType), "text/") {
		if body, err = x.host.guarded(body); err != nil {
			x.withheld = true
			return err
		}
	}
	if rq.opts.given && rq.rt.metadataPath != "" && usage != nil {
		if with, err := sjson.SetRawBytes(body, rq.rt.metadataPath, wrapMetadata(x.host.metadata())); err == nil {
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
	media, params, err := mime.ParseMediaType(c.rq.http.Header.Get("Content-Type"))
	if err != nil || media != "multipart/form-data" || params["boundary"] == "" {
		return &hub.Error{Kind: hub.BadRequest, Param: "content-type", Message: "the body must be multipart/form-data"}
	}
	parts, bad := readForm(c.rq.raw, params["boundary"])
	if bad != nil {
		return bad
	}
	for i := range parts {
		switch parts[i].name {
		case "model":
			c.rq.model = string(parts[i].data)
		case "stream":
			if string(parts[i].data) == "true" {
				return &hub.Error{Kind: hub.BadRequest, Param: "stream", Message: "this gateway does not stream calls of this kind"}
			}
		}
	}
	if c.rq.model == "" || len(c.rq.model) > maxText {
		return &hub.Error{Kind: hub.BadRequest, Param: "model", Message: "model is missing; it must be a text such as openai/whisper-1"}
	}
	c.rq.obj, c.rq.copies, c.rq.parts = &scan.Object{}, 1, parts
	if bad := c.planned(); bad != nil {
		return bad
	}
	return c.try(func(o *candidate, cred provider.Credential) *hub.Error {
		body, contentType := writeForm(parts, o.modelFor(cred))
		return c.pass(o, cred, contentType, body)
	})
}

// formPart is a field of a form.
type formPart struct {
	name   string
	header map[string][]string
	data   []byte
}

const maxFormParts = 64

func readForm(body []byte, boundary string) (parts []formPart, bad *hub.Error) {
	wrong := func(what string) *hub.Error {
		return &hub.Error{Kind: hub.BadRequest, Code: "invalid_form", Message: "the body is no form: " + what}
	}
	r := multipart.NewReader(bytes.NewReader(body), boundary)
	for {
		p, err := r.NextRawPart()
		if err == io.EOF {
			return parts, nil
		}
		if err != nil {
			return nil, wrong("it does not end, or a part of it is wrong")
		}
		if len(parts) == maxFormParts {
			return nil, wrong(fmt.Sprintf("it has more than %d parts", maxFormParts))
		}
		data, err := io.ReadAll(p) // at most as large as the body
		if err != nil {
			return nil, wrong("it does not end")
		}
		parts = append(parts, formPart{p.FormName(), p.Header, data})
	}
}

// writeForm encodes the form with another model name.
func writeForm(parts []formPart, model string) (body []byte, contentType string) {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for _, p := range parts {
		into, err := w.CreatePart(p.header)
		if err != nil { // a bytes.Buffer cannot fail
			panic("gatewayd: " + err.Error())
		}
		if p.name == "model" {
			p.data = []byte(model)
		}
		_, _ = into.Write(p.data)
	}
	_ = w.Close()
	return b.Bytes(), w.FormDataContentType()
}
