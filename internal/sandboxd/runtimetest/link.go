package runtimetest

import (
	"context"
	"net"
	"sync"
)

// breakable dials connections that can be broken together.
type breakable struct {
	dial func(context.Context) (net.Conn, error)

	mu    sync.Mutex // guards conns
	conns []net.Conn
}

// Dial dials a connection that Break closes.
func (b *breakable) Dial(ctx context.Context) (net.Conn, error) {
	conn, err := b.dial(ctx)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conns = append(b.conns, conn)
	return conn, nil
}

// Break closes all connections made so far.
func (b *breakable) Break() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.conns {
		c.Close()
	}
	b.conns = nil
}
