package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// silence is how long a server may take no sent bytes: afterwards its connection
	// ends, also if the server announces a window of 0.
	silence = 5 * time.Minute
	// pieceBelow is the size of a window, in bytes, below which the kernel gets the data
	// in pieces that it keeps apart. The kernel merges other pieces up to 64 KiB, without
	// regard to the window.
	pieceBelow = 128 << 10
)

// hostConn is a TCP connection of the daemon to a destination, bounded by windows. The
// kernel frees the connection's buffers when the process ends, in whatever way.
type hostConn struct {
	net.Conn // a *net.TCPConn
	raw      syscall.RawConn
	link     *Link
	in, out  *window
	ready    [1]unix.PollFd // of await

	closing  sync.Once
	releases sync.Once
	gone     chan struct{} // closed when the kernel holds no bytes of the connection any more
}

// dial connects to an address by TCP.
func (l *Link) dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := l.egress.cfg.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return l.bind(conn)
}

// bind makes the memory of conn bounded, or closes conn.
func (l *Link) bind(conn net.Conn) (net.Conn, error) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return conn, nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("prepare the connection: %w", err), conn.Close())
	}
	c := &hostConn{Conn: tcp, raw: raw, link: l, gone: make(chan struct{})}
	c.in = &window{
		share: l.share, least: leastFromHost, most: mostFromHost, parts: 2,
		resize: func(size int64) error {
			return control(raw, func(fd int) error {
				// Without TCP_WINDOW_CLAMP Linux never offers more than the buffer's size
				// at the opening of the connection.
				return errors.Join(setBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, int(size)/2),
					unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_WINDOW_CLAMP, int(size)))
			})
		},
		held: func() int64 { n, _ := heldBy(raw); return n },
	}
	c.out = &window{
		share: l.share, least: leastToHost, most: mostToHost, parts: 1, taking: true,
		resize: func(size int64) error {
			return control(raw, func(fd int) error {
				return setBuffer(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, int(size)/2)
			})
		},
		held: func() int64 { _, n := heldBy(raw); return n },
	}
	err = errors.Join(c.in.open(), c.out.open(), tcp.SetLinger(0), control(raw, func(fd int) error {
		return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(l.egress.silence.Milliseconds()))
	}))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("prepare the connection: %w", err), conn.Close())
	}
	return c, nil
}

// setBuffer sets the size of a socket's buffer, in bytes. The kernel doubles the size,
// for its overhead. The option force may exceed the system's limit and needs
// CAP_NET_ADMIN; without CAP_NET_ADMIN, setBuffer uses the option plain, and the limit
// applies.
func setBuffer(fd, force, plain, size int) error {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, size) == nil {
		return nil
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, size)
}

// control calls f with a socket.
func control(raw syscall.RawConn, f func(fd int) error) (err error) {
	if cerr := raw.Control(func(fd uintptr) { err = f(int(fd)) }); cerr != nil {
		return cerr
	}
	return err
}

// heldBy returns the bytes that the kernel holds for a socket: received bytes, and bytes
// to be sent. A closed socket holds nothing.
func heldBy(raw syscall.RawConn) (received, sent int64) {
	_ = control(raw, func(fd int) error {
		received, sent = socketMemory(fd)
		return nil
	})
	return received, sent
}

// socketMemory is heldBy for an open socket.
func socketMemory(fd int) (received, sent int64) {
	// SO_MEMINFO is an array of 32-bit words. ICMPv6Filter is the only type that package
	// unix can read such an option into; it has all words of the array but the last.
	info, err := unix.GetsockoptICMPv6Filter(fd, unix.SOL_SOCKET, unix.SO_MEMINFO)
	if err != nil {
		return 0, 0
	}
	const rmemAlloc, wmemQueued = 0, 5
	return int64(info.Data[rmemAlloc]), int64(info.Data[wmemQueued])
}

// unsent returns how many bytes the server has not acknowledged. The FIN counts as one
// byte.
func (c *hostConn) unsent() (n int, err error) {
	err = control(c.raw, func(fd int) error {
		n, err = unix.IoctlGetInt(fd, unix.SIOCOUTQ)
		return err
	})
	return n, err
}

// await returns when Read would not block. Before it waits, it calls idle.
func (c *hostConn) await(idle func()) {
	// Errors are for Read to return.
	_ = c.raw.Read(func(fd uintptr) bool {
		c.ready[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
		if n, err := unix.Poll(c.ready[:], 0); n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return true
		}
		idle()
		return false
	})
}

func (c *hostConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.in.use(n)
	return n, err
}

func (c *hostConn) Write(b []byte) (written int, err error) {
	for len(b) > 0 && err == nil {
		var n int
		if c.out.now() < pieceBelow {
			n, err = c.writePiece(b[:min(len(b), smallBuffer)])
		} else {
			n, err = c.Conn.Write(b)
		}
		c.out.use(n)
		written += n
		b = b[n:]
	}
	return written, err
}

// writePiece writes at most all of b.
func (c *hostConn) writePiece(b []byte) (n int, err error) {
	werr := c.raw.Write(func(fd uintptr) bool {
		for {
			if n, err = unix.SendmsgN(int(fd), b, nil, nil, unix.MSG_EOR|unix.MSG_NOSIGNAL); !errors.Is(err, unix.EINTR) {
				return !errors.Is(err, unix.EAGAIN)
			}
		}
	})
	if werr != nil {
		return 0, werr
	}
	if err != nil {
		return 0, &net.OpError{Op: "write", Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: os.NewSyscallError("sendmsg", err)}
	}
	return n, nil
}

// CloseWrite closes the sending side.
func (c *hostConn) CloseWrite() error { return closeWrite(c.Conn) }

// Close implements net.Conn. Written bytes are still delivered, for at most untakenTime
// and while the link exists; then gone is closed.
func (c *hostConn) Close() (err error) {
	c.closing.Do(func() {
		if n, uerr := c.unsent(); uerr != nil || n <= 1 {
			err = c.release(true)
			return
		}
		if c.CloseWrite() != nil || !c.link.start(c.drain) {
			err = c.release(false)
			return
		}
		err = c.SetReadDeadline(time.Unix(1, 0)) // wakes waiting readers
	})
	return err
}

// drain waits until the server has taken all bytes sent.
func (c *hostConn) drain() {
	defer c.reset()
	ctx, cancel := context.WithTimeout(c.link.ctx, untakenTime)
	defer cancel()
	const first, most = 10 * time.Millisecond, time.Second
	for pause := first; ; pause = min(2*pause, most) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		if n, err := c.unsent(); err != nil || n <= 1 {
			_ = c.release(true) // nobody waits for the error
			return
		}
	}
}

// reset ends the connection with a TCP reset, and frees all that the kernel holds.
func (c *hostConn) reset() { _ = c.release(false) }

// release frees the socket; inOrder is set if the server has taken everything but the
// FIN.
func (c *hostConn) release(inOrder bool) (err error) {
	c.releases.Do(func() {
		if inOrder {
			err = c.Conn.(*net.TCPConn).SetLinger(-1)
		}
		err = errors.Join(err, c.Conn.Close())
		c.in.close()
		c.out.close()
		close(c.gone)
	})
	return err
}

// hostConnOf returns the hostConn that conn wraps, nil if it wraps none.
func hostConnOf(conn net.Conn) *hostConn {
	switch c := conn.(type) {
	case *hostConn:
		return c
	case *replayed:
		return hostConnOf(c.Conn)
	case interface{ NetConn() net.Conn }: // TLS to the host's proxy
		return hostConnOf(c.NetConn())
	}
	return nil
}
