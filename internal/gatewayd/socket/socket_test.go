package socket

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"reflect"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/nettest"
)

// pair returns both ends of a connection; ours is a Conn.
func pair(t testing.TB) (ours, theirs net.Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialed := make(chan net.Conn, 1)
	go func() {
		c, err := new(net.Dialer).DialContext(context.Background(), "tcp", l.Addr().String())
		if err != nil {
			t.Error(err)
		}
		dialed <- c
	}()
	if ours, err = (Listener{l}).Accept(); err != nil {
		t.Fatal(err)
	}
	theirs = <-dialed
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	if _, ok := ours.(*conn); !ok {
		t.Fatalf("a TCP connection is a %T", ours)
	}
	return ours, theirs
}

// The test suite for net.Conn, with our connection at one end and at both ends.
func TestConn(t *testing.T) {
	t.Parallel()
	for name, other := range map[string]func(net.Conn) net.Conn{"with another's": func(c net.Conn) net.Conn { return c }, "with its like": Conn} {
		t.Run(name, func(t *testing.T) {
			nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
				ours, theirs := pair(t)
				theirs = other(theirs)
				return ours, theirs, func() { ours.Close(); theirs.Close() }, nil
			})
		})
	}
}

// Errors equal those of package net.
func TestConn_Errors(t *testing.T) {
	t.Parallel()
	same := func(what string, want func(error) bool, do func(c, other net.Conn) error) {
		t.Helper()
		ours, other := pair(t)
		got := do(ours, other)
		other2, theirs := pair(t)
		net := do(theirs, other2)
		if !want(got) || !want(net) {
			t.Errorf("%s: %v, and of package net %v", what, got, net)
		}
		if g, n := cause(got), cause(net); g != n || reflect.TypeOf(got) != reflect.TypeOf(net) {
			t.Errorf("%s: %T %v, and of package net %T %v", what, got, g, net, n)
		}
	}
	is := func(target error) func(error) bool { return func(err error) bool { return errors.Is(err, target) } }
	read := func(c net.Conn) error { _, err := c.Read(make([]byte, 10)); return err }
	same("end", is(io.EOF), func(c, other net.Conn) error { other.Close(); return read(c) })
	same("closed", is(net.ErrClosed), func(c, _ net.Conn) error { c.Close(); return read(c) })
	same("write to closed", is(net.ErrClosed), func(c, _ net.Conn) error { c.Close(); _, err := c.Write([]byte("x")); return err })
	same("too late", is(os.ErrDeadlineExceeded), func(c, _ net.Conn) error { _ = c.SetDeadline(time.Unix(1, 0)); return read(c) })
	same("write too late", func(err error) bool { e, ok := err.(net.Error); return ok && e.Timeout() }, func(c, _ net.Conn) error {
		_ = c.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
		_, err := c.Write(make([]byte, 64<<20)) // nobody reads
		return err
	})
	same("reset", is(syscall.ECONNRESET), func(c, other net.Conn) error {
		for {
			tcp, ok := other.(*net.TCPConn)
			if ok {
				_ = tcp.SetLinger(0)
				break
			}
			other = other.(*conn).Conn
		}
		other.Close()
		return read(c)
	})
}

func cause(err error) string {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Op + " " + op.Net + " " + op.Err.Error()
	}
	return err.Error()
}

// Large writes to a slow reader arrive whole and are not interleaved.
func TestConn_LargeWrites(t *testing.T) {
	t.Parallel()
	ours, theirs := pair(t)
	if err := ours.(*conn).Conn.(*net.TCPConn).SetWriteBuffer(64 << 10); err != nil {
		t.Fatal(err)
	}
	const writers, each = 8, 2 << 20
	done := make(chan error, writers)
	for i := range writers {
		go func() {
			n, err := ours.Write(bytes.Repeat([]byte{'a' + byte(i)}, each))
			if n != each && err == nil {
				err = io.ErrShortWrite
			}
			done <- err
		}()
	}
	got, seen := make([]byte, each), make(map[byte]bool)
	for range writers {
		if _, err := io.ReadFull(theirs, got); err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(got, got[:1]); n != each || seen[got[0]] {
			t.Fatalf("%d of %d bytes are of the writer %c, which was seen before: %v", n, each, got[0], seen[got[0]])
		}
		seen[got[0]] = true
	}
	for range writers {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// Connections other than TCP stay unchanged.
func TestConn_Others(t *testing.T) {
	t.Parallel()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if Conn(a) != a {
		t.Error("a pipe is another one")
	}
	dial := Dialer(func(context.Context, string, string) (net.Conn, error) { return nil, io.ErrNoProgress })
	if c, err := dial(t.Context(), "tcp", "x"); c != nil || err != io.ErrNoProgress {
		t.Errorf("%v %v", c, err)
	}
}

// Repeated reads and writes do not allocate.
func TestConn_Allocations(t *testing.T) {
	ours, theirs := pair(t)
	text, buf := []byte("text"), make([]byte, 4)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := ours.Write(text); err != nil {
			t.Fatal(err)
		}
		if _, err := theirs.Read(buf); err != nil {
			t.Fatal(err)
		}
		if _, err := theirs.Write(text); err != nil {
			t.Fatal(err)
		}
		if _, err := ours.Read(buf); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations for a write and a read", n)
	}
}
