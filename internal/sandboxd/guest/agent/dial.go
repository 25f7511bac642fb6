package agent

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
)

// loopback are the addresses on which programs listen for connections from their own
// machine only, as most development servers do.
var loopback = []string{"127.0.0.1", "::1"}

// dialTimeout bounds connecting to a program whose accept queue is full.
const dialTimeout = 10 * time.Second

// handleDial turns the request's connection into a connection to a port of this machine.
func (s *Server) handleDial(w http.ResponseWriter, r *http.Request) error {
	port, err := strconv.ParseUint(r.URL.Query().Get("port"), 10, 16)
	if err != nil || port == 0 {
		return cay.Errorf(cay.Invalid, "port %q is not 1 to 65535", r.URL.Query().Get("port"))
	}
	if r.Header.Get("Upgrade") != guest.DialProtocol {
		return cay.Errorf(cay.Invalid, "a dial must ask for the upgrade %q", guest.DialProtocol)
	}
	if int(s.relays.Add(1)) > s.cfg.Limits.Relays {
		s.relays.Add(-1)
		return cay.Errorf(cay.QuotaExceeded, "%d connections are relayed to programs on loopback addresses", s.cfg.Limits.Relays).
			WithHint("let the program listen on 0.0.0.0")
	}
	defer s.relays.Add(-1)

	ctx, cancel := context.WithTimeout(r.Context(), dialTimeout)
	defer cancel()
	program, err := dialLoopback(ctx, strconv.FormatUint(port, 10))
	if err != nil {
		return err
	}
	defer program.Close()
	daemon, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return err
	}
	defer daemon.Close()
	if _, err := io.WriteString(daemon, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+guest.DialProtocol+"\r\n\r\n"); err != nil {
		return nil // the daemon is gone
	}
	// Bytes that arrived together with the request's head.
	first, err := rw.Reader.Peek(rw.Reader.Buffered())
	if err == nil && len(first) > 0 {
		_, err = program.Write(first)
	}
	if err != nil {
		return nil
	}
	s.relay(daemon, program)
	return nil
}

func dialLoopback(ctx context.Context, port string) (net.Conn, error) {
	var errs []error
	for _, host := range loopback {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(host, port))
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
		if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.EADDRNOTAVAIL) {
			break
		}
	}
	return nil, cay.Errorf(cay.Unavailable, "connect to port %s: %w", port, errors.Join(errs...))
}

// relay copies both ways until both directions have ended, or one has failed.
func (s *Server) relay(daemon, program net.Conn) {
	stop := context.AfterFunc(s.ctx, func() {
		daemon.Close()
		program.Close()
	})
	defer stop()
	var both sync.WaitGroup
	pass := func(dst, src net.Conn) {
		_, err := io.Copy(dst, src)
		if half, ok := dst.(interface{ CloseWrite() error }); ok && err == nil {
			err = half.CloseWrite()
		}
		if err != nil { // one connection is broken, so the other must be, too
			daemon.Close()
			program.Close()
		}
	}
	both.Go(func() { pass(program, daemon) })
	pass(daemon, program)
	both.Wait()
}

// CloseWrite ends the sending half, for relay.
func (c *slotConn) CloseWrite() error {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	return half.CloseWrite()
}
