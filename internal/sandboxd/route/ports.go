package route

import (
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/sandbox"
)

func (h *routes) handleFlows(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	follow := q.Bool("follow")
	p := sandbox.FlowParams{
		Verdict: sandbox.Verdict(q.String("verdict")),
		After:   q.Int("after", 0, math.MaxInt64, 0),
		Limit:   int(q.Int("limit", 1, 1000, 0)),
	}
	if err := q.Err(); err != nil {
		return err
	}
	ref := r.PathValue("ref")
	if !follow {
		page, err := h.svc.Flows(r.Context(), ref, p)
		if err != nil {
			return err
		}
		return writePage(w, page)
	}
	watch, err := h.svc.WatchFlows(r.Context(), ref, p)
	if err != nil {
		return err
	}
	return api.ServeLines(w, r, watch, api.JSONLines[sandbox.Flow]{})
}

// pathPort returns the port in the request's path.
func pathPort(r *http.Request) (int, error) {
	port, err := strconv.Atoi(r.PathValue("port"))
	if err != nil {
		return 0, cay.Errorf(cay.Invalid, "port %q is not a number", r.PathValue("port"))
	}
	return port, nil
}

func (h *routes) handleCreateLink(w http.ResponseWriter, r *http.Request) error {
	port, err := pathPort(r)
	if err != nil {
		return err
	}
	var p sandbox.LinkParams
	return h.answerJSON(w, r, &p, func() (any, error) { return h.svc.CreateLink(r.Context(), r.PathValue("ref"), port, p) })
}

// connectIdle is how long a connection to a port may carry no bytes in either direction.
// TCP keep-alive finds dead clients much earlier.
const connectIdle = time.Hour

// handleConnect turns the request's connection into a connection to a port of the guest.
func (h *routes) handleConnect(w http.ResponseWriter, r *http.Request) error {
	if err := api.NoQuery(r); err != nil {
		return err
	}
	port, err := pathPort(r)
	if err != nil {
		return err
	}
	return join(w, r, func() (net.Conn, error) { return h.svc.DialPort(r.Context(), r.PathValue("ref"), port) })
}

// join joins the request's connection with the guest's connection that open returns; see
// wire.UpgradeStream.
func join(w http.ResponseWriter, r *http.Request, open func() (net.Conn, error)) error {
	if err := api.CheckUpgrade(r); err != nil {
		return err
	}
	guest, err := open()
	if err != nil {
		return err
	}
	defer guest.Close() // the error does not matter: the connection is not used any more

	return api.Upgrade(w, r, func(conn *wire.FrameConn) { splice(conn, guest, connectIdle) })
}

// splice copies bytes from each connection to the other, until both have ended, one
// broke, or no bytes moved for idle. It closes both.
func splice(a, b net.Conn, idle time.Duration) {
	closeBoth := func() {
		a.Close()
		b.Close()
	}
	defer closeBoth()
	watchdog := time.AfterFunc(idle, closeBoth)
	defer watchdog.Stop()
	pass := func(dst, src net.Conn) {
		if copyAlive(dst, src, func() { watchdog.Reset(idle) }) != nil {
			closeBoth()
		}
	}
	var both sync.WaitGroup
	both.Go(func() { pass(a, b) })
	pass(b, a)
	both.Wait()
}

// copyAlive copies src to dst until the end, and passes the end on. It calls moved
// whenever it has copied bytes.
func copyAlive(dst, src net.Conn, moved func()) error {
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			moved()
			if _, err := dst.Write(buf[:n]); err != nil {
				return err
			}
			moved()
		}
		if err == io.EOF {
			half, ok := dst.(interface{ CloseWrite() error })
			if !ok {
				return errors.ErrUnsupported
			}
			return half.CloseWrite()
		}
		if err != nil {
			return err
		}
	}
}
