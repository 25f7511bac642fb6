package gatewayd

import (
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/converse"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/messages"
	"github.com/cayhq/cay/internal/gatewayd/provider"
	"github.com/cayhq/cay/internal/sse"
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

// Default timeouts of a provider.
const (
	defaultFirstByte = 5 * time.Minute
	defaultIdle      = 2 * time.Minute
)

// tryFunc calls one provider with one credential. If it returns an error, the client has
// been sent no content.
type tryFunc func(o *candidate, cred provider.Credential, last bool) *hub.Error

// try calls providers in order, for each model in order, until an answer succeeds or no
// candidate is left.
func (c *call) try(f tryFunc) *hub.Error {
	var failed *hub.Error
	for i, name := range c.fallbacks {
		from := len(c.record.Attempts)
		m, err := c.tryModel(f, name, i == len(c.fallbacks)-1)
		if m != nil {
			c.models = append(c.models, modelAttempt{m.ID, name, err == nil, from, len(c.record.Attempts)})
		}
		if err == nil {
			return nil
		}
		if failed == nil || len(c.record.Attempts) > from {
			failed = err
		}
		if err.Kind == hub.Canceled || err.Provider == "" && judge(err) == giveUp || c.exhausted() {
			return err
		}
	}
	return failed
}

func (c *call) exhausted() bool {
	return c.attempts >= maxAttempts || time.Since(c.begun) > maxTrying
}

func (c *call) tryModel(f tryFunc, name string, lastModel bool) (*gateway.Model, *hub.Error) {
	m := c.v.model(name)
	if m == nil || m.Kind != c.rt.kind && m.Kind != "" { // the kind of an unlisted model is unknown
		e := c.v.noModel(name)
		if m != nil {
			e.Message = name + " is no " + c.rt.kind + " model"
		}
		return nil, e
	}
	if c.caller.Key != nil && !allows(c.caller.Key.Models, m.ID) {
		return m, &hub.Error{Kind: hub.Forbidden, Code: "model_not_allowed", Param: "model", Model: m.ID, Message: "this key may not use the model " + m.ID}
	}
	if err := c.lacks(m); err != nil {
		return m, err
	}
	w := wants{caller: c.caller, o: &c.opts, now: c.begun, session: c.session, input: int64(len(c.body)) / 3, kind: c.rt.kind}
	if len(c.opts.only) > 0 {
		if err := c.checkOnly(m); err != nil {
			return m, err
		}
	}
	list, why, err := c.e.candidates(c.v, m, &w)
	if err != nil {
		return m, err
	}
	list = c.withOwn(list)
	if c.planning == "" {
		c.planning = why
		for i := range list {
			c.options = append(c.options, list[i].provider.Name)
		}
	}
	for i := range list {
		last := lastModel && i == len(list)-1
		v, e := c.tryProvider(f, &list[i], last)
		if e == nil {
			return m, nil
		}
		err = e
		if v != nextProvider && v != nextCredential || c.exhausted() {
			break
		}
	}
	return m, err
}

// checkOnly distinguishes, for the option only, an unknown provider from a provider
// without the model.
func (c *call) checkOnly(m *gateway.Model) *hub.Error {
	for _, name := range c.opts.only {
		if c.v.Providers.Get(name) == nil {
			var has []string
			for _, o := range c.e.offersOf(c.v, m) {
				has = append(has, o.provider.Name)
			}
			return wrongOption("only", "providers that are configured, of which "+m.ID+" has: "+strings.Join(has, ", ")+"; there is no "+strconv.Quote(name))
		}
	}
	return nil
}

// tryProvider tries the credentials of one provider in order.
func (c *call) tryProvider(f tryFunc, o *candidate, lastProvider bool) (v verdict, err *hub.Error) {
	for i, cred := range o.credentials {
		last := lastProvider && i == len(o.credentials)-1
		for n := 0; ; n++ {
			if c.exhausted() {
				break
			}
			if err = f(o, cred, last); err == nil {
				return again, nil
			}
			if c.ctx.Err() != nil {
				return giveUp, broken(c.ctx, o.provider.Name, c.ctx.Err())
			}
			v = judge(err)
			c.learn(o, cred, err, v)
			if v == nextProvider && err.Kind == hub.ModelNotFound && cred != nil && cred.BYOK() {
				v = nextCredential // a missing model in one account says nothing about the next account
			}
			if v != again {
				break
			}
			// If another candidate remains, the endpoint is retried only once.
			if n == retries || n == 1 && !last || !c.pause(n, err.RetryAfter) {
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
func (c *call) learn(o *candidate, cred provider.Credential, err *hub.Error, v verdict) {
	if cred == nil || v != nextCredential && err.Kind != hub.RateLimited {
		return
	}
	d := err.RetryAfter
	if d == 0 {
		d = 30 * time.Second
	}
	c.e.board.coolDown(o.provider.Name, cred.ID(), time.Now().Add(min(d, 10*time.Minute)))
}

// pause waits before a retry, and reports whether to retry.
func (c *call) pause(n int, asked time.Duration) bool {
	d := max(pause<<n, min(asked, patience))
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-c.ctx.Done():
		return false
	}
}

// withOwn puts the caller's own token first, for the only provider whose clients send
// such a token.
func (c *call) withOwn(list []candidate) []candidate {
	if c.own == "" {
		return list
	}
	for i := range list {
		if list[i].provider.Name == c.rt.home && !list[i].provider.OperatorOnly {
			list[i].credentials = append([]provider.Credential{ownToken(c.own)}, list[i].credentials...)
		}
	}
	return list
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

// watch cancels an attempt that exceeds its timeouts, and sends keep-alives to the
// client. It uses one timer, which is not reset while data arrives.
type watch struct {
	c      *call
	cancel context.CancelCauseFunc
	due    atomic.Int64 // Unix nanoseconds by which the provider must have been heard
	cause  atomic.Pointer[error]
	keep   atomic.Bool // the provider has begun to answer
	head   func()      // sets the headers of a stream opened by a keep-alive; nil: no such stream
	idle   time.Duration
	pace   time.Duration // maximum interval between checks, because due may have moved closer

	mu    sync.Mutex // held while the timer function runs; guards the following fields
	timer *time.Timer
	over  bool
}

func newWatch(c *call, cancel context.CancelCauseFunc, first, idle time.Duration) *watch {
	w := &watch{c: c, cancel: cancel, idle: idle, pace: min(c.e.cfg.KeepAlive, idle, time.Minute)}
	if c.events {
		hold := c.hold // the only headers known before an answer
		w.head = func() { eventHeaders(c.out.w.Header(), hold) }
	}
	w.expect(first, &errFirstByte)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(min(first, w.pace), w.fire)
	return w
}

// expect sets the next deadline of the provider, and the error that applies after it.
func (w *watch) expect(d time.Duration, cause *error) {
	w.cause.Store(cause)
	w.due.Store(time.Now().Add(d).UnixNano())
}

// patientFactor multiplies the time until the first keep-alive while no provider has
// begun to answer: an error before the first keep-alive has an HTTP status, which clients
// know how to retry.
const patientFactor = 3

func (w *watch) fire() {
	w.mu.Lock() // stop waits for w.mu; afterwards the headers belong to the call again
	defer w.mu.Unlock()
	if w.over {
		return
	}
	now := time.Now()
	rest := time.Duration(w.due.Load() - now.UnixNano())
	if total := w.c.e.cfg.Total - now.Sub(w.c.begun); total <= 0 {
		w.cancel(errTotal)
		return
	} else if rest <= 0 {
		w.cancel(*w.cause.Load())
		return
	} else {
		rest = min(rest, total, w.pace)
	}
	silence := w.c.e.cfg.KeepAlive
	if !w.keep.Load() && !w.c.out.isOpen() {
		silence *= patientFactor
	}
	if w.head != nil {
		rest = min(rest, w.c.out.keepAlive(silence, w.head, w.c.keepAlive))
	}
	w.timer.Reset(rest)
}

func (w *watch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	w.timer.Stop()
}

// keepAlive returns data that clients of the call's format ignore; before the first event
// this is a comment, which every SSE parser ignores.
func (c *call) keepAlive(begun bool) []byte {
	if !begun {
		return sse.AppendComment(nil, "keep-alive")
	}
	return c.rt.surface.NewWriter(c.hubAnswer()).KeepAlive(nil)
}

// attempt calls a provider's language model.
func (c *call) attempt(o *candidate, cred provider.Credential, _ bool) *hub.Error {
	c.events = c.stream
	if slices.Contains(o.provider.Formats, formatScripted) {
		if err := c.admit(o, cred); err != nil {
			return err
		}
		return c.play(o, cred)
	}
	target := o.targetFor(cred)
	streams := c.stream && !c.buffers()
	pass := streams == c.stream && slices.Contains(o.provider.Formats, c.rt.surface.Name()) && c.passes(target)
	var out *hub.Outgoing
	var up hub.Upstream
	var warnings []hub.Warning
	var hide bool
	if pass {
		if err := c.admitAsked(o, cred, c.obj); err != nil {
			return err
		}
		up = c.e.upstreams[c.rt.surface.Name()]
		out, hide = c.passed(target)
	} else {
		if err := c.admit(o, cred); err != nil { // before anything is fetched
			return err
		}
		for _, f := range o.provider.Formats {
			if up = c.e.upstreams[f]; up != nil {
				break
			}
		}
		if up == nil {
			return &hub.Error{Kind: hub.Internal, Message: "internal error", Cause: errors.New("nobody speaks a format of provider " + o.provider.Name)}
		}
		if err := c.decode(); err != nil {
			return err
		}
		var bad error
		c.parsed.Stream = streams
		asked, err := c.withFiles(c.ctx, o, up)
		if err != nil {
			return err
		}
		of := *target
		of.Call, target = asked, &of
		if out, warnings, bad = up.WriteCall(asked, target); bad != nil {
			return asError(bad)
		}
		sent, bad := scan(out.Body)
		if bad != nil {
			return &hub.Error{Kind: hub.BadRequest, Param: "providerOptions", Message: "what the options make of the request is no request: " + bad.Error()}
		}
		if err := c.admitAsked(o, cred, sent); err != nil {
			return err
		}
	}
	if o.unlisted() {
		warnings = append(warnings, hub.Warning{Kind: hub.WarnOther, Message: o.warning()})
	}
	a := c.begin(o, cred)
	a.target, a.stores = target, c.asked.stores && up.Name() == formatResponses
	resp, err := a.send(out, up, streams)
	if err == nil && streams && up.Name() == formatMessages && target.Is(messages.QuirkBedrock) {
		resp.Body = converse.Chunks(resp.Body)
	}
	if err == nil {
		c.serve(a)
		switch {
		case pass && c.stream:
			if m, ok := up.(hub.Mender); ok {
				resp.Body = m.Mend(target, resp.Body)
			}
			err = a.relayStream(resp, up.Tap(target, true), hide)
		case pass:
			err = a.relayWhole(resp, up.Tap(target, false))
		case streams:
			err = a.translateStream(resp, up, warnings)
		default:
			err = a.translateWhole(resp, up, warnings)
		}
	}
	a.finish(err)
	return err
}

// passes reports whether the request can be passed without translation to a target that
// speaks the client's format.
func (c *call) passes(t *hub.Target) bool {
	up := c.e.upstreams[c.rt.surface.Name()]
	if up == nil || c.foreign || !c.plainFor(t) {
		return false
	}
	if picky, ok := up.(interface {
		Passes(*hub.Target, []byte) bool
	}); ok {
		return picky.Passes(t, c.body)
	}
	return !hub.Packed(c.body)
}

// serve records that a provider has begun to work on the call.
func (c *call) serve(a *attempt) { c.started, c.served, c.byok = true, a.o, a.record.BYOK }

// modelFor returns the credential's account's name for the model.
func (o *candidate) modelFor(cred provider.Credential) string {
	if m, ok := cred.(provider.Mapped); ok {
		if name := m.ModelFor(o.model.ID); name != "" {
			return name
		}
	}
	return o.endpoint.Model
}

// targetFor returns the target with the account's model name.
func (o *candidate) targetFor(cred provider.Credential) *hub.Target {
	name := o.modelFor(cred)
	if name == o.target.Model {
		return o.target
	}
	t := *o.target
	t.Model = name
	return &t
}

// attempt is one call to a provider.
type attempt struct {
	c       *call
	o       *candidate
	cred    provider.Credential
	target  *hub.Target // for whom the request was written
	record  gateway.Attempt
	span    trace.Span  // nil without tracing
	sent    http.Header // the headers of its request, with the credential
	head    http.Header // headers set by the format
	ctx     context.Context
	spanCtx context.Context // context of span
	cancel  context.CancelCauseFunc
	watch   *watch
	failed  *hub.Error // error after the client was sent data

	stores   bool        // its provider keeps the answer
	kept     []string    // other ids that the provider keeps
	asked    atomic.Bool // the transport has read the request body
	partly   bool        // some of several requests were answered
	cut      bool        // the answer was unusable, although the provider reported no error
	alone    bool        // the client had left before the answer was there
	unfollow func()
}

// begin starts an attempt; end must be called.
func (c *call) begin(o *candidate, cred provider.Credential) *attempt {
	c.attempts++
	a := &attempt{c: c, o: o, cred: cred, target: o.target, record: gateway.Attempt{
		Model: o.model.ID, Provider: o.provider.Name, ProviderModel: o.modelFor(cred), BYOK: cred != nil && cred.BYOK(), StartedAt: time.Now(),
	}}
	c.current = a
	c.logUnlisted(o.offer)
	a.beginSpan()
	c.hear()
	o.health.begin(a.record.StartedAt)
	first := orDefault(o.provider.FirstByte, defaultFirstByte)
	a.unfollow = a.follow(first)
	if d, ok := c.opts.timeouts[o.provider.Name]; ok {
		first = min(first, d)
	}
	a.watch = newWatch(c, a.cancel, first, orDefault(o.provider.Idle, defaultIdle))
	return a
}

// end records the outcome of an attempt.
func (a *attempt) end(err *hub.Error) {
	a.watch.stop()
	a.cancel(nil)
	a.unfollow()
	c, now := a.c, time.Now()
	took := now.Sub(a.record.StartedAt)
	a.record.Latency = millis(took)
	whole := err
	if whole == nil {
		whole = a.failed
	}
	a.record.OK = whole == nil
	if whole != nil {
		a.record.Error = whole.Message
		if whole.Status != 0 {
			a.record.Status = whole.Status
		}
	}
	c.record.Attempts = append(c.record.Attempts, a.record)
	c.current = nil
	h := a.o.health
	switch {
	case whole == nil:
		o := outcome{}
		if !c.first.IsZero() {
			o.firstToken = c.first.Sub(a.record.StartedAt)
		}
		if n := a.c.outputTokens(); n > 0 && took > 0 {
			o.speed = float64(n) / took.Seconds()
		}
		h.add(now, o)
		c.e.sessions.set(c.session, endpointKey{a.o.provider.Name, a.o.endpoint.Model})
	case blames(whole):
		if h.add(now, outcome{failed: true}) {
			c.e.metrics.CircuitOpened(a.o.provider.Name, a.o.model.ID)
			c.e.log.WarnContext(c.ctx, "a provider fails and is left alone for a while", "provider", a.o.provider.Name, "model", a.o.model.ID,
				"kind", string(whole.Kind), "status", whole.Status) // its message may quote the request
		}
	default:
		h.drop()
	}
	c.e.metrics.Attempted(a.o.provider.Name, a.o.model.ID, a.record.Status, a.record.OK, took)
	a.endSpan(whole, now)
}

// blames reports whether e counts against the endpoint's health, rather than against the
// request, the credential or the client.
func blames(e *hub.Error) bool {
	switch e.Kind {
	case hub.UpstreamFailed, hub.Overloaded, hub.Timeout:
		return e.Provider != "" && (e.Status == 0 || e.Status >= 500 || e.Status == http.StatusRequestTimeout || e.Status == http.StatusOK)
	}
	return false
}

// maxErrorBody is the maximum number of bytes read from an error answer.
const maxErrorBody = 1 << 20

// passedHeaders are passed from clients to providers of the same format.
var passedHeaders = []string{"Anthropic-Version", "Anthropic-Beta", "Openai-Beta"}

// send sends the request and returns the answer if its status and type are usable.
func (a *attempt) send(out *hub.Outgoing, up hub.Upstream, stream bool) (*http.Response, *hub.Error) {
	o, c := a.o, a.c
	u, err := o.url(out.Path)
	if err != nil {
		return nil, &hub.Error{Kind: hub.Internal, Message: "internal error", Cause: err}
	}
	h := make(http.Header, 8)
	a.sent, a.head = h, out.Head
	for name, values := range o.provider.Header {
		h[name] = values
	}
	for name, values := range out.Head {
		h[name] = values
	}
	for _, name := range passedHeaders {
		if v := c.r.Header[name]; v != nil && c.rt.surface != nil && up.Name() == c.rt.surface.Name() {
			h[name] = v
		}
	}
	a.propagate(h)
	if h["Content-Type"] == nil {
		h["Content-Type"] = jsonType
	}
	h["User-Agent"] = userAgent
	h["Accept-Encoding"] = identity
	switch {
	case out.Head["Accept"] != nil: // the format sets its own Accept
	case stream:
		h["Accept"] = eventsType
	default:
		h["Accept"] = jsonType
	}
	body := out.Body
	req := (&http.Request{
		Method: http.MethodPost, URL: u, Host: u.Host, Header: h, ContentLength: int64(len(body)),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Body:    a.asks(body),
		GetBody: func() (io.ReadCloser, error) { return a.asks(body), nil },
	}).WithContext(a.ctx)
	if a.cred != nil {
		if err := a.cred.Authorize(a.ctx, req, body); err != nil {
			e := broken(a.ctx, o.provider.Name, err)
			if e.Kind == hub.Unauthenticated || e.Kind == hub.Forbidden {
				e = &hub.Error{Kind: hub.UpstreamFailed, Status: http.StatusUnauthorized, Provider: o.provider.Name, Message: e.Message, Cause: e}
			}
			return nil, e
		}
	}
	resp, err := c.e.roundTrip(o.provider, req)
	if err != nil {
		return nil, broken(a.ctx, o.provider.Name, err)
	}
	a.record.Status = resp.StatusCode
	if coding := resp.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		resp.Body.Close()
		return nil, &hub.Error{Kind: hub.UpstreamFailed, Status: resp.StatusCode, Provider: o.provider.Name,
			Message: "the provider " + o.provider.Name + " answered with the status " + strconv.Itoa(resp.StatusCode) + " and the content encoding " + strconv.Quote(hub.Redact(coding)) + ", which the gateway did not ask for and does not read"}
	}
	if resp.StatusCode/100 == 2 {
		if wrongType(resp.Header.Get("Content-Type"), stream) {
			defer resp.Body.Close()
			raw, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
			return nil, a.nonsense(up, resp, raw, "an answer of the type "+strconv.Quote(mediaType(resp.Header.Get("Content-Type"))))
		}
		// The provider has begun to answer: from now on the idle timeout applies and
		// keep-alives are sent, unless the request has set a timeout for the first token.
		if d, ok := c.opts.timeouts[o.provider.Name]; ok && stream {
			a.watch.due.Store(a.record.StartedAt.Add(d).UnixNano())
		} else {
			a.heard()
		}
		return resp, nil
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	if err != nil && a.ctx.Err() != nil {
		return nil, broken(a.ctx, o.provider.Name, err)
	}
	if resp.StatusCode < 400 {
		return nil, &hub.Error{Kind: hub.UpstreamFailed, Status: resp.StatusCode, Provider: o.provider.Name,
			Message: "the provider " + o.provider.Name + " answered with the status " + strconv.Itoa(resp.StatusCode)}
	}
	e := up.ReadError(a.target, resp.StatusCode, resp.Header, raw)
	e.Status, e.Provider = resp.StatusCode, o.provider.Name
	return nil, a.redacted(e)
}

// nonsense returns the error for an invalid answer, including the provider's own error
// message if the answer has one.
func (a *attempt) nonsense(up hub.Upstream, resp *http.Response, raw []byte, what string) *hub.Error {
	name := a.o.provider.Name
	e := &hub.Error{Kind: hub.UpstreamFailed, Status: resp.StatusCode, Provider: name, Message: "the provider " + name + " gave " + what}
	if strings.HasSuffix(mediaType(resp.Header.Get("Content-Type")), "json") {
		if said := up.ReadError(a.target, http.StatusBadGateway, resp.Header, raw); said != nil && said.Message != "" {
			e.Message += ": " + said.Message
		}
	}
	return a.redacted(e)
}

// heard starts the idle timeout, because the provider has sent data.
func (a *attempt) heard() {
	a.watch.expect(a.watch.idle, &errIdle)
}

// stream prepares a stream to the client.
func (a *attempt) stream() {
	c := a.c
	c.out.prepare(func() { c.streamHeaders() })
	if _, timed := c.opts.timeouts[a.o.provider.Name]; !timed {
		a.watch.keep.Store(true)
	}
}

// content records the arrival of the first content.
func (a *attempt) content() {
	a.late()
	if a.c.first.IsZero() {
		a.c.first = time.Now()
		a.heard()
		a.watch.keep.Store(a.c.stream)
	}
}

func mediaType(ct string) string {
	m, _, err := mime.ParseMediaType(ct)
	if err != nil {
		return ""
	}
	return m
}

// wrongType reports whether an answer's content type rules out the requested answer. A
// missing type or text/plain is accepted; decoding decides.
func wrongType(ct string, stream bool) bool {
	if strings.Contains(ct, "html") {
		return true
	}
	if stream {
		return strings.HasPrefix(ct, "application/json")
	}
	return strings.HasPrefix(ct, "text/event-stream")
}

var (
	jsonType   = []string{"application/json"}
	eventsType = []string{"text/event-stream"}
	identity   = []string{"identity"}
	userAgent  = []string{"cay/" + cay.Version()}
)

// roundTrip sends a request to a provider, over the network or with Config.Transport.
func (e *Engine) roundTrip(p *provider.Provider, req *http.Request) (*http.Response, error) {
	return e.transport.RoundTrip(req)
}

func millis(d time.Duration) gateway.Millis {
	return gateway.Millis(float64(d.Microseconds()) / 1000)
}
