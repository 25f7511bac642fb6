package guest

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/cayhq/cay"
)

// patience is how long an answer is awaited of a guest that says other things.
const patience = time.Minute

// errNoAnswer is what a caller is told who has waited long enough.
var errNoAnswer = cay.Errorf(cay.Unavailable, "the sandbox does not answer").
	WithHint("it is overloaded, or a program in it has stopped its agent; if waiting does not help, stop the sandbox")

// Heard counts the bytes that have come from the guest.
func (c *Client) Heard() int64 { return c.heard.Load() }

// await bounds the wait for an answer that takes a guest no time: it is Silence
// long while nothing at all comes of it, patience long in any case. A
// guest is not to be trusted with our time, and its agent can be stopped by a
// program of root's. The time it stands still does not count.
//
// came is called when the wait is over, end when nothing more is read. Answers that
// may take their time, and streams, have no bound here: the engine asks the guest
// meanwhile whether it is well.
func (c *Client) await(ctx context.Context) (_ context.Context, came, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &waiting{client: c, cancel: cancel, began: time.Now(), heard: c.heard.Load()}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(c.Silence, w.check)
	return ctx, w.over, func() { cancel(nil) }
}

// waiting is one wait for an answer.
type waiting struct {
	client *Client
	cancel context.CancelCauseFunc

	mu    sync.Mutex // guards what follows
	timer *time.Timer
	came  bool
	still bool // it stood still when last looked at
	began time.Time
	heard int64
}

func (w *waiting) check() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.came {
		return
	}
	c, heard := w.client, w.client.heard.Load()
	stood := w.still
	w.still = c.StandsStill != nil && c.StandsStill()
	switch {
	case w.still, stood: // or has begun to go on
		w.began = time.Now()
	case heard == w.heard, time.Since(w.began) >= patience:
		w.cancel(errNoAnswer)
		return
	}
	w.heard = heard
	w.timer.Reset(c.Silence)
}

func (w *waiting) over() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.came = true
	w.timer.Stop()
}

// endingBody is the body of an answer, whose context is given back when it is closed.
type endingBody struct {
	io.ReadCloser
	end func()
}

func (b endingBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}
