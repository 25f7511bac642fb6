// Package upload is about the bodies of requests that a proxy passes on. A
// transport reads such a body in a goroutine of its own, which may wait for bytes
// that never come, and whoever ends the response waits for that goroutine
// (golang/go#78973, golang/go#80085). So a Body can be given up at any time, by
// which a Read under way ends: httputil.ReverseProxy wraps bodies in something
// whose Close does not do that, and is to send a Body instead.
package upload

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// drainTime is how long the sender may go on sending what nobody wants, after the
// response has ended: whoever hangs up on it at once may take the response from it.
const drainTime = time.Second

// errGivenUp is the error of a Read after Close.
var errGivenUp = errors.New("read of a request's body that nobody wants any more")

// Body is the body of a request while it is sent on. Its methods may be called by
// several goroutines, Read by one at a time.
type Body struct {
	body  io.ReadCloser
	http1 *http.ResponseController // nil for a request of HTTP/2, whose streams have nothing to do with each other
	ended atomic.Bool
	given atomic.Bool
	// told is set when the sender knows that its body is wanted: it sends, or was told
	// to go on.
	told     atomic.Bool
	expected bool // of HTTP/1: it waits for that

	reading sync.Mutex // held by Read, guards what follows
	left    int64      // bytes to come; negative if nobody said
}

// New returns the body of a request that w answers. The answer may begin before
// the body has ended. The handler calls Finish at its end, however it ends.
func New(w http.ResponseWriter, r *http.Request) *Body {
	b := &Body{body: r.Body, left: r.ContentLength}
	if r.Body == nil || r.Body == http.NoBody {
		b.body = http.NoBody
		b.ended.Store(true)
	}
	if r.ProtoMajor == 1 {
		b.http1, b.expected = http.NewResponseController(w), r.Header.Get("Expect") != ""
	}
	return b
}

// Inform is called before w answers with an informational status, which it reports
// whether w may. A server of net/http tells a sender that waits for it to go on when
// its body is read, and does not keep that apart from other informational answers:
// of HTTP/1 it may write both at once, of HTTP/2 it leaves out a 100 that comes after
// another. So a sender of HTTP/1 that waits goes without them, and one of HTTP/2,
// which may wait, is told to go on first.
func (b *Body) Inform(w http.ResponseWriter, status int) bool {
	switch {
	case status == http.StatusContinue:
		b.told.Store(true)
	case status == http.StatusSwitchingProtocols: // is a last answer
	case b.http1 != nil:
		return !b.expected || b.told.Load()
	case !b.ended.Load() && !b.told.Swap(true):
		h := w.Header()
		theirs := maps.Clone(h)
		clear(h)
		w.WriteHeader(http.StatusContinue)
		maps.Copy(h, theirs)
	}
	return true
}

// Open reports whether the connection is still to read some of the body, which is
// then no good for another request: the answer to an HTTP/1 request is to say so.
func (b *Body) Open() bool { return b.http1 != nil && !b.ended.Load() }

// Read implements io.Reader.
func (b *Body) Read(p []byte) (int, error) {
	b.reading.Lock()
	defer b.reading.Unlock()
	if b.given.Load() {
		return 0, errGivenUp
	}
	n, err := b.body.Read(p)
	b.told.Store(true)
	if b.left >= 0 {
		b.left -= int64(n)
	}
	if err == io.EOF || b.left == 0 {
		b.ended.Store(true)
	}
	return n, err
}

// GivenUp reports whether Close was called: errors of Read then have no other cause.
func (b *Body) GivenUp() bool { return b.given.Load() }

// Close ends the Read under way and all that follow. It does not wait.
func (b *Body) Close() error {
	switch {
	case b.given.Swap(true) || b.ended.Load():
		return nil
	case b.http1 != nil:
		// Its own Close would wait for the Read under way.
		return b.http1.SetReadDeadline(time.Now())
	}
	return b.body.Close()
}

// Finish is Close at the end of the handler: what is left of an HTTP/1 body the
// server throws away itself, for a while.
func (b *Body) Finish() {
	err := b.Close()
	if err != nil || !b.Open() {
		return // the connection is broken, or there is nothing left to read
	}
	// With a new deadline in its way, the Read that Close has ended would go on.
	b.reading.Lock()
	defer b.reading.Unlock()
	_ = b.http1.SetReadDeadline(time.Now().Add(drainTime))
}
