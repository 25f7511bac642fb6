package gatewayd

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay/internal/gatewayd/ledger"
)

// watch cancels an attempt that exceeds its timeouts, and sends keep-alives to the
// client. It uses one timer, which is not reset while data arrives.
type watch struct {
	x     *exchange
	due   atomic.Int64 // Unix nanoseconds by which the provider must have been heard
	cause atomic.Pointer[error]
	keep  atomic.Bool // the provider has begun to answer
	head  func()      // sets the headers of a stream opened by a keep-alive; nil: no such stream
	idle  time.Duration
	pace  time.Duration // maximum interval between checks, because due may have moved closer

	mu    sync.Mutex // held while the timer function runs; guards the following fields
	timer *time.Timer
	over  bool
}

// newWatch watches an attempt. If events is set, keep-alives may open a stream with the
// headers of hold, the only ones known before an answer.
func newWatch(x *exchange, events bool, hold ledger.Hold, first, idle time.Duration) *watch {
	w := &watch{x: x, idle: idle, pace: min(x.e.cfg.KeepAlive, idle, time.Minute)}
	if events {
		w.head = func() { eventHeaders(x.cl.out.w.Header(), hold) }
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
	if total := w.x.e.cfg.Total - now.Sub(w.x.cl.rq.Begun); total <= 0 {
		w.x.cancel(errTotal)
		return
	} else if rest <= 0 {
		w.x.cancel(*w.cause.Load())
		return
	} else {
		rest = min(rest, total, w.pace)
	}
	silence := w.x.e.cfg.KeepAlive
	if !w.keep.Load() && !w.x.cl.out.isOpen() {
		silence *= patientFactor
	}
	if w.head != nil {
		rest = min(rest, w.x.cl.out.keepAlive(silence, w.head, w.x.keepAlive))
	}
	w.timer.Reset(rest)
}

func (w *watch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	w.timer.Stop()
}
