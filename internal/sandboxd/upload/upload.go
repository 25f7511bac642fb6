// Package upload handles request bodies that a proxy forwards. A transport reads such a
// body in a goroutine of its own, which may wait for bytes that never come, and ending
// the response waits for that goroutine (golang/go#78973, golang/go#80085). A Body can be
// closed at any time, which ends a Read under way. httputil.ReverseProxy wraps bodies in
// a type whose Close does not do that, so it must be given a Body instead.
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

// drainTime is how long the sender may go on sending an unwanted body after the response
// has ended: an immediate close of the connection may keep the sender from reading the
// response.
const drainTime = time.Second

// errGivenUp is the error of a Read after Close.
var errGivenUp = errors.New("read of a request's body that nobody wants any more")

// Body is the body of a request that is being forwarded. Its methods may be called
// concurrently, except Read.
type Body struct {
	body  io.ReadCloser
	http1 *http.ResponseController // nil for an HTTP/2 request, whose streams are independent
	ended atomic.Bool
	given atomic.Bool
	// told is set when the sender knows that the body is wanted: it has begun to send, or
	// was told to continue.
	told     atomic.Bool
	expected bool // the sender speaks HTTP/1 and expects 100-continue

	reading sync.Mutex // held by Read; guards the fields below
	left    int64      // bytes to come; negative if unknown
}

// New returns the body of a request that w answers. The response may begin before the
// body has ended. The handler must call Finish before it returns, in every case.
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

// Inform is called before w sends an informational status, and reports whether w may. The
// server of net/http sends 100-continue to a waiting sender when the body is first read,
// without regard to other informational responses: on HTTP/1 it may write both at the
// same time, on HTTP/2 it omits a 100 that comes after another status. So a waiting
// HTTP/1 sender gets no informational responses, and an HTTP/2 sender, which may be
// waiting, gets a 100 first.
func (b *Body) Inform(w http.ResponseWriter, status int) bool {
	switch {
	case status == http.StatusContinue:
		b.told.Store(true)
	case status == http.StatusSwitchingProtocols: // a final response
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

// Open reports whether a part of the body is still to be read from the connection, which
// can then serve no other request: the response to an HTTP/1 request must say so.
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

// GivenUp reports whether Close was called: then errors of Read have no other cause.
func (b *Body) GivenUp() bool { return b.given.Load() }

// Close ends the Read under way and all later ones. It does not wait.
func (b *Body) Close() error {
	switch {
	case b.given.Swap(true) || b.ended.Load():
		return nil
	case b.http1 != nil:
		// The body's own Close would wait for the Read under way.
		return b.http1.SetReadDeadline(time.Now())
	}
	return b.body.Close()
}

// Finish is Close at the end of the handler. The server discards the rest of an HTTP/1
// body itself, for up to drainTime.
func (b *Body) Finish() {
	err := b.Close()
	if err != nil || !b.Open() {
		return // the connection is broken, or nothing is left to read
	}
	// A new deadline would let the Read that Close has ended continue, so wait for it.
	b.reading.Lock()
	defer b.reading.Unlock()
	_ = b.http1.SetReadDeadline(time.Now().Add(drainTime))
}
