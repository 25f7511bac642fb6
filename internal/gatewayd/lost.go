package gatewayd

import (
	"bytes"
	"context"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Work whose result is not delivered is charged all the same: providers bill for calls
// they have begun, and a caller who could get them for free would do so at the expense of
// others. An attempt is lost if the provider received the request and did not refuse it,
// and the client does not get the answer: the attempt timed out, the answer broke off,
// was invalid, or was held back by a guard. The cost is the provider's count, else 1
// token per 4 bytes of the request and of the received answer.
//
// Some attempts are not charged: failures that the provider reports (a status of 400 and
// above, an error in place of content), and attempts without a sign that the provider
// received the request, such as connections that were refused or that ended before an
// answer began.

// lost is the total cost of a call's lost attempts.
type lost struct {
	total, market gateway.Money
	version       string // version of the last price
	tokens        gateway.Tokens
	searches      int64
	unpriced      bool // part of it has no price
}

// asking is a request body that records whether reading has begun.
type asking struct {
	bytes.Reader
	begun *atomic.Bool
}

func (b *asking) Read(p []byte) (int, error) {
	b.begun.Store(true)
	return b.Reader.Read(p)
}

func (b *asking) WriteTo(w io.Writer) (int64, error) {
	b.begun.Store(true)
	return b.Reader.WriteTo(w)
}

func (b *asking) Close() error { return nil }

// asks returns the request body of an attempt.
func (a *attempt) asks(body []byte) io.ReadCloser {
	b := &asking{begun: &a.asked}
	b.Reset(body)
	return b
}

// worked reports whether the provider of a failed attempt has probably worked on it.
func (a *attempt) worked(err *hub.Error) bool {
	c := a.c
	switch {
	case a.partly:
		return true
	case a.record.Status == 0: // no answer: did the gateway cancel, or did the provider disconnect?
		return a.asked.Load() && context.Cause(a.ctx) != nil
	case a.record.Status/100 != 2:
		return false
	case a.cut, err.Provider == "", context.Cause(a.ctx) != nil:
		return true
	}
	return c.outputBytes > 0 || c.usage != nil && !c.estimated
}

// undo resets the state that a failed attempt left in the call, and keeps its cost.
func (c *call) undo(a *attempt, err *hub.Error, worked bool) {
	switch {
	case err == nil:
	case c.answered, err.Kind == hub.Canceled && worked: // the last attempt
		c.serve(a)
	case worked:
		c.lose(a)
	default:
		c.forget()
	}
}

// lose charges for a lost attempt; another attempt may follow.
func (c *call) lose(a *attempt) {
	c.serve(a)
	if c.usage == nil {
		c.estimate(false)
	}
	c.closed = false
	cost := c.priced()
	l := &c.lost
	if cost.known {
		l.total, l.market, l.version = l.total.Plus(cost.total), l.market.Plus(cost.market), cost.version
		c.record.Attempts[len(c.record.Attempts)-1].Cost = &cost.total
	}
	l.unpriced = l.unpriced || !cost.known
	l.tokens, l.searches = plusTokens(l.tokens, cost.tokens), l.searches+cost.searches
	c.forget()
}

// plusTokens returns the sum of two counts.
func plusTokens(a, b gateway.Tokens) gateway.Tokens {
	return gateway.Tokens{
		Input: a.Input + b.Input, CacheRead: a.CacheRead + b.CacheRead, CacheWrite: a.CacheWrite + b.CacheWrite, CacheWrite1h: a.CacheWrite1h + b.CacheWrite1h,
		Output: a.Output + b.Output, Reasoning: a.Reasoning + b.Reasoning, Estimated: a.Estimated || b.Estimated,
	}
}

// A client that leaves cancels the provider's call. For a stream, the received part is
// known. For an unstreamed answer the received part is empty, although the provider was
// working all the time; the same holds while a model thinks before its first output. In
// these cases the gateway estimates the output from the elapsed time and the endpoint's
// usual speed, at most the reserved number of tokens.

// usualSpeed is the assumed speed, in tokens per second, of an endpoint without samples.
const usualSpeed = 100

// reckon adds the estimated output of an answer that the client did not wait for. The
// attempt must be the last one, and have ended.
func (c *call) reckon() {
	whole := !c.stream || c.buffers()
	switch {
	case c.served == nil || len(c.record.Attempts) == 0:
		return
	case whole && !c.first.IsZero(): // the whole answer arrived, but too late
		return
	case !whole && c.usage != nil && !c.estimated:
		return
	}
	last := &c.record.Attempts[len(c.record.Attempts)-1]
	silent := time.Duration(float64(last.Latency) * float64(time.Millisecond))
	if !whole {
		switch {
		case !slices.Contains(c.served.model.Abilities, "reasoning"):
			silent = 0
		case c.first.After(last.StartedAt):
			silent = c.first.Sub(last.StartedAt)
		}
	}
	switch c.rt.kind {
	case kindLanguage:
		c.unseen = int64(silent.Seconds() * orDefault(c.served.health.state(last.StartedAt).Throughput, usualSpeed))
	case kindImage: // the provider makes all images once it has begun
		c.images = min(max(1, c.copies), maxCopies)
		c.unseen = c.images * c.perImage()
	case kindEmbedding:
		c.usage = nil // the usage of those of several requests that were answered
	}
	c.closed = false
	c.estimate(false)
}

// maxStrays is the maximum number of calls that continue without their clients.
const maxStrays = 64

// follow sets the attempt's context, which ends when the client leaves. If
// Provider.Finish is set, an unstreamed call continues without its client, because only
// the provider can tell the cost: at most maxStrays calls do so, each for at most first.
// The caller must call unfollow once.
func (a *attempt) follow(first time.Duration) (unfollow func()) {
	c := a.c
	if !a.o.provider.Finish || c.stream && !c.buffers() {
		a.ctx, a.cancel = context.WithCancelCause(c.ctx)
		return func() {}
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(c.ctx))
	a.ctx, a.cancel = ctx, cancel
	var alone *stray
	done := make(chan struct{})
	stop := context.AfterFunc(c.ctx, func() {
		defer close(done)
		cause := context.Cause(c.ctx)
		if cause != errStopping {
			alone = c.e.stray(cancel, first)
		}
		if alone == nil {
			cancel(cause)
		}
	})
	return func() {
		if stop() {
			return
		}
		<-done
		alone.end(c.e)
	}
}

// stray is a call that continues without its client.
type stray struct {
	timer *time.Timer
	stop  func() bool
}

// stray lets a call continue for d, or returns nil if maxStrays is reached.
func (e *Engine) stray(cancel context.CancelCauseFunc, d time.Duration) *stray {
	if e.strays.Add(1) > maxStrays {
		e.strays.Add(-1)
		return nil
	}
	return &stray{
		timer: time.AfterFunc(d, func() { cancel(errClient) }),
		stop:  context.AfterFunc(e.stopping, func() { cancel(errStopping) }),
	}
}

func (s *stray) end(e *Engine) {
	if s != nil {
		s.timer.Stop()
		s.stop()
		e.strays.Add(-1)
	}
}

// late records, when the answer is complete, whether its client has left.
func (a *attempt) late() {
	a.alone = (!a.c.stream || a.c.buffers()) && a.c.ctx.Err() != nil
}

// finish ends the attempt and determines its cost.
func (a *attempt) finish(err *hub.Error) {
	worked := err != nil && a.worked(err) // before its context ends
	if err == nil && a.alone && a.failed == nil {
		a.failed = canceled()
		a.c.failure = a.failed
	}
	a.end(err)
	a.c.undo(a, err, worked)
}
