package gatewayd

import (
	"context"
	"fmt"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/asks"
	"github.com/cayhq/cay/internal/gatewayd/charge"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/intake"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
	"github.com/cayhq/cay/internal/gatewayd/plan"
	"github.com/cayhq/cay/internal/gatewayd/provider"
	"github.com/cayhq/cay/internal/gatewayd/request"
	"github.com/cayhq/cay/internal/gatewayd/scan"
)

// call is one request to the gateway, from its headers to its record. It belongs to one
// goroutine, takes its stages in order, and keeps their results:
//
//	request (what the client sent) -> plan (the models to try) ->
//	exchange (one attempt at one provider), repeated -> bill (the reservation and the cost)
//
// A stage has no access to the call: it gets what it may read and change as arguments, and
// returns its result. An exchange knows the call as its host.
type call struct {
	e *Engine
	v *plan.View
	client
	place intake.Place
	plan  plan.Plan
	trail trail
	last  *exchange // the latest attempt, nil before the first
	bill  charge.Bill
	// record is written when the call has ended; see settle.
	record  gateway.Request
	failure *hub.Error
	span    callSpan
}

// client is the client's side of a call.
type client struct {
	ctx    context.Context // ends when the client leaves
	rq     request.Request
	doc    request.Document
	caller *ledger.Caller // nil until it is known
	out    answer
}

// decode decodes the request on the first call.
func (cl *client) decode() *hub.Error { return cl.doc.Decode(&cl.rq, cl.caller.Key) }

// ServeHTTP implements http.Handler. It handles requests to the gateway's own origin.
func (e *Engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := &call{e: e}
	c.ctx, c.rq.HTTP, c.rq.Begun, c.rq.ID = r.Context(), r, time.Now(), ledger.NewID()
	c.out.w, c.out.rc, c.out.stall, c.out.last = w, http.NewResponseController(w), e.cfg.Stall, c.rq.Begun
	h := w.Header()
	id := []string{c.rq.ID}
	h["Request-Id"], h["X-Request-Id"], h["X-Cay-Generation-Id"] = id, id, id
	h["X-Content-Type-Options"], h["Cache-Control"] = noSniff, noStore
	if !e.enter() {
		c.rq.Route = &e.find(r).Route
		c.refuse(&hub.Error{Kind: hub.Overloaded, Message: "the gateway is stopping", RetryAfter: time.Second})
		return
	}
	defer e.calls.Done()
	defer c.end()
	to, err := e.route(r)
	c.rq.Route = &to.Route
	if err == nil {
		c.v, c.rq.Version = e.now(), c.rq.Route.Version
		c.out.tee = e.tee(c.v.Capture, c.rq.Route)
		c.span = e.startSpan(c.ctx, &c.rq, c.v.Capture)
		err = to.serve(c)
	}
	if err != nil {
		c.refuse(err)
	}
}

var (
	noSniff = []string{"nosniff"}
	noStore = []string{"no-store"}
)

// end ends a call, whatever its outcome.
func (c *call) end() {
	if p := recover(); p != nil {
		c.e.log.ErrorContext(c.ctx, "a call failed by our fault", "request", c.rq.ID, "error", fmt.Sprint(p), "stack", string(debug.Stack()))
		c.refuse(&hub.Error{Kind: hub.Internal, Message: "internal error"})
	}
	c.out.end()
	c.settle()
	if t := c.out.collected(); t != nil { // a call without a record is not captured
		t.Discard()
	}
	c.span.end(&c.client, &c.record, c.failure, c.last, c.served())
	c.place.Leave(c.record.Cached)
	if c.e.log.Enabled(c.ctx, -4) {
		_, status, bytes, _ := c.out.state()
		c.e.log.DebugContext(c.ctx, "request", "request", c.rq.ID, "method", c.rq.HTTP.Method, "path", c.rq.HTTP.URL.Path,
			"status", status, "bytes", bytes, "took", time.Since(c.rq.Begun))
	}
}

// refuse sends an error in the client's format, unless an answer has been sent.
func (c *call) refuse(err *hub.Error) {
	if c.failure == nil {
		c.failure = err
	}
	if err.Kind == hub.Internal && err.Cause != nil {
		c.e.log.ErrorContext(c.ctx, "a call failed by our fault", "request", c.rq.ID, "error", err.Cause)
	}
	if begun, _, _, _ := c.out.state(); begun && !c.out.drop() {
		return
	}
	h := c.out.w.Header()
	c.limits(h)
	if c.out.isOpen() { // the status 200 has been sent already
		_ = c.out.send(c.rq.Route.Surface.NewWriter(c.hubAnswer()).Append(nil, &hub.Event{Kind: hub.Failure, Err: err}))
		return
	}
	status, body := c.rq.Route.Surface.WriteError(c.hubAnswer(), err, h)
	c.out.whole(status, "application/json", body)
}

// hubAnswer returns the hub.Answer for the client's format.
func (c *call) hubAnswer() hub.Answer {
	return hub.Answer{ID: c.rq.ID, Model: c.rq.Model, Version: c.rq.Version, Call: c.doc.Call, Metadata: c.metadata}
}

// authenticated runs the first step of every call.
func (c *call) authenticated() (err *hub.Error) {
	c.caller, c.rq.Token, err = request.Authenticate(c.ctx, c.e.cfg.Ledger, c.rq.HTTP.Header)
	return err
}

// received authenticates the call and reads the body of the request.
func (c *call) received() (err *hub.Error) {
	if err = c.authenticated(); err != nil {
		return err
	}
	c.rq.Raw, err = c.e.intake.Receive(c.rq.HTTP, c.out.rc, c.caller, c.rq.Route.Kind != "", &c.place)
	c.rq.Size = int64(len(c.rq.Raw))
	return err
}

// prepared runs the steps that all calls of models begin with.
func (c *call) prepared() *hub.Error {
	if err := c.received(); err != nil {
		return err
	}
	if err := c.rq.Understand(); err != nil {
		return err
	}
	return c.planned()
}

// planned makes the call's plan.
func (c *call) planned() (err *hub.Error) {
	c.caller = c.rq.Spender(c.caller)
	c.plan, err = c.v.Plan(c.ctx, c.caller, &c.rq)
	return err
}

// language serves a language model call.
func (c *call) language() *hub.Error {
	if err := c.prepared(); err != nil {
		return err
	}
	if c.replayed(c.v, &c.plan, &c.record) {
		return nil
	}
	return c.try(c.attempt)
}

// reserve checks what a request to a provider asks for, and reserves its maximum cost.
// sent is the request's body, nil before it exists.
func (c *call) reserve(o *plan.Candidate, cred provider.Credential, sent *scan.Object) (asked *asks.Asks, err *hub.Error) {
	if sent != nil {
		if asked, err = asks.Read(sent, sent == c.rq.Object); err != nil {
			return nil, err
		}
		if c.rq.Payload, err = c.v.Allow(c.ctx, c.caller, asked, o.Offer, c.rq.Payload); err != nil {
			return nil, err
		}
		if asked.Before, err = c.e.owned(c.ctx, c.caller, sent, o.Offer, cred); err != nil {
			return nil, err
		}
		asked.Stores = stores(sent)
	}
	need := charge.Need(c.v, &c.rq, o.Offer, asked)
	need.BYOK = cred != nil && cred.BYOK()
	return asked, c.admitted(need)
}

// admitted asks the ledger to admit the call, or to raise its maximum cost.
func (c *call) admitted(need ledger.Need) *hub.Error {
	need.Arrival = c.place.Arrival
	began, err := c.bill.Reserve(c.ctx, c.e.cfg.Ledger, c.caller, need)
	if began {
		c.e.metrics.Began()
	}
	return err
}

// served returns the attempt whose answer the client gets, nil if there is none.
func (c *call) served() *exchange {
	if c.last != nil && c.last.serving {
		return c.last
	}
	return nil
}

// charge returns the cost of the call as known so far.
func (c *call) charge() charge.Cost { return c.bill.Total(c.v, &c.rq, c.served().cost()) }

// limits sets the headers that tell what is left of the caller's limits.
func (c *call) limits(h http.Header) {
	if c.bill.Hold != nil {
		c.bill.Hold.Limits(h)
	}
}
