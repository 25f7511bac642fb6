package gatewayd

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/asks"
	"github.com/cayhq/cay/internal/gatewayd/converse"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/messages"
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
type tryFunc func(o *candidate, cred provider.Credential) *hub.Error

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
	for i, name := range c.plan.models {
		from := len(c.trail.attempts)
		m, err := c.tryModel(f, name, i == len(c.plan.models)-1)
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
	m, err := c.v.modelFor(&c.rq, name)
	if err != nil {
		return nil, err
	}
	if key := c.caller.Key; key != nil && !allows(key.Models, m.ID) {
		return m, &hub.Error{Kind: hub.Forbidden, Code: "model_not_allowed", Param: "model", Model: m.ID, Message: "this key may not use the model " + m.ID}
	}
	if err := c.doc.Lacks(m, &c.rq, c.caller.Key); err != nil {
		return m, err
	}
	if len(c.rq.Options.Only) > 0 {
		if err := c.e.checkOnly(c.v, m, c.rq.Options.Only); err != nil {
			return m, err
		}
	}
	w := wants{caller: c.caller, o: &c.rq.Options, now: c.rq.Begun, session: c.rq.Session, input: int64(len(c.rq.Raw)) / 3, kind: c.rq.Route.Kind}
	list, why, err := c.e.candidates(c.v, m, &w)
	if err != nil {
		return m, err
	}
	withToken(list, c.rq.Token, c.rq.Route.Home)
	if c.trail.reason == "" {
		c.trail.reason = why
		for i := range list {
			c.trail.providers = append(c.trail.providers, list[i].provider.Name)
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

// modelFor returns the model with a name that a request may be sent to.
func (v *view) modelFor(rq *request.Request, name string) (*gateway.Model, *hub.Error) {
	m := v.model(name)
	if m != nil && (m.Kind == rq.Route.Kind || m.Kind == "") { // the kind of an unlisted model is unknown
		return m, nil
	}
	e := v.noModel(name)
	if m != nil {
		e.Message = name + " is no " + rq.Route.Kind + " model"
	}
	return nil, e
}

// checkOnly distinguishes, for the option only, an unknown provider from a provider
// without the model.
func (e *Engine) checkOnly(v *view, m *gateway.Model, only []string) *hub.Error {
	for _, name := range only {
		if v.Providers.Get(name) == nil {
			var has []string
			for _, o := range e.offersOf(v, m) {
				has = append(has, o.provider.Name)
			}
			return request.WrongOption("only", "providers that are configured, of which "+m.ID+" has: "+strings.Join(has, ", ")+"; there is no "+strconv.Quote(name))
		}
	}
	return nil
}

// tryProvider tries the credentials of one provider in order.
func (c *call) tryProvider(f tryFunc, o *candidate, lastProvider bool) (v verdict, err *hub.Error) {
	for i, cred := range o.credentials {
		last := lastProvider && i == len(o.credentials)-1
		for n := 0; ; n++ {
			if c.trail.exhausted(c.rq.Begun) {
				break
			}
			if err = f(o, cred); err == nil {
				return again, nil
			}
			if c.ctx.Err() != nil {
				return giveUp, broken(c.ctx, o.provider.Name, c.ctx.Err())
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
func (e *Engine) learn(o *candidate, cred provider.Credential, err *hub.Error, v verdict) {
	if cred == nil || v != nextCredential && err.Kind != hub.RateLimited {
		return
	}
	d := err.RetryAfter
	if d == 0 {
		d = 30 * time.Second
	}
	e.board.CoolDown(o.provider.Name, cred.ID(), time.Now().Add(min(d, 10*time.Minute)))
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
func withToken(list []candidate, token, home string) {
	if token == "" {
		return
	}
	for i := range list {
		if list[i].provider.Name == home && !list[i].provider.OperatorOnly {
			list[i].credentials = append([]provider.Credential{ownToken(token)}, list[i].credentials...)
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
func (c *call) attempt(o *candidate, cred provider.Credential) *hub.Error {
	if slices.Contains(o.provider.Formats, formatScripted) {
		return c.attemptScripted(o, cred)
	}
	target := o.targetFor(cred)
	streams := c.rq.Stream && !c.v.buffers(&c.rq)
	var out *hub.Outgoing
	var up hub.Upstream
	var warnings []hub.Warning
	var hide bool
	var asked *asks.Asks
	var err *hub.Error
	pass := streams == c.rq.Stream && slices.Contains(o.provider.Formats, c.rq.Route.Surface.Name()) && passes(&c.rq, c.e.upstreams[c.rq.Route.Surface.Name()], target)
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
	if o.unlisted() {
		warnings = append(warnings, hub.Warning{Kind: hub.WarnOther, Message: o.warning()})
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
func (c *call) translated(o *candidate, cred provider.Credential, t *hub.Target, streams bool) (*hub.Outgoing, hub.Upstream, []hub.Warning, *hub.Target, *hub.Error) {
	if _, err := c.reserve(o, cred, nil); err != nil { // before anything is fetched
		return nil, nil, nil, nil, err
	}
	var up hub.Upstream
	for _, f := range o.provider.Formats {
		if up = c.e.upstreams[f]; up != nil {
			break
		}
	}
	if up == nil {
		return nil, nil, nil, nil, &hub.Error{Kind: hub.Internal, Message: "internal error", Cause: errors.New("nobody speaks a format of provider " + o.provider.Name)}
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
func (c *call) attemptScripted(o *candidate, cred provider.Credential) *hub.Error {
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
func (c *call) begin(o *candidate, cred provider.Credential, asked *asks.Asks, events bool) *exchange {
	x := &exchange{e: c.e, v: c.v, cl: &c.client, host: c, o: o, cred: cred, target: o.target, record: gateway.Attempt{
		Model: o.model.ID, Provider: o.provider.Name, ProviderModel: o.modelFor(cred), BYOK: cred != nil && cred.BYOK(), StartedAt: time.Now(),
	}}
	x.asked = asked
	c.last = x
	c.e.logUnlisted(c.ctx, o.offer)
	x.span = c.span.attempt(c.e.cfg.Tracer, c.rq.Route.Kind, &x.record)
	if c.span.texts != nil {
		x.transcript = new(transcript)
	}
	o.health.Begin(x.record.StartedAt)
	first := orDefault(o.provider.FirstByte, defaultFirstByte)
	x.run = c.e.follow(c.ctx, o.provider.Finish && !(c.rq.Stream && !c.v.buffers(&c.rq)), first)
	if d, ok := c.rq.Options.Timeouts[o.provider.Name]; ok {
		first = min(first, d)
	}
	x.watch = newWatch(x, events, c.bill.hold, first, orDefault(o.provider.Idle, defaultIdle))
	return x
}

// conclude ends an attempt and determines its cost.
func (c *call) conclude(x *exchange, err *hub.Error) {
	worked := err != nil && x.worked(err) // before its context ends
	if err == nil && x.alone && x.failed == nil {
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
		c.bill.lose(x, c.trail.attempts)
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
func fetches(o *candidate, up hub.Upstream) func(*hub.File) bool {
	return func(f *hub.File) bool { return fetchesFile(o, up, f) }
}

func fetchesFile(o *candidate, up hub.Upstream, f *hub.File) bool {
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
		return o.provider.Kind == "ollama" || o.target.Is("openai") && !strings.HasPrefix(f.MediaType, "image/")
	}
	return false
}
