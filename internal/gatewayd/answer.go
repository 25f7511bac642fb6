package gatewayd

import (
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/cache"
	"github.com/cayhq/cay/internal/gatewayd/capture"
)

// answer writes the response to the client. A stream is held back until content has
// arrived that rules out a fallback to another provider. Methods may be called
// concurrently: a timer sends keep-alives.
//
// After a long wait the client gets status 200 and comments before that, so that no proxy
// closes the connection as idle. Other attempts can still follow; if none succeeds, the
// error becomes an event of the stream.
type answer struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	stall time.Duration // write timeout while the client reads nothing

	mu     sync.Mutex      // guards the following fields
	opened bool            // the status and the headers of a stream are sent
	begun  bool            // content has been sent; no fallback is possible
	ended  bool            // nothing is written any more
	held   []byte          // the beginning of a stream that has not begun
	head   func()          // sets the headers of a stream
	err    error           // the client is gone
	record *cache.Recorder // stores the answer in the cache; nil: no caching
	tee    *capture.Tee    // captures the answer; nil: no capturing
	until  time.Time       // the write deadline that is set
	last   time.Time       // something was written
	bytes  int64
	status int
}

var errGone = errors.New("the client does not take its answer")

// hold holds p back if no content has been sent yet.
func (a *answer) hold(p []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.begun {
		return a.sendLocked(p)
	}
	a.held = append(a.held, p...)
	return a.err
}

// heldBytes returns the number of bytes held back.
func (a *answer) heldBytes() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.held)
}

// prepare prepares a stream; head sets its headers.
func (a *answer) prepare(head func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held, a.head, a.last = a.held[:0], head, time.Now()
}

// drop discards the held bytes before another attempt, and reports whether another
// attempt is possible.
func (a *answer) drop() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held = a.held[:0]
	return !a.begun
}

// send sends the held bytes and p.
func (a *answer) send(p []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.sendLocked(p)
}

func (a *answer) sendLocked(p []byte) error {
	if a.err != nil || a.ended {
		return a.err
	}
	if !a.begun {
		a.begun = true
		a.openLocked(a.head)
		if len(a.held) > 0 {
			a.writeLocked(a.held)
		}
		a.held = nil
	}
	if len(p) > 0 {
		a.writeLocked(p)
	}
	if a.err == nil {
		if err := a.rc.Flush(); err != nil {
			a.err = err
		}
	}
	return a.err
}

// openLocked sends the status and the headers of a stream, unless they have been sent;
// head sets the headers.
func (a *answer) openLocked(head func()) {
	if a.opened {
		return
	}
	head()
	a.opened, a.status = true, http.StatusOK
	a.deadlineLocked()
	a.w.WriteHeader(http.StatusOK)
}

// isOpen reports whether the status has been sent.
func (a *answer) isOpen() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.opened
}

func (a *answer) writeLocked(p []byte) {
	if a.err != nil {
		return
	}
	a.deadlineLocked()
	n, err := a.w.Write(p)
	a.bytes += int64(n)
	if a.record != nil {
		_, _ = a.record.Write(p)
	}
	if a.tee != nil {
		a.tee.Write(p[:n])
	}
	if err != nil {
		a.err = errors.Join(errGone, err)
	}
}

// deadlineLocked renews the write deadline.
func (a *answer) deadlineLocked() {
	now := time.Now()
	a.last = now
	if a.until.Sub(now) < a.stall-a.stall/64 { // not with each write
		a.until = now.Add(a.stall)
		// An error means that the connection is broken, which the next write reports.
		_ = a.rc.SetWriteDeadline(a.until)
	}
}

// keepAlive sends keep's result if nothing was sent for silence, and returns the time
// until the next check. It opens a stream that has not begun, with the headers that head
// sets.
func (a *answer) keepAlive(silence time.Duration, head func(), keep func(begun bool) []byte) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended || a.err != nil {
		return silence
	}
	if rest := silence - time.Since(a.last); rest > 0 {
		return rest
	}
	a.openLocked(head)
	a.deadlineLocked()
	n, err := a.w.Write(keep(a.begun)) // bypasses cache and capture: keep-alives are no part of the answer
	a.bytes += int64(n)
	if err == nil {
		err = a.rc.Flush()
	}
	if err != nil { // the next writer sees the error
		a.err = errors.Join(errGone, err)
	}
	return silence
}

// whole sends an unstreamed answer.
func (a *answer) whole(status int, contentType string, body []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.opened || a.ended {
		return
	}
	a.opened, a.begun, a.ended, a.status = true, true, true, status
	h := a.w.Header()
	h["Content-Type"] = []string{contentType}
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	a.deadlineLocked()
	a.w.WriteHeader(status)
	a.writeLocked(body)
}

// keep stores the answer in the cache.
func (a *answer) keep(r *gateway.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.record != nil && a.err == nil {
		a.record.Keep(a.w.Header(), r)
	}
}

// collected returns the captured answer and stops capturing.
func (a *answer) collected() *capture.Tee {
	a.mu.Lock()
	defer a.mu.Unlock()
	t := a.tee
	a.tee = nil
	return t
}

// end stops the keep-alives.
func (a *answer) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = true
}

// state returns how much has been sent.
func (a *answer) state() (begun bool, status int, bytes int64, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.begun, a.status, a.bytes, a.err
}
