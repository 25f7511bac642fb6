package preview

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// drainTimeout is how long a visitor may go on sending a body that nobody wants
// to the end.
const drainTimeout = time.Second

// recorder is a ResponseWriter that knows the status, 0 until there is one.
// What else a writer can do it leaves to the one below, through Unwrap.
type recorder struct {
	http.ResponseWriter
	status int
	body   *countedBody // of an HTTP/1 request that has one; else nil
}

// record returns a recorder of w, and has r's body watched. An answer may begin
// before the body ends, as when a guest refuses it. finish is called at the end.
func record(w http.ResponseWriter, r *http.Request) (*recorder, error) {
	rw := &recorder{ResponseWriter: w}
	if r.ProtoMajor != 1 || r.Body == nil || r.Body == http.NoBody {
		return rw, nil // in HTTP/2 streams have nothing to do with each other
	}
	rw.body = &countedBody{ReadCloser: r.Body, left: r.ContentLength}
	r.Body = rw.body
	if err := http.NewResponseController(w).EnableFullDuplex(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return rw, err
	}
	return rw, nil
}

// finish bounds what the server does for what is left of the body.
func (w *recorder) finish() {
	if w.body != nil && !w.body.ended.Load() {
		// If this fails the connection is broken, and nothing left to read.
		_ = http.NewResponseController(w.ResponseWriter).SetReadDeadline(time.Now().Add(drainTimeout))
	}
}

// Unwrap is for http.ResponseController.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *recorder) WriteHeader(status int) {
	switch {
	case status < 200 && status != http.StatusSwitchingProtocols:
		cleanResponse(w.Header()) // an informational answer did not come through modifyResponse
	case w.status == 0:
		w.status = status
		if w.body != nil && !w.body.ended.Load() {
			// What is left of the body must not be taken for another request.
			w.Header().Set("Connection", "close")
		}
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements io.Writer.
func (w *recorder) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	return w.ResponseWriter.Write(p)
}

// countedBody is a request's body that knows whether it was read to its end.
type countedBody struct {
	io.ReadCloser
	left  int64 // bytes to come; negative if nobody said
	ended atomic.Bool
}

// Read implements io.Reader.
func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left >= 0 {
		b.left -= int64(n)
	}
	if err == io.EOF || b.left == 0 {
		b.ended.Store(true)
	}
	return n, err
}
