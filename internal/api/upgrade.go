package api

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire"
)

// CheckUpgrade returns an error unless a request can be upgraded to wire.UpgradeStream and
// asks for it. Errors: not_supported (the version of HTTP), invalid.
func CheckUpgrade(r *http.Request) error {
	if r.ProtoMajor != 1 {
		return cay.Errorf(cay.NotSupported, "a connection of %s cannot be upgraded", r.Proto).WithHint("connect with HTTP/1.1")
	}
	if !asksForUpgrade(r.Header) {
		return cay.Errorf(cay.Invalid, "the request does not ask for an upgrade to %q", wire.UpgradeStream).
			WithHint("send the headers Connection: Upgrade and Upgrade: %s", wire.UpgradeStream)
	}
	if r.ContentLength != 0 {
		return cay.Errorf(cay.Invalid, "the request has a body")
	}
	return nil
}

func asksForUpgrade(h http.Header) bool {
	if !strings.EqualFold(h.Get("Upgrade"), wire.UpgradeStream) {
		return false
	}
	for _, v := range h.Values("Connection") {
		for token := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(strings.TrimSpace(token), "Upgrade") {
				return true
			}
		}
	}
	return false
}

// Upgrade upgrades the connection of a request that CheckUpgrade has accepted, and calls
// serve with it. serve is not called if the client has disconnected. The connection is
// closed when serve returns, and when the request's context ends: the caller's token, or
// login, may end before the connection does.
func Upgrade(w http.ResponseWriter, r *http.Request, serve func(conn *wire.FrameConn)) error {
	header := w.Header()
	header.Set("Connection", "Upgrade")
	header.Set("Upgrade", wire.UpgradeStream)
	w.WriteHeader(http.StatusSwitchingProtocols)
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return err
	}
	defer conn.Close() // the error does not matter: the connection is not used any more
	if err := errors.Join(conn.SetDeadline(time.Time{}), rw.Flush()); err != nil {
		return nil // the client has disconnected
	}
	defer context.AfterFunc(r.Context(), func() { conn.Close() })()
	serve(wire.NewFrameConn(hijacked{conn, rw.Reader}, conn))
	return nil
}

// hijacked is a connection whose first bytes may be in a buffered reader.
type hijacked struct {
	net.Conn
	r *bufio.Reader
}

func (h hijacked) Read(p []byte) (int, error) { return h.r.Read(p) }
