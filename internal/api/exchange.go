package api

import (
	"context"
	"net/http"
	"sync"
)

// exchange has the data of one request for the log.
type exchange struct {
	id string

	mu    sync.Mutex // guards what follows
	err   error      // the first error that was answered
	fault bool       // err is the daemon's own
}

type exchangeKey struct{}

// exchangeFrom returns the request's exchange, nil if the request did not come
// through Log. Methods of a nil exchange do nothing.
func exchangeFrom(ctx context.Context) *exchange {
	x, _ := ctx.Value(exchangeKey{}).(*exchange)
	return x
}

func (x *exchange) note(err error, fault bool) {
	if x == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.err == nil || fault && !x.fault {
		x.err, x.fault = err, fault
	}
}

func (x *exchange) outcome() (err error, fault bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.err, x.fault
}

// tracked is a ResponseWriter that records the status and the bytes written.
// Flushing, deadlines and hijacking reach the writer below through Unwrap.
type tracked struct {
	http.ResponseWriter
	status int   // 0 until the header is written
	bytes  int64 // of the answer
	body   *watchedBody
	duplex bool // the answer may begin before the body ends
}

// track returns w as a tracked writer, wrapping it at most once.
func track(w http.ResponseWriter) *tracked {
	if t, ok := w.(*tracked); ok {
		return t
	}
	return &tracked{ResponseWriter: w}
}

func (t *tracked) Unwrap() http.ResponseWriter { return t.ResponseWriter }

func (t *tracked) WriteHeader(status int) {
	if t.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		t.begin(status)
	}
	t.ResponseWriter.WriteHeader(status)
}

// begin records that the header is sent. In full duplex the server does not
// read the rest of the body first, and must not take it for another request, so
// begin makes it close the connection. HTTP/2 has no such problem, and closing
// would end the connection's other requests, too.
func (t *tracked) begin(status int) {
	t.status = status
	if t.duplex && t.body.http1 && !t.body.ended.Load() {
		t.Header().Set("Connection", "close")
	}
}

func (t *tracked) Write(p []byte) (int, error) {
	if t.status == 0 {
		t.begin(http.StatusOK)
	}
	n, err := t.ResponseWriter.Write(p)
	t.bytes += int64(n)
	return n, err
}
