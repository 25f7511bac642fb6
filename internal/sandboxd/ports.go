package sandboxd

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/sandbox"
)

// checkPort refuses a port that no program in the guest can use.
func checkPort(port int) error {
	if err := (sandbox.PortParams{Port: port}).Validate(); err != nil {
		return err
	}
	if port == guest.Port {
		return cay.Errorf(cay.Invalid, "port %d is the guest agent's", port).WithHint("choose one that a program of yours listens on")
	}
	return nil
}

// declare converts validated parameters to ports without labels.
func declare(params []sandbox.PortParams) ([]sandbox.Port, error) {
	ports := make([]sandbox.Port, 0, len(params))
	for _, p := range params {
		if err := checkPort(p.Port); err != nil {
			return nil, err
		}
		p = p.WithDefaults()
		ports = append(ports, sandbox.Port{Port: p.Port, Access: p.Access})
	}
	return ports, nil
}

// DialPort implements Service.
func (e *Engine) DialPort(ctx context.Context, ref string, port int) (net.Conn, error) {
	if err := checkPort(port); err != nil {
		return nil, err
	}
	m, err := e.usable(ctx, ref, wakeAll)
	if err != nil {
		return nil, err
	}
	return e.dialPort(ctx, m, m.ctx, port)
}

// dialPort connects to a port of a machine. ctx bounds the dialing. The connection closes
// when life ends, which is at the latest when the machine ends, and counts as activity
// while it is open.
func (e *Engine) dialPort(ctx context.Context, m *session, life context.Context, port int) (net.Conn, error) {
	if n := m.conns.Add(1); int(n) > e.cfg.Limits.ConnsPerSandbox {
		m.conns.Add(-1)
		return nil, tooManyConns("the sandbox", e.cfg.Limits.ConnsPerSandbox)
	}
	if !e.conns.Take(m.scope.Team) {
		m.conns.Add(-1)
		return nil, tooManyConns(inDaemon, e.cfg.Limits.Conns)
	}
	m.idle.Enter()
	free := func() {
		m.idle.Leave()
		e.conns.Leave(m.scope.Team)
		m.conns.Add(-1)
	}
	dialing, cancel := context.WithCancelCause(ctx)
	unhook := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	conn, err := m.dialProgram(dialing, uint16(port))
	unhook()
	cancel(nil)
	if err == nil && life.Err() != nil { // a dial may be faster than the cancellation
		err = errors.Join(context.Cause(life), conn.Close())
	}
	if err != nil {
		free()
		switch {
		case life.Err() != nil:
			return nil, context.Cause(life)
		case ctx.Err() != nil:
			return nil, wire.ContextError(ctx)
		}
		return nil, e.machineError(m, err)
	}
	c := &portConn{Conn: conn}
	unhook = context.AfterFunc(life, func() { conn.Close() }) // the user's Close frees the rest
	c.end = sync.OnceFunc(func() {
		unhook()
		free()
	})
	return c, nil
}

func tooManyConns(where string, n int) error {
	err := cay.Errorf(cay.QuotaExceeded, "%d connections to ports are open in %s", n, where).WithHint("close some")
	err.RetryAfter = time.Second
	return err
}

// portConn is a connection to a port of a guest.
type portConn struct {
	net.Conn
	end func() // may be called again
}

// Close implements net.Conn.
func (c *portConn) Close() error {
	c.end()
	return c.Conn.Close()
}

// CloseWrite signals end-of-file to the program in the guest.
func (c *portConn) CloseWrite() error {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok {
		return cay.Errorf(cay.NotSupported, "a %T cannot be closed in one direction", c.Conn)
	}
	return half.CloseWrite()
}

// reach creates the clients for a machine's guest.
func (e *Engine) reach(m *session, token string) {
	m.guest = guest.NewClient(m.inst.DialGuest, token)
	m.guest.StandsStill, m.guest.Silence, m.guest.CPUWait = m.standsStill, e.cfg.Limits.Answer, e.cfg.CPUWait
	m.relayAs(token)
}

// relayAs creates the guest client for connections whose traffic is counted.
func (m *session) relayAs(token string) {
	m.relay = guest.NewClient(func(ctx context.Context) (net.Conn, error) { return m.inst.Dial(ctx, guest.Port) }, token)
	m.relay.CPUWait = m.guest.CPUWait
}

// dialProgram connects to a TCP port that a program in the guest listens on: directly if
// the program listens on the guest's own address or on all addresses, else through the
// agent, which reaches loopback addresses. Errors: unavailable if nothing listens.
func (m *session) dialProgram(ctx context.Context, port uint16) (net.Conn, error) {
	conn, err := m.inst.Dial(ctx, port)
	if err == nil || cay.CodeOf(err) != cay.Unavailable || ctx.Err() != nil {
		return conn, err
	}
	if conn, err := m.relay.Dial(ctx, port); err == nil || cay.CodeOf(err) != cay.Unavailable {
		return conn, err
	}
	return nil, cay.Errorf(cay.Unavailable, "nothing listens on port %d in the sandbox: %w", port, err).
		WithHint("start the server first; 0.0.0.0:%d, 127.0.0.1:%d and [::1]:%d are all reached", port, port, port)
}
