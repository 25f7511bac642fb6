package gatewayd

import (
	"context"
	"fmt"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"
	"go.opentelemetry.io/otel/trace"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
	"github.com/cayhq/cay/internal/gatewayd/provider"
)

// call is one request to the gateway, from its headers to its record. It belongs to one
// goroutine.
type call struct {
	e       *Engine
	v       *view
	rt      *route
	r       *http.Request
	ctx     context.Context
	out     answer
	id      string
	begun   time.Time
	span    trace.Span      // nil without tracing
	spanCtx context.Context // context of span
	version string

	caller  *ledger.Caller
	own     string // the caller's own token for a provider, sent with the request
	body    []byte
	taken   int64 // bytes taken from the engine's room for body
	arrival *ledger.Arrival
	parts   []formPart // parts of a form body
	media   []string   // modalities of the body besides text; see modalities
	looked  bool       // for media
	obj     *object
	opts    options

	model     string // as asked for
	fallbacks []string
	stream    bool
	events    bool  // the answer is a stream of events, which may begin with comments
	maxOutput int64 // 0: not asked for
	copies    int64 // answers asked for
	foreign   bool  // the request has members of the gateway or of another provider
	answered  bool  // the answer is complete, and must not be sent to the client
	parsed    *hub.Call
	session   string
	rewritten string // why the model differs from the requested one

	files    map[string]*hub.File // fetched files by URL
	hold     ledger.Hold
	need     ledger.Need
	attempts int
	current  *attempt
	record   gateway.Request
	models   []modelAttempt
	planning string
	options  []string // providers that could have been asked, in order

	// The outcome of the call.
	served      *candidate
	byok        bool
	usage       *hub.Usage
	estimated   bool
	outputBytes int64
	unseen      int64 // tokens that the provider may have generated but that did not arrive
	images      int64 // images generated
	heard       int64 // seconds that were transcribed, if the provider counts them
	started     bool  // a provider has begun to work on the call
	first       time.Time
	failure     *hub.Error
	closed      bool // the cost is known
	cost        charge
	said        *said // content of the answer for the span, nil without a span
	asked       *asks // options sent to the current provider, nil if unknown
	lost        lost  // cost of lost attempts
}

// modelAttempt is the range of attempts made for one model.
type modelAttempt struct {
	model    string
	asked    string
	ok       bool
	from, to int // range in record.Attempts
}

// ServeHTTP implements http.Handler. It handles requests to the gateway's own origin.
func (e *Engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := &call{e: e, r: r, ctx: r.Context(), begun: time.Now()}
	c.id = ledger.NewID()
	c.out.w, c.out.rc, c.out.stall, c.out.last = w, http.NewResponseController(w), e.cfg.Stall, c.begun
	h := w.Header()
	id := []string{c.id}
	h["Request-Id"], h["X-Request-Id"], h["X-Cay-Generation-Id"] = id, id, id
	h["X-Content-Type-Options"], h["Cache-Control"] = noSniff, noStore
	if !e.enter() {
		c.rt = e.find(r)
		c.refuse(&hub.Error{Kind: hub.Overloaded, Message: "the gateway is stopping", RetryAfter: time.Second})
		return
	}
	defer e.calls.Done()
	defer c.finish()
	var err *hub.Error
	if c.rt, err = e.route(r); err == nil {
		c.v, c.version = e.now(), c.rt.version
		c.tee()
		c.traced()
		err = c.rt.serve(c)
	}
	if err != nil {
		c.refuse(err)
	}
}

var (
	noSniff = []string{"nosniff"}
	noStore = []string{"no-store"}
)

// finish ends a call, whatever its outcome.
func (c *call) finish() {
	if p := recover(); p != nil {
		c.e.log.ErrorContext(c.ctx, "a call failed by our fault", "request", c.id, "error", fmt.Sprint(p), "stack", string(debug.Stack()))
		c.refuse(&hub.Error{Kind: hub.Internal, Message: "internal error"})
	}
	c.out.end()
	c.settle()
	if t := c.out.collected(); t != nil { // a call without a record is not captured
		t.Discard()
	}
	c.endSpan()
	c.leave()
	if c.e.log.Enabled(c.ctx, -4) {
		_, status, bytes, _ := c.out.state()
		c.e.log.DebugContext(c.ctx, "request", "request", c.id, "method", c.r.Method, "path", c.r.URL.Path,
			"status", status, "bytes", bytes, "took", time.Since(c.begun))
	}
}

// refuse sends an error in the client's format, unless an answer has been sent.
func (c *call) refuse(err *hub.Error) {
	if c.failure == nil {
		c.failure = err
	}
	if err.Kind == hub.Internal && err.Cause != nil {
		c.e.log.ErrorContext(c.ctx, "a call failed by our fault", "request", c.id, "error", err.Cause)
	}
	if begun, _, _, _ := c.out.state(); begun && !c.out.drop() {
		return
	}
	h := c.out.w.Header()
	if c.hold != nil {
		c.hold.Limits(h)
	}
	if c.out.isOpen() { // the status 200 has been sent already
		_ = c.out.send(c.rt.surface.NewWriter(c.hubAnswer()).Append(nil, &hub.Event{Kind: hub.Failure, Err: err}))
		return
	}
	status, body := c.rt.surface.WriteError(c.hubAnswer(), err, h)
	c.out.whole(status, "application/json", body)
}

// hubAnswer returns the hub.Answer for the client's format.
func (c *call) hubAnswer() hub.Answer {
	return hub.Answer{ID: c.id, Model: c.model, Version: c.version, Call: c.parsed, Metadata: c.metadata}
}

// authenticate determines the caller.
func (c *call) authenticate() *hub.Error {
	secret, own, err := secrets(c.r.Header)
	if err != nil {
		return err
	}
	c.own = own
	caller, bad := c.e.cfg.Ledger.Authenticate(c.ctx, secret)
	if bad != nil {
		return asError(bad)
	}
	c.caller = caller
	return nil
}

// maxSecret is the maximum length of a secret in bytes; a token can be a JSON Web Token.
const maxSecret = 8 << 10

// secrets returns the gateway secret of a request, from x-ai-gateway-api-key, else from
// authorization, else from x-api-key. If x-ai-gateway-api-key is set, authorization holds
// the caller's own token for a provider.
func secrets(h http.Header) (secret, own string, err *hub.Error) {
	bearer := func(v string) string {
		if len(v) > 7 && strings.EqualFold(v[:7], "bearer ") {
			return strings.TrimSpace(v[7:])
		}
		return ""
	}
	authorization := h["Authorization"]
	if len(authorization) > 1 {
		return "", "", &hub.Error{Kind: hub.Unauthenticated, Message: "the request has more than one authorization header"}
	}
	if v := h.Get("X-Ai-Gateway-Api-Key"); v != "" {
		if secret = bearer(v); secret == "" {
			secret = v
		}
		if len(authorization) == 1 {
			own = bearer(authorization[0])
		}
	} else if len(authorization) == 1 {
		if secret = bearer(authorization[0]); secret == "" {
			return "", "", &hub.Error{Kind: hub.Unauthenticated, Message: "the authorization header is not of the form Bearer <key>"}
		}
	} else {
		secret = h.Get("X-Api-Key")
	}
	switch {
	case secret == "":
		return "", "", &hub.Error{Kind: hub.Unauthenticated, Message: "the request has no key; send the header authorization: Bearer <key>"}
	case len(secret) > maxSecret:
		return "", "", &hub.Error{Kind: hub.Unauthenticated, Message: "the key is not valid"}
	}
	return secret, own, nil
}

// understand reads the parts of the request that the gateway needs, and decodes no more.
func (c *call) understand() *hub.Error {
	var err error
	if c.obj, err = scan(c.body); err != nil {
		return &hub.Error{Kind: hub.BadRequest, Code: "invalid_json", Message: err.Error()}
	}
	if err := c.spelling(); err != nil {
		return err
	}
	if c.rt.header {
		c.model = c.r.Header.Get(c.rt.modelHeader)
		if v := c.r.Header.Get(c.rt.versionHeader); v != "" {
			c.version = clip(v)
		}
		c.stream = c.r.Header.Get("Ai-Language-Model-Streaming") == "true"
	} else {
		m := c.obj.get("model")
		if len(m) > 0 && m[0] != '"' {
			return &hub.Error{Kind: hub.BadRequest, Param: "model", Message: "model is no text; it must be one such as openai/gpt-5"}
		}
		if len(m) == 0 {
			return &hub.Error{Kind: hub.BadRequest, Param: "model", Message: "model is missing; it must be a text such as openai/gpt-5"}
		}
		c.model = gjson.ParseBytes(m).Str
		switch stream := string(c.obj.get("stream")); stream {
		case "true":
			c.stream = true
		case "", "false", "null":
		default:
			return &hub.Error{Kind: hub.BadRequest, Param: "stream", Message: "stream must be true or false"}
		}
	}
	if c.model == "" || len(c.model) > maxText {
		return &hub.Error{Kind: hub.BadRequest, Param: "model", Message: "the model must be named, in at most " + strconv.Itoa(maxText) + " bytes"}
	}
	for _, name := range c.rt.limits { // all of them, because providers differ in which one they read
		n, err := c.number(name, 0, 1e12)
		if err != nil {
			return err
		}
		c.maxOutput = max(c.maxOutput, n)
	}
	var bad *hub.Error
	if c.copies, bad = c.number("n", 1, 128); bad != nil {
		return bad
	}
	c.copies = max(1, c.copies)
	if raw := c.obj.get("background"); raw != nil && c.rt.name == formatResponses && string(raw) != "false" && string(raw) != "null" {
		return &hub.Error{Kind: hub.BadRequest, Param: "background", Code: "not_supported", Message: "the gateway does not pass on calls in the background: it could not tell what they cost; leave background out"}
	}
	return c.readExtras()
}

// number returns a member that is a whole number from low to high, 0 if the member is
// missing.
func (c *call) number(name string, low, high float64) (int64, *hub.Error) {
	raw := c.obj.get(name)
	if raw == nil || string(raw) == "null" {
		return 0, nil
	}
	f := gjson.ParseBytes(raw)
	if f.Type != gjson.Number || f.Num < low || f.Num > high || f.Num != float64(int64(f.Num)) {
		return 0, &hub.Error{Kind: hub.BadRequest, Param: name, Message: fmt.Sprintf("%s must be a whole number from %.0f to %.0f", name, low, high)}
	}
	return int64(f.Num), nil
}

// watched are the members that determine permissions and cost. Some servers ignore the
// case of names, so a watched name in any other case is refused.
var watched = []string{
	"model", "models", "stream", "stream_options", "n", "max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens",
	"service_tier", "providerOptions", "background", "tools", "speed",
}

func (c *call) spelling() *hub.Error {
	for i := range c.obj.members {
		key := c.obj.members[i].key
		for _, name := range watched {
			if key != name && len(key) == len(name) && strings.EqualFold(key, name) {
				return &hub.Error{Kind: hub.BadRequest, Param: clip(key), Message: fmt.Sprintf("%.64q is not a member of the request; write it %s", key, name)}
			}
		}
	}
	return nil
}

// readExtras reads the gateway's own options.
func (c *call) readExtras() (bad *hub.Error) {
	if raw := c.obj.get("providerOptions"); raw != nil {
		all := gjson.ParseBytes(raw)
		if !all.IsObject() && all.Type != gjson.Null {
			return &hub.Error{Kind: hub.BadRequest, Param: "providerOptions", Message: "providerOptions must be an object"}
		}
		all.ForEach(func(key, v gjson.Result) bool {
			if key.Str != "gateway" {
				c.foreign = true
				return true
			}
			c.opts, bad = readOptions([]byte(v.Raw))
			return bad == nil
		})
	}
	if raw := c.obj.get("models"); raw != nil && !c.rt.header && bad == nil {
		c.opts.models, bad = texts("models", gjson.ParseBytes(raw))
	}
	h := c.r.Header
	if bad == nil {
		bad = c.opts.readHeaders(h)
	}
	for _, name := range [...]string{"X-Claude-Code-Session-Id", "X-Session-Id", "Session_id", "X-Cay-Workflow-Run"} {
		if c.session = h.Get(name); c.session != "" {
			c.session = clip(c.session)
			break
		}
	}
	return bad
}

func clip(s string) string { return s[:min(len(s), maxText)] }

// user returns the caller's end user, if the request names one.
func (c *call) user() string {
	switch {
	case c.opts.entity != "":
		return c.opts.entity
	case c.opts.user != "":
		return c.opts.user
	}
	if raw := c.obj.get("user"); raw != nil {
		return clip(gjson.ParseBytes(raw).Str)
	}
	if raw := c.obj.get("metadata"); raw != nil {
		return clip(gjson.GetBytes(raw, "user_id").Str)
	}
	return ""
}

// decode decodes the request on the first call.
func (c *call) decode() *hub.Error {
	if c.parsed != nil {
		return nil
	}
	parsed, err := c.rt.surface.ReadCall(c.r.Header, c.body)
	if err != nil {
		return asError(err)
	}
	if c.capped() {
		parsed.MaxOutputTokens = &c.maxOutput
	}
	if c.opts.tier != "" {
		parsed.ServiceTier = c.opts.tier
	}
	for _, name := range c.opts.unknown {
		parsed.Warnings = append(parsed.Warnings, hub.Warning{Kind: hub.WarnUnsupported, Feature: "providerOptions.gateway." + name})
	}
	if c.opts.autoCache {
		markCache(parsed)
	}
	parsed.Stream = c.stream
	c.parsed = parsed
	return nil
}

// capped reports whether the key's scope sets the output limit, because the request sets
// none.
func (c *call) capped() bool {
	return len(c.rt.limits) > 0 && c.caller.Key != nil && c.caller.Key.MaxOutputTokens > 0 && c.maxOutput == c.caller.Key.MaxOutputTokens
}

// markCache marks the end of the prompt's stable part, for providers that need an
// explicit cache marker.
func markCache(p *hub.Call) {
	for i := len(p.Prompt) - 1; i >= 0; i-- {
		if m := &p.Prompt[i]; m.Role == hub.System {
			if m.Options["anthropic"]["cacheControl"] == nil {
				m.Options.SetRaw("anthropic", "cacheControl", []byte(`{"type":"ephemeral"}`))
			}
			if m.Options["bedrock"]["cachePoint"] == nil {
				m.Options.SetRaw("bedrock", "cachePoint", []byte(`{"type":"default"}`))
			}
			return
		}
	}
}

// about copies what is known of the call into its record.
func (c *call) about() {
	h, r := c.r.Header, &c.record
	r.ID, r.CreatedAt = c.id, c.begun
	r.TeamID, r.ProjectID, r.KeyID = c.caller.TeamID, c.caller.ProjectID, c.caller.KeyID
	r.User, r.Tags, r.Session = c.caller.User, c.caller.Tags, c.session
	r.Deployment = clip(h.Get("Ai-O11y-Deployment-Id"))
	if title, referer := h.Get("X-Title"), h.Get("Http-Referer"); title != "" || referer != "" {
		r.App = clip(strings.TrimSpace(title + " " + referer))
	}
	r.Surface, r.Kind, r.Model, r.Streamed = c.rt.name, c.rt.kind, c.model, c.stream
}

// admit asks the ledger to admit the call, or to raise its maximum cost.
func (c *call) admit(o *candidate, cred provider.Credential) *hub.Error {
	return c.admitted(c.needOf(o.offer, cred != nil && cred.BYOK(), nil))
}

// admitAsked is admit for a body that is ready to be sent.
func (c *call) admitAsked(o *candidate, cred provider.Credential, body *object) *hub.Error {
	asked, err := readAsks(body, body == c.obj)
	if err == nil {
		err = c.allow(asked, o.offer)
	}
	if err == nil {
		asked.before, err = c.owned(body, o.offer, cred)
	}
	if err != nil {
		return err
	}
	asked.stores = stores(body)
	return c.admitted(c.needOf(o.offer, cred != nil && cred.BYOK(), asked))
}

func (c *call) admitted(need ledger.Need) *hub.Error {
	need.Arrival = c.arrival
	if c.hold == nil {
		hold, err := c.e.cfg.Ledger.Admit(c.ctx, c.caller, need)
		if err != nil {
			return asError(err)
		}
		c.hold, c.need = hold, need
		c.e.metrics.Began()
		return nil
	}
	if need.Spent == c.need.Spent && need.Cost <= c.need.Cost && need.Tokens <= c.need.Tokens && need.Unpriced == c.need.Unpriced && need.BYOK == c.need.BYOK {
		return nil
	}
	need.Cost, need.Tokens = max(need.Cost, c.need.Cost), max(need.Tokens, c.need.Tokens)
	if err := c.hold.Raise(c.ctx, need); err != nil {
		return asError(err)
	}
	c.need = need
	return nil
}

// language serves a language model call.
func (c *call) language() *hub.Error {
	if err := c.prepared(); err != nil {
		return err
	}
	if c.again() {
		return nil
	}
	return c.try(c.attempt)
}

// decide determines the models that may be tried, by rules, scope, guards.
func (c *call) decide() *hub.Error {
	caller := *c.caller // a copy: the ledger's Caller must not change
	caller.User = c.user()
	if len(c.opts.tags) > 0 {
		caller.Tags = append(append([]string(nil), caller.Tags...), c.opts.tags...)
	}
	c.caller = &caller
	c.about()
	name := c.model
	if c.v.Route != nil {
		p, err := c.v.Route(c.caller, name)
		if err != nil {
			return asError(err)
		}
		name = c.apply(p, name)
	}
	if len(c.opts.models) > 15 {
		return wrongOption("models", "at most 15 models")
	}
	c.fallbacks = append(make([]string, 0, 16), name)
	for _, other := range c.opts.models { // rules and guards apply to all models
		if c.v.Route != nil {
			p, err := c.v.Route(c.caller, other)
			if err != nil {
				return asError(err)
			}
			if p.Model != "" {
				other = p.Model
			}
		}
		if err := c.guard(other); err != nil {
			return err
		}
		c.fallbacks = append(c.fallbacks, other)
	}
	if key := c.caller.Key; key != nil {
		if most := key.MaxOutputTokens; most > 0 {
			if c.maxOutput > most {
				return &hub.Error{Kind: hub.Forbidden, Code: "max_output_tokens", Message: fmt.Sprintf("this key may ask for at most %d output tokens, not %d", most, c.maxOutput)}
			}
			if c.maxOutput == 0 {
				c.maxOutput = most
			}
		}
	}
	return c.guard(name)
}

// apply applies the operator's preset for a model name.
func (c *call) apply(p Preset, name string) string {
	if p.Model != "" && p.Model != name {
		c.rewritten = name
		name = p.Model
	}
	if len(c.opts.models) == 0 {
		c.opts.models = p.Models
	}
	if len(c.opts.order) == 0 {
		c.opts.order = p.Order
	}
	if len(p.Only) > 0 {
		if c.opts.only == nil {
			c.opts.only = p.Only
		} else {
			c.opts.only = intersect(c.opts.only, p.Only)
		}
	}
	if c.opts.sort == "" {
		c.opts.sort = p.Sort
	}
	c.opts.zeroData = c.opts.zeroData || p.ZeroData
	c.opts.noTraining = c.opts.noTraining || p.NoTraining
	c.opts.autoCache = c.opts.autoCache || p.AutoCache
	c.opts.has = append(c.opts.has, p.Has...)
	if c.opts.tier == "" {
		c.opts.tier = p.ServiceTier
	}
	return name
}

func intersect(a, b []string) []string {
	both := []string{}
	for _, s := range a {
		for _, o := range b {
			if s == o {
				both = append(both, s)
				break
			}
		}
	}
	return both
}
