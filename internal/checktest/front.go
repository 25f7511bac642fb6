package checktest

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// Front is an address that stays the same while the server behind it is replaced or
// missing. Without it, another process could take the port of a stopped server.
type Front struct {
	Addr   string // host:port
	behind atomic.Pointer[string]
}

// NewFront returns a front with nothing behind it. Connections to it are cut off.
func NewFront(t testing.TB) *Front {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &Front{Addr: l.Addr().String()}
	ctx, cancel := context.WithCancel(context.Background())
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { f.pass(ctx, c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		cancel()
		conns.Wait()
	})
	return f
}

// Lead makes the front forward new connections to the server at addr; "" cuts them off.
// Open connections are not affected.
func (f *Front) Lead(addr string) { f.behind.Store(&addr) }

func (f *Front) pass(ctx context.Context, c net.Conn) {
	defer c.Close()
	addr := f.behind.Load()
	if addr == nil || *addr == "" {
		return
	}
	server, err := new(net.Dialer).DialContext(ctx, "tcp", *addr)
	if err != nil {
		return
	}
	end := func() {
		c.Close()
		server.Close()
	}
	defer context.AfterFunc(ctx, end)()
	var there sync.WaitGroup
	there.Go(func() {
		io.Copy(server, c)
		end()
	})
	io.Copy(c, server)
	end()
	there.Wait()
}
