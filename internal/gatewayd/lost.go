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

// Work that nobody gets is charged all the same: providers bill what they have
// begun, and who could have it for nothing would have others pay. An attempt is
// lost if its provider has the request and has not refused it, and the answer does
// not become the client's: it was cut off because it took too long, it broke off, it
// was of no use, or a guard held it back. What it costs is what the provider has
// counted, else a token for each 4 bytes of the request and of what has come.
//
// Not charged are attempts of which a provider says itself that they failed (a
// status of 400 and above, an error in place of content), and those of which nothing
// says that it has heard of them: connections that were refused, or ended before an
// answer began.

// lost is what a call's lost attempts cost, all together.
type lost struct {
	total, market gateway.Money
	version       string // of the last price
	tokens        gateway.Tokens
	searches      int64
	unpriced      bool // some of it has no price
}

// asking is the body of a request, which notes that it was read: that somebody has
// begun to take it.
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

// asks returns a body for a request of the attempt.
func (a *attempt) asks(body []byte) io.ReadCloser {
	b := &asking{begun: &a.asked}
	b.Reset(body)
	return b
}

// worked reports whether the provider of an attempt that has failed has worked for
// it, as far as anybody can know.
func (a *attempt) worked(err *hub.Error) bool {
	c := a.c
	switch {
	case a.partly:
		return true
	case a.record.Status == 0: // nothing has come: did we leave, or did it?
		return a.asked.Load() && context.Cause(a.ctx) != nil
	case a.record.Status/100 != 2:
		return false
	case a.cut, err.Provider == "", context.Cause(a.ctx) != nil:
		return true
	}
	return c.outputBytes > 0 || c.usage != nil && !c.estimated
}

// undo forgets what was seen of an attempt that came to nothing, but for what it
// costs.
func (c *call) undo(a *attempt, err *hub.Error, worked bool) {
	switch {
	case err == nil:
	case c.answered, err.Kind == hub.Canceled && worked: // it is the last
		c.serve(a)
	case worked:
		c.lose(a)
	default:
		c.forget()
	}
}

// lose charges for an attempt that another one may follow.
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

// A client that leaves ends the call of the provider with it. Of a stream, what has
// come is known. Of a whole answer nothing is, though the provider was at work on it
// all the time; nor of what a model thinks before it says anything. There it is
// reckoned with as many tokens for each second as the endpoint usually gives, and never
// more than were set aside.

// usualSpeed is how many tokens a second an endpoint gives of which nobody knows yet.
const usualSpeed = 100

// reckon adds what the provider may have made of an answer that its client did not
// wait for. The attempt is the last, and has ended.
func (c *call) reckon() {
	whole := !c.stream || c.buffers()
	switch {
	case c.served == nil || len(c.record.Attempts) == 0:
		return
	case whole && !c.first.IsZero(): // all of it came, only too late
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
	case kindImage: // whoever has begun makes them all
		c.images = min(max(1, c.copies), maxCopies)
		c.unseen = c.images * c.perImage()
	case kindEmbedding:
		c.usage = nil // of those of several requests that are answered
	}
	c.closed = false
	c.estimate(false)
}

// maxStrays is how many calls providers may finish for clients that have left.
const maxStrays = 64

// follow gives the attempt its context, which ends with its client. Where the provider
// is let finish (Provider.Finish), a whole answer is waited for, because only the
// provider can tell what it costs: if not too many are, for no longer than an answer
// may take to begin. What is returned ends that, once.
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

// stray is a call that goes on without its client.
type stray struct {
	timer *time.Timer
	stop  func() bool
}

// stray lets a call go on for a while, or returns nil if too many do.
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

// late notes, when the whole answer is there, that its client is not.
func (a *attempt) late() {
	a.alone = (!a.c.stream || a.c.buffers()) && a.c.ctx.Err() != nil
}

// finish ends the attempt and says what it costs.
func (a *attempt) finish(err *hub.Error) {
	worked := err != nil && a.worked(err) // before its context ends
	if err == nil && a.alone && a.failed == nil {
		a.failed = canceled()
		a.c.failure = a.failed
	}
	a.end(err)
	a.c.undo(a, err, worked)
}
