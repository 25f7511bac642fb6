package route_test

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
)

// breakingProxy forwards connections until it is told to break them.
type breakingProxy struct {
	addr   string
	target string
	opened chan struct{} // has a value after a connection was made

	mu    sync.Mutex // guards what follows
	conns map[net.Conn]bool
	count int
}

func newBreakingProxy(t *testing.T, target string) *breakingProxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &breakingProxy{addr: ln.Addr().String(), target: target, opened: make(chan struct{}, 1), conns: map[net.Conn]bool{}}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { p.pass(conn) })
		}
	})
	t.Cleanup(func() {
		ln.Close()
		p.breakAll()
		wg.Wait()
	})
	return p
}

func (p *breakingProxy) pass(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer server.Close()
	p.mu.Lock()
	p.conns[client] = true
	p.mu.Unlock()
	select {
	case p.opened <- struct{}{}:
	default:
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		io.Copy(server, client)
		server.Close()
	})
	io.Copy(client, server)
	client.Close()
	wg.Wait()
	p.mu.Lock()
	delete(p.conns, client)
	p.mu.Unlock()
}

// breakAll resets all connections.
func (p *breakingProxy) breakAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
		p.count++
	}
	clear(p.conns)
}

// breakNext resets the present connection, or the next one.
func (p *breakingProxy) breakNext(ctx context.Context) {
	for n := p.broken(); ; {
		if p.breakAll(); p.broken() > n {
			return
		}
		select {
		case <-p.opened:
		case <-ctx.Done():
			return
		}
	}
}

// broken returns how many connections were broken.
func (p *breakingProxy) broken() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count
}
