package gatewayd

import (
	"strings"
	"time"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/charge"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
	"github.com/cayhq/cay/internal/gatewayd/request"
)

// settle completes the call's record and hands it to the ledger; it does so once.
func (c *call) settle() {
	if c.caller == nil || c.rq.Route.Kind == "" { // no caller, or no model call
		return
	}
	now, r, served := time.Now(), &c.record, c.served()
	switch {
	case served == nil:
	case c.failure != nil && c.failure.Kind == hub.Canceled:
		served.reckon()
	case served.Usage == nil: // canceled before data arrived
		served.Estimate(&c.rq, false)
	}
	describe(r, &c.rq, c.caller)
	r.Attempts, r.Latency = c.trail.attempts, millis(now.Sub(c.rq.Begun))
	c.bill.Cost = c.bill.Total(c.v, &c.rq, served.cost())
	if served != nil {
		served.describe(r)
	}
	c.bill.Describe(r, served != nil)
	c.out.describe(r, c.failure)
	c.out.keep(r)
	c.e.capture(c.v.Capture, &c.rq, &c.out, r)
	if c.bill.Hold != nil {
		c.bill.Hold.Settle(r)
		c.bill.Hold = nil
		c.e.metrics.Ended(endedOf(r, served, now.Sub(c.rq.Begun)))
		return
	}
	if l, ok := c.e.cfg.Ledger.(interface{ Record(*gateway.Request) error }); ok {
		if err := l.Record(r); err != nil {
			c.e.log.WarnContext(c.ctx, "the record of a request that was refused could not be kept", "request", c.rq.ID, "error", err)
		}
	}
}

// describe writes what is known of a request into its record.
func describe(r *gateway.Request, rq *request.Request, caller *ledger.Caller) {
	h := rq.HTTP.Header
	r.ID, r.CreatedAt, r.BytesIn = rq.ID, rq.Begun, rq.Size
	r.TeamID, r.ProjectID, r.KeyID = caller.TeamID, caller.ProjectID, caller.KeyID
	r.User, r.Tags, r.Session = caller.User, caller.Tags, rq.Session
	r.Deployment = request.Clip(h.Get("Ai-O11y-Deployment-Id"))
	if title, referer := h.Get("X-Title"), h.Get("Http-Referer"); title != "" || referer != "" {
		r.App = request.Clip(strings.TrimSpace(title + " " + referer))
	}
	r.Surface, r.Kind, r.Model, r.Streamed = rq.Route.Name, rq.Route.Kind, rq.Model, rq.Stream
}

// describe writes into a call's record who has served the call.
func (x *exchange) describe(r *gateway.Request) {
	r.Served, r.Provider, r.BYOK, r.FinishReason = x.o.Model.ID, x.o.Provider.Name, x.BYOK, x.finishReason
	if !x.first.IsZero() {
		r.FirstToken = millis(x.first.Sub(r.CreatedAt))
	}
}

// cost returns the part of an attempt on which the cost depends, nil if there is no attempt.
func (x *exchange) cost() *charge.Result {
	if x == nil {
		return nil
	}
	return &x.Result
}

// describe writes into a call's record how the call ended, as the client sees it; failure
// is nil for a call that succeeded.
func (a *answer) describe(r *gateway.Request, failure *hub.Error) {
	begun, status, bytes, _ := a.state()
	r.HTTPStatus, r.BytesOut = status, bytes
	switch {
	case failure == nil:
		r.Status = gateway.Succeeded
	case failure.Kind == hub.Canceled:
		r.Status, r.HTTPStatus = gateway.Cancelled, statusCanceled
		if begun && r.Streamed { // a whole answer that was not sent is no success
			r.HTTPStatus = status
		}
	case len(r.Attempts) == 0:
		r.Status = gateway.Refused
	default:
		r.Status = gateway.Failed
	}
	if failure != nil {
		r.ErrorKind, r.Error = string(failure.Kind), failure.Message
	}
}

// statusCanceled is the status in records of calls whose client left; proxies use the
// same number.
const statusCanceled = 499

// endedOf describes a call for Metrics; served is nil if nobody served it.
func endedOf(r *gateway.Request, served *exchange, took time.Duration) Ended {
	e := Ended{
		Surface: r.Surface, Kind: r.Kind, Provider: r.Provider, Model: r.Served, Status: string(r.Status), ErrorKind: r.ErrorKind,
		Took: took, Input: r.Tokens.Input, Output: r.Tokens.Output, Priced: r.Cost != nil,
	}
	if served != nil && !served.first.IsZero() {
		e.FirstToken = served.first.Sub(r.CreatedAt)
		if n := r.Tokens.Output; n > 1 && r.Streamed {
			e.PerOutputToken = (took - e.FirstToken) / time.Duration(n-1)
		}
	}
	if r.Cost != nil {
		e.Cost = r.Cost.Dollars()
	}
	return e
}
