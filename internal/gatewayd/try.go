package gatewayd

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/asks"
	"github.com/cayhq/cay/internal/gatewayd/converse"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/messages"
	"github.com/cayhq/cay/internal/gatewayd/plan"
	"github.com/cayhq/cay/internal/gatewayd/provider"
	"github.com/cayhq/cay/internal/gatewayd/request"
	"github.com/cayhq/cay/internal/gatewayd/scan"
)

// Limits of the attempts of one call.
const (
	maxAttempts = 12
	// maxTrying is how long after the start of a call a new attempt may begin.
	maxTrying = 10 * time.Minute
	// retries is the number of retries of one endpoint, pause the pause before the first
	// retry; the pause doubles.
	retries = 2
	pause   = 100 * time.Millisecond
)

// tryFunc calls one provider with one credential. If it returns an error, the client has
// been sent no content.
type tryFunc func(o *plan.Candidate, cred provider.Credential) *hub.Error

// trail is what a call has tried.
type trail struct {
	attempts  []gateway.Attempt // that have ended
	models    []modelAttempt
	reason    string   // for the order of providers, in words
	providers []string // providers that could have been asked, in order
}

// modelAttempt is the range of attempts made for one model.
type modelAttempt struct {
	model    string
	asked    string
	ok       bool
	from, to int // range in trail.attempts
}

// try calls providers in order, for each model in order, until an answer succeeds or no
// candidate is left.
func (c *call) try(f tryFunc) *hub.Error {
	var failed *hub.Error
	for i, name := range c.plan.Models {
		from := len(c.trail.attempts)
		m, err := c.tryModel(f, name, i == len(c.plan.Models)-1)
		if m != nil {
			c.trail.models = append(c.trail.models, modelAttempt{m.ID, name, err == nil, from, len(c.trail.attempts)})
		}
		if err == nil {
			return nil
		}
		if failed == nil || len(c.trail.attempts) > from {
			failed = err
		}
		if err.Kind == hub.Canceled || err.Provider == "" && judge(err) == giveUp || c.trail.exhausted(c.rq.Begun) {
			return err
		}
	}
	return failed
}

// exhausted reports whether a call that began at a time may begin no more attempts.
func (t *trail) exhausted(begun time.Time) bool {
	return len(t.attempts) >= maxAttempts || time.Since(begun) > maxTrying
}

func (c *call) tryModel(f tryFunc, name string, lastModel bool) (*gateway.Model, *hub.Error) {
	m, err := c.v.ModelFor(&c.rq, name)
	if err != nil {
		return nil, err
	}
	if key := c.caller.Key; key != nil && !plan.Allows(key.Models, m.ID) {
		return m, &hub.Error{Kind: hub.Forbidden, Code: "model_not_allowed", Param: "model", Model: m.ID, Message: "this key may not use the model " + m.ID}
	}
	if err := c.doc.Lacks(m, &c.rq, c.caller.Key); err != nil {
		return m, err
	}
	if len(c.rq.Options.Only) > 0 {
		if err := c.v.CheckOnly(m, c.rq.Options.Only); err != nil {
			return m, err
		}
	}
	w := plan.Wants{Caller: c.caller, Options: &c.rq.Options, Now: c.rq.Begun, Session: c.rq.Session, Input: int64(len(c.rq.Raw)) / 3, Kind: c.rq.Route.Kind}
	list, why, err := c.v.Candidates(m, &w)
	if err != nil {
		return m, err
	}
	withToken(list, c.rq.Token, c.rq.Route.Home)
	if c.trail.reason == "" {
		c.trail.reason = why
		for i := range list {
			c.trail.providers = append(c.trail.providers, list[i].Provider.Name)
		}
	}
	for i := range list {
		last := lastModel && i == len(list)-1
		v, e := c.tryProvider(f, &list[i], last)
		if e == nil {
			return m, nil
		}
		err = e
		if v != nextProvider && v != nextCredential || c.trail.exhausted(c.rq.Begun) {
			break
		}
	}
	return m, err
}

// tryProvider tries the credentials of one provider in order.
func (c *call) tryProvider(f tryFunc, o *plan.Candidate, lastProvider bool) (v verdict, err *hub.Error) {
	for i, cred := range o.Credentials {
		last := lastProvider && i == len(o.Credentials)-1
		for n := 0; ; n++ {
			if c.trail.exhausted(c.rq.Begun) {
				break
			}
			if err = f(o, cred); err == nil {
				return again, nil
			}
			if c.ctx.Err() != nil {
				return giveUp, broken(c.ctx, o.Provider.Name, c.ctx.Err())
			}
			v = judge(err)
			c.e.learn(o, cred, err, v)
			if v == nextProvider && err.Kind == hub.ModelNotFound && cred != nil && cred.BYOK() {
				v = nextCredential // a missing model in one account says nothing about the next account
			}
			if v != again {
				break
			}
			// If another candidate remains, the endpoint is retried only once.
			if n == retries || n == 1 && !last || !wait(c.ctx, n, err.RetryAfter) {
				v = nextProvider
				break
			}
		}
		if v != nextCredential {
			break
		}
	}
	return v, err
}

// learn records a cool-down for a credential after a failure.
func (e *Engine) learn(o *plan.Candidate, cred provider.Credential, err *hub.Error, v verdict) {
	if cred == nil || v != nextCredential && err.Kind != hub.RateLimited {
		return
	}
	d := err.RetryAfter
	if d == 0 {
		d = 30 * time.Second
	}
	e.board.CoolDown(o.Provider.Name, cred.ID(), time.Now().Add(min(d, 10*time.Minute)))
}

// wait waits before retry n of an endpoint, and reports whether to retry.
func wait(ctx context.Context, n int, asked time.Duration) bool {
	d := max(pause<<n, min(asked, patience))
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// withToken puts the caller's own token first at home, the only provider whose clients
// send such a token.
func withToken(list []plan.Candidate, token, home string) {
	if token == "" {
		return
	}
	for i := range list {
		if list[i].Provider.Name == home && !list[i].Provider.OperatorOnly {
			list[i].Credentials = append([]provider.Credential{ownToken(token)}, list[i].Credentials...)
		}
	}
}

// ownToken is a provider token that the client sent besides the gateway's key.
type ownToken string

func (t ownToken) ID() string     { return "own" }
func (t ownToken) BYOK() bool     { return true }
func (t ownToken) String() string { return "own" }

func (t ownToken) Authorize(_ context.Context, r *http.Request, _ []byte) error {
	r.Header.Set("Authorization", "Bearer "+string(t))
	return nil
}

// attempt calls a provider's language model.
func (c *call) attempt(o *plan.Candidate, cred provider.Credential) *hub.Error {
	if slices.Contains(o.Provider.Formats, formatScripted) {
		return c.attemptScripted(o, cred)
	}
	target := o.TargetFor(cred)
	streams := c.rq.Stream && !c.v.Buffers(&c.rq)
	var out *hub.Outgoing
	var up hub.Upstream
	var warnings []hub.Warning
	var hide bool
	var asked *asks.Asks
	var err *hub.Error
	pass := streams == c.rq.Stream && slices.Contains(o.Provider.Formats, c.rq.Route.Surface.Name()) && passes(&c.rq, c.e.upstreams[c.rq.Route.Surface.Name()], target)
	if pass {
		if asked, err = c.reserve(o, cred, c.rq.Object); err != nil {
			return err
		}
		up = c.e.upstreams[c.rq.Route.Surface.Name()]
		out, hide = outgoing(&c.rq, target, c.caller.Key)
	} else {
		if out, up, warnings, target, err = c.translated(o, cred, target, streams); err != nil {
			return err
		}
		sent, bad := scan.Read(out.Body)
		if bad != nil {
			return &hub.Error{Kind: hub.BadRequest, Param: "providerOptions", Message: "what the options make of the request is no request: " + bad.Error()}
		}
		if asked, err = c.reserve(o, cred, sent); err != nil {
			return err
		}
	}
	if o.Unlisted() {
		warnings = append(warnings, hub.Warning{Kind: hub.WarnOther, Message: o.Warning()})
	}
	x := c.begin(o, cred, asked, c.rq.Stream)
	x.target, x.stores = target, asked.Stores && up.Name() == formatResponses
	resp, err := x.send(out, up, streams)
	if err == nil && streams && up.Name() == formatMessages && target.Is(messages.QuirkBedrock) {
		resp.Body = converse.Chunks(resp.Body)
	}
	if err == nil {
		x.serving = true
		switch {
		case pass && c.rq.Stream:
			if m, ok := up.(hub.Mender); ok {
				resp.Body = m.Mend(target, resp.Body)
			}
			err = x.relayStream(resp, up.Tap(target, true), hide)
		case pass:
			err = x.relayWhole(resp, up.Tap(target, false))
		case streams:
			err = x.translateStream(resp, up, warnings)
		default:
			err = x.translateWhole(resp, up, warnings)
		}
	}
	c.conclude(x, err)
	return err
}

// translated returns the request for a provider that does not speak the client's format.
func (c *call) translated(o *plan.Candidate, cred provider.Credential, t *hub.Target, streams bool) (*hub.Outgoing, hub.Upstream, []hub.Warning, *hub.Target, *hub.Error) {
	if _, err := c.reserve(o, cred, nil); err != nil { // before anything is fetched
		return nil, nil, nil, nil, err
	}
	var up hub.Upstream
	for _, f := range o.Provider.Formats {
		if up = c.e.upstreams[f]; up != nil {
			break
		}
	}
	if up == nil {
		return nil, nil, nil, nil, &hub.Error{Kind: hub.Internal, Message: "internal error", Cause: errors.New("nobody speaks a format of provider " + o.Provider.Name)}
	}
	if err := c.decode(); err != nil {
		return nil, nil, nil, nil, err
	}
	c.doc.Call.Stream = streams
	asked, err := c.doc.WithFiles(c.ctx, c.e.fetcher, fetches(o, up))
	if err != nil {
		return nil, nil, nil, nil, err
	}
	of := *t
	of.Call = asked
	out, warnings, bad := up.WriteCall(asked, &of)
	if bad != nil {
		return nil, nil, nil, nil, hub.AsError(bad)
	}
	return out, up, warnings, &of, nil
}

// attemptScripted gets an answer from the script.
func (c *call) attemptScripted(o *plan.Candidate, cred provider.Credential) *hub.Error {
	if _, err := c.reserve(o, cred, nil); err != nil {
		return err
	}
	if err := c.decode(); err != nil {
		return err
	}
	x := c.begin(o, cred, nil, c.rq.Stream)
	err := x.play()
	c.conclude(x, err)
	return err
}

// passes reports whether the request can be passed without translation to a target that
// speaks the client's format, by up.
func passes(rq *request.Request, up hub.Upstream, t *hub.Target) bool {
	if up == nil || rq.Foreign || !plainFor(rq, t) {
		return false
	}
	if picky, ok := up.(interface {
		Passes(*hub.Target, []byte) bool
	}); ok {
		return picky.Passes(t, rq.Raw)
	}
	return !hub.Packed(rq.Raw)
}

// begin begins an attempt, which end must end. asked is what its request asks for, nil if
// unknown. If events is set, the answer is a stream of events, which may begin with
// comments.
func (c *call) begin(o *plan.Candidate, cred provider.Credential, asked *asks.Asks, events bool) *exchange {
	x := &exchange{e: c.e, v: c.v, cl: &c.client, host: c, o: o, cred: cred, target: o.Target, record: gateway.Attempt{
		Model: o.Model.ID, Provider: o.Provider.Name, ProviderModel: o.ModelFor(cred), BYOK: cred != nil && cred.BYOK(), StartedAt: time.Now(),
	}}
	x.Offer, x.Asked, x.BYOK = o.Offer, asked, x.record.BYOK
	c.last = x
	c.e.logUnlisted(c.ctx, o.Offer)
	x.span = c.span.attempt(c.e.cfg.Tracer, c.rq.Route.Kind, &x.record)
	if c.span.texts != nil {
		x.transcript = new(transcript)
	}
	o.Health.Begin(x.record.StartedAt)
	first := orDefault(o.Provider.FirstByte, defaultFirstByte)
	x.run = c.e.follow(c.ctx, o.Provider.Finish && !(c.rq.Stream && !c.v.Buffers(&c.rq)), first)
	if d, ok := c.rq.Options.Timeouts[o.Provider.Name]; ok {
		first = min(first, d)
	}
	x.watch = newWatch(x, events, c.bill.Hold, first, orDefault(o.Provider.Idle, defaultIdle))
	return x
}

// logUnlisted logs once per endpoint that an unpriced model is called.
func (e *Engine) logUnlisted(ctx context.Context, o *plan.Offer) {
	if o.Unlisted() && o.Health.WarnOnce() {
		e.log.WarnContext(ctx, "a model that the catalogue does not know is called; its price is unknown", "provider", o.Provider.Name, "model", request.Clip(o.Model.ID))
	}
}

// conclude ends an attempt and determines its cost.
func (c *call) conclude(x *exchange, err *hub.Error) {
	worked := err != nil && x.worked(err) // before its context ends
	if err == nil && x.clientLeft && x.failed == nil {
		x.failed = hub.Left()
	}
	if x.failed != nil {
		c.failure = x.failed
	}
	c.ended(x, err)
	switch {
	case err == nil:
	case x.withheld, err.Kind == hub.Canceled && worked: // the last attempt
		x.serving = true
	case worked:
		x.serving = false
		c.trail.attempts[len(c.trail.attempts)-1].Cost = c.bill.Lose(c.v, &c.rq, &x.Result)
	default:
		x.serving = false
	}
}

// ended ends an attempt, and adds it to the trail.
func (c *call) ended(x *exchange, err *hub.Error) {
	x.end(err)
	c.trail.attempts = append(c.trail.attempts, x.record)
}

// fetches reports whether the gateway must fetch a file, because the upstream cannot.
func fetches(o *plan.Candidate, up hub.Upstream) func(*hub.File) bool {
	return func(f *hub.File) bool { return fetchesFile(o, up, f) }
}

func fetchesFile(o *plan.Candidate, up hub.Upstream, f *hub.File) bool {
	u, err := url.Parse(f.URL)
	if f.URL == "" || err != nil || u.Scheme != "http" && u.Scheme != "https" {
		return false
	}
	host := strings.TrimPrefix(u.Hostname(), "www.")
	switch up.Name() {
	case "converse":
		return true
	case formatGemini: // it knows its own files, and videos
		return host != "generativelanguage.googleapis.com" && host != "storage.googleapis.com" && host != "youtube.com" && host != "youtu.be"
	case formatChat:
		return o.Provider.Kind == "ollama" || o.Target.Is("openai") && !strings.HasPrefix(f.MediaType, "image/")
	}
	return false
}
