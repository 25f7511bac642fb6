// Package socket reads and writes TCP connections without notifying Go's scheduler.
//
// Go's runtime assumes that any system call may take long. Before a call the runtime
// wakes a monitoring thread; if the call takes more than 20 microseconds, as a write to a
// loopback socket can, the monitor moves the goroutine's processor to another thread, and
// afterwards the goroutine must get a processor again. Reads and writes of non-blocking
// sockets are always short, and with a few dozen streams these switches are most of a
// gateway's work. The runtime's poller still waits for data and enforces deadlines.
//
// It wins 18 % of the time of cay-bench's row cross_stream (docs/benchmarks.md). At a Go
// upgrade, compare that row with the package and with net.Conn in its place, and delete the
// package if it wins less than 15 %. Only Linux is supported.
package socket

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"unsafe"
)

// most is the maximum number of bytes per system call, which keeps a call short.
const most = 64 << 10

// Conn returns c with reads and writes that bypass the scheduler if c is a TCP
// connection, else c itself.
func Conn(c net.Conn) net.Conn {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return c
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return c
	}
	s := &conn{Conn: tcp, raw: raw}
	s.read.do = s.read.on(syscall.SYS_READ)
	s.write.do = s.write.on(syscall.SYS_WRITE)
	return s
}

// Dialer returns a function that dials with dial and returns a Conn.
func Dialer(dial func(ctx context.Context, network, address string) (net.Conn, error)) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return Conn(c), nil
	}
}

// Listener accepts connections and returns them as Conns.
type Listener struct{ net.Listener }

// Accept implements net.Listener.
func (l Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return Conn(c), nil
}

type conn struct {
	net.Conn
	raw         syscall.RawConn
	read, write way
}

var _ syscall.Conn = (*conn)(nil)

// SyscallConn implements syscall.Conn.
func (c *conn) SyscallConn() (syscall.RawConn, error) { return c.raw, nil }

// way is one direction of a connection, reading or writing.
type way struct {
	mu    sync.Mutex // serializes calls; guards the other fields
	p     []byte
	n     int
	errno syscall.Errno
	do    func(fd uintptr) bool
}

// on returns a function for the poller that repeats the system call with p until it has a
// result.
func (w *way) on(call uintptr) func(fd uintptr) bool {
	return func(fd uintptr) bool {
		for {
			n, _, errno := syscall.RawSyscall(call, fd, uintptr(unsafe.Pointer(unsafe.SliceData(w.p))), uintptr(len(w.p)))
			switch errno {
			case syscall.EINTR:
				continue
			case syscall.EAGAIN:
				return false // the poller calls again when the socket is ready
			}
			w.n, w.errno = int(n), errno
			return true
		}
	}
}

// once makes the call with p as soon as the socket is ready, and returns its result.
func (w *way) once(wait func(func(uintptr) bool) error, p []byte) (int, error) {
	w.p, w.n, w.errno = p[:min(len(p), most)], 0, 0
	err := wait(w.do)
	w.p = nil
	switch {
	case err != nil:
		return 0, err
	case w.errno != 0:
		return 0, w.errno
	}
	return w.n, nil
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	c.read.mu.Lock()
	defer c.read.mu.Unlock()
	n, err := c.read.once(c.raw.Read, p)
	switch {
	case err != nil:
		return 0, c.failed("read", err)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// Write implements net.Conn.
func (c *conn) Write(p []byte) (int, error) {
	c.write.mu.Lock()
	defer c.write.mu.Unlock()
	done := 0
	for done < len(p) {
		n, err := c.write.once(c.raw.Write, p[done:])
		if err != nil {
			return done, c.failed("write", err)
		}
		done += n
	}
	return done, nil
}

// failed converts err to the form of package net.
func (c *conn) failed(op string, err error) error {
	if e, ok := err.(*net.OpError); ok {
		err = e.Err
	}
	if errno, ok := err.(syscall.Errno); ok {
		err = os.NewSyscallError(op, errno)
	}
	return &net.OpError{Op: op, Net: c.LocalAddr().Network(), Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}
