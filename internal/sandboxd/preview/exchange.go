package preview

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"

	"github.com/cayhq/cay/internal/sandboxd/upload"
)

// recorder is a ResponseWriter that records the status, 0 until there is one. Unwrap
// gives access to the other methods of the underlying writer.
type recorder struct {
	http.ResponseWriter
	status int
	body   *upload.Body
	visit  context.Context // of the visit, for Hijack
}

// record returns a recorder of w, and watches r's body. An answer may begin before the
// body ends, for example when a guest refuses it. The caller must call body.Finish at the
// end.
func record(w http.ResponseWriter, r *http.Request) (*recorder, error) {
	rw := &recorder{ResponseWriter: w, body: upload.New(w, r)}
	if !rw.body.Open() {
		return rw, nil
	}
	if err := http.NewResponseController(w).EnableFullDuplex(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return rw, err
	}
	return rw, nil
}

// Unwrap is for http.ResponseController.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Hijack implements http.Hijacker: for a WebSocket. It closes the visitor's connection when
// the visit ends. Package httputil closes only the guest's, and would wait without end for a
// visitor who says nothing.
func (w *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	context.AfterFunc(w.visit, func() { conn.Close() })
	return conn, rw, nil
}

// WriteHeader implements http.ResponseWriter.
func (w *recorder) WriteHeader(status int) {
	switch {
	case status < 200 && status != http.StatusSwitchingProtocols:
		if !w.body.Inform(w.ResponseWriter, status) {
			return
		}
		cleanResponse(w.Header()) // an informational answer did not come through modifyResponse
	case w.status == 0:
		w.status = status
		if w.body.Open() {
			// The rest of the body must not be parsed as the next request.
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
