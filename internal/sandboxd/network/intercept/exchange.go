package intercept

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/network/policy"
	"github.com/cayhq/cay/internal/sandboxd/network/sniff"
	"github.com/cayhq/cay/internal/sandboxd/upload"
	"github.com/cayhq/cay/sandbox"
)

// deniedHeader names the rule in responses that the proxy makes itself because the
// request, or its server, is invalid.
const deniedHeader = "Cay-Denied"

// ruleMisdirected is the rule of requests whose host or port differs from the host or
// port of their connection.
const ruleMisdirected = "host must match connection"

// Bounds of the fields in records of requests, in bytes.
const (
	maxPath   = 512
	maxMethod = 64
)

func cut(s string, size int) string { return s[:min(len(s), size)] }

// exchange is a request and its response, which is written to the guest's ResponseWriter.
type exchange struct {
	http.ResponseWriter
	guest *guest
	host  authority
	rule  *policy.Rule // nil: the request passes unchanged
	token string       // for the receiver of a forwarded request
	gen   *generation  // of the Upstream; nil until the request is sent on
	body  *upload.Body // of the request; nil until then

	request *http.Request                   // as it was decided about
	policy  *policy.Policy                  // that has decided
	cancel  context.CancelCauseFunc         // ends it; nil until the request is sent on
	cut     atomic.Pointer[policy.Decision] // why it was ended: of a newer policy

	flow     sandbox.Flow
	ingress  atomic.Int64
	egress   atomic.Int64
	address  atomic.Pointer[string] // that was dialled
	cutOff   atomic.Pointer[error]  // why the request's body was not read to its end
	complete bool                   // the response was
}

type exchangeKey struct{}

func exchangeOf(ctx context.Context) *exchange { return ctx.Value(exchangeKey{}).(*exchange) }

// handle serves one request.
func (p *Proxy) handle(w http.ResponseWriter, r *http.Request) {
	g := guestOf(r.Context())
	g.exchanges.Add(1)
	defer g.exchanges.Done()
	x := &exchange{ResponseWriter: w, guest: g, flow: g.flow()}
	x.flow.Method = cut(r.Method, maxMethod)
	x.flow.Path = cut(r.URL.EscapedPath(), maxPath)
	defer func() {
		fault := recover()
		x.end(r)
		if fault == nil {
			return
		}
		if fault != http.ErrAbortHandler {
			// A panic's value may quote the request, but errors of the runtime do not.
			err, _ := fault.(runtime.Error)
			p.log.Error("request handler panicked", "type", fmt.Sprintf("%T", fault), "error", err, "stack", string(debug.Stack()))
		}
		panic(http.ErrAbortHandler) // ends the connection, or the HTTP/2 stream
	}()
	if x.decide(r) {
		x.act(p, r)
	}
	x.complete = true
}

// decide sets the rule for the request and returns true if the request may go on.
// Otherwise it has answered.
func (x *exchange) decide(r *http.Request) bool {
	s := x.guest.session
	if r.Method == http.MethodConnect {
		return x.deny(http.StatusMethodNotAllowed, ruleMalformed, "CONNECT is for proxies, and this is none")
	}
	if bad := sniff.CheckTarget(r.RequestURI); bad != nil { // HTTP/1 has come through the filter
		return x.deny(http.StatusBadRequest, ruleMalformed, bad.Error())
	}
	var err error
	if x.host, err = requestAuthority(r); err != nil {
		return x.deny(http.StatusBadRequest, ruleMalformed, "bad HTTP request: "+err.Error())
	}
	delete(r.Header, "Host")
	switch d := s.Refusal; {
	case d != nil:
		x.flow.Name = x.host.host()
		return x.deny(http.StatusForbidden, d.Rule, d.Reason)
	case x.guest.secure && x.host.name != s.Name:
		return x.deny(http.StatusMisdirectedRequest, ruleMisdirected,
			fmt.Sprintf("the request is for %q, but the connection was opened for %q", x.host, s.Name))
	case x.host.port != 0 && x.host.port != s.Port:
		return x.deny(http.StatusMisdirectedRequest, ruleMisdirected,
			fmt.Sprintf("the request is for %q, but the connection was opened to port %d", x.host, s.Port))
	case x.host.name == "":
		return x.deny(http.StatusForbidden, "not in allow", fmt.Sprintf("%v is an address, which only allow_cidrs of the network policy can allow", x.host.ip))
	}
	x.flow.Name = x.host.name
	r.Host = x.host.String() // the form in which it is sent on, for the rules
	dropUpgrade(r)
	dropHopByHop(r.Header)

	x.request, x.policy = r, s.Policy()
	decision, domain := x.policy.Name(x.host.name, s.Port)
	if decision.Verdict != policy.Allow {
		return x.deny(http.StatusForbidden, decision.Rule, decision.Reason)
	}
	x.flow.Verdict, x.flow.Rule = sandbox.Allowed, decision.Rule
	x.rule = domain.Match(r)
	if x.rule == nil {
		return true
	}
	x.flow.Rule = x.rule.Text
	switch {
	case x.rule.Deny:
		return x.deny(http.StatusForbidden, x.rule.Text, x.rule.Reason)
	case len(x.rule.SetHeaders) > 0 && !x.guest.secure && !decision.PortListed:
		return x.deny(http.StatusForbidden, x.rule.Text, fmt.Sprintf(
			"the rule sets headers, and the network policy does not list port %d, at which they would go out unencrypted: use https", s.Port))
	case x.rule.Scrub && r.Header.Get("Upgrade") != "":
		return x.deny(http.StatusForbidden, x.rule.Text, "responses to this request are scrubbed, which an upgraded connection does not allow")
	case x.rule.SetHeaders != nil && strings.EqualFold(r.Method, http.MethodTrace):
		return x.deny(http.StatusMethodNotAllowed, x.rule.Text, "the network policy sets headers of this request, and "+r.Method+" asks the server to show them")
	case x.rule.Forward != nil && escapes(r.URL.Path):
		return x.deny(http.StatusBadRequest, x.rule.Text, "the request is forwarded, and its path has dot segments in it")
	}
	return true
}

// act carries out the rule for an allowed request.
func (x *exchange) act(p *Proxy, r *http.Request) {
	if x.rule != nil && x.rule.Respond != nil {
		x.respond(x.rule.Respond)
		return
	}
	ctx, cancel := context.WithCancelCause(context.WithValue(r.Context(), exchangeKey{}, x))
	defer cancel(nil)
	x.cancel = cancel
	if !x.identify(ctx, p) {
		return
	}
	u := x.guest.session.Upstream
	if !u.acquire(x) {
		x.deny(http.StatusServiceUnavailable, "limit requests", fmt.Sprintf("%d requests of the sandbox are under way, and that is the limit", maxRequests))
		return
	}
	defer u.release(x)
	// The policy may have changed before Reset could see this one.
	if x.rejudge(); x.failCut() {
		return
	}
	if r.ProtoMajor == 1 {
		// A server may answer before it has the whole request. EnableFullDuplex fails
		// only for HTTP/2, where net/http always allows it.
		_ = http.NewResponseController(x.ResponseWriter).EnableFullDuplex()
	}
	x.body = upload.New(x.ResponseWriter, r)
	defer x.body.Finish()
	p.reverse.ServeHTTP(x, r.WithContext(ctx))
	// A server whose connection is cut may still end its response in good order. The
	// guest must not take such a response for complete.
	if x.cut.Load() != nil && x.flow.Verdict == sandbox.Allowed {
		panic(http.ErrAbortHandler)
	}
}

// identify gets the token for a forwarded request. If that fails, identify answers the
// request with 502 and returns false.
func (x *exchange) identify(ctx context.Context, p *Proxy) bool {
	token := x.guest.session.ForwardToken
	if token == nil || x.rule == nil || x.rule.Forward == nil {
		return true
	}
	var err error
	if x.token, err = token(ctx, audience(x.rule.Forward)); err != nil {
		if ctx.Err() == nil {
			p.log.Error("no token for a forwarded request", "error", err)
		}
		return x.refuse(http.StatusBadGateway, sandbox.Broken, x.rule.Text, "the daemon could not make the token that goes with a forwarded request")
	}
	return true
}

// rejudge ends a request under way that today's policy denies.
func (x *exchange) rejudge() {
	s := x.guest.session
	p := s.Policy()
	if p == x.policy {
		return
	}
	d, domain := p.Name(x.host.name, s.Port)
	if d.Verdict == policy.Allow {
		rule := domain.Match(x.request)
		if rule == nil || !rule.Deny {
			return
		}
		d = policy.Decision{Rule: rule.Text, Reason: rule.Reason}
	}
	d.Reason = "cut by a change of the network policy: " + d.Reason
	x.cut.CompareAndSwap(nil, &d)
	x.cancel(&Refused{Rule: d.Rule, Reason: d.Reason})
}

// failCut answers a request that a newer policy has ended; it returns false if none has.
func (x *exchange) failCut() bool {
	d := x.cut.Load()
	if d != nil {
		x.deny(http.StatusForbidden, d.Rule, d.Reason)
	}
	return d != nil
}

func (x *exchange) respond(with *sandbox.Response) {
	h := x.Header()
	if with.Body != "" {
		h.Set("Content-Type", "text/plain; charset=utf-8")
	}
	for name, value := range with.Headers {
		h.Set(name, value)
	}
	x.WriteHeader(with.Status)
	_, _ = io.WriteString(x, with.Body) // the guest may have left
}

// deny answers the request, and returns false.
func (x *exchange) deny(status int, rule, reason string) bool {
	return x.refuse(status, sandbox.Denied, rule, reason)
}

func (x *exchange) refuse(status int, verdict sandbox.Verdict, rule, reason string) bool {
	x.flow.Verdict, x.flow.Rule, x.flow.Reason, x.flow.Status = verdict, rule, x.redact(reason), status
	h := x.Header()
	clear(h)
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set(deniedHeader, rule)
	x.WriteHeader(status)
	_, _ = io.WriteString(x, explain(x.flow)) // the guest may have left
	return false
}

// explain tells a guest's user why the response does not come from the server.
func explain(f sandbox.Flow) string {
	var b strings.Builder
	what := f.Protocol + " request"
	if f.Method != "" {
		what = fmt.Sprintf("%s %s://%s%s", f.Method, f.Protocol, f.Name, f.Path)
	}
	switch {
	case f.Verdict != sandbox.Denied:
		fmt.Fprintf(&b, "This request failed on its way out of the sandbox.\n")
	case f.Status == http.StatusForbidden:
		fmt.Fprintf(&b, "This request is denied by the sandbox's network policy.\n")
	default:
		fmt.Fprintf(&b, "This request is not let out of the sandbox.\n")
	}
	fmt.Fprintf(&b, "Request: %s\nRule: %s\nReason: %s\n", what, f.Rule, f.Reason)
	if f.Verdict == sandbox.Denied && f.Status == http.StatusForbidden {
		fmt.Fprintf(&b, "To change that, change the policy from outside: cay sandbox network NAME --set FILE\n")
	}
	return b.String()
}

// redact removes the rule's secrets from a text that a server may have influenced.
func (x *exchange) redact(text string) string {
	if x.rule == nil || len(x.rule.Secrets) == 0 {
		return text
	}
	return newScrubber(x.rule.Secrets).text(text)
}

// fail answers a request that was allowed and could not be sent, or whose response must
// not be passed on.
func (x *exchange) fail(ctx context.Context, err error) {
	if x.failCut() {
		return
	}
	rule := x.flow.Rule
	cutOff := x.cutOff.Load()
	if cutOff != nil {
		if bad, ok := errors.AsType[*sniff.RequestError](*cutOff); ok {
			x.deny(http.StatusBadRequest, ruleMalformed, bad.Error())
			return // and the server, which cannot read on, closes the connection
		}
	}
	if cutOff != nil || ctx.Err() != nil {
		x.flow.Verdict, x.flow.Reason = sandbox.Broken, "the guest ended the request before there was a response"
		panic(http.ErrAbortHandler)
	}
	if refused, ok := errors.AsType[*Refused](err); ok {
		x.deny(http.StatusForbidden, refused.Rule, refused.Reason)
		return
	}
	if cay.CodeOf(err) == cay.PermissionDenied {
		x.deny(http.StatusForbidden, rule, err.Error())
		return
	}
	reason := "the server did not answer, or not as it must: " + err.Error()
	if bad, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		reason = "the server's certificate is not trusted: " + bad.Err.Error()
	}
	x.refuse(http.StatusBadGateway, sandbox.Broken, rule, reason)
}

// end records the exchange.
func (x *exchange) end(r *http.Request) {
	f := x.flow
	if address := x.address.Load(); address != nil {
		f.Address = *address
	}
	switch {
	case f.Verdict != sandbox.Allowed:
	case x.cutOff.Load() != nil: // a server that saw the same may have responded in time
		f.Verdict, f.Reason = sandbox.Broken, "the guest ended the request before its body was complete"
	case !x.complete && r.Context().Err() != nil:
		f.Verdict, f.Reason = sandbox.Broken, "the guest closed the connection before the response was complete"
	case !x.complete:
		f.Verdict, f.Reason = sandbox.Broken, "the server ended the connection before its response was complete"
	}
	if d := x.cut.Load(); d != nil {
		f.Verdict, f.Rule, f.Reason = sandbox.Denied, d.Rule, d.Reason
	}
	f.IngressBytes, f.EgressBytes = x.ingress.Load(), x.egress.Load()
	x.guest.record(f)
}

// Unwrap is for http.ResponseController.
func (x *exchange) Unwrap() http.ResponseWriter { return x.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (x *exchange) WriteHeader(status int) {
	switch {
	case status < 200 && x.body != nil && !x.body.Inform(x.ResponseWriter, status):
		return
	case status >= 200:
		x.flow.Status = status
		if x.body != nil && x.body.Open() {
			// The rest of the body must not be parsed as the next request.
			x.Header().Set("Connection", "close")
		}
		if h := x.Header(); len(h["Content-Type"]) == 0 {
			h["Content-Type"] = nil // no Content-Type is guessed
		}
	}
	x.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (x *exchange) Write(p []byte) (int, error) {
	n, err := x.ResponseWriter.Write(p)
	x.ingress.Add(int64(n))
	return n, err
}

// Hijack implements http.Hijacker. It is called last before the response 101 is written.
func (x *exchange) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(x.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	x.guest.http1.Upgraded()
	if rw.Reader.Buffered() > 0 {
		conn = &resumedConn{http1Conn: x.guest.http1, rest: rw.Reader}
	}
	return conn, rw, nil
}

// resumedConn is a hijacked connection whose next bytes the server has read already.
type resumedConn struct {
	*http1Conn
	rest *bufio.Reader
}

func (c *resumedConn) Read(p []byte) (int, error) {
	if n := c.rest.Buffered(); n > 0 {
		return c.rest.Read(p[:min(n, len(p))])
	}
	return c.http1Conn.Read(p)
}
