package gatewayd

import (
	"bytes"
	"context"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay/internal/gatewayd/charge"
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

// requestBody is a request body that records whether reading has begun.
type requestBody struct {
	bytes.Reader
	begun *atomic.Bool
}

func (b *requestBody) Read(p []byte) (int, error) {
	b.begun.Store(true)
	return b.Reader.Read(p)
}

func (b *requestBody) WriteTo(w io.Writer) (int64, error) {
	b.begun.Store(true)
	return b.Reader.WriteTo(w)
}

func (b *requestBody) Close() error { return nil }

// requestBody returns the request body of an attempt.
func (x *exchange) requestBody(body []byte) io.ReadCloser {
	b := &requestBody{begun: &x.bodyRead}
	b.Reset(body)
	return b
}

// worked reports whether the provider of a failed attempt has probably worked on it.
func (x *exchange) worked(err *hub.Error) bool {
	switch {
	case x.partlyAnswered:
		return true
	case x.record.Status == 0: // no answer: did the gateway cancel, or did the provider disconnect?
		return x.bodyRead.Load() && context.Cause(x.ctx) != nil
	case x.record.Status/100 != 2:
		return false
	case x.unusable, err.Provider == "", context.Cause(x.ctx) != nil:
		return true
	}
	return x.OutputBytes > 0 || x.Usage != nil && !x.Estimated
}

// A client that leaves cancels the provider's call. For a stream, the received part is
// known. For an unstreamed answer the received part is empty, although the provider was
// working all the time; the same holds while a model thinks before its first output. In
// these cases the gateway estimates the output from the elapsed time and the endpoint's
// usual speed, at most the reserved number of tokens.

// usualSpeed is the assumed speed, in tokens per second, of an endpoint without samples.
const usualSpeed = 100

// reckon adds the estimated output of an answer that the client did not wait for. x must
// have ended, and is the last attempt.
func (x *exchange) reckon() {
	rq := &x.cl.rq
	whole := !rq.Stream || x.v.Buffers(rq)
	switch {
	case whole && !x.first.IsZero(): // the whole answer arrived, but too late
		return
	case !whole && x.Usage != nil && !x.Estimated:
		return
	}
	silent := time.Duration(float64(x.record.Latency) * float64(time.Millisecond))
	if !whole {
		switch {
		case !slices.Contains(x.o.Model.Abilities, "reasoning"):
			silent = 0
		case x.first.After(x.record.StartedAt):
			silent = x.first.Sub(x.record.StartedAt)
		}
	}
	switch rq.Route.Kind {
	case kindLanguage:
		x.Unseen = int64(silent.Seconds() * orDefault(x.o.Health.State(x.record.StartedAt).Throughput, usualSpeed))
	case kindImage: // the provider makes all images once it has begun
		x.Images = min(max(1, rq.Copies), charge.MaxCopies)
		x.Unseen = x.Images * rq.PerImage()
	case kindEmbedding:
		x.Usage = nil // the usage of those of several requests that were answered
	}
	x.Estimate(&x.cl.rq, false)
}

// maxStrays is the maximum number of calls that continue without their clients.
const maxStrays = 64

// follow returns the context of an attempt, which ends when the client leaves. An attempt
// that outlives its client continues without it, because only the provider can tell the
// cost: at most maxStrays attempts do so, each for at most first. The caller must call
// unfollow once.
func (e *Engine) follow(client context.Context, outlives bool, first time.Duration) (r run) {
	if !outlives {
		r.ctx, r.cancel = context.WithCancelCause(client)
		r.unfollow = func() {}
		return r
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(client))
	var alone *stray
	done := make(chan struct{})
	stop := context.AfterFunc(client, func() {
		defer close(done)
		cause := context.Cause(client)
		if cause != errStopping {
			alone = e.stray(cancel, first)
		}
		if alone == nil {
			cancel(cause)
		}
	})
	r.ctx, r.cancel = ctx, cancel
	r.unfollow = func() {
		if stop() {
			return
		}
		<-done
		alone.end(e)
	}
	return r
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
		timer: time.AfterFunc(d, func() { cancel(hub.ErrLeft) }),
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

// noteClient records, when the answer is complete, whether its client has left.
func (x *exchange) noteClient() {
	x.clientLeft = (!x.cl.rq.Stream || x.v.Buffers(&x.cl.rq)) && x.cl.ctx.Err() != nil
}
