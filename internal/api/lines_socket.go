package api

import (
	"context"
	"net/http"

	"github.com/coder/websocket"
)

// serveSocket is ServeLines over a WebSocket. The WebSocket closes with the status 1000
// when src ends; any message of the client closes it.
func serveSocket[T any](w http.ResponseWriter, r *http.Request, src Source[T], enc Encoder[T]) error {
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{LinesProtocol}})
	if err != nil {
		_ = src.Close() // nothing was read from it
		return nil      // Accept has answered
	}
	defer conn.CloseNow() // a no-op after the closing handshake

	// The request's context does not end when the client of a hijacked connection leaves;
	// and when it ends, the last line must still be written.
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	open := context.WithoutCancel(r.Context())
	go func() {
		if _, _, err := conn.Read(open); err == nil {
			conn.CloseNow() // there is nothing to say here
		}
		cancel()
	}()
	out := &lineWriter{send: func(b []byte, _ bool) error {
		if len(b) == 0 {
			return nil
		}
		ctx, cancel := context.WithTimeout(open, StallTimeout)
		defer cancel()
		return conn.Write(ctx, websocket.MessageText, b)
	}}
	if serve(ctx, src, enc, out) == nil {
		_ = conn.Close(websocket.StatusNormalClosure, "") // the client may have left meanwhile
	}
	return nil
}
