package sandboxd

import (
	"context"
	"net"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
)

// reach makes the clients of the machine's guest, which may be silent that long.
func (m *session) reach(token string, silence time.Duration) {
	m.guest = guest.NewClient(m.inst.DialGuest, token)
	m.guest.StandsStill, m.guest.Silence = m.standsStill, silence
	m.relayAs(token)
}

// relayAs makes the client for connections whose traffic counts.
func (m *session) relayAs(token string) {
	m.relay = guest.NewClient(func(ctx context.Context) (net.Conn, error) { return m.inst.Dial(ctx, guest.Port) }, token)
}

// dialProgram connects to a TCP port that a program in the guest listens on:
// directly if it listens on the guest's own address or on all, else through the
// agent, which reaches those on loopback addresses. Errors: unavailable if
// nothing listens.
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
