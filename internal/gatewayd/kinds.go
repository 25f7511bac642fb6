package gatewayd

import (
	"io"
	"net/http"
	"slices"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/aisdk"
	"github.com/cayhq/cay/internal/gatewayd/chatcompletions"
	"github.com/cayhq/cay/internal/gatewayd/gemini"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/plan"
	"github.com/cayhq/cay/internal/gatewayd/provider"
	"github.com/cayhq/cay/internal/gatewayd/request"
	"github.com/cayhq/cay/internal/gatewayd/scan"
)

// Embeddings, images and rankings also go through the hub if the provider does not speak
// the client's format.

const formatGemini = "gemini"

// maxValues is the maximum number of texts per embeddings call at OpenAI.
const maxValues = 2048

func embedBatch(p *provider.Provider) int { return orDefault(p.EmbedBatch, maxValues) }

// hasMoreTexts reports whether there are more than n texts to embed, which takes several
// calls. Lists of tokens are passed unchanged.
func hasMoreTexts(p *request.Payload, n int) bool {
	input := p.Object.Get("input")
	if len(input) < 3*n { // [ and, for each, two quotes and a comma
		return false
	}
	all := gjson.ParseBytes(input)
	return all.IsArray() && all.Get("0").Type == gjson.String && all.Get("#").Int() > int64(n)
}

// made is the result of an answer of any kind.
type made struct {
	usage    *hub.Usage
	response hub.Response
	images   int64
	// encode returns the answer in the client's format.
	encode func() ([]byte, error)
}

// askFunc calls a provider in one or several requests, and combines the answers.
type askFunc func(x *exchange, t *hub.Target) (*made, *hub.Error)

// sdk serves an AI SDK call: it decodes the request and calls the providers in order.
func sdk[Q any](c *call, read func(http.Header, []byte) (*Q, error), ask func(*Q) askFunc) *hub.Error {
	if err := c.prepared(); err != nil {
		return err
	}
	asked, err := read(c.rq.HTTP.Header, c.rq.Raw)
	if err != nil {
		return hub.AsError(err)
	}
	if c.replayed(c.v, &c.plan, &c.record) {
		return nil
	}
	return c.try(func(o *plan.Candidate, cred provider.Credential) *hub.Error { return c.through(o, cred, ask(asked)) })
}

// embedSDK serves AI SDK embeddings.
func (c *call) embedSDK() *hub.Error {
	f := aisdk.New()
	return sdk(c, f.ReadEmbed, func(asked *hub.EmbedCall) askFunc {
		return embed(asked, func(r *hub.EmbedResult) ([]byte, error) { return f.WriteEmbed(c.hubAnswer(), r) })
	})
}

// imageSDK serves AI SDK images.
func (c *call) imageSDK() *hub.Error {
	f := aisdk.New()
	return sdk(c, f.ReadImage, func(asked *hub.ImageCall) askFunc {
		return func(x *exchange, t *hub.Target) (*made, *hub.Error) {
			r, warnings, err := one(x, t, chatcompletions.WriteImageCall, asked, chatcompletions.ReadImageResult)
			if err != nil {
				return nil, err
			}
			r.Warnings = slices.Concat(asked.Warnings, warnings, r.Warnings)
			return &made{r.Usage, r.Response, int64(len(r.Images)), func() ([]byte, error) { return f.WriteImage(c.hubAnswer(), r) }}, nil
		}
	})
}

// rerankSDK serves AI SDK rankings.
func (c *call) rerankSDK() *hub.Error {
	f := aisdk.New()
	return sdk(c, f.ReadRerank, func(asked *hub.RerankCall) askFunc {
		return func(x *exchange, t *hub.Target) (*made, *hub.Error) {
			r, warnings, err := one(x, t, chatcompletions.WriteRerankCall, asked, func(t *hub.Target, body []byte) (*hub.RerankResult, error) {
				return chatcompletions.ReadRerankResult(t, body, len(asked.Documents))
			})
			if err != nil {
				return nil, err
			}
			r.Warnings = slices.Concat(asked.Warnings, warnings, r.Warnings)
			return &made{r.Usage, r.Response, 0, func() ([]byte, error) { return f.WriteRerank(c.hubAnswer(), r) }}, nil
		}
	})
}

// embeddings serves POST /v1/embeddings, unchanged if the provider speaks OpenAI's
// format, else through the hub.
func (c *call) embeddings() *hub.Error {
	if err := c.prepared(); err != nil {
		return err
	}
	if c.replayed(c.v, &c.plan, &c.record) {
		return nil
	}
	return c.try(func(o *plan.Candidate, cred provider.Credential) *hub.Error {
		if o.Provider.Embeddings != "" && !slices.Contains(o.Provider.Formats, formatScripted) && !hasMoreTexts(&c.rq.Payload, embedBatch(o.Provider)) {
			return c.passOn(o, cred)
		}
		asked, err := chatcompletions.ReadEmbedCall(c.rq.Raw)
		if err != nil {
			return hub.AsError(err)
		}
		return c.through(o, cred, embed(asked, func(r *hub.EmbedResult) ([]byte, error) {
			return chatcompletions.WriteEmbedResult(c.hubAnswer(), asked, r), nil
		}))
	})
}

// embed requests embeddings, in as many requests as necessary.
func embed(asked *hub.EmbedCall, write func(*hub.EmbedResult) ([]byte, error)) askFunc {
	return func(x *exchange, t *hub.Target) (*made, *hub.Error) {
		all := &hub.EmbedResult{}
		done := func() (*made, *hub.Error) {
			all.Warnings = slices.Concat(asked.Warnings, all.Warnings)
			return &made{all.Usage, all.Response, 0, func() ([]byte, error) { return write(all) }}, nil
		}
		batch, to, from := embedBatch(x.o.Provider), chatcompletions.WriteEmbedCall, chatcompletions.ReadEmbedResult
		switch {
		case slices.Contains(x.o.Provider.Formats, formatScripted):
			r, failed := x.e.cfg.Scripted.Embed(asked)
			if failed != nil {
				return nil, failed
			}
			all = r
			return done()
		case slices.Contains(x.o.Provider.Formats, formatGemini):
			batch, to, from = gemini.EmbedBatch(t), gemini.WriteEmbedCall, gemini.ReadEmbedResult
		}
		for at := 0; at < len(asked.Values); at += batch {
			part := *asked
			part.Values = asked.Values[at:min(at+batch, len(asked.Values))]
			r, warnings, err := one(x, t, to, &part, func(t *hub.Target, body []byte) (*hub.EmbedResult, error) { return from(t, body, len(part.Values)) })
			if err != nil {
				return nil, err
			}
			if at == 0 {
				all.Warnings, all.Response, all.Options = warnings, r.Response, r.Options
			}
			all.Vectors, all.Usage = append(all.Vectors, r.Vectors...), plus(all.Usage, r.Usage)
			x.partlyAnswered, x.Usage = true, all.Usage // charged if the next request fails
		}
		return done()
	}
}

// plus adds the inputs of two usages.
func plus(a, b *hub.Usage) *hub.Usage {
	switch {
	case a == nil && b == nil:
		return nil
	case a == nil:
		a = &hub.Usage{}
	case b == nil:
		b = &hub.Usage{}
	}
	b.Fill()
	return &hub.Usage{Input: hub.N(hub.Count(a.Input) + hub.Count(b.Input)), Output: hub.N(0)}
}

// one writes a request in the provider's format, sends it, and reads the answer.
func one[Q, R any](x *exchange, t *hub.Target, write func(*Q, *hub.Target) (*hub.Outgoing, []hub.Warning, error), asked *Q,
	read func(*hub.Target, []byte) (*R, error)) (*R, []hub.Warning, *hub.Error) {
	up, path := x.e.upstreams[formatChat], pathOf(x.o.Provider, x.cl.rq.Route.Kind)
	if x.cl.rq.Route.Kind == kindEmbedding && slices.Contains(x.o.Provider.Formats, formatGemini) {
		up, path = x.e.upstreams[formatGemini], ""
	} else if path == "" {
		return nil, nil, notTaken(x.o, x.cl.rq.Route.Kind)
	}
	out, warnings, bad := write(asked, t)
	if bad != nil {
		return nil, nil, hub.AsError(bad)
	}
	if path != "" {
		out.Path = path
	}
	body, err := x.ask(out, up)
	if err != nil {
		return nil, nil, err
	}
	r, bad := read(t, body)
	if bad != nil {
		return nil, nil, x.from(bad)
	}
	return r, warnings, nil
}

func notTaken(o *plan.Candidate, kind string) *hub.Error {
	return &hub.Error{Kind: hub.ModelNotFound, Code: "not_supported", Provider: o.Provider.Name,
		Message: "the gateway does not know how " + o.Provider.Name + " takes calls of " + kind + " models"}
}

// through runs an attempt through the hub.
func (c *call) through(o *plan.Candidate, cred provider.Credential, ask askFunc) *hub.Error {
	if _, err := c.reserve(o, cred, nil); err != nil {
		return err
	}
	x := c.begin(o, cred, nil, false)
	x.serving = true // undone if the attempt fails
	err := x.hubbed(ask)
	c.conclude(x, err)
	return err
}

func (x *exchange) hubbed(ask askFunc) *hub.Error {
	m, err := ask(x, x.o.TargetFor(x.cred))
	if err != nil {
		return err
	}
	x.firstContent()
	x.sawMedia(m.usage, m.images, m.response)
	body, bad := m.encode()
	if bad != nil {
		return hub.AsError(bad)
	}
	if body, err = x.host.guarded(body); err != nil {
		x.withheld = true
		return err
	}
	x.record.Status = http.StatusOK
	x.headers(x.cl.out.w.Header())
	x.cl.out.whole(http.StatusOK, "application/json", body)
	return nil
}

// ask reserves the maximum cost of a request, sends it and reads the whole answer.
func (x *exchange) ask(out *hub.Outgoing, up hub.Upstream) ([]byte, *hub.Error) {
	sent, bad := scan.Read(out.Body)
	if bad != nil {
		return nil, &hub.Error{Kind: hub.BadRequest, Param: "providerOptions", Message: "what the options make of the request is no request: " + bad.Error()}
	}
	var err *hub.Error
	if x.Asked, err = x.host.reserve(x.o, x.cred, sent); err != nil {
		return nil, err
	}
	resp, err := x.send(out, up, false)
	if err != nil {
		return nil, err
	}
	defer func() {
		_, _ = io.CopyN(io.Discard, resp.Body, 1)
		_ = resp.Body.Close()
	}()
	return x.readAll(resp)
}

// from converts an error of an answer, and adds the provider and status.
func (x *exchange) from(err error) *hub.Error {
	e := *hub.AsError(err)
	e.Provider = x.o.Provider.Name
	if e.Status == 0 {
		e.Status = x.record.Status
	}
	return &e
}
