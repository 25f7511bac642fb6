package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// newPatience is how long a new connection may take to send its request when its server
// stops. Clients connect in order to send.
const newPatience = 250 * time.Millisecond

// connections are those of a server that have a request to answer, or are about to send one.
//
// http.Server.Shutdown drops a request that it is just reading, and a connection that it is
// just accepting. So a server that is to lose nothing first stops accepting, then awaits the
// end of these connections, and then shuts down.
type connections struct {
	mu      sync.Mutex // guards what follows
	busy    map[net.Conn]http.ConnState
	changed chan struct{} // closed when there are fewer; nil: nobody waits
}

// watch makes the connections of a server known. Call it before the server serves.
func (c *connections) watch(s *http.Server) {
	c.busy = make(map[net.Conn]http.ConnState)
	s.ConnState = func(conn net.Conn, state http.ConnState) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if state == http.StateNew || state == http.StateActive {
			c.busy[conn] = state
			return
		}
		delete(c.busy, conn)
		if c.changed != nil {
			close(c.changed)
			c.changed = nil
		}
	}
}

// await returns when no connection is busy, or ctx ends.
func (c *connections) await(ctx context.Context) {
	for {
		c.mu.Lock()
		if len(c.busy) == 0 {
			c.mu.Unlock()
			return
		}
		if c.changed == nil {
			c.changed = make(chan struct{})
		}
		changed := c.changed
		c.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// closeNew closes the connections on which no request has come.
func (c *connections) closeNew() {
	c.mu.Lock()
	var idle []net.Conn
	for conn, state := range c.busy {
		if state == http.StateNew {
			idle = append(idle, conn)
		}
	}
	c.mu.Unlock()
	for _, conn := range idle {
		conn.Close() // whatever its client does
	}
}

// stopAccepting closes a server's listener, and returns when the server knows all the
// connections that it has accepted.
func stopAccepting(l net.Listener, served <-chan error) error {
	if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("stop listening: %w", err)
	}
	if err := <-served; !errors.Is(err, net.ErrClosed) && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	}
	return nil
}

// drain ends a server that accepts no more connections. Requests under way have until the
// end of ctx; cut is called before those are cut off that take longer.
func (c *connections) drain(ctx context.Context, s *http.Server, cut func()) error {
	s.SetKeepAlivesEnabled(false) // connections end with their request
	silent := time.AfterFunc(newPatience, c.closeNew)
	c.await(ctx)
	silent.Stop()
	if err := s.Shutdown(ctx); err != nil { // a client that reads or sends slowly
		cut()
		return s.Close()
	}
	return nil
}
