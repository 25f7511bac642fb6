package guest

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/cayhq/cay"
)

// Patience is the longest wait for an answer that takes a guest no time.
const Patience = time.Minute

// errNoAnswer is returned when the guest has not answered in time.
var errNoAnswer = cay.Errorf(cay.Unavailable, "the sandbox does not answer").
	WithHint("it is overloaded, or a program in it has stopped its agent; if waiting does not help, stop the sandbox")

// Heard counts the bytes that have come from the guest.
func (c *Client) Heard() int64 { return c.heard.Load() }

// await bounds the wait for an answer that takes a guest no time: the wait ends after
// Silence without any byte from the guest, and after Patience in any case. The bounds
// exist because the guest is not trusted, and a program of root's can stop its agent. The
// time in which the guest is paused does not count.
//
// A healthy guest that gets no CPU sends nothing. So the first bound grows from Silence
// to Patience with the share of the time in which some task on the host had to wait for a
// CPU, as CPUWait reports.
//
// The caller calls came when the wait is over, and end when it reads no more. Answers
// that may take long, and streams, have no bound here: the engine asks the guest
// meanwhile for its health.
func (c *Client) await(ctx context.Context) (_ context.Context, came, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &waiting{client: c, cancel: cancel}
	w.begin()
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
	still bool      // it stood still when last looked at
	began time.Time // of the wait, or of the last time the guest stood still

	quiet  time.Time     // since when nothing has come of the guest
	heard  int64         // Client.Heard then
	waited time.Duration // Client.CPUWait then
}

// begin begins the wait, and forgets earlier waits.
func (w *waiting) begin() {
	w.began = time.Now()
	w.hear()
}

// hear takes note that the guest has said something.
func (w *waiting) hear() {
	w.quiet, w.heard, w.waited = time.Now(), w.client.heard.Load(), w.client.cpuWait()
}

// left returns how long the guest may still be silent, at most until the next check.
func (w *waiting) left() time.Duration {
	c, silent := w.client, time.Since(w.quiet)
	bound := c.Silence
	if more := Patience - c.Silence; more > 0 && silent > 0 {
		share := min(max(float64(c.cpuWait()-w.waited)/float64(silent), 0), 1)
		bound += time.Duration(share * float64(more))
	}
	return min(bound-silent, Patience-time.Since(w.began), c.Silence)
}

func (w *waiting) check() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.came {
		return
	}
	c := w.client
	stood := w.still
	w.still = c.StandsStill != nil && c.StandsStill()
	switch {
	case w.still, stood: // or has begun to go on
		w.begin()
	case c.heard.Load() != w.heard:
		w.hear()
	}
	left := w.left()
	if left <= 0 {
		w.cancel(errNoAnswer)
		return
	}
	w.timer.Reset(left)
}

func (w *waiting) over() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.came = true
	w.timer.Stop()
}

// endingBody is the body of an answer; closing it also releases the context.
type endingBody struct {
	io.ReadCloser
	end func()
}

func (b endingBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}
