package gatewayd

import (
	"context"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/asks"
	"github.com/cayhq/cay/internal/gatewayd/charge"
	"github.com/cayhq/cay/internal/gatewayd/endpoint"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/plan"
	"github.com/cayhq/cay/internal/gatewayd/provider"
	"github.com/cayhq/cay/internal/gatewayd/scan"
	"github.com/cayhq/cay/internal/sse"
)

// Default timeouts of a provider.
const (
	defaultFirstByte = 5 * time.Minute
	defaultIdle      = 2 * time.Minute
)

// exchange is one attempt: a request to a provider, and its answer on the way to the
// client. It writes to the client's answer and to its own fields, and reads the rest.
type exchange struct {
	e    *Engine
	v    *plan.View
	cl   *client
	host host

	o      *plan.Candidate
	cred   provider.Credential
	target *hub.Target // for whom the request was written
	record gateway.Attempt
	span   attemptSpan
	sent   sentHeaders
	run
	result
	progress
}

// host is the call of an exchange, as far as an exchange needs it.
type host interface {
	// reserve reserves the maximum cost of a request to a provider.
	reserve(o *plan.Candidate, cred provider.Credential, sent *scan.Object) (*asks.Asks, *hub.Error)
	// charge returns the cost of the call as known so far.
	charge() charge.Cost
	// limits sets the headers of the caller's limits.
	limits(h http.Header)
	hubAnswer() hub.Answer
	metadata() []byte
	// guarded applies the guards to a whole answer, and returns the answer to send.
	guarded(body []byte) ([]byte, *hub.Error)
}

var _ host = (*call)(nil)

// run is an exchange under way.
type run struct {
	ctx      context.Context
	cancel   context.CancelCauseFunc
	unfollow func()
	watch    *watch
}

// sentHeaders are the headers of the request to the provider.
type sentHeaders struct {
	all  http.Header // with the credential
	head http.Header // set by the format
}

// result is what a provider has answered.
type result struct {
	charge.Result
	first        time.Time // of the first content
	finishReason string
	stores       bool     // the provider keeps the answer
	kept         []string // other ids that the provider keeps
	transcript   *transcript
}

// progress says how far an exchange has come.
type progress struct {
	bodyRead       atomic.Bool // the transport has read the request body
	serving        bool        // the client gets this answer, as far as known
	ended          bool
	partlyAnswered bool       // some of several requests were answered
	unusable       bool       // the answer was unusable, although the provider reported no error
	clientLeft     bool       // the client had left before the answer was there
	withheld       bool       // the answer is complete, and must not be sent to the client
	failed         *hub.Error // error after the client was sent data
}

// guarded applies the guards to a whole answer and returns the answer to send.
func (c *call) guarded(body []byte) ([]byte, *hub.Error) {
	return c.v.Guarded(c.ctx, c.caller, c.plan.Models[0], body)
}

// keepAlive returns data that clients of the call's format ignore; before the first event
// this is a comment, which every SSE parser ignores.
func (x *exchange) keepAlive(begun bool) []byte {
	if !begun {
		return sse.AppendComment(nil, "keep-alive")
	}
	return x.newWriter().KeepAlive(nil)
}

// newWriter returns an encoder of the client's format.
func (x *exchange) newWriter() hub.Writer { return x.cl.rq.Route.Surface.NewWriter(x.host.hubAnswer()) }

// end records the outcome of an attempt.
func (x *exchange) end(err *hub.Error) {
	x.watch.stop()
	x.cancel(nil)
	x.unfollow()
	now := time.Now()
	took := now.Sub(x.record.StartedAt)
	x.record.Latency = millis(took)
	whole := err
	if whole == nil {
		whole = x.failed
	}
	x.record.OK = whole == nil
	if whole != nil {
		x.record.Error = whole.Message
		if whole.Status != 0 {
			x.record.Status = whole.Status
		}
	}
	x.ended = true
	h := x.o.Health
	switch {
	case whole == nil:
		o := endpoint.Outcome{}
		if !x.first.IsZero() {
			o.FirstToken = x.first.Sub(x.record.StartedAt)
		}
		if n := x.OutputTokens(); n > 0 && took > 0 {
			o.Speed = float64(n) / took.Seconds()
		}
		h.Add(now, o)
		x.e.sessions.Set(x.cl.rq.Session, endpoint.Key{Provider: x.o.Provider.Name, Model: x.o.Endpoint.Model})
	case blames(whole):
		if h.Add(now, endpoint.Outcome{Failed: true}) {
			x.e.metrics.CircuitOpened(x.o.Provider.Name, x.o.Model.ID)
			x.e.log.WarnContext(x.cl.ctx, "a provider fails and is left alone for a while", "provider", x.o.Provider.Name, "model", x.o.Model.ID,
				"kind", string(whole.Kind), "status", whole.Status) // its message may quote the request
		}
	default:
		h.Drop()
	}
	x.e.metrics.Attempted(x.o.Provider.Name, x.o.Model.ID, x.record.Status, x.record.OK, took)
	x.span.end(&x.record, whole, now)
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

// forwardedHeaders are forwarded from clients to providers of the same format.
var forwardedHeaders = []string{"Anthropic-Version", "Anthropic-Beta", "Openai-Beta"}

// send sends the request and returns the answer if its status and type are usable.
func (x *exchange) send(out *hub.Outgoing, up hub.Upstream, stream bool) (*http.Response, *hub.Error) {
	o, rq := x.o, &x.cl.rq
	u, err := o.URL(out.Path)
	if err != nil {
		return nil, &hub.Error{Kind: hub.Internal, Message: "internal error", Cause: err}
	}
	h := make(http.Header, 8)
	x.sent = sentHeaders{h, out.Head}
	for name, values := range o.Provider.Header {
		h[name] = values
	}
	for name, values := range out.Head {
		h[name] = values
	}
	for _, name := range forwardedHeaders {
		if v := rq.HTTP.Header[name]; v != nil && rq.Route.Surface != nil && up.Name() == rq.Route.Surface.Name() {
			h[name] = v
		}
	}
	x.span.propagate(rq.HTTP.Header, h)
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
		Body:    x.requestBody(body),
		GetBody: func() (io.ReadCloser, error) { return x.requestBody(body), nil },
	}).WithContext(x.ctx)
	if x.cred != nil {
		if err := x.cred.Authorize(x.ctx, req, body); err != nil {
			e := broken(x.ctx, o.Provider.Name, err)
			if e.Kind == hub.Unauthenticated || e.Kind == hub.Forbidden {
				e = &hub.Error{Kind: hub.UpstreamFailed, Status: http.StatusUnauthorized, Provider: o.Provider.Name, Message: e.Message, Cause: e}
			}
			return nil, e
		}
	}
	resp, err := x.e.roundTrip(o.Provider, req)
	if err != nil {
		return nil, broken(x.ctx, o.Provider.Name, err)
	}
	x.record.Status = resp.StatusCode
	if coding := resp.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		resp.Body.Close()
		return nil, &hub.Error{Kind: hub.UpstreamFailed, Status: resp.StatusCode, Provider: o.Provider.Name,
			Message: "the provider " + o.Provider.Name + " answered with the status " + strconv.Itoa(resp.StatusCode) + " and the content encoding " + strconv.Quote(hub.Redact(coding)) + ", which the gateway did not ask for and does not read"}
	}
	if resp.StatusCode/100 == 2 {
		if wrongType(resp.Header.Get("Content-Type"), stream) {
			defer resp.Body.Close()
			raw, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
			return nil, x.nonsense(up, resp, raw, "an answer of the type "+strconv.Quote(mediaType(resp.Header.Get("Content-Type"))))
		}
		// The provider has begun to answer: from now on the idle timeout applies and
		// keep-alives are sent, unless the request has set a timeout for the first token.
		if d, ok := rq.Options.Timeouts[o.Provider.Name]; ok && stream {
			x.watch.due.Store(x.record.StartedAt.Add(d).UnixNano())
		} else {
			x.extend()
		}
		return resp, nil
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	if err != nil && x.ctx.Err() != nil {
		return nil, broken(x.ctx, o.Provider.Name, err)
	}
	if resp.StatusCode < 400 {
		return nil, &hub.Error{Kind: hub.UpstreamFailed, Status: resp.StatusCode, Provider: o.Provider.Name,
			Message: "the provider " + o.Provider.Name + " answered with the status " + strconv.Itoa(resp.StatusCode)}
	}
	e := up.ReadError(x.target, resp.StatusCode, resp.Header, raw)
	e.Status, e.Provider = resp.StatusCode, o.Provider.Name
	return nil, x.redacted(e)
}

// nonsense returns the error for an invalid answer, including the provider's own error
// message if the answer has one.
func (x *exchange) nonsense(up hub.Upstream, resp *http.Response, raw []byte, what string) *hub.Error {
	name := x.o.Provider.Name
	e := &hub.Error{Kind: hub.UpstreamFailed, Status: resp.StatusCode, Provider: name, Message: "the provider " + name + " gave " + what}
	if strings.HasSuffix(mediaType(resp.Header.Get("Content-Type")), "json") {
		if theirs := up.ReadError(x.target, http.StatusBadGateway, resp.Header, raw); theirs != nil && theirs.Message != "" {
			e.Message += ": " + theirs.Message
		}
	}
	return x.redacted(e)
}

// extend starts the idle timeout anew, because the provider has sent data.
func (x *exchange) extend() {
	x.watch.expect(x.watch.idle, &errIdle)
}

// stream prepares a stream to the client.
func (x *exchange) stream() {
	x.cl.out.prepare(x.streamHeaders)
	if _, timed := x.cl.rq.Options.Timeouts[x.o.Provider.Name]; !timed {
		x.watch.keep.Store(true)
	}
}

// firstContent records the arrival of the first content.
func (x *exchange) firstContent() {
	x.noteClient()
	if x.first.IsZero() {
		x.first = time.Now()
		x.extend()
		x.watch.keep.Store(x.cl.rq.Stream)
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
